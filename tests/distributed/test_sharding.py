"""ZeRO stage 1 on two Horovod ranks: the weights of plain data parallelism, with half of the optimizer's state."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.distributed import ShardedOptimizer, count_collective_bytes, optimizer_bytes
from dgc_lab.distributed.sharding import check_elementwise, part_sizes

SHAPES = {"even": [(4, 3), (6,)], "uneven": [(4, 3), (3,), (1, 2)], "fewer elements than ranks": [(1,)]}
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01),
    "schedule": lambda: keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
}
SLOTS = {"SGD": 0, "momentum": 1, "Adam": 2, "AdamW": 2, "schedule": 1}  # of 4 bytes per element


def gradients(shapes, step, rank):
    return [tf.random.stateless_normal(shape, tf.stack([step, 10 * rank + i])) for i, shape in enumerate(shapes)]


def train(shapes, name, sharded, steps=4):
    """Train on a rank with either optimizer; return the weights and the bytes of the optimizer's state."""
    import horovod.tensorflow as hvd

    weights = [tf.Variable(tf.random.stateless_normal(shape, (7, i))) for i, shape in enumerate(shapes)]
    optimizer = OPTIMIZERS[name]()
    if sharded:
        apply = ShardedOptimizer(optimizer, weights).apply
    else:
        optimizer.build(weights)

        def apply(own):
            means = [hvd.allreduce(gradient, op=hvd.Average, name=f"mean.{i}") for i, gradient in enumerate(own)]
            optimizer.apply(means, weights)

    step = tf.function(lambda number: apply(gradients(shapes, number, hvd.rank())), autograph=False)
    for number in range(steps):
        step(tf.constant(number))
    return [weight.numpy() for weight in weights], optimizer_bytes(optimizer)


@pytest.mark.nightly_except("Adam-uneven", "momentum-even", "schedule-fewer elements than ranks")
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shards_train_like_plain_data_parallelism(two_ranks, name, sizes):
    """Both ranks have the same bits, which may differ from plain ones: a square root's last bit depends on its place.

    Eigen computes square roots of several elements at once, and of the last ones one by one.
    """
    shapes, closeness = SHAPES[sizes], 0 if name in ("SGD", "momentum") else 1e-6
    plain, sharded = (two_ranks.run(train, shapes, name, way) for way in (False, True))
    for own, other, expected in zip(sharded[0][0], sharded[1][0], plain[0][0], strict=True):
        np.testing.assert_array_equal(own, other)
        np.testing.assert_allclose(own, expected, rtol=closeness)
    total = sum(map(np.prod, shapes))
    assert [state for _, state in plain] == [4 * SLOTS[name] * total] * 2
    assert [state for _, state in sharded] == [4 * SLOTS[name] * part for part in part_sizes(total, 2)]


def fit_a_model():
    import horovod.tensorflow as hvd

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.set_weights([np.ones((5, 3)), np.zeros(3)])
    sharded = ShardedOptimizer(keras.optimizers.Adam(0.1), model.trainable_variables)
    x = tf.random.stateless_normal([8, 5], (3, hvd.rank()))
    losses = []
    for _ in range(20):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        sharded.apply(tape.gradient(loss, model.trainable_variables))
        losses.append(float(loss))
    return losses, model.get_weights()


def test_keras_model_learns_with_equal_weights_on_all_ranks(two_ranks):
    (first, weights), (_, others) = two_ranks.run(fit_a_model)
    assert first[-1] < 0.5 * first[0]
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def count_a_step():
    weights = [tf.Variable(tf.zeros([10, 10])), tf.Variable(tf.zeros([3]))]
    sharded = ShardedOptimizer(keras.optimizers.Adam(0.1), weights)
    with count_collective_bytes() as sent:
        sharded.apply([tf.ones([10, 10]), tf.ones([3])])
    return dict(sent), sharded.sizes, len(sharded.optimizer.variables)


def test_a_step_scatters_gradients_and_gathers_weights(two_ranks):
    for rank, (sent, sizes, _) in enumerate(two_ranks.run(count_a_step)):
        assert sizes == [52, 51]
        assert sent == {"allreduce": 0, "allgather": 4 * sizes[rank], "reducescatter": 4 * 103}


def disagree():
    import horovod.tensorflow as hvd

    ShardedOptimizer(keras.optimizers.SGD(), [tf.Variable(tf.zeros([3 + hvd.rank()]))])


def test_ranks_with_different_variables_are_rejected(two_ranks):
    from dgc_lab.cluster import RankFailed

    with pytest.raises(RankFailed, match="all ranks must have the same settings"):
        two_ranks.run(disagree)


def partly_decayed():
    optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def used():
    optimizer = keras.optimizers.Adam()
    optimizer.build([tf.Variable([1.0])])
    return optimizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.optimizers.Adafactor(), "optimizer must be one of SGD, Adam, .*got Adafactor"),
        (lambda: keras.optimizers.Adam(clipnorm=1.0), "optimizer must have no clipnorm.*got 1.0"),
        (lambda: keras.optimizers.Adam(global_clipnorm=2.0), "optimizer must have no global_clipnorm.*got 2.0"),
        (partly_decayed, "optimizer must not exclude variables from weight decay"),
        (used, "optimizer must be new"),
    ],
)
def test_optimizers_that_need_more_than_a_part_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        check_elementwise(make())


def test_constraints_are_rejected():
    bound = keras.layers.Dense(1, kernel_constraint="non_neg")
    bound.build((None, 3))
    with pytest.raises(ValueError, match=r"variables must have no constraint, .*, got one on .*kernel"):
        ShardedOptimizer(keras.optimizers.SGD(0.1), bound.trainable_variables)


def skip_a_gradient():
    sharded = ShardedOptimizer(keras.optimizers.SGD(0.1), [tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([2]))])
    with pytest.raises(ValueError, match=r"gradients must be 2 tensors, one for each variable, got \[\(3,\), None\]"):
        sharded.apply([tf.ones([3]), None])
    with pytest.raises(ValueError, match=r"got \[\(2,\), \(3,\)\] for variables of shapes \[\(3,\), \(2,\)\]"):
        sharded.apply([tf.ones([2]), tf.ones([3])])
    return sharded.shard.numpy().tolist()


def test_every_variable_needs_a_gradient(two_ranks):
    assert two_ranks.run(skip_a_gradient) == [[0.0, 0.0, 0.0], [0.0, 0.0]]


def test_parts_cover_all_elements():
    for total in (0, 1, 7, 8):
        for ranks in (1, 2, 3, 8):
            sizes = part_sizes(total, ranks)
            assert (sum(sizes), len(sizes)) == (total, ranks)
            assert max(sizes) - min(sizes) <= 1
