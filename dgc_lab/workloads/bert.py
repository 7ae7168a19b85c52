"""A small BERT: a transformer encoder that predicts masked words, with one table for input and output embeddings.

The embeddings are **tied**: the table's gradient is the sum of a sparse part for the words that were looked up
(``tf.IndexedSlices``) and a dense tensor. Sources: Devlin et al., arXiv:1810.04805 (BERT); Press, Wolf,
arXiv:1608.05859 (tied embeddings); Xiong et al., arXiv:2002.04745 (normalization before each layer, which can be
trained without Adam).
"""

from __future__ import annotations

import keras
from keras.initializers import GlorotUniform, TruncatedNormal

from dgc_lab.common import check_keras, check_whole
from dgc_lab.workloads.masked_words import guesses


@keras.saving.register_keras_serializable(package="dgc_lab")
class Positions(keras.layers.Layer):
    """Layer that adds a trained vector to each position of a sequence, without a lookup: (batch, length, width)."""

    def __init__(self, seed: int = 0, **options):
        super().__init__(**options)
        self.seed = seed

    def build(self, shape):
        self.table = self.add_weight(shape=tuple(shape[1:]), initializer=table_initializer(self.seed), name="table")

    def call(self, words):
        return words + self.table

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


def small_bert(
    vocabulary_size: int, length: int = 16, width: int = 64, layers: int = 2, heads: int = 4, seed: int = 0
) -> keras.Model:
    """Build an encoder that returns logits of masked words, small enough for two CPU cores.

    Args:
        vocabulary_size: number of words, at least 3.
        length: number of words in a sequence, at least 2.
        width: size of a word's vector, a multiple of heads.
        layers: number of attention and feed-forward blocks, at least 1.
        heads: number of attention heads, at least 1.
        seed: random seed of the initial weights, an integer.

    Returns:
        ``keras.Model``: (words int32 (batch, length), places int32 (batch, guesses)) in, logits float32 (batch,
        guesses, vocabulary_size) out. Only words at these places get logits, which saves most of the last product.

    Raises:
        ValueError: an argument is not in its range.

    Example:
        >>> model = small_bert(1000)
        >>> model.output_shape
        (None, 2, 1000)
    """
    check_keras()
    check_whole("vocabulary_size", vocabulary_size, 3, 10**6)
    check_whole("length", length, 2, 10_000)
    check_whole("seed", seed, 0, 2**31 // 1000)
    for name, value in {"width": width, "layers": layers, "heads": heads}.items():
        check_whole(name, value, 1, 10_000 if name == "width" else 100)
    if width % heads:
        raise ValueError(f"width must be a multiple of heads, {heads}, got {width}")
    seeds = iter(range(1000 * seed, 1000 * seed + 999))
    words = keras.Input((length,), dtype="int32", name="words")
    places = keras.Input((guesses(length),), dtype="int32", name="places")
    table = keras.layers.ReversibleEmbedding(
        vocabulary_size, width, embeddings_initializer=table_initializer(next(seeds)), name="words_table"
    )
    x = keras.layers.LayerNormalization(name="norm_words")(Positions(next(seeds), name="positions")(table(words)))
    for number in range(layers):
        x = x + attention(keras.layers.LayerNormalization(name=f"norm{number}a")(x), heads, number)
        x = x + feed_forward(keras.layers.LayerNormalization(name=f"norm{number}b")(x), number, seeds)
    x = keras.ops.take_along_axis(x, keras.ops.expand_dims(places, -1), axis=1)
    x = keras.layers.Dense(width, "gelu", kernel_initializer=GlorotUniform(next(seeds)), name="head")(x)
    logits = table(keras.layers.LayerNormalization(name="norm_head")(x), reverse=True)
    model = keras.Model((words, places), logits, name="small_bert")
    for variable in model.trainable_variables:  # Keras gives all four kernels of an attention the same values
        if "attention" in variable.path and variable.path.endswith("kernel"):
            variable.assign(GlorotUniform(next(seeds))(variable.shape))
    return model


def attention(x, heads: int, number: int):
    """Apply self-attention: each word's vector becomes a mean of all words' vectors, weighted by relevance."""
    return keras.layers.MultiHeadAttention(heads, x.shape[-1] // heads, name=f"attention{number}")(x, x)


def feed_forward(x, number: int, seeds):
    """Apply the same small network to each word's vector, with a hidden layer four times as wide."""
    width = x.shape[-1]
    x = keras.layers.Dense(4 * width, "gelu", kernel_initializer=GlorotUniform(next(seeds)), name=f"wide{number}")(x)
    return keras.layers.Dense(width, kernel_initializer=GlorotUniform(next(seeds)), name=f"narrow{number}")(x)


def table_initializer(seed: int):
    """Return BERT's initializer, but five times as large, because SGD does not adapt its step size to each weight."""
    return TruncatedNormal(stddev=0.1, seed=seed)
