"""Feed every decoder of the lab with random and mutated inputs: make fuzz INPUTS=100000 SEED=0, or --help.

A decoder, a seed and a number make an input: ``tools/fuzz.py rows --seed 0 --show 17`` prints it. Most inputs are valid
examples with bits flipped, parts cut off, repeated or put in from another example, and numbers that are too large; some
are random bytes. A decoder may give a value that is right, or refuse with the error that it documents. All else is a
find: another error, other data than were stored, code that runs, a file written elsewhere, more than 10 s or 1 GB.

Each batch runs in a process of its own with these limits. What was done is in ``results/fuzz.jsonl``, a line for each
decoder and seed, from which the same command goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import mmap
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "fuzz.jsonl"
SECONDS, BYTES = 10, 2**30  # of the processor for an input, and of memory on top of what the decoder has loaded
BATCH, BATCH_SECONDS = 50_000, 1800
NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"9" * 30, b"18446744073709551616", b"2147483648", b"null", b"\x00")
# Of what Python tells of a program (`sys.addaudithook`): nothing that decodes does this.
FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "exec"}
FORBIDDEN |= {"socket.connect", "socket.bind", "ctypes.dlopen", "os.symlink", "os.chmod", "os.kill", "code.__new__"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Decoder:
    """What turns bytes into something.

    Attributes:
        examples: valid inputs.
        decode: function of the bytes and of an empty folder, for those that read files.
        refuses: the errors by which it says that an input is none.
        wrong: function of the value and the bytes to what is wrong with what was accepted, or None.
    """

    examples: tuple[bytes, ...]
    decode: object
    refuses: tuple[type[BaseException], ...]
    wrong: object = None


def written(folder: Path, name: str, data: bytes) -> Path:
    """A file with these bytes."""
    path = folder / name
    path.write_bytes(data)
    return path


class TooLong(BaseException):
    """An input takes more of the processor's time than any should."""


def input_of(name: str, examples: tuple[bytes, ...], seed: int, number: int) -> bytes:
    """The input of that number: the same bytes at every call."""
    draw = random.Random(f"{name} {seed} {number}")
    if draw.random() < 0.05:
        return draw.randbytes(int(2 ** draw.uniform(0, 12)))
    data = draw.choice(examples)
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 5, 10))):
        data = mutated(data, examples, draw)
    return data


def mutated(data: bytes, examples: tuple[bytes, ...], draw: random.Random) -> bytes:
    """The bytes after one change."""
    start = draw.randrange(len(data) + 1)
    end = min(len(data), start + int(2 ** draw.uniform(0, 10)))
    kind = draw.randrange(9)
    if kind <= 1 and data:  # a bit
        place = draw.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
    if kind == 2:
        return data[:start]
    if kind == 3:  # a part left out
        return data[:start] + data[end:]
    if kind == 4:  # a part again, once or many times
        return data[:end] + data[start:end] * draw.choice((1, 2, 50)) + data[end:]
    if kind == 5:  # a part of another example
        other = draw.choice(examples)
        begin = draw.randrange(len(other) + 1)
        return data[:start] + other[begin : begin + end - start] + data[end:]
    if kind == 6:  # a number, as text
        return data[:start] + draw.choice(NUMBERS) + data[start + draw.choice((0, 1, 4)) :]
    if kind == 7:  # or as the processor has it
        large = struct.pack(
            draw.choice("<>") + "q", draw.choice((-1, 0, 2**31 - 1, 2**31, 2**62, draw.getrandbits(62)))
        )
        size = draw.choice((1, 2, 4, 8))
        return data[:start] + large[:size] + data[start + size :]
    return data[:start] + draw.randbytes(min(16, end - start)) + data[end:]


def outcome(decoder: Decoder, data: bytes, folder: Path, watch: dict) -> str:
    """``"refused"``, ``"accepted"`` or, in words, what was found."""
    watch.update(on=True, told=[], folder=str(folder))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        value = decoder.decode(data, folder)
        found = decoder.wrong(value, data) if decoder.wrong else None
    except decoder.refuses:
        found = "refused"
    except (Exception, TooLong) as error:
        found = f"{type(error).__name__}: {str(error)[:150]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        watch["on"] = False
    return f"it ran {watch['told'][0]}" if watch["told"] else found or "accepted"


def watched() -> dict:
    """A dict whose ``told`` gets what an input made the program do that no decoder should."""
    watch = {"on": False, "told": [], "folder": ""}

    def hook(event, arguments):
        if not watch["on"]:
            return
        if event == "exec" and os.path.isfile(arguments[0].co_filename):
            return  # a module that is imported at first use
        if event == "exec" and sys._getframe(1).f_globals.get("__name__") == "fastjsonschema":
            return  # nbformat's own schema, which it has compiled for each minor version that a notebook names
        if event in FORBIDDEN:
            watch["told"].append(event)
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            path = os.path.realpath(os.fsdecode(arguments[0])) if not isinstance(arguments[0], int) else watch["folder"]
            if not path.startswith(os.path.realpath(watch["folder"])):
                watch["told"].append(f"open of {path[:80]}")

    sys.addaudithook(hook)
    return watch


