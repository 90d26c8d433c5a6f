# SPDX-License-Identifier: GPL-2.0
"""Requests that wait, for their answer or for a path, and what has happened, in the words of the command."""

import re

import pytest
from test_tool import TWO_PATHS, map_by_two_paths, ready, serve

from testbed import blockdev
from testbed.lab import wait_for
from testbed.tool import Tool

pytestmark = [pytest.mark.fast, pytest.mark.links(2)]

TIME = r"\d\d:\d\d:\d\d"
SESSION = "/sys/class/ibtrs-client/s"


def status(tool: Tool, code: int) -> str:
    return tool.refused("status", code)


def test_an_outage_has_a_beginning_and_an_end(pair):
    _, tool = ready(pair)
    map_by_two_paths(tool)
    tool("set s queue_timeout_s=3600")
    assert tool.json("sessions")["sessions"][0].get("outage") is None

    # A drained path is seen, and is no error of the other one.
    tool("path drain s 10.0.2.1")
    assert "connected, drained" in tool("paths s")
    assert "2/2, 1 drained" in tool("sessions") and "2/2, 1 drained" in tool("list")
    assert "session s: 1 of 2 paths drained" in status(tool, 1)
    assert "is drained: requests take it only if no other path does" in tool("check")
    assert 'ibtrs_session_paths_drained{session="s",side="client"} 1' in tool("metrics")
    tool("path drain s 10.0.2.1 --undo")

    begin = int(tool.guest.run("date +%s%3N"))
    tool("path disconnect s 10.0.1.1")
    tool("path disconnect s 10.0.2.1 --force")
    words = r"waits for its server, fails in 3[56]\d\d s"
    said = status(tool, 2)
    assert re.search(rf"session s: 0 of 2 paths connected since {TIME}: I/O {words}", said), said
    for command in ("list", "sessions"):
        assert re.search(words, tool(command)), command
    outage = tool.json("list")["disks"][0]["outage"]
    assert begin <= outage["since_ms"] <= begin + 120_000 and outage["fails_since_ms"] is None
    found = tool.refused("check")
    assert re.search(rf"session s has no path to its server: I/O {words}; the last path was lost at {TIME}", found), found

    tool("set s queue_timeout_s=1")
    wait_for(lambda: re.search(rf"fails since {TIME}", tool("list")), 20, "requests that fail")
    tool("path reconnect s 10.0.1.1")
    wait_for(lambda: not tool.guest.run(f"cat {SESSION}/outage"), 20, "a path")
    assert "fails" not in tool("list")
    # The error of a path that is connected again is history.
    tool("path reconnect s 10.0.2.1")
    assert "no heartbeat" not in tool("paths s")

    events = tool.json("events s")["events"]
    assert all(event["session"] == "s" for event in events)
    times = [event["time_ms"] for event in events]
    assert times == sorted(times)
    first = [(event["path"], event["event"]) for event in events if event["time_ms"] >= begin]
    one, two = "ip:10.0.1.2@ip:10.0.1.1", "ip:10.0.2.2@ip:10.0.2.1"
    for expected in [(one, "closed"), (two, "closed"), (None, "disconnected"), (None, "failing"), (one, "connected"),
                     (None, "connected"), (two, "connected")]:
        assert expected in first, (expected, first)
    assert [event["event"] for event in events if event["time_ms"] < begin and event["path"] == two][-2:] == [
        "drained", "undrained"]
    assert re.search(rf"{TIME}\s+s\s+{re.escape(one)}\s+-\s+closed\s+by a user", tool("events"))
    # The disk, from the beginning.
    of_disk = [(event["event"], event["cause"]) for event in tool.json("events ibnbd0")["events"]]
    assert of_disk == [("mapped", "nullb0"), ("closed", "no path to the server"), ("open", None)], of_disk


