"""The widgets of lessons 1 and 2, driven through their controls with real computation."""

import itertools
import math
import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from dgc_lab.aggregation.widget import AggregationExplorer
from dgc_lab.replicas.widget import ReplicaExplorer
from widgets import picture_of, set_and_wait


@pytest.fixture
def aggregation():
    explorer = AggregationExplorer(addends=64)
    yield explorer
    assert explorer.wait(60)


def errors(explorer):
    return dict(zip(explorer.frame["method"], explorer.frame["relative error"].astype(float), strict=True))


# Both --------------------------------------------------------------------------------------------------------------


def test_import_does_not_load_tensorflow():
    code = "import sys, dgc_lab.ui.explorer; print([n for n in ('tensorflow', 'keras') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("kind", [AggregationExplorer, ReplicaExplorer])
def test_unknown_settings_are_rejected(kind):
    with pytest.raises(ValueError, match=r"settings must be among .*, got 'speed'"):
        kind(speed=3)


@pytest.mark.parametrize(
    ("kind", "name", "value", "allowed"),
    [
        (AggregationExplorer, "method", "tree", r"method must be .*sequential.*, got 'tree'"),
        (AggregationExplorer, "addends", 100, r"addends must be .*2.*4096.*, got 100"),
        (AggregationExplorer, "spread", 99, r"spread must be from 0.0 to 8.0, got 99"),
        (AggregationExplorer, "dtype", "int8", r"dtype must be .*float16.*, got 'int8'"),
        (ReplicaExplorer, "replicas", 0, r"replicas must be from 2 to 8, got 0"),
        (ReplicaExplorer, "aggregation", "AVERAGE", r"aggregation must be .*MEAN.*, got 'AVERAGE'"),
        (ReplicaExplorer, "value0", "much", r"value0 must be a number, got 'much'"),
    ],
)
def test_invalid_initial_values_are_rejected(kind, name, value, allowed):
    with pytest.raises(ValueError, match=allowed):
        kind(**{name: value})


def test_every_control_has_a_label(aggregation):
    labels = [control.description for control in aggregation.controls.values()]
    assert all(labels)
    assert len(set(labels)) == len(labels)


# AggregationExplorer -----------------------------------------------------------------------------------------------


def test_control_changes_update_the_figure(aggregation):
    before, alt = picture_of(aggregation), aggregation.picture.alt
    set_and_wait(aggregation, addends=1024, dtype="bfloat16")
    assert np.any(picture_of(aggregation) != before)
    assert aggregation.picture.alt != alt
    assert f'alt="{aggregation.picture.alt}"' in aggregation.image.value
    assert 'role="status"' in aggregation.message.value


def test_displayed_errors_match_the_library(aggregation):
    from dgc_lab.aggregation.rounding_error import errors as measured
    from dgc_lab.aggregation.summation import make_addends

    set_and_wait(aggregation, dtype="float16", spread=4.0, signs="mixed", order="descending", method="kahan")
    expected = measured(make_addends(64, dtype="float16", spread=4.0, signs="mixed", order="descending"))
    assert errors(aggregation) == {name: pytest.approx(error, rel=0.05) for name, error in expected.items()}
    assert f"kahan: relative error {expected['kahan']:.2g}" in aggregation.message.value
    assert "kahan" in aggregation.table.value


def test_method_change_does_not_measure_again(aggregation, monkeypatch):
    frame = aggregation.frame

    def never(*_, **__):
        raise AssertionError("measured again")

    monkeypatch.setattr("dgc_lab.aggregation.rounding_error.measure", never)
    before = picture_of(aggregation)
    set_and_wait(aggregation, method="pairwise")
    assert "pairwise: relative error" in aggregation.message.value
    assert aggregation.frame.equals(frame)
    assert np.any(picture_of(aggregation) != before), "another bar must be highlighted"


