"""Finding the recorded runs that come with the package."""

from __future__ import annotations

import pytest

from ddpdoctor.errors import NotARun
from ddpdoctor.runfolders import is_run
from ddpdoctor.samples import sample_folder, sample_names


def test_each_sample_is_a_run() -> None:
    assert "programs" not in sample_names()
    assert all(is_run(sample_folder(name)) for name in sample_names())


@pytest.mark.parametrize("name", ["no-such-run", "..", "programs", ""])
def test_another_name_is_an_error_that_lists_what_there_is(name: str) -> None:
    with pytest.raises(NotARun, match="no sample run is called") as caught:
        sample_folder(name)
    assert all(known in str(caught.value) for known in sample_names())
