# SPDX-License-Identifier: GPL-2.0
"""What operators see of messages: the commands `ibmsg` and `ibnbd`, and the metrics."""

import json

import pytest

from testbed import blockdev
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.message_programs import load_both, push, start
from testbed.tool import MESSAGES, PROGRAM, Tool

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

SESSION = "/sys/class/ibtrs-client/demo"
# Takes 5 ms for each request.
SERVES = """
import sys, time
sys.path.append("/tmp")
import messages
portal = messages.bind("calls", flags=messages.UNAUTHENTICATED)
(offer,) = messages.read(portal, 1024)
channel = messages.accept(portal, offer.id)
while True:
    for request in messages.read(channel):
        time.sleep(0.005)
        messages.write(channel, request.body, kind=messages.REPLY, id=request.id)
"""
CALLS = """
import sys, time
sys.path.append("/tmp")
import messages
channel = messages.connect("calls", session="demo", timeout=60000)
for _ in range(20):
    assert messages.call(channel, b"question") == (0, b"question")
print("done", flush=True)
time.sleep(1000)
"""


class Operator:
    """Both commands on a machine."""

    def __init__(self, guest):
        self.guest, self.ibmsg, self.ibnbd = guest, Tool(guest, MESSAGES), Tool(guest)

    def seen(self, what: str) -> list[dict]:
        return [json.loads(line) for line in self.ibmsg(f"--json {what}").splitlines()]

    def channel(self, portal: str) -> dict:
        (channel,) = self.seen(f"channels --portal {portal}")
        return channel

    def findings(self) -> str:
        return self.guest.run(f"{PROGRAM} check", check=False)

    def metrics(self, run: str = "") -> dict[str, float]:
        lines = self.guest.run(f"{run} {PROGRAM} metrics").splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("ibmsg_")]
        return {name: float(value) for name, value in pairs}


def labels(side: str, portal: str = "kv", more: str = "") -> str:
    return f'{{session="demo",portal="{portal}",side="{side}"{more}}}'


@pytest.fixture
def operators(pair, stack):
    """Two paths with message connections, and a disk."""
    load_both(pair)
    blockdev.map_two_paths(pair, stack)
    return Operator(pair.client), Operator(pair.server)


def each_path(pair, what: str) -> None:
    for link in (1, 2):
        pair.client.run(f"echo 1 > {SESSION}/paths/ip:10.0.{link}.2@ip:{SERVER_ADDRESS.format(link=link)}/{what}")


def test_a_reader_that_has_stopped(pair, operators):
    """The window of 256 messages is full, and 44 wait for it."""
    client, server = operators
    reader = start(pair.server, "read_late", "kv", 300)
    pair.server.wait_until(f"{MESSAGES} portals | grep -q '^kv  *0  *128  *none  *python3 ('", 60)
    writer = start(pair.client, "write_and_hold", "demo", "kv", 300)
    wait_for(lambda: "written" in writer.text, 60, "the messages are written")
    pair.server.wait_until("grep -qs '^waiting:.256$' /proc/[0-9]*/fdinfo/*", 60)
    # Tables, documents, and all that is known about one.
    sent, read = client.channel("kv"), server.channel("kv")
    number = sent["channel"]
    assert (sent["side"], sent["state"], sent["connected"], sent["sent"], sent["unacknowledged"]) == ("client", "open", True, 256, 44)
    assert (read["side"], read["session"], read["channel"], read["waiting"]) == ("server", "demo", number, 256)
    rows = [line.split() for line in client.ibmsg("channels --session demo").splitlines()]
    (owner,) = sent["programs"]
    assert rows[1] == ["demo", "kv", str(number), "client", "open", "44", "0", "0", "python3", f"({owner['pid']})"], rows
    assert client.ibmsg("channels --session other").splitlines()[1:] == []
    for name in (f"demo/{number}", f"{owner['pid']}:{owner['fd']}"):
        shown = client.ibmsg(f"show {name}").splitlines()
        assert {"kind: channel", "unacknowledged: 44", "portal: kv"} <= set(shown), shown
    assert "there is no such channel or portal" in client.ibmsg.refused("show demo/77777", 3)
    # Other users see that there is more.
    user = "setpriv --reuid 1000 --clear-groups"
    said = pair.client.run(f"{user} {MESSAGES} channels 2>&1").splitlines()
    assert len(said) == 2 and "processes could not be examined" in said[0], said
    # The stall, and only at the end that waits.
    finding = f"channel demo/{number} to portal kv of python3 ({owner['pid']}): 44 messages wait: the program at the other end reads none"
    assert finding in client.findings()
    assert "messages wait" not in server.findings()
    for operator, side in ((client, "client"), (server, "server")):
        (session,) = json.loads(operator.ibnbd("sessions -o json"))["sessions"]
        assert (session["name"], session["channels"], session.get("messages_blocked_by")) == ("demo", 1, None)
        assert " 1 channels" in operator.guest.run(f"{PROGRAM} status", check=False)
        assert operator.metrics()[f"ibmsg_channels{labels(side)}"] == 1
    metrics = client.metrics()
    assert metrics[f"ibmsg_unacknowledged_messages{labels('client')}"] == 44 and metrics["ibmsg_unseen_processes"] == 0
    direction = ',direction="sent"'
    assert metrics[f"ibmsg_messages_total{labels('client', more=direction)}"] == 256
    assert metrics[f"ibmsg_bytes_total{labels('client', more=direction)}"] == 25600
    assert server.metrics()[f"ibmsg_unread_messages{labels('server')}"] == 256
    # As the service runs it, and with the capabilities of the page.
    assert client.metrics(user)["ibmsg_unseen_processes"] > 0 and f"ibmsg_channels{labels('client')}" not in client.metrics(user)
    rights = "+sys_ptrace,+dac_read_search"
    metrics = client.metrics(f"{user} --inh-caps={rights} --ambient-caps={rights}")
    assert metrics["ibmsg_unseen_processes"] == 0 and metrics[f"ibmsg_channels{labels('client')}"] == 1
    # Without a path.
    each_path(pair, "disconnect")
    pair.client.wait_until(f"{MESSAGES} channels | grep -q 'open, no path'", 60)
    assert "44 messages wait: the channel has no path" in client.findings()
    each_path(pair, "reconnect")
    # It reads.
    pair.server.run("touch /tmp/go")
    wait_for(lambda: client.channel("kv")["unacknowledged"] == 0, 60, "all messages have arrived")
    assert "messages wait" not in client.findings() and client.channel("kv")["moves"] >= 1
    writer.kill()
    assert reader.wait(60).ok and "read=300" in reader.text, reader.text


