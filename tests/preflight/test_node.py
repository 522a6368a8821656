"""What a node tells: limits, ports, devices, interfaces, the launcher's variables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddpdoctor.checkup import node_launch
from ddpdoctor.errors import BadLaunch
from ddpdoctor.launchfacts import MOST_BYTES, UNLIMITED, Device, InterfaceKind, Process
from ddpdoctor.preflight.devices import visible_devices
from ddpdoctor.preflight.interfaces import network, resolve
from ddpdoctor.preflight.launcher import expand_nodes, launch_of
from ddpdoctor.preflight.limits import limits
from ddpdoctor.preflight.ports import holder_of
from ddpdoctor.processfacts import decoded, encoded


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def mounted(root: Path, *controllers: str) -> dict[str, str]:
    """Of a version 1 hierarchy for each controller; without any, version 2."""
    folder = f"{root}/sys/fs/cgroup"
    lines = [f"1 1 0:1 / {folder}/{each} rw - cgroup cgroup rw,{each}\n" for each in controllers]
    unified = f"1 1 0:1 / {folder} rw - cgroup2 cgroup2 rw\n"
    return {"proc/self/mountinfo": "".join(lines) or unified}


def test_the_least_limit_of_nested_cgroups_counts(tmp_path: Path) -> None:
    root = write(tmp_path, mounted(tmp_path) | {
        "proc/self/cgroup": "0::/pod/job\n",
        "sys/fs/cgroup/pod/job/memory.max": "max\n",
        "sys/fs/cgroup/pod/memory.max": "1073741824\n",
        "sys/fs/cgroup/pod/job/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/pod/pids.max": "512\n",
        "sys/fs/cgroup/pids.max": "4096\n",
        "dev/shm/of_a_job": "",
    })  # fmt: skip

    found = limits(root)

    assert (found.memory_bytes, found.cpu_quota, found.processes) == (2**30, 1.5, 512)
    assert found.shm_bytes  # of the file system that the folder lies on


def test_limits_of_the_first_version_of_cgroups(tmp_path: Path) -> None:
    root = write(tmp_path, mounted(tmp_path, "memory", "cpu,cpuacct") | {
        "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2147483648\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip

    found = limits(root)

    assert (found.memory_bytes, found.cpu_quota) == (2**31, 2.0)
    assert found.shm_bytes is None


def test_without_a_quota_there_is_none(tmp_path: Path) -> None:
    root = write(tmp_path, mounted(tmp_path) | {
        "proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n",
    })  # fmt: skip

    assert limits(root).cpu_quota is None
    assert 0 < (limits().open_files or 0) <= UNLIMITED


def test_who_listens_on_a_port_is_named() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]

        holder = holder_of(port)

        assert holder is not None
        assert holder.pid == os.getpid()
        assert "python" in (holder.command or "")
    assert holder_of(port) is None


GPUS = {
    "0000:07:00.0/information": "Model:\t NVIDIA H100\nGPU UUID:\t GPU-aa\nDevice Minor:\t 0\n",
    "0000:0a:00.0/information": "Model:\t NVIDIA H100\nGPU UUID:\t GPU-bb\nDevice Minor:\t 1\n",
    "0000:0b:00.0/information": "Model:\t NVIDIA H100\nGPU UUID:\t GPU-cc\nDevice Minor:\t 2\n",
}
A, B, C = (Device(f"GPU-{each}", "NVIDIA H100") for each in ("aa", "bb", "cc"))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (A, B, C)),
        ("1", (B,)),
        ("2,0", (C, A)),
        ("GPU-bb", (B,)),
        ("", ()),
        ("0,9,1", (A,)),  # CUDA stops at the first that is none
        ("MIG-1234", (Device("MIG-1234"),)),
    ],
)
def test_visible_devices(visible: str | None, expected: tuple[Device, ...], tmp_path: Path) -> None:
    driver = write(tmp_path / "gpus", GPUS)
    nodes = write(tmp_path / "dev", {f"nvidia{number}": "" for number in range(3)})
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert visible_devices(variables, driver, nodes) == expected


def test_gpus_of_the_host_that_a_container_may_not_open_are_not_visible(tmp_path: Path) -> None:
    driver = write(tmp_path / "gpus", GPUS)
    nodes = write(tmp_path / "dev", {"nvidia1": ""})

    assert visible_devices({}, driver, nodes) == (B,)


def test_loopback_is_among_the_interfaces() -> None:
    (loopback,) = [each for each in network().interfaces if each.name == "lo"]

    assert (loopback.kind, loopback.address) == (InterfaceKind.LOOPBACK, "127.0.0.1")


def test_a_name_that_is_unknown_resolves_to_nothing_in_bounded_time() -> None:
    began = time.monotonic()

    assert resolve("no-such-host.invalid", timeout_s=0.5) == ()
    assert time.monotonic() - began < 30  # and not for as long as a resolver may take


@pytest.mark.parametrize(
    ("nodelist", "expected"),
    [
        ("node[01-03,7],login", ("node01", "node02", "node03", "node7", "login")),
        ("a1,b", ("a1", "b")),
        ("", ()),
        ("x[1-", ()),
    ],
)
def test_nodes_of_slurm(nodelist: str, expected: tuple[str, ...]) -> None:
    assert expand_nodes(nodelist) == expected


def test_a_lying_nodelist_is_bounded() -> None:
    assert len(expand_nodes("n[0-9999999]," * 50)) <= 4096


def test_under_srun_alone_the_tasks_are_the_ranks() -> None:
    launch = launch_of({
        "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
        "SLURM_JOB_NODELIST": "gpu[1-4]", "SLURM_JOB_ID": "17",
    })  # fmt: skip

    assert (launch.rank, launch.world_size, launch.local_rank) == (3, 8, 1)
    assert (launch.address, launch.port) == ("gpu1", 29500)
    assert launch.meets


@pytest.mark.parametrize(
    ("nodes", "rank", "endpoint"),
    [(2, None, "a:1"), (2, 2, "a:1"), (None, 0, "a:1"), (2, 0, None), (2, 0, "a"),
     (2, 0, ":29500"), (2, 0, "a:99999"), (2, 0, "a:0"), (2, 0, "a:" + "9" * 5000)],
)  # fmt: skip
def test_nodes_that_cannot_meet(nodes: int | None, rank: int | None, endpoint: str | None) -> None:
    with pytest.raises(BadLaunch):
        node_launch(nodes, rank, endpoint)


def test_facts_too_large_for_the_store_lose_their_hashes_first() -> None:
    code = {f"{number}.py": "a" * 16 for number in range(5000)}
    own = Process("node0", 1, "boot", rank=1, environment={"NCCL_DEBUG": "INFO"}, code=code)

    sent = encoded(own)
    read = decoded(sent)

    assert len(sent) <= MOST_BYTES
    assert read is not None
    assert (read.rank, read.environment, read.code) == (1, {"NCCL_DEBUG": "INFO"}, {})


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"host": 1}', b"[" * 50_000, b"x" * (MOST_BYTES + 1),
     b'{"host": "a", "pid": 1, "network_id": "", "rank": -1}',
     b'{"host": "a", "pid": 1, "network_id": "", "world_size": 99999999}'],
)  # fmt: skip
def test_reports_that_cannot_be_are_left_out(content: bytes) -> None:
    assert decoded(content) is None


def test_checking_a_node_loads_neither_torch_nor_tables(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['ddpdoctor', 'check']; from ddpdoctor import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'plotly', 'dash'}\n"
        "sys.stderr.write(', '.join(sorted(heavy & set(sys.modules))))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path,
    )  # fmt: skip

    assert done.stderr == ""
    assert "this node alone" in done.stdout
