# SPDX-License-Identifier: GPL-2.0
"""The samples in rust/samples work."""

import contextlib

import pytest

from testbed import blockdev, message_programs, mishaps
from testbed.channel import CommandFailed
from testbed.hostile import launch
from testbed.lab import wait_for
from testbed.tool import MESSAGES, Tool

pytestmark = pytest.mark.fast

DISK = "/dev/sample0"


def test_the_smallest_disk_keeps_its_data(pair):
    guest = pair.client
    guest.run("modprobe ibtrs_sample_disk")
    assert int(guest.run(f"blockdev --getsize64 {DISK}")) == 4 << 20
    guest.run(f"head -c 4M /dev/urandom >/tmp/data && dd if=/tmp/data of={DISK} bs=64k oflag=direct status=none")
    guest.run(f"dd if={DISK} bs=256k iflag=direct status=none | cmp - /tmp/data && rm /tmp/data")
    # An open disk keeps its module loaded.
    with pytest.raises(CommandFailed):
        guest.run(f"exec 3<{DISK} && rmmod ibtrs_sample_disk")
    guest.run("rmmod ibtrs_sample_disk")
    assert not guest.ok(f"[ -e {DISK} ]")


def test_the_smallest_client_is_answered(pair):
    server, client = pair
    echo = launch.ready(launch.start(server, "echo", "10.0.1.1 7471"))
    client.run("modprobe ibtrs_sample_client server=10.0.1.1:7471")
    assert "ibtrs_sample_client: the answer is hello" in client.run("dmesg")
    wait_for(lambda: not echo.running, 30, "the end of the connection")
    assert "sent back b'hello'" in echo.text and "disconnected" in echo.text
    client.run("rmmod ibtrs_sample_client")


def test_the_smallest_client_fails_without_a_server(pair):
    client = pair.client
    with pytest.raises(CommandFailed):
        client.run("modprobe ibtrs_sample_client server=10.0.1.1:7472")
    assert not client.ok("[ -e /sys/module/ibtrs_sample_client ]")


CALLS = "ibtrs_sample_calls"


def said(guest) -> list[str]:
    """What the sample of calls has logged."""
    lines = guest.run("dmesg").splitlines()
    return [line.partition(f"] {CALLS}: ")[2] for line in lines if f"] {CALLS}: " in line]


@contextlib.contextmanager
def channel_to(guest, session: str):
    """Meanwhile, the sample in this guest accepts a channel."""
    line = f"a channel of session {session}"
    before = said(guest).count(line)
    yield
    wait_for(lambda: said(guest).count(line) > before, 60, line)


def refused(guest, parameters: str, errno: int | None = None) -> None:
    """The sample of calls is not loaded with these parameters; its calls fail with this error."""
    with pytest.raises(CommandFailed):
        guest.run(f"modprobe {CALLS} {parameters}")
    assert not guest.ok(f"[ -e /sys/module/{CALLS} ]")
    if errno:
        assert said(guest)[-1] == f"calls failed: -{errno}"


def answered(guest, calls: int) -> None:
    """The sample is loaded, and its calls were answered; it is unloaded."""
    assert said(guest)[-1] == f"{calls} calls were answered"
    guest.run(f"rmmod {CALLS}")


def test_a_module_answers_programs(solo):
    message_programs.load(solo)
    ibmsg = Tool(solo, MESSAGES)
    for name in ("-x", "a/b", "x" * 65):
        refused(solo, f"portal={name}")
    program = solo.start(f"exec {MESSAGES} listen echo > /dev/null")
    message_programs.bound(solo)
    # A program has the name.
    refused(solo, "portal=echo")
    program.kill()
    solo.wait_until(f"modprobe {CALLS} portal=echo", 60)
    for text in ("question", "x" * 4096, ""):
        assert ibmsg(f"call local echo '{text}'") == text
    assert "longer than the other program takes" in ibmsg.refused(f"call local echo {'x' * 4097}")
    assert "another program has bound that name" in ibmsg.refused("listen echo")
    held = solo.start("exec python3 /tmp/messages.py hold local echo 2>&1")
    wait_for(lambda: "open" in held.text, 60, "the channel is open")
    # The sample keeps the other module, and does not wait for the program that has a channel.
    assert not solo.ok("busybox rmmod ibmsg")
    solo.run(f"rmmod {CALLS}")
    assert held.wait(60).ok and held.text.endswith("closed 0\n")
    ibmsg.refused("call local echo question", 3)


def test_a_module_calls_programs(solo):
    message_programs.load(solo, lossy=True)
    Tool(solo, MESSAGES)
    refused(solo, "connect=echo", 2)
    refused(solo, "connect=echo session=none", 19)
    refused(solo, "connect=-", 22)
    echo = solo.start(f"exec {MESSAGES} listen echo --echo > /dev/null")
    message_programs.bound(solo)
    solo.run(f"modprobe {CALLS} connect=echo calls=100", timeout=60)
    answered(solo, 100)
    echo.kill()
    # And itself.
    solo.run(f"modprobe {CALLS} portal=me connect=me calls=300", timeout=60)
    answered(solo, 300)
    dies = solo.start("exec python3 /tmp/messages.py take_one dies")
    message_programs.bound(solo)
    refused(solo, "connect=dies", 104)
    assert not dies.running
    # A signal ends the calls.
    with channel_to(solo, "local"):
        calls = solo.start(f"exec modprobe {CALLS} portal=me connect=me calls=1000000")
    calls.kill()
    solo.wait_until(f"[ ! -e /sys/module/{CALLS} ]", 60)


@pytest.mark.links(2)
def test_modules_of_two_machines(pair, stack):
    """The handler of the server runs in a softirq. Paths are lost, and the module is unloaded, while it is called."""
    for guest in pair:
        message_programs.load(guest)
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)
    server, client = pair
    server.run(f"modprobe {CALLS} portal=echo")
    refused(client, "connect=echo session=demo", 13)
    server.run(f"rmmod {CALLS} && modprobe {CALLS} portal=echo unauthenticated=1")
    ibmsg = Tool(client, MESSAGES)
    assert ibmsg("call demo echo question") == "question"
    calls = client.start(f"exec modprobe {CALLS} connect=echo session=demo calls=2000")
    for link in (1, 2):
        client.run(f"echo 1 > /sys/class/ibtrs-client/demo/paths/ip:10.0.{link}.2@ip:10.0.{link}.1/reconnect")
    assert calls.wait(300).ok, calls.text
    answered(client, 2000)
    for _ in range(5):
        with channel_to(server, "demo"):
            calls = client.start(f"exec modprobe {CALLS} connect=echo session=demo calls=1000000")
        server.run(f"rmmod {CALLS}")
        assert not calls.wait(60, check=False).ok
        # The last request was delivered, or not.
        assert said(client)[-1] in (f"calls failed: -{errno}" for errno in (104, 125, 32))
        server.run(f"modprobe {CALLS} portal=echo unauthenticated=1")
