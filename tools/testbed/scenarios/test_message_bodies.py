# SPDX-License-Identifier: GPL-2.0
"""Messages whose body stays in the memory of the program that sends them, until the other one releases it."""

import re
import time
from functools import partial

import pytest

from testbed import blockdev, message_programs, mishaps
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.message_programs import bound, finish, load_both

pytestmark = pytest.mark.links(2)

SESSION = "/sys/class/ibtrs-client/demo"

start = partial(message_programs.start, program="message_bodies")


@pytest.fixture
def session(pair, stack):
    """Two paths with message connections, and a disk."""
    load_both(pair)
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)


def number(name: str, text: str) -> int:
    return int(re.search(rf"{name}=(\d+)", text)[1])


@pytest.mark.fast
def test_bodies_are_got_and_released(pair, session):
    server = start(pair.server, "borrower", "kv")
    bound(pair.server)
    text = finish(start(pair.client, "lender", "demo", "kv", 5), server)
    print(text)
    assert number("number", text) == number("heard", text) > 10


@pytest.mark.fast
def test_bodies_are_whole_when_paths_are_lost(pair, session):
    """Each has one receipt, when it was released, and not before."""
    server = start(pair.server, "borrower", "kv")
    bound(pair.server)
    client = start(pair.client, "lender", "demo", "kv", 25)
    for link in (1, 2, 1, 2):
        time.sleep(2)
        assert client.running and server.running, client.text + server.text
        path = f"{SESSION}/paths/ip:10.0.{link}.2@ip:{SERVER_ADDRESS.format(link=link)}"
        pair.client.run(f"echo 1 > {path}/disconnect; echo 1 > {path}/reconnect")
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    text = finish(client, server)
    print(text)
    assert number("moves", text) >= 2 and number("number", text) == number("heard", text) > 20


@pytest.mark.fast
def test_what_is_refused_and_how_bodies_end(pair, session):
    server = start(pair.server, "strict_borrower", "kv")
    bound(pair.server)
    assert finish(start(pair.client, "strict_lender", "demo", "kv"), server).count("done") == 2


@pytest.mark.fast
def test_a_program_that_reads_no_receipts_sends_no_more_bodies(pair, session):
    server = start(pair.server, "borrower", "kv")
    bound(pair.server)
    text = finish(start(pair.client, "deaf_lender", "demo", "kv"), server)
    assert number("heard", text) == number("number", text) + 1


@pytest.mark.fast
def test_a_body_is_taken_back_after_the_other_program_has_closed(pair, session):
    server = start(pair.server, "closer", "kv")
    bound(pair.server)
    assert finish(start(pair.client, "late_unmapper", "demo", "kv"), server).count("done") == 2


@pytest.mark.fast
@pytest.mark.parametrize("how", ("kill", "exec", "close", "shutdown"))
def test_the_sender_ends_while_its_bodies_are_got(pair, session, how):
    server = start(pair.server, "keeper", "kv")
    bound(pair.server)
    client = start(pair.client, "ender", "demo", "kv", how)
    wait_for(lambda: "getting" in server.text, 60, "the bodies are got")
    pair.client.run("touch /tmp/go")
    assert number("got", finish(server)) >= 8
    pair.client.run("rm /tmp/go")
    if how in ("close", "shutdown"):
        assert "done" in finish(client)
    # A path that was broken comes back.
    wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")


@pytest.mark.fast
def test_a_program_that_takes_no_bodies_gets_none(pair, session):
    server = message_programs.start(pair.server, "serve", "kv", 1 << 16, program="message_memory")
    bound(pair.server)
    assert "done" in finish(start(pair.client, "plain", "demo", "kv"))
    server.kill()
