"""Several steps in one call give the same results as single steps, however the call ends."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.distributed import SimulatedWorkers
from dgc_lab.training import (
    DistributedConfig,
    DistributedTrainer,
    Evaluation,
    MaskingConfig,
    Trainer,
    TrainingDiverged,
    steps_at_once,
)
from dgc_lab.training.steps_at_once import StepsAtOnce


def masked(digits, **settings):
    return Trainer(MaskingConfig(steps=40, batch=16, evaluations=2, **settings), digits), 0.01


def distributed(digits, **settings):
    config = DistributedConfig(steps=40, batch=16, evaluations=2, warm_up="geometric", warm_up_steps=3, **settings)
    return DistributedTrainer(config, SimulatedWorkers(2), digits), 0.01


def fields_of(event):
    """Return all fields of an event except its time."""
    return {name: np.asarray(value).tolist() for name, value in vars(event).items() if name != "seconds"}


@pytest.mark.parametrize("make", [masked, distributed])
def test_batched_steps_match_single_steps(digits, make, monkeypatch):
    runs = {}
    for seconds in (0.0, 1e9):  # one step per call; as many as possible
        monkeypatch.setattr(steps_at_once, "SECONDS", seconds)
        trainer, ratio = make(digits)
        sizes, calls = [], getattr(trainer, "calls", None) or trainer._calls
        usual = calls._call
        monkeypatch.setattr(
            calls, "_call", lambda *given, usual=usual, sizes=sizes: sizes.append(len(given[1])) or usual(*given)
        )
        events = list(trainer.run(ratio))
        runs[seconds] = [fields_of(event) for event in events], [weight.numpy() for weight in trainer.weights]
        assert max(sizes) == 1 if seconds == 0 else max(sizes) > 9
        times = [event.seconds for event in events if not isinstance(event, Evaluation)]
        assert all(later > earlier for earlier, later in itertools.pairwise(times))
    assert runs[0.0][0] == runs[1e9][0]
    for one, other in zip(runs[0.0][1], runs[1e9][1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("make", [masked, distributed])
def test_steps_before_a_failing_step_are_reported(digits, make, monkeypatch):
    """The message names the failing step, and the last event is the step before it."""
    found = {}
    for seconds in (0.0, 1e9):
        monkeypatch.setattr(steps_at_once, "SECONDS", seconds)
        trainer, ratio = make(digits, learning_rate=1e9)
        events = []
        with pytest.raises(TrainingDiverged, match=r"step \d+, ratio 0.01: gradient of") as error:
            events.extend(map(fields_of, trainer.run(ratio)))
        assert f"step {len(events) + 1}," in str(error.value)
        found[seconds] = events
    assert found[0.0] == found[1e9]
    assert found[0.0]


def test_stop_request_ends_a_call_after_one_step():
    calls = StepsAtOnce(lambda step, ratio, requested: (tf.cast(step, tf.float64)[None], requested), 1)
    rows, _, _ = calls(0, [1.0] * 5)
    assert rows.ravel().tolist() == [0, 1, 2, 3, 4]
    rows, _, error = calls(5, [1.0] * 5, stop=True)
    assert rows.ravel().tolist() == [5]
    assert (calls.size, error) == (0, None)


def test_trainer_stops_promptly_and_resumes(digits):
    trainer, ratio = distributed(digits)
    asked = []
    events = list(trainer.run(ratio, stop=lambda: asked.append(None) or len(asked) == 3))
    assert len(asked) == 3
    assert len(events) == trainer.steps_done
    again = [event.step for event in trainer.run(ratio, resume=True) if not isinstance(event, Evaluation)]
    assert again == list(range(len(events) + 1, 41))


def test_calls_end_at_multiples_of_look_every(digits, monkeypatch):
    monkeypatch.setattr(steps_at_once, "SECONDS", 1e9)
    trainer, ratio = distributed(digits)
    steps = [event.step for event in trainer.run(ratio, look_every=7) if event.step == trainer.steps_done]
    assert {7, 14, 20, 21, 28, 35, 40} <= set(steps), "calls must also end at both evaluations"
    assert len(set(steps)) < 40, "calls must not end at every step"
    with pytest.raises(ValueError, match="look_every must be a whole number of at least 1, got 0"):
        next(trainer.run(ratio, look_every=0))
