"""What recording costs beside bare DDP: `python -m benchmarks.overhead [--json] [--quick]`.

Starts ranks on gloo itself: two for the ratios of step times, one for the CPU time a step, where
nothing waits for a network. A ratio is the median of those of the single rounds, in each of which
bare DDP and the recorder take turns; beside it stand the bounds within which this median lies with
a probability of 95 %, and the quartiles. All models take at most 15 minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.overhead_models import WORKLOADS

BARE: Final = "bare"
VARIANTS: Final = (BARE, "ddpdoctor", "ddpdoctor_off", "comm_hook", "profiler")
QUICK: Final = ("mlp",)
ROUNDS: Final = {"conv": 24, "transformer": 36, "mlp": 30}
QUICK_ROUNDS: Final = 4
OTHERS_EVERY: Final = 3  # rounds in which the other variants are measured, too
ALONE_SHARE: Final = 3  # CPU time is steadier: so many times fewer rounds
CONFIDENCE: Final = 0.95
PAIR_SECONDS: Final = 180  # no round of a job begins later: a step may take long on a slow machine
OTHER_SECONDS: Final = 60  # of the jobs with fewer rounds
RANKS_SECONDS: Final = 600
ROOT: Final = Path(__file__).resolve().parent.parent

Blocks = dict[str, list[dict[str, float]]]


@dataclass(frozen=True)
class _Job:
    """Ranks that measure these variants side by side."""

    model: str
    variants: tuple[str, ...]
    ranks: int
    rounds: int
    others_every: int = OTHERS_EVERY
    seconds: int = OTHER_SECONDS


def measure(models: list[str], rounds: Callable[[str], int]) -> dict[str, Any]:
    """Figures of each model; raises RuntimeError when ranks do not come to their end."""
    results: dict[str, Any] = {}
    for model in models:
        pair = _run(_Job(model, VARIANTS, ranks=2, rounds=rounds(model), seconds=PAIR_SECONDS))
        fewer = max(QUICK_ROUNDS, rounds(model) // ALONE_SHARE)
        alone = _run(_Job(model, VARIANTS[:-1], ranks=1, rounds=fewer))
        results[model] = _figures(pair, alone)
        results[model]["traceml"] = _traceml(model, fewer)
    return results


def _figures(pair: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    blocks, alone_blocks = pair["blocks"], alone["blocks"]
    figures: dict[str, Any] = {
        "step_ms": round(_median(blocks, BARE, "step_s") * 1e3, 3),
        "parameters": pair["parameters"],
        "buckets": pair["buckets"],
    }
    for name in blocks:
        if name != BARE:
            figures[name] = _against_bare(blocks, name)
        if name != BARE and name in alone_blocks:
            figures[name] |= _cpu_against_bare(alone_blocks, name)
    figures["ddpdoctor"]["bytes_per_step"] = round(_median(blocks, "ddpdoctor", "bytes_per_step"))
    return figures


def _median(blocks: Blocks, name: str, key: str) -> float:
    return statistics.median(block[key] for block in blocks[name])


def _against_bare(blocks: Blocks, name: str) -> dict[str, Any]:
    pairs = _pairs(blocks, name, "step_s")
    ratios = [with_it / bare for with_it, bare in pairs]
    return {
        "rounds": len(pairs),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_95": [round(bound, 4) for bound in median_bounds(ratios)],
        "ratio_iqr": _quartiles(ratios, 4),
        "us_per_step": round(statistics.median(a - b for a, b in pairs) * 1e6, 1),
    }


def _cpu_against_bare(blocks: Blocks, name: str) -> dict[str, Any]:
    pairs = _pairs(blocks, name, "cpu_s")
    more = [(with_it - bare) * 1e6 for with_it, bare in pairs]
    ratios = [with_it / bare for with_it, bare in pairs]
    return {
        "cpu_ratio": round(statistics.median(ratios), 4),
        "cpu_ratio_95": [round(bound, 4) for bound in median_bounds(ratios)],
        "cpu_us_per_step": round(statistics.median(more), 1),
        "cpu_us_per_step_iqr": _quartiles(more, 1),
    }


def _pairs(blocks: Blocks, name: str, key: str) -> list[tuple[float, float]]:
    """Of each round in which the variant was measured: its value and that of bare DDP."""
    bare = {block["round"]: block[key] for block in blocks[BARE]}
    return [(block[key], bare[block["round"]]) for block in blocks[name]]


def median_bounds(values: list[float]) -> tuple[float, float]:
    """Between which values the median lies with CONFIDENCE, by counting on which side they fall.

    Of few values, the least and the largest, and then with less confidence.
    """
    ordered, outside = sorted(values), 0
    below = 0.0  # the probability that fewer than `outside` values lie below the median
    while 2 * outside < len(ordered):
        below += math.comb(len(ordered), outside) / 2 ** len(ordered)
        if 2 * below > 1 - CONFIDENCE:
            break
        outside += 1
    first = max(0, outside - 1)
    return ordered[first], ordered[-1 - first]


def _quartiles(values: list[float], digits: int) -> list[float]:
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [round(first, digits), round(third, digits)]


def _traceml(model: str, rounds: int) -> dict[str, Any]:
    """TraceML stays in a process once it is on, so it has a run of its own.

    The bare steps there are only not traced: its patches and threads and its aggregating process
    are beside them too, so this is the least that it costs.
    """
    if importlib.util.find_spec("traceml_ai") is None:
        return {"skipped": "the package traceml-ai is not installed"}
    try:
        job = _Job(model, (BARE, "traceml"), ranks=2, rounds=rounds, others_every=1)
        found = _run(job, _traceml_launcher)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"skipped": f"it did not run here: {str(error)[-300:]}"}
    return _against_bare(found["blocks"], "traceml")


def _torchrun(ranks: int, folder: str, arguments: list[str]) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(ranks), "--log-dir", folder, "-m", "benchmarks.overhead_rank", *arguments,
    ]  # fmt: skip


def _traceml_launcher(ranks: int, folder: str, arguments: list[str]) -> list[str]:
    program = Path(__file__).with_name("overhead_rank.py")
    return [
        sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(program), "--mode", "summary",
        "--nproc-per-node", str(ranks), "--logs-dir", folder, "--args", *arguments,
    ]  # fmt: skip


def _run(
    job: _Job, launcher: Callable[[int, str, list[str]], list[str]] = _torchrun
) -> dict[str, Any]:
    """What rank 0 of one job measured."""
    others_every = max(1, min(job.others_every, job.rounds // 2))
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-overhead-") as folder:
        arguments = [
            "--model", job.model, "--variants", ",".join(job.variants), "--rounds",
            str(job.rounds), "--others-every", str(others_every), "--folder", folder,
            "--seconds", str(job.seconds),
        ]  # fmt: skip
        done = subprocess.run(
            launcher(job.ranks, folder, arguments), cwd=ROOT, env=_environment(), text=True,
            capture_output=True, timeout=RANKS_SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        found = Path(folder, "blocks.json")
        if not found.exists():
            raise RuntimeError(
                f"no result of {job.model} on {job.ranks} ranks:\n{done.stderr[-2000:]}"
            )
        result: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return result


def _environment() -> dict[str, str]:
    """Without settings of ddpdoctor; one thread a rank, as torchrun sets it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DDPDOCTOR_")}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def _table(results: dict[str, Any]) -> str:
    titles = f"{'ratio':>7} {'95 %':>17} {'quartiles':>17} {'us a step':>10} {'CPU us':>9}"
    lines = [f"{'model':12} {'variant':13} {titles}"]
    for model, figures in results.items():
        lines.append(f"{model:12} bare          {figures['step_ms']} ms a step")
        for name, found in figures.items():
            if isinstance(found, dict):
                lines.append(f"{model:12} {name:13} {_row(found)}")
    return "\n".join(lines)


def _row(found: dict[str, Any]) -> str:
    if "skipped" in found:
        return f"skipped: {found['skipped']}"
    spreads = [f"[{low:.3f}, {high:.3f}]" for low, high in (found["ratio_95"], found["ratio_iqr"])]
    spread = " ".join(f"{each:>17}" for each in spreads)
    cpu = found.get("cpu_us_per_step", "")
    return f"{found['ratio']:7.4f} {spread} {found['us_per_step']:10} {cpu:>9}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--quick", action="store_true", help="the smallest model, few rounds")
    parser.add_argument("--model", choices=WORKLOADS, action="append", help="only these")
    parser.add_argument(
        "--rounds", type=int, help="rounds of each model; more of them steady the figures"
    )
    options = parser.parse_args()
    models = options.model or list(QUICK if options.quick else WORKLOADS)
    default = QUICK_ROUNDS if options.quick else None
    results = measure(models, lambda model: options.rounds or default or ROUNDS[model])
    print(json.dumps(results, indent=1) if options.json else _table(results))


if __name__ == "__main__":
    main()
