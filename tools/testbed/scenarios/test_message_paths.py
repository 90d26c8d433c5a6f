# SPDX-License-Identifier: GPL-2.0
"""Messages between programs of two machines, over the paths of a session: each is there once and in order,
whatever happens to the paths."""

import os
import re
import time

import pytest

from testbed import blockdev, keyring, mishaps
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.message_programs import bound, finish, load_both, push, start
from testbed.stack import STACKS
from testbed.tool import PROGRAM, Tool

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

SESSION = "/sys/class/ibtrs-client/demo"
CHANNELS = int(os.environ.get("IBTRS_CHANNELS", 1000))


def answering(pair, name: str, *arguments):
    """A program of the server that has bound a portal."""
    program = start(pair.server, "answer", name, *arguments)
    bound(pair.server)
    return program


def moves(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"moves=(\d+)", text)]


def each_path(pair, what: str) -> None:
    for link in (1, 2):
        pair.client.run(f"echo 1 > {SESSION}/paths/ip:10.0.{link}.2@ip:{SERVER_ADDRESS.format(link=link)}/{what}")


def tries(guest, name: str = "kv", session: str = "demo", seconds: float = 60) -> str:
    return guest.run(f"python3 /tmp/messages.py try_to_connect {session} {name} {seconds}")


def held(pair, name: str = "kv"):
    """Both ends of a channel."""
    server = start(pair.server, "hold_accepted", name)
    pair.server.wait_until(f"grep -qs '^portal:.{name}$' /proc/[0-9]*/fdinfo/*", 60)
    client = start(pair.client, "hold", "demo", name)
    for program in (client, server):
        wait_for(lambda program=program: "open" in program.text, 60, "the channel is open")
    return client, server


def test_programs_of_two_machines(pair, session):
    server = answering(pair, "kv", 3, 500)
    client = start(pair.client, "ask", "demo", "kv", 3, 500)
    text = finish(client, server)
    assert moves(text) == [0] * 6 and text.count("authenticated=False") == 3


def test_paths_say_whether_they_carry_messages(pair, stack):
    """Those that were connected before the module was loaded do not, until they connect again."""
    Tool(pair.client)

    def carry() -> tuple[str, str]:
        """By path, on the client and on the server, which has paths that are connected."""
        client, server = (guest.run(f"cat /sys/class/ibtrs-{side}/demo/paths/*/message_connections").split()
                          for side, guest in (("client", pair.client), ("server", pair.server)))
        return "".join(client), "".join(server)

    def complaints() -> str:
        said = pair.client.run(f"{PROGRAM} --root /tmp/named check", check=False)
        return "\n".join(line for line in said.splitlines() if "carries no messages" in line)

    blockdev.map_two_paths(pair, stack)
    load_both(pair)
    # Rules name the session, so it is meant for messages.  The guest's own /etc is read-only.
    pair.client.run("mkdir -p /tmp/named/etc/ibtrs && ln -s /dev /proc /run /sys /tmp/named")
    pair.client.push("/tmp/named/etc/ibtrs/messages.toml", "[session.demo]\n")
    assert carry() == ("00", "00")
    assert "session demo carries no messages: no path has a message connection" in complaints()
    first, second = (f"{SESSION}/paths/ip:10.0.{link}.2@ip:{SERVER_ADDRESS.format(link=link)}" for link in (1, 2))
    pair.client.run(f"echo 1 > {first}/reconnect")
    wait_for(lambda: carry() == ("10", "10"), 60, "one path carries messages")
    assert f"session demo: path {second.split('/')[-1]} carries no messages, and others do" in complaints()
    pair.client.run(f"echo 1 > {second}/reconnect")
    wait_for(lambda: carry() == ("11", "11"), 60, "both paths carry messages")
    assert complaints() == ""
    pair.client.run(f"echo 1 > {first}/disconnect")
    wait_for(lambda: carry() == ("01", "1"), 60, "one path is left")
    pair.client.run("rm -r /tmp/named")


