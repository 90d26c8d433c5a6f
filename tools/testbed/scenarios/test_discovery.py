# SPDX-License-Identifier: GPL-2.0
"""Discovery: the exports and addresses that a session learns from a server, and those that it must not learn."""

import errno
import os
from pathlib import Path

import pytest

from testbed import blockdev, exports, fio, keyring, sysfs_walk
from testbed.hostile import launch
from testbed.stack import STACKS
from testbed.tool import PROGRAM, Tool

pytestmark = [pytest.mark.links(2)]
fast = pytest.mark.fast

CONTROL = "/sys/class/ibnbd-client/ctl"
SESSIONS = "/sys/class/ibtrs-client"


def ask(session: str = "demo", link: int = 1, options: str = "") -> str:
    line = f"sessname={session} path=ip:10.0.{link}.1 {options}"
    return f'echo "{line}" > {CONTROL}/discover'


def found(client, session: str = "demo", link: int = 1) -> dict[str, tuple[str, int, int]]:
    """Asks; the mode, sectors and block size of each export."""
    client.run(ask(session, link), timeout=120)
    pages = int(shown(client, "pages", session))
    text = client.run(f"cd {CONTROL}/discovered/{session} && for n in $(busybox seq 0 {pages - 1}); do "
                      "cat $n/exports || exit 1; done")
    lines = [line.split(" ") for line in text.splitlines()]
    by_name = {name: (mode, int(sectors), int(block)) for name, mode, sectors, block in lines}
    assert len(by_name) == len(lines), "an export is listed twice"
    return by_name


def shown(client, name: str, session: str = "demo") -> str:
    return client.run(f"cat {CONTROL}/discovered/{session}/{name}").strip()


def refused(guest, command: str, *numbers: int) -> None:
    answer = guest.run(command, timeout=120, check=False)
    assert not answer.ok and any(os.strerror(number) in answer for number in numbers), (command, answer)


@pytest.fixture
def server(pair, stack):
    """The server, with two disks, and without a dev_search_path."""
    pair.server.null_blk(size_mb=16)
    pair.server.null_blk("nullb1", size_mb=32)
    pair.server.run("modprobe ibnbd_server")
    pair.client.run(stack.load_client())
    return pair.server


