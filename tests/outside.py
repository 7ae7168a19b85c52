"""Access attempts from outside: from a neighbouring network and from another local user."""

import contextlib
import gc
import http.client
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import typing
from pathlib import Path

import psutil
import pytest

NOBODY = 65534
SECONDS, SECONDS_TO_GREET = 3, 30  # for a response; for a busy server's greeting
PRIVATE = ("/api/kernels", "/api/sessions", "/api/contents", "/api/terminals", "/lab", "/tree", "/")


def listening():
    """Return the listening ports in the calling process's network namespace."""
    return {entry.laddr.port for entry in psutil.net_connections("tcp") if entry.status == psutil.CONN_LISTEN}


def answering(places):
    """Return the (address, port) pairs that accept a connection from the calling process."""
    found = []
    for address, port in places:
        try:
            socket.create_connection((address, port), timeout=1).close()
        except OSError:
            continue
        found.append((address, port))
    return found


class Neighbour(typing.NamedTuple):
    """A network namespace connected to this machine: `answering` run there, and both ends of the link."""

    answering: typing.Callable
    cable: str
    here: list[str]
    there: list[str]


@pytest.fixture
def neighbour():
    """A `Neighbour` with addresses of its own: pytest's processes may have one each at the same time."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a network namespace with a cable to this one")
    if shutil.which("ip") is None:
        pytest.skip("the command ip is not installed")
    name, here, there = f"dgclab{os.getpid()}", f"dgh{os.getpid()}", f"dgn{os.getpid()}"
    number = os.getpid() % 2**14  # 10.213.0.0/16 holds so many networks of four addresses
    four, six = ipaddress.ip_address("10.213.0.0") + 4 * number, ipaddress.ip_address("fd6d:9c1::") + (number << 64)

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)

    try:
        for words in (
            ["netns", "add", name],
            ["netns", "exec", name, "true"],
            ["link", "add", here, "type", "veth", "peer", "name", there, "netns", name],
            ["address", "add", f"{four + 1}/30", "dev", here],
            ["-6", "address", "add", f"{six + 1}/64", "dev", here, "nodad"],
            ["link", "set", here, "up"],
            ["-n", name, "address", "add", f"{four + 2}/30", "dev", there],
            ["-n", name, "-6", "address", "add", f"{six + 2}/64", "dev", there, "nodad"],
            ["-n", name, "link", "set", "lo", "up"],
            ["-n", name, "link", "set", there, "up"],
            ["-n", name, "route", "add", "default", "via", f"{four + 1}"],
            ["-n", name, "-6", "route", "add", "default", "via", f"{six + 1}"],
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

        yield Neighbour(run, there, [str(four + 1), str(six + 1)], [str(four + 2), str(six + 2)])
    finally:
        ip("link", "delete", here)
        ip("netns", "delete", name)


def as_nobody(function, *arguments):
    """Run a function in a fork as another user; return its result or the name of its exception."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()  # a destructor in the fork could wait for a thread of the parent
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
    """Assert that no local address accepts connections to these ports, from any user or network."""
    family = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    ports = set(ports) - {
        entry.laddr.port
        for entry in psutil.net_connections("tcp")
        if entry.status == psutil.CONN_LISTEN and entry.pid not in family  # same number, other process
    }
    own = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries
           if entry.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    assert {"127.0.0.1", *neighbour.here} <= set(own)
    here = [(address, port) for address in own for port in sorted(ports)]
    assert answering(here) == []
    assert as_nobody(answering, here) == []

    def from_there(address):
        """Replace the interface in a link-local address by the neighbour's own."""
        bare = address.partition("%")[0]
        return f"{bare}%{neighbour.cable}" if ipaddress.ip_address(bare).is_link_local else address

    seen_there = sorted({from_there(address) for address in own} | set(neighbour.there))
    # Control: the neighbour can reach servers that listen at this machine's end of the link.
    with (
        socket.create_server((neighbour.here[0], 0)) as four,
        socket.create_server((neighbour.here[1], 0), family=socket.AF_INET6) as six,
    ):
        control = [listener.getsockname()[:2] for listener in (four, six)]
        assert neighbour.answering(control) == control
        assert as_nobody(answering, control) == control
    assert neighbour.answering([(address, port) for address in seen_there for port in sorted(ports)]) == []


