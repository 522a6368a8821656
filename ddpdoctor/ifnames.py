"""Which interface a rank's backend takes, by GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME. No I/O."""

from __future__ import annotations

from ddpdoctor.launchfacts import Interface, InterfaceKind, LaunchFacts, Network, Process, Reach

GLOO = "GLOO_SOCKET_IFNAME"
NCCL = "NCCL_SOCKET_IFNAME"
FASTER = 4  # times the speed: from 100 Mbit/s to 1, or from 1 Gbit/s to 10 or 25


def matching(variable: str, value: str, network: Network) -> tuple[Interface, ...]:
    """The interfaces that a value of the variable names on this host."""
    if variable == GLOO:
        names = value.split(",")
        return tuple(each for each in network.interfaces if each.name in names)
    excludes, exact = value.startswith("^"), value.startswith(("=", "^="))
    names = [name for name in value.lstrip("^=").split(",") if name]
    return tuple(
        each
        for each in network.interfaces
        if excludes != any(each.name == n if exact else each.name.startswith(n) for n in names)
    )


def problem_of(variable: str, process: Process, *, spans_hosts: bool) -> str | None:
    """What is wrong with the value of a variable on a process's host; None where nothing is."""
    value = process.environment.get(variable, "")
    if not value:
        return None
    if variable == GLOO and value.startswith(("^", "=")):
        return f"{variable}={value} is NCCL's way of writing: gloo takes plain names"
    found = matching(variable, value, process.network)
    absent = _absent(variable, value, process.network)
    if not found or absent:
        return f"{variable}={value} names no interface of this host ({_names(process.network)})"
    usable = [each for each in found if each.address and each.up]
    if not usable:
        return f"{variable}={value}: {found[0].name} is down or has no address"
    if spans_hosts and all(each.kind is not InterfaceKind.CARD for each in usable):
        first = usable[0]
        return (
            f"{variable}={value} is {_named(first.kind)} ({first.name}, {first.address}), which "
            "does not lead to other hosts"
        )
    return None


def _absent(variable: str, value: str, network: Network) -> bool:
    """Whether one of gloo's names is missing: unlike NCCL it wants every one of them."""
    present = {each.name for each in network.interfaces}
    return variable == GLOO and not set(value.split(",")) <= present


def default_problem(process: Process) -> str | None:
    """What is wrong with the address that gloo takes by itself when ranks are on several hosts."""
    address = process.network.own_address
    if process.environment.get(GLOO):
        return None
    if address is None:
        return "its own host name has no address, so gloo falls back to loopback"
    kinds = {each.address: each.kind for each in process.network.interfaces}
    kind = InterfaceKind.LOOPBACK if is_loopback(address) else kinds.get(address)
    if kind is None or kind is InterfaceKind.CARD:
        return None
    return (
        f"its own host name leads to {address}, {_named(kind)}: gloo would tell the other hosts to "
        "connect there"
    )


def cards(network: Network) -> tuple[Interface, ...]:
    """Interfaces that may lead to other hosts."""
    return tuple(
        each
        for each in network.interfaces
        if each.kind is InterfaceKind.CARD and each.up and each.address
    )


def used_by(process: Process, backend: str) -> Interface | None:
    """The card that the backend takes on this process's host, where that is clear."""
    value = process.environment.get(NCCL if backend == "nccl" else GLOO, "")
    if value:
        found = matching(NCCL if backend == "nccl" else GLOO, value, process.network)
    else:
        own = process.network.own_address if backend != "nccl" else None
        found = tuple(each for each in process.network.interfaces if own and each.address == own)
    return found[0] if len(found) == 1 and found[0].kind is InterfaceKind.CARD else None


def faster_card(process: Process, used: Interface) -> Interface | None:
    """The fastest other card of this host, where it is much faster by what its driver says."""
    if used.speed_mbit is None:
        return None
    others = [each for each in cards(process.network) if each != used and each.speed_mbit]
    best = max(others, key=lambda each: each.speed_mbit or 0, default=None)
    much = best is not None and (best.speed_mbit or 0) >= FASTER * used.speed_mbit
    return best if much else None


def meets_on_loopback(launch: LaunchFacts) -> bool:
    """Whether ranks of several hosts were told to meet at an address that each has for itself."""
    met = launch.rendezvous
    if met is None or met.reach is Reach.REACHED or not met.resolved:
        return False
    return launch.spans_hosts and all(is_loopback(address) for address in met.resolved)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _named(kind: InterfaceKind) -> str:
    return "loopback" if kind is InterfaceKind.LOOPBACK else "a container's bridge"


def _names(network: Network) -> str:
    shown = [each.name for each in network.interfaces][:8]
    return "it has " + ", ".join(shown) if shown else "it shows none"
