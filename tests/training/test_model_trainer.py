"""ResNet-20, the small BERT, its training text, and the loop that trains any Keras model."""

import dataclasses
import re
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab import compression as schemes
from dgc_lab.common import LabError
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.distributed.batch_norm import AverageStatistics, average_statistics, statistics_of
from dgc_lab.distributed.communicators import HorovodWorkers, OneWorker, SimulatedWorkers
from dgc_lab.distributed.keras_optimizer import DistributedOptimizer
from dgc_lab.training import DistributedConfig, DistributedTrainer, ModelTrainer, dense
from dgc_lab.training.events import DistributedStep, Evaluation, TrainingDiverged
from dgc_lab.training.figures import gradient_histograms, loss_and_accuracy
from dgc_lab.training.run_comparison import comparison, run_with_progress, steps_of
from dgc_lab.workloads.batches import batches_of, cross_entropy, make_evaluator
from dgc_lab.workloads.bert import small_bert
from dgc_lab.workloads.masked_words import mask_words, masked_batches, most_frequent
from dgc_lab.workloads.models import digits_cnn
from dgc_lab.workloads.resnet import resnet20
from dgc_lab.workloads.text import Vocabulary, corpus, hold_out, paragraphs, reference_text, tokens

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def words():
    return corpus()


# Text ---------------------------------------------------------------------------------------------------------------


def test_tokens_are_words_numbers_and_runs_of_punctuation():
    assert tokens("if x_1 == 'é':\n\t----") == ["if", "x", "_", "1", "==", "'", "é", "'", ":", "----"]


def test_vocabulary_encodes_and_decodes_words(words):
    vocabulary = words.vocabulary
    numbers = vocabulary.encode("The object is not bound")
    assert 0 not in numbers
    assert vocabulary.decode(numbers) == "The object is not bound"
    assert vocabulary.decode(vocabulary.encode("the zyxw")) == "the [UNK]"
    for sequence in words.train[:50]:
        np.testing.assert_array_equal([vocabulary.numbers[w] for w in vocabulary.decode(sequence).split()], sequence)


def test_vocabulary_holds_frequent_training_words(words):
    assert 1000 <= len(words.vocabulary) <= 2000
    counts = np.bincount(words.train.ravel(), minlength=len(words.vocabulary))
    assert counts[1] == 0, "[MASK] must not occur in the text"
    assert counts[0] / counts.sum() < 0.1, "most words are known"
    assert counts[2:].min() >= 4, "words occur 5 times; one may be in the discarded tail"


def test_held_out_paragraphs_are_not_in_the_training_set(words):
    every = paragraphs(reference_text())
    train, test = hold_out(every)
    assert len(test) > 5
    assert not set(train) & set(test)
    assert sorted(train + test) == sorted(every)
    known = {tuple(sequence) for sequence in words.train}
    assert np.mean([tuple(sequence) in known for sequence in words.test]) < 0.02, "few paragraphs share a sentence"
    assert 0 in words.test, "words that occur only in held-out paragraphs must be unknown"


def test_reference_has_no_duplicate_paragraphs():
    found = paragraphs(reference_text())
    assert len(found) == len(set(found)) > 1000


def test_corpus_is_the_same_in_each_call(words):
    same = corpus()
    assert same.vocabulary.words == words.vocabulary.words
    assert np.array_equal(same.train, words.train)


def test_numbers_outside_the_vocabulary_are_rejected(words):
    most = len(words.vocabulary) - 1
    with pytest.raises(ValueError, match=rf"numbers must be from 0 to {most}, got -1"):
        words.vocabulary.decode([3, -1])
    with pytest.raises(ValueError, match=rf"targets must be word numbers from 0 to {most}, got \[3, {most + 1}\]"):
        most_frequent([3, most + 1], words.vocabulary)
    with pytest.raises(ValueError, match=r"words must begin with \[UNK\], \[MASK\]"):
        Vocabulary(("a", "b"))


@pytest.mark.parametrize("rows", [np.ones((2, 8), np.float32), np.ones(8, np.int32)])
def test_words_must_be_rows_of_integers(words, rows):
    expected = f"must be rows of .*, got {rows.dtype.name} of shape {re.escape(str(rows.shape))}"
    with pytest.raises(ValueError, match=f"words {expected}"):
        mask_words(rows, len(words.vocabulary), seed=(0, 0))
    with pytest.raises(ValueError, match=f"sequences {expected}"):
        masked_batches(rows, words.vocabulary, batch=1)


