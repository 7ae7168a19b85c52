"""The break-even ratio of allgather and allreduce, checked against simulated collectives."""

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.aggregation.allreduce_topologies import ring, summary
from dgc_lab.compression.break_even import BYTES_OF_A_HOP, break_even_ratio, dense_is_shorter, one_message_is_shorter

ELEMENTS = 840  # divisible by 2 to 8


@pytest.mark.parametrize("entry_bytes", [8, 6, 4])
@pytest.mark.parametrize("workers", range(2, 9))
def test_rule_agrees_with_simulated_ring_and_allgather(workers, entry_bytes):
    by_ring = summary(ring([np.zeros(ELEMENTS, np.float32)] * workers)[1])["busiest link"]
    for selected in range(0, ELEMENTS, 7):
        by_allgather = (workers - 1) * selected * entry_bytes  # each message crosses every link of the ring except one
        assert dense_is_shorter(selected / ELEMENTS, workers, entry_bytes) == (by_ring <= by_allgather), selected


@pytest.mark.parametrize("workers", [1, 2, 3, 64])
@pytest.mark.parametrize("entry_bytes", [8, 6, 4])
def test_dense_is_cheaper_from_the_break_even_ratio(workers, entry_bytes):
    ratio = break_even_ratio(workers, entry_bytes)
    assert ratio == 1 or dense_is_shorter(ratio * 1.0001, workers, entry_bytes)
    assert not dense_is_shorter(ratio * 0.9999, workers, entry_bytes)
    for number in (0.0, ratio * 0.9999, 1.0):
        assert bool(dense_is_shorter(tf.constant(number), workers, entry_bytes)) == (number == 1)


def test_zero_workers_are_rejected():
    with pytest.raises(ValueError, match="workers must be a whole number of at least 1, got 0"):
        break_even_ratio(0)


def test_a_ratio_of_25_percent_breaks_even_at_4_workers():
    """dgc.md: 25 % with 8 bytes per element."""
    assert [dense_is_shorter(0.25, workers) for workers in (2, 3, 4, 5)] == [False, False, True, True]
    assert not dense_is_shorter(0.001, 999)
    assert dense_is_shorter(0.001, 1000)


def test_joining_the_message_trades_hops_for_bytes():
    for workers in (2, 3, 8, 256):
        for whole in (0, 4000, 12_000, 40_000, 10**8):
            apart = 2 * (workers - 1) / workers * whole + 2 * (workers - 1) * BYTES_OF_A_HOP
            joined = (workers - 1) * whole
            assert one_message_is_shorter(whole, workers) == (joined <= apart)