@fast
def test_each_host_sees_its_own(pair, stack, server):
    client = pair.client
    for session in ("demo", "other", "third"):
        for guest in pair:
            keyring.load(guest, seed=session, session=session)
    for host in ("demo", "other"):
        exports.make_host(server, host)
    exports.make(server, "disk1", "/dev/nullb0", ("demo",))
    exports.make(server, "disk2", "/dev/nullb1", ("demo", "other"), access_mode="ro")
    exports.make(server, "disk3", "/dev/nullb1", access_mode="migration", allow_any_host=1)
    exports.make(server, "disk4", "/dev/nullb1", ("other",))
    exports.make(server, "disk5", "/dev/nullb1", ("demo", "other"))
    server.run(f"dmesg -C; echo 0 > {exports.EXPORTS}/disk5/enable")
    small, large = (16 << 11, 512), (32 << 11, 512)
    of_demo = {"disk1": ("rw", *small), "disk2": ("ro", *large), "disk3": ("migration", *large)}
    assert found(client) == of_demo
    # The session was for that only.
    assert not client.ok(f"[ -e {SESSIONS}/demo ]")
    assert shown(client, "portals") == "" and shown(client, "unlisted") == "0"
    assert "demo: ip:10.0.1.2: discovery: exports listed: 3\n" in server.run("dmesg") + "\n"
    assert set(found(client, "other")) == {"disk2", "disk3", "disk4"}
    assert set(found(client, "third")) == {"disk3"}
    # The lists stay side by side, for root alone.
    assert client.run(f"ls {CONTROL}/discovered").split() == ["demo", "other", "third"]
    client.push("/tmp/sysfs_walk.py", Path(sysfs_walk.__file__).read_text())
    folder = f"{CONTROL}/discovered/demo"
    client.run(f"python3 /tmp/sysfs_walk.py 0 0 discovered={folder} discovered_page={folder}/0")

    # A session with a disk is used as it is, and goes on.
    client.run(f'echo "sessname=demo path=ip:10.0.1.1 path=ip:10.0.2.1 device_path=disk1" > {stack.map_file}')
    client.wait_until(f"[ $(cat {SESSIONS}/demo/paths/*/state | grep -c ^connected) = 2 ]")
    load = client.start(fio.GOES_ON.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    assert found(client) == of_demo
    client.run(f"echo sessname=demo > {CONTROL}/discover")
    refused(client, ask(options="key_id=another"), errno.EINVAL)
    # Its answer would not be that of the server which is asked for.
    refused(client, ask().replace("10.0.1.1", "10.0.1.77"), errno.EEXIST)
    assert "the session exists, and has no path to any of these addresses: EEXIST" in client.run("dmesg")
    assert shown(client, "port") == "1234"
    # The operator's changes take effect at once, and leave the lists of others alone.
    server.run(f"echo 1 > {exports.EXPORTS}/disk5/enable; {exports.unlink('disk2')}")
    assert set(found(client)) == {"disk1", "disk3", "disk5"}
    server.run(f"echo ro > {exports.EXPORTS}/disk3/access_mode")
    assert found(client)["disk3"][0] == "ro"
    assert load.running and client.run("cat /sys/block/ibnbd0/ibnbd/state").strip() == "open"
    assert client.run(f"ls {SESSIONS}/demo/paths | wc -l").strip() == "2"
    client.run("busybox killall fio")
    load.wait(60, check=False)
    client.run(stack.unmap())
    # A disk with poll queues has its session for itself; a discovery is no disk.
    line = "sessname=demo path=ip:10.0.1.1 device_path=disk1 nr_poll_queues=1"
    client.run(f'echo "{line}" > {stack.map_file}')
    assert set(found(client)) == {"disk1", "disk3", "disk5"}
    client.run(stack.unmap())


def test_a_stranger_sees_what_its_addresses_may_open(pair, stack, server):
    client = pair.client
    exports.make_port(server, "left", "ip:10.0.1.1")
    exports.make_port(server, "right", "ip:10.0.2.1")
    # Nothing is there: it does not learn more than where exports are and are not for it.
    assert found(client) == {} and shown(client, "unlisted") == "0" and shown(client, "portals") == ""
    exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="10.0.1.0/24")
    exports.make(server, "disk2", "/dev/nullb1", allow_any_host=1)
    assert found(client) == {"disk1": ("rw", 16 << 11, 512)}
    assert shown(client, "portals").splitlines() == ["ip:10.0.1.1 1234", "ip:10.0.2.1 1234"]
    assert found(client, link=2) == {}
    assert shown(client, "portals") == ""
    # A guessed name is answered like one that does not exist: with the names after it.
    said = launch.program(client, '''
with Party(epoch=1).set_up() as party:
    for name in (b"", b"disk", b"disk1", b"disk2", b"disk3"):
        error = party.ask(wire.DISCOVER_REQ.pack(after=name), wire.DISCOVER_ROOM)[0]
        answer = wire.DISCOVER_HEAD.unpack(party.returned(wire.DISCOVER_ROOM))
        print(name, error, answer["exports"])
''').wait(120)
    assert said.split() == ["b''", "0", "1", "b'disk'", "0", "1", "b'disk1'", "0", "0", "b'disk2'", "0", "0",
                            "b'disk3'", "0", "0"]


