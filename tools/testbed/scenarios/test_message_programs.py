# SPDX-License-Identifier: GPL-2.0
"""Programs that pass messages: the examples, and the crate `ibmsg`."""

import errno
import os
import re

import pytest

from testbed import blockdev, keyring
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.message_programs import bound, load
from testbed.paths import TOP
from testbed.tool import MESSAGES, Tool, c_example, c_program, crate_tests, example

# On the kernel that checks itself, they take six minutes of a processor: IBTRS_CHECKED=1.
pytestmark = pytest.mark.fast

# Requests of 4000 bytes, whose answers nobody reads before all of them are sent, if there is room.
FLOOD = """
import fcntl, os, sys
sys.path.append("/tmp")
import messages
channel = messages.connect("echo", options=messages.opts(recv_bytes=8320, send_bytes=8320, max_message=4096))
fcntl.fcntl(channel, fcntl.F_SETFL, os.O_NONBLOCK)
sent = got = 0
while got < 200:
    try:
        while sent < 200:
            messages.write(channel, messages.body_of(sent, 4000)[::-1], kind=messages.REQUEST, tag=sent)
            sent += 1
    except BlockingIOError:
        pass
    blocked = sent - got
    messages.ready(channel, messages.select.POLLIN)
    for message in messages.read(channel):
        assert message.kind == messages.REPLY and message.body == messages.body_of(message.tag, 4000), message
        got += 1
    if got < 10:
        print(blocked)
"""


def start(guest, command: str):
    """A program that has bound a portal."""
    program = guest.start(f"exec {command}")
    bound(guest)
    return program


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_futures(solo, lossy):
    """tools/ibmsg/tests/device.rs."""
    load(solo, lossy)
    ran = solo.run(f"timeout 100 {crate_tests(solo, 'device')} --ignored 2>&1", timeout=310)
    assert "test result: ok. 7 passed" in ran, ran


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_calls_by_io_uring(solo, lossy):
    """tools/ibmsg/tests/ring.rs, and the example."""
    load(solo, lossy)
    ran = solo.run(f"timeout 100 {crate_tests(solo, 'ring')} --ignored 2>&1", timeout=310)
    assert "test result: ok. 3 passed" in ran, ran
    program = example(solo, "depth")
    assert solo.run(f"{program} local", check=False).status == 2
    assert "bound" in solo.run(f"{program} local nobody 1 1 2>&1", check=False)
    server = start(solo, f"{example(solo, 'threads')} serve deep 1")
    assert solo.run(f"{program} local deep 32 3000", timeout=120).startswith("3000 calls, ")
    assert server.wait(60).ok, server.text


def test_memory_by_rings_and_futures(solo):
    """tools/ibmsg/tests/memory.rs, on a session of a machine with itself."""
    load(solo)
    address = SERVER_ADDRESS.format(link=1)
    solo.run("modprobe ibnbd_server && modprobe ibnbd_client")
    solo.run(f'echo "sessname=demo path=ip:{address}" > /sys/class/ibnbd-client/ctl/open_session')
    program = crate_tests(solo, "memory")
    ran = solo.run(f"IBMSG_SESSION=demo timeout 200 {program} --ignored 2>&1", timeout=310)
    assert "test result: ok. 6 passed" in ran, ran
    solo.run("echo demo > /sys/class/ibnbd-client/ctl/close_session")
    solo.run("busybox rmmod ibnbd_client ibtrs_client ibnbd_server ibtrs_server")


def test_an_rpc_service_with_tokio(solo):
    """Replies come in another order than their requests; dropped futures and killed clients are not in the way."""
    load(solo)
    program = example(solo, "rpc")
    assert solo.run(f"{program} ask", check=False).status == 2
    assert "bound" in solo.run(f"{program} ask local nobody 1 2>&1", check=False)
    server = start(solo, f"{program} serve rpc")
    # Those that the service has not room for at once come in the order in which they have got it.
    answer = solo.run(f"{program} ask local rpc 100", timeout=120)
    assert answer.startswith("100 calls, ") and int(answer.split()[2]) >= 60, answer
    assert solo.run(f"{program} drop local rpc").splitlines() == [
        "the first call: false", "the second call: in time", "the third call: no time"]
    killed = solo.start(f"exec {program} ask local rpc 3000")
    solo.wait_until("grep -qs '^received:\t[1-9]' /proc/[0-9]*/fdinfo/*", 60)
    killed.kill()
    assert solo.run(f"{program} drop local rpc").splitlines()[1:] == [
        "the second call: in time", "the third call: no time"]
    server.kill()
    ended = [int(line.split()[4]) for line in server.text.splitlines()]
    # The one that was dropped takes an hour; the killed client had up to as many as the service takes at a time.
    assert ended[:2] == [0, 1] and 1 <= ended[2] <= 64 and ended[3] == 1, server.text


