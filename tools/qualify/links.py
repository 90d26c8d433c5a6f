# SPDX-License-Identifier: GPL-2.0
"""The links between two machines, and what may be done to them."""

import ipaddress
from dataclasses import dataclass

from .probe import Address, Facts, Port

# The reason that may go by itself.
OTHERS = "others use RDMA on this machine"


@dataclass(frozen=True)
class End:
    port: Port
    address: Address


@dataclass(frozen=True)
class Link:
    number: int
    client: End
    server: End

    @property
    def name(self) -> str:
        return f"link {self.number}"

    @property
    def path(self) -> str:
        """As `ibnbd path` takes it."""
        return f"{self.client.address.ip},{self.server.address.ip}"

    @property
    def folder(self) -> str:
        """The path's name in sysfs."""
        return f"ip:{self.client.address.ip}@ip:{self.server.address.ip}"

    def end(self, side: str) -> End:
        return self.client if side == "client" else self.server


def find(server: Facts, client: Facts) -> list[Link]:
    """A link for each pair of interfaces whose addresses are in one network; IPv4 first."""
    ends = {facts.name: [End(port, address) for port in facts.ports for address in port.addresses]
            for facts in (server, client)}
    links: list[Link] = []
    for version in (4, 6):
        for near in ends["client"]:
            for far in ends["server"]:
                used = {end.port.interface for link in links for end in (link.client,)}
                taken = {end.port.interface for link in links for end in (link.server,)}
                if (near.address.address.version == version and near.address.address.network == far.address.address.network
                        and near.port.interface not in used and far.port.interface not in taken):
                    links.append(Link(len(links) + 1, near, far))
    return links


def named(server: Facts, client: Facts, pairs: list[str]) -> list[Link]:
    """The links between these addresses, each pair `CLIENT,SERVER`. Raises ValueError."""
    links = []
    for number, pair in enumerate(pairs, 1):
        addresses = pair.split(",")
        if len(addresses) != 2:
            raise ValueError(f"PATHS: {pair} is not CLIENT_ADDRESS,SERVER_ADDRESS")
        links.append(Link(number, _end(client, addresses[0]), _end(server, addresses[1])))
    return links


def _end(facts: Facts, text: str) -> End:
    wanted = str(ipaddress.ip_address(text))
    for port in facts.ports:
        for address in port.addresses:
            if address.ip == wanted:
                return End(port, address)
    raise ValueError(f"PATHS: no active RDMA device of the {facts.name} has the address {text}; see `rdma link` there")


def _stacked(facts: Facts, interface: str) -> set[str]:
    """Interfaces below and above this one, at any distance."""
    pairs = []
    for line in facts.text("lower").splitlines():
        upper, _, lower = line.removeprefix("/sys/class/net/").partition("/lower_")
        pairs.append((upper, lower))
    found, new = {interface}, {interface}
    while new:
        new = {other for pair in pairs for one, other in (pair, pair[::-1]) if one in found} - found
        found |= new
    return found - {interface}


def _routes(facts: Facts) -> list[dict] | None:
    """Those of IPv4 and of IPv6; None if some are not known. A kernel without IPv6 has none of these."""
    found: list[dict] = []
    for section in ("routes", "routes6"):
        routes = facts.json(section) if facts.text(section) else []
        if not facts.said(section) or not isinstance(routes, list):
            return None
        found += routes
    return found


# Of `ss`: the section, the column of the local address, and what a socket of this interface means.
SOCKETS = (("tcp", 2, "other programs have connections over it"),
           ("udp", 3, "a program has a UDP socket of it (`ss -uanp`): stop it, if it may"))


def _sockets(facts: Facts, interface: str) -> str | None:
    """Who has sockets with an address of the interface, or bound to it. A UDP socket without an address is not said to use
    any interface: nearly every machine has some."""
    own_addresses = facts.all_addresses(interface)
    for section, column, meaning in SOCKETS:
        if not facts.said(section):
            return "`ss` does not say who has connections over it"
        for words in map(str.split, facts.text(section).splitlines()):
            if len(words) <= column:
                continue
            # An address of one link only has the interface's name behind it.
            local, _, zone = words[column].rpartition(":")[0].strip("[]").partition("%")
            # So a socket for both families shows a connection of IPv4.
            local = local.removeprefix("::ffff:")
            if local in own_addresses or zone.rstrip("]") == interface:
                return meaning
    return None


def in_the_way(facts: Facts, end: End, own: int | None = 0) -> str | None:
    """Why the interface at this end of a link must not be disturbed; None if it may. `own` is the number of the run's own
    queue pairs."""
    interface = end.port.interface
    if not any((port.device, port.interface) == (end.port.device, interface) for port in facts.ports):
        return "its RDMA device is not active, or has no address, any more"
    ssh = facts.text("ssh").split()
    if len(ssh) != 4:
        return "it is not known which interface the commands come by"
    peer, here = ssh[0], ssh[2]
    used = {address.interface for address in facts.addresses if address.ip == here}
    if not used:
        return "it is not known which interface the commands come by"
    if interface in used or any(interface in _stacked(facts, one) for one in used):
        return "the commands come by this interface"
    if any(ipaddress.ip_address(peer) in address.address.network for address in facts.addresses
           if address.interface == interface and address.address.version == ipaddress.ip_address(peer).version):
        return "the commands come from its network"
    if _stacked(facts, interface):
        return "other interfaces are built on it, or it on them"
    known = _routes(facts)
    if known is None:
        return "`ip route` does not say which routes lead through it"
    routes = [route for route in known if route.get("dev") == interface and route.get("protocol") != "kernel"]
    if routes:
        return "routes lead through it, which would be lost"
    addresses = [address for address in facts.addresses if address.interface == interface]
    if any(address.dynamic and address.address.version == 4 for address in addresses):
        return "its address comes from DHCP and may not come back"
    if used_by := _sockets(facts, interface):
        return used_by
    pairs = facts.json("queue_pairs")
    if not facts.said("queue_pairs") or not isinstance(pairs, list) or own is None:
        return "`rdma resource show qp` does not say who uses RDMA"
    if len([pair for pair in pairs if pair.get("type") == "RC"]) > own:
        return OTHERS
    return None
