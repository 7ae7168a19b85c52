"""A scheme's step under watch: who writes one is told in words what it must not yield or return, and nobody waits."""

from __future__ import annotations

import inspect

import tensorflow as tf

from dgc_lab.schemes.scheme import All, Mean, Scheme


def watched(scheme: Scheme, gradient, state, turn, name: str):
    """The scheme's step for the tensor called ``name``; a ValueError where it asks or returns what it must not."""
    who = f"{scheme.name or 'the scheme'}, for {name},"
    step, answer, asked = scheme.step(gradient, state, turn), None, False
    if not inspect.isgenerator(step):
        raise ValueError(f"{who} must have a step with a yield in it, it returned {step!r}")
    while True:
        try:
            question = step.send(answer)
        except StopIteration as end:
            if not asked:
                raise ValueError(
                    f"{who} must yield Mean or All at least once: workers that ask nothing drift apart"
                ) from None
            return checked_result(end.value, gradient, state, who)
        answer, asked = (yield checked_question(question, who)), True


def checked_question(question, who: str):
    """The question, of tensors; a ValueError unless an exchange can answer it."""
    if not isinstance(question, (Mean, All)):
        raise ValueError(f"{who} must yield Mean(tensor) or All((tensor, ...)), got {question!r}")
    given = (question.tensor,) if isinstance(question, Mean) else question.tensors
    if not isinstance(given, (tuple, list)) or not given:
        raise ValueError(f"{who} must yield All of a tuple of tensors, got All({given!r})")
    try:
        tensors = tuple(tf.convert_to_tensor(one) for one in given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{who} must yield tensors, got {question!r} ({error})") from None
    if isinstance(question, Mean):
        if not tensors[0].dtype.is_floating:
            raise ValueError(f"{who} must yield Mean of floating-point numbers, got {tensors[0].dtype.name}")
        if tensors[0].dtype == tf.bfloat16:
            raise ValueError(f"{who} must not yield Mean of bfloat16, which Horovod cannot add: All carries it")
        return Mean(tensors[0])
    if wrong := [one.dtype.name for one in tensors if not (one.dtype.is_floating or one.dtype.is_integer)]:
        raise ValueError(
            f"{who} must yield All of numbers, got {', '.join(wrong)}. tf.cast, or pack_bits, makes numbers"
        )
    if not all(one.shape[1:].is_fully_defined() for one in tensors):  # as of tf.numpy_function
        shapes = ", ".join(str(one.shape) for one in tensors)
        raise ValueError(f"{who} must yield All of known shapes but for the first number, got {shapes}: use set_shape")
    return All(tensors)


def checked_result(result, gradient, state, who: str):
    """``(update, own, state)``; a ValueError unless they are what a step must return."""
    if not isinstance(result, tuple) or len(result) != 3:
        raise ValueError(f"{who} must return (update, own, state), got {result!r}")
    update, own, kept = result
    for what, tensor in (("update", update), ("own", own)):
        shape = getattr(tensor, "shape", None)
        if shape is None or not gradient.shape.is_compatible_with(shape) or tensor.dtype != gradient.dtype:
            raise ValueError(f"{who} must return as {what} a float32 tensor of shape {gradient.shape}, got {tensor!r}")
    try:
        tf.nest.assert_same_structure(state, kept)
    except (TypeError, ValueError):
        raise ValueError(f"{who} must return a state like the one that init makes, got {kept!r}") from None
    return result


def described(question) -> str:
    """What all workers must have in common in a question: lengths may differ in an allgather."""
    if isinstance(question, Mean):
        return f"Mean of {question.tensor.dtype.name} {question.tensor.shape}"
    return "All of " + ", ".join(
        f"{one.dtype.name} {('length', *one.shape[1:])[: one.shape.rank]}" for one in question.tensors
    )
