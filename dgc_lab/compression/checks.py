"""Checks of names, gradients and a scheme's step: a wrong question or result raises an error, and no worker hangs."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Sequence

import tensorflow as tf

from dgc_lab.common import check_instance, check_list, check_text
from dgc_lab.compression.config import Collectives
from dgc_lab.compression.scheme import AllGather, AllReduceMean, Scheme, SparseMean

QUESTIONS = "AllReduceMean(tensor), SparseMean(indices, values, size) or AllGather((tensor, ...))"


def checked_names(names: Sequence[str] | None, variables: list) -> list[str]:
    """Return the names, by default the variables' own; raise ValueError unless there is one for each variable."""
    given = [check_text("names", name) for name in check_list("names", names or [])]
    given = given or [variable.name.split(":")[0] for variable in variables]
    if len(given) != len(variables):
        raise ValueError(f"names must be {len(variables)}, one for each variable, got {given}")
    return given


def gradient_kinds(gradients: list, workers: int, variables: list, names: list[str]) -> list[str]:
    """Return each gradient's kind: ``"tensor"``, ``"rows"`` (``tf.IndexedSlices``) or ``"none"``.

    Raises ValueError unless there is a list of gradients for each worker, with one for each variable, in the variable's
    shape and of the same kind on all workers.
    """
    found, count = [len(own) for own in gradients], len(variables)
    if found != [count] * workers:
        raise ValueError(f"gradients must be {workers} lists of {count}, one for each worker, got lists of {found}")
    kinds = [[kind_of(gradient) for gradient in own] for own in gradients]
    for i, (name, variable) in enumerate(zip(names, variables, strict=True)):
        for own in gradients:
            shape = getattr(own[i], "shape", None)
            if not variable.shape.is_compatible_with(shape):
                raise ValueError(f"gradient of {name} must have the variable's shape {variable.shape}, got {shape}")
        if len({own[i] for own in kinds}) > 1:
            raise ValueError(f"gradient of {name} must be of one kind on all workers, got {[own[i] for own in kinds]}")
    return kinds[0]


def kind_of(gradient) -> str:
    return "none" if gradient is None else "rows" if isinstance(gradient, tf.IndexedSlices) else "tensor"


def check_kinds(kinds: list[str], before: set, names: list[str]) -> None:
    """Raise ValueError unless there is a gradient, and none changed between a tensor and rows since an earlier step.

    ``before`` holds pairs of a variable's number and its gradient's kind in earlier steps, if the kind must not change.
    """
    if set(kinds) <= {"none"}:
        raise ValueError(f"gradients must hold at least one tensor, got None for all variables, {list(names)}")
    for i, kind in before:
        if kinds[i] not in ("none", kind):
            raise ValueError(
                f"gradient of {names[i]} must be of the same kind in all steps, {kind}, got {kinds[i]}: workers share "
                "one velocity of rows, but each has its own velocity of a tensor"
            )


def checked_step(scheme: Scheme, gradient, state, context, name: str):
    """Run the scheme's step for the tensor called ``name``; raise ValueError for a wrong question or result."""
    who = f"{scheme.label}, for {name},"
    step, answer, asked = explain_generator_error(who, scheme.step, gradient, state, context), None, False
    if not inspect.isgenerator(step):
        raise ValueError(f"{who} must have a step with a yield in it, it returned {step!r}")
    while True:
        try:
            question = explain_generator_error(who, step.send, answer)
        except StopIteration as end:
            if not asked:
                raise ValueError(
                    f"{who} must yield a question at least once: workers that ask nothing would diverge from each other"
                ) from None
            return checked_result(end.value, gradient, state, who)
        answer, asked = (yield checked_question(question, who)), True


def explain_generator_error(who: str, call: Callable, *arguments):
    """Call a scheme's function; raise ValueError if TensorFlow got a generator, as from a yield in a branch."""
    try:
        return call(*arguments)
    except (TypeError, ValueError) as error:
        if "generator" not in str(error):
            raise
        raise ValueError(
            f"{who} must not yield in a function that tf.cond or tf.while_loop calls: yield in the step itself, in "
            "every step and on all workers, and choose between results with tf.where"
        ) from error


def checked_question(question, who: str):
    """Return the question with its parts as tensors; raise ValueError unless an exchange can answer it."""
    if isinstance(question, SparseMean):
        return checked_sparse(question, who)
    if not isinstance(question, (AllReduceMean, AllGather)):
        raise ValueError(f"{who} must yield {QUESTIONS}, got {question!r}")
    given = (question.tensor,) if isinstance(question, AllReduceMean) else question.tensors
    if not isinstance(given, (tuple, list)) or not given:
        raise ValueError(f"{who} must yield AllGather of a tuple of tensors, got AllGather({given!r})")
    tensors = as_tensors(given, question, who)
    if isinstance(question, AllReduceMean):
        if not tensors[0].dtype.is_floating:
            raise ValueError(f"{who} must yield AllReduceMean of floating-point numbers, got {tensors[0].dtype.name}")
        if tensors[0].dtype == tf.bfloat16:
            raise ValueError(
                f"{who} must not yield AllReduceMean of bfloat16, which Horovod cannot add. AllGather supports it"
            )
        return AllReduceMean(tensors[0])
    if wrong := [one.dtype.name for one in tensors if not (one.dtype.is_floating or one.dtype.is_integer)]:
        raise ValueError(
            f"{who} must yield AllGather of numbers, got {', '.join(wrong)}. Make numbers with tf.cast or pack_bits"
        )
    if not all(one.shape[1:].is_fully_defined() for one in tensors):  # as of tf.numpy_function
        shapes = ", ".join(str(one.shape) for one in tensors)
        raise ValueError(
            f"{who} must yield AllGather of shapes that are known except for the first dimension, got {shapes}: "
            "use set_shape"
        )
    return AllGather(tensors)


