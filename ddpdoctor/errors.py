"""What can go wrong for a user, each with a sentence that says what to do."""

from __future__ import annotations


class DdpDoctorError(Exception):
    """Base of every error that the CLI prints as one clear sentence (exit status 2)."""


class NotARun(DdpDoctorError):
    """The folder holds no rank file, or no run can be found."""


class BadTraceFile(DdpDoctorError):
    """One rank file cannot be read; the message names the file and the place."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason


class TorchMissing(DdpDoctorError):
    """Recording was asked for in an environment without torch."""


class BadLaunch(DdpDoctorError):
    """`check` was told of nodes in a way that cannot be."""


class UnknownCheck(DdpDoctorError):
    """`explain` was asked for a code or name that no check has."""


class CannotSwitch(DdpDoctorError):
    """Recording cannot be switched on or off: the run has ended, or its folder is closed to us."""


class NothingToDiagnose(DdpDoctorError):
    """No rank of a DDP job can be looked at on this host; the message says why."""
