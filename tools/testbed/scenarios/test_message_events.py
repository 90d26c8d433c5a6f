# SPDX-License-Identifier: GPL-2.0
"""What operators learn afterwards of portals and channels, and of many disks: `ibnbd events`."""

import pytest

from testbed import blockdev
from testbed.lab import wait_for
from testbed.message_programs import load_both
from testbed.tool import PROGRAM, Tool

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

SESSION = "/sys/class/ibtrs-client/demo"
# Accepts channels, and refuses those that ask for it.
SERVES = """
import os, select, sys
sys.path.append("/tmp")
import messages
portal, channels = messages.bind("kv", flags=messages.UNAUTHENTICATED), []
print("bound", flush=True)
while True:
    for offer in messages.read(portal):
        if offer.body.endswith(b"no"):
            messages.accept(portal, offer.id, flags=messages.REJECT, reason=1)
            continue
        for channel in [channel for channel in channels if messages.poll(channel) & select.POLLHUP]:
            channels.remove(channel)
            os.close(channel)
        channels.append(messages.accept(portal, offer.id))
"""
# Opens channels, and keeps the last one.
OPENS = """
import os, sys, time
sys.path.append("/tmp")
import messages
session, count = sys.argv[1], int(sys.argv[2])
for number in range(count):
    channel = messages.connect("kv", session=session, timeout=60000)
    if number + 1 < count:
        os.close(channel)
print("opened", flush=True)
time.sleep(1000)
"""
REFUSED = """
import errno, sys
sys.path.append("/tmp")
import messages
for portal, data in (("kv", b"no"), ("nowhere", b"")):
    with messages.fails(errno.ECONNREFUSED):
        messages.connect(portal, session="demo", timeout=60000, data=data)
"""
# Asks for channels to portals that do not exist.
ASKS = """
import errno, sys
sys.path.append("/tmp")
import messages
for number in range(300):
    with messages.fails(errno.ECONNREFUSED):
        messages.connect(f"guess{number % 100}", session="demo", timeout=60000)
"""


def run(guest, text: str, *words) -> str:
    guest.push("/tmp/case.py", text)
    return guest.run(f"timeout -s KILL 100 python3 /tmp/case.py {' '.join(map(str, words))} 2>&1", timeout=120)


def start(guest, name: str, text: str, said: str, *words):
    guest.push(f"/tmp/{name}.py", text)
    job = guest.start(f"exec python3 /tmp/{name}.py {' '.join(map(str, words))} 2>&1")
    wait_for(lambda: said in job.text, 60, said)
    return job


def of_channels(tool: Tool, name: str = "") -> list[tuple]:
    """Portal, event, cause and how often, of what has happened to portals and channels."""
    events = [event for event in tool.json(f"events {name}")["events"] if event.get("portal")]
    return [(event["portal"], event["event"], event["cause"], event.get("count", 1)) for event in events]


OPENER, PORTAL = "by the program that has opened it", "by the portal's program"