@pytest.mark.long
def test_no_message_is_lost_or_doubled_when_paths_are(pair, session):
    server = answering(pair, "kv", 4, 3000, 0.01)
    client = start(pair.client, "ask", "demo", "kv", 4, 3000, 0.01)
    for link in (1, 2, 1, 2):
        path = f"{SESSION}/paths/ip:10.0.{link}.2@ip:{SERVER_ADDRESS.format(link=link)}"
        pair.client.run(f"echo 1 > {path}/disconnect")
        time.sleep(2)
        assert client.running and server.running, client.text + server.text
        pair.client.run(f"echo 1 > {path}/reconnect")
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    for link in (1, 2):
        with mishaps.cable_out(pair, pair.client, link):
            time.sleep(8)
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    # Both ends of each channel whose path was lost. Paths that are lost again soon get channels late.
    assert sum(moves(finish(client, server))) >= 2 * 4


def sent_bytes(guest, link: int) -> int:
    device = guest.run(f"ip -o addr show to 10.0.{link}.2").split()[1]
    return int(guest.run(f"cat /sys/class/net/{device}/statistics/tx_bytes"))


def test_channels_use_all_paths(pair, session):
    server = answering(pair, "kv", 4, 100000, 0.005)
    client = start(pair.client, "ask", "demo", "kv", 4, 100000, 0.005)
    wait_for(lambda: server.text.count("authenticated") == 4, 60, "the channels are open")

    def are_used() -> bool:
        before = [sent_bytes(pair.client, link) for link in (1, 2)]
        time.sleep(3)
        after = [sent_bytes(pair.client, link) for link in (1, 2)]
        low, high = sorted(late - early for early, late in zip(before, after))
        assert client.running and server.running, client.text + server.text
        return 3 * low > high

    wait_for(are_used, 10, "both paths are used")
    # The channels of a path that is lost move to the other one, and half of all move back after ten seconds, or twenty.
    path = f"{SESSION}/paths/ip:10.0.1.2@ip:{SERVER_ADDRESS.format(link=1)}"
    pair.client.run(f"echo 1 > {path}/disconnect; echo 1 > {path}/reconnect")
    wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    wait_for(are_used, 60, "both paths are used again")
    client.kill()
    server.kill()


def test_many_channels(pair, stack):
    """Of one session; a path is lost with all of them. IBTRS_CHANNELS=10000 for more."""
    for guest in pair:
        # More than an eighth of what a small guest has: nothing like that is used.
        guest.run("modprobe ibmsg total_mib=1024")
    load_both(pair)
    blockdev.map_two_paths(pair, stack)
    server = start(pair.server, "answer_crowd", "crowd", CHANNELS)
    bound(pair.server)
    client = start(pair.client, "ask_crowd", "demo", "crowd", CHANNELS)
    wait_for(lambda: "bytes" in server.text, 600, "all are open")
    for link in (1, 2):
        pair.client.run(f"echo 1 > {SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1/reconnect")
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    text = finish(client, server, timeout=900)
    print(text)
    # With the file that each is, some 2 KiB. What else the guest does weighs less where there are more.
    assert max(map(int, re.findall(r"bytes=(-?\d+)", text))) < 2048 + (6 << 20) // CHANNELS


@pytest.mark.rdma("siw")
def test_over_iwarp(pair, session):
    server = answering(pair, "kv", 3, 1000, 0.005)
    client = start(pair.client, "ask", "demo", "kv", 3, 1000, 0.005)
    wait_for(lambda: server.text.count("authenticated") == 3, 60, "the channels are open")
    for link in (1, 2):
        path = f"{SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1"
        pair.client.run(f"echo 1 > {path}/disconnect")
        pair.client.run(f"echo 1 > {path}/reconnect")
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    assert max(moves(finish(client, server))) >= 1


def test_messages_wait_for_a_path(pair, session):
    """The server has lost its session with the last path, and keeps the channels."""
    server = answering(pair, "kv", 2, 1000, 0.005)
    client = start(pair.client, "ask", "demo", "kv", 2, 1000, 0.005)
    wait_for(lambda: server.text.count("authenticated") == 2, 60, "the channels are open")
    each_path(pair, "disconnect")
    pair.server.wait_for_log("demo: session closed")
    time.sleep(2)
    assert client.running and server.running, client.text + server.text
    each_path(pair, "reconnect")
    assert min(moves(finish(client, server))) >= 1


