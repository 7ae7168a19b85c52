"""Sweeps in a terminal, with a progress bar and a file of finished rows."""

from __future__ import annotations

import argparse
import sys

from dgc_lab.common import LabError


def run_rows(settings, ratios: list[float], options: argparse.Namespace, table, trainer=None) -> int:
    """Train and show a sweep, and return the exit status."""
    from dgc_lab.training.sweeps import sweep
    from dgc_lab.workloads.data import load

    data = trainer.data if trainer else load(settings.dataset, options.data)
    names = [f"ratio {ratio:g}" for ratio in ratios]
    return show(
        sweep(settings, ratios, options.out, data, trainer), names, [settings.steps] * len(ratios), options.out, table
    )


def show(events, names: list[str], steps: list[int], out: str | None, table) -> int:
    """Show a sweep with a progress bar, and print its rows at the end, or after Ctrl-C.

    Args:
        events: the events of `dgc_lab.training.sweeps.train_each`.
        names: name of each row.
        steps: number of updates of each row.
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
        saved = f"saved in {out}; the same command trains the others" if out else "not saved (no --out given)"
        print(f"Stopped: {len(progress.rows)} of {len(names)} rows finished, {saved}.", file=sys.stderr)
        return 130
    return 1 if progress.failures else 0
