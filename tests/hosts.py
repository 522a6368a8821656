"""Stand-ins for hosts: network namespaces on one machine, and one torchrun node in each."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launching import TRAIN, Finished, environment, finish, started

FIRST_ADDRESS = "10.77.0.1"
SWITCH = Path(__file__).parent / "delay_switch.py"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="network namespaces need root")
needs_tun = pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="no TUN devices here")
needs_time_namespaces = pytest.mark.skipif(
    not Path("/proc/self/ns/time").exists() or shutil.which("unshare") is None,
    reason="no time namespaces here",
)


def ip(*arguments: str) -> None:
    done = finish(["ip", *arguments], Path("/"))
    assert done.status == 0, done.err


@contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Names of new network namespaces that have nothing but their own loopback."""
    names = [f"ddpdoctor-{os.getpid()}-{index}" for index in range(count)]
    with ExitStack() as cleanup:
        for name in names:
            ip("netns", "add", name)
            cleanup.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        yield names


def shape(host: str, interface: str, rate_mbit: float, *, burst: str = "64kb") -> None:
    """What leaves by this interface goes at the rate, in place of an earlier one."""
    words = f"qdisc replace dev {interface} root tbf rate {rate_mbit}mbit burst {burst}"
    shaped = finish(["tc", "-n", host, *words.split(), "latency", "100ms"], Path("/"))
    assert shaped.status == 0, shaped.err


@contextmanager
def linked(rate_mbit: float) -> Iterator[list[str]]:
    """Two namespaces, joined by a pair of interfaces of that rate in each direction."""
    with namespaces(2) as names:
        one, other = names
        ip("-n", one, *f"link add eth0 type veth peer name eth0 netns {other}".split())
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            shape(name, "eth0", rate_mbit)
        yield names


@contextmanager
def star(rates_mbit: Sequence[float]) -> Iterator[list[str]]:
    """A namespace for each rate, joined by a bridge: what it sends and gets goes at its rate."""
    with namespaces(len(rates_mbit) + 1) as (switch, *hosts):
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for number, (host, rate) in enumerate(zip(hosts, rates_mbit, strict=True), 1):
            port = f"p{number}"
            made = f"link add {port} type veth peer name eth0 netns {host}"
            ip("-n", switch, *made.split())
            ip("-n", switch, "link", "set", port, "master", "br0", "up")
            ip("-n", host, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
            shape(host, "eth0", rate)
            shape(switch, port, rate)
        yield hosts


@contextmanager
def far_apart(delay_ms: float, count: int = 2) -> Iterator[list[str]]:
    """Namespaces that packets take so long between, one way."""
    with namespaces(count) as names:
        command = [sys.executable, str(SWITCH), str(delay_ms), *names]
        with started(command, Path("/")) as switch:
            assert switch.stdout is not None
            if switch.stdout.readline() != "ready\n":
                pytest.fail(f"the switch did not start: {switch.communicate(timeout=10)[1]}")
            yield names


def train(
    hosts: Sequence[str], folder: Path, *arguments: str, inside: Sequence[Sequence[str]] = ()
) -> None:
    """One rank in each namespace, started together; `inside` puts a command before each."""
    for done in _one_each(hosts, folder, [str(TRAIN), *arguments], inside):
        assert done.status == 0, done.err
        assert "this launch has a fault" not in done.err


def check_network(hosts: Sequence[str], folder: Path) -> dict[str, Any]:
    """What `ddpdoctor check --network` of one rank in each namespace says."""
    words = ["-m", "ddpdoctor", "check", "--network", "--json", "--fail-on", "never"]
    done = _one_each(hosts, folder, words)
    said = [each.out for each in done if each.out.strip()]
    assert len(said) == 1, "\n".join(each.err for each in done)
    report: dict[str, Any] = json.loads(said[0])
    return report


def _one_each(
    hosts: Sequence[str], folder: Path, program: Sequence[str],
    inside: Sequence[Sequence[str]] = (),
) -> list[Finished]:  # fmt: skip
    with ExitStack() as running:
        jobs = []
        for index, host in enumerate(hosts):
            command = [
                "ip", "netns", "exec", host, *(inside[index] if inside else ()),
                sys.executable, "-m", "torch.distributed.run",
                "--nnodes", str(len(hosts)), "--node-rank", str(index), "--nproc-per-node", "1",
                "--master-addr", FIRST_ADDRESS, "--master-port", "29500", *program,
            ]  # fmt: skip
            env = environment(GLOO_SOCKET_IFNAME="eth0", DDPDOCTOR_REPORT="0")
            jobs.append(running.enter_context(started(command, folder, env)))
        ended = []
        for job in jobs:
            out, err = job.communicate(timeout=90)
            ended.append(Finished(job.returncode, out, err))
    return ended
