# SPDX-License-Identifier: GPL-2.0
"""The causes of a failover that software can make, each with what undoes it."""

import shlex
from dataclasses import dataclass

from . import changes, users
from .changes import OWN, SESSION
from .links import Link, in_the_way
from .probe import OURS, Facts
from .undo import Change


@dataclass(frozen=True)
class Cause:
    name: str
    # The machine that it happens to, and what happens there.
    side: str
    change: Change
    # What is lost: one path, all paths, or nothing.
    loses: str = "path"
    # Besides, on the other machine.
    also: Change | None = None
    # Why it is left out.
    skipped: str = ""


def path_disconnected(link: Link) -> Cause:
    return Cause("path disconnected by its client", "client", Change(
        "path disconnected", f"ibnbd path disconnect {SESSION} {link.path} --force",
        f"ibnbd path reconnect {SESSION} {link.path} || true", urgent=True))


def path_drained(link: Link) -> Cause:
    return Cause("path drained", "client", Change(
        "path drained", f"ibnbd path drain {SESSION} {link.path}",
        changes.tolerant(f"ibnbd path drain {SESSION} {link.path} --undo"), urgent=True), loses="nothing")


def path_closed(link: Link) -> Cause:
    """The client connects it again by itself."""
    return Cause("path closed by its server", "server", Change(
        "path closed", f"ibnbd disconnect {SESSION} {link.folder}", "true"), loses="moment")


def port_down(facts: Facts, link: Link, own: int | None = 0) -> Cause:
    side, interface = facts.name, link.end(facts.name).port.interface
    name = f"port down at the {side}"
    reason = in_the_way(facts, link.end(side), own)
    if not reason and not facts.said("neighbours"):
        reason = "`ip neigh` does not say which permanent neighbours it has, which would be lost"
    return Cause(name, side, _down(facts, link), skipped=f"{interface}: {reason}" if reason else "")


def _down(facts: Facts, link: Link) -> Change:
    """A port that goes down loses its IPv6 addresses unless it is told to keep them, and its permanent
    neighbours. Soft-RoCE does not get over it: its device is made again."""
    port = link.end(facts.name).port
    interface = shlex.quote(port.interface)
    keep = f"/proc/sys/net/ipv6/conf/{port.interface}/keep_addr_on_down"
    kept = dict(line.rsplit(":", 1) for line in facts.text("keep").splitlines()).get(keep, "0")
    neighbours = "".join(
        f"; ip neigh replace {one['dst']} lladdr {one['lladdr']} dev {interface} nud permanent"
        for one in facts.json("neighbours") or [] if one.get("dev") == port.interface and "lladdr" in one)
    remade = there = ""
    if port.driver == "rxe":
        there = f" && rdma link show {port.device}/1 > /dev/null"
        remade = f"; rdma link del {port.device}; rdma link add {port.device} type rxe netdev {interface}"
    return Change(f"port down {port.interface}",
                  f"[ ! -e {keep} ] || echo 1 > {keep}\nip link set {interface} down",
                  f"ip link set {interface} up{neighbours}{remade}; [ ! -e {keep} ] || echo {kept} > {keep}; "
                  f"ip link show {interface} up | grep -q .{there}", urgent=True)


def drops(interface: str, peer: str) -> Change:
    """Loses what comes from the peer, without a word to either side."""
    family = "ip6" if ":" in peer else "ip"
    rules = (f"table inet {changes.PACKETS} {{ chain input {{ type filter hook input priority -300; policy accept; "
             f'iifname "{interface}" {family} saddr {peer} drop; }}; }}')
    return Change("packets dropped", f"echo {shlex.quote(rules)} | nft -f -",
                  f"! nft list table inet {changes.PACKETS} > /dev/null 2>&1 || nft delete table inet {changes.PACKETS}",
                  urgent=True)


def silence(server: Facts, client: Facts, link: Link, own: int | None = 0) -> Cause:
    """As a switch that has stopped: both ends lose what comes, and links stay up."""
    skipped = ""
    for facts in (server, client):
        end = link.end(facts.name)
        reason = in_the_way(facts, end, own)
        if not end.port.software:
            reason = "packets of this card do not pass the network stack, so software cannot drop them"
        elif "nft" not in facts.words("programs"):
            reason = "the program nft is not there: apt install nftables"
        elif "nf_tables" not in facts.modules:
            reason = "its kernel has no nf_tables"
        if reason:
            skipped = f"{facts.name}, {end.port.interface}: {reason}"
    return Cause("packets lost in silence", "client",
                 drops(link.client.port.interface, link.server.address.ip),
                 also=drops(link.server.port.interface, link.client.address.ip), skipped=skipped)


def drained(server: Facts) -> Cause:
    return Cause("server drained", "server", Change(
        "server drained", "ibnbd drain", changes.tolerant("ibnbd drain --undo"), urgent=True), loses="all",
        skipped="; ".join(users.of(server, OWN)))


def reloaded(server: Facts, exports: dict[str, str]) -> Cause:
    """The server's modules are unloaded in good order, and loaded again."""
    skipped = ""
    theirs = [name for name in OURS["server"][1:] if name in server.words("now") and name not in server.words("ours")]
    if not server.said("now"):
        skipped = "/proc/modules does not say which modules are loaded"
    elif theirs:
        skipped = f"others have loaded {', '.join(theirs)}, perhaps with parameters that nothing would give back"
    elif (ports := server.items("port list", "ports")) is None:
        skipped = "`ibnbd port list` does not say whether the server has ports, which would be lost"
    elif ports:
        skipped = "the server has ports (`ibnbd port list`), which would be lost"
    else:
        skipped = "; ".join(users.of(server, OWN))
    names = " ".join(exports)
    again = "; ".join([f"ibnbd host list --output json | grep -q {SESSION} || {{ {changes.host().do}; }}",
                       *(f"ibnbd export list --output json | grep -q {name} || {{ {changes.export(name, device).do}; }}"
                         for name, device in exports.items())])
    return Cause("server's modules loaded again", "server", Change(
        "modules unloaded",
        # `ibnbd host remove` would remove the key as well.
        f"ibnbd drain\nfor e in {names}; do ibnbd export remove $e --force; done\n"
        f"rmdir /sys/kernel/config/ibnbd/hosts/{SESSION}\nrmmod ibnbd_server ibtrs_server",
        f"ibnbd drain --undo; modprobe ibnbd_server && {{ {again}; }}", urgent=True), loses="all", skipped=skipped)


def all_of(server: Facts, client: Facts, links: list[Link], exports: dict[str, str], own: int | None = 0) -> list[Cause]:
    """The last link is the one that is lost: the first one may be the one by which the commands come. `own` is the number
    of queue pairs that the run itself has at each end."""
    link = links[-1]
    return [path_drained(link), path_disconnected(link), path_closed(link), port_down(client, link, own),
            port_down(server, link, own), silence(server, client, link, own), drained(server), reloaded(server, exports)]
