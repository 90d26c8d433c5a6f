# SPDX-License-Identifier: GPL-2.0
"""The first reads of a new disk."""

import errno
import os
import time

import pytest

from testbed import blockdev

pytestmark = pytest.mark.fast

# Seconds: the limit of the first read that times out.
A_REQUEST = 60
READ = "dd if=/dev/ibnbd{number} of=/dev/null bs=4k count=1 iflag=direct status=none"


def test_the_first_readers_do_not_wait_for_ever(pair, stack):
    """A read of a disk that is not in use has a limit; a read of a disk in use has none."""
    server, client = pair
    for number in range(2):
        server.null_blk(f"nullb{number}", size_mb=16)
    server.run(f"modprobe dm_mod && for i in 0 1; do {blockdev.DMSETUP} create stuck$i --table "
               '"0 32768 linear /dev/nullb$i 0"; done')
    blockdev.load(pair, stack)
    for number in range(2):
        client.run(stack.map_device(f"/dev/dm-{number}"))
    client.run(": <> /dev/ibnbd1")
    server.run(f"for i in 0 1; do {blockdev.DMSETUP} suspend --noflush --nolockfs stuck$i; done")
    try:
        started = time.monotonic()
        reads = [client.start(READ.format(number=number)) for number in range(2)]
        said = reads[0].wait(A_REQUEST * 2, check=False)
        took = time.monotonic() - started
        assert os.strerror(errno.ETIMEDOUT) in said and took > A_REQUEST * 0.9, f"{took:.0f} s: {said}"
        time.sleep(A_REQUEST)
        assert reads[1].running
    finally:
        server.run(f"for i in 0 1; do {blockdev.DMSETUP} resume stuck$i; done")
    reads[1].wait(60)
    for number in range(2):
        client.wait_until(READ.format(number=number), 60)
        client.run(stack.unmap(number))
    server.run(f"for i in 0 1; do {blockdev.DMSETUP} remove stuck$i; done")
