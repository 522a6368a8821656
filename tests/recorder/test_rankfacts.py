"""Facts of a rank: secrets stay out."""

from __future__ import annotations

import pytest

from ddpdoctor.preflight.environment import environment


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