def test_many_disks_leave_room_for_paths(pair, stack):
    """A session that is lost and comes back is two lines for all of its disks."""
    count, times = 40, 4
    blockdev.map_two_paths(pair, stack, session="s")
    make = "mkdir $folder && echo 1 > $folder/size && echo 1 > $folder/memory_backed && echo 1 > $folder/power"
    pair.server.run(f"for n in $(seq {count - 1}); do folder=/sys/kernel/config/nullb/nullb$n; {make} || exit 1; done")
    each = f'echo "sessname=s device_path=/dev/nullb$n" > {stack.map_file}'
    pair.client.run(f"for n in $(seq {count - 1}); do {each} || exit 1; done", timeout=300)
    tool = Tool(pair.client)
    opens = f"[ $(cat /sys/block/ibnbd*/ibnbd/state | grep -c open) = {count} ]"
    pair.client.wait_until(opens, 60)
    for _ in range(times):
        for link in (1, 2):
            pair.client.run(f"echo 1 > {SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1/disconnect")
        pair.client.wait_until("! grep -q open /sys/block/ibnbd*/ibnbd/state", 60)
        for link in (1, 2):
            pair.client.run(f"echo 1 > {SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1/reconnect")
        pair.client.wait_until(opens, 60)
    events = tool.json("events s")["events"]
    # Each disk has all of its own, in order, and no path's was pushed out.
    for disk in (0, 17, count - 1):
        own = [event["event"] for event in events if event.get("disk") == f"ibnbd{disk}"]
        assert [event for event in own if event != "mapped"] == ["closed", "open"] * times, own
    of_paths = [event["event"] for event in events if event["path"]]
    assert of_paths.count("connected") == 2 * (times + 1) and of_paths.count("closed") >= 2 * times, of_paths
    lines = pair.client.run(f"cat {SESSION}/events").splitlines()
    together = [line for line in lines if f" ibnbd0-{count - 1} closed no path to the server" in line]
    assert len(together) == times, lines


def test_a_path_on_standby_lasts(pair):
    """The words of the command, and of the files."""
    _, tool = ready(pair)
    map_by_two_paths(tool)
    tool("path set s 10.0.2.1 --standby")
    assert "connected, standby" in tool("paths s") and "standby" in tool("tree")
    assert "standby" not in tool.guest.run(f"{tool.program} status", check=False)
    tool.guest.run("mkdir -p /tmp/kept")
    tool("save --config /tmp/kept")
    saved = tool.guest.run("cat /tmp/kept/client.toml")
    assert 'standby = ["10.0.2.2,10.0.2.1"]' in saved, saved
    tool("path set s 10.0.2.1 --active")
    tool("apply --config /tmp/kept")
    assert "connected, standby" in tool("paths s")
    # One that is added later.
    tool("path remove s 10.0.2.1")
    tool("apply --config /tmp/kept")
    assert "connected, standby" in tool("paths s")


def test_overdue_heartbeats_are_seen(pair):
    """The server is silent, and its paths are not lost yet."""
    _, tool = ready(pair)
    map_by_two_paths(tool)
    tool("set s failover_time_ms=100000 hb_interval_ms=500 hb_missed_max=100")
    status = f"{tool.program} status"
    said = lambda: tool.guest.run(status, check=False)  # noqa: E731
    assert "overdue" not in said()
    pair.server.freeze()
    try:
        wait_for(lambda: "heartbeats overdue" in said(), 40, "overdue heartbeats in the status")
        line = said()
        assert re.search(rf"^WARNING: .*session s: path ip:\S+: heartbeats overdue for \d+ s, since {TIME}", line), line
        assert "2 of 2 paths connected" in line
        assert "heartbeats overdue" in tool.guest.run(f"{tool.program} check", check=False)
    finally:
        pair.server.thaw()
    wait_for(lambda: "overdue" not in said(), 20, "answers")
    assert tool.guest.run(f"cat {SESSION}/paths/*/heartbeat_overdue_ms").split() == ["0", "0"]


def test_a_request_without_an_answer_is_seen(pair):
    """The server's disk hangs; all paths are well."""
    server = pair.server
    pair.client.run("modprobe ibnbd_client")
    stuck = blockdev.StuckDisk(server, server.null_blk("nullb0", size_mb=16))
    serve(server, stuck.device)
    tool = Tool(pair.client)
    disk = tool(f"map 10.0.1.1 {stuck.device.rsplit('/', 1)[1]} --session s {TWO_PATHS}")
    status = f"{tool.program} status"
    assert "a request has waited" not in tool.guest.run(status, check=False)
    stuck.suspend()
    reader = tool.guest.start(f"dd if={disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
    try:
        wait_for(lambda: "a request has waited" in tool.guest.run(status, check=False), 60, "a stall in the status")
        said = tool.guest.run(status, check=False)
        assert re.search(rf"^WARNING: .*session s: a request has waited for its answer for \d+ s, since {TIME}", said), said
        assert "2 of 2 paths connected" in said
        found = tool.guest.run(f"{tool.program} check", check=False)
        assert "warning: session s: a request has waited for its answer" in found, found
        oldest = re.search(r'ibtrs_session_oldest_request_seconds\{session="s",side="client"\} (\S+)', tool("metrics"))
        assert oldest and float(oldest[1]) > 5
    finally:
        stuck.resume()
    reader.wait(60)
    assert tool.guest.run(f"cat {SESSION}/oldest_request_ms").strip() == "0"
    assert "a request has waited" not in tool.guest.run(status, check=False)
