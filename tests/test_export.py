"""A run for other tools: Chrome's trace format, tables as CSV, and the command."""

from __future__ import annotations

import csv
import gzip
import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddpdoctor.analysis.timeline import build_timeline
from ddpdoctor.cli import cli
from ddpdoctor.export import CannotExport, write_tables, write_trace
from ddpdoctor.samples import sample_folder
from ddpdoctor.sheets import Column, Row, Sheet, as_csv
from tests.dashboards.shown import LATE_MS, LATE_RANK, late_analysis


def test_a_trace_has_every_span_on_its_rank(tmp_path: Path) -> None:
    timeline = build_timeline(late_analysis())
    path = tmp_path / "run.json.gz"
    write_trace(timeline, path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(timeline.spans.id) + len(timeline.calls.id)
    assert {event["pid"] for event in spans} == set(timeline.ranks)
    assert all(event["dur"] >= 0 for event in spans)
    late = [event["args"]["last_rank"] for event in spans if event["name"] == "all_reduce bucket 1"]
    assert set(late) == {LATE_RANK}
    names = {event["args"].get("name") for event in events if event["name"] == "process_name"}
    assert names == {f"rank {rank} on node0" for rank in timeline.ranks}


def test_calls_of_one_thread_of_the_trace_do_not_cross(tmp_path: Path) -> None:
    """Chrome draws spans of a thread that cross each other in a way that none can read."""
    path = tmp_path / "run.json"
    write_trace(build_timeline(late_analysis()), path)
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        thread = by_thread.setdefault((event["pid"], event["tid"]), [])
        thread.append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_thread.values():
        ordered = sorted(spans)
        assert all(a[1] <= b[0] + 0.01 for a, b in pairwise(ordered))


def test_tables_hold_the_numbers_in_full(tmp_path: Path) -> None:
    written = write_tables(late_analysis(), tmp_path / "tables")
    assert {path.name for path in written} >= {"ranks.csv", "hosts.csv", "buckets.csv"}
    ranks = list(csv.DictReader(io.StringIO((tmp_path / "tables/ranks.csv").read_text())))
    late = ranks[LATE_RANK]
    assert float(late["over others"]) == pytest.approx(LATE_MS, abs=0.5)
    assert late["last in %"] == "100.0"
    buckets = list(csv.DictReader(io.StringIO((tmp_path / "tables/buckets.csv").read_text())))
    assert [row["last rank"] for row in buckets] == [str(LATE_RANK)] * 2
    assert float(buckets[1]["spread ms"]) == pytest.approx(LATE_MS, abs=0.5)


def test_what_is_not_measured_is_empty_and_no_name_becomes_a_formula() -> None:
    sheet = Sheet("x", (Column("a"), Column("b")), (Row(("=HYPERLINK(1)", None)),), "")
    assert as_csv(sheet) == "a,b\n'=HYPERLINK(1),\n"


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CannotExport, match="cannot be written"):
        write_trace(build_timeline(late_analysis()), tmp_path / "no" / "such" / "folder.json")


@pytest.mark.parametrize(
    ("wanted", "name"), [("trace", "out.json.gz"), ("csv", "out"), ("html", "out.html")]
)
def test_the_command_writes_each_format(tmp_path: Path, wanted: str, name: str) -> None:
    path = tmp_path / name
    arguments = ["export", str(sample_folder("late-rank")), "--format", wanted, "-o", str(path)]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert str(path) in done.output
    assert path.exists()
