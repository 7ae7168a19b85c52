"""Code shared by all subpackages: argument validation, and arrays in files."""

import os
import pwd
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.aggregation import errors, exchange
from dgc_lab.common import (
    LabError,
    cache_folder,
    check_file,
    check_flag,
    check_folder,
    check_instance,
    check_list,
    check_number,
    check_path,
    check_some,
    check_text,
    load_arrays,
    save_arrays,
)
from dgc_lab.comparison import exchange_table
from dgc_lab.ui import Prediction
from dgc_lab.workloads import load, resnet20
from dgc_lab.workloads.data import DataError


def test_existing_and_new_paths_are_accepted(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "new", tmp_path / "new" / "deep"):
        assert check_file("out", path) == path
    for path in (tmp_path, tmp_path / "new", tmp_path / "new" / "deep"):
        assert check_folder("out", path) == path
    for check, path in ((check_file, tmp_path), (check_folder, tmp_path / "file")):
        with pytest.raises(ValueError, match=r"out must be a (file|folder), or not exist yet, got .*: choose another"):
            check("out", path)


@pytest.mark.parametrize("check", [check_file, check_folder])
@pytest.mark.parametrize("name", ["file/below", "file/far/below", "a\0b", "long" * 100, "/dev/null"])
def test_impossible_paths_are_rejected(check, name, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"out must be a (file|folder), or not exist yet"):
        check("out", tmp_path / name)


def test_missing_home_error_suggests_a_cache_folder(monkeypatch):
    def unknown_user(user):
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown_user)
    for name in ("HOME", "DGC_LAB_CACHE", "KERAS_HOME", "DGC_LAB_DATA"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LabError, match="there is no home folder: set DGC_LAB_CACHE to the path of a folder"):
        cache_folder()
    with pytest.raises(DataError, match=r"could not be downloaded \(there is no home folder.*set DGC_LAB_DATA"):
        load("mnist")


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_integers_beyond_float_range_are_rejected(value):
    with pytest.raises(ValueError, match=r"rate must be finite, got -?10{400}"):
        check_number("rate", value, "finite")
    with pytest.raises(ValueError, match=r"step must be above 0 and finite, got -?10{400}"):
        Prediction("?", of=("a",), step=value)


def test_similar_file_names_can_be_saved_concurrently(tmp_path, monkeypatch):
    """Each file has its own temporary file, so neither save can replace the other."""
    one, other, replace = tmp_path / "rate_0.1", tmp_path / "rate_0.5", os.replace

    def saves_the_other_first(source, target):
        monkeypatch.setattr(os, "replace", replace)
        save_arrays(other, np.ones(3))
        replace(source, target)

    monkeypatch.setattr(os, "replace", saves_the_other_first)
    save_arrays(one, np.zeros(3))
    assert [load_arrays(file)["arr_0"].tolist() for file in (one, other)] == [[0, 0, 0], [1, 1, 1]]
    assert sorted(tmp_path.iterdir()) == [one, other]


@pytest.mark.parametrize("scalar", [np.array(1.0), np.float32(1.0), tf.constant(1.0)], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: errors(x), "addends"),
        (lambda x: exchange_table({"a": (1, 0)}, 1, x), "workers"),
        (lambda x: exchange(x, "ring"), "gradients"),
        (lambda x: Prediction("?", of=x), "of"),
        (lambda x: resnet20(x), "shape"),
    ],
)
def test_scalar_arrays_are_not_lists(call, name, scalar):
    with pytest.raises(ValueError, match=rf"{name} must be a list"):
        call(scalar)


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (check_flag, "no", "x must be True or False, got 'no'"),
        (check_flag, 1, "x must be True or False, got 1"),
        (check_text, 5, "x must be text, got 5"),
        (check_path, 5, "x must be a path, got 5"),
        (check_list, "1, 2", "x must be a list, got '1, 2'"),
        (check_list, {"a": 1}, "x must be a list, got {'a': 1}"),
        (check_list, 5, "x must be a list, got 5"),
        (check_some, 5, "x must have at least one element, got 5"),
        (check_some, [], "x must have at least one element, got []"),
        (lambda name, value: check_number(name, value, "above 0"), True, "x must be a number, got True"),
        (lambda name, value: check_instance(name, value, dict), [], "x must be an instance of dict, got []"),
    ],
)
def test_errors_name_argument_value_and_requirement(check, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check("x", value)


def test_checks_return_valid_values():
    assert check_flag("x", False) is False
    assert check_text("x", "") == ""
    assert check_path("x", "a/b") == Path("a/b")
    assert check_list("x", np.arange(3)) == check_list("x", range(3)) == [0, 1, 2]
    assert check_instance("x", {}, dict) == {}