def test_rapid_changes_draw_rarely_and_end_up_to_date(aggregation):
    drawn = []
    aggregation.image.observe(lambda _: drawn.append(time.monotonic()), "value")
    for turn in range(40):
        aggregation.controls["spread"].value = 0.5 * (turn % 16)
        aggregation.controls["addends"].value = 2 ** (1 + turn % 10)
    assert aggregation.wait(60)
    assert len(drawn) < 20
    assert np.diff(drawn[:-1]).min(initial=1) >= 0.2, "four frames a second at most"
    from dgc_lab.aggregation.rounding_error import errors as measured
    from dgc_lab.aggregation.summation import make_addends

    assert (aggregation.values()["spread"], aggregation.values()["addends"]) == (3.5, 1024)
    expected = measured(make_addends(1024, spread=3.5, signs="positive"))
    assert errors(aggregation) == {name: pytest.approx(error, rel=0.05) for name, error in expected.items()}


def test_frame_rate_is_limited_after_a_slow_frame(aggregation, monkeypatch):
    made, seconds, drawn = aggregation.result(**aggregation.values()), itertools.cycle([0.3, 0.0]), []
    monkeypatch.setattr(aggregation, "result", lambda **values: time.sleep(next(seconds)) or made)
    monkeypatch.setattr("dgc_lab.ui.explorer.png", lambda figure, enlarged: str(len(drawn)).encode())
    aggregation.image.observe(lambda _: drawn.append(time.monotonic()), "value")
    for turn in range(2000):
        aggregation.controls["spread"].value = 0.5 * (turn % 16)
        if len(drawn) == 6:
            break
        time.sleep(0.01)
    assert np.diff(drawn).min() >= 0.2, "four frames a second at most"


def test_changes_from_several_threads_start_one_worker(aggregation, monkeypatch):
    running, most = [0], [0]
    result = aggregation.result

    def counted(**values):
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            return result(**values)
        finally:
            running[0] -= 1

    monkeypatch.setattr(aggregation, "result", counted)

    def move(start):
        for turn in range(10):
            aggregation.controls["spread"].value = 0.5 * ((start + turn) % 16)

    movers = [threading.Thread(target=move, args=(start,)) for start in range(4)]
    for mover in movers:
        mover.start()
    for mover in movers:
        mover.join()
    assert aggregation.wait(60)
    assert most[0] == 1


