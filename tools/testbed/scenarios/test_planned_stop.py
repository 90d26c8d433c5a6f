# SPDX-License-Identifier: GPL-2.0
"""Planned stops of a server: its machine is rebooted, its modules are replaced, or an operator drains
it.  Clients wait, and nothing fails or is lost."""

from pathlib import Path

import cached_disks
import durable
import fsload
import pytest
from cached_disks import BLOCKS, SIZE_MB, all_flushed, start_writer

from testbed import blockdev, fio
from testbed.lab import wait_for

pytestmark = [pytest.mark.fast, pytest.mark.long]

SESSION = "/sys/class/ibtrs-client/demo"
DRAIN = "/sys/class/ibnbd-server/ctl/drain"
# The modules to be exchanged; the client's guest has its own.
SERVER_MODULES = "busybox rmmod ibnbd_server ibtrs_server"


def wait_for_minutes(client) -> None:
    client.run(f"cd {SESSION} && echo 600 > queue_timeout_s && echo 1000 > hb_interval_ms && "
               "echo 2 > hb_missed_max && echo 500 > reconnect_delay_ms")


def flush(disk: str) -> str:
    return f"dd if=/dev/zero of=/dev/{disk} bs=4k count=1 oflag=direct conv=notrunc,fsync status=none"


def lost(client) -> str:
    """The client's log lines about losses."""
    return client.run("dmesg | grep 'has lost its write cache' || true; cat /sys/block/ibnbd*/ibnbd/cache_lost | grep 1 || true")


