"""GPUs that this process would see, by the driver's /proc files: no CUDA context, no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ddpdoctor.launchfacts import Device

DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_MAX_BYTES: Final = 64 * 1024


def visible_devices(
    variables: dict[str, str], driver: Path = DRIVER, nodes: Path = Path("/dev")
) -> tuple[Device, ...]:
    """The GPUs in the order of their index, as CUDA_VISIBLE_DEVICES leaves them."""
    present = _present(driver, nodes)
    chosen = variables.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    found: list[Device] = []
    for entry in chosen.split(","):
        device = _named(entry.strip(), present)
        if device is None:  # CUDA ignores what follows an entry that is none
            break
        found.append(device)
    return tuple(found)


def _present(driver: Path, nodes: Path) -> tuple[Device, ...]:
    """By their place on the bus, those that this container may open."""
    try:
        folders = sorted(driver.iterdir())
    except OSError:
        return ()
    found = []
    for folder in folders:
        fields = _fields(folder / "information")
        if (nodes / f"nvidia{fields.get('Device Minor', '')}").exists():
            uuid = fields.get("GPU UUID", folder.name)
            found.append(Device(uuid, fields.get("Model", "")))
    return tuple(found)


def _fields(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _named(entry: str, present: tuple[Device, ...]) -> Device | None:
    if entry.isdecimal() and len(entry) < 6:
        return present[int(entry)] if int(entry) < len(present) else None
    if entry.startswith("MIG-"):
        return Device(entry)
    named = [device for device in present if entry and device.uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None