def test_messages_of_a_program_that_has_gone_wait_as_well(pair, session):
    server = start(pair.server, "write_and_go", "kv", 20)
    bound(pair.server)
    client = start(pair.client, "hear_to_the_end", "demo", "kv")
    for program in (client, server):
        wait_for(lambda program=program: "open" in program.text, 60, "the channel is open")
    each_path(pair, "disconnect")
    pair.server.wait_for_log("demo: session closed")
    pair.server.run("touch /tmp/go")
    finish(server)
    pair.server.run("rm /tmp/go")
    each_path(pair, "reconnect")
    assert "heard=20 status=0" in finish(client)
    # The same when it goes while there are paths, which are lost after that. The other end does not take all of
    # it before its program reads.
    server = start(pair.server, "write_and_go", "kv", 70)
    bound(pair.server)
    client = start(pair.client, "hear_to_the_end", "demo", "kv")
    wait_for(lambda: "open" in client.text and "open" in server.text, 60, "the channel is open")
    client_pid = pair.client.run("pgrep -f '[h]ear_to_the_end'").split()[0]
    pair.client.run(f"kill -STOP {client_pid}")
    pair.server.run("touch /tmp/go")
    finish(server)
    pair.server.run("rm /tmp/go")
    each_path(pair, "disconnect")
    time.sleep(1)
    each_path(pair, "reconnect")
    pair.client.run(f"kill -CONT {client_pid}")
    assert "heard=70 status=0" in finish(client)


def test_a_client_that_does_not_come_back(pair, stack):
    pair.server.run("modprobe ibmsg reconnect_s=2")
    load_both(pair)
    blockdev.map_two_paths(pair, stack)
    client, server = held(pair)
    each_path(pair, "disconnect")
    pair.server.wait_for_log("demo: its client has not come back", 30)
    assert "closed ECONNABORTED" in finish(server)
    assert client.running and "lost" in client.text
    # It learns that when it does come back.
    each_path(pair, "reconnect")
    assert "closed ECONNABORTED" in finish(client)


def test_a_server_that_has_restarted(pair, stack, session):
    client, server = held(pair)
    each_path(pair, "disconnect")
    pair.server.wait_for_log("demo: session closed")
    server.kill()
    pair.server.wait_until("[ $(cat /sys/module/ibmsg/refcnt) = 0 ]")
    pair.server.run("busybox rmmod ibnbd_server ibtrs_server ibmsg && modprobe ibmsg")
    pair.server.run(stack.load_server())
    assert client.running, client.text
    each_path(pair, "reconnect")
    assert "closed ECONNABORTED" in finish(client)
    # The session goes on.
    other = answering(pair, "kv", 1, 10)
    finish(start(pair.client, "ask", "demo", "kv", 1, 10), other)


def test_a_session_without_disks(pair, stack):
    load_both(pair)
    pair.server.run(stack.load_server())
    pair.client.run(stack.load_client())
    control = "/sys/class/ibnbd-client/ctl"
    pair.client.run(f'echo "sessname=demo path=ip:10.0.1.1 nr_queues=1" > {control}/open_session')
    assert not pair.client.ok(f'echo "sessname=demo path=ip:10.0.1.1" > {control}/open_session')
    pair.client.wait_for_log("open_session: demo: the session is open already: EEXIST")
    pair.client.run(f"echo ip:10.0.2.1 > {SESSION}/add_path")
    client, server = held(pair)
    # The module stays as long as there is a session.
    for guest in pair:
        assert not guest.ok("busybox rmmod ibmsg")
    # One waits for an answer, without a limit.
    silent = start(pair.server, "bind_and_wait", "silent")
    pair.server.wait_until("[ $(ls -l /proc/[0-9]*/fd 2> /dev/null | grep -c ibmsg-portal) = 2 ]", 60)
    waiting = start(pair.client, "try_to_connect", "demo", "silent", 0)
    wait_for(lambda: "offered" in silent.text, 60, "the channel is offered")
    assert pair.client.run(f"cat {control}/opened_sessions") == "demo"
    # A disk comes and goes; the session stays.
    device = pair.server.null_blk(size_mb=32)
    pair.client.run(f'echo "sessname=demo device_path={device}" > {stack.map_file}')
    pair.client.run(stack.unmap())
    assert client.running and server.running
    pair.client.run(f"echo demo > {control}/close_session")
    pair.client.run(f"[ ! -e {SESSION} ]")
    # Both ends learn it at once, and the offer is gone.
    assert "closed ESHUTDOWN" in finish(client) and "closed ESHUTDOWN" in finish(server)
    assert finish(waiting).split() == ["ECONNREFUSED", "ESHUTDOWN"]
    assert "gone" in finish(silent)
    assert tries(pair.client).split() == ["ENODEV"]
    assert pair.client.run(f"cat {control}/opened_sessions") == ""
    # What was opened once is closed once.
    assert not pair.client.ok(f"echo demo > {control}/close_session")
    # The same client comes again. Unloading closes what is left open.
    pair.client.run(f'echo "sessname=demo path=ip:10.0.1.1 nr_queues=1" > {control}/open_session')
    pair.client.run("busybox rmmod ibnbd_client ibtrs_client ibmsg")


