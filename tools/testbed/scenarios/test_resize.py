# SPDX-License-Identifier: GPL-2.0
"""The server's disk changes its size, and the client learns that from the server alone."""

import pytest

from testbed import blockdev, fio, mishaps, uevents

pytestmark = pytest.mark.fast

IMAGE = "/tmp/disk.img"
PATHS = "/sys/class/ibtrs-client/demo/paths"


def new_loop(server, size_mb: int, number: int = 0) -> str:
    server.run(f"modprobe loop && truncate -s {size_mb}M {IMAGE}{number} && "
               f"losetup /dev/loop{number} {IMAGE}{number}")
    return f"/dev/loop{number}"


def set_size(server, size_mb: int, number: int = 0) -> None:
    server.run(f"truncate -s {size_mb}M {IMAGE}{number} && losetup -c /dev/loop{number}")


def wait_for_size(client, size_mb: int, number: int = 0) -> None:
    client.wait_until(f"read -r size < /sys/block/ibnbd{number}/size && [ $size = {size_mb << 11} ]", 60)


def remove(server, *numbers: int) -> None:
    for number in numbers:
        server.run(f"losetup -d /dev/loop{number}; rm {IMAGE}{number}")


def readable(client, at_mb: int) -> bool:
    return client.ok(f"dd if=/dev/ibnbd0 of=/dev/null bs=64k skip={at_mb * 16} count=1 iflag=direct "
                     "status=none 2> /tmp/dd && [ ! -s /tmp/dd ]")


def test_a_disk_grows_and_shrinks(pair, stack):
    server, client = pair
    device, other = new_loop(server, 32), new_loop(server, 32, 1)
    blockdev.load(pair, stack)
    client.run(stack.map_device(device))
    client.run(stack.map_device(f"{other} access_mode=ro"))
    events = uevents.listen(client)
    load = client.start(f"fio --name=x --filename={stack.disk} --rw=randrw --bs=4k --iodepth=16 --direct=1 "
                        f"--ioengine=io_uring --time_based --runtime=600 --size=8m {fio.NOW_AND_THEN}")
    blockdev.wait_for_reads(client, stack)

    set_size(server, 64)
    wait_for_size(client, 64)
    client.run(f"dd if=/dev/urandom of={stack.disk} bs=1M seek=60 count=4 oflag=direct status=none")
    assert blockdev.same_on_both(pair, device, stack.disk, 4, 60)
    set_size(server, 16)
    wait_for_size(client, 16)
    assert readable(client, 15)
    assert not client.ok(f"dd if=/dev/zero of={stack.disk} bs=64k seek=256 count=1 oflag=direct")
    # The one that is read only is told as well, and nobody else is.
    set_size(server, 48, 1)
    wait_for_size(client, 48, 1)
    assert client.run("cat /sys/block/ibnbd0/size").strip() == str(16 << 11)

    events.kill()
    seen = [line for line in events.wait(20, check=False).splitlines() if "RESIZE=1" in line]
    assert [line.split()[0] for line in seen] == [
        f"change@/devices/virtual/block/ibnbd{number}" for number in (0, 0, 1)]
    # The load was not disturbed.
    assert load.running
    fio.end(client, load)
    # The client asks once for each change.
    assert client.run("dmesg | grep -c 'sectors now, it had'").strip() == "3"
    client.wait_until(stack.unmap(0))
    client.run(stack.unmap(1))
    remove(server, 0, 1)


@pytest.mark.links(2)
def test_it_is_told_whatever_happens_to_paths(pair, stack):
    server, client = pair
    device = new_loop(server, 32)
    blockdev.load(pair, stack)
    client.run(stack.map_device(device).replace("path=ip:10.0.1.1", "path=ip:10.0.1.1 path=ip:10.0.2.1"))
    client.wait_until(f"[ $(cat {PATHS}/*/state | grep -c ^connected) = 2 ]")
    # A question over a lost path is asked again over the other one, once the loss is detected.
    client.run("echo 300 > /sys/class/ibtrs-client/demo/hb_interval_ms")
    size = 32
    for cut in (1, 2):
        with mishaps.cable_out(pair, server, cut):
            size += 16
            set_size(server, size)
            wait_for_size(client, size)
        client.wait_until(f"[ $(cat {PATHS}/*/state | grep -c ^connected) = 2 ]", 120)
    # Nobody can be told, and it is told later.
    client.run(f"for f in {PATHS}/*/disconnect; do echo 1 > $f; done")
    set_size(server, 24)
    assert client.run("cat /sys/block/ibnbd0/size").strip() == str(size << 11)
    client.run(f"for f in {PATHS}/*/reconnect; do echo 1 > $f; done")
    wait_for_size(client, 24)
    # A size that was set by hand holds until the server's changes.
    client.run(f"echo {16 << 11} > /sys/block/ibnbd0/ibnbd/resize; sleep 2.5")
    wait_for_size(client, 16)
    set_size(server, 40)
    wait_for_size(client, 40)
    client.run(stack.unmap())
    remove(server, 0)