# Masked words -------------------------------------------------------------------------------------------------------


def test_masking_follows_the_80_10_10_rule():
    shown = tf.random.stateless_uniform([4000, 40], (0, 0), 2, 1000, tf.int32)
    masked = mask_words(shown, 1000, (1, 2))
    places, targets = masked.places.numpy(), masked.targets.numpy()
    assert places.shape == (4000, 6), "15 % of 40"
    assert np.all(np.diff(places, axis=1) > 0), "positions must be unique"
    np.testing.assert_array_equal(targets, np.take_along_axis(shown.numpy(), places, axis=1))
    at_places = np.take_along_axis(masked.words.numpy(), places, axis=1)
    is_mask, stays = at_places == 1, at_places == targets
    assert np.mean(is_mask) == pytest.approx(0.8, abs=0.01)
    assert np.mean(stays) == pytest.approx(0.1, abs=0.01)
    assert at_places[~is_mask].min() >= 2, "random words must not be special tokens"
    elsewhere = np.ones(shown.shape, bool)
    np.put_along_axis(elsewhere, places, False, axis=1)
    np.testing.assert_array_equal(masked.words.numpy()[elsewhere], shown.numpy()[elsewhere])
    assert np.bincount(places.ravel(), minlength=40).min() > 450, "positions must be uniform, about 600 times each"


def test_masking_avoids_unknown_words_and_is_seeded():
    shown = np.zeros((1, 20), np.int32)
    shown[0, 5:8] = 7
    masked = mask_words(shown, 100, (0, 0))
    assert masked.places.numpy().tolist() == [[5, 6, 7]]
    same, other = mask_words(tf.fill([50, 20], 5), 100, (0, 3)), mask_words(tf.fill([50, 20], 5), 100, (0, 4))
    again = mask_words(tf.fill([50, 20], 5), 100, (0, 3))
    np.testing.assert_array_equal(same.words, again.words)
    assert np.any(same.places != other.places)


def test_batches_cover_all_sequences(words):
    sequences = words.train[:20]
    batches = masked_batches(sequences, words.vocabulary, batch=10)
    seen = []
    for turn in range(2):
        (shown, places), targets = batches(tf.constant(turn))
        whole = shown.numpy()
        np.put_along_axis(whole, places.numpy(), targets.numpy(), axis=1)
        seen += whole.tolist()
    assert sorted(seen) == sorted(sequences.tolist())


def test_baseline_is_the_most_frequent_word(words):
    word, share = most_frequent(words.train, words.vocabulary)
    assert word == words.vocabulary.words[np.bincount(words.train.ravel()).argmax()]
    assert 0.02 < share < 0.2


# Models -------------------------------------------------------------------------------------------------------------


def test_resnet20_matches_the_published_architecture():
    model = resnet20()
    assert sum(int(keras.ops.size(w)) for w in model.trainable_weights) == 269_722  # "0.27M"
    assert model.output_shape == (None, 10)
    convolutions = [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    assert len(convolutions) == 19, "20 layers with the dense layer"
    assert [w.shape[-1] for w in model.trainable_weights if len(w.shape) == 4] == [16] * 7 + [32] * 6 + [64] * 6


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (5, 7, 2)])
def test_resnet20_accepts_images_of_any_size(shape):
    assert resnet20(shape, classes=3)(np.zeros((2, *shape), np.float32)).shape == (2, 3)


