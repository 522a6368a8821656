"""Records the samples anew, by real runs: `python sample_traces/record.py [NAME ...]` (as root).

Each sample is a folder of rank files as a run leaves them, the text of `ddpdoctor report` beside
them (`expected.txt`, rewritten by `pytest --update-expected`), and the command in `COMMAND`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ddpdoctor.events import DETAIL_RECORD, PREAMBLE, STEP_RECORD

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "programs" / "train.py"
JOB_SECONDS = 120
HEADER_SPACE = 4096
RECORD_BYTES = {"ring": DETAIL_RECORD.size, "detail": DETAIL_RECORD.size, "steps": STEP_RECORD.size}
INSTALLED = (HERE.parent, Path(torch.__file__).parents[2])  # ddpdoctor; what has site-packages
HANGS_AFTER = 12.0  # seconds after which the hanging job is killed


@dataclass(frozen=True)
class Sample:
    """How one sample is made: arguments of train.py, and on what kind of hosts."""

    arguments: str
    ranks: int = 2
    rate_mbit: int | None = None  # two hosts joined by a link of this rate
    hangs: bool = False


SAMPLES = {
    "healthy": Sample("--steps 30 --batch-size 4", ranks=4),
    "late-rank": Sample("--steps 30 --batch-size 4 --fault forward", ranks=4),
    "late-backward": Sample("--steps 40 --fault backward"),
    "input-bound": Sample("--steps 40 --load-ms 30 --batch-size 1"),
    "repeated-samples": Sample("--steps 40 --no-sampler"),
    "slow-link": Sample("--steps 25 --width 1024", rate_mbit=200),
    "hang": Sample("--steps 40 --fault hang", ranks=3, hangs=True),
}


def main(names: list[str]) -> None:
    for name in names or SAMPLES:
        record(name, SAMPLES[name])
        size = sum(path.stat().st_size for path in (HERE / name).iterdir())
        print(f"{name}: {size / 1000:.0f} kB", flush=True)


def record(name: str, sample: Sample) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as hosts:
        program = shutil.copy(PROGRAM, folder)
        command = [program, "--wrap", *sample.arguments.split()]
        if sample.rate_mbit is not None:
            namespaces = hosts.enter_context(linked_hosts(sample.rate_mbit))
            jobs = [on_link(namespaces, node, command) for node in range(2)]
        else:
            jobs = [on_one_host(sample.ranks, command)]
        run(jobs, Path(folder), hangs=sample.hangs)
        (attempt,) = Path(folder).glob("runs/*/attempt-0")
        keep(attempt, HERE / name, folder)
    shown = f"torchrun --nproc-per-node {sample.ranks} train.py --wrap {sample.arguments}\n"
    (HERE / name / "COMMAND").write_text(shown, encoding="utf-8")


def run(jobs: list[list[str]], folder: Path, *, hangs: bool) -> None:
    """Each job on a host of its own name; one that hangs is killed, ranks first."""
    environment = os.environ | {
        "DDPDOCTOR_DIR": str(folder / "runs"),
        "DDPDOCTOR_REPORT": "0",
        "OMP_NUM_THREADS": "1",
    }
    running = []
    for node, job in enumerate(jobs):
        named = f'hostname node{node} && exec "$@"'
        command = ["unshare", "--uts", "sh", "-c", named, "sh", *job]
        running.append(subprocess.Popen(command, cwd=folder, env=environment))
    if hangs:
        time.sleep(HANGS_AFTER)
        for job in running:
            kill_tree(job.pid)
    for job in running:
        status = job.wait(timeout=JOB_SECONDS)
        if status != 0 and not hangs:
            raise SystemExit(f"the job ended with status {status}")


def kill_tree(pid: int) -> None:
    """SIGKILL to the children, then to the process: what a scheduler does to a hung job."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    for child in children:
        kill_tree(int(child))
    os.kill(pid, signal.SIGKILL)


def keep(attempt: Path, sample: Path, folder: str) -> None:
    """Move the record here; paths of the temporary folder become relative.

    What the node was like is left out: its paths and addresses are nobody's business.
    """
    expected = sample / "expected.txt"
    said = expected.read_text(encoding="utf-8") if expected.exists() else ""
    shutil.rmtree(sample, ignore_errors=True)
    shutil.copytree(attempt, sample)
    for file in sample.glob("*.ddt"):
        shrink(file)
    for facts in sample.glob("*.jsonl"):
        text = facts.read_text(encoding="utf-8")
        for prefix in (folder, *INSTALLED):
            text = text.replace(f"{prefix}/", "")
        kept = [line for line in text.splitlines() if '"fact": "process"' not in line]
        facts.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    expected.write_text(said, encoding="utf-8")


def shrink(file: Path) -> None:
    """A rank that was killed leaves its reserved space behind: keep what was written."""
    raw = file.read_bytes()
    magic, schema, length = PREAMBLE.unpack(raw[: PREAMBLE.size])
    header = json.loads(raw[PREAMBLE.size : PREAMBLE.size + length])
    body, offset = b"", HEADER_SPACE
    for name, size in RECORD_BYTES.items():
        region = header[name]
        begin = region["offset"]
        content = raw[begin : begin + region["records"] * size].rstrip(b"\0")
        content += bytes(-len(content) % size)
        header[name] = {"offset": offset, "records": len(content) // size}
        body, offset = body + content, offset + len(content)
    text = json.dumps(header).encode()
    preamble = PREAMBLE.pack(magic, schema, len(text)) + text
    file.write_bytes(preamble.ljust(HEADER_SPACE, b"\0") + body)


@contextmanager
def linked_hosts(rate_mbit: int) -> Iterator[list[str]]:
    """Two network namespaces joined by a pair of interfaces, shaped in both directions."""
    names = [f"ddpdoctor-sample-{node}" for node in range(2)]
    with ExitStack() as cleanup:
        for name in names:
            ip(f"netns add {name}")
            cleanup.callback(ip, f"netns del {name}")
        ip(f"-n {names[0]} link add eth0 type veth peer name eth0 netns {names[1]}")
        for node, name in enumerate(names):
            ip(f"-n {name} link set lo up")
            ip(f"-n {name} addr add 10.77.0.{node + 1}/24 dev eth0")
            ip(f"-n {name} link set eth0 up")
            shape = f"root tbf rate {rate_mbit}mbit burst 64kb latency 100ms"
            subprocess.run(f"tc -n {name} qdisc add dev eth0 {shape}".split(), check=True)
        yield names


def ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def on_one_host(ranks: int, command: list[str]) -> list[str]:
    """By address: nobody resolves the name that the host has for the record."""
    return [
        "env", "GLOO_SOCKET_IFNAME=lo", sys.executable, "-m", "torch.distributed.run",
        "--master-addr=127.0.0.1", "--master-port=29500", f"--nproc-per-node={ranks}", *command,
    ]  # fmt: skip


def on_link(namespaces: list[str], node: int, command: list[str]) -> list[str]:
    return [
        "env", "GLOO_SOCKET_IFNAME=eth0", "ip", "netns", "exec", namespaces[node],
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}",
        "--nproc-per-node=1", "--master-addr=10.77.0.1", "--master-port=29500", *command,
    ]  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
