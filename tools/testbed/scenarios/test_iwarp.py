# SPDX-License-Identifier: GPL-2.0
"""iWARP, which has no immediates: they travel in messages."""

import pytest

from testbed import blockdev, fio, keyring
from testbed.lab import wait_for

pytestmark = [pytest.mark.fast, pytest.mark.rdma("siw"), pytest.mark.links(2)]

SESSION = "/sys/class/ibtrs-client/demo"
LOAD = ("fio --name=load --filename={disk} --rw=randrw --bsrange=512-128k --iodepth=16 --direct=1 "
        "--ioengine=io_uring --verify=crc32c --verify_backlog=32 --time_based --runtime=600 --size=16m " + fio.IN_BURSTS)


def test_every_byte_is_right(pair, stack):
    server, client = pair
    device = blockdev.map_new(pair, stack, size_mb=32)
    client.run(f"fio --name=all --filename={stack.disk} --rw=randrw --bsrange=512-1m --iodepth=32 --direct=1 "
               "--ioengine=io_uring --verify=crc32c --verify_fatal=1 --size=32m", timeout=600)
    assert blockdev.checksum(client, stack.disk, 32) == blockdev.checksum(server, device, 32)


def test_a_path_fails_and_comes_back(pair, stack):
    client = pair.client
    blockdev.map_new(pair, stack, size_mb=32)
    client.run(f"echo ip:10.0.2.2,ip:10.0.2.1 > {SESSION}/add_path")
    load = client.start(LOAD.format(disk=stack.disk))
    client.wait_until(f"[ $(awk '{{ print $1 }}' /sys/block/ibnbd0/stat) -gt 20 ]")
    state = f"{SESSION}/paths/ip:10.0.2.2@ip:10.0.2.1/state"
    client.run("rdma link del siw1", timeout=120)
    wait_for(lambda: client.run(f"cat {state}") != "connected", 30, "the path is lost")
    client.run("rdma link add siw1 type siw netdev eth1")
    wait_for(lambda: client.run(f"cat {state}") == "connected", 60, "the path is back")
    fio.end(client, load)


def test_both_sides_authenticate(pair, stack):
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    device = blockdev.map_new(pair, stack, size_mb=16)
    for guest, side in ((client, "client"), (server, "server")):
        assert keyring.key_ids(guest, side) == ["default"]
    client.run(f"dd if=/dev/urandom of={stack.disk} bs=256k count=64 oflag=direct status=none")
    assert blockdev.same_on_both(pair, device, stack.disk, 16)