def test_seed_determines_initial_weights():
    for make in (lambda seed: resnet20((8, 8, 1), seed=seed), lambda seed: small_bert(50, 8, 16, 1, 2, seed=seed)):
        one, same, other = make(0).get_weights(), make(0).get_weights(), make(1).get_weights()
        assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_prediction_depends_on_all_words_and_its_position():
    model = small_bert(50, length=12, width=16, layers=1, heads=2)
    shown, places = np.full((1, 12), 5, np.int32), np.array([[2, 7]], np.int32)
    first = model((shown, places)).numpy()
    assert first.shape == (1, 2, 50)
    shown[0, 11] = 6
    assert np.all(np.any(model((shown, places)).numpy() != first, axis=-1)), "attention must be bidirectional"
    np.testing.assert_allclose(model((shown, places[:, ::-1])).numpy()[:, ::-1], model((shown, places)), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: resnet20((32, 32)),
            r"shape must be \(height, width, channels\) .* got \(32, 32\)",
        ),
        (lambda: resnet20((2, 8, 1)), r"sides of at least 4, got \(2, 8, 1\)"),
        (lambda: resnet20(classes=1), r"classes must be a whole number from 2 to 1000000, got 1"),
        (lambda: small_bert(100, width=10, heads=4), r"width must be a multiple of heads, 4, got 10"),
        (lambda: small_bert(2), r"vocabulary_size must be a whole number from 3 to 1000000, got 2"),
    ],
)
def test_invalid_model_options_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bert_can_be_saved_and_loaded(tmp_path):
    model = small_bert(50, length=8, width=16, layers=1, heads=2)
    model.save(tmp_path / "bert.keras")
    loaded = keras.saving.load_model(tmp_path / "bert.keras")
    shown, places = np.arange(8, dtype=np.int32)[None], np.array([[3]], np.int32)
    np.testing.assert_allclose(loaded((shown, places)), model((shown, places)), atol=1e-6)
    assert len(loaded.trainable_weights) == len(model.trainable_weights), "the table must stay tied"


# The tied table -----------------------------------------------------------------------------------------------------