def test_threads_that_share_channels(solo):
    """The example in Rust: each call has its own reply, although the link is lost."""
    load(solo, lossy=True)
    program = example(solo, "threads")
    assert solo.run(f"{program} ask", check=False).status == 2
    assert "bound" in solo.run(f"{program} ask local nobody 1 1 1 2>&1", check=False)
    serving = start(solo, f"{program} serve hello 3")
    assert solo.run(f"{program} ask local hello 3 8 50", timeout=120).startswith("1200 calls, ")
    assert serving.wait(60).ok, serving.text


def test_the_first_program_of_the_guide(solo, tmp_path):
    load(solo)
    guide = (TOP / "Documentation/messages-guide.md").read_text()
    programs = []
    for name, source in zip(("server", "client"), re.findall(r"```c\n(.*?)```", guide, re.S), strict=True):
        (tmp_path / f"{name}.c").write_text(source)
        programs.append(c_program(solo, tmp_path / f"{name}.c"))
    server = start(solo, programs[0])
    assert solo.run(programs[1]) == "hello"
    assert server.wait(60).ok and server.text == "asked: Anybody there?\n"
    assert solo.run(programs[1], check=False) == os.strerror(errno.ENOENT)


def test_a_call_in_c(solo):
    load(solo)
    program = c_example(solo, "call")
    server = start(solo, f"{program} serve shout")
    assert solo.run(f"{program} ask shout hello") == "HELLO"
    assert os.strerror(errno.ENOENT) in solo.run(f"{program} ask nobody hello 2>&1", check=False)
    server.kill()


def test_requests_in_both_directions(solo):
    load(solo, lossy=True)
    program = c_example(solo, "hello")
    server = start(solo, f"{program} serve room Alice")
    said = solo.run(f"{program} greet local room Bob")
    assert set(said.splitlines()) == {"asked: What is your name?", "hello, Alice"}
    assert server.wait(60).ok and set(server.text.splitlines()) == {"asked: What is your name?", "hello, Bob"}
    # A program that goes before it has answered.
    server = start(solo, f"{program} serve room Alice")
    solo.run("python3 -c 'import sys; sys.path.append(\"/tmp\"); import messages\nmessages.connect(\"room\")'")
    ended = server.wait(60, check=False)
    assert ended.status == 1 and os.strerror(errno.ECANCELED) in ended


def test_many_channels_of_one_thread(solo):
    """Edge-triggered epoll; a client that does not take its answers holds up nobody else."""
    load(solo, lossy=True)
    server = start(solo, f"{c_example(solo, 'epoll_server')} echo")
    solo.push("/tmp/flood.py", FLOOD)
    flood = solo.start("exec python3 /tmp/flood.py 2>&1")
    assert solo.run(f"{example(solo, 'threads')} ask local echo 40 2 20", timeout=120).startswith("1600 calls, ")
    assert flood.wait(60).ok, flood.text
    # It was the room, not the number of requests, that stopped it.
    assert max(map(int, flood.text.split())) < 60, flood.text
    # All files of channels are closed.
    solo.wait_until("! ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-channel", 60)
    server.kill()


def test_one_way_with_receipts(solo):
    """Each message is delivered, not delivered, or unknown; those that are delivered were received in order."""
    load(solo, lossy=True)
    program = example(solo, "receipts")
    listener = start(solo, f"{program} listen news")
    assert solo.run(f"{program} send local news 500", timeout=60) == (
        "500 sent, 500 delivered, 0 not delivered, 0 unknown")
    assert listener.wait(60).ok and listener.text.split() == [str(tag) for tag in range(500)]
    # The listener is killed: what it has printed is among what was delivered, and every message has an outcome.
    listener = start(solo, f"{program} listen news")
    sender = solo.start(f"exec {program} send local news 1000000")
    wait_for(lambda: "\n100\n" in listener.text, 60, "messages have arrived")
    listener.kill()
    assert sender.wait(60).ok, sender.text
    sent, delivered, lost, unknown = map(int, re.findall(r"\d+", sender.text))
    got = listener.text.split("\n")[:-1]
    assert got == [str(tag) for tag in range(len(got))]
    assert sent == delivered + lost + unknown and len(got) <= delivered and unknown == 0, sender.text


