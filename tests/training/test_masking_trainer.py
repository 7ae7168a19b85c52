"""The training loop: equivalences, reproducibility, traces and errors."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.training.custom_masks import masks_by_sign
from dgc_lab.training.events import Evaluation, Step, TrainingDiverged
from dgc_lab.training.masking_trainer import MaskingConfig, Trainer
from dgc_lab.workloads.batches import pick_batch

SHORT = MaskingConfig(steps=12, batch=32, evaluations=3)


def weights_after(trainer, ratio=1.0):
    events = list(trainer.run(ratio))
    return [weight.numpy() for weight in trainer.weights], events


def assert_same(left, right):
    for one, two in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, two)


def test_events_are_in_order(digits):
    trainer = Trainer(SHORT, digits)
    _, events = weights_after(trainer, 0.1)
    steps = [event for event in events if isinstance(event, Step)]
    evaluations = [event for event in events if isinstance(event, Evaluation)]
    assert [step.step for step in steps] == list(range(1, 13))
    assert [evaluation.step for evaluation in evaluations] == [4, 8, 12]
    assert events[-1] is evaluations[-1]
    assert all(later.seconds > earlier.seconds for earlier, later in itertools.pairwise(steps))
    assert steps[0].shares_sent.shape == (len(trainer.names),)
    assert trainer.names[0] == "conv1/kernel"
    assert steps[0].share_sent == pytest.approx(np.sum(steps[0].shares_sent * trainer.sizes) / np.sum(trainer.sizes))


@pytest.mark.nightly_except("tensor-sampled", "global-exact", "first-hierarchical")
@pytest.mark.parametrize("rule", ["exact", "sampled", "hierarchical"])
@pytest.mark.parametrize("scope", ["tensor", "global", "first"])
def test_ratio_1_equals_no_compression_bit_for_bit(digits, rule, scope):
    dense, _ = weights_after(Trainer(dataclasses.replace(SHORT, rule="off"), digits))
    masked, events = weights_after(Trainer(dataclasses.replace(SHORT, rule=rule, scope=scope), digits))
    assert_same(dense, masked)
    assert events[0].share_sent == 1


def test_ratio_0_leaves_weights_unchanged(digits):
    trainer = Trainer(SHORT, digits)
    before = [weight.numpy() for weight in trainer.weights]
    after, events = weights_after(trainer, 0.0)
    assert_same(before, after)
    assert events[0].share_sent == 0


def test_dense_run_matches_keras_momentum_sgd(digits):
    """Train the same model on the same batches with Keras's SGD."""
    import keras

    settings = dataclasses.replace(SHORT, rule="off")
    ours, _ = weights_after(Trainer(settings, digits))
    model = Trainer(settings, digits).model
    optimizer = keras.optimizers.SGD(settings.learning_rate, momentum=settings.momentum)
    for step in range(settings.steps):
        images, labels = pick_batch(digits.x_train, digits.y_train, tf.constant(step), settings.batch, tf.constant(0))
        with tf.GradientTape() as tape:
            loss = keras.losses.sparse_categorical_crossentropy(labels, model(images), from_logits=True)
            loss = tf.reduce_mean(loss)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
    for one, two in zip(ours, model.trainable_variables, strict=True):
        np.testing.assert_allclose(one, two.numpy(), atol=2e-6)


def test_ratios_share_one_trace_and_runs_are_independent(digits):
    trainer = Trainer(SHORT, digits)
    ratios = [1, 0.5, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001, 0]
    ends = {ratio: weights_after(trainer, ratio)[0] for ratio in ratios}
    assert trainer.traces == 1
    fresh = Trainer(SHORT, digits)
    assert_same(ends[0.02], weights_after(fresh, 0.02)[0])
    assert any(np.any(one != two) for one, two in zip(ends[0.02], ends[0.03], strict=True))


def test_only_the_same_seed_reproduces_a_run(digits):
    first, _ = weights_after(Trainer(SHORT, digits), 0.1)
    again, _ = weights_after(Trainer(SHORT, digits), 0.1)
    other, _ = weights_after(Trainer(dataclasses.replace(SHORT, seed=1), digits), 0.1)
    assert_same(first, again)
    assert any(np.any(one != two) for one, two in zip(first, other, strict=True))