@fast
def test_more_exports_than_a_page(pair, stack, server):
    client = pair.client
    # Each answer has about thirty of them, and so has each file.
    names = [f"disk-{number:03}-{'x' * 100}" for number in range(300)]
    server.run(f"cd {exports.EXPORTS} && for n in $(busybox seq 0 299); do "
               f"name=$(printf 'disk-%03d-{'x' * 100}' $n); mkdir $name && echo /dev/nullb0 > $name/device_path && "
               "echo any > $name/allow_unauthenticated && echo 1 > $name/enable || exit 1; done", timeout=600)
    server.run("dmesg -C")
    assert list(found(client)) == names
    log = server.run("dmesg")
    assert "discovery: exports listed: " in log and "discovery: further exports listed: " in log
    assert int(shown(client, "pages")) > 8
    tool = Tool(client)
    document = tool.json("discover 10.0.1.1 --session demo")
    assert [export["name"] for export in document["exports"]] == names
    # Some are taken away and others made while the client asks again and again.
    churn = server.start(
        f"cd {exports.EXPORTS}; while :; do for name in disk-*[05]-*; do echo 0 > $name/enable; done; "
        "for name in disk-*[05]-*; do busybox rmdir $name; mkdir $name; echo /dev/nullb0 > $name/device_path; "
        "echo any > $name/allow_unauthenticated; echo 1 > $name/enable; done; done")
    stay = {name for name in names if name[7] not in "05"}
    for _ in range(5):
        # Nothing that stays is left out or comes twice, whatever is made again behind the last name.
        listed = list(found(client))
        assert listed == sorted(listed) and stay <= set(listed) <= set(names)
    assert churn.running
    churn.kill()
    server.run(f"cd {exports.EXPORTS} && for name in *; do busybox rmdir $name || exit 1; done", timeout=600)
    assert found(client) == {}


@fast
def test_servers_without_lists(pair, stack):
    server, client = pair
    mainline = STACKS["mainline"]
    client.run(stack.load_client())
    server.null_blk(size_mb=16)
    server.run(mainline.load_server())
    refused(client, ask(), errno.EOPNOTSUPP)
    assert "discover: session demo: the server does not list its exports: EOPNOTSUPP" in client.run("dmesg")
    tool = Tool(client)
    assert "remedy: see `ibnbd export list` on the server" in tool.refused("discover 10.0.1.1 --session demo")
    # Nothing is mapped if the server cannot be asked.
    tool.refused("map 10.0.1.1 dev/nullb0 --session demo --all-paths")
    assert not client.ok("[ -e /sys/block/ibnbd0 ]")
    server.run(mainline.unload("server"))
    # A directory is not listed, and that is said; it is open to all, and so are the addresses.
    server.run("modprobe ibnbd_server dev_search_path=/dev")
    exports.make_port(server, "left", "ip:10.0.1.1")
    assert found(client) == {} and shown(client, "unlisted") == "1"
    assert shown(client, "portals") == "ip:10.0.1.1 1234"
    assert "does not list the devices in its dev_search_path" in client.run(f"{PROGRAM} discover 10.0.1.1 2>&1")
    # One export, and the directory does not count.
    exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    assert found(client) == {"disk1": ("rw", 16 << 11, 512)} and shown(client, "unlisted") == "0"
    server.run(f"{exports.CLEAR} && modprobe -r ibnbd_server && modprobe ibnbd_server")
    assert found(client) == {} and shown(client, "unlisted") == "0"


def test_a_size_is_the_latest_that_the_server_knows(pair, stack, server):
    client = pair.client
    server.run("modprobe loop && truncate -s 16M /tmp/image && losetup /dev/loop0 /tmp/image")
    exports.make(server, "disk1", "/dev/loop0", allow_unauthenticated="any")
    assert found(client) == {"disk1": ("rw", 16 << 11, 512)}
    server.run("truncate -s 32M /tmp/image && losetup -c /dev/loop0")
    client.run(stack.map_device("disk1"))
    assert found(client) == {"disk1": ("rw", 32 << 11, 512)}
    client.run(stack.unmap())
    server.run(f"{exports.CLEAR}; losetup -d /dev/loop0 && rm /tmp/image")