def test_widget_reports_an_error_and_recovers(aggregation, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("dgc_lab.aggregation.summation.make_addends", lambda *_, **__: [])
        set_and_wait(aggregation, addends=32)
        assert 'role="alert"' in aggregation.message.value
        assert "addends must hold at least one tensor, got none" in aggregation.message.value
        assert "still show the previous values" in aggregation.message.value
        with pytest.raises(ValueError, match="at least one tensor"):
            aggregation.show()
    set_and_wait(aggregation, addends=16)
    assert 'role="status"' in aggregation.message.value


def test_widget_reports_unexpected_exceptions(aggregation, monkeypatch):
    with monkeypatch.context() as patched:

        def breaks(*_, **__):
            raise KeyError("lost")

        patched.setattr("dgc_lab.aggregation.rounding_error.measure", breaks)
        set_and_wait(aggregation, addends=32)
        assert "KeyError" in aggregation.message.value
    set_and_wait(aggregation, addends=16)
    assert 'role="status"' in aggregation.message.value


def test_show_displays_a_static_figure_and_table(aggregation, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *things: shown.extend(things))
    aggregation.controls["addends"].value = 128
    aggregation.show()
    picture, frame = shown
    assert picture._repr_mimebundle_()[1]["image/png"]["alt"] == picture.alt
    assert len(frame) == 5
    assert "sequential" in picture.alt


def test_two_widgets_are_independent(aggregation):
    other = AggregationExplorer(addends=2, dtype="float32")
    set_and_wait(aggregation, dtype="float16", addends=512)
    assert other.wait(60)
    assert max(errors(other).values()) < 1e-6 < min(errors(aggregation).values())


# ReplicaExplorer, with one TensorFlow device, and in a process with eight -------------------------------------------


def in_a_new_process():
    """Drive the widget in a process without TensorFlow state and return the observed values."""
    explorer = ReplicaExplorer()
    seen = {"first": (explorer.frame["after"].tolist(), explorer.message.value)}
    set_and_wait(explorer, aggregation="SUM", synchronization="ON_READ", how="assign_add", initial=10.0)
    seen["on read"] = (explorer.frame["after"].tolist(), explorer.message.value)
    set_and_wait(explorer, synchronization="NONE")
    seen["refused"] = (explorer.frame["after"].tolist(), explorer.message.value)
    set_and_wait(explorer, synchronization="AUTO", value3=math.nan)
    seen["not a number"] = (explorer.frame["after"].tolist(), explorer.message.value)
    set_and_wait(explorer, value3=-2.5, how="assign", initial=0.0)
    seen["negative"] = (explorer.frame["after"].tolist(), explorer.message.value)
    for replicas in (2, 3, 4, 5, 6, 7, 8, 7, 6, 8):
        explorer.controls["replicas"].value = replicas
    assert explorer.wait(60)
    seen["eight"] = (explorer.frame["after"].tolist(), explorer.message.value)
    seen["fields"] = [control.layout.display for control in explorer.grid]
    set_and_wait(explorer, replicas=2)
    seen["fields of two"] = [control.layout.display for control in explorer.grid]
    again = ReplicaExplorer(replicas=8)  # the cell run twice
    seen["again"] = (again.frame["after"].tolist(), again.message.value)
    return seen


@pytest.fixture(scope="module")
def seen():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(in_a_new_process).result(timeout=300)


def test_replica_explorer_starts_with_the_mean(seen):
    after, message = seen["first"]
    assert after == [2.5] * 4
    assert "Copies after: 2.5, 2.5, 2.5, 2.5. A read outside the replicas gives 2.5." in message


def test_replica_explorer_follows_its_controls(seen):
    after, message = seen["on read"]
    assert after == [11, 12, 13, 14]
    assert "A read outside the replicas gives 50." in message
    assert seen["negative"][0] == [3.5] * 4
    assert seen["eight"][0] == [1 + 2 + 3 - 2.5 + 5 + 6 + 7 + 8] * 8
    assert seen["again"][0] == [4.5] * 8


def test_rejected_combinations_are_explained(seen):
    after, message = seen["refused"]
    assert all(math.isnan(value) for value in after)
    assert "TensorFlow refused to create the variable" in message
    assert "not supported" in message


def test_invalid_values_are_reported(seen):
    message = seen["not a number"][1]
    assert 'role="alert"' in message
    assert "values must be finite numbers in float32, got nan for replica 3" in message


def test_one_value_field_per_replica_is_shown(seen):
    assert seen["fields"] == [None] * 8
    assert seen["fields of two"] == [None] * 2 + ["none"] * 6


def test_too_few_devices_error_suggests_a_restart():
    code = """
import tensorflow as tf
tf.zeros([1])
from dgc_lab.replicas.widget import ReplicaExplorer
explorer = ReplicaExplorer()
print(explorer.message.value)
try:
    explorer.show()
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert 'role="alert"' in done.stdout, done.stderr
    assert "Restart the kernel" in done.stdout
    assert "Picture and table" not in done.stdout, "there is no figure yet"
    assert done.stdout.splitlines()[-1] == "TooLate"


def test_widget_recovers_when_no_thread_can_start(aggregation, monkeypatch):
    def none_left(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", none_left)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            aggregation.controls["addends"].value = 4
    assert aggregation.wait(30)
    shown = aggregation.image.value
    aggregation.controls["addends"].value = 8
    assert aggregation.wait(30)
    assert aggregation.image.value != shown
    assert aggregation._done == aggregation._wanted
