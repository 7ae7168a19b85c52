"""Sweeps in a terminal, with a progress bar, row by row into a file; the lessons' tables are made again like that."""

from __future__ import annotations

import argparse
import sys

from dgc_lab.common import LabError


def single_node(options: argparse.Namespace) -> int:
    """Masking on one worker, as published."""
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
    """Masking on two ranks, as published, and complete DGC beside it."""
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
    """Complete DGC on 1 to 32 simulated workers that share out the same examples; the rows of lesson 6."""
    from dgc_lab.scaling.worker_sweep import EXAMPLES_A_STEP, RATIOS, STEPS, WORKERS, table, table_runs, train_runs
    from dgc_lab.training.sweeps import parse_ratios

    refuse(options, scope="single-node", method="two-node")
    if options.data is not None:
        raise ValueError(f"--data is for MNIST; the workers table has digits, got {options.data!r}")
    numbers = WORKERS if options.numbers is None else parse_numbers(options.numbers)
    ratios = RATIOS if options.ratios is None else parse_ratios(options.ratios)
    steps = STEPS if options.steps is None else options.steps
    runs = table_runs(numbers, ratios, seeds=(options.seed,))
    print(f"Digits, {steps} steps a row, {EXAMPLES_A_STEP} examples a step shared out among the workers.")
    names = [f"{run.workers} workers, ratio {run.ratio:g}, clipping {run.clipping}" for run in runs]
    return show(train_runs(runs, steps, out=options.out), names, steps, options.out, table)


def schemes(options: argparse.Namespace, dataset: str = "digits") -> int:
    """Schemes side by side on four simulated workers and digits; the rows of lesson 8."""
    from dgc_lab.comparison.table import SEARCH_SEED, SEEDS, STEPS, row_names, scheme_table, table_events, trainers
    from dgc_lab.workloads.data import load

    others = "single-node, two-node or workers"
    refuse(options, scope="single-node", method="two-node", numbers="workers", ratios=others, steps=others)
    if options.seed:
        raise ValueError(f"--seed must not be given here: the seeds are {SEARCH_SEED} and {SEEDS}, got {options.seed}")
    data = load(dataset, options.data)
    with trainers(dataset, data, options.data) as trainer_of:
        events = table_events(dataset, trainer_of, data, options.out)
        return show(events, row_names(dataset), STEPS[dataset], options.out, scheme_table)


def schemes_mnist(options: argparse.Namespace) -> int:
    """The same on two ranks and MNIST."""
    return schemes(options, "mnist")


TABLES = {
    "single-node": single_node,
    "two-node": two_node,
    "workers": workers,
    "schemes": schemes,
    "schemes-mnist": schemes_mnist,
}


def refuse(options: argparse.Namespace, **other_tables: str) -> None:
    """A ValueError for an option that was given and belongs to another table."""
    for name, table in other_tables.items():
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is for the {table} table, got {getattr(options, name)!r}")


def parse_numbers(text: str) -> list[int]:
    """Whole numbers between commas or spaces; else a ValueError.

    >>> parse_numbers("1, 4,16")
    [1, 4, 16]
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise ValueError(f"--numbers must be whole numbers such as 1,4,16, got {text!r}")
    return [int(word) for word in words]


def run_rows(settings, ratios: list[float], options: argparse.Namespace, table, trainer=None) -> int:
    """Run a sweep and show it."""
    from dgc_lab.training.sweeps import sweep
    from dgc_lab.workloads.data import load

    data = trainer.data if trainer else load(settings.dataset, options.data)
    names = [f"ratio {ratio:g}" for ratio in ratios]
    return show(sweep(settings, ratios, options.out, data, trainer), names, settings.steps, options.out, table)


def show(events, names: list[str], steps: int, out: str | None, table) -> int:
    """Show the events of a sweep with a progress bar and print its rows with ``table``, after Ctrl-C too.

    ``names`` are those of the rows to come, of ``steps`` each; ``out`` is the file that keeps them, for the last
    message. Returns the exit status.
    """
    from tqdm import tqdm

    from dgc_lab.training.events import Evaluation, RowEnded, RowFailed, RowStarted, Step

    rows, status = [], 0
    with tqdm(total=len(names) * steps, unit="step", dynamic_ncols=True, mininterval=0.5) as bar:
        try:
            for event in events:
                if isinstance(event, Step):
                    bar.update()
                elif isinstance(event, Evaluation):
                    bar.set_postfix_str(f"accuracy {event.accuracy:.4f}", refresh=False)
                elif isinstance(event, RowStarted):
                    bar.set_description(names[event.number])
                elif isinstance(event, RowEnded):
                    rows.append(event.row)
                    if event.from_file:
                        bar.total -= steps
                        bar.refresh()
                elif isinstance(event, RowFailed):
                    bar.write(f"error: {event.reason}", file=sys.stderr)
                    status = 1
        except KeyboardInterrupt:
            status = 130
        except LabError as error:
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            bar.write(f"error: {error}", file=sys.stderr)  # what Ctrl-C was to stop had to be killed
            status = 130
        finally:
            bar.close()
            if rows and len(shown := table(rows)):
                print(shown.to_string(index=False, na_rep="-"))
    if status == 130:
        kept = f"kept in {out}, the same command goes on there" if out else "not kept (no --out given)"
        print(f"Stopped: {len(rows)} of {len(names)} rows finished, {kept}.", file=sys.stderr)
    return status
