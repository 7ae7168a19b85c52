"""Lesson 1, section 1: a gradient with several contributions, and the ``AddN`` nodes with which TensorFlow sums them.

If a weight is used n times, as in an unrolled recurrent layer, its gradient has n contributions. The argument
``aggregation_method`` of ``tf.gradients`` selects how they are summed. This module builds and reads such graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from dgc_lab.common import check_choice, check_whole

#: Names of the members of ``tf.AggregationMethod`` that `gradient_graph` and the tied network accept.
AGGREGATION_METHODS = ("ADD_N", "DEFAULT", "EXPERIMENTAL_TREE", "EXPERIMENTAL_ACCUMULATE_N")
SUMS = ("AddN", "Add", "AddV2", "AccumulateNV2")
v1 = tf.compat.v1


@dataclass(frozen=True)
class Node:
    """Operation of a graph."""

    name: str
    kind: str  # the operation's type, such as "AddN"
    inputs: tuple[str, ...]  # names of the operations that produce its inputs, in the order of the inputs


def aggregation_method(name: str) -> int:
    """Return TensorFlow's constant for one of `AGGREGATION_METHODS`; raise ValueError for any other name."""
    return getattr(tf.AggregationMethod, check_choice("method", name, AGGREGATION_METHODS))


def recurrent_loss(weight, start, uses: int):
    """Return the mean of h after ``uses`` steps h = tanh(h W) of a recurrent layer, beginning with h = ``start``."""
    state = start
    for _ in range(uses):
        state = tf.tanh(tf.matmul(state, weight))
    return tf.reduce_mean(state)


def gradient_graph(uses: int = 8, method: str = "ADD_N", width: int = 4, batch: int = 2):
    """Build a ``tf.Graph`` with a recurrent loss and the gradient of its weight, computed by ``tf.gradients``.

    Args:
        uses: number of uses of the weight, from 1 to 4 096.
        method: one of `AGGREGATION_METHODS`.
        width, batch: the weight has shape (width, width), the layer's input (batch, width); both are random, float32.

    Returns:
        ``(graph, gradient)``: the graph and the gradient's symbolic tensor, shape (width, width).

    Raises:
        ValueError: an argument is not in its range.

    Example:
        >>> graph, gradient = gradient_graph(uses=8, method="ADD_N")
        >>> [(node.kind, len(node.inputs)) for node in sum_nodes(gradient)]
        [('AddN', 8)]
    """
    chosen = aggregation_method(method)
    check_whole("uses", uses, 1, 4096)
    check_whole("width", width, 1, 2**14)
    check_whole("batch", batch, 1, 2**14)
    with tf.Graph().as_default() as graph:
        # Variables, not constants: Grappler would fold every operation that depends on constants alone.
        drawn = tf.random.stateless_normal([width, width], (0, 1)) / width**0.5
        weight = v1.get_variable("weight", initializer=drawn, use_resource=False)
        drawn = tf.random.stateless_normal([batch, width], (0, 2))
        start = v1.get_variable("start", initializer=drawn, use_resource=False)
        (gradient,) = tf.gradients(recurrent_loss(weight, start, uses), weight, aggregation_method=chosen)
    return graph, gradient


def tape_graph(uses: int = 8, width: int = 4):
    """Build the graph of `gradient_graph` with a ``tf.GradientTape`` in a ``tf.function``; return (graph, gradient).

    A tape sums early if more than four contributions take more than 128 MiB together. Raises ValueError if ``uses`` is
    not from 1 to 4 096, or ``width`` not from 1 to 16 384.

    Example:
        >>> graph, gradient = tape_graph(uses=8)
        >>> [(node.kind, len(node.inputs)) for node in sum_nodes(gradient)]
        [('AddN', 8)]
    """
    check_whole("uses", uses, 1, 4096)
    check_whole("width", width, 1, 2**14)

    @tf.function(input_signature=[tf.TensorSpec([width, width]), tf.TensorSpec([2, width])])
    def gradient_of(weight, start):
        with tf.GradientTape() as tape:
            tape.watch(weight)
            loss = recurrent_loss(weight, start, uses)
        return tape.gradient(loss, weight)

    graph = gradient_of.get_concrete_function().graph
    return graph, graph.outputs[0].op.inputs[0]  # the output is an Identity of the gradient


def sum_nodes(result: tf.Tensor) -> list[Node]:
    """Return the additions that compute a symbolic tensor, ``result``, in topological order; none if it is not a sum.

    Raises ValueError if ``result`` does not belong to a graph.

    Example:
        >>> _, gradient = gradient_graph(uses=4, method="EXPERIMENTAL_TREE")
        >>> [node.inputs for node in sum_nodes(gradient)][0]
        ('gradients/MatMul_3_grad/MatMul_1', 'gradients/MatMul_2_grad/MatMul_1')
    """
    if not hasattr(result, "op"):  # eager tensors have none
        raise ValueError(f"result must be a symbolic tensor of a graph, got {result!r}")
    found, waiting = {}, [(result.op, False)]
    while waiting:  # no recursion, because a chain may be longer than Python's recursion limit
        operation, inputs_done = waiting.pop()
        if operation.type not in SUMS or operation.name in found:
            continue
        if inputs_done:
            inputs = tuple(tensor.op.name for tensor in operation.inputs)
            found[operation.name] = Node(operation.name, operation.type, inputs)
        else:
            waiting += [(operation, True), *((tensor.op, False) for tensor in reversed(list(operation.inputs)))]
    return list(found.values())


def depth(nodes: list[Node]) -> int:
    """Return the length of the longest chain of dependent additions in ``nodes`` (`sum_nodes`): 1 for one ``AddN``.

    Example:
        >>> depth([Node("s", "AddN", ("a", "b")), Node("t", "AddN", ("s", "c"))])
        2
    """
    levels = {}
    for node in nodes:
        levels[node.name] = 1 + max((levels.get(name, 0) for name in node.inputs), default=0)
    return max(levels.values(), default=0)
