"""Looks at losses before their backward, at the steps that are looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.events import Site
from ddpdoctor.modelevents import LossTerm
from ddpdoctor.recorder.callsite import CallSites, is_user_file
from ddpdoctor.recorder.lossgraph import LossSeen, loss_terms
from ddpdoctor.recorder.lossline import files_of, line_of_factor


class LossLooks:
    """The loss whose backward begins; `seen` is None where it was not looked at."""

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._sought = False  # the line of a factor; there is one search
        self._line: Site | None = None
        self.seen: LossSeen | None = None

    def drop(self) -> None:
        self.seen = None

    def look(
        self,
        roots: Any,
        gradients: Any,
        frame: FrameType | None,
        models: Iterable[DistributedDataParallel],
    ) -> None:
        if isinstance(roots, torch.Tensor):
            roots = (roots,)
        self.seen = None
        if not isinstance(roots, (list, tuple)):
            return
        terms = loss_terms([root for root in roots if isinstance(root, torch.Tensor)], gradients)
        if not terms:
            return
        line = self._line_of_factor(terms, frame, models)
        self.seen = LossSeen(terms, line)

    def _line_of_factor(
        self,
        terms: Iterable[LossTerm],
        frame: FrameType | None,
        models: Iterable[DistributedDataParallel],
    ) -> Site | None:
        """Looked for when a loss is first multiplied by as much as there are ranks."""
        ranks = float(dist.get_world_size())
        if ranks < 2 or not any(ranks in term.factors for term in terms):
            return None
        if not self._sought:
            self._sought = True
            files = dict.fromkeys([*files_of(frame), *map(_file_of, models)])
            self._line = line_of_factor(file for file in files if file and is_user_file(file))
        return self._line


def _file_of(model: DistributedDataParallel) -> str | None:
    """Where the class of the module within is written."""
    module = sys.modules.get(type(model.module).__module__)
    return getattr(module, "__file__", None)