def test_seed_reproduces_dropout(small_mnist):
    from dgc_lab.workloads.data import load

    settings = MaskingConfig(dataset="mnist", steps=3, batch=20, learning_rate=0.01, evaluations=1)
    trainer = Trainer(settings, load("mnist", small_mnist[0]))
    first, events = weights_after(trainer, 0.5)
    assert trainer.model.get_layer("dropout").seed_generator.state.numpy()[1] > 0, "dropout drew no random numbers"
    again, _ = weights_after(trainer, 0.5)
    assert_same(first, again)
    assert 0 <= events[-1].accuracy <= 1


def test_share_of_elements_sent_matches_the_ratio(digits):
    _, events = weights_after(Trainer(dataclasses.replace(SHORT, rule="exact"), digits), 0.01)
    sizes = Trainer(SHORT, digits).sizes
    wanted = np.ceil(0.01 * sizes * (1 - 1e-7)) / sizes
    for event in events:
        if isinstance(event, Step):
            assert np.all(event.shares_sent <= wanted + 1e-12), "too many sent (fewer is fine: zeros are skipped)"
            assert event.shares_sent[2] == pytest.approx(wanted[2])


def test_evaluation_covers_the_whole_test_set(digits):
    trainer = Trainer(SHORT, digits)
    accuracy, loss = trainer.evaluate(trainer.model)
    logits = trainer.model(digits.x_test).numpy()
    assert float(accuracy) == pytest.approx(np.mean(logits.argmax(1) == digits.y_test))
    shifted = logits - logits.max(1, keepdims=True)
    log_likelihood = shifted[np.arange(360), digits.y_test] - np.log(np.exp(shifted).sum(1))
    assert float(loss) == pytest.approx(-log_likelihood.mean(), rel=1e-5)


