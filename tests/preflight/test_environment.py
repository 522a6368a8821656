"""Variables, command line and code of a process: secrets stay out."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.preflight.environment import command_line, environment, hashes


def test_only_listed_variables_are_kept() -> None:
    kept = environment(
        {
            "RANK": "1",
            "NCCL_DEBUG": "INFO",
            "HOME": "/root",
            "AWS_SECRET_ACCESS_KEY": "x",
            "RANKS": "1",
        }
    )

    assert kept == {"RANK": "1", "NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JWT", "eyJ"),
        ("TORCH_HUB_TOKEN", "abc"),
        ("NCCL_AUTH", "abc"),
        ("TORCHELASTIC_ENDPOINT", "etcd://user:pass@host"),
    ],
)
def test_values_that_look_like_credentials_are_masked(name: str, value: str) -> None:
    assert environment({name: value}) == {name: "(masked)"}


def test_long_values_are_cut() -> None:
    assert len(environment({"NCCL_X": "a" * 10_000})["NCCL_X"]) == 200


def test_the_command_line_keeps_no_credentials() -> None:
    given = [
        "python", "train.py", "--lr", "0.1", "--api-key", "abc", "--token=xyz", "--wandb_key=1",
        "s3://me:secret@host/x", "hf_" + "aB3" * 12, "--name", "run-of-a-very-long-name-2026",
    ]  # fmt: skip

    assert command_line(given) == (
        "python", "train.py", "--lr", "0.1", "--api-key", "(masked)", "--token=(masked)",
        "--wandb_key=(masked)", "(masked)", "(masked)", "--name", "run-of-a-very-long-name-2026",
    )  # fmt: skip


def test_hashes_are_of_files_below_the_program_only(tmp_path: Path) -> None:
    program = tmp_path / "job"
    program.mkdir()
    for path in (program / "train.py", tmp_path / "other.py"):
        path.write_text("pass\n", encoding="utf-8")

    found = hashes([program / "train.py", tmp_path / "other.py", program / "gone.py"], program)

    assert list(found) == ["train.py"]
