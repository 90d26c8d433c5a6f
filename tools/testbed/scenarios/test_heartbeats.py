# SPDX-License-Identifier: GPL-2.0
"""The time in which either side detects the loss of the other, and the limit on the number of paths
(IBTRS_LONG=1)."""

import errno
import os
import re
from contextlib import contextmanager

import pytest

from testbed import blockdev, mishaps
from testbed.lab import SERVER_ADDRESS, wait_for

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

SESSION = "/sys/class/ibtrs-client/demo"
INTERVAL, MISSED = 0.5, 3
LIMIT = INTERVAL * (MISSED + 1)
# Emulated guests have others beside them; timers and the log have theirs.
SLACK = 1.0


@contextmanager
def frozen(pair):
    pair.server.freeze()
    yield
    pair.server.thaw()


@contextmanager
def astray(pair):
    """The client's packets to the server's first address go to a router that does not exist."""
    route = f"{SERVER_ADDRESS.format(link=1)}/32 via 10.0.1.77 dev eth0"
    pair.client.run("ip neigh replace 10.0.1.77 lladdr 52:54:00:00:77:77 dev eth0 nud permanent && "
                    f"ip route add {route}")
    yield
    pair.client.run(f"ip route del {route} && ip neigh del 10.0.1.77 dev eth0")


# The event; the sides that detect it; and those that do so by heartbeats alone, as the other side
# cannot tell them.
CAUSES = {
    "peer": (frozen, ("client",), ("client",)),
    "link": (lambda pair: mishaps.cable_out(pair, pair.client, 1), ("client", "server"), ("server",)),
    "route": (astray, ("client", "server"), ("server",)),
    "way there": (lambda pair: mishaps.losing(pair.client, 1, 100), ("client", "server"), ("server",)),
    "way back": (lambda pair: mishaps.losing(pair.server, 1, 100), ("client", "server"), ("client",)),
}
PATH = {"client": r"demo: ip:10\.0\.1\.1\S*: ", "server": r"demo: ip:10\.0\.1\.2\S*: "}
# The first line about a lost path: why it failed.
SILENCE, ANYTHING = r"no heartbeat from the (server|client)", r"(no heartbeat from|connection \d+)"


def noticed(guest, words: str) -> float | None:
    """When the log said so for the first time since it was cleared, by the guest's own clock."""
    found = re.search(rf"\[\s*(\d+\.\d+)\].*{words}", guest.run("dmesg"))
    return float(found[1]) if found else None


def test_whatever_is_lost_is_noticed_in_time(pair, stack):
    mishaps.make_ready(pair)
    pair.server.run(f"modprobe ibtrs_server hb_interval_ms={INTERVAL * 1000:.0f} hb_missed_max={MISSED}")
    blockdev.map_two_paths(pair, stack, size_mb=16)
    pair.client.run(f"cd {SESSION} && echo {INTERVAL * 1000:.0f} > hb_interval_ms && echo {MISSED} > hb_missed_max &&"
                    " echo 100 > reconnect_delay_ms")
    print()
    for name, (cause, sides, alone) in CAUSES.items():
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
        before = {}
        for side in sides:
            guest = getattr(pair, side)
            guest.run("dmesg --clear")
            before[side] = guest.uptime()
        took = {}
        with cause(pair):
            for side in sides:
                guest, words = getattr(pair, side), PATH[side] + ANYTHING
                wait_for(lambda: noticed(guest, words), LIMIT + 20, f"the {side} notices that the {name} is lost")
                took[side] = noticed(guest, words) - before[side]
            wait_for(lambda: blockdev.connected(pair.client) < 2, 20, "the path fails")
        print(f"{name} lost: failed after " + ", ".join(f"{t:.2f} s by the {side}" for side, t in took.items()))
        # Either side may be the first.
        assert max(took.values()) <= LIMIT + SLACK, (name, took)
        for side in alone:
            assert noticed(getattr(pair, side), PATH[side] + SILENCE), (name, side)


@pytest.mark.skipif(not os.environ.get("IBTRS_LONG"), reason="takes its time: IBTRS_LONG=1")
def test_a_session_has_128_paths_at_most(pair, stack):
    """Those to one address differ in the client's."""
    pair.server.run("modprobe ibtrs_server max_chunk_size=8192 sess_queue_depth=2")
    pair.client.run("for n in {3..130}; do echo addr add 10.0.1.$n/24 dev eth0; done | ip -batch -")
    pair.server.run("for n in {3..130}; do echo neigh replace 10.0.1.$n lladdr 52:54:00:00:01:02 dev eth0"
                    " nud permanent; done | ip -batch -")
    device = blockdev.map_new(pair, stack, size_mb=16)
    client, add = pair.client, f"{SESSION}/add_path"
    try:
        client.run(f"for n in {{3..129}}; do echo ip:10.0.1.$n,ip:10.0.1.1 > {add} || exit 1; done", timeout=400)
        assert blockdev.connected(client) == 128
        refused = client.run(f"echo ip:10.0.1.130,ip:10.0.1.1 > {add}", check=False)
        assert os.strerror(errno.ENOSPC) in refused and blockdev.connected(client) == 128
        client.run(f"dd if=/dev/urandom of={stack.disk} bs=64k count=128 oflag=direct status=none")
        assert blockdev.same_on_both(pair, device, stack.disk, 8)
    finally:
        client.run(stack.unmap(how="force"), timeout=120)
        client.run("for n in {3..130}; do echo addr del 10.0.1.$n/24 dev eth0; done | ip -batch -")
        pair.server.run("for n in {3..130}; do echo neigh del 10.0.1.$n dev eth0; done | ip -batch -")