@pytest.mark.parametrize("batch", [7, 10, 25])
def test_batches_shuffle_every_epoch(batch):
    examples = 10
    images, labels = tf.reshape(tf.range(examples), [-1, 1]), tf.range(examples)
    drawn = []
    for step in range(20):
        picked, same = pick_batch(images, labels, tf.constant(step), batch, tf.constant(5))
        assert picked[:, 0].numpy().tolist() == same.numpy().tolist()
        drawn += same.numpy().tolist()
    epochs = [drawn[start : start + examples] for start in range(0, 20 * batch // examples * examples, examples)]
    assert all(sorted(epoch) == list(range(examples)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > len(epochs) / 2


def test_custom_masks_replace_rule_and_scope(digits):
    def every_other(gradients, ratio, seed):
        kept = []
        for g in gradients:
            if seed[1] > 1000:  # students branch on tensors like this
                g = tf.zeros_like(g)
            kept.append(tf.reshape(tf.range(tf.size(g)) % 2 == 0, g.shape))
        return kept

    _, events = weights_after(Trainer(SHORT, digits, every_other), 0.3)
    assert events[0].share_sent == 0.5


@pytest.mark.parametrize(
    "masks",
    [
        lambda gradients, ratio, seed: [tf.ones_like(g, tf.bool) for g in gradients if len(g.shape) > 1],
        lambda gradients, ratio, seed: [tf.ones_like(g) for g in gradients],
    ],
)
def test_masks_must_be_boolean_and_one_per_gradient(digits, masks):
    with pytest.raises(ValueError, match="masks must return 8 boolean tensors, one for each gradient, got"):
        list(Trainer(SHORT, digits, masks).run(0.1))


def test_masks_broadcast_and_see_only_ratios_of_the_run(digits):
    def rows(gradients, ratio, seed):
        tf.debugging.Assert(ratio < 1, [ratio])
        return [tf.range(g.shape[0])[(..., *[None] * (len(g.shape) - 1))] == 0 for g in gradients]

    trainer = Trainer(SHORT, digits, rows)
    _, events = weights_after(trainer, 0.3)
    np.testing.assert_allclose(events[0].shares_sent, [1 / weight.shape[0] for weight in trainer.weights])


def test_divergence_names_step_ratio_and_variable(digits):
    trainer = Trainer(MaskingConfig(steps=50, learning_rate=1e6), digits)
    with pytest.raises(TrainingDiverged, match=r"step \d+, ratio 1: gradient of \w+/\w+ on worker 0 holds NaN"):
        list(trainer.run(1))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("dataset", "cifar", "digits, mnist1d, python_reference, mnist, fashion_mnist, cifar10"),
        ("rule", "best", "exact, sampled, hierarchical, off"),
        ("scope", "layer", "tensor, global, first"),
        ("steps", 0, "at least 1"),
        ("steps", 2.5, "whole number"),
        ("batch", -3, "from 1 to 65536"),
        ("seed", -1, "from 0 to 2147483647"),
        ("seed", 2**31, "from 0 to 2147483647"),
        ("evaluations", 0, "at least 1"),
        ("learning_rate", 0, "above 0"),
        ("learning_rate", float("nan"), "above 0"),
        ("momentum", 1, "below 1"),
        ("momentum", -0.1, "at least 0"),
    ],
)
def test_invalid_settings_name_the_value_and_the_allowed_range(name, value, allowed):
    with pytest.raises(ValueError, match=rf"{name} must be .*{allowed}.*got {value!r}"):
        MaskingConfig(**{name: value})


def test_rule_off_requires_ratio_1_and_no_masks(digits):
    settings = dataclasses.replace(SHORT, rule="off")
    with pytest.raises(ValueError, match=r"ratio must be 1 with rule 'off', .* got 0.1"):
        next(Trainer(settings, digits).run(0.1))
    with pytest.raises(ValueError, match="masks must be None with rule 'off'"):
        Trainer(settings, digits, masks=lambda gradients, ratio, seed: gradients)


def test_invalid_ratio_is_rejected_before_tracing(digits):
    trainer = Trainer(SHORT, digits)
    with pytest.raises(ValueError, match=r"ratio must be in \[0, 1\], got 2"):
        next(trainer.run(2))
    assert trainer.traces == 0


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", [0.5, 0.5, 0.5]), ("cosine", [0.5, 0.25, 0.0]), ("warm-up", [0.0, 0.2934, 0.0])],
)
def test_schedules_set_the_rate_of_each_step(schedule, rates):
    rate = MaskingConfig(steps=100, learning_rate=0.5, schedule=schedule).rate()
    found = [float(rate(step) if callable(rate) else rate) for step in (0, 50, 100)]
    assert found == pytest.approx(rates, abs=1e-3)
    if schedule == "warm-up":
        assert float(rate(10)) == pytest.approx(0.5), "a tenth of the steps"


def test_cosine_schedule_differs_from_a_constant_rate(digits):
    losses = []
    for schedule in ("constant", "cosine"):
        trainer = Trainer(MaskingConfig(steps=20, evaluations=1, schedule=schedule), digits)
        losses.append([event.loss for event in trainer.run(1) if isinstance(event, Step)])
    assert losses[0][:2] == pytest.approx(losses[1][:2], rel=1e-3)
    assert losses[0][-1] != losses[1][-1]


def test_resnet_trains_on_images(digits):
    trainer = Trainer(MaskingConfig(network="resnet20", steps=2, batch=8, evaluations=1), digits)
    assert trainer.settings.model == "resnet20"
    assert len([event for event in trainer.run(0.01) if isinstance(event, Step)]) == 2
    with pytest.raises(ValueError, match="network must be 'default' for mnist1d, which has no images, got 'resnet20'"):
        MaskingConfig(dataset="mnist1d", network="resnet20")


def test_data_must_be_those_of_the_settings(digits):
    with pytest.raises(ValueError, match="data must be the data set of the settings, 'mnist1d', got 'digits'"):
        Trainer(MaskingConfig(dataset="mnist1d"), digits)


def test_masks_by_sign_keep_neither_zeros_nor_the_other_sign():
    [mask] = masks_by_sign([tf.constant([-1.0, -2.0, -3.0, 0.0])], 0.5, None)
    assert mask.numpy().tolist() == [False, False, True, False]
