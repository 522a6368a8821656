"""Stand-ins for hosts: network namespaces on one machine, and one torchrun node in each."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.launching import TRAIN, environment, finish, started

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
    with ExitStack() as running:
        jobs = []
        for index, host in enumerate(hosts):
            command = [
                "ip", "netns", "exec", host, *(inside[index] if inside else ()),
                sys.executable, "-m", "torch.distributed.run",
                "--nnodes", str(len(hosts)), "--node-rank", str(index), "--nproc-per-node", "1",
                "--master-addr", FIRST_ADDRESS, "--master-port", "29500", str(TRAIN), *arguments,
            ]  # fmt: skip
            env = environment(GLOO_SOCKET_IFNAME="eth0", DDPDOCTOR_REPORT="0")
            jobs.append(running.enter_context(started(command, folder, env)))
        for job in jobs:
            _, err = job.communicate(timeout=90)
            assert job.returncode == 0, err
            assert "this launch has a fault" not in err
