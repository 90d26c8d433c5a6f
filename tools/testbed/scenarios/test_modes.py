# SPDX-License-Identifier: GPL-2.0
"""The server's modes and sizes, and RDMA devices that go away."""

import pytest

from testbed import blockdev, fio

VERIFY = ("--name=verify --filename={disk} --rw=randrw --bsrange=512-256k --size=4m --iodepth=16 "
          "--direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1")
LOAD = f"{fio.LOAD} {fio.IN_BURSTS}"


@pytest.mark.parametrize("parameters", [
    "always_invalidate=N",
    pytest.param("always_invalidate=N max_chunk_size=16384 sess_queue_depth=20", marks=pytest.mark.fast),
    pytest.param("max_chunk_size=8192 sess_queue_depth=500", marks=pytest.mark.fast),
    pytest.param("max_chunk_size=524288 sess_queue_depth=3", marks=pytest.mark.fast),
    pytest.param("max_chunk_size=126976 sess_queue_depth=20", marks=pytest.mark.fast),
])
def test_modes_and_sizes(pair, stack, parameters):
    server, client = pair
    server.run(f"modprobe ibtrs_server {parameters}")
    device = blockdev.map_new(pair, stack, size_mb=16)
    fio.run(client, VERIFY.format(disk=stack.disk), timeout=900)
    assert blockdev.same_on_both(pair, device, stack.disk, 4)


@pytest.mark.parametrize("side", ["client", "server"])
def test_an_rdma_device_goes_away_under_load(pair, stack, side):
    client, guest = pair.client, getattr(pair, side)
    device = blockdev.map_new(pair, stack)
    load = client.start(LOAD.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    blockdev.fail_fast(client)
    guest.run(pair.remove_device(side, 1), timeout=120)
    assert not load.wait(120, check=False).ok
    client.run(stack.unmap(how="force"), timeout=120)
    assert blockdev.disks(client, stack) == []

    guest.run(pair.add_device(side, 1))
    client.run(stack.map_device(device), timeout=120)
    client.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")


@pytest.mark.fast
def test_the_rdma_device_of_a_lost_path_goes_away(pair, stack):
    """The memory that is kept of a lost path does not keep its device, which comes back with the path."""
    server, client = pair
    device = blockdev.map_new(pair, stack, size_mb=16)
    blockdev.fail_fast(client)
    client.run("dmesg --clear")
    server.run(pair.remove_device("server", 1), timeout=120)
    client.wait_for_log("no path to the server is left", 60)
    client.run(pair.remove_device("client", 1), timeout=60)
    for guest in pair:
        guest.run(pair.add_device(guest.name, 1))
    client.wait_until(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none", 120)
    # Nor does it stay when nobody wants the path back.
    server.run(pair.remove_device("server", 1), timeout=120)
    client.run(stack.unmap(how="force"), timeout=120)
    client.run(pair.remove_device("client", 1), timeout=60)
    for guest in pair:
        guest.run(pair.add_device(guest.name, 1))
    client.run(stack.map_device(device), timeout=120)


@pytest.mark.fast
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_module_goes_with_the_rdma_device(pair, stack, side):
    """The transport is unloaded while the device tells its users that it goes away."""
    client, guest = pair.client, getattr(pair, side)
    device = blockdev.map_new(pair, stack, size_mb=16)
    unload = {"client": "echo force > /sys/block/ibnbd0/ibnbd/unmap_device; rmmod ibnbd_client ibtrs_client",
              "server": "rmmod ibnbd_server ibtrs_server"}[side]
    for pause in ("0", "0.05", "0.2"):
        guest.run(f"{pair.remove_device(side, 1)} & sleep {pause}; {unload}; wait", timeout=120)
        if side == "server":
            client.run(stack.unmap(how="force"), timeout=120)
        guest.run(pair.add_device(side, 1))
        blockdev.load(pair, stack)
        client.run(stack.map_device(device), timeout=120)