def checked_sparse(question: SparseMean, who: str) -> SparseMean:
    """Return the question with its parts as tensors; raise ValueError unless it describes a float32 vector."""
    indices, values = as_tensors(question[:2], question, who)
    if indices.dtype != tf.int32 or values.dtype != tf.float32 or {indices.shape.rank, values.shape.rank} - {1, None}:
        raise ValueError(
            f"{who} must yield SparseMean of int32 indices and float32 values, one dimension each, got "
            f"{indices.dtype.name} {indices.shape} and {values.dtype.name} {values.shape}"
        )
    if not isinstance(question.size, int) or not 0 <= question.size < 2**31:
        raise ValueError(f"{who} must yield SparseMean with a size from 0 to 2**31 - 1, got {question.size!r}")
    if not indices.shape.is_compatible_with(values.shape):
        raise ValueError(f"{who} must yield SparseMean with an index per value, got {indices.shape} and {values.shape}")
    if not is_ratio(question.ratio):
        raise ValueError(
            f"{who} must yield SparseMean with a ratio in [0, 1], a floating-point scalar tensor or None, got "
            f"{question.ratio!r}"
        )
    return SparseMean(indices, values, question.size, question.ratio)


def is_ratio(value) -> bool:
    """Return whether a `SparseMean` may have this ratio. The value of a tensor is unknown until the graph runs."""
    if tf.is_tensor(value):
        return value.dtype.is_floating and value.shape.rank in (0, None)
    return value is None or (isinstance(value, numbers.Real) and 0 <= value <= 1)


def as_tensors(given, question, who: str) -> tuple:
    try:
        return tuple(tf.convert_to_tensor(one) for one in given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{who} must yield tensors, got {question!r} ({error})") from None


def checked_result(result, gradient, state, who: str):
    """Return ``(update, own, state)``; raise ValueError if a step must not return them."""
    if not isinstance(result, tuple) or len(result) != 3:
        raise ValueError(f"{who} must return (update, own, state), got {result!r}")
    update, own, new = result
    for what, tensor in (("update", update), ("own", own)):
        if what == "own" and own is None:
            continue
        shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
        if not isinstance(shape, tf.TensorShape) or not gradient.shape.is_compatible_with(shape) or dtype != tf.float32:
            raise ValueError(f"{who} must return as {what} a float32 tensor of shape {gradient.shape}, got {tensor!r}")
    try:
        tf.nest.assert_same_structure(state, new)
    except (TypeError, ValueError):
        raise ValueError(f"{who} must return a state with the structure that init makes, got {new!r}") from None
    for old, tensor in zip(tf.nest.flatten(state), tf.nest.flatten(new), strict=True):
        old, shape = tf.convert_to_tensor(old), tf.TensorShape(getattr(tensor, "shape", ()))
        if not old.shape.is_compatible_with(shape) or (tf.is_tensor(tensor) and tensor.dtype != old.dtype):
            kind = f"{old.dtype.name} of shape {old.shape}"
            raise ValueError(f"{who} must return a state with the tensors that init makes, {kind}, got {tensor!r}")
    return result


def check_workers(workers: list[list], communicator: Collectives, who: str) -> None:
    """Raise ValueError unless there are equally many started steps for each worker here, and ``who`` is text."""
    if not isinstance(who, str):
        raise ValueError(f"who must be text, got {who!r}")
    lengths, local = [len(steps) for steps in workers], check_instance("communicator", communicator, Collectives).local
    if len(lengths) != local or len(set(lengths)) > 1:
        raise ValueError(f"workers must be {local} lists of equally many started steps, got lists of {lengths}")


def described_alike(asked: list[dict], who: str) -> str:
    """Return a description of a round's questions; raise ValueError unless all workers in this process ask the same."""
    each = [{i: described(question) for i, question in questions.items()} for questions in asked]
    if any(one != each[0] for one in each):
        raise ValueError(f"{who} must ask the same of all workers, got {each}")
    return str(each[0])


def described(question) -> str:
    """Return the properties of a question that must agree on all workers; lengths may differ in an allgather."""
    if isinstance(question, AllReduceMean):
        return f"AllReduceMean of {question.tensor.dtype.name} {question.tensor.shape}"
    if isinstance(question, SparseMean):
        ratio = question.ratio
        if ratio is not None:  # it decides between allreduce and allgather
            ratio = "a tensor" if tf.is_tensor(ratio) else float(ratio)
        return f"SparseMean of size {question.size}, ratio {ratio}"
    return "AllGather of " + ", ".join(
        f"{one.dtype.name} {('length', *one.shape[1:])[: one.shape.rank]}" for one in question.tensors
    )
