# SPDX-License-Identifier: GPL-2.0
"""A module is unloaded while a function of its own has not returned."""

import errno
import os
import re

import pytest

from testbed import blockdev

pytestmark = pytest.mark.fast

# The callers of callbacks that may end everything that unloading a driver waits for (kx::module::LastTails).
TAILS = {"the end of a bio": r"2kx3blk3bio5ended$",
         "a file of a device": r"2kx5sysfs4attr12device_store$",
         "a file of a directory": r"2kx5sysfs4attr13kobject_store$",
         "the last reference to a directory of configfs": r"2kx8configfs6folder7release$",
         "the last reference to the top of these": r"2kx8configfs9subsystem7release$",
         "the end of a queue": r"WorkItemPointer.*5queue5Queue.*3run|5queue5Queue.*WorkItemPointer.*3run"}


def test_no_driver_has_the_tail_of_its_callbacks(pair, stack):
    """The code that frees a driver for unloading is not the driver's: neither generic, which
    would make a copy in each, nor inlined."""
    blockdev.load(pair, stack)
    for guest, driver in ((pair.server, stack.server_module), (pair.client, stack.client_module)):
        symbols = [line.split() for line in guest.run(r"grep '\[ib' /proc/kallsyms").splitlines()]
        where = {what: {module for _, _, name, module in symbols if re.search(tail, name)}
                 for what, tail in TAILS.items()}
        assert where == dict.fromkeys(TAILS, {f"[{stack.core_module}]"})
        assert f"[{driver}]" in {module for *_, module in symbols}


def test_a_driver_stays_while_a_file_is_written(pair, stack):
    """A file that removes itself keeps its module until the function of the file has returned.
    The one that connects to a server keeps it by the same means, and takes as long as is wanted."""
    client = pair.client
    blockdev.load(pair, stack)
    connecting = client.start(stack.map_device("/dev/none", address="10.0.1.99"))
    client.wait_until(f"[ $(cat /sys/module/{stack.client_module}/refcnt) = 1 ]", 20)
    refused = client.run(f"busybox rmmod {stack.client_module}", check=False, timeout=20)
    assert os.strerror(errno.EAGAIN) in refused and connecting.running
    assert not connecting.wait(120, check=False).ok
    client.run(f"[ $(cat /sys/module/{stack.client_module}/refcnt) = 0 ]")
    client.run(stack.unload("client"))
    assert client.ok(f"[ ! -e /sys/module/{stack.core_module} ]")