def test_a_client_that_starts_again(pair, stack):
    """Its machine had a power cut, for all that the server knows: its former channels end when it comes back."""
    load_both(pair)
    pair.server.run(stack.load_server())
    pair.client.run(stack.load_client())
    control = "/sys/class/ibnbd-client/ctl"
    pair.client.run(f'echo "sessname=demo path=ip:10.0.1.1 nr_queues=1" > {control}/open_session')
    client, server = held(pair)
    # The close of the session is not heard.
    with mishaps.cable_out(pair, pair.client, 1):
        pair.client.run(f"echo demo > {control}/close_session")
        assert "closed ESHUTDOWN" in finish(client)
    assert server.running
    pair.client.wait_until(f'echo "sessname=demo path=ip:10.0.1.1 nr_queues=1" > {control}/open_session', 60)
    assert "closed ECONNABORTED" in finish(server)


def test_closing_a_session_delivers_what_was_written(pair, session):
    """For a time that is bounded: the program of the server need not read."""
    server = start(pair.server, "read_late", "kv", 300)
    bound(pair.server)
    client = start(pair.client, "write_and_hold", "demo", "kv", 300)
    wait_for(lambda: "written" in client.text, 60, "messages are written")
    # With its last disk. The window has no room for all messages before the program reads.
    unmap = pair.client.start("echo normal > /sys/block/ibnbd0/ibnbd/unmap_device")
    time.sleep(1)
    assert unmap.running and client.running
    pair.server.run("touch /tmp/go")
    assert unmap.wait(60).ok
    assert "queued=300 ESHUTDOWN" in finish(client)
    assert "read=300 ESHUTDOWN" in finish(server)
    pair.client.run(f"[ ! -e {SESSION} ]; rm -f /tmp/go")
    pair.server.run("rm /tmp/go")
    control = "/sys/class/ibnbd-client/ctl"
    pair.client.run(f'echo "sessname=demo path=ip:10.0.1.1 nr_queues=1" > {control}/open_session')
    server = start(pair.server, "read_late", "kv", 300)
    bound(pair.server)
    client = start(pair.client, "write_and_hold", "demo", "kv", 300)
    wait_for(lambda: "written" in client.text, 60, "messages are written")
    begin = time.monotonic()
    pair.client.run(f"echo demo > {control}/close_session", timeout=60)
    assert 4.5 < time.monotonic() - begin < 15
    pair.client.wait_for_log("demo: channel 1: the other side has not taken everything in time (stop_timeout_s)")
    assert "queued=256 ESHUTDOWN" in finish(client)


def test_a_drain_delivers_what_was_written(pair, session):
    """By programs of the server, before its paths are closed; the channels stay, and programs are told."""
    server = start(pair.server, "write_and_go", "kv", 70)
    bound(pair.server)
    client = start(pair.client, "hear_to_the_end", "demo", "kv")
    for program in (client, server):
        wait_for(lambda program=program: "open" in program.text, 60, "the channel is open")
    other, holder = held(pair, "other")
    pid = pair.client.run("pgrep -f '[h]ear_to_the_end'").split()[0]
    pair.client.run(f"kill -STOP {pid}")
    pair.server.run("touch /tmp/go")
    time.sleep(1)
    drain = pair.server.start("echo downtime=30 > /sys/class/ibnbd-server/ctl/drain")
    for program in (other, holder):
        wait_for(lambda program=program: "draining 30" in program.text, 20, "programs are told")
    assert drain.running and blockdev.connected(pair.client) == 2
    pair.client.run(f"kill -CONT {pid}")
    assert drain.wait(60).ok
    assert "heard=70 status=0" in finish(client)
    finish(server)
    pair.server.run("rm /tmp/go; echo 0 > /sys/class/ibnbd-server/ctl/drain")
    wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    assert other.running and holder.running, other.text + holder.text
    assert (other.text + holder.text).count("draining") == 2 and "back" in other.text


