"""How long a diagnosis of hung ranks takes: `python -m benchmarks.diagnose [--ranks 8] [--json]`.

Starts real ranks on gloo that wait for one of them, then runs `ddpdoctor diagnose` as a user does,
start of Python included. Beside it the time for which it must watch before it may say *stuck*.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ddpdoctor.hang.look import WATCH_S

ROOT: Final = Path(__file__).resolve().parent.parent
PROGRAM: Final = ROOT / "tests" / "programs" / "hang_rank0_evaluates.py"
READY_SECONDS: Final = 240
SETTLE_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 60


def measure(ranks: int, rounds: int) -> dict[str, Any]:
    """Raises RuntimeError when the ranks do not come to hang, or diagnose does not say who."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(ranks), str(PROGRAM), folder,
        ]  # fmt: skip
        job = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_for(Path(folder), ranks)
            took = [_look(job.pid, environment) for _ in range(rounds)]
        finally:
            job.terminate()  # torchrun ends its ranks
            job.wait(60)
    return {
        "ranks": ranks,
        "median_s": round(statistics.median(took), 2),
        "max_s": round(max(took), 2),
        "watched_s": WATCH_S,
        "load": round(os.getloadavg()[0], 1),
        "cpus": os.cpu_count(),
    }


def _wait_for(folder: Path, ranks: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while len(list(folder.glob("ready-*"))) < ranks:
        if time.monotonic() > deadline:
            raise RuntimeError("the ranks did not come to hang")
        time.sleep(0.1)
    time.sleep(SETTLE_SECONDS)


def _look(pid: int, environment: dict[str, str]) -> float:
    command = [sys.executable, "-m", "ddpdoctor", "diagnose", "--json", "--pid", str(pid)]
    began = time.monotonic()
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LOOK_SECONDS, check=False
    )
    took_s = time.monotonic() - began
    if json.loads(done.stdout)["primary"] != "DD903":
        raise RuntimeError(f"not told who is missing: {done.stdout}")
    return took_s


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = measure(options.ranks, options.rounds)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"{result['ranks']} hung ranks: {result['median_s']} s in the median, "
            f"{result['max_s']} s at most, of which {result['watched_s']} s watching; load "
            f"{result['load']} on {result['cpus']} CPUs"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
