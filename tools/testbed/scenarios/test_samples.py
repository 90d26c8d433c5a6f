# SPDX-License-Identifier: GPL-2.0
"""The samples in rust/samples work."""

import pytest

from testbed.channel import CommandFailed
from testbed.hostile import launch
from testbed.lab import wait_for

pytestmark = pytest.mark.fast

DISK = "/dev/sample0"


def test_the_smallest_disk_keeps_its_data(pair):
    guest = pair.client
    guest.run("modprobe ibtrs_sample_disk")
    assert int(guest.run(f"blockdev --getsize64 {DISK}")) == 4 << 20
    guest.run(f"head -c 4M /dev/urandom >/tmp/data && dd if=/tmp/data of={DISK} bs=64k oflag=direct status=none")
    guest.run(f"dd if={DISK} bs=256k iflag=direct status=none | cmp - /tmp/data && rm /tmp/data")
    # An open disk keeps its module loaded.
    with pytest.raises(CommandFailed):
        guest.run(f"exec 3<{DISK} && rmmod ibtrs_sample_disk")
    guest.run("rmmod ibtrs_sample_disk")
    assert not guest.ok(f"[ -e {DISK} ]")


def test_the_smallest_client_is_answered(pair):
    server, client = pair
    echo = launch.ready(launch.start(server, "echo", "10.0.1.1 7471"))
    client.run("modprobe ibtrs_sample_client server=10.0.1.1:7471")
    assert "ibtrs_sample_client: the answer is hello" in client.run("dmesg")
    wait_for(lambda: not echo.running, 30, "the end of the connection")
    assert "sent back b'hello'" in echo.text and "disconnected" in echo.text
    client.run("rmmod ibtrs_sample_client")


def test_the_smallest_client_fails_without_a_server(pair):
    client = pair.client
    with pytest.raises(CommandFailed):
        client.run("modprobe ibtrs_sample_client server=10.0.1.1:7472")
    assert not client.ok("[ -e /sys/module/ibtrs_sample_client ]")