# Probes of the ports, sockets, and files of processes ---------------------------------------------------------------


def listening_ports(family):
    """Map the listening TCP and unconnected UDP ports of processes to their addresses, in any network."""
    found = {}
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            for entry in process.net_connections("inet"):
                if entry.status == psutil.CONN_LISTEN or (entry.type == socket.SOCK_DGRAM and not entry.raddr):
                    found.setdefault(entry.laddr.port, set()).add(entry.laddr.ip)
    return found


def ports_in_all_networks(family):
    """Return the processes' listening ports, and all listening ports in their separate networks."""
    found, own = set(listening_ports(family)), os.readlink("/proc/self/ns/net")
    for process in family:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{process.pid}/ns/net") == own:
                continue
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                rows = [line.split() for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]]
                found |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    return found


def answer_of(port):
    """Return what a local port reveals without a key, or None."""
    try:
        with socket.create_connection(("127.0.0.1", port), SECONDS_TO_GREET) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            try:
                greeting = connection.recv(64)
            except TimeoutError:
                return "takes a connection, and waits"
            except OSError:
                greeting = b""  # the server closes the connection
    except OSError:
        return None
    if greeting.startswith(b"HTTP/"):
        return page_of(port)
    if greeting[:1] in (b"", b"\xff"):  # ZeroMQ closes the connection or sends its greeting
        return words_of(port)
    return f"takes a connection, and says {greeting!r}"


def page_of(port):
    """Return the first private page that a web server shows without a token, or None."""
    for path in PRIVATE:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        if status not in (302, 401, 403, 404, 405):
            return f"{path} is shown, status {status}"
    return None


def words_of(port):
    """Return what a kernel reveals without its key: printed output or a reply, else None."""
    import zmq
    from jupyter_client.session import Session

    with zmq.Context() as context, context.socket(zmq.SUB) as hears, context.socket(zmq.DEALER) as asks:
        hears.linger = asks.linger = 0
        hears.subscribe(b"")
        for each in (hears, asks):
            each.connect(f"tcp://127.0.0.1:{port}")
        question = Session(key=b"")
        with contextlib.suppress(zmq.Again):  # the socket accepts no requests
            asks.send_multipart(question.serialize(question.msg("kernel_info_request")), zmq.DONTWAIT)
        for each, words in ((hears, "hears"), (asks, "is answered")):
            if each.poll(1000 * SECONDS):
                return f"{words} {each.recv_multipart()[-1][:80]!r}"
    return None


def without_key(ports):
    """Map ports to what they reveal to the user nobody."""
    return {port: said for port in sorted(ports) if (said := as_nobody(answer_of, port)) is not None}


def sockets_with_names(family):
    """Return the processes' listening Unix sockets: paths and abstract names."""
    found = set()
    pids = {process.pid for process in family}
    for entry in psutil.net_connections("unix"):
        if entry.pid in pids and entry.laddr and not entry.raddr:
            found.add(entry.laddr)
    return found


def entered(names):
    """Return the Unix sockets that accept a connection."""
    found = []
    for name in names:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as tried, contextlib.suppress(OSError):
                tried.connect("\0" + name[1:] if name.startswith("@") else name)
                found.append(name)
    return found


def open_files(places):
    """List accessible files and writable folders below these paths."""
    found = []
    for place in places:
        for folder, _, names in os.walk(place):
            found += [folder] if os.access(folder, os.W_OK) else []
            for name in names:
                path = os.path.join(folder, name)
                if not os.path.islink(path) and (os.access(path, os.R_OK) or os.access(path, os.W_OK)):
                    found.append(path)
    return found
