"""Predicted against measured gain of five fixes: `python -m benchmarks.gain [--json]`. Needs root.

Two network namespaces, joined by links that tbf shapes. A recorded run predicts what each fix
gains; then the training is run with and without it, unrecorded, and timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from ddpdoctor import analyze, load_run
from ddpdoctor.analysis.gaintypes import Fix, Gain
from tests.hosts import FIRST_ADDRESS, linked
from tests.launching import environment, started

RANK = Path(__file__).with_name("gain_rank.py")
LAUNCH_SECONDS = 120


@dataclass(frozen=True)
class Compared:
    """Milliseconds that a fix saves a step (a micro-batch under accumulation)."""

    fix: str
    setting: str
    step_ms: float
    predicted_ms: float
    bound_ms: float
    measured_ms: float

    @property
    def error(self) -> float:
        return abs(self.predicted_ms - self.measured_ms) / abs(self.measured_ms)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    compared = [*one_bucket(), *slow_link()]
    if options.json:
        print(json.dumps([asdict(each) | {"error": each.error} for each in compared], indent=2))
        return 0
    for each in compared:
        print(
            f"{each.fix:22} {each.setting:30} step {each.step_ms:6.1f} ms  "
            f"predicted {each.predicted_ms:6.1f} ± {each.bound_ms:4.1f}  "
            f"measured {each.measured_ms:6.1f}  error {each.error:6.1%}"
        )
    print(f"median error {median(each.error for each in compared):.1%}")
    return 0


def one_bucket() -> list[Compared]:
    """All gradients in one bucket, beside a backward that could hide most of them."""
    model = ["--width", "1024", "--layer-ms", "40", "--cap", "100"]
    with tempfile.TemporaryDirectory() as folder, linked(800) as hosts:
        gain = predicted(hosts, Path(folder), model)[Fix.BUCKET_SIZE]
        changed = f"cap={gain.setting.partition('=')[2]}"
        times = timed(hosts, Path(folder), [*model, "--variant", "plain", "--variant", changed])
    return [_compared(gain, times["plain"], times[changed])]


def slow_link() -> list[Compared]:
    """The link takes far longer than the compute, and buffers are broadcast over it."""
    model = ["--buffer-kb", "2048"]
    variants = ["plain", "accumulate=4", "fp16", "no-buffers"]
    named = [word for variant in variants for word in ("--variant", variant)]
    with tempfile.TemporaryDirectory() as folder, linked(200) as hosts:
        found = predicted(hosts, Path(folder), model)
        times = timed(hosts, Path(folder), [*model, *named])
    with tempfile.TemporaryDirectory() as folder, linked(400) as hosts:
        faster = timed(hosts, Path(folder), [*model, "--variant", "plain"])["plain"]
    plain = times["plain"]
    return [
        _compared(found[Fix.ACCUMULATE], plain, times["accumulate=4"]),
        _compared(found[Fix.COMPRESS], plain, times["fp16"]),
        _compared(found[Fix.NO_EXTRAS], plain, times["no-buffers"]),
        _compared(found[Fix.FASTER_LINK], plain, faster),
    ]


def _compared(gain: Gain, before_ms: float, after_ms: float) -> Compared:
    return Compared(
        gain.fix.value, gain.setting, gain.step_ms, gain.saved_ms, gain.error_ms,
        before_ms - after_ms,
    )  # fmt: skip


def predicted(hosts: Sequence[str], folder: Path, model: Sequence[str]) -> dict[Fix, Gain]:
    launch(
        hosts, folder, [*model, "--variant", "plain", "--wrap", "--steps", "20", "--rounds", "1"]
    )
    (run,) = (path for path in (folder / "ddpdoctor_runs").iterdir() if path.is_dir())
    gains = analyze(load_run(run)).gains
    if gains.reason is not None:
        raise SystemExit(f"nothing was predicted: {gains.reason}")
    return {gain.fix: gain for gain in gains.gains}


def timed(hosts: Sequence[str], folder: Path, arguments: Sequence[str]) -> dict[str, float]:
    out = folder / "times.json"
    launch(hosts, folder, [*arguments, "--out", str(out)])
    times: dict[str, float] = json.loads(out.read_text())
    return times


def launch(hosts: Sequence[str], folder: Path, arguments: Sequence[str]) -> None:
    with ExitStack() as running:
        jobs = []
        for index, host in enumerate(hosts):
            command = [
                "ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run",
                "--nnodes", str(len(hosts)), "--node-rank", str(index), "--nproc-per-node", "1",
                "--master-addr", FIRST_ADDRESS, "--master-port", "29500", str(RANK), *arguments,
            ]  # fmt: skip
            env = environment(GLOO_SOCKET_IFNAME="eth0", DDPDOCTOR_REPORT="0")
            jobs.append(running.enter_context(started(command, folder, env)))
        for job in jobs:
            _, err = job.communicate(timeout=LAUNCH_SECONDS)
            if job.returncode:
                raise SystemExit(err[-4000:])


if __name__ == "__main__":
    sys.exit(main())