def run_batch(decoder: Decoder, name: str, seed: int, numbers: range, place: Path) -> None:
    """Decode the inputs of these numbers and print a line of JSON; ``place`` holds the number of the one at hand."""
    with open(place, "r+b") as file:
        at_hand = mmap.mmap(file.fileno(), 8)
    watch, counts, finds = watched(), {"refused": 0, "accepted": 0}, []

    def too_long(*_):
        raise TooLong(f"more than {SECONDS} s")

    signal.signal(signal.SIGPROF, too_long)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as top:
        for example in decoder.examples:  # what is loaded at first use is loaded now
            decoder.decode(example, empty(Path(top, "first")))
        used = 1024 * int(re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())[1])
        resource.setrlimit(resource.RLIMIT_DATA, (used + BYTES, used + BYTES))
        for number in numbers:
            at_hand[:] = struct.pack("q", number)
            found = outcome(decoder, input_of(name, decoder.examples, seed, number), empty(Path(top, "in")), watch)
            if found in counts:
                counts[found] += 1
            else:
                finds.append([number, found])
    print(json.dumps({**counts, "finds": finds}))


def empty(folder: Path) -> Path:
    """The folder, with nothing in it."""
    if folder.exists() and next(folder.iterdir(), None) is not None:
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    return folder


def in_its_own_process(name: str, seed: int, numbers: range, module: str, limit: float = BATCH_SECONDS) -> dict:
    """`run_batch` in a process of its own; a crash or a hang there is a find, and the numbers after it are run anew."""
    done = {"refused": 0, "accepted": 0, "finds": []}
    start = numbers.start
    while start < numbers.stop:
        with tempfile.NamedTemporaryFile(prefix="fuzz-") as place:
            place.write(struct.pack("q", -1))
            place.flush()
            command = [sys.executable, __file__, name, "--seed", seed, "--batch", start, numbers.stop, place.name]
            command = [*map(str, command), "--decoders", module]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                try:
                    printed, told = process.communicate(timeout=limit)
                    how = f"the process ended with {process.returncode}: {told.strip()[-300:]}"
                except subprocess.TimeoutExpired:
                    process.kill()
                    printed, told = process.communicate()
                    how = f"no end after {limit} s"
            [at_hand] = struct.unpack("q", Path(place.name).read_bytes())
        if at_hand < 0:
            raise SystemExit(f"{name} could not begin: {how}")
        if process.returncode == 0:
            found, start = json.loads(printed.splitlines()[-1]), numbers.stop
        else:  # what was counted before is counted again, without the one that ended it all
            found = in_its_own_process(name, seed, range(start, at_hand), module, limit)
            found["finds"].append([at_hand, how])
            start = at_hand + 1
        done = {key: done[key] + found[key] for key in done}
    return done


def run(name: str, seed: int, inputs: int, module: str, file: Path) -> dict:
    """Go on to that many inputs, batch by batch, each kept in the file; the decoder's line of the file."""
    lines = read(file)
    row = lines.get((name, seed)) or {"decoder": name, "seed": seed, "inputs": 0, "refused": 0, "accepted": 0}
    row = {"finds": [], "seconds": 0.0, **row}
    while row["inputs"] < inputs:
        began = time.monotonic()
        end = min(inputs, row["inputs"] + BATCH)
        found = in_its_own_process(name, seed, range(row["inputs"], end), module)
        row |= {key: row[key] + found[key] for key in ("refused", "accepted", "finds")}
        row |= {"inputs": end, "seconds": round(row["seconds"] + time.monotonic() - began, 1)}
        lines = {**read(file), (name, seed): row}
        unfinished = file.with_suffix(".new")
        unfinished.write_text("".join(json.dumps(lines[key]) + "\n" for key in sorted(lines)))
        unfinished.replace(file)
        print(f"{name}: {end:,} of {inputs:,} inputs, {len(row['finds'])} finds", flush=True)
    return row


def read(file: Path = RESULTS) -> dict[tuple[str, int], dict]:
    """What was done, by decoder and seed."""
    rows = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {(row["decoder"], row["seed"]): row for row in rows}


def table(file: Path = RESULTS) -> str:
    """What was done as a table of Markdown, all seeds together."""
    lines = ["| decoder | inputs | refused | accepted | finds |", "|---|---:|---:|---:|---:|"]
    for name in sorted({name for name, _ in read(file)}):
        rows = [row for (other, _), row in read(file).items() if other == name]
        counts = (sum(row[key] for row in rows) for key in ("inputs", "refused", "accepted"))
        lines.append(" | ".join([f"| {name}", *(f"{n:,}" for n in counts), f"{sum(len(r['finds']) for r in rows)} |"]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Status 1 where there was a find."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="decoders; all if none is named")
    parser.add_argument("--inputs", type=int, default=100_000, help="of each decoder, those that were run before too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print an input and what becomes of it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--decoders", default="fuzz_decoders", help=argparse.SUPPRESS)
    parser.add_argument("--batch", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
    decoders = __import__(options.decoders).DECODERS
    names = options.names or list(decoders)
    if unknown := set(names) - set(decoders):
        parser.error(f"there is no decoder {', '.join(sorted(unknown))}; there are {', '.join(decoders)}")
    if options.batch:
        start, stop, place = options.batch
        faulthandler.enable()
        run_batch(decoders[names[0]](), names[0], options.seed, range(int(start), int(stop)), Path(place))
        return 0
    if options.show is not None:
        decoder = decoders[names[0]]()
        data = input_of(names[0], decoder.examples, options.seed, options.show)
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(decoder.refuses):
            print(data)
            print(decoder.decode(data, Path(folder)))
        return 0
    rows = [run(name, options.seed, options.inputs, options.decoders, options.out) for name in names]
    for row in rows:
        for number, words in row["finds"]:
            print(f"{row['decoder']} --seed {row['seed']} --show {number}: {words}")
    return int(any(row["finds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