def test_a_file_is_copied(solo):
    """A receiver that does not run stops the sender; what arrives has the right checksum."""
    load(solo, lossy=True)
    program = example(solo, "copy")
    solo.run("head -c 10000000 /dev/urandom > /tmp/original")
    receiver = start(solo, f"{program} receive files /tmp/copied")
    sender = solo.start(f"exec {program} send local files /tmp/original")
    solo.run("until ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-channel; do :; done; "
             "kill -STOP $(pgrep -f '^/tmp/copy receive')")

    def sent() -> int:
        """Messages of the sender; the receiver has not sent any."""
        counts = solo.run("cat /proc/[0-9]*/fdinfo/* 2> /dev/null | grep ^sent:", check=False)
        return max(map(int, re.findall(r"\d+", counts)))

    solo.run("sleep 1")
    before = sent()
    solo.run("sleep 1")
    assert sent() == before < 10_000_000 // (60 << 10)
    solo.run("kill -CONT $(pgrep -f '^/tmp/copy receive')")
    assert sender.wait(120).ok and receiver.wait(120).ok, sender.text + receiver.text
    assert (sender.text, receiver.text) == ("10000000 bytes sent\n", "10000000 bytes received\n")
    solo.run("cmp /tmp/original /tmp/copied; rm /tmp/original /tmp/copied")


def test_python_with_nothing_but_files(solo):
    load(solo, lossy=True)
    solo.push("/tmp/echo.py", (TOP / "tools/examples/echo.py").read_text())
    server = start(solo, "python3 /tmp/echo.py serve echo")
    assert solo.run("python3 /tmp/echo.py ask local echo one two") == "one: one\ntwo: two"
    assert solo.run("python3 /tmp/echo.py ask local echo x") == "x: x"
    assert solo.run("python3 /tmp/echo.py ask", check=False).status == 2
    server.kill()


