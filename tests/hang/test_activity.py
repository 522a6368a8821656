"""What a rank is doing, by its stack."""

from __future__ import annotations

from ddpdoctor.hang.activity import Activity, place_of
from ddpdoctor.stackframes import Frame, Origin
from tests.hang_builders import at, torch, user


def test_a_rank_that_is_still_importing_torch_is_elsewhere() -> None:
    """Modules of torch.distributed are in its stack, and none of their functions."""
    importing = at(
        1,
        Frame("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed", Origin.LIBRARY),
        torch("distributed/rpc/__init__.py", "<module>"),
        Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load", Origin.LIBRARY),
        user(12, "import torch.distributed.rpc", function="main"),
    )

    assert place_of(importing).activity is Activity.ELSEWHERE
    assert place_of(importing).call == "import"
