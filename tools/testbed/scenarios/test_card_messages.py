# SPDX-License-Identifier: GPL-2.0
"""Messages and memory between programs over two cards that do DMA (Documentation/card.md): one machine has a session
with itself, so that the programs are on both ends of it."""

import re
import time
from functools import partial

import pytest

from testbed import blockdev, card, message_programs
from testbed.guest import wait_for
from testbed.message_programs import bound, finish, load_both
from testbed.stack import STACKS

OURS = STACKS["ibtrs"]

pytestmark = [pytest.mark.rdma("card"), pytest.mark.links(2), pytest.mark.fast]

start = partial(message_programs.start, program="message_memory")


class Both:
    """The one guest, where a server and a client are expected."""

    def __init__(self, guest):
        self.server = self.client = guest


@pytest.fixture
def session(solo):
    """Two paths with message connections, and a disk."""
    load_both([solo])
    blockdev.map_two_paths(Both(solo), OURS)


def reads(guest) -> int:
    """The RDMA READs of both cards."""
    return sum(card.counts(guest, f"card{number}")["reads"] for number in (0, 1))


def test_get_and_put(solo, session):
    before = reads(solo)
    server = start(solo, "serve", "kv")
    bound(solo)
    finish(start(solo, "ask", "demo", "kv"), server)
    # 40 GETs, of up to four parts each: the peer's kernel pushes none.
    assert 40 <= reads(solo) - before
    server = start(solo, "serve", "kv")
    bound(solo)
    assert "done" in finish(start(solo, "ask_by_ring", "demo", "kv"), server)
    assert card.reports(solo) == {}


def test_what_is_put_stays_when_a_card_fails(solo, session):
    """One after the other; the channel moves to the other one meanwhile."""
    server = start(solo, "ledger", "kv")
    bound(solo)
    client = start(solo, "clerk", "demo", "kv", 2048, 20)
    for number in (0, 1, 0, 1):
        time.sleep(2)
        assert client.running and server.running, client.text + server.text
        solo.run(f"echo 1 > {card.FOLDER}/card{number}/fatal")
        wait_for(lambda: blockdev.connected(solo) == 2, 60, "both paths are connected")
    text = finish(client, server)
    print(text)
    assert max(map(int, re.findall(r"moves=(\d+)", text))) >= 2
    assert card.reports(solo) == {}


@pytest.fixture
def late(solo):
    """Cards that answer an RDMA READ when what was sent after it has arrived, as they may, and have reported nothing."""
    card.forget(solo)
    solo.run("echo Y > /sys/module/rdma_card/parameters/timing")
    yield
    solo.run("echo N > /sys/module/rdma_card/parameters/timing")


@pytest.mark.parametrize("how", ("unmap", "close", "kill"))
def test_memory_is_taken_back_under_use(solo, session, late, how):
    """What the peer's card writes to or reads afterwards would be reported as unmapped, or as a dead key."""
    server = start(solo, "besieged", "kv", 3 << 20, how)
    bound(solo)
    client = start(solo, "besiege", "demo", "kv", 3 << 20)
    wait_for(lambda: "copying" in client.text, 60, "the peer puts and gets")
    solo.run("touch /tmp/go")
    print(finish(client))
    solo.run("rm /tmp/go")
    wait_for(lambda: blockdev.connected(solo) == 2, 60, "both paths are connected")
    # A key that died with its program while a write or a read was on its way.
    assert set(card.reports(solo)) <= ({"bad_rkey"} if how == "kill" else set())
    card.forgive(solo)


@pytest.mark.parametrize("how", ("kill", "shutdown"))
def test_a_program_ends_while_it_reads(solo, session, late, how):
    """The peer's kernel takes its keys back when it hears of the end: no read may still need one, or the path is lost."""
    server = start(solo, "shelf", "kv", 3 << 20)
    bound(solo)
    client = start(solo, "reader", "demo", "kv", 3 << 20, how)
    client.wait(120, check=False)
    print(client.text)
    if how == "shutdown":
        assert set(re.findall(r"\d+:(\w+)", client.text)) <= {"EPIPE", "ESTALE", "ECANCELED"}
    assert "done" in finish(server)
    assert card.reports(solo) == {} and blockdev.connected(solo) == 2


def test_anything(solo, session):
    server = start(solo, "fuzz", "-", "kv", 10, 4711)
    bound(solo)
    client = start(solo, "fuzz", "demo", "kv", 10, 4711)
    assert min(map(int, re.findall(r"^\d+$", finish(client, server), re.M))) > 20
    assert set(card.reports(solo)) <= {"bad_rkey"}
    card.forgive(solo)
