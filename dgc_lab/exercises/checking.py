"""Look an answer over and say at once what was expected: in words, as a shape, or by a counter-example.

A check never shows the solution. A module of checks has one function for each task, named like the task; it takes the
answer and the student's `dgc_lab.exercises.variants.Variant`, returns what to say to a right answer, and raises
`NotYet` with what to say to another.
"""

from __future__ import annotations

import importlib
import re
import traceback

import numpy as np

from dgc_lab.exercises.variants import Variant

# Where each task's check is. Kept here so that a task is found without loading every module.
TASKS = {
    "running_sum": "aggregation",
    "pairwise_sum": "aggregation",
    "most_roundings": "aggregation",
    "my_end": "aggregation",
    "telling_addends": "aggregation",
    "ring_bytes": "aggregation",
    "exchange_seconds": "aggregation",
    "my_crossing": "aggregation",
    "aggregate": "replicas",
    "global_accuracy": "replicas",
    "replica_loss": "replicas",
    "combine_gradients": "replicas",
    "my_variable": "replicas",
    "merge_moments": "replicas",
    "my_moments": "replicas",
    "staleness": "staleness",
    "typical_staleness": "staleness",
    "my_largest_staleness": "staleness",
    "may_start": "staleness",
    "synchronous_seconds": "staleness",
    "asynchronous_updates": "staleness",
    "backup_seconds": "staleness",
    "my_waiting": "staleness",
    "fewest_elements": "masking",
    "top_k_mask": "masking",
    "split": "masking",
    "my_threshold": "masking",
    "sampled_threshold": "masking",
    "guaranteed_threshold": "masking",
    "share_sent": "masking",
    "my_counts": "masking",
    "accumulate": "accumulation",
    "correct_momentum": "accumulation",
    "dgc_step": "accumulation",
    "mended_clipping": "accumulation",
    "mended_update": "accumulation",
    "mended_residuals": "accumulation",
    "times_fewer": "accumulation",
    "break_even_workers": "accumulation",
    "my_workers": "accumulation",
    "my_sent": "accumulation",
    "my_times_fewer": "accumulation",
    "allreduce_seconds": "scale",
    "allgather_seconds": "scale",
    "break_even_ratio": "scale",
    "break_even_bandwidth": "scale",
    "my_gbit": "scale",
    "relative_deviation": "scale",
    "sample_needed": "scale",
    "ages_sent": "scale",
    "my_age": "scale",
    "gaining": "scale",
    "my_links": "scale",
    "step_bytes": "own_model",
    "my_factor": "own_model",
    "sum_duplicate_rows": "own_model",
    "mean_rows": "own_model",
    "tied_gradient": "own_model",
    "pooled_statistics": "own_model",
    "missed_share": "own_model",
    "shard_places": "own_model",
    "steps_an_epoch": "own_model",
    "project_table": "own_model",
    "quantise": "other_compressors",
    "my_variance": "other_compressors",
    "with_feedback": "other_compressors",
    "my_memory": "other_compressors",
    "packed_bytes": "other_compressors",
    "my_message": "other_compressors",
    "powersgd_step": "other_compressors",
    "my_share": "other_compressors",
    "mended_mean": "other_compressors",
    "mended_memory": "other_compressors",
    "mended_draw": "other_compressors",
    "contest_good": "other_compressors",
    "contest_very_good": "other_compressors",
}
CELL = re.compile(r"ipykernel_|ipython-input")  # in the file names that IPython and Colab give to cells
MARK = {True: "✓", False: "✗"}


class NotYet(Exception):
    """The answer is not right yet; the message tells the student what was expected."""


class NotAttempted(NotYet):
    """There is no answer yet."""


