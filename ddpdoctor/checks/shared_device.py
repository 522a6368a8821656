"""DD402 shared-device: ranks share a GPU, or have none of their own.

What it measures
    The GPUs that each process sees, by their unique ids, and which of them it uses: in a recorded
    run the device of its model, before training the one of its local rank's number.

Why it matters
    Two ranks on one GPU halve each other's speed and memory, and NCCL refuses it as a duplicate. A
    rank whose number is beyond the GPUs that it sees ends with an invalid device ordinal.

What to do
    `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything touches a GPU, as many
    ranks a host as GPUs, and `map_location` when a checkpoint is loaded.

When it is wrong
    Ranks that share a GPU on purpose, as in a test on a small machine. Before training the number
    of the GPU is assumed; a script that chooses another one is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.checks import NotEnoughData, launch_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.launchfacts import Device, LaunchFacts, Process
from ddpdoctor.wording import rank_list

if TYPE_CHECKING:  # a launch check loads no pandas
    from ddpdoctor.analysis.model import Analysis

_FIX = (
    'Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first, and start as many ranks a '
    "host as it has GPUs (--nproc-per-node gpu)."
)


@launch_check("DD402", "shared-device")
def shared_device(launch: LaunchFacts) -> Iterator[Finding]:
    ranked = [process for process in launch.processes if process.rank is not None]
    on_gpu = [process for process in ranked if process.devices]
    if not on_gpu:
        raise NotEnoughData("no rank sees a GPU" if ranked else "no rank was asked for its device")
    yield from _shared(on_gpu)
    beyond = [process for process in on_gpu if _index(process) >= len(process.devices)]
    if beyond:
        yield _without_device(beyond)


@trace_check("DD402", "shared-device")
def shared_device_in_record(run: Analysis) -> Iterator[Finding]:
    from ddpdoctor.analysis.launched import recorded_launch

    launch = recorded_launch(run.run)
    if not launch.processes:
        raise NotEnoughData("no rank told of its device, limits and network")
    yield from shared_device(launch)


def _shared(processes: list[Process]) -> Iterator[Finding]:
    users: dict[tuple[str, str], list[Process]] = defaultdict(list)
    for process in processes:
        device = _device(process)
        if device is not None:
            users[process.host, device.uuid].append(process)
    for (host, uuid), sharing in users.items():
        ranks = tuple(sorted({process.rank for process in sharing if process.rank is not None}))
        if len(ranks) < 2:
            continue
        known = all(process.device is not None for process in sharing)
        uses = "use" if known else "would use"
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN if known else Confidence.LIKELY,
            message=f"{rank_list(ranks)} {uses} the same GPU of {host}",
            fix=_FIX,
            culprits=ranks,
            evidence=(Evidence("GPU", uuid), *(_sees(process) for process in sharing)),
        )


def _without_device(beyond: list[Process]) -> Finding:
    ranks = tuple(sorted(process.rank for process in beyond if process.rank is not None))
    first = beyond[0]
    count = len(first.devices)
    verb = "has" if len(ranks) == 1 else "have"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"{rank_list(ranks)} {verb} no GPU: local rank {_index(first)} of {first.host}, which "
            f"shows it {count} GPU{'s' * (count != 1)}"
        ),
        fix=_FIX,
        culprits=ranks,
        evidence=tuple(_sees(process) for process in beyond),
    )


def _index(process: Process) -> int:
    """The one it uses, else the one that it would by convention.

    Where a launcher shows each rank one GPU only, that has the number 0.
    """
    if process.device is not None:
        return process.device
    return 0 if len(process.devices) == 1 else process.local_rank or 0


def _device(process: Process) -> Device | None:
    index = _index(process)
    return process.devices[index] if index < len(process.devices) else None


def _sees(process: Process) -> Evidence:
    visible = process.environment.get("CUDA_VISIBLE_DEVICES", "(not set)")
    return Evidence(
        f"rank {process.rank}, local rank {process.local_rank}",
        f"{len(process.devices)} visible, CUDA_VISIBLE_DEVICES {visible}",
    )
