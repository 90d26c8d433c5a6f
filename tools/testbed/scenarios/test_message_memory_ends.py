# SPDX-License-Identifier: GPL-2.0
"""Memory of programs of two machines: how it is taken back, and that nothing reaches it afterwards; what may be published,
how much of it, and calls that fail."""

import re
from functools import partial

import pytest

from testbed import blockdev, faults, message_programs, mishaps
from testbed.faults import Function
from testbed.lab import wait_for
from testbed.message_programs import bound, finish, load_both

pytestmark = pytest.mark.links(2)

# By which programs pin, map and register memory.
FUNCTIONS = (Function("pin_user_pages_fast", depth=2), Function("mmu_notifier_register"), faults.BY_NAME["ib_map_mr_sg"],
             faults.BY_NAME["ib_alloc_mr"], faults.BY_NAME["krealloc_node_align_noprof"],
             faults.BY_NAME["kvrealloc_node_align_noprof"])

start = partial(message_programs.start, program="message_memory")


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
