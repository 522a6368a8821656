"""What a rank is doing, judged by its stack, and whether it moves at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ddpdoctor.hang.snapshot import RankProcess, ThreadStack
from ddpdoctor.stackframes import Frame, Origin

READ_WAKES: Final = 2  # of a rank that reads from a socket; a single one may be a timeout
READ_RATE: Final = 2.0  # a second: retries after timeouts are rarer
LOADER_WAKES: Final = 2  # torch's queue polls every 5 s; a batch that comes wakes it more often
WRAPPERS: Final = frozenset({"wrapper", "_fn", "_call_impl", "_wrapped_call_impl", "inner"})
_COLLECTIVE_FILES: Final = ("torch/distributed/", "torch/nn/parallel/distributed.py")
_LOADER_FILE: Final = "torch/utils/data/dataloader.py"
_JOINING: Final = frozenset({"init_process_group", "_new_process_group_helper", "rendezvous"})
_LEAVING: Final = frozenset(
    {"destroy_process_group", "_shutdown", "_run_finalizers", "_exit_function"}
)
_SOCKET_FILES: Final = ("/socket.py", "/ssl.py")
_READS: Final = re.compile(r"\.(recv|recv_into|recvfrom|read|readinto|readline)\(")
_IMPORTLIB: Final = "<frozen importlib"
_WORK_WAIT: Final = re.compile(r"\.wait\(")  # a method in C++ leaves no frame of its own
_STORE_CALL: Final = re.compile(r"\.(get|wait|add|set|check|multi_get)\(")  # on a socket
_DEVICE_CALL: Final = re.compile(r"\.(item|cpu|tolist|numpy|synchronize)\(")


class Activity(Enum):
    COLLECTIVE = auto()  # in a collective, or in the backward that ends with one
    STORE = auto()  # waits for a key that another rank sets
    JOINING = auto()  # in init_process_group
    LEAVING = auto()  # takes the process group down, or is past its last line
    DEVICE = auto()  # waits for its GPU, which may wait in a collective
    LOADER = auto()  # waits for, or makes, a batch
    ELSEWHERE = auto()
    UNKNOWN = auto()  # no stack


@dataclass(frozen=True)
class Place:
    """What a rank does and where. `call` is torch's function, or what the line says."""

    activity: Activity
    call: str = ""
    frame: Frame | None = None  # innermost of the user's code, else of a library

    @property
    def text(self) -> str:
        if self.frame is None:
            return "an unknown place"
        return f"{self.frame.file.rsplit('/', 1)[-1]}:{self.frame.line}"


def place_of(rank: RankProcess) -> Place:
    """Where a rank is, by its main thread."""
    thread = rank.main_thread
    if thread is None:
        return Place(Activity.UNKNOWN)
    below = _below_script(thread)
    activity = _activity(below, thread, rank)
    return Place(activity, _call(below, thread), _shown(thread))


def is_waiting(place: Place) -> bool:
    """Whether a rank can only go on when others do."""
    return place.activity in (
        Activity.COLLECTIVE, Activity.STORE, Activity.JOINING, Activity.DEVICE,
    )  # fmt: skip


def moves(rank: RankProcess) -> bool:
    """Whether a rank did something between the looks.

    Computing on a GPU and waiting for one both keep a CPU busy, so there the frames decide. A rank
    that stands in a collective sleeps until it completes: that its main thread woke is enough. One
    that waits for its loader looks up every five seconds, and more often only when batches come.
    """
    movement = rank.movement
    activity = place_of(rank).activity
    woke = movement.main_thread_woke or 0
    if movement.path_changed:
        return True
    if rank.on_gpu:
        return movement.stack_changed
    if activity is Activity.COLLECTIVE:
        return movement.is_at_work or woke > 0
    if movement.is_at_work or rank.helpers.is_at_work:
        return True
    if activity is Activity.ELSEWHERE and _reads_from_a_socket(rank):
        return woke > READ_WAKES and woke > READ_RATE * movement.watched_s
    return activity is Activity.LOADER and woke > LOADER_WAKES


def _reads_from_a_socket(rank: RankProcess) -> bool:
    """Then each wake-up is data that came; /proc counts no bytes that `recv` gets."""
    thread = rank.main_thread
    innermost = thread.frames[0] if thread and thread.frames else None
    if innermost is None:
        return False
    return innermost.file.endswith(_SOCKET_FILES) or bool(_READS.search(innermost.text or ""))


def _below_script(thread: ThreadStack) -> tuple[Frame, ...]:
    """Frames of torch and Python (and the recorder) below the innermost line of the script."""
    for index, frame in enumerate(thread.frames):
        if frame.is_script:
            return thread.frames[:index]
    return thread.frames


def _activity(below: tuple[Frame, ...], thread: ThreadStack, rank: RankProcess) -> Activity:
    functions = {_bare(frame) for frame in below}
    files = [frame.file for frame in below]
    in_collective = any(part in file for file in files for part in _COLLECTIVE_FILES)
    in_loader = any(frame.file.endswith(_LOADER_FILE) for frame in thread.frames)
    signs = (  # the first that holds
        (not thread.frames, Activity.UNKNOWN),
        (is_importing(thread), Activity.ELSEWHERE),
        (bool(functions & _LEAVING), Activity.LEAVING),
        (not any(frame.is_script for frame in thread.frames), Activity.LEAVING),
        (bool(functions & _JOINING), Activity.JOINING),
        (in_collective or "_engine_run_backward" in functions, Activity.COLLECTIVE),
        (in_loader, Activity.LOADER),
        (any("torch/cuda/" in file for file in files), Activity.DEVICE),
    )
    found = next((activity for holds, activity in signs if holds), None)
    return found or _by_text(below, thread, rank)


def is_importing(thread: ThreadStack) -> bool:
    """Whether a module is being loaded: its lines may lie in torch, and do nothing of torch's."""
    for index, frame in enumerate(thread.frames):
        if frame.file.startswith(_IMPORTLIB):
            inside = thread.frames[:index]
            return not any("torch/" in f.file and f.function != "<module>" for f in inside)
    return False


def _by_text(below: tuple[Frame, ...], thread: ThreadStack, rank: RankProcess) -> Activity:
    """Calls into C++ have no frame: the line's own text must tell."""
    text = thread.frames[0].text or "" if not below else ""
    if _STORE_CALL.search(text) and "poll" in rank.wchan:
        return Activity.STORE
    if _WORK_WAIT.search(text) and "futex" in rank.wchan:
        return Activity.COLLECTIVE
    if rank.on_gpu and _DEVICE_CALL.search(text):
        return Activity.DEVICE
    return Activity.ELSEWHERE


def _bare(frame: Frame) -> str:
    return frame.function.rsplit(".", 1)[-1]


def _call(below: tuple[Frame, ...], thread: ThreadStack) -> str:
    """The function that the script called: the outermost that is no wrapper."""
    if is_importing(thread):
        return "import"
    for frame in reversed(below):
        if _bare(frame) not in WRAPPERS and frame.origin is not Origin.RECORDER:
            return _bare(frame)
    innermost = thread.frames[0] if thread.frames else None
    match = re.search(r"([\w.]+)\(", innermost.text or "") if innermost else None
    return match[1] if match else ""


def _shown(thread: ThreadStack) -> Frame | None:
    """The line to show: the innermost of the user's own code."""
    users = [frame for frame in thread.frames if frame.is_user]
    scripts = [frame for frame in thread.frames if frame.is_script]
    return next(iter(users or scripts), None)
