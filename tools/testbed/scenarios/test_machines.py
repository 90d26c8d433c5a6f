# SPDX-License-Identifier: GPL-2.0
"""Two machines with one server, each a host of its own: what one does or loses does not reach the
other."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from testbed import blockdev, exports, fio, keyring

pytestmark = pytest.mark.fast

VERIFY = ("fio --name=verify --filename={disk} --rw=randrw --bsrange=4k-32k --iodepth=8 --direct=1 --ioengine=io_uring "
          "--size=8m --verify=crc32c --verify_fatal=1 --verify_backlog=64 --time_based --runtime=600 " + fio.IN_BURSTS)


def map_line(link: int, name: str, session: str, options: str = "") -> str:
    # The server is in the middle, where each link has 2 at its end.
    line = f"sessname={session} path=ip:10.0.{link}.2 device_path={name} {options}"
    return f'echo "{line}" > /sys/class/ibnbd-client/ctl/map_device'


def refused(guest, command: str, number: int) -> None:
    answer = guest.run(command, timeout=120, check=False)
    assert not answer.ok and os.strerror(number) in answer, (command, answer)


def prepare(trio, stack, settings: str = ""):
    """`server, first, second`; both machines have keys and a host, and the server three disks."""
    first, second, server = trio
    for number in range(3):
        server.null_blk(f"nullb{number}", size_mb=16)
    server.run(f"modprobe ibtrs_server {settings}; modprobe ibnbd_server")
    for name, guest in (("first", first), ("second", second)):
        guest.run(stack.load_client())
        for machine in (guest, server):
            keyring.load(machine, seed=name, session=name)
        exports.make_host(server, name)
    exports.make(server, "own1", "/dev/nullb0", ("first",))
    exports.make(server, "own2", "/dev/nullb1", ("second",))
    exports.make(server, "shared", "/dev/nullb2", ("first", "second"))
    return server, first, second


def listed(guest, link: int, session: str) -> set[str]:
    """The exports that discovery shows a session."""
    control = "/sys/class/ibnbd-client/ctl"
    guest.run(f'echo "sessname={session} path=ip:10.0.{link}.2" > {control}/discover', timeout=120)
    pages = range(int(guest.run(f"cat {control}/discovered/{session}/pages")))
    text = "\n".join(guest.run(f"cat {control}/discovered/{session}/{page}/exports") for page in pages)
    return {line.split()[0] for line in text.splitlines()}


def test_each_has_its_own(trio, stack):
    server, first, second = prepare(trio, stack)

    def said(line: str) -> None:
        log = server.run("dmesg")
        assert line in log, (line, log)

    first.run(map_line(1, "own1", "first"))
    load = first.start(VERIFY.format(disk=stack.disk))
    blockdev.wait_for_reads(first, stack)
    second.run(map_line(2, "own2", "second"))
    # The export of the other machine, by its own session's name and by that of the other.
    refused(second, map_line(2, "own1", "second"), errno.EACCES)
    said("second: ip:10.0.2.1: export own1: refused, rw: its host is not in allowed_hosts (EACCES)")
    assert not second.ok(map_line(2, "own1", "first"))
    keyring.load(second, seed="second", session="first")
    assert not second.ok(map_line(2, "own1", "first"))
    said("first: ip:10.0.2.1@ip:10.0.2.2: authentication failed: the client's key default differs from the one loaded")
    assert second.run("ls /sys/class/ibtrs-client").split() == ["second"]

    # The writer's place of a shared disk, and the disk for itself alone, belong to the machine that came first,
    # and free again after it.
    first.run(map_line(1, "shared", "first", "exclusive=1"))
    refused(second, map_line(2, "shared", "second"), errno.EBUSY)
    refused(second, map_line(2, "shared", "second", "access_mode=ro"), errno.EBUSY)
    first.run("echo normal > /sys/block/ibnbd1/ibnbd/unmap_device")
    second.run(map_line(2, "shared", "second"))
    refused(first, map_line(1, "shared", "first", "exclusive=1"), errno.EBUSY)
    first.run(map_line(1, "shared", "first", "access_mode=ro"))
    assert not first.ok("dd if=/dev/zero of=/dev/ibnbd1 bs=4k count=1 oflag=direct 2> /dev/null")

    # Limits are those of each.
    server.run(exports.write(f"{exports.HOSTS}/second", max_devices=2, max_paths=1, max_iops=100))
    exports.make(server, "more", "/dev/nullb2", ("second",), access_mode="ro")
    refused(second, map_line(2, "more", "second", "access_mode=ro"), errno.ENOSPC)
    assert load.running and first.run("cat /sys/block/ibnbd0/ibnbd/state").strip() == "open"

    # One host is taken away, with all that it had; the other one goes on.
    for export in ("own2", "shared", "more"):
        server.run(exports.unlink(export, "second"))
    server.run(f"busybox rmdir {exports.HOSTS}/second")
    keyring.remove(server, "second")
    second.wait_until("[ $(cat /sys/block/ibnbd*/ibnbd/state | grep -c closed) = 2 ]", 60)
    said("export own2: closed: ")
    assert load.running
    assert first.run("cat /sys/block/ibnbd0/ibnbd/state /sys/block/ibnbd1/ibnbd/state").split() == ["open", "open"]
    second.run("for disk in /sys/block/ibnbd*; do echo force > $disk/ibnbd/unmap_device; done")
    assert not second.ok(map_line(2, "own2", "second"))
    first.run("busybox killall -INT fio")
    assert load.wait(60, check=False).status in (0, 128, 130), load.text
    assert blockdev.is_taken(server, "/dev/nullb0") and not blockdev.is_taken(server, "/dev/nullb1")


def test_what_a_dead_machine_had(trio, stack):
    """The disk that a machine has for itself is free once the server has missed its heartbeats. The machine that comes
    back has its name and its other disk, but not this one until the next holder gives it up."""
    server, first, second = prepare(trio, stack, "hb_interval_ms=1000 hb_missed_max=3")
    state = "/sys/block/ibnbd{}/ibnbd/state"
    first.run(map_line(1, "shared", "first", "exclusive=1"))
    first.run(map_line(1, "own1", "first"))
    refused(second, map_line(2, "shared", "second"), errno.EBUSY)
    began = server.uptime()
    first.freeze()
    try:
        second.wait_until(map_line(2, "shared", "second", "exclusive=1"), 60)
        assert server.uptime() - began < 30
        assert "first: session closed" in server.run("dmesg")
        second.run(f"dd if=/dev/urandom of={stack.disk} bs=64k count=1 oflag=direct status=none")
    finally:
        first.thaw()
    first.wait_until(f"grep -qx connected /sys/class/ibtrs-client/first/paths/*/state && "
                     f"grep -qx open {state.format(1)} && grep -qx closed {state.format(0)}", 120)
    remap = "echo 1 > /sys/block/ibnbd0/ibnbd/remap_device"
    refused(first, remap, errno.EBUSY)
    assert "first: ip:10.0.1.1: export shared: refused, rw, exclusive: it is in use" in server.run("dmesg")
    first.run("echo 1 > /sys/class/ibtrs-client/first/queue_timeout_s")
    assert not first.ok("dd if=/dev/zero of=/dev/ibnbd0 bs=4k count=1 oflag=direct 2> /dev/null")
    first.run("dd if=/dev/zero of=/dev/ibnbd1 bs=4k count=1 oflag=direct status=none")
    second.run(f"dd if={stack.disk} of=/dev/null bs=64k count=1 iflag=direct status=none && {stack.unmap()}")
    first.wait_until(remap)
    first.run("dd if=/dev/zero of=/dev/ibnbd0 bs=4k count=1 oflag=direct status=none")


def test_each_has_its_own_limits(trio, stack):
    """Lists, rates, paths, addresses and ports of one machine, which leave the other one alone; and a session without a
    key, which opens what its address may."""
    server, first, second = prepare(trio, stack, "auth=optional")
    exports.make(server, "public", "/dev/nullb2", access_mode="ro", allow_unauthenticated="10.0.2.0/24")
    server.run(exports.write(f"{exports.HOSTS}/second", max_paths=1, max_iops=100, addresses="10.0.2.0/24"))
    assert listed(first, 1, "first") == {"own1", "shared"}
    assert listed(second, 2, "second") == {"own2", "shared"}

    # Without a key.
    assert listed(first, 1, "nobody") == set()
    assert listed(second, 2, "nobody") == {"public"}
    refused(first, map_line(1, "public", "nobody", "access_mode=ro"), errno.EACCES)
    refused(second, map_line(2, "own2", "nobody"), errno.EACCES)
    second.run(map_line(2, "public", "nobody", "access_mode=ro"))
    second.run(f"dd if={stack.disk} of=/dev/null bs=64k count=1 iflag=direct status=none && {stack.unmap()}")

    # A key that got away is of no use from elsewhere.
    keyring.load(first, seed="second", session="second")
    refused(first, map_line(1, "own2", "second"), errno.EACCES)
    assert "the host may not connect from this address: see its addresses (EACCES)" in server.run("dmesg")

    # The rate of one is not that of the other.
    first.run(map_line(1, "own1", "first"))
    second.run(map_line(2, "own2", "second"))
    job = (f"--name=rate --filename={stack.disk} --direct=1 --ioengine=io_uring --time_based --runtime=5 --size=8m "
           "--bs=4k")
    with ThreadPoolExecutor() as pool:
        ours = pool.submit(fio.run, first, f"{job} --rw=randread --iodepth=4 --rate_iops=250", 120)
        theirs = pool.submit(fio.run, second, f"{job} --rw=randwrite --iodepth=8", 120)
    assert 5 < theirs.result().write.iops <= 115 < ours.result().read.iops, (theirs.result(), ours.result())

    # Nor the number of paths.
    for guest, link, session in ((first, 1, "first"), (second, 2, "second")):
        guest.run(f"ip addr add 10.0.{link}.3/24 dev eth0")
        add = f"echo ip:10.0.{link}.3,ip:10.0.{link}.2 > /sys/class/ibtrs-client/{session}/add_path"
        if session == "first":
            guest.run(add)
        else:
            refused(guest, add, errno.EDQUOT)

    # A port that is at one machine's link only; what is connected stays.
    exports.make_port(server, "left", "ip:10.0.1.2")
    refused(second, map_line(2, "public", "nobody", "access_mode=ro"), errno.ECONNREFUSED)
    first.run(map_line(1, "shared", "first"))
    assert second.run("cat /sys/block/ibnbd0/ibnbd/state").strip() == "open"
    second.run(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
    # It leaves the addresses of its host, and the other one does not notice.
    server.run(f"echo 10.0.3.0/24 > {exports.HOSTS}/second/addresses")
    second.wait_until("! grep -qx connected /sys/class/ibtrs-client/second/paths/*/state", 60)
    assert first.run("cat /sys/class/ibtrs-client/first/paths/*/state").split() == ["connected"] * 2
    for guest, link in ((first, 1), (second, 2)):
        guest.run(f"ip addr del 10.0.{link}.3/24 dev eth0")
