"""Check an answer and print feedback that states what was expected.

Feedback is a sentence, a shape or a counterexample, never the solution. A module of checks has one function per task,
named like the task. It takes the answer and the student's `dgc_lab.exercises.variants.Variant`, returns the message
for a right answer, and raises `NotYet` with the message for a wrong one.
"""

from __future__ import annotations

import importlib
import re
import traceback

import numpy as np

from dgc_lab.exercises.variants import Variant

# Tasks by the module with their checks, so that a check is found without importing every module.
CHECKS = {
    "aggregation": (
        "running_sum pairwise_sum my_end half_training telling_addends ring_bytes exchange_seconds my_crossing"
    ),
    "replicas": "global_accuracy replica_loss combine_gradients merge_moments my_moments local_training",
    "staleness": (
        "staleness my_largest_staleness may_start asynchronous_updates backup_seconds my_waiting stale_training"
    ),
    "masking": (
        "fewest_elements top_k_mask split my_threshold sampled_threshold guaranteed_threshold share_sent my_counts "
        "masked_training"
    ),
    "accumulation": (
        "accumulate correct_momentum dgc_step mended_clipping mended_update mended_residuals times_fewer "
        "break_even_workers my_workers my_sent my_times_fewer dgc_training"
    ),
    "scale": (
        "allreduce_seconds allgather_seconds break_even_ratio break_even_bandwidth my_gbit relative_deviation "
        "sample_needed ages_sent my_age steps_to_loss my_fastest"
    ),
    "own_model": (
        "step_bytes my_factor sum_duplicate_rows mean_rows tied_gradient pooled_statistics missed_share shard_places "
        "steps_an_epoch project_table"
    ),
    "other_compressors": (
        "quantise my_variance with_feedback my_memory packed_bytes powersgd_step my_share mended_mean mended_memory "
        "mended_draw contest_good contest_very_good"
    ),
    "cluster_cost": (
        "collective_seconds my_crossover bucket_ends my_bucket zero_step worker_bytes my_fewest outer_training"
    ),
}
TASKS = {task: module for module, tasks in CHECKS.items() for task in tasks.split()}
MOST_WRONG = 3  # wrong values of a `my_` task that are checked; a loop over candidates finds nothing then
wrong_values: dict[tuple[str, str], set[str]] = {}  # by task and variant, of this process
CELL = re.compile(r"ipykernel_|ipython-input")  # in the file names that IPython and Colab give to cells
TOO_MANY = (
    f"{MOST_WRONG} other values were wrong, so this one is not checked. Compute the value with your functions. It "
    "still counts when you submit; to check it, restart the kernel and run all cells."
)
MARK = {True: "✓", False: "✗"}


class NotYet(Exception):
    """Raised for a wrong answer; the message says what was expected."""


class NotAttempted(NotYet):
    """Raised when there is no answer yet."""


def check(task: str, answer, variant: int = 0) -> bool:
    """Check an answer, print feedback, and return whether the answer is right.

    Of a task whose answer is a value of the student's own, ``my_...``, only the first three wrong values are checked.

    Args:
        task: the task's name, as given in the exercise.
        answer: the function or value that the exercise asks for.
        variant: the student's variant number, from the top of the exercise.

    Raises:
        ValueError: there is no such task.

    Example:
        >>> check("ring_bytes", None)
        ring_bytes: not attempted yet.
        False
        >>> check("running_sum", lambda values: 7)
        ✗ running_sum: 1 + 2.5 - 4 is -0.5, got 7.
        False
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    run_check = getattr(importlib.import_module(f"dgc_lab.exercises.{TASKS[task]}"), task)
    wrong = wrong_values.setdefault((task, str(variant)), set()) if task.startswith("my_") else set()
    try:
        if answer is None or answer is ...:
            raise NotAttempted("not attempted yet.")
        if len(wrong) >= MOST_WRONG and repr(answer) not in wrong:
            raise NotYet(TOO_MANY)
        message, right = run_check(answer, Variant(variant)), True
    except NotAttempted as reason:
        print(f"{task}: {reason}")
        return False
    except NotYet as reason:
        message, right = str(reason), False
    except Exception as error:  # the check itself failed on an answer of an unexpected type
        details = f"{type(error).__name__}: {str(error)[:100]}"
        message, right = f"the answer does not have the expected type; checking it raised {details}", False
    if not right and len(wrong) < MOST_WRONG:
        wrong.add(repr(answer))
    print(f"{MARK[right]} {task}: {message}")
    return right


def asked(answer, *arguments, about: str):
    """Call the student's function, return its result, and turn errors into feedback.

    Args:
        answer: the student's function.
        arguments: its arguments; arrays are copied first, so that the function cannot change the check's own.
        about: describes the call at the start of messages, for example "for a gradient of zeros".

    Raises:
        NotYet: ``answer`` is not a function, or it raised an exception.
        NotAttempted: it returned None or ``...``, or raised NotImplementedError.
    """
    if not callable(answer):
        raise NotYet(f"expected a function, got {_describe(answer)}.")
    try:
        result = answer(*map(_copy, arguments))
    except NotImplementedError:
        raise NotAttempted("not attempted yet.") from None
    except Exception as error:
        line = own_line(error)
        where = f", in your line: {line}" if line else ""
        raise NotYet(f"{about}, your function raised {type(error).__name__}: {error}{where}") from None
    if result is None or result is ...:
        raise NotAttempted("not attempted yet: the function returns nothing. If you wrote it, is a `return` missing?")
    return result


def afresh(answer):
    """Return the student's function in a new process, or itself in a notebook."""
    return getattr(answer, "afresh", lambda: answer)()