@fast
def test_all_paths(pair, stack, server):
    client = pair.client
    exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    tool = Tool(client)
    # Without ports the server names no address.
    assert tool("map 10.0.1.1 disk1 --session demo --all-paths") == "/dev/ibnbd0"
    assert len(tool.json("paths demo")["paths"]) == 1
    tool("unmap ibnbd0")
    # The client has no way to the last one but two, and the last one has another number.
    server.run("ip address add 10.0.9.1/24 dev $(ip -o -4 address | busybox awk '/10[.]0[.]2[.]1/ {print $2}')")
    exports.make_port(server, "left", "ip:10.0.1.1")
    exports.make_port(server, "far", "ip:10.0.9.1")
    exports.make_port(server, "right", "ip:10.0.2.1")
    exports.make_port(server, "odd", "ip:10.0.2.1", port=1235)
    said = client.run(f"{PROGRAM} map 10.0.1.1 disk1 --session demo --all-paths 2>&1", timeout=180)
    assert "/dev/ibnbd0" in said
    assert "no path to ip:10.0.9.1: no route leads to the address" in said
    assert "no path to ip:10.0.2.1: its port is 1235" not in said
    paths = tool.json("paths demo")["paths"]
    assert {(path["dst"], path["state"]) for path in paths} == {
        ("ip:10.0.1.1", "connected"), ("ip:10.0.2.1", "connected")}
    document = tool.json("discover 10.0.1.1 --session demo")
    assert [(portal["address"], portal["port"]) for portal in document["portals"]] == [
        ("ip:10.0.1.1", 1234), ("ip:10.0.9.1", 1234), ("ip:10.0.2.1", 1234), ("ip:10.0.2.1", 1235)]
    # A port that is disabled is none.
    server.run(f"echo 0 > {exports.PORTS}/right/enable")
    assert shown(client, "portals").count("ip:10.0.2.1 1234") == 1
    assert found(client) and "ip:10.0.2.1 1234" not in shown(client, "portals")
    tool("unmap ibnbd0")
    server.run("ip address del 10.0.9.1/24 dev $(ip -o -4 address | busybox awk '/10[.]0[.]9[.]1/ {print $2}')")


@pytest.mark.thorough
def test_nothing_is_left_of_a_discovery_that_fails(pair, stack, server):
    client = pair.client
    for wrong in ("sessname=demo colour=blue", "path=ip:10.0.1.1", "sessname=demo path=10.0.1.1",
                  "sessname=demo device_path=disk1", "sessname=a/b path=ip:10.0.1.1", ""):
        refused(client, f'echo "{wrong}" > {CONTROL}/discover', errno.EINVAL)
    refused(client, f"echo sessname=demo > {CONTROL}/discover", errno.ENXIO)
    refused(client, ask(options="dest_port=1"), errno.ECONNREFUSED)
    # The request is shown in a file, so it is no longer than that.
    line = f"sessname=demo path=ip:10.0.1.1 dest_port=1{' ' * 4000}"
    for length, number in ((4000, errno.ECONNREFUSED), (4001, errno.EINVAL)):
        refused(client, f"echo -n '{line[:length]}' > {CONTROL}/discover", number)
    # The task that asks is killed in the middle.
    for _ in range(3):
        waiting = client.start(ask().replace("10.0.1.1", "10.0.1.77"))
        client.wait_until(f"[ -e {SESSIONS}/demo ]")
        waiting.kill()
        client.wait_until(f"[ ! -e {SESSIONS}/demo ]", timeout=60)
    assert client.run(f"ls {CONTROL}/discovered").split() == []
    # A disk does not get the paths and the port of a discovery that is at it, but waits for its end.
    exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    for _ in range(5):
        asking = client.start(f"for n in 1 2 3; do {ask(link=2)}; done")
        client.run(stack.map_device("disk1"), timeout=120)
        assert client.run(f"cat {SESSIONS}/demo/paths/*/dst_addr").split() == ["ip:10.0.1.1"]
        # As long as the disk is there, the session is its own.
        asking.wait(120, check=False)
        client.run(stack.unmap())
    # Many at once, for a few sessions: each gets an answer.
    client.run(f"for n in $(busybox seq 30); do ( {ask('s$((n % 5))')} ) & done; wait", timeout=300)
    assert client.run(f"cat {CONTROL}/discovered/s*/0/exports").split("\n") == ["disk1 rw 32768 512"] * 5
    assert not client.ok(f"ls -d {SESSIONS}/s?")
    # The client keeps a limited number of lists: the oldest goes.
    for number in range(17):
        client.run(ask(f"t{number}"))
    kept = client.run(f"ls {CONTROL}/discovered").split()
    assert sorted(kept) == sorted(f"t{number}" for number in range(1, 17))
    client.run("modprobe -r ibnbd_client")
