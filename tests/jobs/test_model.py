"""Real ranks whose models learn quietly wrong, and neighbours of these faults that are healthy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.test_recording import report_of
from tests.launching import PROGRAMS, finish, torchrun

pytestmark = pytest.mark.job

OF_MODELS = ("DD204", "DD405", *(f"DD{number}" for number in range(501, 511)))
# Class of each model in the program, the one check that finds something of it, and its culprits.
EXPECTED = {
    "LoadsOnRank0": ("DD501", [0, 1]),
    "SkipsStep": ("DD501", [0]),
    "ReentrantTwice": ("DD509", [0, 1]),
    "DropsLayer": ("DD503", [1]),
    "NeverUsesLast": ("DD503", [0, 1]),
    "EvaluatesInside": ("DD504", [0, 1]),
    "EvaluatesWithin": ("DD504", [0, 1]),
    "BadBatch": ("DD505", [1]),
    "SwallowsError": ("DD506", [1]),
    "of the 8 batches that each got by the end of epoch 0": ("DD506", [1]),
    "UnevenBatches": ("DD507", [0]),
    "UnevenTokens": ("DD507", [0]),
    "CallsInside": ("DD508", [0, 1]),
    "NoSyncForward": ("DD508", [0, 1]),
    "LateNoSync": ("DD508", [0, 1]),
    "NoSyncInVain": ("DD204", []),
    "CastAfterwards": ("DD508", [0, 1]),
    "parameters of the optimizer": ("DD508", [0, 1]),
    "Unfreezes": ("DD509", [0, 1]),
    "SumsAgain": ("DD510", [0, 1]),
    "TimesRanks": ("DD510", [0, 1]),
    "a number that is the same on ranks 0 and 1 is summed over them": ("DD510", [0, 1]),
    "a tensor of 8x4 that requires a gradient is gathered": ("DD510", [0, 1]),
    "a total is summed over ranks 0 and 1 in place": ("DD510", [0, 1]),
    "OtherRate": ("DD405", [0, 1]),
    "OtherOrder": ("DD405", [0, 1]),
}


def test_each_fault_is_one_finding_that_names_its_model_and_ranks(tmp_path: Path) -> None:
    done = finish(torchrun(PROGRAMS / "model_faults.py", "--fail"), tmp_path)
    assert done.status == 1
    assert "ready only once" in done.err  # the last model, on purpose

    _, report = report_of(tmp_path)

    found = [
        (result["code"], finding)
        for result in report["results"]
        if result["code"] in OF_MODELS
        for finding in result["findings"]
    ]
    by_model = {
        name: [(code, finding["culprits"]) for code, finding in found if name in finding["message"]]
        for name in (*EXPECTED, "ReadyTwice")
    }
    ((last, culprits),) = by_model.pop("ReadyTwice")
    assert (last, set(culprits) <= {0, 1}) == ("DD509", True)  # torchrun ends the slower rank
    assert by_model == {name: [expected] for name, expected in EXPECTED.items()}
    assert len(found) == len(EXPECTED) + 1
    lines = {code: finding["where"][0]["function"] for code, finding in found if finding["where"]}
    assert lines["DD503"] == "train"
    assert lines["DD508"].endswith(".run")


def test_neighbours_of_these_faults_are_healthy(tmp_path: Path) -> None:
    """Accumulation, a loss scaler, clipping, compression, checkpointing, tied weights and more."""
    done = finish(torchrun(PROGRAMS / "model_controls.py"), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    outcomes = {result["code"]: result["outcome"] for result in report["results"]}
    assert {code: outcomes[code] for code in OF_MODELS} == dict.fromkeys(OF_MODELS, "clean")
