# SPDX-License-Identifier: GPL-2.0
"""Tests of the testbed, with the kernel's own RNBD: if these fail, look for the fault in the testbed
first."""

import pytest

from testbed import judge, klog, leaks, slab

# Whole pages only: mainline RTRS refuses some scatter lists of smaller pieces.
FIO = ("fio --name=verify --filename={disk} --rw=randrw --bsrange=4k-64k --size=8m --direct=1 "
       "--ioengine=io_uring --iodepth=4 --verify=crc32c --verify_fatal=1 --output-format=terse")


def map_disk(server, client, device="nullb0"):
    server.null_blk(device, size_mb=64)
    server.run("modprobe rnbd_server")
    client.run("modprobe rnbd_client")
    client.run(f'echo "sessname=s path=ip:10.0.1.1 device_path=dev/{device}"'
               " > /sys/class/rnbd-client/ctl/map_device")
    return "/dev/rnbd0"


# On the fast kernel: time limits of mainline are fixed, and too short for emulated guests.
@pytest.mark.fast
@pytest.mark.quiet
def test_map_and_verify(pair):
    server, client = pair
    disk = map_disk(server, client)
    client.run(FIO.format(disk=disk), timeout=600)
    # The server has on its own disk what the client wrote.
    sums = [guest.run(f"head -c 8M {path} | sha256sum")
            for guest, path in ((server, "/dev/nullb0"), (client, disk))]
    assert sums[0] == sums[1]


def test_kernel_reports_are_seen(pair):
    """A report in the kernel log of either guest fails a scenario."""
    for guest in pair:
        # What a kernel without a module of ours reports does not count.
        guest.run("modprobe ibtrs_core && modprobe -r ibtrs_core")
        guest.run('echo "BUG: KASAN: use-after-free in nobody_at_all" > /dev/kmsg')
        guest.wait_for_log("nobody_at_all")
        with pytest.raises(judge.Harmed, match=f"(?s)kernel log of {guest.name}.*nobody_at_all"):
            judge.check(pair)
    assert not judge.kernel_reports(pair)


def test_commands_run_beside_each_other(pair):
    client = pair.client
    slow = client.start("sleep 60; echo never")
    assert client.run("echo out; echo err >&2") == "out\nerr"
    assert client.run("exit 3", check=False).status == 3
    assert slow.running
    slow.kill()
    assert slow.wait(20, check=False).status == -9
    client.push("/tmp/x/hello.sh", "#!/bin/sh\necho hello $1\n", mode=0o755)
    assert client.run("/tmp/x/hello.sh you") == "hello you"


def test_a_cable_is_pulled(pair):
    client = pair.client
    client.run("ip neigh flush dev eth0")
    pair.client.cable(1, plugged=False)
    client.wait_until("[ $(cat /sys/class/net/eth0/carrier) = 0 ]")
    pair.client.cable(1, plugged=True)
    client.wait_until("[ $(cat /sys/class/net/eth0/carrier) = 1 ]")


@pytest.mark.fast
@pytest.mark.quiet
@pytest.mark.kills
@pytest.mark.parametrize("name", ["server", "client"])
def test_a_guest_is_killed_and_comes_back(pair, name):
    pair.reboot(name)
    server, client = pair
    disk = map_disk(server, client)
    client.run(f"dd if={disk} of=/dev/null bs=64k count=16 iflag=direct")


@pytest.mark.fast
def test_boot_is_clean(solo):
    assert not klog.faults(solo.log.lines())


@pytest.mark.thorough
@pytest.mark.leaky
def test_leaks_are_seen(pair):
    """The kernel's own sample forgets 18 objects or more each time it is loaded,
    among them two of 1 KiB."""
    guest = pair.client
    before = slab.used(guest)
    guest.run("for i in $(seq 14); do modprobe kmemleak-test && rmmod kmemleak-test || exit 1; done")
    # 28, less what others have given back meanwhile.
    assert slab.grown(before, slab.used(guest), by=10).keys() >= {"kmalloc-1k"}
    assert len(leaks.find(guest)) >= 40
