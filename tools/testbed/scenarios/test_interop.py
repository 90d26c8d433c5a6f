# SPDX-License-Identifier: GPL-2.0
"""Our client with the kernel's own server, and the other way round."""

import pytest

from testbed import blockdev, fio
from testbed.stack import STACKS

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
# Little at a time: mainline cannot be told to be patient with emulated guests.
VERIFY = ("--name=verify --filename={disk} --rw=randrw --bsrange=4k-128k --size=6m --iodepth=4 "
          "--direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1")

pytestmark = [pytest.mark.fast, pytest.mark.quiet]


@pytest.mark.parametrize("invalidate", ["Y", "N"])
@pytest.mark.parametrize("client_stack, server_stack", [(OURS, MAINLINE), (MAINLINE, OURS)],
                         ids=["to-mainline", "from-mainline"])
def test_mainline_on_the_other_end(pair, client_stack, server_stack, invalidate):
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run(f"modprobe {server_stack.transport('server')} always_invalidate={invalidate}")
    server.run(server_stack.load_server())
    client.run(client_stack.load_client())
    # Below /dev for our server; mainline's puts its folder and the name together.
    name = device.removeprefix("/dev/") if server_stack is OURS else device.removeprefix("/")
    client.run(f'echo "sessname=s path=ip:10.0.1.1 device_path={name}" > {client_stack.map_file}')
    fio.run(client, VERIFY.format(disk=client_stack.disk), timeout=600)
    assert blockdev.same_on_both(pair, device, client_stack.disk, 6)
    client.run(client_stack.unmap())
    client.wait_until(f"[ ! -e {client_stack.disk} ]")
