"""Small programs, one for each use of DistributedDataParallel that people make."""

from . import collectives, loops, models
from .registry import USES, Outcome, Use

__all__ = ["USES", "Outcome", "Use", "collectives", "loops", "models"]
