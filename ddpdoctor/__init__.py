"""ddpdoctor: why a PyTorch DistributedDataParallel run is slow, hangs or learns the wrong thing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ddpdoctor.errors import TorchMissing
from ddpdoctor.marks import span, step

if TYPE_CHECKING:
    from ddpdoctor.analysis import analyze
    from ddpdoctor.checks import run_checks
    from ddpdoctor.recorder import wrap
    from ddpdoctor.tracefile import load_run

__all__ = ["analyze", "load_run", "run_checks", "span", "step", "wrap"]
__version__ = "0.1.0"

_HOMES = {  # imported on first use: `import ddpdoctor` loads neither torch nor pandas
    "analyze": "ddpdoctor.analysis",
    "load_run": "ddpdoctor.tracefile",
    "run_checks": "ddpdoctor.checks",
    "wrap": "ddpdoctor.recorder",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ddpdoctor' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TorchMissing(
            "recording needs torch, which is not installed in this environment: install the "
            "torch build "
            "that your training uses, or `pip install ddpdoctor[torch]` for a fresh one"
        ) from error
