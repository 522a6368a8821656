"""Memory that was let go, given back to the system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """What many small pieces took the C library keeps, and large ones do not fit into it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
