# SPDX-License-Identifier: GPL-2.0
"""A client's RDMA device that temporarily has no space to map the pages of requests."""

import pytest

from testbed import blockdev, faults

FUNCTION = faults.BY_NAME["ib_dma_virt_map_sg"]
TIMES = 20


@pytest.mark.thorough
def test_requests_wait_for_mapping_space(pair, stack):
    client = pair.client
    if not client.spec.kernel.slow:
        pytest.skip("the fast kernel does not fail on demand")
    faults.load(client)
    pair.server.null_blk(size_mb=16)
    blockdev.load(pair, stack)
    client.run(stack.map_device("/dev/nullb0"))
    client.run(f"echo {FUNCTION.watched} > {faults.FOLDER}/functions && "
               "dd if=/dev/urandom of=/tmp/written bs=64k count=64 status=none && "
               f"echo {FUNCTION.name} 3 {FUNCTION.error} {TIMES} > {faults.FOLDER}/arm && "
               f"dd if=/tmp/written of={stack.disk} bs=64k oflag=direct status=none && "
               f"dd if={stack.disk} bs=64k count=64 iflag=direct status=none | cmp - /tmp/written")
    failed = client.run(f"while read -r name _ failed; do [ $name = {FUNCTION.name} ] && echo $failed; done "
                        f"< {faults.FOLDER}/functions; echo '- 0 0 0' > {faults.FOLDER}/arm")
    assert failed == str(TIMES)
    client.run(f"{stack.unmap()} && busybox rmmod ibtrs_faults")