def tied_parts(table, shown, wanted):
    """Return a tied table's gradients: of the lookup, of the product and of both together."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(table)
        looked_up, multiplied = tf.identity(table), tf.identity(table)
        tape.watch([looked_up, multiplied])
        vectors = tf.gather(looked_up, shown)
        loss = tf.reduce_mean(CROSS_ENTROPY(wanted, tf.matmul(vectors, multiplied, transpose_b=True)))
        both = tf.reduce_mean(CROSS_ENTROPY(wanted, tf.matmul(tf.gather(table, shown), table, transpose_b=True)))
    return *tape.gradient(loss, [looked_up, multiplied]), tape.gradient(both, table)


def test_tied_table_gradient_is_a_dense_tensor():
    table, shown, wanted = tf.random.stateless_normal([30, 4], (0, 0)), tf.constant([3, 7, 3]), tf.constant([1, 2, 4])
    rows, whole, both = tied_parts(table, shown, wanted)
    assert isinstance(rows, tf.IndexedSlices)
    assert rows.indices.numpy().tolist() == [3, 7, 3]
    assert isinstance(whole, tf.Tensor)
    assert isinstance(both, tf.Tensor), "TensorFlow densifies the rows before adding"
    assert np.all(np.any(whole.numpy() != 0, axis=1)), "the softmax must reach every word"
    np.testing.assert_allclose(both, tf.convert_to_tensor(rows) + whole, atol=1e-6)


def test_tied_table_of_bert_is_compressed_without_loss(words):
    model = small_bert(len(words.vocabulary), 16, width=16, layers=1, heads=2)
    weights = [weight.value for weight in model.trainable_weights]
    (shown, places), targets = masked_batches(words.train, words.vocabulary, 4)(tf.constant(0))
    with tf.GradientTape() as tape:
        loss = CROSS_ENTROPY(targets, model((shown, places)))
    gradients = tape.gradient(loss, weights)
    table = [weight.path for weight in model.trainable_weights].index("words_table/embeddings")
    assert isinstance(gradients[table], tf.Tensor)
    unread = np.setdiff1d(np.arange(len(words.vocabulary)), shown)
    assert np.all(np.any(gradients[table].numpy()[unread] != 0, axis=1)), "unread words need gradients, too"
    compressor = Compressor(DGCConfig(ratio=0.01, momentum=0.0, rule="exact"), weights, OneWorker())
    updates, report = compressor([gradients])
    assert int(report.num_sent[table]) == int(np.ceil(0.01 * len(words.vocabulary) * 16))
    np.testing.assert_array_equal(updates[table] + compressor.residuals()[table], gradients[table])


def test_untied_lookup_sends_only_the_rows_read():
    """An untied table keeps its IndexedSlices gradient, so only the rows read change."""
    read = keras.Input((3,), dtype="int32")
    model = keras.Model(read, keras.layers.Dense(2)(keras.layers.Flatten()(keras.layers.Embedding(9, 4)(read))))
    before = model.get_weights()[0]
    batches = lambda turn: (tf.constant([[1, 4, 4]]), tf.constant([[1.0, -1.0]]))  # noqa: E731
    trainer = ModelTrainer(
        model, keras.losses.MeanSquaredError(), batches, DGCConfig(ratio=0.5), 0.1, SimulatedWorkers(2)
    )
    [step] = trainer.run(steps=1)
    assert np.flatnonzero(np.any(model.get_weights()[0] != before, axis=1)).tolist() == [1, 4]
    assert step.shares_sent[0] == pytest.approx(2 / 9), "two rows of nine must be sent"


# Batch normalization statistics -------------------------------------------------------------------------------------


def normalizing():
    seeded = keras.initializers.GlorotUniform(seed=0)
    layers = keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(2, kernel_initializer=seeded)
    return keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dropout(0.5, seed=0)])


def test_simulated_workers_keep_separate_statistics():
    batches = lambda turn: (  # noqa: E731
        tf.random.stateless_normal([6, 3], [turn, 0]) + tf.cast(turn, tf.float32),
        tf.zeros([6], tf.int32),
    )
    model = normalizing()
    [*_] = ModelTrainer(model, CROSS_ENTROPY, batches, DGCConfig(), 0.1, SimulatedWorkers(2)).run(steps=3)
    expected = []
    for worker in range(2):
        layer = keras.layers.BatchNormalization(momentum=0.5)
        for step in range(3):
            layer(batches(tf.constant(2 * step + worker))[0], training=True)
        expected.append([layer.moving_mean.numpy(), layer.moving_variance.numpy()])
    for found, wanted in zip(statistics_of(model), np.mean(expected, axis=0), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def weights_on_two_workers(communicator):
    """Return weights and statistics after four steps of our loop."""
    model = normalizing()
    batches = lambda turn: (tf.random.stateless_normal([6, 3], [turn, 5]), turn % 2 * tf.ones([6], tf.int32))  # noqa: E731
    [*_] = ModelTrainer(model, CROSS_ENTROPY, batches, DGCConfig(ratio=0.5, dense_below=0), 0.1, communicator).run(
        steps=4
    )
    return model.get_weights()


def on_ranks():
    """Run our loop on each rank, then ``fit`` with and without averaged statistics."""
    communicator = HorovodWorkers()
    outcomes = [weights_on_two_workers(communicator)]
    for callbacks in ([AverageStatistics()], []):
        model = normalizing()
        model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
        x = np.random.default_rng(communicator.first).normal(size=(8, 3))
        model.fit(x, x[:, :2], batch_size=4, verbose=0, callbacks=callbacks)
        outcomes.append(model.get_weights())
    return outcomes


def test_ranks_match_simulation_and_average_statistics(two_ranks):
    first, second = two_ranks.run(on_ranks)
    for found, expected in zip(first[0], weights_on_two_workers(SimulatedWorkers(2)), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for trained in range(2):
        for one, other in zip(first[trained], second[trained], strict=True):
            np.testing.assert_array_equal(one, other)
    apart = [not np.array_equal(one, other) for one, other in zip(first[2], second[2], strict=True)]
    assert sum(apart) >= 2, "without the callback, statistics must differ between ranks"


class Second(SimulatedWorkers):
    """One of two workers, like a rank; the other worker's tensor is always 3."""

    local = 1

    def __init__(self):
        self.size = 2

    def allreduce(self, groups, name=None):
        [own] = groups
        return [tensor + 3.0 for tensor in own]


def test_statistics_are_averaged_but_not_dropout_seeds():
    model = normalizing()
    assert [tuple(v.shape) for v in statistics_of(model)] == [(3,), (3,)]
    average_statistics(model, Second())
    mean, variance = statistics_of(model)
    np.testing.assert_allclose(mean, np.full(3, 1.5))
    np.testing.assert_allclose(variance, np.full(3, 2.0))
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3)), np.ones((4, 2))
    model.fit(x, y, epochs=1, verbose=0, callbacks=[AverageStatistics(Second())])
    np.testing.assert_allclose(statistics_of(model)[0], np.full(3, (0.5 * 1.5 + 0.5 * 1 + 3) / 2), rtol=1e-5)


# Training -----------------------------------------------------------------------------------------------------------


def final(events):
    return [event for event in events if isinstance(event, Evaluation)][-1]


