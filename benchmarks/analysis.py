"""How long a large run takes to load and judge: `python -m benchmarks.analysis [--json]`.

Writes rank files of `--ranks` ranks with `--records` records together, in the project's own format,
then loads them and runs all checks in a process of its own, whose peak of memory counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ddpdoctor import events
from ddpdoctor.events import ClockOffset, Flag, Kind, Op, Phase, RankInfo, RunInfo
from ddpdoctor.tracefile import DETAIL_DTYPE, STEP_DTYPE

BUCKETS: Final = 14
SPANS: Final = (
    # phase, depth, begin and end in microseconds of a step
    (Phase.INPUT, 0, 0, 1_000),
    (Phase.FORWARD, 0, 1_000, 11_000),
    (Phase.BACKWARD, 0, 11_000, 45_000),
    (Phase.BLOCKED, 1, 41_000, 45_000),
    (Phase.OPTIMIZER, 0, 45_000, 47_000),
)
EXTRAS: Final = (
    # operation, bytes, and when all have arrived and it completes, in microseconds of a step
    (Op.BROADCAST, 100_000, 1_300, 1_700),  # buffers, before the forward
    (Op.ALL_REDUCE, 4, 47_400, 47_600),  # a loss, to be printed
)
STEP_US: Final = 48_000
CALLS: Final = BUCKETS + len(EXTRAS)
PER_STEP: Final = CALLS + len(SPANS) + 1
BUCKET_BYTES: Final = 4_000_000
BEGAN_NS: Final = 10**12
NOISE_US: Final = 300
RANKS_OF_HOST: Final = 8
AHEAD_NS: Final = 10**9  # the clock of each host, of the one before
RING_RECORDS: Final = 4096  # as the recorder keeps them


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the files are written, and stay")
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        print(json.dumps(judged(options.judge)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        steps = options.records // options.ranks // PER_STEP
        if not any(folder.glob("rank*.ddt")):
            write(folder, options.ranks, steps)
        command = [sys.executable, "-m", "benchmarks.analysis", "--judge", str(folder)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
        found |= reported(folder, found["records"])
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"{name:26} {value}")
    return 0


def judged(folder: Path) -> dict[str, Any]:
    """Seconds and memory of loading, analysing and all checks."""
    from ddpdoctor import analyze, load_run, run_checks

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    times, used = [time.perf_counter()], [time.process_time()]

    def passed() -> None:
        times.append(time.perf_counter())
        used.append(time.process_time())

    run = load_run(folder)
    passed()
    analysis = analyze(run)
    passed()
    results = run_checks(analysis)
    passed()
    records = sum(len(trace.detail) for trace in run.ranks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = dict(zip(("load", "analyse", "checks"), np.diff(times), strict=True))
    of_cpu = dict(zip(seconds, np.diff(used), strict=True))
    return {
        "ranks": len(run.ranks),
        "records": records,
        **{f"{name}_s": round(float(each), 2) for name, each in seconds.items()},
        "all_s": round(times[-1] - times[0], 2),
        **{f"{name}_cpu_s": round(float(each), 2) for name, each in of_cpu.items()},
        "all_cpu_s": round(used[-1] - used[0], 2),
        "records_mb": round(records * DETAIL_DTYPE.itemsize / 1e6),
        "memory_mb": round((peak - before) / 1e6),
        "memory_per_records": round((peak - before) / (records * DETAIL_DTYPE.itemsize), 2),
        "checks_crashed": [result.code for result in results if result.outcome == "crash"],
        "findings": [result.code for result in results if result.findings],
    }


def reported(folder: Path, records: int) -> dict[str, Any]:
    """Seconds and memory of `ddpdoctor report`, from its start to its end."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "ddpdoctor", "report", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0  # it was waited for
    return {
        "report_s": round(time.perf_counter() - begin, 2),
        "report_cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "report_memory_per_records": round(
            usage.ru_maxrss * 1024 / (records * DETAIL_DTYPE.itemsize), 2
        ),
    }


