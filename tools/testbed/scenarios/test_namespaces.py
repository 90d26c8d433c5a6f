# SPDX-License-Identifier: GPL-2.0
"""Network namespaces: a session belongs to the namespace of the process that created it, a server to
that of the process that loaded it."""

import errno
import os
import time

import pytest

from testbed import blockdev, netns

pytestmark = pytest.mark.fast

SMALL = "max_chunk_size=16384 sess_queue_depth=16"


def line(device: str, path: str = "") -> str:
    return f"sessname=s {path and f'path=ip:{path}'} device_path={device}"


def refused(guest, command: str, *numbers: int) -> bool:
    said = guest.run(command, check=False)
    return any(os.strerror(number) in said for number in numbers)


def test_whose_network_it_is(solo, stack):
    one, two = solo.null_blk("nullb0", size_mb=16), solo.null_blk("nullb1", size_mb=16)
    solo.run(f"modprobe ibtrs_server {SMALL} && {stack.load_client()}")
    netns.add(solo, 1)
    solo.run(netns.inside(1, stack.load_server()))

    # The server is in the namespace, and nowhere else; InfiniBand's own connection manager
    # knows no namespaces, and so does not say that nobody listens.
    into = f"> {stack.map_file}"
    assert refused(solo, f'echo "{line(one, "10.0.1.1")}" {into}', errno.ECONNREFUSED, errno.ECONNRESET)
    solo.run(f'echo "{line(one, "10.1.1.2")}" {into}')
    solo.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")

    # The session is not shared with another namespace, whether a path is given or not.
    solo.run("dmesg --clear")
    for path in ("", "10.1.1.2"):
        assert refused(solo, netns.inside(1, f'echo "{line(two, path)}" {into}'), errno.EEXIST)
    said = solo.run("dmesg").count("another network namespace has a session with this name: EEXIST")
    assert said == 2
    # In its own namespace it can be shared, and who unmaps does not matter.
    solo.run(f'echo "{line(two)}" {into}')
    assert len(blockdev.disks(solo, stack)) == 2
    for number in range(2):
        solo.run(netns.inside(1, stack.unmap(number)))

    # Now the name is free for others.
    solo.run(netns.inside(1, f'echo "{line(two, "10.1.1.2")}" {into}'))
    assert refused(solo, f'echo "{line(one, "10.1.1.2")}" {into}', errno.EEXIST)
    solo.run(stack.unmap())
    solo.run("modprobe -r ibnbd_server")
    netns.drop(solo, 1)
    # Nothing keeps the namespace.
    solo.wait_until("[ -z \"$(ip -o link show type veth)\" ]", 30)


def test_a_neighbour_that_answers_while_it_is_asked(solo, stack):
    """The kernel's resolver of RDMA addresses sleeps through that answer until its time is over."""
    device = solo.null_blk("nullb0", size_mb=16)
    solo.run(f"modprobe ibtrs_server {SMALL} && {stack.load_server()} && {stack.load_client()}")
    netns.add(solo, 1)
    solo.run(netns.inside(1, "ip neigh flush nud all dev far1"))
    started = time.monotonic()
    solo.run(netns.inside(1, f'echo "{line(device, "10.1.1.1")}" > {stack.map_file}'))
    assert time.monotonic() - started < 20
    solo.run(netns.inside(1, stack.unmap()))
    netns.drop(solo, 1)
