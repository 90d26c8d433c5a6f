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


def test_get_and_put(solo, session):
    server = start(solo, "serve", "kv")
    bound(solo)
    finish(start(solo, "ask", "demo", "kv"), server)
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


@pytest.mark.parametrize("how", ("unmap", "kill"))
def test_memory_is_taken_back_under_puts(solo, session, how):
    """What the peer's card writes to afterwards would be reported as unmapped, or as a dead key."""
    server = start(solo, "besieged", "kv", 3 << 20, how)
    bound(solo)
    client = start(solo, "besiege", "demo", "kv", 3 << 20)
    wait_for(lambda: "putting" in client.text, 60, "the peer puts")
    solo.run("touch /tmp/go")
    print(finish(client))
    solo.run("rm /tmp/go")
    wait_for(lambda: blockdev.connected(solo) == 2, 60, "both paths are connected")
    # A key that died while a write was on its way.
    assert set(card.reports(solo)) <= {"bad_rkey"}
    card.forgive(solo)


def test_anything(solo, session):
    server = start(solo, "fuzz", "-", "kv", 10, 4711)
    bound(solo)
    client = start(solo, "fuzz", "demo", "kv", 10, 4711)
    assert min(map(int, re.findall(r"^\d+$", finish(client, server), re.M))) > 20
    assert set(card.reports(solo)) <= {"bad_rkey"}
    card.forgive(solo)
