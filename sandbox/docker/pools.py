"""How many networks a Docker engine can still make: its address pools hold about thirty by default, for everyone.

Sandboxes take none of them. What runs beside us does (compose projects, a test's services), and an engine without a
free subnet refuses every new network.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

from sandbox.docker.client import CALL_S, Client, answering
from sandbox.spec import Record

DEFAULTS = (
    *((f"172.{second}.0.0/16", 16) for second in (17, 18, 19)),
    *((f"172.{second}.0.0/14", 16) for second in (20, 24, 28)),
    ("192.168.0.0/16", 20),
)
"""Base and prefix length of each pool of an engine that is not configured otherwise."""


class AddressPools(Record):
    """Subnets of one engine."""

    subnets: int
    free: int
    networks: int
    """Networks that there are, those outside the pools and without addresses too."""


def free_subnets(pools: Iterable[tuple[str, int]], used: Iterable[str]) -> tuple[int, int]:
    """Subnets of the pools in all, and those that overlap with none that is used."""
    taken = [network for network in map(_network, used) if isinstance(network, IPv4Network)]
    subnets = [
        subnet
        for base, size in pools
        if isinstance(network := _network(base), IPv4Network)
        for subnet in network.subnets(new_prefix=size)
    ]
    return len(subnets), sum(not any(subnet.overlaps(other) for other in taken) for subnet in subnets)


def _network(written: str) -> IPv4Network | IPv6Network:
    """Docker takes any address of a subnet for its base."""
    return ip_network(written, strict=False)


async def address_pools(url: str | None = None) -> AddressPools:
    """Raises: EngineFault, EngineUnavailable."""
    async with Client(url) as client:
        with answering("asking for its networks", CALL_S):
            info = await client.ask("GET", "info")
            networks = await client.ask("GET", "networks")
    pools = [(pool["Base"], int(pool["Size"])) for pool in info.get("DefaultAddressPools") or ()] or DEFAULTS
    used = [
        part["Subnet"]
        for network in networks
        for part in (network.get("IPAM") or {}).get("Config") or ()
        if part.get("Subnet")
    ]
    subnets, free = free_subnets(pools, used)
    return AddressPools(subnets=subnets, free=free, networks=len(networks))
