"""Reproduce a table of the lessons: ``python tools/make_table.py single-node --out rows.jsonl``; ``--help`` lists all.

Finished rows are kept in the file, and the same command continues from them. The published tables take hours: 20
minutes to two hours a row, on two cores. If the processor has no AVX-512, set TF_ENABLE_ONEDNN_OPTS=1: a step then
takes half the time.
"""

from __future__ import annotations

import argparse
import functools
import sys

from dgc_lab.__main__ import add_data, add_files, status_of, treat_sigterm_as_ctrl_c
from dgc_lab.terminal import run_rows, show


def main(arguments: list[str] | None = None) -> int:
    """Make a table and return the exit status of `dgc_lab.__main__.main`."""
    options = parser().parse_args(arguments)
    return status_of(lambda: TABLES[options.which](options))


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options; each table refuses those that belong to another one."""
    table = argparse.ArgumentParser(prog="python tools/make_table.py", description="Reproduce a table of the lessons.")
    which = "masking on one worker; masking and DGC on two ranks; modes of lesson 3"
    table.add_argument("which", choices=TABLES, help=f"{which}; or one of the studies of lessons 4 to 9")
    steps = "updates per row, of all workers together (20 000, as published)"
    table.add_argument("--steps", type=int, help=steps)
    table.add_argument("--ratios", help="shares to send; by default those of the published table")
    table.add_argument("--scope", help="single-node: first (as published, default), tensor or global")
    methods = "masking (as published), masking_per_tensor, dgc, dgc_without_factor_masking, or all (default)"
    table.add_argument("--method", help=f"two-node: {methods}")
    table.add_argument("--seed", type=int, default=0)
    add_data(table)
    add_files(table)
    return table


def single_node(options: argparse.Namespace) -> int:
    """Train the published rows of masking on one worker."""
    from dgc_lab.training.published_tables import PUBLISHED_STEPS, SINGLE_NODE, beside_published, single_node_settings
    from dgc_lab.training.sweeps import parse_ratios

    refuse(options, method="two-node")
    scope = "first" if options.scope is None else options.scope
    steps = PUBLISHED_STEPS if options.steps is None else options.steps
    settings = single_node_settings(steps, scope, options.seed)
    ratios = list(SINGLE_NODE) if options.ratios is None else parse_ratios(options.ratios)
    print(f"MNIST, {steps} steps per row (published: {PUBLISHED_STEPS}), threshold scope {scope!r}.")
    return run_rows(settings, ratios, options, beside_published)


def two_node(options: argparse.Namespace) -> int:
    """Train the published rows of masking on two ranks, and the other methods for comparison."""
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

    refuse(options, scope="single-node")
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


def study(options: argparse.Namespace, name: str) -> int:
    """Run one of the lab's studies: the methods that lessons 4 to 9 compare."""
    from dgc_lab.comparison.lab_studies import STUDIES, trainers
    from dgc_lab.comparison.study import SEARCH_SEEDS, study_events
    from dgc_lab.comparison.study_tables import study_table
    from dgc_lab.workloads.data import load

    others, made = "single-node or two-node", STUDIES[name]
    refuse(options, scope="single-node", method="two-node", ratios=others, steps=others)
    if options.seed:
        raise ValueError(f"--seed must not be set here: seeds are {SEARCH_SEEDS} and {made.seeds}, got {options.seed}")
    data = load(made.common["dataset"], options.data)
    with trainers(made, data, options.data) as trainer_of:
        events = study_events(made, trainer_of, data, options.out)

        def table(rows):
            return study_table(made, rows).reset_index(names="method")

        return show(events, made.row_names(), made.row_steps(), options.out, table)


def modes(options: argparse.Namespace) -> int:
    """Run the studies of lesson 3: synchronous and asynchronous training on simulated schedules."""
    from dgc_lab.parameter_server.mode_study import MODE_STUDIES, rows_in, study_rows
    from dgc_lab.training.sweeps import append_row

    others = "single-node or two-node"
    refuse(options, scope="single-node", method="two-node", ratios=others, steps=others, data=others)
    if options.seed:
        raise ValueError(f"--seed must not be set here: each study has seeds of its own, got {options.seed}")
    rows = [] if options.out is None else rows_in(options.out)
    for name in MODE_STUDIES:
        for row in study_rows(name, rows):
            if row not in rows and options.out is not None:
                append_row(options.out, row)
            print(", ".join(f"{key} {value}" for key, value in row.items() if key != "settings"), flush=True)
    return 0


TABLES = {
    "modes": modes,
    "single-node": single_node,
    "two-node": two_node,
    **{
        name.replace(" ", "-"): functools.partial(study, name=name)
        for name in (
            "masks",
            "accumulation",
            "corrections",
            "early steps",
            "schemes",
            "schemes on ranks",
            "less often",
            "rules",
            "workers",
            "rates",
            "bert",
            "resnet",
        )
    },
}


def refuse(options: argparse.Namespace, **other_tables: str) -> None:
    """Raise a ValueError if an option of another table is set."""
    for name, table in other_tables.items():
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is for the {table} table, got {getattr(options, name)!r}")


if __name__ == "__main__":
    treat_sigterm_as_ctrl_c()
    sys.exit(main())
