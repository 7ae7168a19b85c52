"""Measured steps over slow links, the cost model fitted to them, and the emulated pair of hosts."""

import contextlib
import dataclasses
import os
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from dgc_lab.scaling.calibration import Measured
from dgc_lab.scaling.tables import exchanges, fit_links, link_rows, measured_links

sys.path.insert(0, str(ROOT / "benchmarks"))

from bench_link import PLAIN, SHORT, commands, environments, meet, train
from two_hosts import HostFailed, TwoHosts, why_not

STATED_ERROR = 0.25  # of a step over a held-out link


# The shipped rows ---------------------------------------------------------------------------------------------------


def test_every_link_has_each_configuration_once():
    rows = link_rows()
    keys = [(row["link"], row["method"], row["ratio"], row["values"], row["indices"]) for row in rows]
    assert len(set(keys)) == len(keys)
    ways = {link: {key[1:] for key in keys if key[0] == link} for link in {key[0] for key in keys}}
    assert set(ways) == {"10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "unlimited"}
    assert len({frozenset(every) for every in ways.values()}) == 1


def test_wire_bytes_barely_exceed_the_bytes_sent():
    for row in link_rows():
        if row["collective"] is None:
            assert row["payload_bytes"] == 0
            assert row["wire_bytes"] < 20_000, "Horovod's coordination traffic only"
        else:
            assert row["payload_bytes"] <= row["wire_bytes"] <= 1.1 * row["payload_bytes"] + 20_000


def test_steps_take_at_least_the_transfer_time():
    limited = [row for row in link_rows() if row["bandwidth"] and row["collective"]]
    assert limited
    for row in limited:
        assert row["ms"] / 1000 > 0.95 * row["wire_bytes"] / row["bandwidth"]


def test_table_has_every_row_and_dense_is_the_baseline():
    table = measured_links(link_rows())
    assert len(table) == len(link_rows())
    dense = table[table["method"] == "dense"]
    assert (dense["times as fast as dense"] == 1).all()
    assert table["link"].drop_duplicates().tolist() == ["10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "unlimited"]


def errors_on_unseen_links():
    """Return (modelled - measured) / measured of each step, with the model fitted on the other links only."""
    errors = []
    for link, every in exchanges(link_rows()).items():
        found = fit_links(link_rows(), left_out=link)
        for row in every:
            seconds = dataclasses.replace(found, bandwidth=row.bandwidth).seconds(*row.hops_and_bytes)
            errors.append((seconds - row.seconds) / row.step)
    return errors


def test_model_predicts_held_out_links():
    assert len(errors_on_unseen_links()) == sum(map(len, exchanges(link_rows()).values()))
    assert 0 < max(map(abs, errors_on_unseen_links())) < STATED_ERROR
    assert 0.8 < fit_links(link_rows()).efficiency <= 1.05


def test_model_predicts_whether_compression_pays():
    """Checks every step that differs from the dense one by more than the model's error."""
    rows, checked = link_rows(), 0
    found = fit_links(rows)
    largest_error = max(map(abs, errors_on_unseen_links()))
    for link in {row["link"] for row in rows}:
        here = [row for row in rows if row["link"] == link]
        [nothing] = [row["ms"] for row in here if row["method"] == "no exchange"]

        def modelled(row, nothing=nothing):
            bandwidth = row["bandwidth"] or float("inf")
            exchange = Measured(row["collective"], 2, row["payload_bytes"], bandwidth, 1.0)
            link = dataclasses.replace(found, bandwidth=bandwidth)
            return nothing + row["selection_ms"] + 1000 * link.seconds(*exchange.hops_and_bytes)

        [dense] = [row for row in here if row["method"] == "dense"]
        for row in here:
            gain = dense["ms"] / row["ms"]
            if row["collective"] == "allgather" and abs(gain - 1) > largest_error:
                checked += 1
                assert (modelled(dense) / modelled(row) > 1) == (gain > 1), row
    assert checked >= 18, "too few steps were checked"


# Two hosts ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def namespaces():
    """Skip the test if this machine cannot create network namespaces."""
    reason = why_not()
    if reason:
        pytest.skip(f"no two hosts here: {reason}")


def networks(mark=""):
    """Return the network namespaces of all processes whose environment contains `mark`."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.add(os.readlink(process / "ns" / "net"))
        except OSError:
            continue  # the process has exited
    return found


@pytest.mark.parametrize("ending", [KeyboardInterrupt, HostFailed])
def test_two_hosts_leave_no_processes_or_networks(namespaces, ending, tmp_path):
    mark = {"WHOSE": str(tmp_path)}
    hosts, own = TwoHosts([["cat"]] * 2, [mark] * 2), set()
    with contextlib.ExitStack() as held:
        with pytest.raises(ending):
            work_until(ending, hosts, own, held)
        assert not own & networks()
    assert networks(mark["WHOSE"]) == set()
    assert all(program.poll() is not None for program in hosts.programs)


def work_until(ending, hosts, own, held):
    with hosts:
        for program in hosts.programs:
            network = Path(f"/proc/{program.pid}/ns/net")
            own.add(os.readlink(network))
            held.enter_context(network.open())  # until it is closed, no new network gets its number
        assert len(own) == 2
        assert hosts.ask({"a": 1}, {"b": [2]}) == [{"a": 1}, {"b": [2]}]
        assert own <= networks(hosts.environments[0]["WHOSE"])  # the environment is empty until exec
        hosts.limit(1e6)
        assert "rate 1Mbit" in hosts.inside(1, "tc", "qdisc")
        hosts.limit(None)
        assert "tbf" not in hosts.inside(0, "tc", "qdisc")
        if ending is KeyboardInterrupt:
            raise KeyboardInterrupt
        hosts.programs[1].kill()
        hosts.ask({}, {})


def test_failed_start_is_reported_and_leaves_nothing(namespaces, tmp_path):
    mark = {"WHOSE": str(tmp_path)}
    hosts = TwoHosts([["no such program"], ["cat"]], [mark] * 2)
    with pytest.raises(HostFailed, match=r"host0 ended with 127"), hosts:
        hosts.ask({}, {})
    assert networks(mark["WHOSE"]) == set()


@pytest.mark.nightly
@pytest.mark.alone  # longer steps include more of Horovod's coordination traffic
def test_two_ranks_train_over_a_slow_link(namespaces, horovod):
    """Compares the link's byte counter and checks that the bandwidth limit takes effect."""
    bits, ways = 20e6, {"dense": ("dense", 1.0, PLAIN), "DGC": ("DGC", 0.01, SHORT)}
    with TwoHosts(commands(), environments()) as hosts:
        meet(hosts, "digits", 16)
        own = {os.readlink(f"/proc/{program.pid}/ns/net") for program in hosts.programs}
        fast = {name: train(hosts, way, 10, 3) for name, way in ways.items()}
        hosts.limit(bits)
        slow = {name: train(hosts, way, 6, 2) for name, way in ways.items()}
    assert not own & networks()
    assert fast["dense"][0]["payload_bytes"] == 4 * 38_282 + 24
    for ranks in (*fast.values(), *slow.values()):
        assert ranks[0]["loss"] == ranks[1]["loss"]
        for rank in ranks:
            assert rank["payload_bytes"] < rank["wire_bytes"] < 1.1 * rank["payload_bytes"] + 20_000
    for rank in slow["dense"]:
        least = 8000 * rank["payload_bytes"] / bits  # milliseconds
        assert least < min(rank["ms"])
    assert fast["DGC"][0]["wire_bytes"] < fast["dense"][0]["wire_bytes"] / 5