def check(task: str, answer, variant: int = 0) -> bool:
    """Look over an answer, print a line about it, and say whether it is right.

    Args:
        task: the task's name, as the exercise has it.
        answer: the function or value that the exercise asks for.
        variant: the student's number, from the top of the exercise.

    Raises:
        ValueError: there is no such task.

    Example:
        >>> check("ring_bytes", None)
        ring_bytes: not attempted yet.
        False
        >>> check("typical_staleness", lambda workers: workers)
        ✗ typical_staleness: for 1 worker of one speed it is not 1: who updates while one of them computes?
        False
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    look = getattr(importlib.import_module(f"dgc_lab.exercises.{TASKS[task]}"), task)
    try:
        if answer is None or answer is ...:
            raise NotAttempted("not attempted yet.")
        said, right = look(answer, Variant(variant)), True
    except NotAttempted as reason:
        print(f"{task}: {reason}")
        return False
    except NotYet as reason:
        said, right = str(reason), False
    except Exception as error:  # what the check did with an answer of a kind that nobody thought of
        kind = f"{type(error).__name__}: {str(error)[:100]}"
        said, right = f"the answer is of another kind than was asked for; looking at it ended in {kind}", False
    print(f"{MARK[right]} {task}: {said}")
    return right


def asked(answer, *arguments, about: str):
    """What the student's function answers; never lets its error through, and never shows it our own arrays.

    Args:
        answer: the student's function.
        arguments: what it is called with, copied before.
        about: the call in words, for the messages: "for a gradient of zeros".

    Raises:
        NotYet: it is no function, or it raised an error.
        NotAttempted: it returned nothing, or raised NotImplementedError.
    """
    if not callable(answer):
        raise NotYet(f"a function is asked for, this is {_kind(answer)}.")
    try:
        result = answer(*map(_copied, arguments))
    except NotImplementedError:
        raise NotAttempted("not attempted yet.") from None
    except Exception as error:
        line = own_line(error)
        where = f", in your line: {line}" if line else ""
        raise NotYet(f"{about} it raised {type(error).__name__}: {error}{where}") from None
    if result is None or result is ...:
        raise NotAttempted("not attempted yet: the function returns nothing. If you did write it, is there a return?")
    return result


def afresh(answer):
    """The student's function in a process that has not been asked anything yet; in their own notebook the function."""
    return getattr(answer, "afresh", lambda: answer)()


def _copied(argument):
    """A copy of an array, which may be written to if the array may; anything else as it is."""
    if not isinstance(argument, np.ndarray):
        return argument
    copied = np.copy(argument)
    copied.flags.writeable = argument.flags.writeable
    return copied


def own_line(error: BaseException) -> str:
    """The line of a notebook's cell that an error came from, the last of them; empty where there is none."""
    if hasattr(error, "own_line"):  # it comes from another process
        return error.own_line
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.line or "" for frame in reversed(frames) if CELL.search(frame.filename)), "")


def array_like(result, pattern, about: str) -> np.ndarray:
    """The answer as an array of the shape and kind of ``pattern``.

    Raises:
        NotYet: it is none, or has another shape, or is not Boolean where the pattern is (or the other way round).
    """
    try:
        result = np.asarray(result)
    except Exception:
        raise NotYet(f"{about} an array is asked for, this is {_kind(result)}.") from None
    if result.shape != pattern.shape:
        raise NotYet(f"{about} the shape must be {pattern.shape}, got {result.shape}.")
    if (result.dtype == bool) != (pattern.dtype == bool):
        wanted = "True and False" if pattern.dtype == bool else "numbers"
        raise NotYet(f"{about} an array of {wanted} is asked for, got {result.dtype}.")
    if result.dtype != bool and not np.issubdtype(result.dtype, np.number):
        raise NotYet(f"{about} an array of numbers is asked for, got {result.dtype}.")
    return result


def parts(result, names: tuple[str, ...], about: str) -> tuple:
    """The answer as a tuple of as many parts as there are names.

    Raises:
        NotYet: it is no tuple, list or array, or has another number of parts.
    """
    several = isinstance(result, tuple | list) or (isinstance(result, np.ndarray) and result.ndim > 0)
    if not several or len(result) != len(names):
        found = f"{len(result)} of them" if several else _kind(result)
        raise NotYet(f"{about} the answer must be {len(names)} things, {', '.join(names)}; got {found}.")
    return tuple(result)


def number(result, about: str) -> float:
    """The answer as one number; infinity is one, too.

    Raises:
        NotYet: it is none.
    """
    try:
        result = float(np.asarray(result).reshape(()))
    except Exception:
        raise NotYet(f"{about} one number is asked for, this is {_kind(result)}.") from None
    return result


def asked_number(answer, *arguments, about: str) -> float:
    """What the student's function answers, as one number; see `asked` and `number`."""
    return number(asked(answer, *arguments, about=about), about)


def expect(holds, otherwise: str) -> None:
    """Raise `NotYet` with these words unless it holds."""
    if not bool(holds):
        raise NotYet(otherwise)


def _kind(value) -> str:
    """What a value is, in a few words, however large it is."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"