def _copy(argument):
    """Copy an array, read-only if it was; return anything else unchanged."""
    if not isinstance(argument, np.ndarray):
        return argument
    copied = np.copy(argument)
    copied.flags.writeable = argument.flags.writeable
    return copied


def own_line(error: BaseException) -> str:
    """Return the last notebook line in an exception's traceback, or "" if none."""
    if hasattr(error, "own_line"):  # the exception was raised in another process
        return error.own_line
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.line or "" for frame in reversed(frames) if CELL.search(frame.filename)), "")


def array_like(result, pattern, about: str) -> np.ndarray:
    """Return the answer as an array, which must have the shape of ``pattern``.

    Raises:
        NotYet: the answer is not an array, has a different shape, or is not Boolean or numeric like ``pattern``.
    """
    try:
        result = np.asarray(result)
    except Exception:
        raise NotYet(f"{about}, expected an array, got {_describe(result)}.") from None
    if result.shape != pattern.shape:
        raise NotYet(f"{about}, the shape must be {pattern.shape}, got {result.shape}.")
    if (result.dtype == bool) != (pattern.dtype == bool):
        wanted = "True and False" if pattern.dtype == bool else "numbers"
        raise NotYet(f"{about}, expected an array of {wanted}, got {result.dtype}.")
    if result.dtype != bool and not np.issubdtype(result.dtype, np.number):
        raise NotYet(f"{about}, expected an array of numbers, got {result.dtype}.")
    return result


def alike(found, right, rtol: float = 1e-5) -> bool:
    """Return whether an answer has the shape of ``right`` and nearly its values; unlike numpy, never broadcast.

    Example:
        >>> alike([1, 2], np.array([1.0, 2.0])), alike(np.zeros((0, 1)), [1, 2]), alike(1, [1, 1])
        (True, False, False)
    """
    found, right = np.asarray(found), np.asarray(right)
    return found.shape == right.shape and bool(np.allclose(found, right, rtol))


def parts(result, names: tuple[str, ...], about: str) -> tuple:
    """Return the answer as a tuple with one item per name.

    Raises:
        NotYet: the answer is not a tuple, list or array, or has a different length.
    """
    is_sequence = isinstance(result, tuple | list) or (isinstance(result, np.ndarray) and result.ndim > 0)
    if not is_sequence or len(result) != len(names):
        found = str(len(result)) if is_sequence else _describe(result)
        raise NotYet(f"{about}, expected {len(names)} values ({', '.join(names)}), got {found}.")
    return tuple(result)


def asked_arrays(answer, *arguments, names: tuple[str, ...], pattern: np.ndarray, about: str) -> tuple[np.ndarray, ...]:
    """Call the student's function and return its results, one array per name with the shape of ``pattern``."""
    result = parts(asked(answer, *arguments, about=about), names, about)
    return tuple(array_like(part, pattern, f"{about}, in {name}") for name, part in zip(names, result, strict=True))


def number(result, about: str) -> float:
    """Return the answer as a float, which may be infinite.

    Raises:
        NotYet: the answer is not a single number.
    """
    try:
        result = float(np.asarray(result).reshape(()))
    except Exception:
        raise NotYet(f"{about}, expected a single number, got {_describe(result)}.") from None
    return result


def asked_number(answer, *arguments, about: str) -> float:
    """Call the student's function and return its result as a float."""
    return number(asked(answer, *arguments, about=about), about)


def expect(condition, message: str) -> None:
    """Raise `NotYet` with ``message`` unless ``condition`` is true."""
    if not bool(condition):
        raise NotYet(message)


def _describe(value) -> str:
    """Describe a value by its type, and by its shape if it has one."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"
