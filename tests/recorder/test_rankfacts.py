"""What a rank may use of its host."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.recorder import rankfacts
from ddpdoctor.recorder.rankfacts import stretches


@given(st.sets(st.integers(0, 300)))
def test_stretches_hold_exactly_the_cpus(cpus: set[int]) -> None:
    found = stretches(sorted(cpus))
    assert {cpu for first, last in found for cpu in range(first, last + 1)} == cpus
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(found))


def test_the_mask_of_this_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankfacts.dist, "get_backend", lambda: "gloo")
    before = os.sched_getaffinity(0)
    only = min(before)
    os.sched_setaffinity(0, {only})
    try:
        info = rankfacts.rank_info(0, 1, torch.device("cpu"))
    finally:
        os.sched_setaffinity(0, before)
    assert (info.cpus, info.allowed_cpus) == (1, ((only, only),))
    assert info.host_cpus == os.cpu_count()