def test_the_times_of_calls(pair, operators):
    """At either end."""
    client, server = operators
    serving = pair.server.start(f"exec python3 -c '{SERVES}' 2>&1")
    pair.server.wait_until(f"{MESSAGES} portals | grep -q '^calls '", 60)
    calling = pair.client.start(f"exec python3 -c '{CALLS}' 2>&1")
    wait_for(lambda: "done" in calling.text, 60, "the calls have replies")
    caller, callee = client.channel("calls"), server.channel("calls")
    assert (caller["calls"], caller["served"], callee["calls"], callee["served"]) == (20, 0, 0, 20)
    assert 20 * 5000 <= callee["served_us"] < caller["call_us"], (caller, callee)
    end = ',end="server"'
    assert 0.1 <= server.metrics()[f"ibmsg_call_seconds_total{labels('server', 'calls', end)}"]
    # An interval without calls has no mean.
    (row,) = client.seen("stat --interval 100ms --count 1")
    assert (row["calls"], row["call_mean_us"], row["unacknowledged"]) == (0, None, 0)
    calling.kill()
    serving.kill()


def test_a_session_of_a_file(pair, stack):
    """The tool opens it without a disk, with message connections, and closes it when it is not wanted any more."""
    pair.server.run("modprobe ibmsg")
    pair.server.run(stack.load_server())
    push(pair.client)
    ibnbd = Tool(pair.client)
    file = '[[session]]\nname = "demo"\npaths = ["10.0.1.1", "10.0.2.1"]\nmessages = true\n'
    pair.client.run("mkdir -p /tmp/ibtrs")
    pair.client.push("/tmp/ibtrs/client.toml", file)
    apply = "apply --config /tmp/ibtrs"
    planned = ibnbd(f"{apply} --dry-run").splitlines()
    assert planned[0] == "+ load ibmsg" and planned[-1] == "+ open session demo over ip:10.0.1.1 ip:10.0.2.1", planned
    assert ibnbd(apply).splitlines() == planned
    assert ibnbd(apply) == ""
    assert pair.client.run("cat /sys/class/ibnbd-client/ctl/opened_sessions") == "demo"
    (session,) = json.loads(ibnbd("sessions -o json"))["sessions"]
    assert (session["kept_open"], session["channels"], len(session["paths"])) == (True, 0, 2)
    # Its paths have message connections: the other machine answers.
    tried = pair.client.run("python3 /tmp/messages.py try_to_connect demo nobody 60")
    assert tried.split() == ["ECONNREFUSED", "ENOENT"]
    pair.client.push("/tmp/ibtrs/client.toml", file.replace("true", "false"))
    assert ibnbd(f"{apply} --prune") == "- close session demo when it has no disk"
    pair.client.run(f"[ ! -e {SESSION} ]")
