"""One recording in this process: what is installed, and how it ends."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack, suppress
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Final

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.events import GroupInfo, RunInfo
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.clocksync import ClockSync
from ddpdoctor.recorder.collectives import Collectives
from ddpdoctor.recorder.end_report import print_end_report
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.loader import LoaderHooks
from ddpdoctor.recorder.naming import agree_on_attempt
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.placement import FACTS_SUFFIX, Placement
from ddpdoctor.recorder.rankfacts import rank_info
from ddpdoctor.recorder.registration import register
from ddpdoctor.recorder.sentinel import Sentinel
from ddpdoctor.recorder.training import TrainingHooks
from ddpdoctor.recorder.waits import Waits
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.tracefile import runs_folder

log = logging.getLogger("ddpdoctor")

_CLOSE_BEFORE_OTHERS: Final = 100  # priority of our finaliser: while files and threads still work


class Recorder:
    """Records this rank until the process ends. OSError when the folder cannot be written."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.rank, world_size = dist.get_rank(), dist.get_world_size()
        runs = runs_folder().absolute()  # the script may change its folder
        run_id, attempt = agree_on_attempt(runs)
        run = RunInfo(run_id, attempt, world_size, str(dist.get_backend()))
        self.folder = runs / run_id / f"attempt-{attempt}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.place = Placement(self.folder / f"rank{self.rank:05d}.ddt", self.rank)
        self._file = RankFile(self.place.path, run, rank_info(self.rank, world_size))
        self._facts = FactsFile(self.place.path.with_suffix(FACTS_SUFFIX))
        self._sites = CallSites(self._facts.site)
        self._phases = Phases(self._file)
        self._collectives = Collectives(self._file, self._facts, self._phases, self._sites, guard)
        self._waits = Waits(self._phases, self._collectives, self._sites, guard)
        self._training = TrainingHooks(self._phases, self._collectives, self._sites, guard)
        self._loaders = LoaderHooks(self._phases, self._facts, self._sites, guard)
        self._sentinel = Sentinel(
            self._phases, self._sites, self._facts, guard, lambda: self._file.records
        )
        self._clock = ClockSync(self._file.rank, self._facts.clock, guard)
        self._registration = _register(self.rank, world_size, self.place)
        self._pid = os.getpid()
        self._closed = False

    def add(self, model: DistributedDataParallel) -> None:
        """Record the phases of this model too. Adding it twice is the same as once."""
        if model not in self._training:
            members = tuple(dist.get_process_group_ranks(model.process_group))
            self._facts.ddp(GroupInfo(private.group_key(model.process_group), members))
        self._training.add(model)

    def close(self) -> None:
        """Uninstall everything and close the files. Safe to call twice.

        Each part is closed although another one fails; the first error is raised then.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with ExitStack() as last_first:
            if self._registration is not None:
                last_first.callback(self._registration.unlink, missing_ok=True)
            last_first.callback(self.place.bring_home)
            last_first.callback(self._facts.close)
            last_first.callback(self._file.close)
            last_first.callback(self._write_last_facts)
            last_first.callback(self._phases.finish)
            last_first.callback(self._sentinel.stop)
            last_first.callback(self._clock.stop)
            last_first.callback(self._collectives.remove)
            last_first.callback(self._waits.remove)
            last_first.callback(self._loaders.remove)
            last_first.callback(self._training.remove)
        self.guard.active = False

    def _write_last_facts(self) -> None:
        if self._file.stride > 1:
            self._facts.note(f"only steps divisible by {self._file.stride} are kept in detail")
        self._facts.cost(self.guard.cost_ns, max(0, self._phases.step - 1))

    def stop(self, error: Exception) -> None:
        """Recording ends here, and the header says why; training goes on."""
        self._file.stop(f"{type(error).__name__}: {error}")


def begin() -> Recorder | None:
    """The recorder of this process, begun if need be; None where it cannot begin."""
    if _State.recorder is None and not _State.tried and dist.is_initialized():
        _State.tried = True
        guard = Guard(_warn_off)
        _State.recorder = guard.run(Recorder, guard)
        if _State.recorder is not None:
            _close_at_exit(_State.recorder, guard)
    return _State.recorder


class _State:
    recorder: Recorder | None = None
    tried = False


def _close_at_exit(recorder: Recorder, guard: Guard) -> None:
    """At the end of this process; multiprocessing's finalisers also run in its children."""

    def close() -> None:
        stopped = not guard.active  # and said so then
        Guard(_say_nothing if stopped else _warn_off).run(recorder.close)
        if recorder.rank == 0 and recorder.place.answers:
            Guard(_say_nothing).run(print_end_report, recorder.folder)

    multiprocessing_util.Finalize(None, close, exitpriority=_CLOSE_BEFORE_OTHERS)
    os.register_at_fork(after_in_child=lambda: setattr(guard, "active", False))


def _say_nothing(error: Exception) -> None:
    log.info("ddpdoctor: %s: %s", type(error).__name__, error)


def _warn_off(error: Exception) -> None:
    log.warning(
        "ddpdoctor: recording is off for this process; training goes on (%s: %s)",
        type(error).__name__, error,
    )  # fmt: skip
    recorder = _State.recorder
    if recorder is not None:
        with suppress(OSError):  # the same disk may be full
            recorder.stop(error)


def _register(rank: int, world_size: int, place: Placement) -> Path | None:
    """Registering helps `diagnose` to find this process; recording does not depend on it."""
    try:
        return register(rank, world_size, place.home.parent, place.path)
    except OSError as error:
        log.info("ddpdoctor: not registered (%s)", error)
        return None