def test_a_name_that_no_portal_may_have(pair, stack):
    load_both(pair)
    pair.server.run(stack.load_server())
    pair.client.run(stack.load_client())
    for name in ("local", "x" * 65):
        pair.client.run(f'echo "sessname={name} path=ip:10.0.1.1 nr_queues=1" > /sys/class/ibnbd-client/ctl/open_session')
        pair.client.wait_for_log(f"{name}: its paths carry no messages of programs")
        pair.client.run(f"[ $(cat /sys/class/ibtrs-client/{name}/paths/*/state) = connected ]")
        pair.client.run(f"echo {name} > /sys/class/ibnbd-client/ctl/close_session")


def test_a_machine_that_has_not_proved_a_key(pair, session):
    server = answering(pair, "kv", 1, 10, 0, 0)
    assert tries(pair.client).split() == ["ECONNREFUSED", "EACCES"]
    assert tries(pair.client, "nothing").split() == ["ECONNREFUSED", "ENOENT"]
    assert server.running
    # The machine itself may.
    local = start(pair.server, "ask", "local", "kv", 1, 10)
    assert "authenticated=True" in finish(local, server)


def test_a_machine_that_has_proved_a_key(pair, stack):
    for guest in pair:
        keyring.load(guest)
    load_both(pair)
    blockdev.map_two_paths(pair, stack)
    server = answering(pair, "kv", 1, 1000, 0.002, 0)
    client = start(pair.client, "ask", "demo", "kv", 1, 1000, 0.002)
    wait_for(lambda: "authenticated" in server.text, 60, "the channel is open")
    pair.client.run(f"echo 1 > {SESSION}/paths/ip:10.0.1.2@ip:10.0.1.1/reconnect")
    assert "authenticated=True" in finish(client, server)


def test_a_key_that_is_removed(pair, stack):
    """Programs of both machines are told why, and go on with another key."""
    for guest in pair:
        keyring.load(guest)
    load_both(pair)
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)
    client, server = held(pair)
    keyring.remove(pair.server)
    for program in (server, client):
        wait_for(lambda program=program: "revoked ENOKEY" in program.text, 60, "the program is told")
    keyring.load(pair.server, "wrong")
    wait_for(lambda: "revoked EKEYREJECTED" in client.text, 90, "the client's program is told")
    keyring.load(pair.server)
    wait_for(lambda: blockdev.connected(pair.client) == 2, 90, "both paths are connected")
    wait_for(lambda: client.text.rstrip().endswith("back"), 30, "the channel goes on")
    assert client.running and server.running, client.text + server.text
    assert client.text.count("revoked") == 2 and server.text.count("revoked") == 1, client.text + server.text


def test_a_server_without_messages(pair, stack):
    pair.client.run("modprobe ibmsg")
    push(pair.client)
    blockdev.map_two_paths(pair, stack)
    assert tries(pair.client).split() == ["ENOTSUP"]
    # It takes effect with the next connection of a path.
    load_both(pair)
    assert tries(pair.client).split() == ["ENOTSUP"]
    pair.client.run(f"echo 1 > {SESSION}/paths/ip:10.0.1.2@ip:10.0.1.1/reconnect")
    wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    server = answering(pair, "kv", 1, 100)
    finish(start(pair.client, "ask", "demo", "kv", 1, 100), server)


def test_a_server_of_mainline(pair, stack):
    """It is asked for no message connection that it could take for another one."""
    mainline = STACKS["mainline"]
    device = pair.server.null_blk(size_mb=32)
    pair.client.run("modprobe ibmsg")
    push(pair.client)
    pair.server.run(mainline.load_server())
    pair.client.run(stack.load_client())
    device = mainline.exported(device)
    pair.client.run(f'echo "sessname=demo path=ip:10.0.1.1 device_path={device}" > {stack.map_file}')
    pair.client.run(f"dd if={stack.disk} of=/dev/null bs=1M count=4 iflag=direct status=none")
    assert tries(pair.client).split() == ["ENOTSUP"]


def test_a_client_of_mainline(pair):
    mainline, ours = STACKS["mainline"], STACKS["ibtrs"]
    pair.server.run("modprobe ibmsg")
    device = pair.server.null_blk(size_mb=32)
    pair.server.run(ours.load_server())
    pair.client.run(mainline.load_client())
    pair.client.run(f'echo "sessname=demo path=ip:10.0.1.1 device_path={device}" > {mainline.map_file}')
    pair.client.run(f"dd if={mainline.disk} of=/dev/null bs=1M count=4 iflag=direct status=none")