@pytest.mark.kills
def test_a_reboot_of_the_server_loses_nothing(pair, stack):
    """`reboot -f` writes nothing back."""
    image, export = cached_disks.make(pair.server)
    blockdev.load(pair, stack)
    for device in ("/dev/loop0", "/dev/loop1"):
        pair.client.run(stack.map_device(device))
    wait_for_minutes(pair.client)
    # Never flushed by the client.
    pair.client.run("dd if=/dev/urandom of=/tmp/written bs=64k count=16 status=none && "
                    "dd if=/tmp/written of=/dev/ibnbd1 bs=64k oflag=direct status=none")
    holder = pair.client.start("{ echo open; sleep 3000; } < /dev/ibnbd1")
    wait_for(lambda: "open" in holder.text, 30, "the disk is open")
    writer = start_writer(pair.client, stack.disk)
    wait_for(lambda: min(durable.known(writer.text).flushed) > BLOCKS // 4, 300, "a quarter is written")
    before = pair.server
    rebooting = before.start("busybox reboot -f")
    wait_for(lambda: not before.alive, 60, "the server has gone")
    assert rebooting.status is None

    pair.reboot("server", [image])
    pair.server.run(export.format("/dev/vda"))
    assert writer.running
    pair.server.run(stack.load_server())
    writer.wait(300)
    assert all_flushed(writer)
    pair.client.run("dd if=/dev/ibnbd1 bs=64k iflag=direct status=none | cmp - /tmp/written")
    pair.client.run(flush("ibnbd1"))
    assert lost(pair.client) == ""

    # The server's words held for that reboot only: a power cut is one as before.
    pair.client.run("dd if=/tmp/written of=/dev/ibnbd1 bs=64k oflag=direct status=none")
    pair.server.kill()
    pair.reboot("server", [image])
    pair.server.run(f"{export.format('/dev/vda')} && {stack.load_server()}")
    pair.client.wait_for_log("ibnbd1: the server has lost its write cache", 240)
    pair.client.run(f"! {flush('ibnbd1')} 2> /dev/null")
    holder.kill()
    for number in (0, 1):
        pair.client.run(stack.unmap(number))
    pair.server.run("rmmod ibnbd_server && losetup -D && umount /mnt/disk")


# A file for each of 16 names is replaced by the next one as a database does it, and is durable before its number is
# printed.
LEDGER = """
import itertools, os, sys
folder = os.open(sys.argv[1], os.O_DIRECTORY)
os.chdir(folder)
for number in itertools.count(1):
    with open("new", "w") as file:
        file.write(f"{number} " * 500)
        file.flush()
        os.fsync(file.fileno())
    os.rename("new", str(number % 16))
    os.fsync(folder)
    print(number, flush=True)
"""


@pytest.mark.kills
@pytest.mark.thorough
def test_a_file_system_after_a_power_cut(pair, stack):
    """It stops, as the server has lost what was not flushed; what was, is there after a check."""
    image, export = cached_disks.make(pair.server)
    client = pair.client
    blockdev.load(pair, stack)
    client.run(stack.map_device("/dev/loop0"))
    wait_for_minutes(client)
    client.run("mkfs.ext4 -q /dev/ibnbd0 && mkdir -p /mnt/disk && mount -o errors=remount-ro /dev/ibnbd0 /mnt/disk && "
               "mkdir /mnt/disk/ledger && sync -f /mnt/disk")
    client.push("/tmp/ledger.py", LEDGER)
    ledger = client.start("python3 /tmp/ledger.py /mnt/disk/ledger")
    wait_for(lambda: ledger.text.count("\n") > 64, 240, "all names are taken")
    # Something is in the server's cache then: nothing flushes it meanwhile.
    client.run("pkill -STOP -f ledger.py && dd if=/dev/zero of=/mnt/disk/unflushed bs=64k count=4 oflag=direct status=none")
    pair.server.kill()
    client.run("pkill -CONT -f ledger.py")
    pair.reboot("server", [image])
    pair.server.run(f"{export.format('/dev/vda')} && {stack.load_server()}")
    client.wait_for_log("ibnbd0: the server has lost its write cache", 240)
    said = ledger.wait(240, check=False)
    assert "OSError" in said, said
    newest = {number % 16: number for number in map(int, filter(str.isdigit, said.split()))}
    assert sorted(newest) == list(range(16))
    client.run("umount /mnt/disk")
    # Its journal makes good what was begun; 1 says that something was.
    checked = client.run("fsck.ext4 -fp /dev/ibnbd0", check=False)
    assert checked.status <= 1, checked
    client.run("mount -o errors=remount-ro /dev/ibnbd0 /mnt/disk")
    for name, number in newest.items():
        numbers = set(client.run(f"cat /mnt/disk/ledger/{name}").split())
        (there,) = map(int, numbers)
        assert there >= number and there % 16 == name, (there, number)
    # From then on it works as before.
    client.run(f"dd if=/dev/zero of=/mnt/disk/zeroes bs=64k count=16 conv=fsync status=none && umount /mnt/disk && "
               f"fsck.ext4 -fn /dev/ibnbd0 && {stack.unmap()}")
    pair.server.run("rmmod ibnbd_server && losetup -D && umount /mnt/disk")


@pytest.mark.links(2)
def test_modules_are_exchanged_under_load(pair, stack):
    """One disk with a file system in use, another that fio writes to, flushes and reads back."""
    server, client = pair
    for name, size_mb in (("nullb0", 64), ("nullb1", 32)):
        server.null_blk(name, size_mb)
    blockdev.load(pair, stack)
    client.run(f'echo "sessname=demo path=ip:10.0.1.1 path=ip:10.0.2.1 device_path=/dev/nullb0" > {stack.map_file} && '
               f"{stack.map_device('/dev/nullb1')}")
    wait_for_minutes(client)
    client.push("/tmp/fsload.py", Path(fsload.__file__).read_text())
    client.run("mkfs.ext4 -q /dev/ibnbd0 && mkdir -p /mnt/disk && mount -o errors=remount-ro /dev/ibnbd0 /mnt/disk && "
               "mkdir /mnt/disk/files")
    files = client.start("python3 /tmp/fsload.py /mnt/disk/files 7")
    verify = client.start(fio.WRITER.format(disk="/dev/ibnbd1", size_mb=16, rate=150) + " --fsync=8")
    for _ in range(3):
        done = files.text.count("\n")
        wait_for(lambda before=done: files.text.count("\n") > before, 120, "there is load")
        server.run(f"{SERVER_MODULES} && {stack.load_server()}")
        wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    assert files.running
    client.run("touch /mnt/disk/stop")
    verify.wait(600)
    assert files.wait(240).strip("0123456789\n") == ""
    client.run("cd / && sha256sum -c --quiet /mnt/disk/files.sums", timeout=240)
    client.run("umount /mnt/disk && fsck.ext4 -fn /dev/ibnbd0")
    assert lost(client) == ""
    # The server has said each time that nothing was missing.
    assert server.run("dmesg | grep -E 'not flushed|cannot be flushed|does not answer' || true") == ""


def test_the_modules_of_a_client_are_exchanged(pair, stack):
    """They stay while a file system is mounted; without one they are exchanged, and disk and server are as before."""
    server, client = pair
    device = blockdev.map_new(pair, stack, size_mb=32)
    wwid = client.run("cat /sys/block/ibnbd0/ibnbd/wwid")
    client.run("mkfs.ext4 -q /dev/ibnbd0 && mkdir -p /mnt/disk && mount /dev/ibnbd0 /mnt/disk && "
               "dd if=/dev/urandom of=/mnt/disk/file bs=64k count=32 status=none && sha256sum /mnt/disk/file > /tmp/sums")
    refused = client.run(f"{stack.unload('client')}; {stack.unmap()}", check=False)
    assert not refused.ok and "busy" in str(refused).lower(), refused
    client.run("touch /mnt/disk/more && sync /mnt/disk/more")
    for _ in range(2):
        client.run(f"umount /mnt/disk && {stack.unmap()} && {stack.unload('client')}")
        wait_for(lambda: not blockdev.is_taken(server, device), 30, "the server has closed it")
        client.run(f"{stack.load_client()} && {stack.map_device(device)} && mount /dev/ibnbd0 /mnt/disk && "
                   "sha256sum -c --quiet /tmp/sums && [ -e /mnt/disk/more ] && touch /mnt/disk/again && sync /mnt/disk/again")
        assert client.run("cat /sys/block/ibnbd0/ibnbd/wwid") == wwid
    assert lost(client) == ""
    client.run(f"umount /mnt/disk && fsck.ext4 -fn /dev/ibnbd0 && {stack.unmap()}")


@pytest.mark.thorough
def test_a_server_is_drained_and_goes_on(pair, stack):
    server, client = pair
    device = blockdev.map_new(pair, stack, size_mb=32)
    wait_for_minutes(client)
    assert server.run(f"cat {DRAIN}") == "0"
    load = client.start(fio.WRITER.format(disk="/dev/ibnbd0", size_mb=8, rate=300) + " --fsync=8")
    for _ in range(3):
        blockdev.wait_for_reads(client, stack, 0)
        client.wait_until("[ $(awk '{ print $5 }' /sys/block/ibnbd0/stat) -gt 50 ]")
        server.run(f"echo 1 > {DRAIN} && cat {DRAIN} | grep -qx 1")
        # Nobody uses the disk, nor can a client come.
        assert not blockdev.is_taken(server, device)
        assert server.run("ls /sys/class/ibtrs-server /sys/class/ibnbd-server/ctl/devices") == (
            "/sys/class/ibnbd-server/ctl/devices:\n\n/sys/class/ibtrs-server:")
        # Draining a drained server ends at once.
        server.run(f"echo 1 > {DRAIN}")
        wait_for(lambda: blockdev.connected(client) == 0, 30, "the client has noticed")
        assert load.running
        for word in ("2", "yes", "''"):
            server.run(f"! echo {word} > {DRAIN} 2> /dev/null")
        server.run(f"echo 0 > {DRAIN} && cat {DRAIN} | grep -qx 0")
        wait_for(lambda: blockdev.connected(client) == 1, 60, "the client is back")
    load.wait(300)
    assert lost(client) == ""
    # A drained server can be unloaded, and comes back as one that is not.
    server.run(f"echo 1 > {DRAIN} && {SERVER_MODULES} && {stack.load_server()}")
    client.run(flush("ibnbd0"))
    assert server.run(f"cat {DRAIN}") == "0"


BACK_IN = f"{SESSION}/server_back_in_s"
READ = "dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 iflag=direct status=none"
ANNOUNCED = "the server is about to be stopped, and expects to be back in {} s; requests {}"


def back_in_s(client) -> int | None:
    """When the client expects its server back."""
    text = client.run(f"cat {BACK_IN}").strip()
    return int(text) if text else None


@pytest.mark.links(2)
def test_clients_are_told_how_long_the_server_is_away(pair, stack):
    server, client = pair
    device = blockdev.map_two_paths(pair, stack)
    client.run(f"cd {SESSION} && echo 200 > reconnect_delay_ms")
    assert back_in_s(client) is None
    for text in ("downtime", "downtime=", "downtime=x", "downtime=-1", "downtime=86401", "uptime=9", "1 downtime=9"):
        server.run(f"! echo '{text}' > {DRAIN} 2> /dev/null && cat {DRAIN} | grep -qx 0")
    server.wait_for_log("drain: number out of range: 0, 1, or downtime=SECONDS, at most 86400")
    assert blockdev.connected(client) == 2

    def comes_back() -> None:
        server.run(f"echo 0 > {DRAIN}")
        wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
        assert back_in_s(client) is None

    # It waits for the default, as that is longer; and for longer than that, but no longer than an hour.
    for seconds, waits in ((300, 600), (700, 1050), (86400, 3600)):
        began = client.uptime()
        server.run(f"echo downtime={seconds} > {DRAIN} && cat {DRAIN} | grep -qx 1")
        wait_for(lambda: blockdev.connected(client) == 0, 30, "the client has noticed")
        left = back_in_s(client)
        assert seconds - (client.uptime() - began) - 2 <= left <= seconds, left
        client.wait_for_log(ANNOUNCED.format(seconds, f"wait for up to {waits} s"))
        reader = client.start(READ)
        client.run("sleep 2")
        assert reader.running and back_in_s(client) < left
        comes_back()
        reader.wait(60)

    # A server that says nothing, and one that is late.
    for order, left in (("1", None), ("downtime=0", None), ("downtime=1", 0)):
        server.run(f"echo {order} > {DRAIN}")
        wait_for(lambda: blockdev.connected(client) == 0, 30, "the client has noticed")
        wait_for(lambda expected=left: back_in_s(client) == expected, 20, "the time has passed")
        comes_back()

    # The operator's choice stands, before the stop and during it.
    client.run(f"echo 2 > {SESSION}/queue_timeout_s")
    server.run(f"echo downtime=400 > {DRAIN}")
    wait_for(lambda: blockdev.connected(client) == 0, 30, "the client has noticed")
    client.wait_for_log(ANNOUNCED.format(400, "wait for up to 2 s"))
    client.wait_for_log("no path for [0-9]* s: requests fail from now on", 30)
    client.run(f"! {READ} 2> /dev/null")
    assert back_in_s(client) > 0
    comes_back()
    client.run(f"echo 600 > {SESSION}/queue_timeout_s")
    server.run(f"echo downtime=500 > {DRAIN}")
    wait_for(lambda: blockdev.connected(client) == 0, 30, "the client has noticed")
    reader = client.start(f"! {READ} 2> /dev/null")
    client.run(f"sleep 1; echo 0 > {SESSION}/queue_timeout_s")
    reader.wait(30)
    comes_back()
    client.run(f"echo 600 > {SESSION}/queue_timeout_s && {stack.unmap()}")

    # A client that only reads is told as well; here by the parameter, when the module is unloaded.
    server.run(f"{SERVER_MODULES} && {stack.load_server()} downtime_s=120")
    client.run(f'echo "sessname=demo path=ip:10.0.1.1 device_path={device} access_mode=ro" > {stack.map_file}')
    assert server.run("cat /sys/module/ibnbd_server/parameters/downtime_s") == "120"
    server.run(SERVER_MODULES)
    wait_for(lambda: blockdev.connected(client) == 0, 30, "the client has noticed")
    assert 60 < back_in_s(client) <= 120
    client.wait_for_log(ANNOUNCED.format(120, "wait for up to 600 s"))
    server.run(stack.load_server())
    wait_for(lambda: blockdev.connected(client) == 1, 60, "the client is back")
    assert back_in_s(client) is None
    assert "has not acknowledged" not in server.run("dmesg")
    client.run(stack.unmap())


@pytest.mark.thorough
def test_requests_wait_for_longer_if_the_server_says_so(pair, stack):
    """Without the announcement they would fail after ten minutes."""
    server, client = pair
    blockdev.map_new(pair, stack, size_mb=16)
    client.run(f"cd {SESSION} && echo 200 > reconnect_delay_ms && cat queue_timeout_s | grep -qx 600")
    server.run(f"echo downtime=660 > {DRAIN}")
    wait_for(lambda: blockdev.connected(client) == 0, 30, "the client has noticed")
    reader = client.start(READ)
    client.run("sleep 640", timeout=900)
    assert reader.running and 0 < back_in_s(client) < 60
    server.run(f"echo 0 > {DRAIN}")
    reader.wait(60)
    assert "requests fail from now on" not in client.run("dmesg")
    client.run(stack.unmap())


@pytest.mark.links(2)
def test_a_disk_that_hangs_does_not_hold_the_server_up(pair, stack):
    server, client = pair
    server.null_blk("nullb0", SIZE_MB)
    server.null_blk("nullb1", SIZE_MB)
    stuck = blockdev.StuckDisk(server, "/dev/nullb0", SIZE_MB)
    server.run(f"{stack.load_server()} stop_timeout_s=3")
    client.run(stack.load_client())
    client.run(f'echo "sessname=demo path=ip:10.0.1.1 path=ip:10.0.2.1 device_path={stuck.device}" > '
               f"{stack.map_file} && {stack.map_device('/dev/nullb1')}")
    wait_for_minutes(client)
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    client.run("for number in 0 1; do dd if=/dev/urandom of=/dev/ibnbd$number bs=4k count=1 oflag=direct status=none; done")
    with stuck.suspended():
        writer = client.start(flush("ibnbd0"))
        client.wait_until("[ $(awk '{ print $1 }' /sys/block/ibnbd0/inflight) -gt 0 ] || "
                          "[ $(awk '{ print $2 }' /sys/block/ibnbd0/inflight) -gt 0 ]")
        began = server.uptime()
        assert "timed out" in server.run(f"echo 1 > {DRAIN}", check=False).lower()
        assert server.uptime() - began < 15
        said = server.run("dmesg")
        assert (f"demo: {stuck.device} is not flushed after stop_timeout_s: the client treats its unflushed "
                "writes as lost") in said
        # The other disk is not to blame.
        assert "/dev/nullb1 is not flushed" not in said and "/dev/nullb1 cannot" not in said
        assert writer.running
        # The remains of the session serve nothing: no path joins it.
        server.run(f"echo 0 > {DRAIN}")
        server.wait_for_log("the session is being closed", 60)
        assert blockdev.connected(client) == 0
    writer.wait(120)
    for number in (0, 1):
        client.run(f"{flush(f'ibnbd{number}')} && {stack.unmap(number)}")
    server.run(SERVER_MODULES)
    stuck.remove()


def test_a_stop_waits_for_the_flush_of_a_session_that_is_lost(pair, stack):
    """Its last path goes while the server flushes its disk."""
    server, client = pair
    server.null_blk("nullb0", SIZE_MB)
    # Without a cache there would be nothing to flush.
    server.run("cd /sys/kernel/config/nullb/nullb0 && echo 0 > power && echo 8 > cache_size && echo 1 > power")
    stuck = blockdev.StuckDisk(server, "/dev/nullb0", SIZE_MB)
    server.run(f"{stack.load_server()} stop_timeout_s=120")
    client.run(f"{stack.load_client()} && {stack.map_device(stuck.device)}")
    wait_for_minutes(client)
    client.run("dd if=/dev/urandom of=/dev/ibnbd0 bs=4k count=1 oflag=direct status=none")
    with stuck.suspended():
        drain = server.start(f"echo 1 > {DRAIN}")
        server.run("sleep 2")
        client.run(f"for path in {SESSION}/paths/*; do echo 1 > $path/disconnect; done")
        server.wait_for_log("path closed")
        server.run("sleep 2")
        assert drain.running
    drain.wait(60)
    server.run(f"echo 0 > {DRAIN}")
    client.run(f"for path in {SESSION}/paths/*; do echo 1 > $path/reconnect; done")
    client.run(f"{flush('ibnbd0')} && {stack.unmap()}")
    server.run(SERVER_MODULES)
    stuck.remove()


# An answer of the disk takes that long, and so does each block of its partition table that is read.
SLOW_NS = 15_000_000_000


def test_a_disk_that_hangs_while_it_is_opened(pair, stack):
    """The stop ends in time, and the client writes to no other disk of the session after that."""
    server, client = pair
    server.null_blk("slow", 16, slow_ns=SLOW_NS)
    server.null_blk("nullb1", SIZE_MB)
    server.run(f"{stack.load_server()} stop_timeout_s=3")
    client.run(stack.load_client())
    client.run(stack.map_device("/dev/nullb1"))
    wait_for_minutes(client)
    load = client.start(fio.GOES_ON.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    # Nobody else opens a disk meanwhile.
    scan = server.start("exec blockdev --rereadpt /dev/slow")
    server.wait_until("ps -eo stat,args | grep -q '^D.*rereadpt'")
    opening = client.start(stack.map_device("/dev/slow"))
    server.wait_until("cat /proc/[0-9]*/comm 2> /dev/null | grep -q '[+]ibnbd-demo'")
    assert "timed out" in server.run(f"echo 1 > {DRAIN}", check=False).lower()
    wait_for(lambda: blockdev.connected(client) == 0, 5, "the paths are closed")
    assert scan.running
    for job in (scan, opening):
        job.wait(200, check=False)
    server.run(f"echo 0 > {DRAIN}")
    blockdev.wait_for_reads(client, stack)
    fio.end(client, load)
    for number in range(2):
        client.run(f"[ ! -e /sys/block/ibnbd{number} ] || {stack.unmap(number, 'force')}", timeout=120)
    server.run(SERVER_MODULES, timeout=120)


# Some requests at any time.
SLOW_LOAD = ("fio --name=w --filename=/dev/ibnbd0 --rw=randrw --bs=4k --iodepth=8 --direct=1 --ioengine=io_uring "
             "--size=16m --time_based --runtime=600 --rate_iops=100 --output-format=terse")


def counted(client, path: str) -> list[int]:
    return [int(word) for word in client.run(f"cat {path}/stats/rdma").split()]


def takes_requests(client, path: str):
    """Waits until the path has had some more requests."""
    done = counted(client, path)[2]
    wait_for(lambda: counted(client, path)[2] > done + 20, 60, f"{path} takes requests")


def only(client, busy: str, idle: str):
    """Waits until requests take one of the paths, and none the other."""
    wait_for(lambda: counted(client, idle)[4] == 0, 60, f"nothing is in flight on {idle}")
    before = counted(client, idle)
    takes_requests(client, busy)
    assert counted(client, idle) == before


@pytest.mark.links(2)
def test_requests_take_other_paths_than_a_drained_one(pair, stack):
    _, client = pair
    blockdev.map_two_paths(pair, stack)
    wait_for_minutes(client)
    first, second = client.run(f"ls -d {SESSION}/paths/*").split()

    load = client.start(SLOW_LOAD)
    for policy in ("round-robin", "min-inflight", "min-latency"):
        client.run(f"echo {policy} > {SESSION}/mp_policy")
        for drained, other in ((first, second), (second, first)):
            client.run(f"echo 1 > {drained}/drain && cat {drained}/drain | grep -qx 1")
            only(client, other, drained)
            assert client.run(f"cat {drained}/state") == "connected"
            client.run(f"echo 0 > {drained}/drain")
    # Rather a drained path than none; and it stays one that is when it connects again.
    client.run(f"echo 1 > {first}/drain && echo 1 > {second}/disconnect")
    takes_requests(client, first)
    client.run(f"echo 1 > {first}/reconnect && echo 1 > {second}/reconnect && cat {first}/drain | grep -qx 1")
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    assert load.running
    only(client, second, first)
    load.kill()


@pytest.mark.links(2)
def test_a_path_on_standby_takes_requests_only_alone(pair, stack):
    _, client = pair
    blockdev.map_two_paths(pair, stack)
    wait_for_minutes(client)
    fast, slow = client.run(f"ls -d {SESSION}/paths/*").split()

    load = client.start(SLOW_LOAD)
    client.run(f"echo 1 > {slow}/standby && cat {slow}/standby | grep -qx 1")
    for policy in ("round-robin", "min-inflight", "min-latency"):
        client.run(f"echo {policy} > {SESSION}/mp_policy")
        only(client, fast, slow)
    # It stands in for a lost path, and for a drained one.
    client.run(f"echo 1 > {fast}/disconnect")
    takes_requests(client, slow)
    client.run(f"echo 1 > {fast}/reconnect")
    only(client, fast, slow)
    client.run(f"echo 1 > {fast}/drain")
    only(client, slow, fast)
    client.run(f"echo 0 > {fast}/drain")
    # It stays on standby when it connects again.
    client.run(f"echo 1 > {slow}/reconnect && cat {slow}/standby | grep -qx 1")
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    only(client, fast, slow)
    client.run(f"echo 0 > {slow}/standby")
    takes_requests(client, slow)
    assert load.running
    said = client.run(f"cut -d' ' -f3- {SESSION}/events")
    assert said.splitlines()[0] == "active by a user" and "standby by a user" in said, said
    load.kill()