@pytest.mark.nightly  # lesson 7 trains it for more steps
def test_resnet20_learns_digits_at_one_percent(digits):
    batches = batches_of(digits.x_train, digits.y_train, 32)
    config = DGCConfig(ratio=0.01, warm_up=(0.25, 0.0625), warm_up_steps=10)
    trainer = ModelTrainer(resnet20((8, 8, 1)), CROSS_ENTROPY, batches, config, 0.03, SimulatedWorkers(2))
    events = list(trainer.run(steps=60, evaluate=make_evaluator(digits.x_test, digits.y_test), evaluations=1))
    assert final(events).accuracy > 0.8, "three seeds reached 0.93 to 0.96"
    assert events[-2].bytes_sent < events[-2].dense_bytes / 20


@pytest.mark.nightly  # lesson 7 trains a larger one
def test_bert_learns_masked_words_at_one_percent(words):
    trainer = ModelTrainer(
        small_bert(len(words.vocabulary), width=32, layers=1, heads=2),
        CROSS_ENTROPY,
        masked_batches(words.train, words.vocabulary, 64),
        DGCConfig(ratio=0.01, clip_norm=1.0, warm_up=(0.25, 0.0625), warm_up_steps=20),
        0.3,
        SimulatedWorkers(2),
    )
    masked = mask_words(words.test, len(words.vocabulary), (7, 7))
    events = run_with_progress(trainer.run(200, evaluate=make_evaluator(*masked.example), evaluations=2), 200, "1 %")
    assert final(events).accuracy > 1.3 * most_frequent(masked.targets, words.vocabulary)[1]
    again = [step.loss for step in trainer.run(5)]
    assert again == [step.loss for step in steps_of(events)[:5]], "the seed must determine the run"
    table = comparison({"1 %": events})
    assert table.loc["1 %", "times fewer at the end"] > 10
    assert table.loc["1 %", "accuracy"] == final(events).accuracy
    assert "1 %: loss" in loss_and_accuracy({"1 %": events}).alt


def test_fit_trains_bert_in_five_lines(words):
    model = small_bert(len(words.vocabulary), 16, width=16, layers=1, heads=2)
    x, y = mask_words(words.train[:256], len(words.vocabulary), (0, 0)).example
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.3), DGCConfig(ratio=0.01, clip_norm=1.0))
    model.compile(optimizer, CROSS_ENTROPY, jit_compile=False)
    losses = model.fit(x, y, batch_size=32, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_dense_run_matches_keras_momentum_sgd():
    """The baseline for comparisons equals plain Keras training."""
    batches = lambda turn: (tf.random.stateless_normal([8, 4], [turn, 1]), tf.ones([8, 2]))  # noqa: E731
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    theirs = keras.models.clone_model(model)
    theirs.set_weights(model.get_weights())
    mse = keras.losses.MeanSquaredError()
    [*_] = ModelTrainer(model, mse, batches, dense(DGCConfig(dense_below=0, ratio=0.1)), 0.1).run(steps=6)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    for turn in range(6):
        x, y = batches(tf.constant(turn))
        with tf.GradientTape() as tape:
            loss = mse(y, theirs(x))
        optimizer.apply(tape.gradient(loss, theirs.trainable_variables), theirs.trainable_variables)
    for one, other in zip(model.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.0])
    trainer = ModelTrainer(model, mse, batches, DGCConfig(), schedule)
    [*_] = trainer.run(steps=2)
    after_two = model.get_weights()
    [*_] = trainer.run(steps=4)
    for one, other in zip(model.get_weights(), after_two, strict=True):
        np.testing.assert_array_equal(one, other)


