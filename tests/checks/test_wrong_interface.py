"""DD408."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.findings import Severity
from ddpdoctor.launchfacts import Interface, LaunchFacts, Network, PortHolder, Reach
from tests.launch_builders import (
    DOCKER,
    LOOPBACK,
    codes,
    gpus,
    launch,
    met,
    only_finding,
    process,
    two_hosts,
)
from tests.link_builders import baseline


def test_a_name_that_no_interface_has() -> None:
    wrong = {"GLOO_SOCKET_IFNAME": "eth7"}

    code, finding = only_finding(launch(process(0), process(1, environment=wrong)))

    assert code == "DD408"
    assert finding.culprits == (1,)
    assert finding.message == (
        "rank 1 on node0: GLOO_SOCKET_IFNAME=eth7 names no interface of this host (it has lo, "
        "eth0, docker0)"
    )
    assert "as eth0" in finding.fix


@pytest.mark.parametrize("value", ["^docker0", "=eth0"])
def test_the_way_nccl_writes_it_is_not_for_gloo(value: str) -> None:
    wrong = {"GLOO_SOCKET_IFNAME": value}

    _, finding = only_finding(launch(process(0, environment=wrong)))

    assert "gloo takes plain names" in finding.message


@pytest.mark.parametrize(
    "variables",
    [
        {"GLOO_SOCKET_IFNAME": "eth0"},
        {"NCCL_SOCKET_IFNAME": "eth"},  # a prefix
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_SOCKET_IFNAME": "=eth0"},
    ],
)
def test_names_of_the_card_are_clean(variables: dict[str, str]) -> None:
    assert codes(two_hosts(environment=variables, devices=gpus(1))) == []


def test_a_containers_bridge_does_not_lead_to_other_hosts() -> None:
    _, finding = only_finding(two_hosts(environment={"NCCL_SOCKET_IFNAME": "docker0"},
                                        devices=gpus(1)))  # fmt: skip

    assert "docker0, 172.17.0.1" in finding.message
    assert finding.severity is Severity.ERROR


def test_on_one_host_loopback_will_do() -> None:
    loopback = {"GLOO_SOCKET_IFNAME": "lo"}

    assert codes(launch(*(process(rank, environment=loopback) for rank in (0, 1)))) == []


@pytest.mark.parametrize("address", ["127.0.1.1", DOCKER.address])
def test_a_host_name_that_leads_to_itself_only(address: str) -> None:
    """As /etc/hosts of Debian has it, or a container runtime."""
    interfaces = process(1, "node1").network.interfaces

    _, finding = only_finding(two_hosts(network=Network(interfaces, address)))

    assert finding.culprits == (1,)
    assert f"its own host name leads to {address}" in finding.message


def test_the_same_host_name_is_no_matter_where_the_card_is_named() -> None:
    interfaces = process(1, "node1").network.interfaces
    network = Network(interfaces, "127.0.1.1")

    assert codes(two_hosts(network=network, environment={"GLOO_SOCKET_IFNAME": "eth0"})) == []
    assert codes(launch(process(0, network=network), process(1, network=network))) == []


def test_ranks_that_came_together_do_not_doubt_their_address() -> None:
    interfaces = process(1, "node1").network.interfaces
    network = Network(interfaces, "127.0.1.1")

    assert codes(two_hosts(network=network, backend="gloo")) == []


def test_the_variable_of_the_other_backend_is_a_hint() -> None:
    wrong = {"NCCL_SOCKET_IFNAME": "ib9"}

    _, finding = only_finding(two_hosts(environment=wrong, backend="gloo"))

    assert finding.severity is Severity.INFO


def test_a_port_that_another_job_holds() -> None:
    holder = PortHolder(29500, 4242, "python other.py")
    facts = LaunchFacts((process(0),), 2, met(Reach.TAKEN, holder=holder))

    code, finding = only_finding(facts)

    assert code == "DD408"
    assert "port 29500 of node0 is held by pid 4242 (python other.py)" in finding.message


def test_before_launching_a_held_port_is_a_hint() -> None:
    alone = process(None, world_size=None, local_rank=None, local_world_size=None)
    facts = LaunchFacts((alone,), port=PortHolder(29500, None))

    _, finding = only_finding(facts)

    assert finding.severity is Severity.INFO


def test_an_address_that_no_name_server_knows() -> None:
    facts = LaunchFacts((process(0),), 2, met(Reach.NO_NAME, resolved=()))

    _, finding = only_finding(facts)

    assert "leads to no address" in finding.message


def test_loopback_as_the_address_of_several_hosts() -> None:
    rank = process(1, "node1", local_world_size=1)
    facts = LaunchFacts((rank,), 2, met(Reach.REFUSED, resolved=("127.0.0.1",)))

    code, finding = only_finding(facts)

    assert code == "DD408"  # and not DD407, although nobody listens on this host
    assert "node0 is loopback, and the ranks are on several hosts" in finding.message


def test_two_launchers_on_one_host_may_meet_on_loopback() -> None:
    loopback = Network((LOOPBACK,), "127.0.0.1")
    ranks = [process(rank, local_world_size=1, node_rank=rank, network=loopback)
             for rank in (0, 1)]  # fmt: skip

    assert codes(launch(*ranks, rendezvous=met(resolved=("127.0.0.1",)))) == []


def test_a_host_without_any_card_names_none() -> None:
    bare = Network((LOOPBACK,), "127.0.0.1")

    assert codes(launch(process(0, network=bare), process(1, network=bare))) == []


SLOW_CARD = Interface("eth0", "10.0.0.2", True, speed_mbit=100)
FAST_CARD = Interface("eth1", "10.1.0.2", True, speed_mbit=10_000)


def measured(busbw: float, *cards: Interface) -> LaunchFacts:
    """Rank 1's host has these cards; its own name leads to the first."""
    network = Network((LOOPBACK, *cards), cards[0].address)
    return replace(two_hosts(network=network), network=baseline(busbw=busbw))


def test_a_slow_card_beside_a_faster_one_is_named_by_its_rate() -> None:
    _, finding = only_finding(measured(0.0115, SLOW_CARD, FAST_CARD))

    assert finding.culprits == (1,)
    assert "eth1" in finding.fix
    assert "100 Mbit/s" in finding.message


@pytest.mark.parametrize(
    ("busbw", "cards"),
    [
        (0.0115, (SLOW_CARD,)),  # there is no other
        (0.9, (SLOW_CARD, FAST_CARD)),  # faster than that card: it is not in use
        (0.001, (SLOW_CARD, FAST_CARD)),  # far slower than that card: something else limits
        (0.0115, (replace(SLOW_CARD, speed_mbit=None), FAST_CARD)),
        (0.11, (replace(SLOW_CARD, speed_mbit=1000), replace(FAST_CARD, speed_mbit=2500))),
    ],
)
def test_a_rate_that_does_not_speak_for_another_card_is_clean(busbw: float, cards: tuple) -> None:
    assert codes(measured(busbw, *cards)) == []
