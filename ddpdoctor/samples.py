"""Recorded runs that come with the package, to look at without training anything."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ddpdoctor.errors import NotARun
from ddpdoctor.runfolders import is_run

SAMPLES: Final = Path(__file__).parent / "sample_traces"


def sample_names() -> list[str]:
    if not SAMPLES.is_dir():
        return []
    return sorted(path.name for path in SAMPLES.iterdir() if is_run(path))


def sample_folder(name: str) -> Path:
    """The run folder of a sample. Raises NotARun, naming those there are."""
    names = sample_names()
    if name not in names:
        known = f"there are: {', '.join(names)}" if names else "this installation holds none"
        raise NotARun(f"no sample run is called {name!r}; {known}")
    return SAMPLES / name