def test_a_program_for_each_channel(solo):
    """`ibmsg serve`: programs end with their channels, and channels with their programs."""
    load(solo)
    solo.push("/tmp/echo.py", (TOP / "tools/examples/echo.py").read_text())
    ibmsg = Tool(solo, MESSAGES)
    server = start(solo, f"{MESSAGES} serve echo --max 2 python3 /tmp/echo.py inherited 2>&1")
    assert "another program has bound that name" in ibmsg.refused("serve echo true")
    ask = "python3 /tmp/echo.py ask local echo"
    assert solo.run(f"{ask} one two") == "one: one\ntwo: two"
    # Two programs run; the third client waits at the portal until one of them has ended.
    held = [solo.start("exec python3 /tmp/messages.py hold local echo") for _ in range(2)]
    for program in held:
        wait_for(lambda program=program: "open" in program.text, 60, "the channel is open")
    assert "has not answered in time" in ibmsg.refused("call local echo x --timeout 500ms", 6)
    waits = solo.start(f"exec {ask} three")
    assert solo.run("pgrep -cf '^python3 .tmp.echo.py inherited'") == "2"
    held[0].kill()
    assert waits.wait(60).ok and waits.text == "three: three\n"
    held[1].kill()
    solo.wait_until("! pgrep -f '^python3 .tmp.echo.py inherited'", 60)
    # The programs have failed in no case.
    assert server.text == ""
    server.kill()
    # Programs know their channel; failures are reported.
    names = "echo $IBMSG_PORTAL $IBMSG_SESSION $IBMSG_CHANNEL >&2; exit 3"
    server = start(solo, f"{MESSAGES} serve told sh -c '{names}' 2>&1")
    ibmsg.refused("call local told x")
    wait_for(lambda: "failed" in server.text, 60, "the program has failed")
    first, second = server.text.splitlines()
    number = first.split()[2]
    assert first == f"told local {number}" and second == (
        f"ibmsg: channel {number} of session local: the program has failed: exit status: 3")
    server.kill()
    server = start(solo, f"{MESSAGES} --json serve none /nonexistent 2>&1")
    ibmsg.refused("call local none x")
    wait_for(lambda: os.strerror(errno.ENOENT) in server.text, 60, "there is no program")
    server.kill()


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_a_thousand_subscribers(solo, lossy):
    """Each gets every entry, once and in order."""
    subscribers = 100 if lossy else 1000
    load(solo, lossy, "total_mib=1024")
    program = c_example(solo, "ticker")
    publisher = start(solo, f"{program} publish ticker {subscribers} 100 2>&1")
    assert solo.run(f"{program} follow local ticker {subscribers} 2>&1", timeout=300) == (
        f"{subscribers} subscribers, {subscribers * 100} entries")
    assert publisher.wait(60).ok and publisher.text == f"100 entries for {subscribers} subscribers\n", publisher.text


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_a_program_written_for_accelio(solo, lossy):
    """The shape of its hello_world, on xio_shim.h."""
    load(solo, lossy)
    program = c_example(solo, "xio_hello")
    server = start(solo, f"{program} server 1234 2>&1")
    said = solo.run(f"{program} client local 1234 2500 2>&1", timeout=120).splitlines()
    assert said[-1] == "2500 responses, 0 errors", said
    assert said.count("message: hello world header response - hello world data response") == 3
    assert [line for line in said if "event" in line] == [
        f"session event: {event}. reason: Success"
        for event in ("connection established", "connection closed", "connection teardown", "session teardown")]
    assert server.wait(60).ok and server.text.splitlines()[-1] == "2500 requests", server.text
    assert server.text.startswith("session event: new connection. reason: Success\n")
    # Nobody is there.
    said = solo.run(f"{program} client local 1234 5 2>&1", check=False)
    assert said.status == 1 and f"session event: session rejected. reason: {os.strerror(errno.ENOENT)}" in said
    assert said.splitlines()[-1] == "0 responses, 5 errors"


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_a_program_written_for_netio_next(solo, lossy):
    """The shape of its publishers and subscribers, on netio_shim.h."""
    load(solo, lossy)
    program = c_example(solo, "netio_news")
    publisher = start(solo, f"{program} publish 12350 3 1000 2>&1")
    subscribers = [solo.start(f"exec {program} subscribe local 12350 1000 2>&1") for _ in range(3)]
    for subscriber in subscribers:
        assert subscriber.wait(120).ok, subscriber.text + publisher.text
        first, second = map(int, re.findall(r"\d+", subscriber.text))
        assert first == 1000 and 500 <= second <= 1000, subscriber.text
    assert publisher.wait(60).ok and publisher.text == "2000 messages, waited for room\n", publisher.text


PATH = "/sys/class/ibtrs-client/demo/paths/ip:10.0.{0}.2@ip:10.0.{0}.1"


@pytest.mark.links(2)
def test_an_rpc_service_while_paths_are_lost(pair, stack):
    """Programs of two machines, which have proved a key."""
    for guest in pair:
        keyring.load(guest)
        guest.run("modprobe ibmsg")
    blockdev.map_two_paths(pair, stack)
    start(pair.server, f"{example(pair.server, 'rpc')} serve rpc")
    client = pair.client.start(f"exec {example(pair.client, 'rpc')} ask demo rpc 400")
    for link in (1, 2, 1, 2):
        pair.client.run(f"sleep 0.3; echo 1 > {PATH.format(link)}/reconnect")
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    assert client.wait(120).ok and client.text.startswith("400 calls, "), client.text


@pytest.mark.links(2)
def test_programs_of_a_machine_without_a_key(pair, stack):
    for guest in pair:
        guest.run("modprobe ibmsg")
        guest.push("/tmp/echo.py", (TOP / "tools/examples/echo.py").read_text())
    blockdev.map_two_paths(pair, stack)
    Tool(pair.server, MESSAGES)
    client = Tool(pair.client, MESSAGES)
    serve, echo = f"{MESSAGES} serve echo", "python3 /tmp/echo.py inherited"
    server = start(pair.server, f"{serve} {echo}")
    assert "does not let this machine in" in client.refused("call demo echo x")
    server.kill()
    pair.server.wait_until("! ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-portal")
    start(pair.server, f"{serve} --unauthenticated {echo}")
    assert client("call demo echo x") == "x"
    assert pair.client.run("python3 /tmp/echo.py ask demo echo x") == "x: x"