def test_regularizers_act_as_in_fit():
    """Compare one step of plain SGD on one batch with `fit`."""
    x, y = np.ones((8, 3), np.float32), np.zeros(8, np.int32)

    def model():
        ones = keras.initializers.Ones()
        layer = keras.layers.Dense(2, kernel_initializer=ones, kernel_regularizer=keras.regularizers.L2(0.5))
        return keras.Sequential([keras.Input((3,)), layer])

    here, there = model(), model()
    trainer = ModelTrainer(here, CROSS_ENTROPY, lambda turn: (x, y), dense(DGCConfig(momentum=0.0)), learning_rate=0.1)
    assert len(list(trainer.run(1))) == 1
    there.compile(keras.optimizers.SGD(0.1), CROSS_ENTROPY)
    there.fit(x, y, batch_size=8, verbose=0)
    for one, other in zip(here.get_weights(), there.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert here.get_weights()[0].max() < 1, "the regularizer must shrink all weights"


def test_run_names_the_tensor_that_holds_nan():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    batches = lambda turn: (tf.ones([4, 2]), tf.ones([4, 1]) / tf.cast(3 - turn, tf.float32))  # noqa: E731
    trainer = ModelTrainer(model, keras.losses.MeanSquaredError(), batches, DGCConfig(), 0.01)
    named = r"^step 4, ratio 0.001: gradient of dense[\w]*/kernel on worker 0 holds NaN or infinity, or is too large$"
    with pytest.raises(TrainingDiverged, match=named):
        list(trainer.run(steps=5))


def test_run_stops_on_request_but_evaluates_after_the_last_step(digits):
    trainer = DistributedTrainer(DistributedConfig(steps=4, evaluations=1, workers=1), data=digits)
    answers = iter([False, True])
    assert [event.step for event in trainer.run(1.0, stop=lambda: next(answers))] == [1, 2]
    *_, last = trainer.run(1.0, stop=lambda: trainer.steps_done == 3, look_every=1)
    assert isinstance(last, Evaluation)
    assert last.step == 4


def test_interrupted_warm_up_is_undone(digits, monkeypatch):
    trainer = DistributedTrainer(DistributedConfig(steps=2, evaluations=1, workers=1), OneWorker(), digits)
    before, call = [weight.numpy() for weight in trainer.weights], trainer._calls._call
    with monkeypatch.context() as patched:
        patched.setattr(trainer._calls, "_call", lambda *given: (call(*given), signal.raise_signal(signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            list(trainer.run(1.0))
    assert trainer.steps_done == 0
    for weight, value in zip(trainer.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert [event.step for event in steps_of(trainer.run(1.0, resume=True))] == [1, 2]


def test_time_excludes_a_trace_after_an_interrupted_one(digits, monkeypatch):
    trainer = DistributedTrainer(DistributedConfig(steps=2, evaluations=1, workers=1), OneWorker(), digits)
    with monkeypatch.context() as patched:
        patched.setattr(trainer.compressor, "train", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            list(trainer.run(1.0))
    began = time.perf_counter()
    first = next(trainer.run(1.0))
    assert first.seconds < (time.perf_counter() - began) / 2


def test_trainer_saves_to_every_requested_folder(digits, tmp_path):
    trainer = DistributedTrainer(DistributedConfig(steps=2, evaluations=1, workers=1), data=digits)
    ratio = np.float32(0.1)  # NumPy scalars are accepted
    list(trainer.run(ratio))
    for name in ("one", "another", "one"):
        trainer.save(tmp_path / name)
    assert [file.name for file in sorted(tmp_path.glob("*/*"))] == ["rank_0_step_2.npz"] * 2
    assert trainer.restore(tmp_path / "another", ratio)
    assert [type(event) for event in trainer.run(ratio, resume=True)] == [Evaluation], "retrained"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "resnet"}, r"model must be a built Keras model, got 'resnet'"),
        ({"model": keras.Sequential([keras.layers.Dense(1)])}, r"model must be a built Keras model"),
        ({"model": keras.Sequential([keras.Input((2,)), keras.layers.ReLU()])}, r"model must have trainable weights"),
        ({"loss": "mse"}, r"loss must be a function, got 'mse'"),
        ({"batches": [1, 2]}, r"batches must be a function, got \[1, 2\]"),
        ({"learning_rate": 0}, r"learning_rate must be above 0, or a schedule, got 0"),
        ({"seed": -1}, r"seed must be a whole number from 0 to 2147483647, got -1"),
        ({"options": DGCConfig()}, r"options must be None with a DGCConfig, which has its own"),
    ],
)
def test_invalid_trainer_arguments_are_rejected(changes, message):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    right = {"model": model, "loss": CROSS_ENTROPY, "batches": lambda turn: None, "config": DGCConfig()}
    with pytest.raises(ValueError, match=message):
        ModelTrainer(**{**right, **changes})


def test_invalid_batch_arguments_are_rejected():
    with pytest.raises(ValueError, match=r"targets must have 3 examples, as many as inputs, got 2"):
        batches_of(np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match=r"batch must be a whole number of at least 1, got 0"):
        batches_of(np.zeros(3), np.zeros(3), batch=0)
    with pytest.raises(ValueError, match=r"seed must be a whole number from 0 to 2147483647"):
        batches_of(np.zeros(3), np.zeros(3), seed=2**31)


def test_invalid_steps_and_ratios_are_named():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    trainer = ModelTrainer(model, CROSS_ENTROPY, lambda turn: None, DGCConfig())
    with pytest.raises(ValueError, match=r"steps must be a whole number of at least 1, got 0"):
        next(trainer.run(steps=0))
    with pytest.raises(ValueError, match=r"ratio must be in \[0, 1\], got 2"):
        next(trainer.run(steps=1, ratio=2))
    trainer = ModelTrainer(model, CROSS_ENTROPY, lambda turn: None, schemes.dense())
    with pytest.raises(ValueError, match=r"ratio must be None with the scheme dense, got 0.5"):
        next(trainer.run(steps=1, ratio=0.5))


def test_incomplete_runs_cannot_be_compared():
    with pytest.raises(ValueError, match=r"runs must have at least one element, got \{\}"):
        comparison({})
    with pytest.raises(ValueError, match=r"runs must have updates and an evaluation: .* run\(\) of 'mine'"):
        comparison({"mine": [DistributedStep(1, 2.3, np.array([1.0]), 1.0, 0.1, 400, dense_bytes=400, ratio=1.0)]})


def test_weight_constraints_hold_after_training():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3, kernel_constraint=keras.constraints.NonNeg())(inputs))
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    config = DGCConfig(ratio=0.5, dense_below=0)
    trainer = ModelTrainer(model, keras.losses.MeanSquaredError(), batches_of(x, -x[:, :3], 8), config, 0.5)
    list(trainer.run(steps=4))
    assert np.all(model.get_weights()[0] >= 0)
    assert np.any(model.get_weights()[0] > 0)


