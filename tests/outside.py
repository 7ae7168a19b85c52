"""Who tries to reach a cluster from outside its network: a network beside this machine's, and another user here."""

import ipaddress
import os
import shutil
import socket
import subprocess
import sys

import psutil
import pytest

NOBODY = 65534


def listening():
    """Ports that something listens on in the network of the process that calls this."""
    return {entry.laddr.port for entry in psutil.net_connections("tcp") if entry.status == psutil.CONN_LISTEN}


def answering(places):
    """Which of these (address, port) take a connection, tried from the process that calls this."""
    import socket

    found = []
    for address, port in places:
        try:
            socket.create_connection((address, port), timeout=1).close()
        except OSError:
            continue
        found.append((address, port))
    return found


@pytest.fixture
def neighbour():
    """Another network beside this machine's, joined to it by a cable; gives a function that runs Python there."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a network namespace with a cable to this one")
    if shutil.which("ip") is None:
        pytest.skip("the command ip is not here")
    name, here, there = f"dgclab{os.getpid()}", f"dgh{os.getpid()}", f"dgn{os.getpid()}"

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)

    try:
        for words in (
            ["netns", "add", name],
            ["netns", "exec", name, "true"],
            ["link", "add", here, "type", "veth", "peer", "name", there, "netns", name],
            ["address", "add", "10.213.77.1/30", "dev", here],
            ["-6", "address", "add", "fd6d:9c1::1/64", "dev", here, "nodad"],
            ["link", "set", here, "up"],
            ["-n", name, "address", "add", "10.213.77.2/30", "dev", there],
            ["-n", name, "-6", "address", "add", "fd6d:9c1::2/64", "dev", there, "nodad"],
            ["-n", name, "link", "set", "lo", "up"],
            ["-n", name, "link", "set", there, "up"],
            ["-n", name, "route", "add", "default", "via", "10.213.77.1"],
            ["-n", name, "-6", "route", "add", "default", "via", "fd6d:9c1::1"],
        ):
            done = ip(*words)
            if done.returncode:
                pytest.skip(f"ip {' '.join(words)}: {done.stderr.strip()}")

        def run(places):
            program = f"from outside import answering; print(answering({places!r}))"
            command = ["ip", "netns", "exec", name, sys.executable, "-c", program]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=True)
            return eval(done.stdout)

        yield run, there
    finally:
        ip("link", "delete", here)
        ip("netns", "delete", name)


def as_nobody(function, *arguments):
    """What a function returns in a fork of this process that belongs to another user; its class, where it raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = repr(function(*arguments))
        except BaseException as error:
            answer = repr(type(error).__name__)
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return eval(said)


def assert_nobody_reaches(ports, neighbour):
    """No port of those answers at any address of this machine: to this user, to another one, to the network beside."""
    elsewhere, cable = neighbour
    own = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries
           if entry.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    assert {"127.0.0.1", "10.213.77.1", "fd6d:9c1::1"} <= set(own)
    here = [(address, port) for address in own for port in sorted(ports)]
    assert answering(here) == []
    assert as_nobody(answering, here) == []

    def from_there(address):
        """A link-local address names the interface that leads to it, here another one than there."""
        bare = address.partition("%")[0]
        return f"{bare}%{cable}" if ipaddress.ip_address(bare).is_link_local else address

    seen_there = sorted({from_there(address) for address in own} | {"10.213.77.2", "fd6d:9c1::2"})
    # The cable is no illusion: what does listen at this machine's end of it answers there.
    with (
        socket.create_server(("10.213.77.1", 0)) as four,
        socket.create_server(("fd6d:9c1::1", 0), family=socket.AF_INET6) as six,
    ):
        control = [listener.getsockname()[:2] for listener in (four, six)]
        assert elsewhere(control) == control
        assert as_nobody(answering, control) == control
    assert elsewhere([(address, port) for address in seen_there for port in sorted(ports)]) == []
