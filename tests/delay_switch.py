"""A switch between network namespaces that holds each packet back: `delay_switch.py MS NAME...`

This kernel may have no netem, so each namespace gets a TUN device `eth0` with the address
10.77.0.<n>, whose other end is this process. Says "ready" and runs until it is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from typing import NoReturn

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 9000
DESTINATION = 19  # last byte of the address in an IPv4 header


def open_tun(namespace: str, number: int) -> int:
    """A device in the namespace, and its end here. This process stays in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    inside = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(inside, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(inside)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI))
    for command in (f"addr add 10.77.0.{number}/24 dev eth0", f"link set eth0 mtu {MTU} up"):
        subprocess.run(["ip", *command.split()], check=True)
    return tun


def forward(tuns: list[int], delay_s: float) -> NoReturn:
    """Every packet waits equally long, so that they leave in the order in which they came."""
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        patience_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for tun in select.select(tuns, (), (), patience_s)[0]:
            packet = os.read(tun, MTU)
            if packet[0] >> 4 == 4 and 1 <= packet[DESTINATION] <= len(tuns):
                to = tuns[packet[DESTINATION] - 1]
                waiting.append((time.monotonic() + delay_s, to, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, packet = waiting.popleft()
            os.write(to, packet)


if __name__ == "__main__":
    ends = [open_tun(name, number) for number, name in enumerate(sys.argv[2:], 1)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    forward(ends, float(sys.argv[1]) / 1000)
