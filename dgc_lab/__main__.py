"""Command line of the lab: ``python -m dgc_lab doctor | sweep | train | build-horovod | build-native``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable

from dgc_lab import __version__
from dgc_lab.common import LabError, check_keras, check_whole


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 for success, 1 for an error, 2 for wrong usage, 130 if stopped."""
    options = parser().parse_args(arguments)
    return status_of(lambda: options.command(options))


def status_of(command: Callable[[], int]) -> int:
    """Return a command's exit status. Errors are printed as one line, and Ctrl-C may stop it at any time."""
    try:
        return command()
    except (ValueError, LabError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. The same command continues from the saved state.", file=sys.stderr)
        return 130


def treat_sigterm_as_ctrl_c() -> None:
    """Handle SIGTERM like Ctrl-C: batch systems send it first to end a job."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # set by shells for commands that a script starts with &
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = repeat_lost_interrupt
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def repeat_lost_interrupt(ignored) -> None:
    """Send an interrupt again if it was raised in a destructor, where Python ignores exceptions.

    A ``sys.unraisablehook``, needed because TensorFlow has many destructors.
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        threading.Timer(0.01, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(ignored)


def parser() -> argparse.ArgumentParser:
    """Return the parser for all commands and their options."""
    top = argparse.ArgumentParser(prog="python -m dgc_lab", description="DGC Lab in a terminal.")
    top.add_argument("--version", action="version", version=f"dgc_lab {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="report what is installed, with remedies for missing requirements")
    doctor.set_defaults(command=run_doctor)

    horovod = commands.add_parser("build-horovod", help="build Horovod for the installed TensorFlow")
    horovod.add_argument("--force", action="store_true", help="build again, and ignore the cache")
    horovod.set_defaults(command=run_build_horovod)

    native = commands.add_parser("build-native", help="compile the native step for the installed TensorFlow")
    native.set_defaults(command=run_build_native)

    sweep = commands.add_parser("sweep", help="train once per ratio and print a table")
    add_training(sweep)
    sweep.add_argument("--ratios", default="1,0.1,0.01,0.001", help="shares of the gradient to keep, such as 1,0.1,1%%")
    sweep.add_argument("--rule", default="sampled", help="exact, sampled, hierarchical, or off for no mask")
    sweep.add_argument("--scope", default="tensor", help="scope of the threshold: tensor, global or first")
    add_files(sweep)
    sweep.set_defaults(command=run_sweep)

    train = commands.add_parser("train", help="train with complete DGC; under horovodrun, on all ranks")
    add_training(train)
    train.add_argument(
        "--scheme", default="dgc", help="dgc (default), or a scheme of dgc_lab.compression, such as qsgd:levels=4"
    )
    train.add_argument("--ratio", type=float, default=0.001, help="share of the gradient that a rank sends")
    train.add_argument("--warm-up", default="paper", help="none, paper, geometric or dense")
    train.add_argument("--warm-up-steps", type=int, default=20, help="updates in each stage of the warm-up")
    train.add_argument("--clip-norm", type=float, help="L2 norm over all ranks to which gradients are clipped")
    train.add_argument("--values", default="float32", help="type of sent values: float32 or float16")
    train.add_argument("--indices", default="int32", help="encoding of their positions: int32 or run_lengths")
    train.add_argument("--checkpoint", metavar="FOLDER", help="save each rank's state here, and resume from it")
    train.add_argument(
        "--save-every", type=int, default=100, metavar="STEPS", help="checkpoint interval; the end is always saved"
    )
    train.set_defaults(command=run_train)
    return top


def add_training(command: argparse.ArgumentParser) -> None:
    """Add the training options for one or several workers."""
    datasets = "digits (default), mnist1d, mnist, python_reference, fashion_mnist or cifar10"
    command.add_argument("--dataset", default="digits", help=datasets)
    add_data(command)
    command.add_argument("--steps", type=int, default=300, help="updates (per ratio)")
    command.add_argument("--batch", type=int, default=64, help="examples per update (and worker)")
    command.add_argument("--learning-rate", type=float, default=0.05)
    command.add_argument("--momentum", type=float, default=0.9)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--evaluations", type=int, default=10, help="measurements of the test set (per ratio)")


def add_data(command: argparse.ArgumentParser) -> None:
    """Add the option for the location of the data."""
    command.add_argument(
        "--data", metavar="PATH", help="folder of MNIST's, Fashion-MNIST's or CIFAR-10's files, or mnist.npz"
    )


def add_files(command: argparse.ArgumentParser) -> None:
    """Add the option for the file of rows."""
    command.add_argument("--out", metavar="FILE", help="save finished rows here, and resume from them")


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
    check_keras()
    from dgc_lab.distributed.launchers import launched
    from dgc_lab.terminal import run_rows
    from dgc_lab.training.masking_trainer import MaskingConfig
    from dgc_lab.training.sweeps import parse_ratios, table

    launcher, tasks = launched()
    if tasks > 1:
        problem = f"sweep trains in one task, but {launcher} started {tasks}: each would train all ratios"
        raise LabError(f"{problem}. Start one task, or set HOROVOD_SIZE=1 and give each task its own --out")
    settings = MaskingConfig(**{name: getattr(options, name) for name in (*TRAINING_OPTIONS, "rule", "scope")})
    return run_rows(settings, parse_ratios(options.ratios), options, table)


def run_train(options: argparse.Namespace) -> int:
    check_keras()
    import tensorflow as tf
    from tqdm import tqdm

    from dgc_lab.training.distributed_trainer import DistributedConfig, DistributedTrainer
    from dgc_lab.training.events import DistributedStep, TrainingDiverged
    from dgc_lab.training.sweeps import check_writable
    from dgc_lab.workloads.data import load

    communicator = launched_communicator()
    names = (*TRAINING_OPTIONS, "warm_up", "warm_up_steps", "clip_norm", "values", "indices", "scheme")
    settings = DistributedConfig(workers=communicator.size, **{name: getattr(options, name) for name in names})
    settings.check_ratios([options.ratio])
    check_whole("--save-every", options.save_every, 1)
    if options.checkpoint is not None:
        check_writable("--checkpoint", options.checkpoint, is_folder=True)
    trainer = DistributedTrainer(settings, communicator, load(settings.dataset, options.data))
    resume = options.checkpoint is not None and trainer.restore(options.checkpoint, options.ratio)
    stop_requests = []  # not an Event: a second Ctrl-C in the handler of the first would wait forever for its lock
    signal.signal(signal.SIGINT, lambda *_: stop_requests.append(True))  # all ranks agree on the step to stop at
    first, sent, step = communicator.first == 0, 0, trainer.steps_done
    outcome = f"the same command resumes from {options.checkpoint}" if options.checkpoint else "nothing was saved"
    try:
        with tqdm(total=settings.steps, initial=step, unit="step", disable=not first, mininterval=0.5) as bar:
            for event in trainer.run(options.ratio, lambda: bool(stop_requests), resume, options.save_every):
                if isinstance(event, DistributedStep):
                    step, sent = event.step, event.bytes_sent
                    bar.update()
                    if options.checkpoint and (step % options.save_every == 0):
                        trainer.save(options.checkpoint)
                else:
                    scores = f"accuracy {event.accuracy:.4f}, loss {event.loss:.4f}"
                    bar.write(f"step {event.step}: {scores}" + (f", {sent} bytes sent" if sent else ""))
    except TrainingDiverged as error:
        raise LabError(f"{error}; {outcome}") from None
    except LabError:  # for example, about a folder with Horovod in its name
        raise
    except (tf.errors.OpError, RuntimeError) as error:
        if "horovod" not in str(error).lower():
            raise
        raise LabError(f"another rank has ended, and no step can be made without it; {outcome}") from None
    if options.checkpoint:
        trainer.save(options.checkpoint)
    if step < settings.steps and first:
        print(f"Stopped at step {step} of {settings.steps}; {outcome}.", file=sys.stderr)
    return 0 if step >= settings.steps else 130


def launched_communicator():
    """Initialize Horovod if a launcher started this process; return Horovod's ranks, otherwise one worker."""
    from dgc_lab.cluster.stalls import stall_variables
    from dgc_lab.distributed.communicators import default_communicator
    from dgc_lab.distributed.launchers import launched
    from dgc_lab.install.build_horovod import require_horovod

    if launched()[1] > 1:
        require_horovod()
        import horovod.tensorflow as hvd

        os.environ.update(stall_variables())
        hvd.init()
    return default_communicator()


if __name__ == "__main__":
    treat_sigterm_as_ctrl_c()
    sys.exit(main())