def test_attention_projections_have_different_initial_weights():
    kernels = {v.path: v.numpy().ravel() for v in small_bert(50, 8, 16, 1, 2).variables if "attention" in v.path}
    kernels = [kernel for path, kernel in kernels.items() if path.endswith("kernel")]
    assert len(kernels) == 4
    assert len({tuple(kernel[:5]) for kernel in kernels}) == 4


def test_invalid_label_is_not_reported_as_divergence(digits):
    """A sweep would record a failed row and continue."""
    images, labels = digits.x_train[:64], np.full(64, 10)
    trainer = ModelTrainer(digits_cnn(0), cross_entropy, batches_of(images, labels, 8), DGCConfig(), 0.05)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label"):
        list(trainer.run(steps=2))


def test_run_resumes_only_with_its_own_data(digits, tmp_path):
    settings = DistributedConfig(steps=4, workers=1)
    first = DistributedTrainer(settings, OneWorker(), digits)
    with pytest.raises(LabError, match="nothing has been trained yet"):
        first.save(tmp_path)
    for _ in first.run(0.1):
        pass
    first.save(tmp_path)
    others = dataclasses.replace(digits, y_train=(digits.y_train + 1) % 10)
    with pytest.raises(LabError, match="was saved by a run with data "):
        DistributedTrainer(settings, OneWorker(), others).restore(tmp_path, 0.1)
    assert DistributedTrainer(settings, OneWorker(), digits).restore(tmp_path, 0.1)


def test_scheme_without_warm_up_reports_none(digits):
    settings = DistributedConfig(steps=2, workers=1, scheme="top_k", warm_up="paper", warm_up_steps=1)
    steps = steps_of(DistributedTrainer(settings, OneWorker(), digits).run(0.01))
    assert [step.ratio for step in steps] == [0.01, 0.01]


@pytest.mark.filterwarnings("error")
def test_plots_handle_ratio_1_and_zero_accuracy():
    assert "100.00% kept" in gradient_histograms({"kernel": np.arange(1.0, 9.0)}, {"kernel": 0.0}).alt
    step = DistributedStep(1, 2.3, np.array([0.01]), 0.01, 0.1, bytes_sent=400, dense_bytes=40_000)
    assert "test accuracy 0.000" in loss_and_accuracy({"none": [step, Evaluation(1, 0.0, 9.0)]}).alt
