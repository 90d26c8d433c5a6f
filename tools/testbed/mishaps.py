# SPDX-License-Identifier: GPL-2.0
"""Faults of the paths of a pair: each is a context that disturbs a link, and restores it at the end."""

from contextlib import contextmanager

from .guest import Guest
from .lab import Pair, together

# With room for everything that waits, see Pair.wire().
ALL_WELL = "netem limit 20000"


def device_anew(pair: Pair, guest: Guest, link: int) -> None:
    """Makes soft-RoCE's device of a link again.  Its queue pair for the messages
    of the connection manager stays broken when one of them could not be
    handed to the network."""
    if pair.rdma == "rxe":
        guest.run(f"{pair.remove_device(guest.name, link)} && {pair.add_device(guest.name, link)}")


@contextmanager
def interface_down(pair: Pair, guest: Guest, link: int):
    guest.run(f"ip link set eth{link - 1} down")
    yield
    guest.run(together(pair.wire(guest.name, link)))
    device_anew(pair, guest, link)


@contextmanager
def cable_out(pair: Pair, guest: Guest, link: int):
    guest.cable(link, False)
    yield
    guest.cable(link, True)
    device_anew(pair, guest, link)


@contextmanager
def device_gone(pair: Pair, guest: Guest, link: int):
    guest.run(pair.remove_device(guest.name, link))
    yield
    guest.run(pair.add_device(guest.name, link))


def make_ready(pair: Pair) -> None:
    """Before the sessions that packets of theirs get lost or late: while a
    queueing discipline replaces another, packets are refused,
    which soft-RoCE does not get over."""
    for guest in pair:
        guest.run("modprobe sch_netem" + "".join(
            f" && tc qdisc replace dev eth{link} root {ALL_WELL}" for link in range(pair.links)))


@contextmanager
def _netem(guest: Guest, link: int, what: str):
    """Something happens to whatever the guest sends by a link."""
    nic = f"eth{link - 1}"
    guest.run(f"tc qdisc change dev {nic} root {ALL_WELL} {what}")
    yield
    guest.run(f"tc qdisc change dev {nic} root {ALL_WELL}")


def losing(guest: Guest, link: int, percent: int):
    """So much of what the guest sends by a link gets lost."""
    return _netem(guest, link, f"loss {percent}%")


def late(guest: Guest, link: int, milliseconds: int):
    """Packets that the guest sends over a link arrive late."""
    return _netem(guest, link, f"delay {milliseconds}ms")
