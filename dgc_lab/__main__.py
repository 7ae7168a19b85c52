"""The lab in a terminal: ``python -m dgc_lab doctor | sweep | train | table | build-horovod | build-native``."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable

from dgc_lab import __version__
from dgc_lab.common import LabError, check_folder, check_whole


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 an error that was explained, 2 wrong usage, 130 stopped."""
    options = parser().parse_args(arguments)
    return status_of(lambda: options.command(options))


def status_of(command: Callable[[], int]) -> int:
    """The exit status of a command, whose errors are lines to read, and which Ctrl-C may end at any moment."""
    try:
        return command()
    except (ValueError, LabError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from what it has kept.", file=sys.stderr)
        return 130


def end_as_by_ctrl_c() -> None:
    """Let SIGTERM do what Ctrl-C does: whoever ends a job for its time or its machine sends that first."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a script's & starts it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = interrupt_again
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def interrupt_again(ignored) -> None:
    """Python drops what a destructor raises, and TensorFlow has many: an interrupt that is lost in one comes once more.

    It is ``sys.unraisablehook``.
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        threading.Timer(0.01, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(ignored)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="python -m dgc_lab", description="DGC Lab in a terminal.")
    top.add_argument("--version", action="version", version=f"dgc_lab {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="what is installed, and the remedy for what is missing")
    doctor.set_defaults(command=run_doctor)

    horovod = commands.add_parser("build-horovod", help="build Horovod for the TensorFlow that is installed")
    horovod.add_argument("--force", action="store_true", help="build again, whatever the cache holds")
    horovod.set_defaults(command=run_build_horovod)

    native = commands.add_parser("build-native", help="compile the native step for the installed TensorFlow")
    native.set_defaults(command=run_build_native)

    sweep = commands.add_parser("sweep", help="train once per ratio and print a table")
    add_training(sweep)
    sweep.add_argument("--ratios", default="1,0.1,0.01,0.001", help="shares of the gradient to keep, such as 1,0.1,1%%")
    sweep.add_argument("--rule", default="sampled", help="exact, sampled, hierarchical, or off for no mask")
    sweep.add_argument("--scope", default="tensor", help="whose threshold: tensor, global or first")
    add_files(sweep)
    sweep.set_defaults(command=run_sweep)

    train = commands.add_parser("train", help="train with complete DGC; under horovodrun, on all of its ranks")
    add_training(train)
    train.add_argument(
        "--scheme", default="dgc", help="dgc (default), or a scheme of dgc_lab.compression, such as qsgd:levels=4"
    )
    train.add_argument("--ratio", type=float, default=0.001, help="share of the gradient that a rank sends")
    train.add_argument("--warm-up", default="paper", help="none, paper, geometric or dense")
    train.add_argument("--warm-up-steps", type=int, default=20, help="updates in each of its stages")
    train.add_argument("--clip-norm", type=float, help="L2 norm over all ranks to clip to")
    train.add_argument("--values", default="float32", help="what values travel as: float32 or float16")
    train.add_argument("--indices", default="int32", help="how their positions are encoded: int32 or run_lengths")
    train.add_argument("--checkpoint", metavar="FOLDER", help="keep each rank's state here, and go on from it")
    train.add_argument("--save-every", type=int, default=100, metavar="STEPS", help="how often; at the end in any case")
    train.set_defaults(command=run_train)

    table = commands.add_parser("table", help="a table of the lessons, made again here")
    which = (
        "masking on one worker; on two, beside DGC; DGC on 1 to 32 simulated workers; schemes side by side, on digits"
    )
    tables = ["single-node", "two-node", "workers", "schemes", "schemes-mnist"]
    table.add_argument("which", choices=tables, help=f"{which} and on MNIST with two ranks")
    steps = "updates per row, of all workers (20 000, as published); for workers, of each (200)"
    table.add_argument("--steps", type=int, help=steps)
    table.add_argument("--ratios", help="shares to send; those of the published or the lesson's table if not given")
    table.add_argument("--scope", help="single-node: first (as published, default), tensor or global")
    table.add_argument("--method", help="two-node: masking (as published), masking_per_tensor, dgc, or all (default)")
    table.add_argument("--numbers", help="workers: how many, such as 1,4,16; 1 to 32 if not given")
    table.add_argument("--seed", type=int, default=0)
    add_data(table)
    add_files(table)
    table.set_defaults(command=run_table)
    return top


def add_training(command: argparse.ArgumentParser) -> None:
    """What fixes a training on one worker as on many."""
    command.add_argument("--dataset", default="digits", help="digits (default), mnist, fashion_mnist or cifar10")
    add_data(command)
    command.add_argument("--steps", type=int, default=300, help="updates (per ratio)")
    command.add_argument("--batch", type=int, default=64, help="examples per update (and worker)")
    command.add_argument("--learning-rate", type=float, default=0.05)
    command.add_argument("--momentum", type=float, default=0.9)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--evaluations", type=int, default=10, help="measurements of the test set (per ratio)")


def add_data(command: argparse.ArgumentParser) -> None:
    """Where the data are, for every command that trains."""
    command.add_argument(
        "--data", metavar="PATH", help="folder of MNIST's, Fashion-MNIST's or CIFAR-10's files, or mnist.npz"
    )


def add_files(command: argparse.ArgumentParser) -> None:
    """Where the rows go, for every command that makes some."""
    command.add_argument("--out", metavar="FILE", help="keep finished rows here, and go on from them")


def run_doctor(options: argparse.Namespace) -> int:
    from dgc_lab.install.doctor import examine, report

    findings = examine()
    print(report(findings))
    return 1 if any(finding.remedy and finding.needed for finding in findings) else 0


def run_build_horovod(options: argparse.Namespace) -> int:
    from dgc_lab.install.build_horovod import build

    build(force=options.force)
    return 0


def run_build_native(options: argparse.Namespace) -> int:
    from dgc_lab.compression.native import build

    print(build())
    return 0


TRAINING_OPTIONS = ("dataset", "steps", "batch", "learning_rate", "momentum", "seed", "evaluations")


def run_sweep(options: argparse.Namespace) -> int:
    from dgc_lab.terminal import run_rows
    from dgc_lab.training.masking_trainer import MaskingConfig
    from dgc_lab.training.sweeps import parse_ratios, table

    settings = MaskingConfig(**{name: getattr(options, name) for name in (*TRAINING_OPTIONS, "rule", "scope")})
    return run_rows(settings, parse_ratios(options.ratios), options, table)


def run_train(options: argparse.Namespace) -> int:
    import tensorflow as tf
    from tqdm import tqdm

    from dgc_lab.training.distributed_trainer import DistributedConfig, DistributedTrainer
    from dgc_lab.training.events import DistributedStep, TrainingDiverged
    from dgc_lab.workloads.data import load

    communicator = launched_communicator()
    names = (*TRAINING_OPTIONS, "warm_up", "warm_up_steps", "clip_norm", "values", "indices", "scheme")
    settings = DistributedConfig(workers=communicator.size, **{name: getattr(options, name) for name in names})
    settings.check_ratios([options.ratio])
    check_whole("--save-every", options.save_every, 1)
    if options.checkpoint is not None:
        check_folder("--checkpoint", options.checkpoint)
    trainer = DistributedTrainer(settings, communicator, load(settings.dataset, options.data))
    go_on = options.checkpoint is not None and trainer.restore(options.checkpoint, options.ratio)
    asked = []  # no event: a second Ctrl-C within the handler of the first would wait for its lock for ever
    signal.signal(signal.SIGINT, lambda *_: asked.append(True))  # all ranks agree on the step to stop at
    first, sent, step = communicator.first == 0, 0, trainer.steps_done
    kept = f"the same command goes on from {options.checkpoint}" if options.checkpoint else "nothing was kept"
    try:
        with tqdm(total=settings.steps, initial=step, unit="step", disable=not first, mininterval=0.5) as bar:
            for event in trainer.run(options.ratio, lambda: bool(asked), go_on, options.save_every):
                if isinstance(event, DistributedStep):
                    step, sent = event.step, event.bytes_sent
                    bar.update()
                    if options.checkpoint and (step % options.save_every == 0):
                        trainer.save(options.checkpoint)
                else:
                    found = f"accuracy {event.accuracy:.4f}, loss {event.loss:.4f}"
                    bar.write(f"step {event.step}: {found}" + (f", {sent} bytes sent" if sent else ""))
    except TrainingDiverged as error:
        raise LabError(f"{error}; {kept}") from None
    except LabError:  # such as a folder with Horovod in its name that cannot be written to
        raise
    except (tf.errors.OpError, RuntimeError) as error:
        if "horovod" not in str(error).lower():
            raise
        raise LabError(f"another rank has ended, and no step can be made without it; {kept}") from None
    if options.checkpoint:
        trainer.save(options.checkpoint)
    if step < settings.steps and first:
        print(f"Stopped at step {step} of {settings.steps}; {kept}.", file=sys.stderr)
    return 0 if step >= settings.steps else 130


def run_table(options: argparse.Namespace) -> int:
    from dgc_lab.terminal import TABLES

    return TABLES[options.which](options)


def launched_communicator():
    """Horovod's ranks where a launcher such as horovodrun started this process, else one worker."""
    from dgc_lab.distributed.communicators import HorovodWorkers, OneWorker, launched_ranks
    from dgc_lab.install.build_horovod import require_horovod

    if launched_ranks() == 1:
        return OneWorker()
    require_horovod()
    import horovod.tensorflow as hvd

    hvd.init()
    return HorovodWorkers()


if __name__ == "__main__":
    end_as_by_ctrl_c()
    sys.exit(main())
