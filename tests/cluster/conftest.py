"""What the tests of clusters share: a network beside this machine's, to look from."""

from outside import neighbour  # noqa: F401
