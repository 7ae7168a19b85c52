"""Every decoder takes some hundred inputs, and a decoder with every fault there can be is found out."""

import json
import random

import pytest

import fuzz
from dgc_lab.common import LabError
from fuzz import Decoder, in_its_own_process, input_of, run, table
from fuzz_decoders import DECODERS


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_gives_what_is_right_or_refuses(name):
    found = in_its_own_process(name, 1, range(60 if name == "notebooks" else 400), "fuzz_decoders")
    assert found["finds"] == []
    assert found["refused"] + found["accepted"] == (60 if name == "notebooks" else 400)
    assert found["accepted"] > 0


def defective() -> Decoder:
    """Takes text; each of its words sets off another fault."""
    import os
    import pickle
    import subprocess
    import time
    from pathlib import Path

    def decode(data, folder):
        text = data.decode("ascii", "replace")
        if text == "refuse":
            raise LabError("no")
        if text == "key":
            return {}["key"]
        if text == "hang":
            while True:
                pass
        if text == "memory":
            return b"x" * (fuzz.BYTES + 2**20)
        if text == "crash":
            os._exit(11)
        if text == "sleep":
            time.sleep(600)
        if text == "elsewhere":
            Path(folder, "..", "elsewhere").write_text("x")
        if text == "run":
            subprocess.run(["true"], check=False)
        if text == "code":
            exec("1 + 1")
        if text == "pickle":
            pickle.loads(b"cos\ngetpid\n(tR.")
        return text

    return Decoder((b"valid",), decode, (LabError,), lambda text, _: "another word" if text == "other" else None)


DEFECTIVE = {"defective": defective}
WORDS = ("valid", "key", "refuse", "hang", "memory", "crash", "elsewhere", "run", "code", "pickle", "other", "sleep")


def test_every_kind_of_fault_is_found_by_its_number(tmp_path):
    """The word of each number in place of what chance makes of the examples."""
    (tmp_path / "defective_decoders.py").write_text(
        "import sys, fuzz, test_fuzz\n"
        "fuzz.SECONDS, sys.modules['__main__'].SECONDS = 1, 1\n"
        "sys.modules['__main__'].input_of = lambda name, examples, seed, number: test_fuzz.WORDS[number].encode()\n"
        "DECODERS = test_fuzz.DEFECTIVE\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{fuzz.ROOT}:{fuzz.ROOT / 'tools'}:{fuzz.ROOT / 'tests' / 'tools'}")
        found = in_its_own_process("defective", 0, range(len(WORDS)), "defective_decoders", limit=30)
    words = {WORDS[number]: what for number, what in found["finds"]}
    assert set(words) == set(WORDS) - {"valid", "refuse"}
    assert (found["accepted"], found["refused"]) == (1, 1)
    for word, what in {
        **{"key": "KeyError", "hang": "TooLong", "memory": "MemoryError", "crash": "ended with 11"},
        **{"elsewhere": "it ran open of", "run": "subprocess.Popen", "code": "exec", "pickle": "pickle.find_class"},
        **{"other": "another word", "sleep": "no end after 30 s"},
    }.items():
        assert what in words[word]


def test_a_number_makes_the_same_input_wherever_it_is_asked_for():
    examples = (b'{"ratio": 0.1, "accuracy": 0.9}', b"another example" * 9)
    random.seed(3)
    first = [input_of("rows", examples, 0, number) for number in range(200)]
    assert [input_of("rows", examples, 0, number) for number in reversed(range(200))] == first[::-1]
    assert len(set(first)) > 150
    assert [input_of("rows", examples, 1, number) for number in range(200)] != first
    assert set(examples) & set(first), "some are valid"


def test_what_was_done_is_not_done_again(tmp_path, capsys):
    file = tmp_path / "fuzz.jsonl"
    run("texts", 0, 30, "fuzz_decoders", file)
    before = json.loads(file.read_text())
    assert before["inputs"] == before["refused"] + before["accepted"] == 30
    assert run("texts", 0, 30, "fuzz_decoders", file) == before
    assert run("texts", 0, 50, "fuzz_decoders", file)["inputs"] == 50
    run("texts", 5, 10, "fuzz_decoders", file)
    assert [row["inputs"] for row in fuzz.read(file).values()] == [50, 10]
    assert table(file).splitlines()[-1].startswith("| texts | 60 |")
    assert "texts: 50 of 50 inputs, 0 finds" in capsys.readouterr().out
