"""Lesson 1's pictures of the ring allreduce: they show what the simulation does."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from dgc_lab.aggregation import exchange, ring_step, ring_table, summary
from dgc_lab.aggregation.allreduce_topologies import bytes_by_link, ring_steps
from dgc_lab.ui.charts import PALETTE, png

# The digit in place w from the right comes from worker w, so the digits above 0 show whose gradients a part contains.
GRADIENTS = [np.float32([1, 2, 3, 4]) * 10**worker for worker in range(4)]


def texts(picture):
    return [text.get_text() for text in picture.figure.findobj(Text) if text.get_text()]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_ring_table_lists_the_messages_of_the_ring(workers):
    gradients = [np.arange(3.0 * workers + 1) * 10**worker for worker in range(workers)]
    _, messages = exchange(gradients, "ring")
    table = ring_table(gradients)
    columns = ["step", "from", "to", "bytes"]
    assert table[columns].values.tolist() == [[m.step + 1, m.sender, m.receiver, m.bytes] for m in messages]
    last = table.groupby(["from", "to"])["bytes on this link"].last()
    assert last.to_dict() == bytes_by_link(messages)
    assert table["bytes on this link"].max() == summary(messages)["busiest link"]


def test_ring_table_shows_partial_sums_and_their_workers():
    table = ring_table(GRADIENTS).set_index(["step", "from"])
    assert table.loc[[(1, 0), (2, 1), (3, 2), (4, 3)], "part"].tolist() == [0, 0, 0, 0]
    assert table.loc[[(1, 0), (2, 1), (3, 2), (4, 3)], "first element"].tolist() == [1, 11, 111, 1111]
    for (step, _), row in table.iterrows():
        assert row["workers"] == len(str(int(row["first element"])).replace("0", "")) == min(step, 4)


def test_ring_steps_end_with_the_sums_of_the_exchange():
    sums, messages = exchange(GRADIENTS, "ring")
    *_, (_, parts) = ring_steps(GRADIENTS)
    assert [np.concatenate(held).tolist() for held in parts] == [total.tolist() for total in sums]
    assert [m for sent, _ in ring_steps(GRADIENTS) for m in sent] == messages


@pytest.mark.parametrize("step", range(7))
def test_ring_picture_shows_the_parts_of_each_worker(step):
    _, parts = list(ring_steps(GRADIENTS))[step]
    cells = [float(text) for text in texts(ring_step(GRADIENTS, step)) if re.fullmatch(r"\d+", text)]
    assert cells == [part[0] for held in parts for part in held]


@pytest.mark.parametrize("step", range(1, 7))
def test_ring_picture_frames_the_parts_that_arrived(step):
    picture = ring_step(GRADIENTS, step)
    framed = [
        patch
        for patch in picture.figure.axes[0].patches
        if isinstance(patch, Rectangle) and patch.get_edgecolor() == to_rgba(PALETTE[1])
    ]
    assert len(framed) == 4
    labels = [text for text in texts(picture) if text.startswith("part ")]
    sent = ring_table(GRADIENTS).query("step == @step")
    assert labels == [f"part {part}\n{4 * step} bytes so far" for part in sent["part"]]


@pytest.mark.parametrize("step", range(1, 7))
def test_ring_alt_text_has_the_facts_of_the_step(step):
    alt, table = ring_step(GRADIENTS, step).alt, ring_table(GRADIENTS)
    held = list(ring_steps(GRADIENTS))[step][1]
    assert alt.startswith(f"Step {step} of 6")
    for row in table[table["step"] == step].itertuples():
        assert f"Worker {row._2} sends part {row.part} to worker {row.to}" in alt
        assert f"which then has {held[row.to][row.part][0]:.0f} there" in alt
    assert f"{4 * step} bytes on this link so far" in alt


def test_ring_picture_before_the_first_step_has_no_messages():
    picture = ring_step(GRADIENTS, 0)
    assert not [text for text in texts(picture) if text.startswith("part ")]
    assert "Worker 3 has 1000, 2000, 3000, 4000." in picture.alt


def test_ring_pictures_are_800_pixels_wide_or_less():
    width = int.from_bytes(png(ring_step(GRADIENTS, 2).figure)[16:20])
    assert 600 < width <= 800
    assert all(text.get_fontsize() >= 8 for text in ring_step(GRADIENTS, 2).figure.findobj(Text) if text.get_text())


@pytest.mark.parametrize("make", [ring_table, lambda gradients: ring_step(gradients, 1)])
@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ([np.ones(4)], "the number of gradients must be a whole number from 2 to 4, got 1"),
        ([np.ones(9)] * 5, "the number of gradients must be a whole number from 2 to 4, got 5"),
        ([np.ones(2)] * 3, "elements of gradients must be a whole number of at least 3, got 2"),
        ([np.ones(2), np.ones(3)], "gradients must have one shape"),
        ("gradients", "gradients must be a list, got 'gradients'"),
    ],
)
def test_ring_pictures_reject_invalid_gradients(make, gradients, message):
    with pytest.raises(ValueError, match=message):
        make(gradients)


@pytest.mark.parametrize("step", [-1, 7, 1.5, None])
def test_ring_picture_rejects_steps_that_do_not_exist(step):
    with pytest.raises(ValueError, match=r"step must be a whole number from 0 to 6, got "):
        ring_step(GRADIENTS, step)
