# SPDX-License-Identifier: GPL-2.0
"""Ports in configfs: where the server listens."""

import errno
import os

import pytest

from testbed import blockdev, exports, fio
from testbed.hostile import launch
from testbed.lab import wait_for

pytestmark = [pytest.mark.links(2)]
fast = pytest.mark.fast

SESSION = "/sys/class/ibtrs-client/demo"
FIRST, SECOND = (f"{SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1" for link in (1, 2))
SETTINGS = {"max_reconnect_attempts": -1, "reconnect_delay_ms": 100}


@pytest.fixture
def server(pair, stack):
    pair.server.null_blk(size_mb=16)
    pair.server.run("modprobe ibnbd_server")
    pair.client.run(stack.load_client())
    exports.make(pair.server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    return pair.server


def map_line(link: int = 1, options: str = "") -> str:
    line = f"sessname=demo path=ip:10.0.{link}.2,ip:10.0.{link}.1 device_path=disk1 {options}"
    return f'echo "{line}" > /sys/class/ibnbd-client/ctl/map_device'


def add_path(link: int) -> str:
    return f"echo ip:10.0.{link}.2,ip:10.0.{link}.1 > {SESSION}/add_path"


def refused(guest, command: str, *numbers: int) -> None:
    answer = guest.run(command, timeout=120, check=False)
    assert not answer.ok and any(os.strerror(number) in answer for number in numbers), (command, answer)


def is_connected(client, path: str) -> bool:
    return client.run(f"cat {path}/state") == "connected"


def test_the_server_listens_on_its_ports_only(pair, stack, server):
    client = pair.client
    # Without ports: everywhere.
    client.run(map_line(2) + " && " + stack.unmap())
    server.run(f"mkdir {exports.PORTS}/first")
    for link in (1, 2):
        refused(client, map_line(link), errno.ECONNREFUSED)
    folder = f"{exports.PORTS}/first"
    server.run(exports.write(folder, address="ip:10.0.1.1", enable=1))
    assert server.run(f"cat {folder}/listening {folder}/port").split() == ["1", "1234"]
    refused(client, map_line(2), errno.ECONNREFUSED)
    client.run(map_line())
    refused(client, add_path(2), errno.ECONNREFUSED)
    exports.make_port(server, "second", "ip:10.0.2.1")
    client.run(f"{add_path(2)} && {exports.write(SESSION, **SETTINGS)}")
    load = client.start(fio.GOES_ON.format(disk=stack.disk))
    # Connected paths stay, but do not come back while the port is disabled.
    server.run(f"echo 0 > {folder}/enable")
    assert server.run(f"cat {folder}/listening") == "0" and is_connected(client, FIRST)
    client.run(f"echo 1 > {FIRST}/reconnect", check=False)
    client.wait_until(f"! grep -qx connected {FIRST}/state")
    blockdev.wait_for_reads(client, stack)
    assert not is_connected(client, FIRST)
    server.run(f"echo 1 > {folder}/enable")
    client.wait_until(f"grep -qx connected {FIRST}/state")
    # With the last one gone: everywhere again.
    server.run(f"busybox rmdir {exports.PORTS}/second {folder}")
    for path in (FIRST, SECOND):
        assert is_connected(client, path)
        client.run(f"echo 1 > {path}/reconnect")
        client.wait_until(f"grep -qx connected {path}/state")
    fio.end(client, load)


@fast
def test_a_port_has_a_number_of_its_own(pair, stack, server):
    client = pair.client
    folder = exports.make_port(server, "first", "ip:10.0.1.1", port=4321)
    refused(client, map_line(), errno.ECONNREFUSED)
    client.run(map_line(1, "dest_port=4321") + " && " + stack.unmap())
    # The unspecified address stands for all of its family.
    exports.make_port(server, "all", "ip:0.0.0.0", port=1234)
    for link in (1, 2):
        client.run(map_line(link) + " && " + stack.unmap())
    assert server.run(f"cat {exports.PORTS}/all/listening {folder}/listening").split() == ["1", "1"]


@fast
def test_a_server_that_listens_on_ports_only(pair, stack, server):
    """As for one that must not be reached before its operator has made its ports, and between two of them."""
    client = pair.client
    server.run(f"{exports.CLEAR} && rmmod ibnbd_server && modprobe ibnbd_server port_nr=0")
    assert "port_nr is 0: listening on the ports in configfs only" in server.run("dmesg")
    exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    for _ in range(2):
        refused(client, map_line(), errno.ECONNREFUSED)
        folder = exports.make_port(server, "first", "ip:10.0.1.1")
        assert server.run(f"cat {folder}/port") == "1234"
        client.run(map_line() + " && " + stack.unmap())
        server.run(f"busybox rmdir {folder}")


@fast
@pytest.mark.rdma("rxe")
def test_all_addresses_that_are_in_use(pair, stack, server):
    """With its last port, the server wants all addresses back, which another program has meanwhile."""
    client = pair.client
    folder = exports.make_port(server, "first", "ip:10.0.1.1", port=4321)
    other = launch.ready(launch.program(server, """
from testbed.hostile.verbs import Listener
listener = Listener("10.0.2.1", 1234)
print("ready", flush=True)
time.sleep(600)
"""))
    server.run(f"busybox rmdir {folder}")
    assert "cannot listen on port 1234 (EADDRINUSE): no client can connect; trying again" in server.run("dmesg")
    refused(client, map_line(), errno.ECONNREFUSED)
    server.run("pkill -f /tmp/program.py")
    other.wait(30, check=False)
    client.wait_until(map_line(), 30)
    client.run(stack.unmap())


@fast
def test_what_operators_write(pair, stack, server):
    folder, again = f"{exports.PORTS}/first", f"{exports.PORTS}/again"
    refused(server, f"mkdir '{exports.PORTS}/a b'", errno.EINVAL)
    server.run(f"mkdir {folder} {again}")
    refused(server, f"mkdir {folder}", errno.EEXIST)
    refused(server, f"mkdir {folder}/x", errno.EPERM)
    refused(server, f"echo 1 > {folder}/enable", errno.EINVAL)
    assert "first: enable: address is not set" in server.run("dmesg")
    server.run(f"echo ip:10.0.9.9 > {folder}/address")
    refused(server, f"echo 1 > {folder}/enable", errno.ENODEV, errno.EADDRNOTAVAIL)
    assert "first: enable: this machine does not have the address" in server.run("dmesg")
    assert server.run(f"cat {folder}/enable {folder}/listening").split() == ["0", "0"]
    server.run(exports.write(folder, address="ip:10.0.1.1", enable=1) + " && echo 1 > enable")
    for file, text in (("address", "ip:10.0.2.1"), ("port", "4321")):
        refused(server, f"echo {text} > {folder}/{file}", errno.EBUSY)
    server.run(exports.write(again, address="ip:10.0.1.1"))
    refused(server, f"echo 1 > {again}/enable", errno.EADDRINUSE)
    assert "again: enable: another port, or another program, listens there" in server.run("dmesg")
    # The unspecified address overlaps with it, and it with the unspecified one.
    server.run(exports.write(again, address="ip:0.0.0.0"))
    refused(server, f"echo 1 > {again}/enable", errno.EADDRINUSE)
    server.run(f"echo 0 > {folder}/enable && echo 1 > {again}/enable")
    refused(server, f"echo 1 > {folder}/enable", errno.EADDRINUSE)
    server.run(exports.write(again, enable=0, address="ip:10.0.1.1") + f" && echo 1 > {folder}/enable")
    # The connection manager takes a loopback address for the unspecified one.
    for text in ("ip:127.0.0.1", "ip:::1", "gid:::1", "ip:fe80::1", "ip:224.0.0.1"):
        refused(server, f"echo {text} > {again}/address", errno.EINVAL)
    assert "again: address: no RDMA device has a loopback address" in server.run("dmesg")
    # rmdir disables.
    server.run(f"busybox rmdir {folder} && echo 1 > {again}/enable")
    # As for exports.
    assert "is in use" in server.run("rmmod ibnbd_server", check=False)
    server.run(f"{exports.CLEAR} && rmmod ibnbd_server && modprobe ibnbd_server")


@pytest.mark.thorough
def test_the_rdma_device_of_a_port_goes_and_comes_back(pair, stack, server):
    """Its removal does not wait for the operator, and the server listens again without him."""
    client = pair.client
    folder = exports.make_port(server, "first", "ip:10.0.1.1")
    client.run(map_line())
    client.run(exports.write(SESSION, **SETTINGS))
    server.run(pair.remove_device("server", 1), timeout=60)
    assert server.run(f"cat {folder}/enable {folder}/listening").split() == ["1", "0"]
    assert "not listening on ip:10.0.1.1, port 1234 any more, as its RDMA device was removed" in server.run("dmesg")
    # Its settings cannot change, and it can be disabled and enabled.
    refused(server, f"echo ip:10.0.2.1 > {folder}/address", errno.EBUSY)
    server.run(pair.add_device("server", 1))
    wait_for(lambda: server.run(f"cat {folder}/listening") == "1", 30, "the server listens again")
    client.wait_until(f"grep -qx connected {FIRST}/state")
    client.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    # Disabled while it is away, it stays so.
    server.run(pair.remove_device("server", 1), timeout=60)
    server.run(f"echo 0 > {folder}/enable")
    server.run(pair.add_device("server", 1))
    server.run("sleep 3")
    assert server.run(f"cat {folder}/enable {folder}/listening").split() == ["0", "0"]
    refused(server, f"echo ip:10.0.1.1%1 > {folder}/address", errno.EINVAL)
    client.run(stack.unmap(how="force"), timeout=120)