def test_portals_and_channels_leave_a_trace(pair, stack):
    load_both(pair)
    blockdev.map_two_paths(pair, stack)
    client, server = Tool(pair.client), Tool(pair.server)
    serving = start(pair.server, "serves", SERVES, "bound")
    opener = start(pair.client, "opens", OPENS, "opened", "demo", 1)
    run(pair.client, REFUSED)
    # Both paths are lost, one after the other, so the channel moves once at least.
    for link in (1, 2):
        path = f"{SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1"
        pair.client.run(f"echo 1 > {path}/disconnect")
        pair.client.wait_until(f"grep -q disconnected {path}/state", 60)
        wait_for(lambda: ("kv", "moved", None) in [event[:3] for event in of_channels(client)] or link == 1, 60, "a move")
        pair.client.run(f"echo 1 > {path}/reconnect")
        pair.client.wait_until(f"grep -q ^connected {path}/state", 60)
    opener.kill()
    wait_for(lambda: ("kv", "closed", OPENER, 1) in of_channels(server), 60, "the end of the channel")
    serving.kill()
    wait_for(lambda: ("kv", "unbound", "by user 0", 1) in of_channels(server), 60, "the end of the portal")

    def without_moves(tool):
        return [event for event in of_channels(tool) if event[1] != "moved"]

    assert without_moves(server) == [
        ("kv", "bound", "by user 0", 1), ("kv", "opened", None, 1), ("kv", "refused", f"{PORTAL} (EPERM)", 1),
        ("nowhere", "refused", "no program has bound it (ENOENT)", 1), ("kv", "closed", OPENER, 1),
        ("kv", "unbound", "by user 0", 1)]
    assert without_moves(client) == [
        ("kv", "opened", None, 1), ("kv", "refused", f"{PORTAL} (EPERM)", 1),
        ("nowhere", "refused", "no program has bound it (ENOENT)", 1), ("kv", "closed", OPENER, 1)]
    assert any(event[1] == "moved" for event in of_channels(server))
    # Times, sides and sessions; tables; one portal, one session.
    events = server.json("events")["events"]
    assert [event["time_ms"] for event in events] == sorted(event["time_ms"] for event in events)
    sides = {(event["session"], event.get("side")) for event in events}
    assert sides == {(None, None), ("demo", "server")}, sides
    assert {event.get("side") for event in client.json("events kv")["events"]} == {"client"}
    assert {event[0] for event in of_channels(server, "nowhere")} == {"nowhere"}
    assert not [event for event in of_channels(server, "demo") if event[1] == "bound"]
    table = server("events")
    assert "PORTAL" in table and "its program" not in table and " refused  no program has bound it (ENOENT)" in table, table
    # Paths and disks are in the same table, and others do not see the programs of all users.
    assert {"mapped", "connected"} <= {event["event"] for event in client.json("events demo")["events"]}
    user = "setpriv --reuid 1000 --clear-groups"
    said = pair.server.run(f"{user} cat /dev/ibmsg 2>&1", check=False)
    assert "Operation not permitted" in said, said
    # They see the rest, and what else there is, in one line.
    only_root = "ibnbd: only root sees what has happened to portals and channels\n"
    for guest, name in ((pair.client, ""), (pair.client, "demo"), (pair.server, "")):
        said = guest.run(f"{user} {PROGRAM} events {name} 2>&1 >/tmp/seen")
        assert f"{said.strip()}\n" == only_root, said
        seen = guest.run("cat /tmp/seen")
        assert "PORTAL" not in seen and ("connected" in seen) == (guest is pair.client), seen
    said = pair.client.run(f"{user} {PROGRAM} events ibnbd0 2>&1 >/tmp/seen")
    assert not said and "mapped" in pair.client.run("cat /tmp/seen"), said
    said = pair.server.run(f"{user} {PROGRAM} events nowhere 2>&1; echo $?", check=False)
    assert "try it as root: only root sees" in said and said.split()[-1] == "3", said


def times(events: list[tuple], what: str) -> int:
    return sum(count for _, event, _, count in events if event == what)


def test_a_client_that_never_stops_hides_nothing(pair, stack):
    """Channels that come and go, and those that are refused, are counted; other events stay."""
    load_both(pair)
    blockdev.map_two_paths(pair, stack)
    client, server = Tool(pair.client), Tool(pair.server)
    start(pair.server, "serves", SERVES, "bound")
    opener = start(pair.client, "opens", OPENS, "opened", "demo", 200)
    wait_for(lambda: times(of_channels(server), "closed") == 199, 60, "the end of all channels but one")
    found = of_channels(server)
    assert times(found, "opened") == 200 and ("kv", "bound", "by user 0", 1) in found and len(found) < 20, found
    run(pair.client, ASKS)
    found = of_channels(server)
    assert len([event for event in found if event[1] == "refused"]) == 16, found
    assert times(found, "opened") == 200 and ("kv", "bound", "by user 0", 1) in found, found
    # Nor do they push out what has happened to paths.
    assert "connected" in {event["event"] for event in client.json("events demo")["events"] if event["path"]}
    # The session is over.
    opener.kill()
    client("unmap ibnbd0")
    pair.server.wait_until("[ ! -e /sys/class/ibtrs-server/demo ]", 60)
    for tool in (client, server):
        assert times(of_channels(tool, "demo"), "opened") == 200


def test_programs_of_one_machine(pair):
    guest = pair.server
    load_both(pair)
    tool = Tool(guest)
    start(guest, "serves", SERVES, "bound")
    opener = start(guest, "opens", OPENS, "opened", "local", 1)
    opener.kill()
    wait_for(lambda: ("kv", "closed", OPENER, 1) in of_channels(tool, "local"), 60, "the end of the channel")
    # Each once, although both ends are here.
    assert of_channels(tool, "local") == [("kv", "opened", None, 1), ("kv", "closed", OPENER, 1)]
    assert {event.get("side") for event in tool.json("events local")["events"]} == {"local"}
    # In portions as small as a program likes.
    assert guest.run("dd if=/dev/ibmsg bs=7 2> /dev/null | wc -l") == guest.run("cat /dev/ibmsg | wc -l") == "3"
