# SPDX-License-Identifier: GPL-2.0
"""Addresses of InfiniBand ports.  Soft RDMA has none, so these scenarios only check that such
addresses are refused, and that nothing else is affected."""

import errno
import os

import pytest

from testbed import blockdev

pytestmark = pytest.mark.fast

GID = "gid:fe80::202:c903:0:1"
FULL = "gid:fe80:0000:0000:0000:0202:c903:0000:0001"
SESSION = "/sys/class/ibtrs-client/demo"


def complaints(guest) -> list[str]:
    """The client's log lines about a session or a mapping."""
    return [line for line in guest.run("dmesg -l err,warn").splitlines() if "ibtrs_client:" in line or "ibnbd_client:" in line]


def test_no_port_leads_to_a_gid(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run("dmesg --clear")
    blockdev.load(pair, stack)
    # Soft-RoCE does have service ids, so that nobody has to be told otherwise.
    assert "GID" not in server.run("dmesg")
    for path in (GID, f"gid:fe80::9,{GID}", f"gid:fe80::9@{GID}"):
        client.run("dmesg --clear")
        refused = client.run(f'echo "sessname=demo path={path} device_path={device}" > {stack.map_file}', check=False)
        assert os.strerror(errno.ENODEV) in refused
        assert len(complaints(client)) == 1
        assert blockdev.disks(client, stack) == [] and not client.ok(f"[ -e {SESSION} ]")


def test_a_gid_beside_an_address(pair, stack):
    """The session works by the path that can be connected; the other one goes on
    trying, says why it cannot, and is shown with all digits."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    blockdev.load(pair, stack)
    client.run(f'echo "sessname=demo path={GID} path=ip:10.0.1.1 device_path={device}" > {stack.map_file}')
    path = f"{SESSION}/paths/{FULL}"
    client.wait_until(f"grep -q ENODEV {path}/last_error")
    assert client.run(f"cat {path}/state {path}/dst_addr").split() == ["disconnected", FULL]
    client.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    # So that it is not trying just then.
    client.run(f"echo 1 > {path}/disconnect")
    for wish in (f"echo 1 > {path}/reconnect", f"echo gid:fe80::7 > {SESSION}/add_path"):
        assert os.strerror(errno.ENODEV) in client.run(wish, check=False)
    assert len(client.run(f"ls {SESSION}/paths").split()) == 2
    client.run(f"echo 1 > {path}/remove_path")
    client.run(stack.unmap())
