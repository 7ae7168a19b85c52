"""A small BERT: a transformer's encoder that guesses masked words, with one table for reading words and naming them.

The table is **tied**: its gradient has a part of rows that are looked up (``tf.IndexedSlices``) and a whole tensor.
Sources: Devlin et al., arXiv:1810.04805 (BERT); Press, Wolf, arXiv:1608.05859 (tied tables); Xiong et al.,
arXiv:2002.04745 (normalization before each layer, which trains without Adam's care).
"""

from __future__ import annotations

import keras
from keras.initializers import GlorotUniform, TruncatedNormal

from dgc_lab.common import check_whole
from dgc_lab.workloads.masked_words import guesses


@keras.saving.register_keras_serializable(package="dgc_lab")
class Positions(keras.layers.Layer):
    """Add a trained vector for each place of a sequence, without a lookup: (batch, length, width) to the same shape."""

    def __init__(self, seed: int = 0, **options):
        super().__init__(**options)
        self.seed = seed

    def build(self, shape):
        self.table = self.add_weight(shape=tuple(shape[1:]), initializer=normal(self.seed), name="table")

    def call(self, words):
        return words + self.table

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


def small_bert(
    vocabulary_size: int, length: int = 16, width: int = 64, layers: int = 2, heads: int = 4, seed: int = 0
) -> keras.Model:
    """An encoder with masked-word logits, small enough for two CPU cores.

    Args:
        vocabulary_size: at least 3 words.
        length: words in a sequence, at least 2.
        width: numbers in a word's vector, a multiple of heads.
        layers: attention and feed-forward blocks, at least 1.
        heads: of the attention, at least 1.
        seed: integer from which first weights are drawn.

    Returns:
        ``keras.Model``: (words int32 (batch, length), places int32 (batch, guesses)) in, logits float32 (batch,
        guesses, vocabulary_size) out: of the words at those places alone, which saves most of the last product.

    Raises:
        ValueError: an argument is not as said above.

    Example:
        >>> model = small_bert(1000)
        >>> model.output_shape
        (None, 2, 1000)
    """
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
        vocabulary_size, width, embeddings_initializer=normal(next(seeds)), name="words_table"
    )
    x = keras.layers.LayerNormalization(name="norm_words")(Positions(next(seeds), name="positions")(table(words)))
    for number in range(layers):
        x = x + attention(keras.layers.LayerNormalization(name=f"norm{number}a")(x), heads, number)
        x = x + feed_forward(keras.layers.LayerNormalization(name=f"norm{number}b")(x), number, seeds)
    x = keras.ops.take_along_axis(x, keras.ops.expand_dims(places, -1), axis=1)
    x = keras.layers.Dense(width, "gelu", kernel_initializer=GlorotUniform(next(seeds)), name="head")(x)
    logits = table(keras.layers.LayerNormalization(name="norm_head")(x), reverse=True)
    model = keras.Model((words, places), logits, name="small_bert")
    for variable in model.trainable_variables:  # Keras gives all four of an attention the same first numbers
        if "attention" in variable.path and variable.path.endswith("kernel"):
            variable.assign(GlorotUniform(next(seeds))(variable.shape))
    return model


def attention(x, heads: int, number: int):
    """Each word's vector becomes a mean of all words' vectors, weighted by how much they have to do with each other."""
    return keras.layers.MultiHeadAttention(heads, x.shape[-1] // heads, name=f"attention{number}")(x, x)


def feed_forward(x, number: int, seeds):
    """The same small network for each word's vector: four times as wide, and back."""
    width = x.shape[-1]
    x = keras.layers.Dense(4 * width, "gelu", kernel_initializer=GlorotUniform(next(seeds)), name=f"wide{number}")(x)
    return keras.layers.Dense(width, kernel_initializer=GlorotUniform(next(seeds)), name=f"narrow{number}")(x)


def normal(seed: int):
    """First weights of a table: as in BERT, but five times as large, for SGD has no step size of its own for each."""
    return TruncatedNormal(stddev=0.1, seed=seed)
