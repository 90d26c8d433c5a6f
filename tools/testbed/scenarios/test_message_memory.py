# SPDX-License-Identifier: GPL-2.0
"""Memory of programs of two machines: GET and PUT, what takes it back, and that nothing reaches it afterwards."""

import os
import random
import re
import time
from functools import partial

import pytest

from testbed import blockdev, faults, message_programs, mishaps
from testbed.faults import Function
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.message_programs import bound, finish, load_both

pytestmark = pytest.mark.links(2)

SESSION = "/sys/class/ibtrs-client/demo"
# By which programs pin, map and register memory.
FUNCTIONS = (Function("pin_user_pages_fast", depth=2), Function("mmu_notifier_register"), faults.BY_NAME["ib_map_mr_sg"],
             faults.BY_NAME["ib_alloc_mr"], faults.BY_NAME["krealloc_node_align_noprof"],
             faults.BY_NAME["kvrealloc_node_align_noprof"])

start = partial(message_programs.start, program="message_memory")


@pytest.fixture
def session(pair, stack):
    """Two paths with message connections, and a disk."""
    load_both(pair)
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)


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


@pytest.mark.parametrize("how", ("unmap", "nowait", "close", "exec", "kill"))
def test_memory_is_taken_back_under_use(pair, session, how):
    server = start(pair.server, "besieged", "kv", 3 << 20, how)
    bound(pair.server)
    client = start(pair.client, "besiege", "demo", "kv", 3 << 20)
    wait_for(lambda: "copying" in client.text, 60, "the peer puts and gets")
    pair.server.run("touch /tmp/go")
    text = finish(client)
    pair.server.run("rm /tmp/go")
    if how in ("unmap", "nowait", "close"):
        assert "free" in finish(server)
    print(text)
    # The others close the channel as well.
    allowed = {"ESTALE", "EIO"} | (set() if how in ("unmap", "nowait") else {"EPIPE", "ECANCELED", "ECONNABORTED"})
    assert set(re.findall(r"\d+:(\w+)", text)) <= allowed
    # The path that was broken comes back.
    wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")


def test_what_can_be_published(pair, session):
    server = start(pair.server, "serve", "kv", 1 << 16)
    bound(pair.server)
    assert "done" in finish(start(pair.client, "refusals", "demo", "kv"))
    server.kill()
    pair.client.run("python3 /tmp/message_memory.py local", timeout=60)


def test_published_memory_is_limited(pair, session):
    """Of the channels to a portal, over a session, and of a host that has proved its name."""
    rules = "/sys/kernel/config/ibmsg"
    pair.client.run(f"mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config; mkdir {rules}/sessions/demo")
    server = start(pair.server, "serve", "kv", 1 << 16)
    bound(pair.server)
    assert "done" in finish(start(pair.client, "limited", "demo", "kv", f"{rules}/sessions/demo"))
    server.kill()
    pair.client.run(f"rmdir {rules}/sessions/demo")


@pytest.mark.fast
def test_channels_share_the_regions_of_a_connection(pair, session):
    """Each of 30 channels wants 16 keys; a connection has 192, and each channel has its turn."""
    pair.client.run(f"for path in {SESSION}/paths/*@*{SERVER_ADDRESS.format(link=2)}; do echo 1 > $path/disconnect; done")
    wait_for(lambda: blockdev.connected(pair.client) == 1, 60, "one path is left")
    server = start(pair.server, "roomy", "kv", 30)
    bound(pair.server)
    assert "done" in finish(start(pair.client, "crowd", "demo", "kv", 30), server)


def test_each_call_fails_once(pair, stack):
    if not pair.client.spec.kernel.slow:
        pytest.skip("the fast kernel does not fail on demand")
    faults.load(pair.client)
    load_both(pair)
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)
    server = start(pair.server, "serve", "kv")
    bound(pair.server)
    for function in FUNCTIONS:
        pair.client.run(f"echo {function.watched} > {faults.FOLDER}/functions")
    names = (f"{function.name}:{function.error}" for function in FUNCTIONS)
    text = finish(start(pair.client, "starved", "demo", "kv", *names))
    server.kill()
    assert int(re.search(r"struck=(\d+)", text).group(1)) > len(FUNCTIONS)
    pair.client.run(f"{stack.unmap()} && busybox rmmod ibtrs_faults")


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
