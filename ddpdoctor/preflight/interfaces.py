"""Network interfaces of this host and their addresses; names resolved within a bounded time."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import threading
from pathlib import Path
from typing import Final

from ddpdoctor.launchfacts import Interface, InterfaceKind, Network

RESOLVE_S: Final = 5.0  # a resolver without a server answers after some 10 s, or never
_SIOCGIFADDR: Final = 0x8915
_IFF_UP: Final = 0x1
_IFF_LOOPBACK: Final = 0x8
_NAME_BYTES: Final = 15
_MOST: Final = 64
_BRIDGES: Final = (
    "docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "podman", "lxc", "lxdbr",
)  # fmt: skip


def network(sys_root: Path = Path("/sys")) -> Network:
    """What this host has, and where its own name leads."""
    found = [_interface(name, sys_root) for _, name in socket.if_nameindex()[:_MOST]]
    addresses = resolve(socket.gethostname())
    infiniband = sys_root / "class/infiniband"
    return Network(
        tuple(found),
        addresses[0] if addresses else None,
        infiniband.is_dir() and any(infiniband.iterdir()),
    )


def _interface(name: str, sys_root: Path) -> Interface:
    folder = sys_root / "class/net" / name
    flags = _flags(folder)
    if flags & _IFF_LOOPBACK:
        kind = InterfaceKind.LOOPBACK
    elif name.startswith(_BRIDGES) or (folder / "bridge").exists():
        kind = InterfaceKind.BRIDGE
    else:
        kind = InterfaceKind.CARD
    address = _ipv4(name) or _ipv6(name)
    return Interface(name, address, bool(flags & _IFF_UP), kind, _speed_mbit(folder))


def _flags(folder: Path) -> int:
    try:
        return int((folder / "flags").read_text(encoding="ascii"), 16)
    except (OSError, ValueError):
        return 0


def _speed_mbit(folder: Path) -> int | None:
    try:
        speed = int((folder / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no link, or a driver that does not tell
        return None
    return speed if 0 < speed < 10_000_000 else None


def _ipv4(name: str) -> str:
    request = struct.pack("256s", name.encode()[:_NAME_BYTES])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
        except OSError:  # no address of this kind
            return ""
    return socket.inet_ntoa(answer[20:24])


def _ipv6(name: str) -> str:
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()
        if len(fields) == 6 and fields[5] == name:
            return str(ipaddress.IPv6Address(int(fields[0], 16)))
    return ""


def resolve(name: str, timeout_s: float = RESOLVE_S) -> tuple[str, ...]:
    """Addresses of a name, IPv4 first; none where it is unknown or nobody answers in time."""
    found: list[str] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        answers.sort(key=lambda answer: answer[0] != socket.AF_INET)
        found.extend(str(answer[4][0]) for answer in answers)

    asking = threading.Thread(target=ask, name="ddpdoctor-resolve", daemon=True)
    asking.start()
    asking.join(timeout_s)
    return tuple(dict.fromkeys(found))
