"""One recording in this process: what is installed, and how it ends."""

from __future__ import annotations

import datetime
import logging
import os
import secrets
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Final

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.events import GroupInfo, RunInfo
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.collectives import Collectives
from ddpdoctor.recorder.end_report import print_end_report
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.loader import LoaderHooks
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.rankfacts import rank_info
from ddpdoctor.recorder.registration import register
from ddpdoctor.recorder.sentinel import Sentinel
from ddpdoctor.recorder.training import TrainingHooks
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.tracefile import runs_folder

log = logging.getLogger("ddpdoctor")

AGREE_SECONDS: Final = 20.0  # how long a rank waits for rank 0 to name the run
_STORE_KEY: Final = "ddpdoctor/run_id"
_CLOSE_BEFORE_OTHERS: Final = 100  # priority of our finaliser: while files and threads still work


class Recorder:
    """Records this rank until the process ends. OSError when the folder cannot be written."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.rank, world_size = dist.get_rank(), dist.get_world_size()
        run = RunInfo(_agree_on_run_id(self.rank), _attempt(), world_size, str(dist.get_backend()))
        self.folder = runs_folder() / run.run_id / f"attempt-{run.attempt}"
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"rank{self.rank:05d}.ddt"
        self._file = RankFile(path, run, rank_info(self.rank, world_size))
        self._facts = FactsFile(path.with_suffix(".facts.jsonl"))
        self._sites = CallSites(self._facts.site)
        self._phases = Phases(self._file)
        self._collectives = Collectives(self._file, self._facts, self._phases, self._sites, guard)
        self._training = TrainingHooks(self._phases, self._collectives, self._sites, guard)
        self._loaders = LoaderHooks(self._phases, self._facts, self._sites, guard)
        self._sentinel = Sentinel(self._phases, self._sites, self._facts, guard)
        self._registration = _register(self.rank, world_size, self.folder)
        self._pid = os.getpid()
        self._closed = False

    def add(self, model: DistributedDataParallel) -> None:
        """Record the phases of this model too. Adding it twice is the same as once."""
        if model not in self._training:
            members = tuple(dist.get_process_group_ranks(model.process_group))
            self._facts.ddp(GroupInfo(private.group_key(model.process_group), members))
        self._training.add(model)

    def close(self) -> None:
        """Uninstall everything and close the files. Safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._training.remove()
        self._loaders.remove()
        self._collectives.remove()
        self._sentinel.stop()
        self._phases.finish()
        if self._file.dropped:
            self._facts.note(f"{self._file.dropped} detail records found no room in the budget")
        self._facts.cost(self.guard.cost_ns, self._phases.step)
        self.guard.active = False
        self._file.close()
        self._facts.close()
        if self._registration is not None:
            self._registration.unlink(missing_ok=True)


def begin() -> Recorder | None:
    """The recorder of this process, begun if need be; None where recording is off."""
    if _State.recorder is None and not _State.tried and _may_record():
        _State.tried = True
        guard = Guard(_warn_off)
        _State.recorder = guard.run(Recorder, guard)
        guard.cost_ns = 0  # what starting took is no cost of a step
        if _State.recorder is not None:
            _close_at_exit(_State.recorder, guard)
    return _State.recorder


class _State:
    recorder: Recorder | None = None
    tried = False


def _may_record() -> bool:
    if os.environ.get("DDPDOCTOR_DISABLE", "0") not in ("", "0"):
        return False
    return dist.is_available() and dist.is_initialized()


def _close_at_exit(recorder: Recorder, guard: Guard) -> None:
    """At the end of this process; multiprocessing's finalisers also run in its children."""

    def close() -> None:
        guard.active = True
        guard.run(recorder.close)
        if recorder.rank == 0:
            guard.active = True
            guard.run(print_end_report, recorder.folder)

    multiprocessing_util.Finalize(None, close, exitpriority=_CLOSE_BEFORE_OTHERS)
    os.register_at_fork(after_in_child=lambda: setattr(guard, "active", False))


def _warn_off(error: Exception) -> None:
    log.warning(
        "ddpdoctor: recording is off for this process; training goes on (%s: %s)",
        type(error).__name__, error,
    )  # fmt: skip


def _agree_on_run_id(rank: int) -> str:
    """Rank 0 names the run and tells the others through the store. Raises when it does not."""
    named = os.environ.get("DDPDOCTOR_RUN_ID")
    if named:
        return named
    store = private.default_store()
    if rank == 0:
        now = datetime.datetime.now(tz=datetime.UTC)
        run_id = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        store.set(_STORE_KEY, run_id)
        return run_id
    store.wait([_STORE_KEY], datetime.timedelta(seconds=AGREE_SECONDS))
    return str(store.get(_STORE_KEY), "utf-8")


def _attempt() -> int:
    """torchrun counts its restarts; each is an attempt of the same run."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(count) if count.isdigit() else 0


def _register(rank: int, world_size: int, folder: Path) -> Path | None:
    """Registering helps `diagnose` to find this process; recording does not depend on it."""
    try:
        return register(rank, world_size, folder)
    except OSError as error:
        log.info("ddpdoctor: not registered (%s)", error)
        return None
