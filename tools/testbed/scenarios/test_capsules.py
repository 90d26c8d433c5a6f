# SPDX-License-Identifier: GPL-2.0
"""Capsules: small requests are messages, and a connection has a window for them."""

import pytest

from testbed import blockdev, fio
from testbed.stack import STACKS

# Soft-iWARP has no immediates, and so no capsules.
pytestmark = [pytest.mark.fast, pytest.mark.rdma("rxe"), pytest.mark.cpus(4)]

OURS = STACKS["ibtrs"]
VERIFY = "--direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1"
SIZE_MB = 24


@pytest.mark.parametrize("parameters", ["capsules=Y", "capsules=Y always_invalidate=N", "capsules=N"])
def test_one_processor_has_more_requests_than_the_window(pair, parameters):
    """With four connections, the window of one is a quarter of what is in flight here."""
    server, client = pair
    device = server.null_blk(size_mb=SIZE_MB)
    server.run(f"modprobe {OURS.transport('server')} {parameters} && {OURS.load_server()}")
    client.run(f"{OURS.load_client()} && {OURS.map_device(device, session='one')}")
    for sizes in ("512-512", "4k-4k", "512-16k"):
        fio.run(client, f"--name=x --filename={OURS.disk} --rw=randrw --bsrange={sizes} --iodepth=508 --cpus_allowed=0 "
                        f"--iodepth_batch_submit=64 --size=8m {VERIFY}", timeout=300)
    assert blockdev.same_on_both(pair, device, OURS.disk, SIZE_MB)
    assert int(client.run("cat /sys/class/ibtrs-client/one/paths/*/stats/window_full")) > 0 or "capsules=N" in parameters
    # The other processors' connections are as before.
    fio.run(client, f"--name=x --filename={OURS.disk} --rw=randrw --bs=4k --iodepth=127 --numjobs=4 --size=4m "
                    f"--offset_increment=4m --cpus_allowed=0-3 --cpus_allowed_policy=split {VERIFY}", timeout=300)
    client.run(OURS.unmap())


def test_a_path_is_lost_with_capsules_in_flight(pair):
    """Requests without an answer are sent again when the path is back."""
    server, client = pair
    device = server.null_blk(size_mb=SIZE_MB)
    server.run(OURS.load_server())
    client.run(f"{OURS.load_client()} && {OURS.map_device(device, session='one')}")
    load = client.start(f"fio --name=x --filename={OURS.disk} --rw=randwrite --bsrange=512-4k --iodepth=64 --size=8m "
                        f"--time_based --runtime=20 {VERIFY}")
    for guest in (client, server, client, server):
        client.run("sleep 3")
        guest.run("for path in /sys/class/ibtrs-*/*/paths/*; do echo 1 > $path/disconnect; done")
        client.run("sleep 1; for path in /sys/class/ibtrs-client/*/paths/*; do echo 1 > $path/reconnect; done",
                   check=False)
    assert "err= 0" in load.wait(120)
    assert blockdev.same_on_both(pair, device, OURS.disk, SIZE_MB)
    client.run(OURS.unmap())
