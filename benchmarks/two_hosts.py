"""Run two programs as if on two hosts, joined by a link of a chosen bandwidth: Linux namespaces, a veth pair and tc.

``unshare`` gives each program its own network, mounts and host name. The namespaces have no names or files, so the
kernel removes them and the link when the programs end, whatever the reason.

    with TwoHosts([command, command], environments) as hosts:
        hosts.limit(100e6)  # bits per second
        first, second = hosts.ask({"steps": 3}, {"steps": 3})

Needs root, or root in a user namespace (``unshare --user --map-root-user``), and Debian's iproute2 and util-linux.
Sources: ``network_namespaces(7)``, ``veth(4)``, ``tc-tbf(8)``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ADDRESSES, NETWORK = ("10.255.0.1", "10.255.0.2"), "10.255.0.0/30"
NAMES = ("host0", "host1")
DEVICE = "link0"
APART = ("unshare", "--net", "--mount", "--uts")
# Largest burst, in seconds of the bandwidth and in bytes. With a larger bucket, a whole compressed gradient would pass
# as if there were no limit.
BURST_SECONDS, LEAST_BURST = 250e-6, 2 * 1514
QUEUE = "400ms"  # shorter queues lose packets, which are retransmitted after 200 ms or more
SECONDS_TO_END = 5
# Waits for the link, and then becomes the program.
ENTRANCE = """
hostname "$1" && mount --bind "$2" /etc/hosts || exit
echo ready
read -r go && shift 2 && exec "$@"
"""


class HostFailed(RuntimeError):
    """Error raised if a program ended or could not start; the message has the end of its output."""


def why_not() -> str | None:
    """Return why this machine does not support this, or None if it does."""
    for tool in ("unshare", "nsenter", "ip", "tc", "mount"):
        if shutil.which(tool) is None:
            return f"the command {tool} is not installed (Debian: iproute2, util-linux)"
    script = f"ip link add {DEVICE} type veth peer name other && ip link set {DEVICE} up"
    script += (
        f" && ip route add {NETWORK} dev {DEVICE} congctl cubic && tc qdisc add dev {DEVICE} root tbf {bucket(1e8)}"
    )
    tried = subprocess.run([*APART, "sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    return (tried.stderr.strip() or f"unshare ended with {tried.returncode}") if tried.returncode else None


def bucket(bits: float) -> str:
    """Return the arguments of ``tc``'s token bucket for a bandwidth in bits per second.

    Example:
        >>> bucket(1e9)
        'rate 1000000000bit burst 31250 latency 400ms'
    """
    burst = max(LEAST_BURST, round(bits / 8 * BURST_SECONDS))
    return f"rate {bits:.0f}bit burst {burst} latency {QUEUE}"


class TwoHosts(contextlib.ExitStack):
    """Two running programs that answer requests: one line of JSON on standard input, one on standard output.

    Args:
        commands: both programs' command lines.
        environments: additional environment variables of each.

    Raises:
        HostFailed: a program has ended, at the start or in `ask`.
    """

    def __init__(self, commands, environments):
        super().__init__()
        self.commands, self.environments, self.programs = commands, environments, []

    def __enter__(self):
        with contextlib.ExitStack() as undo:  # cleans up after a failed start
            self._start(undo)
            self.push(undo.pop_all())
        return self

    def _start(self, undo):
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="dgc_lab-hosts-")))
        pairs = zip(ADDRESSES, NAMES, strict=True)
        # A host's own name must resolve to its address on the link, not to 127.0.0.1 as on most machines.
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for a, name in pairs))
        for name, command, environment in zip(NAMES, self.commands, self.environments, strict=True):
            log = undo.enter_context((folder / f"{name}.log").open("w+b"))
            program = subprocess.Popen(
                [*APART, "sh", "-c", ENTRANCE, "sh", name, str(folder / "hosts"), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **environment},
            )
            program.log = log
            self.programs.append(program)
            undo.callback(self._end, program)
        for program in self.programs:
            if self._line(program) != "ready\n":
                raise self._failure(program)
        other = str(self.programs[1].pid)
        self.inside(0, "ip", "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", other)
        for number, address in enumerate(ADDRESSES):
            self.inside(number, "ip", "addr", "add", f"{address}/30", "dev", DEVICE)
            for device in ("lo", DEVICE):
                self.inside(number, "ip", "link", "set", device, "up")
            # Linux's default; the machine, and with it new networks, may be configured differently.
            self.inside(number, "ip", "route", "change", NETWORK, "dev", DEVICE, "congctl", "cubic")
        for program in self.programs:
            self._say(program, "go")

    def inside(self, number: int, *command: str) -> str:
        """Run a command in the network of one host, and return its output.

        Raises:
            HostFailed: the command failed.
        """
        return run("nsenter", "--target", str(self.programs[number].pid), "--net", *command)

    def limit(self, bits: float | None) -> None:
        """Limit the bandwidth in each direction to ``bits`` per second; None for no limit.

        Example of a command: ``tc qdisc replace dev link0 root tbf rate 100mbit burst 3125 latency 400ms``.
        """
        for number in range(2):
            if bits is None:
                # If there is no limit, there is nothing to remove.
                if "tbf" in self.inside(number, "tc", "qdisc", "show", "dev", DEVICE):
                    self.inside(number, "tc", "qdisc", "del", "dev", DEVICE, "root")
            else:
                self.inside(number, "tc", "qdisc", "replace", "dev", DEVICE, "root", "tbf", *bucket(bits).split())

    def ask(self, *orders: dict) -> list[dict]:
        """Send each program its request, all at once, and return their answers.

        Raises:
            HostFailed: a program ended.
        """
        for program, order in zip(self.programs, orders, strict=True):
            self._say(program, json.dumps(order))
        answers = []
        for program in self.programs:
            line = self._line(program)
            if not line:
                raise self._failure(program)
            answers.append(json.loads(line))
        return answers

    def _say(self, program, line):
        try:
            program.stdin.write(line + "\n")
            program.stdin.flush()
        except BrokenPipeError:
            raise self._failure(program) from None

    def _line(self, program):
        return program.stdout.readline()

    def _failure(self, program):
        number = self.programs.index(program)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(1)
        program.log.seek(0)
        output = program.log.read().decode(errors="replace")[-3000:]
        return HostFailed(f"{NAMES[number]} ended with {program.poll()}:\n{output}")

    def _end(self, program):
        """Close the program's input, which asks it to end, and kill it if it does not."""
        with contextlib.suppress(BrokenPipeError):
            program.stdin.close()
        try:
            program.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
        program.stdout.close()


def run(*command: str) -> str:
    """Run a command and return its output; raise HostFailed with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise HostFailed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
