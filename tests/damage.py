"""Damaged input for decoders: valid examples with a few parts cut, repeated or replaced, and sometimes pure noise."""

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"9" * 30, b"18446744073709551616", b"2147483648", b"null", b"\x00")


@dataclass(frozen=True)
class Decoder:
    """Valid inputs, a function that decodes bytes in an empty folder, and the errors that reject an input.

    ``wrong`` takes the decoded value and the bytes, and returns a description of the problem, or None.
    """

    examples: tuple[bytes, ...]
    decode: object
    refuses: tuple[type[Exception], ...]
    wrong: object = lambda value, data: None

    def check(self, data):
        """Decode the bytes: the right value, or a documented refusal."""
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(*self.refuses):
            value = self.decode(data, Path(folder))
            assert self.wrong(value, data) is None, self.wrong(value, data)


@st.composite
def damaged(draw, examples):
    """Bytes of an example after up to five edits."""
    data = draw(st.sampled_from(examples))
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 300)))
        part = data[start:end]
        other = draw(st.sampled_from(examples))
        new = draw(
            st.one_of(
                st.binary(max_size=8),
                st.sampled_from(NUMBERS),
                st.sampled_from([b"", part * 2, part * 50]),
                st.integers(0, len(other)).map(lambda begin, text=other: text[begin : begin + 300]),
            )
        )
        data = data[:start] + new + data[end:]
    return data


def inputs(examples):
    """Mostly damaged examples, and some noise."""
    return st.one_of(damaged(examples), damaged(examples), damaged(examples), st.binary(max_size=500))


def written(folder, name, data):
    """A file with these bytes."""
    path = folder / name
    path.write_bytes(data)
    return path
