# SPDX-License-Identifier: GPL-2.0
"""Messages between programs of one machine: what files, portals and channels promise, with a link that
stays, and with one that is lost again and again."""

import errno
import json
import os
import re
from functools import partial

import pytest

from testbed import message_programs
from testbed.message_programs import bound, load
from testbed.paths import TOP
from testbed.tool import MESSAGES, Tool

case = partial(message_programs.case, timeout=600)
gather = partial(message_programs.case, program="message_gather")


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
@pytest.mark.parametrize("name", ("begin", "refused", "bounds", "flow", "small", "edge", "receipts", "calls", "waiting_calls", "ring_calls",
                                  "shutdown", "shared", "waiting", "long_read", "counted", "given_back", "killed", "limits"))
def test_what_programs_are_promised(solo, name, lossy):
    load(solo, lossy)
    case(solo, name)


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
@pytest.mark.parametrize("name", ("releases", "times", "room", "wrong", "dies"))
def test_messages_that_wait_for_others(solo, name, lossy):
    load(solo, lossy)
    gather(solo, name)


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_order_of_messages_that_wait_for_others(solo, lossy):
    load(solo, lossy)
    assert (int(gather(solo, "in_order", 3, 3000)) > 5) == lossy


@pytest.mark.fast
def test_tasks_poll_before_they_sleep(solo):
    load(solo)
    gather(solo, "busy")


def test_order_and_exactly_once(solo):
    load(solo)
    assert int(case(solo, "in_order", 1, 3000)) == 0


def test_order_and_exactly_once_although_the_link_is_lost(solo):
    load(solo, lossy=True)
    assert int(case(solo, "in_order", 2, 3000)) > 20
    case(solo, "paths")


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_many_channels(solo, lossy):
    # More than an eighth of what a small guest has: nothing like that is used.
    load(solo, lossy, "total_mib=1024")
    case(solo, "many", 1000)


def test_the_first_program(solo):
    load(solo)
    page = (TOP / "Documentation/messages.md").read_text()
    server, client = re.findall(r"```python\n(.*?)```", page, re.S)
    solo.push("/tmp/server.py", server)
    solo.push("/tmp/client.py", client)
    echo = solo.start("exec python3 /tmp/server.py")
    bound(solo)
    assert solo.run("python3 /tmp/client.py") == "b'hello'"
    assert echo.wait(60).ok


def test_the_command(solo):
    guest = solo
    guest.run("[ ! -e /sys/module/ibmsg ] || busybox rmmod ibmsg")
    ibmsg = Tool(guest, MESSAGES)
    for words in ("portals", "channels", "show kv", "listen kv", "send local kv x", "call local kv x"):
        assert "remedy: modprobe ibmsg" in ibmsg.refused(words, 4)
    load(guest)
    for words in ("listen a/b", "listen", "send local kv --timeout 0", "call local", "listen kv --count x"):
        ibmsg.refused(words, 2)
    assert "no program has bound that portal" in ibmsg.refused("call local kv x", 3)
    assert "there is no such session" in ibmsg.refused("send elsewhere kv x", 3)
    heard = guest.start(f"exec {MESSAGES} listen kv --echo --count 7 > /tmp/heard 2>&1")
    guest.wait_until(f"{MESSAGES} portals | grep -q '^kv  *0 '", 60)
    assert "another program has bound that name" in ibmsg.refused("listen kv")
    assert ibmsg("call local kv question") == "question"
    assert json.loads(ibmsg("--json call local kv 'a b'")) == {"text": "a b"}
    assert ibmsg("send local kv one two --receipt").splitlines() == ["message 1: delivered", "message 2: delivered"]
    # The answer to a request is the last message.
    said = guest.run(f"printf '\\377\\nlast\\n' | {MESSAGES} --json send local kv --timeout 20s")
    counts = json.loads(said)
    # The command waits until the other kernel has them, not until its program has read them.
    assert counts.pop("read") in (0, 1, 2) and counts == {"sent": 2, "queued": 2, "undelivered": 0}, said
    assert ibmsg("call local kv end") == "end"
    assert heard.wait(60).ok
    assert guest.run("tail -n +3 /tmp/heard | head -2; wc -l < /tmp/heard").split() == ["one", "two", "7"]
    # Requests that nobody answers, and documents.
    heard = guest.start(f"exec {MESSAGES} --json listen kv --count 2 > /tmp/heard 2>&1")
    guest.wait_until(f"{MESSAGES} portals | grep -q '^[a-z]'", 60)
    assert "answers with an error: Operation not supported" in ibmsg.refused("call local kv question")
    ibmsg("send local kv x")
    assert heard.wait(60).ok
    first, second = map(json.loads, guest.run("cat /tmp/heard").splitlines())
    assert (first["kind"], first["text"], second["kind"], second["session"]) == ("request", "question", "message", "local")
    # A program that does not read its offers, and one that closes.
    silent = guest.start("exec python3 -c 'import sys; sys.path.append(\"/tmp\"); import messages, time\n"
                         "portal = messages.bind(\"silent\")\ntime.sleep(1000)'")
    guest.wait_until(f"{MESSAGES} portals | grep -q '^[a-z]'", 60)
    assert "has not answered in time" in ibmsg.refused("send local silent x --timeout 200ms", 6)
    (portal,) = map(json.loads, ibmsg("--json portals").splitlines())
    assert (portal["kind"], portal["portal"], portal["programs"][0]["program"]) == ("portal", "silent", "python3")
    silent.kill()


def test_unloading_waits_for_files(solo):
    guest = solo
    load(guest)
    holder = guest.start("exec 3<>/dev/ibmsg; sleep 1000")
    guest.wait_until("[ $(cat /sys/module/ibmsg/refcnt) = 1 ]", 20)
    refused = guest.run("busybox rmmod ibmsg", check=False)
    assert os.strerror(errno.EAGAIN) in refused or os.strerror(errno.EBUSY) in refused
    # A channel whose other end, the portal and the device are closed; messages are on their way.
    holder.kill()
    guest.wait_until("[ $(cat /sys/module/ibmsg/refcnt) = 0 ]", 20)
    guest.run("busybox rmmod ibmsg && [ ! -e /dev/ibmsg ]")
    load(guest)
    guest.run("[ $(stat -c '%a %U' /dev/ibmsg | tr ' ' -) = 666-root ]")


def test_the_command_shows_what_channels_carry(solo):
    load(solo)
    ibmsg = Tool(solo, MESSAGES)
    assert ibmsg("--json stat --interval 100ms --count 1") == ""
    server = solo.start("exec python3 /tmp/messages.py answer kv 1 1000000 0.002")
    bound(solo)
    client = solo.start("exec python3 /tmp/messages.py ask local kv 1 1000000 0.002")
    solo.wait_until(f"[ $({MESSAGES} channels | grep -c ' open ') -ge 2 ]", 60)
    ends = [json.loads(line) for line in ibmsg("--json stat --interval 500ms --count 1").splitlines()]
    # Each end has two processes, one that speaks and one that hears, and is one row.
    assert {(end["portal"], end["session"], len(end["programs"])) for end in ends} == {("kv", "local", 2)} and len(ends) == 2
    for end in ends:
        assert end["sent"] > 0 and end["received"] > 0 and end["sent_bytes"] > end["sent"] and end["seconds"] > 0.4, end
    table = ibmsg("stat --interval 100ms --count 2").splitlines()
    assert table.count(table[0]) == 2 and len(table) >= 6 and table[0].split()[0] == "PROGRAM"
    assert client.running and server.running, client.text + server.text
    solo.run("pkill -f '[m]essages.py'")