def write(folder: Path, ranks: int, steps: int) -> None:
    """A healthy job, but that rank 7 is late by 3 ms in each forward. Each host has its clock."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    noise_us = generator.integers(0, NOISE_US, (steps, BUCKETS))  # when each bucket completes
    for rank in range(ranks):
        detail = rank_records(generator, rank, steps, noise_us)
        _store(folder / f"rank{rank:05d}.ddt", rank, ranks, detail)


def rank_records(
    generator: np.random.Generator, rank: int, steps: int, done_us: npt.NDArray[np.int64]
) -> npt.NDArray[np.void]:
    records = np.zeros((steps, PER_STEP), DETAIL_DTYPE)
    begin_us = np.arange(steps, dtype=np.int64) * STEP_US
    own_us = generator.integers(0, NOISE_US, steps)
    late_us = own_us + (3_000 if rank == 7 else 0)
    for place, (phase, depth, begin, end) in enumerate(SPANS):
        span = records[:, place]
        span["kind"], span["code"], span["depth"] = Kind.SPAN, phase, depth
        shift = late_us if phase in (Phase.FORWARD, Phase.BACKWARD) else 0
        begins_late = shift if phase == Phase.BACKWARD else 0
        ends_late = shift if phase == Phase.FORWARD else 0
        span["begin_ns"] = BEGAN_NS + 1_000 * (begin_us + begin + begins_late)
        span["end_ns"] = BEGAN_NS + 1_000 * (begin_us + end + ends_late)
        span["bucket"], span["peer"] = -1, -1
    for bucket in range(BUCKETS):
        call = records[:, len(SPANS) + 1 + bucket]  # behind the broadcast, as in time
        arrival_us = begin_us + 15_000 + 1_800 * bucket + late_us
        call["kind"], call["code"], call["flags"] = Kind.COLLECTIVE, Op.ALL_REDUCE, Flag.BUCKET
        call["seq"] = np.arange(steps) * CALLS + 1 + bucket
        call["bucket"], call["peer"], call["nbytes"] = bucket, -1, BUCKET_BYTES
        call["begin_ns"] = BEGAN_NS + 1_000 * arrival_us
        call["issued_ns"] = call["begin_ns"] + 20_000
        done = begin_us + 15_000 + 1_800 * bucket + 3_300 + 1_200 + done_us[:, bucket]
        call["end_ns"] = BEGAN_NS + 1_000 * done
    for place, (op, nbytes, begin, end) in enumerate(EXTRAS):
        call = records[:, len(SPANS) + place * (CALLS - 1)]
        call["kind"], call["code"], call["flags"] = Kind.COLLECTIVE, op, Flag.BLOCKING
        call["seq"] = np.arange(steps) * CALLS + place * (CALLS - 1)
        call["bucket"], call["peer"], call["nbytes"] = -1, 0, nbytes
        call["begin_ns"] = BEGAN_NS + 1_000 * (begin_us + begin - NOISE_US + own_us)
        call["issued_ns"] = call["end_ns"] = BEGAN_NS + 1_000 * (begin_us + end)
    step = records[:, -1]
    step["kind"], step["bucket"], step["peer"] = Kind.STEP, -1, -1
    step["begin_ns"] = BEGAN_NS + 1_000 * begin_us
    step["end_ns"] = BEGAN_NS + 1_000 * (begin_us + STEP_US)
    records["step"] = np.arange(steps)[:, None]
    records["sync"] = np.arange(steps)[:, None]
    step["sync"] += 1
    flat = records.reshape(-1)
    flat["commit"] = np.arange(len(flat)) + 1
    return flat


def _store(path: Path, rank: int, ranks: int, detail: npt.NDArray[np.void]) -> None:
    """As the recorder leaves a file: the newest records twice, and a row a step."""
    host = rank // RANKS_OF_HOST
    ahead_ns = AHEAD_NS * host  # rank 0's clock, of this host's
    for name in ("begin_ns", "issued_ns", "end_ns"):
        detail[name][detail[name] > 0] -= ahead_ns
    info = RankInfo(
        rank, ranks, rank % RANKS_OF_HOST, f"node{host}", 1000 + rank, "gloo", "cpu",
        f"boot{host}/time:[1]", f"boot/net:[{host}]", 0, BEGAN_NS - ahead_ns, "host",
    )  # fmt: skip
    rows = np.zeros(len(detail) // PER_STEP, STEP_DTYPE)
    rows["step"] = rows["sync"] = np.arange(len(rows)) + 1
    regions = {"detail": detail, "ring": detail[-RING_RECORDS:], "steps": rows}
    header: dict[str, Any] = {
        "run": asdict(RunInfo("large", 0, ranks, "gloo")),
        "rank": asdict(replace(info, threads=1, cpus=8)),
        "closed": True,
    }
    offset = events.HEADER_SPACE
    for name, records in regions.items():
        header[name] = {"offset": offset, "records": len(records)}
        offset += records.nbytes
    raw = json.dumps(header).encode()
    preamble = events.PREAMBLE.pack(events.MAGIC, events.SCHEMA_VERSION, len(raw))
    with path.open("wb") as file:
        file.write((preamble + raw).ljust(events.HEADER_SPACE, b"\0"))
        for records in regions.values():
            file.write(records.tobytes())
    facts = [{"fact": "group", "data": {"name": "0", "ranks": list(range(ranks))}}]
    if host and rank % RANKS_OF_HOST == 0:
        facts += [_clock_fact(info, ahead_ns, seconds) for seconds in (0, 600)]
    lines = "".join(json.dumps(fact) + "\n" for fact in facts)
    path.with_suffix(".facts.jsonl").write_text(lines, encoding="utf-8")


def _clock_fact(info: RankInfo, ahead_ns: int, seconds: int) -> dict[str, Any]:
    measured = ClockOffset(ahead_ns, 20_000, info.began_ns + seconds * 10**9)
    return {"fact": "clock", "data": asdict(measured)}


if __name__ == "__main__":
    sys.exit(main())
