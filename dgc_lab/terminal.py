"""Sweeps in a terminal that reproduce the tables of the lessons, with a progress bar and a file of finished rows."""

from __future__ import annotations

import argparse
import functools
import sys

from dgc_lab.common import LabError


def single_node(options: argparse.Namespace) -> int:
    """Train the published rows of masking on one worker."""
    from dgc_lab.training.published_tables import PUBLISHED_STEPS, SINGLE_NODE, beside_published, single_node_settings
    from dgc_lab.training.sweeps import parse_ratios

    refuse(options, method="two-node", numbers="workers")
    scope = "first" if options.scope is None else options.scope
    steps = PUBLISHED_STEPS if options.steps is None else options.steps
    settings = single_node_settings(steps, scope, options.seed)
    ratios = list(SINGLE_NODE) if options.ratios is None else parse_ratios(options.ratios)
    print(f"MNIST, {steps} steps a row (published: {PUBLISHED_STEPS}), threshold scope {scope!r}.")
    return run_rows(settings, ratios, options, beside_published)


def two_node(options: argparse.Namespace) -> int:
    """Train the published rows of masking on two ranks, and complete DGC for comparison."""
    from dgc_lab.cluster import HorovodRanks
    from dgc_lab.training.distributed_trainer import TrainerOnRanks
    from dgc_lab.training.published_tables import (
        METHODS,
        PUBLISHED_STEPS,
        TWO_NODE,
        beside_published,
        two_node_settings,
    )
    from dgc_lab.training.sweeps import parse_ratios
    from dgc_lab.workloads.data import load

    refuse(options, scope="single-node", numbers="workers")
    methods = METHODS if options.method in (None, "all") else [options.method]
    steps = PUBLISHED_STEPS if options.steps is None else options.steps
    every = [two_node_settings(method, steps, seed=options.seed) for method in methods]
    ratios = list(TWO_NODE) if options.ratios is None else parse_ratios(options.ratios)
    data, worst = load("mnist", options.data), 0
    with HorovodRanks(2) as ranks:
        for method, settings in zip(methods, every, strict=True):
            print(f"MNIST, 2 ranks, {settings.steps} steps each (published: {PUBLISHED_STEPS // 2}), {method}.")
            trainer = TrainerOnRanks(settings, ranks, data, options.data)
            status = run_rows(settings, ratios, options, lambda rows: beside_published(rows, TWO_NODE), trainer)
            worst = max(worst, status)
            if status == 130:
                break
    return worst


def workers(options: argparse.Namespace) -> int:
    """Train complete DGC on 1 to 32 simulated workers that share the same examples: the rows of lesson 6."""
    from dgc_lab.scaling.worker_sweep import EXAMPLES_A_STEP, RATIOS, STEPS, WORKERS, table, table_runs, train_runs
    from dgc_lab.training.sweeps import parse_ratios

    refuse(options, scope="single-node", method="two-node")
    if options.data is not None:
        raise ValueError(f"--data is for MNIST; the workers table has digits, got {options.data!r}")
    numbers = WORKERS if options.numbers is None else parse_numbers(options.numbers)
    ratios = RATIOS if options.ratios is None else parse_ratios(options.ratios)
    steps = STEPS if options.steps is None else options.steps
    runs = table_runs(numbers, ratios, seeds=(options.seed,))
    print(f"Digits, {steps} steps a row, {EXAMPLES_A_STEP} examples a step in all.")
    names = [f"{run.workers} workers, ratio {run.ratio:g}, clipping {run.clipping}" for run in runs]
    return show(train_runs(runs, steps, out=options.out), names, steps, options.out, table)


def schemes(options: argparse.Namespace, dataset: str = "digits") -> int:
    """Train the schemes of lesson 8: digits on four simulated workers, or MNIST on two ranks."""
    from dgc_lab.comparison.table import SEARCH_SEED, SEEDS, STEPS, row_names, scheme_table, table_events, trainers
    from dgc_lab.workloads.data import load

    others = "single-node, two-node or workers"
    refuse(options, scope="single-node", method="two-node", numbers="workers", ratios=others, steps=others)
    if options.seed:
        raise ValueError(f"--seed must not be set here: the seeds are {SEARCH_SEED} and {SEEDS}, got {options.seed}")
    data = load(dataset, options.data)
    with trainers(dataset, data, options.data) as trainer_of:
        events = table_events(dataset, trainer_of, data, options.out)
        return show(events, row_names(dataset), STEPS[dataset], options.out, scheme_table)


TABLES = {
    "single-node": single_node,
    "two-node": two_node,
    "workers": workers,
    "schemes": schemes,
    "schemes-mnist": functools.partial(schemes, dataset="mnist"),
}


def refuse(options: argparse.Namespace, **other_tables: str) -> None:
    """Raise a ValueError if an option of another table is set."""
    for name, table in other_tables.items():
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is for the {table} table, got {getattr(options, name)!r}")


def parse_numbers(text: str) -> list[int]:
    """Return the whole numbers in a text, separated by commas or spaces.

    Raises:
        ValueError: the text is empty or has a word that is not a whole number.

    Example:
        >>> parse_numbers("1, 4,16")
        [1, 4, 16]
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise ValueError(f"--numbers must be whole numbers such as 1,4,16, got {text!r}")
    return [int(word) for word in words]


def run_rows(settings, ratios: list[float], options: argparse.Namespace, table, trainer=None) -> int:
    """Train and show a sweep, and return the exit status."""
    from dgc_lab.training.sweeps import sweep
    from dgc_lab.workloads.data import load

    data = trainer.data if trainer else load(settings.dataset, options.data)
    names = [f"ratio {ratio:g}" for ratio in ratios]
    return show(sweep(settings, ratios, options.out, data, trainer), names, settings.steps, options.out, table)


def show(events, names: list[str], steps: int, out: str | None, table) -> int:
    """Show a sweep with a progress bar, and print its rows at the end, or after Ctrl-C.

    Args:
        events: the events of `dgc_lab.training.sweeps.train_each`.
        names: name of each row.
        steps: updates in each row.
        out: the file in which rows are saved, for the last message.
        table: function that maps the rows to the DataFrame to print.

    Returns:
        The exit status: 0 for success, 1 if a row diverged, 130 after Ctrl-C.
    """
    from tqdm import tqdm

    from dgc_lab.training.progress import SweepProgress

    progress, interrupted = SweepProgress(names, steps), False
    with tqdm(total=progress.total, unit="step", dynamic_ncols=True, mininterval=0.5) as bar:
        try:
            for event in events:
                failures = len(progress.failures)
                progress.take(event)
                for reason in progress.failures[failures:]:
                    bar.write(f"error: {reason}", file=sys.stderr)
                bar.total = progress.total
                bar.set_description(progress.name, refresh=False)
                if progress.evaluation:
                    bar.set_postfix_str(f"accuracy {progress.evaluation.accuracy:.4f}", refresh=False)
                bar.update(progress.done - bar.n)
        except KeyboardInterrupt:
            interrupted = True
        except LabError as error:
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            bar.write(f"error: {error}", file=sys.stderr)  # processes did not stop after Ctrl-C and were killed
            interrupted = True
        finally:
            bar.close()
            if progress.rows and len(shown := table(progress.rows)):
                print(shown.to_string(index=False, na_rep="-"))
    if interrupted:
        kept = f"kept in {out}, the same command goes on there" if out else "not kept (no --out given)"
        print(f"Stopped: {len(progress.rows)} of {len(names)} rows finished, {kept}.", file=sys.stderr)
        return 130
    return 1 if progress.failures else 0
