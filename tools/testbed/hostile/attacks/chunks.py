# SPDX-License-Identifier: GPL-2.0
"""Chunks and their keys."""

import os
import time

from .. import wire
from ..client import Party
from ..verbs import Closed, Failed
from .table import DISK, ELSEWHERE, SLOW, SLOW_SECONDS, attack, named, opened


@named("two requests in one chunk")
def _():
    with Party().set_up() as party:
        device = opened(party, SLOW)
        party.post_io(device, wire.READ)
        party.post_io(device, wire.READ)
        party.wait_closed()


@named("one chunk by both connections")
def _():
    with Party().set_up() as party:
        device = opened(party, SLOW)
        party.post_io(device, wire.READ)
        party.post_io(device, wire.READ, by=party.service)
        party.wait_closed()


def on_disk(device_name: str, sector: int, length: int) -> bytes:
    """The data that a session of its own reads there."""
    with Party(name="look").set_up() as party:
        device = opened(party, device_name, wire.RO)
        assert party.submit(device, wire.READ, sector, length) == "OK"
        return party.returned(length)


OWN, PATH, SESSION = "its own path", "another path", "another session"


def other(whose: str, party: Party) -> Party:
    """A path that is not the party's: of its session, or of another one."""
    if whose == PATH:
        return Party(name="rewriter", session=party.session, source=ELSEWHERE)
    return Party(name="second", session=os.urandom(16))


def rewrites(length: int, whose: str = OWN):
    """Changes a write in its chunk while the disk has it."""
    def run():
        with Party(name="rewriter").set_up() as party, other(whose, party).set_up() as second:
            device = opened(party, SLOW)
            before, after = b"\x11" * length, b"\x22" * length
            by = (party if whose == OWN else second).io
            party.post_io(device, wire.WRITE, 0, length, before, chunk=3)
            time.sleep(SLOW_SECONDS / 3)
            addr, key = party.chunks[3]
            evil = after + party.io_header(device, wire.WRITE, 512, length) + wire.WRITE_REQUEST.pack(usr_len=32)
            taken = True
            try:
                by.pair.wait_sent(by.pair.write(evil, addr, key))
            except (Failed, Closed):
                taken = False
            if whose != OWN:
                assert not taken, f"a chunk could be written to over {whose}"
            if not taken and whose == OWN:
                # Its own path is gone.  What the disk has got is what was sent.
                time.sleep(SLOW_SECONDS)
            else:
                assert party.answer(party.io, 3) == 0
        assert on_disk(SLOW, 0, length) == before, "the disk has got what came later"
        assert on_disk(SLOW, 512, length) != after, "the header was read twice"
    return run


attack("write changed on its way to the disk, 4 KiB", rewrites(4096))
attack("write changed on its way to the disk, 16 KiB", rewrites(16384))
attack("write changed on its way to the disk, 60 KiB", rewrites(61440))
attack("write changed from another session, 4 KiB", rewrites(4096, SESSION))
attack("write changed from another session, 60 KiB", rewrites(61440, SESSION))
attack("write changed over another path, 4 KiB", rewrites(4096, PATH))
attack("write changed over another path, 60 KiB", rewrites(61440, PATH))


@named("second attempt that is no request")
def _():
    """Its answer means that the first one is over, too, which the other path still has in service."""
    with Party(name="rewriter").set_up() as party, other(PATH, party).set_up() as second:
        device = opened(party, SLOW)
        user = party.io_header(device, wire.WRITE)
        began = time.monotonic()
        party.post_write(party.io, 3, user, bytes(4096))
        time.sleep(SLOW_SECONDS / 5)
        second.post_write(second.io, 3, user, bytes(4096), type=99)
        assert second.answer(second.io, 3) != 0
        took = time.monotonic() - began
        assert took > 0.9 * SLOW_SECONDS, f"answered after {took:.2f} s"
        party.wait_closed()


def refused(post):
    """A request of the device for memory of the server's that the device refuses."""
    def run():
        with Party(name="one").set_up() as party:
            device = opened(party, DISK)
            assert party.submit(device, wire.WRITE, 0, 61440, b"\x33" * 61440) == "OK"
            try:
                party.io.pair.wait_sent(post(party))
            except (Failed, Closed):
                return
            raise AssertionError("taken")
    return run


def stale_key(party: Party) -> int:
    """Writes by the key that a chunk had before the last request."""
    old = party.chunks[4]
    device = opened(party, DISK)
    assert party.submit(device, wire.WRITE, 0, 61440, bytes(61440), chunk=4) == "OK"
    assert party.chunks[4][1] != old[1], "the chunk has the key that it had"
    return party.io.pair.write(b"x", *old)


attack("key of an earlier request", refused(stale_key))
attack("chunk is read", refused(lambda p: p.io.pair.read(*p.chunks[1], 64)))
attack("write before a chunk", refused(lambda p: p.io.pair.write(b"x" * 8, p.chunks[1][0] - 8, p.chunks[1][1])))
attack("write beyond a chunk", refused(lambda p: p.io.pair.write(b"x" * 8, p.chunks[1][0] + p.chunk_size, p.chunks[1][1])))
for key in (0, 0xFFFFFFFF):
    attack(f"write by key {key:#x}", refused(lambda p, k=key: p.io.pair.write(b"x", p.chunks[1][0], k)))


@named("chunk that another session has")
def _():
    with Party(name="one").set_up() as victim, Party(name="two").set_up() as thief:
        try:
            thief.io.pair.wait_sent(thief.io.pair.write(b"x" * 64, *victim.chunks[1]))
        except (Failed, Closed):
            victim.heartbeat()
            return
        raise AssertionError("a session can write to the chunks of another one")


@named("chunk of an earlier path")
def _():
    with Party(name="one", epoch=1) as party:
        party.set_up()
        old = party.chunks[1]
        party.leave()
        time.sleep(0.5)
        with Party(name="two").set_up() as thief:
            try:
                thief.io.pair.wait_sent(thief.io.pair.write(b"x" * 64, *old))
            except (Failed, Closed):
                return
    raise AssertionError("the chunks of a path that was closed can be written to")


@named("own chunk's key invalidated")
def _():
    """A client that breaks its own chunk harms only itself: the server answers, or ends the path."""
    with Party().set_up() as party:
        device = opened(party, DISK)
        party.io.pair.send_inv(party.chunks[1][1])
        time.sleep(0.2)
        try:
            party.post_io(device, wire.READ)
            party.answer(party.io, 1)
        except (Closed, TimeoutError):
            pass
