"""One recording in this process: what is installed, and how it ends."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack, suppress
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor import marks
from ddpdoctor.events import FACTS_SUFFIX, GroupInfo, RunInfo
from ddpdoctor.laststacks import STACKS_SUFFIX
from ddpdoctor.notices import mention, warn
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder import joinwatch
from ddpdoctor.recorder.backup import Backup
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.clocksync import ClockSync
from ddpdoctor.recorder.collectives import Collectives
from ddpdoctor.recorder.end_report import print_end_report
from ddpdoctor.recorder.ending import Ending
from ddpdoctor.recorder.exchanged import Exchanged
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.launchwatch import LaunchWatch
from ddpdoctor.recorder.loader import LoaderHooks
from ddpdoctor.recorder.modelfacts import Models
from ddpdoctor.recorder.named import NamedSpans
from ddpdoctor.recorder.naming import agree_on_attempt, claimed_attempt
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.placement import Placement
from ddpdoctor.recorder.rankfacts import rank_info
from ddpdoctor.recorder.registration import register
from ddpdoctor.recorder.sentinel import Sentinel
from ddpdoctor.recorder.server import WorkerServer
from ddpdoctor.recorder.stalls import StallWatch
from ddpdoctor.recorder.switch import ControlFile, RecordingSwitch
from ddpdoctor.recorder.timers import DeviceTimedFile, timed
from ddpdoctor.recorder.training import TrainingHooks
from ddpdoctor.recorder.usercalls import UserCalls
from ddpdoctor.recorder.waits import Waits
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.schedule import CONTROL_FILE, FIRST_STEP, Schedule, Switch
from ddpdoctor.settings import Settings

_MB: Final = 1024 * 1024
_CLOSE_BEFORE_OTHERS: Final = 100  # priority of our finaliser: while files and threads still work


class Recorder:
    """Records this rank until the process ends. OSError when the folder cannot be written."""

    def __init__(self, guard: Guard, settings: Settings, device: torch.device) -> None:
        self.guard = guard
        self.settings = settings
        self.rank, world_size = dist.get_rank(), dist.get_world_size()
        runs = Path(settings.dir).absolute()  # the script may change its folder
        run_id, attempt = agree_on_attempt(runs)
        if world_size == 1:
            attempt = claimed_attempt(runs / run_id, attempt)
        run = RunInfo(run_id, attempt, world_size, str(dist.get_backend()))
        self.folder = runs / run_id / f"attempt-{attempt}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.place = Placement(self.folder / f"rank{self.rank:05d}.ddt", self.rank)
        path = self.place.path
        info = rank_info(self.rank, world_size, device)
        self._file = RankFile(path, run, info, settings.budget_mb * _MB)
        self._file.every = settings.detail_every
        self._facts = FactsFile(path.with_suffix(FACTS_SUFFIX))
        self._sites = CallSites(self._facts.site)
        self._cost_ns = 0  # of the steps that were recorded, while none is
        self._timed = timed(self._file, device)
        switch = RecordingSwitch(Schedule.of(settings.steps), self._turned)
        self._phases = Phases(self._timed, switch)
        self._facts.parts(self._phases.parts.measured())
        self._named = NamedSpans(self._file, self._facts, self._phases, guard)
        self._collectives = Collectives(self._timed, self._facts, self._phases, self._sites, guard)
        self._waits = Waits(self._phases, self._collectives, self._sites, guard)
        self._models = Models(self._facts.model, self._phases, self._sites, guard)
        self._collectives.exchanged = Exchanged(self._models, self._facts.model, self._sites)
        self._calls = UserCalls(self._models, guard)
        self._training = TrainingHooks(
            self._phases, self._collectives, self._models, self._sites, guard
        )
        self._loaders = LoaderHooks(self._phases, self._facts, self._sites, guard)
        self._ending = Ending(self._phases, self._facts, guard)
        self._backup = Backup(path.with_suffix(STACKS_SUFFIX), self._facts)
        stalls = StallWatch(self._phases, self._sites, self._facts, self._file, self._backup)
        control = ControlFile(
            self.folder / CONTROL_FILE,
            switch,
            lambda: self._phases.sync + 1,
            self._file.progress,
            self._facts.note,
        )
        self._sentinel = Sentinel(
            self._phases, self._sites, self._facts, guard, stalls, control.poll, self._file.flush
        )
        self._clock = ClockSync(info, self._facts.clock, guard)
        self._launch = LaunchWatch(info, self._facts.process)
        self._registration = _register(self.rank, world_size, self.place)
        self._server = WorkerServer()
        marks.send_to(self._named)
        self._pid = os.getpid()
        self._closed = False

    def add(self, model: DistributedDataParallel) -> None:
        """Record the phases of this model too. Adding it twice is the same as once."""
        if model not in self._training:
            members = tuple(dist.get_process_group_ranks(model.process_group))
            self._facts.ddp(GroupInfo(private.group_key(model.process_group), members))
            self._models.add(model)
            self._calls.add(model)
        self._training.add(model)
        self._launch.begin(model)

    def _turned(self, switch: Switch) -> None:
        """Recording goes on or off with this step."""
        if self._sites.recording and not switch.on:
            self._cost_ns = self.guard.cost_ns if switch.sync > FIRST_STEP else 0
        elif switch.on and not self._sites.recording:
            self.guard.cost_ns = self._cost_ns
        self._sites.recording = switch.on
        self._timed.record(switch.on)
        self._file.every = switch.detail_every or self.settings.detail_every
        self._facts.switched(switch)

    def close(self) -> None:
        """Uninstall everything and close the files. Safe to call twice.

        Each part is closed although another one fails; the first error is raised then.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        marks.send_to(None)
        with ExitStack() as last_first:
            if self._registration is not None:
                last_first.callback(self._registration.unlink, missing_ok=True)
            last_first.callback(self._server.close)
            last_first.callback(self.place.bring_home)
            last_first.callback(self._facts.close)
            last_first.callback(self._file.close)
            last_first.callback(self._write_last_facts)
            last_first.callback(self._close_timer)
            last_first.callback(self._phases.finish)
            last_first.callback(self._backup.close)
            last_first.callback(self._named.write_sums)
            last_first.callback(self._models.finish)
            last_first.callback(self._sentinel.stop)
            last_first.callback(self._clock.stop)
            last_first.callback(self._launch.stop)
            last_first.callback(self._collectives.remove)
            last_first.callback(self._waits.remove)
            last_first.callback(self._loaders.remove)
            last_first.callback(self._training.remove)
            last_first.callback(self._calls.remove)
            last_first.callback(self._ending.remove)
            last_first.callback(self._ending.note_if_none)
        self.guard.active = False

    def _write_last_facts(self) -> None:
        kept = math.lcm(self._file.stride, self._file.every)
        if kept > 1:
            self._facts.note(f"only steps divisible by {kept} are kept in detail, and the newest")
        cost_ns = self.guard.cost_ns if self._sites.recording else self._cost_ns
        self._facts.cost(cost_ns, self._phases.steps_written)

    def _close_timer(self) -> None:
        if isinstance(self._timed, DeviceTimedFile):
            self._timed.close()
            clock_us = self._timed.clock.error_ns / 1e3
            self._facts.note(
                f"times of the GPU are known to {clock_us:.0f} µs against its host's clock; "
                f"{self._timed.untimed} records have times of the host"
            )

    def stop(self, error: Exception) -> None:
        """Recording ends here, and the header says why; training goes on."""
        self._file.stop(f"{type(error).__name__}: {error}")


def begin(settings: Settings, device: torch.device) -> Recorder | None:
    """The recorder of this process, begun if need be; None where it cannot begin."""
    if _State.recorder is None and not _State.tried and dist.is_initialized():
        _State.tried = True
        guard = Guard(_warn_off)
        _State.recorder = guard.run(Recorder, guard, settings, device)
        if _State.recorder is not None:
            joinwatch.forget()
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
        reports = recorder.settings.report and recorder.place.answers
        if recorder.rank == 0 and reports:
            Guard(_say_nothing).run(print_end_report, recorder.folder)

    multiprocessing_util.Finalize(None, close, exitpriority=_CLOSE_BEFORE_OTHERS)
    os.register_at_fork(after_in_child=lambda: setattr(guard, "active", False))


def _say_nothing(error: Exception) -> None:
    mention("%s: %s", type(error).__name__, error)


def _warn_off(error: Exception) -> None:
    warn(
        "recording is off for this process; training goes on (%s: %s)",
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
        mention("not registered (%s)", error)
        return None
