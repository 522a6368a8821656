"""Records healthy trainings again and again: `python -m tests.gauntlet.healthy_run --times 200`.

Those of the gauntlet take turns until so many are recorded; with `--part K/N` every N-th turn.
What was said is kept in `.stamps/healthy.jsonl`, and HEALTHY.md is written from all that is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gauntlet.cases import CASES, Case
from tests.gauntlet.results import keep
from tests.gauntlet.run import REPORT_SECONDS, commit_of, parse_part, train
from tests.launching import ROOT, ddpdoctor, environment, finish

HEALTHY = [case for case in CASES if case.code is None]
DISTURBED = "DD106"  # at info: something beside the job takes its CPUs
KEPT = ROOT / ".stamps" / "healthy.jsonl"
TABLE = ROOT / "tests" / "gauntlet" / "HEALTHY.md"

_HEAD = """# What was said of healthy trainings

Written by `make gauntlet-healthy`: the healthy trainings of the gauntlet, plain and wrapped,
recorded in turns. An alarm is a finding at warning or above. Disturbed is a recording whose ranks
waited for a CPU that something beside the job had (DD106 at info, which tells its evidence).
"""


@dataclass(frozen=True)
class Recorded:
    """One recording. `evidence` is that of the disturbance, empty where there was none."""

    case: str
    mode: str
    status: int
    alarms: tuple[str, ...]
    evidence: tuple[str, ...]
    load: float
    commit: str

    @property
    def is_silent(self) -> bool:
        return self.status == 0 and not self.alarms


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    chosen = [case for case in HEALTHY if not options.only or case.name in options.only]
    cases = [(case, mode) for case in chosen for mode in case.modes]
    part, parts = options.part
    commit = commit_of()
    for turn in range(part - 1, options.times, parts):
        case, mode = cases[turn % len(cases)]
        recorded = _record(case, mode, commit)
        keep(recorded, KEPT)
        said = "silent" if recorded.is_silent else f"ALARM: {'; '.join(recorded.alarms)}"
        disturbed = ", disturbed" if recorded.evidence else ""
        print(f"{turn + 1:4} {case.name:32} {mode:8} {said}{disturbed}", flush=True)
    TABLE.write_text("\n".join(_table(_kept())) + "\n", encoding="utf-8")
    return 0


def _record(case: Case, mode: str, commit: str) -> Recorded:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="healthy-") as folder:
        done = train(case, mode, Path(folder))
        command = ddpdoctor("report", "--json")
        said = finish(command, Path(folder), environment(), REPORT_SECONDS)
    report: dict[str, Any] = json.loads(said.out)
    found = [(r["code"], one) for r in report["results"] for one in r["findings"]]
    return Recorded(
        case.name,
        mode,
        done.status,
        tuple(f"{code}: {one['message']}" for code, one in found if one["severity"] != "info"),
        tuple(text for code, one in found if code == DISTURBED for text in _evidence(one)),
        round(load, 1),
        commit,
    )


def _evidence(finding: dict[str, Any]) -> Iterable[str]:
    for each in finding["evidence"]:
        value = each["value"]
        told = f"{value:.3g}" if isinstance(value, float) else value
        yield f"{each['what']}: {told} {each['unit'] or ''}".rstrip()


def _kept(path: Path = KEPT) -> list[Recorded]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    lists = ("alarms", "evidence")
    return [Recorded(**row | {name: tuple(row[name]) for name in lists}) for row in rows]


def _table(recorded: Sequence[Recorded]) -> Iterable[str]:
    disturbed = [one for one in recorded if one.evidence]
    loads = sorted(one.load for one in recorded)
    yield _HEAD
    yield f"- recordings: {len(recorded)}, of {len({one.case for one in recorded})} trainings"
    yield f"- recordings with an alarm: {sum(not one.is_silent for one in recorded)}"
    yield f"- disturbed: {len(disturbed)} ({len(disturbed) / len(recorded):.1%})"
    yield f"- commit: {', '.join(dict.fromkeys(one.commit for one in recorded))}"
    yield f"- load of the machine: {loads[len(loads) // 2]:.1f} at the median, {loads[-1]:.1f} most"
    yield "\n| training | recordings | with an alarm | disturbed |\n|---|---|---|---|"
    by_case: dict[str, list[Recorded]] = defaultdict(list)
    for one in recorded:
        by_case[one.case].append(one)
    for case, own in by_case.items():
        alarms = sum(not one.is_silent for one in own)
        yield f"| {case} | {len(own)} | {alarms} | {sum(bool(one.evidence) for one in own)} |"
    loud = [one for one in recorded if not one.is_silent]
    if loud:
        yield "\nAlarms:\n"
    yield from (f"- {one.case}, {one.mode}: {'; '.join(one.alarms)}" for one in loud)
    if disturbed:
        yield "\nWhat showed the disturbance:\n"
    yield from (f"- {one.case}, {one.mode}: {'; '.join(one.evidence)}" for one in disturbed)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--part", type=parse_part, default=(1, 1), metavar="K/N")
    parser.add_argument("--only", action="append", choices=[case.name for case in HEALTHY])
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
