"""Dumps that real ranks left, by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import launching
from tests.launching import PROGRAMS, ROOT, Finished

pytestmark = pytest.mark.job


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one job of three ranks on gloo left."""
    folder = tmp_path_factory.mktemp("left")
    command = launching.torchrun(PROGRAMS / "leaves_dumps.py", str(folder), ranks=3)
    done = launching.finish(command, folder)
    assert done.status == 0, done.err
    return folder


def diagnose(*arguments: str) -> Finished:
    return launching.finish(launching.ddpdoctor("diagnose", *arguments), ROOT, seconds=30)


def only_finding(folder: Path) -> tuple[str, dict[str, Any]]:
    done = diagnose(str(folder), "--json")
    assert done.status == 1, done.out + done.err
    results = json.loads(done.out)["results"]
    found = [(result["code"], each) for result in results for each in result["findings"]]
    assert len(found) == 1, found
    return found[0]


def line_of(text: str, occurrence: int = 0) -> int:
    lines = (PROGRAMS / "leaves_dumps.py").read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line][occurrence]


def test_a_rank_that_the_others_wait_for(left: Path) -> None:
    code, finding = only_finding(left / "missing")

    assert (code, finding["culprits"], finding["victims"]) == ("DD903", [1], [0, 2])
    assert finding["where"][0]["line"] == line_of("dist.all_reduce(torch.ones(4))")
    assert finding["where"][0]["file"].endswith("leaves_dumps.py")

    code, finding = only_finding(left / "missing-json")

    assert (code, finding["culprits"], finding["victims"]) == ("DD903", [1], [0, 2])


def test_a_rank_that_made_a_call_too_many(left: Path) -> None:
    """It alone has a call pending; the lines of all calls tell since when, JSON has none."""
    code, finding = only_finding(left / "one_ahead")

    assert (code, finding["culprits"], finding["confidence"]) == ("DD905", [1], "likely")
    assert finding["where"][0]["line"] == line_of("the others never come here")

    code, finding = only_finding(left / "one_ahead-json")

    assert (code, finding["culprits"], finding["confidence"]) == ("DD905", [1], "possible")


def test_a_dump_that_is_cut_off_and_one_that_is_lost(left: Path, tmp_path: Path) -> None:
    for path in (left / "missing").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "trace_1").write_bytes((left / "missing" / "trace_1").read_bytes()[:-100])

    code, finding = only_finding(tmp_path)

    assert (code, finding["culprits"], finding["confidence"]) == ("DD901", [1], "likely")
    assert "it breaks off" in str(finding["evidence"])


def test_the_text_says_the_verdict_first_and_with_v_where_each_rank_is(left: Path) -> None:
    done = diagnose(str(left / "missing"), "-v")

    first = done.out.splitlines()[0]
    assert first.startswith("Rank 1 is in no call; its last call was all_reduce (number 1 of")
    assert "waits for" in done.out
    assert "dumps of 3 ranks of 3 read in" in done.out
    assert (done.status, done.err) == (1, "")
