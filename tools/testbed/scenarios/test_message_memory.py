# SPDX-License-Identifier: GPL-2.0
"""Memory of programs of two machines: GET and PUT, while paths are lost as well."""

import os
import random
import re
import time
from functools import partial

import pytest

from testbed import blockdev, message_programs
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.message_programs import bound, finish

pytestmark = pytest.mark.links(2)

SESSION = "/sys/class/ibtrs-client/demo"
start = partial(message_programs.start, program="message_memory")


def test_get_and_put(pair, session):
    server = start(pair.server, "serve", "kv")
    bound(pair.server)
    client = start(pair.client, "ask", "demo", "kv")
    finish(client, server)


@pytest.mark.fast
def test_get_and_put_by_io_uring(pair, session):
    server = start(pair.server, "serve", "kv")
    bound(pair.server)
    assert "done" in finish(start(pair.client, "ask_by_ring", "demo", "kv"), server)


def each_path(pair, *links: int) -> None:
    """Has paths lost, which connect again."""
    for link in links:
        path = f"{SESSION}/paths/ip:10.0.{link}.2@ip:{SERVER_ADDRESS.format(link=link)}"
        pair.client.run(f"echo 1 > {path}/disconnect; echo 1 > {path}/reconnect")
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")


@pytest.mark.fast
def test_what_is_put_stays_when_paths_are_lost(pair, session):
    """Each PUT is there before the message behind it, once and for all, whichever side publishes."""
    server = start(pair.server, "ledger", "kv")
    bound(pair.server)
    client = start(pair.client, "clerk", "demo", "kv", 2048, 30)
    for link in (1, 2, 1, 2, 1, 2):
        time.sleep(2)
        assert client.running and server.running, client.text + server.text
        each_path(pair, link)
    text = finish(client, server)
    print(text)
    assert max(map(int, re.findall(r"moves=(\d+)", text))) >= 3
    assert int(re.search(r"number=(\d+)", text).group(1)) >= 20


@pytest.mark.fast
def test_channels_share_the_regions_of_a_connection(pair, session):
    """Each of 30 channels wants 16 keys; a connection has 192, and each channel has its turn."""
    pair.client.run(f"for path in {SESSION}/paths/*@*{SERVER_ADDRESS.format(link=2)}; do echo 1 > $path/disconnect; done")
    wait_for(lambda: blockdev.connected(pair.client) == 1, 60, "one path is left")
    server = start(pair.server, "roomy", "kv", 30)
    bound(pair.server)
    assert "done" in finish(start(pair.client, "crowd", "demo", "kv", 30), server)


@pytest.mark.fast
def test_anything(pair, session):
    """IBTRS_FUZZ=<seconds> takes longer, IBTRS_SEED=<number> repeats the choices."""
    seed = int(os.environ.get("IBTRS_SEED") or random.randrange(1 << 32))
    seconds = os.environ.get("IBTRS_FUZZ", 15)
    print(f"IBTRS_SEED={seed}")
    server = start(pair.server, "fuzz", "-", "kv", seconds, seed)
    bound(pair.server)
    client = start(pair.client, "fuzz", "demo", "kv", seconds, seed)
    assert min(map(int, re.findall(r"^\d+$", finish(client, server), re.M))) > 100
    # Both machines go on.
    server = start(pair.server, "serve", "kv", 1 << 20)
    bound(pair.server)
    finish(start(pair.client, "ask", "demo", "kv", 1 << 20, 0, 5), server)
