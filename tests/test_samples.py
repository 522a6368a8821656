"""The samples: what the report says of real recorded runs, word for word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpdoctor.samples import sample_folder, sample_names
from tests.launching import ROOT, ddpdoctor, environment, finish

PRIMARY = {
    "hang": "DD903",
    "healthy": None,
    "input-bound": "DD301",
    "late-backward": "DD101",
    "late-rank": "DD101",
    "repeated-samples": "DD302",
    "slow-link": "DD201",
}


def test_each_sample_is_listed_here() -> None:
    assert sample_names() == sorted(PRIMARY)


@pytest.mark.parametrize("name", sorted(PRIMARY))
def test_the_report_is_the_expected_one(name: str, update_expected: bool) -> None:
    folder = ROOT / "sample_traces" / name
    env = environment(COLUMNS="100", NO_COLOR="1")

    done = finish(ddpdoctor("report", str(folder.relative_to(ROOT))), ROOT, env)

    said = "\n".join(line.rstrip() for line in done.out.splitlines()) + "\n"
    if update_expected:
        (folder / "expected.txt").write_text(said, encoding="utf-8")
    assert said == (folder / "expected.txt").read_text(encoding="utf-8")
    assert done.status == (PRIMARY[name] is not None)


@pytest.mark.parametrize("name", sorted(PRIMARY))
def test_the_fault_is_the_one_that_was_put_in(name: str) -> None:
    done = finish(ddpdoctor("report", str(sample_folder(name)), "--json"), ROOT)

    report = json.loads(done.out)

    assert report["primary"] == PRIMARY[name]
    warned = {
        result["code"]
        for result in report["results"]
        for finding in result["findings"]
        if finding["severity"] != "info"
    }
    assert warned == ({PRIMARY[name]} if PRIMARY[name] else set())


def test_the_hang_names_the_rank_that_did_not_arrive_and_its_line() -> None:
    done = finish(ddpdoctor("report", str(sample_folder("hang")), "--json"), ROOT)

    report = json.loads(done.out)

    (finding,) = next(r["findings"] for r in report["results"] if r["code"] == "DD903")
    assert (finding["culprits"], finding["victims"]) == ([1], [0, 2])
    assert finding["where"][0]["function"] == "wait_for_a_file_that_never_comes"


def test_no_path_of_the_recording_machine_is_kept() -> None:
    for name in PRIMARY:
        for facts in Path(sample_folder(name)).glob("*.jsonl"):
            assert '"/' not in facts.read_text(encoding="utf-8")
