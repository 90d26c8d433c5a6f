# SPDX-License-Identifier: GPL-2.0
"""A client joins a server by a token, and maps what it may open: nobody copies a key."""

from contextlib import ExitStack

import pytest

from testbed import fio, keyring
from testbed.guide import writable
from testbed.lab import wait_for
from testbed.message_programs import bound, case, finish, load_both, start
from testbed.tool import Tool

pytestmark = [pytest.mark.fast, pytest.mark.links(2)]

SESSION = "web1"


@pytest.fixture
def tools(pair):
    """The command on both machines, which can write into /etc."""
    with ExitStack() as stack:
        for guest in pair:
            stack.enter_context(writable(guest))
        yield [Tool(guest) for guest in pair]
        for guest in pair:
            guest.run("rm -rf /run/ibtrs")


def fingerprint(tool: Tool) -> str:
    (key,) = tool.json("key list")["keys"]
    assert (key["session"], key["id"]) == (SESSION, "default")
    return key["fingerprint"]


def fingerprint_of(tool: Tool, session: str) -> list[str]:
    return [key["fingerprint"] for key in tool.json("key list")["keys"] if key["session"] == session]


def test_a_token_leads_to_a_disk_over_all_paths(pair, stack, tools):
    server, client = pair
    of_server, of_client = tools
    server.null_blk(size_mb=32)
    server.null_blk("nullb1", size_mb=16)
    # The modules are loaded by the commands.
    said = server.run(f"{of_server.program} export add /dev/nullb0 disk1 --host web1 2>&1")
    assert "made the host web1, which comes in once it has a key: ibnbd host add web1 --token" in said
    of_server("export add /dev/nullb1 disk2 --host web1 --ro")
    token = of_server("host add web1 --token")
    assert token.startswith("ibtrs-token-1/web1/10.0.1.1,10.0.2.1/11235/")
    listed = of_client(f"join {token}")
    assert "disk1" in listed and "disk2" in listed
    assert of_client("map disk1") == "/dev/ibnbd0"
    assert keyring.key_ids(client, "client", SESSION) == ["default", "default"]
    assert keyring.suites(server, "server", SESSION) == ["x25519", "x25519"]
    assert fingerprint(of_server) == fingerprint(of_client)
    client.run("dd if=/dev/urandom of=/dev/ibnbd0 bs=1M count=4 oflag=direct status=none")
    # Whatever else it may open, in the mode in which it may.
    assert of_client("map --all") == "/dev/ibnbd1"
    assert client.run("cat /sys/block/ibnbd1/ro").strip() == "1"
    # The token is worthless now: nobody waits for it, nor for another one.
    server.wait_until("! (: < /dev/tcp/10.0.1.1/11235) 2> /dev/null", 10)
    assert "no address answers" in of_client.refused(f"join {token}")
    other = of_server("host add web2 --token")
    said = of_client.refused(f"join {token}", code=3)
    assert "the server does not know the token: it was used" in said
    # Without the key nobody gets in, under this name or another one.
    of_client("unmap --unused")
    keyring.remove(client, SESSION)
    assert "EKEYREJECTED" in of_client.refused("map disk1")
    # A token of another host lets its client see nothing of this one's.
    assert "disk1" not in of_client(f"join {other}")
    assert "lets this machine open it" in of_client.refused("map disk1 --session web2", code=3)
    # A host that is removed takes its key with it.
    assert fingerprint_of(of_server, SESSION)
    of_server("host remove web1 --force")
    server.run("test ! -e /etc/ibtrs/keys/web1.key && test -e /etc/ibtrs/keys/web2.key")
    assert not fingerprint_of(of_server, SESSION) and fingerprint_of(of_server, "web2")


def test_a_second_token_replaces_the_key_under_io(pair, tools):
    """The disk that is mapped goes on with the new key, and the old one ends."""
    server, client = pair
    of_server, of_client = tools
    server.null_blk(size_mb=32)
    of_server("export add /dev/nullb0 disk1 --host web1")
    of_client(f"join {of_server('host add web1 --token')}")
    of_client("map disk1")
    before = fingerprint(of_client)
    load = client.start("fio --name=w --filename=/dev/ibnbd0 --rw=randrw --bs=4k --iodepth=4 --direct=1 --size=8m "
                        "--time_based --runtime=600 --rate_iops=50 --output-format=terse")
    assert "it is connected" in of_server.refused("host add web1 --token")
    of_client(f"join {of_server('host add web1 --token --force')}")
    (new,) = of_client.json("key list")["keys"]
    assert new["id"].startswith("join-") and new["fingerprint"] != before
    # Of the server, as soon as it knows that the client keeps it.
    wait_for(lambda: [key["id"] for key in of_server.json("key list")["keys"]] == [new["id"]], 20, "the old key is gone")
    wait_for(lambda: keyring.key_ids(client, "client", SESSION) == [new["id"]] * 2, 60, "both paths have the new key")
    assert load.running
    fio.end(client, load)
    # And so do disks that are mapped later.
    of_client("unmap ibnbd0")
    assert of_client("map disk1") == "/dev/ibnbd0"
    assert keyring.key_ids(client, "client", SESSION) == [new["id"]] * 2
    of_server("host remove web1 --force")
    assert of_server.json("key list")["keys"] == []


def test_the_token_reaches_portals(pair, tools):
    """Messages of programs use the session and its key; this portal takes no channel without one."""
    server, client = pair
    of_server, of_client = tools
    server.null_blk(size_mb=16)
    load_both(pair)
    of_server("export add /dev/nullb0 disk1 --host web1")
    of_client(f"join {of_server('host add web1 --token')}")
    of_client("map disk1")
    answering = start(server, "answer", "kv", 1, 50, 0, 0)
    bound(server)
    case(client, "ask", SESSION, "kv", 1, 50)
    assert "authenticated=True" in finish(answering)


def test_what_join_keeps_brings_the_disk_back(pair, stack, tools):
    """The files are what the next boot has: key, server and disk."""
    server, client = pair
    of_server, of_client = tools
    server.null_blk(size_mb=32)
    of_server("export add /dev/nullb0 disk1 --host web1")
    token = of_server("host add web1 --token")
    client.push("/tmp/token", f"{token}\n")
    of_client("join - < /tmp/token")
    of_client("map disk1 --persist")
    of_server("save")
    client.run("ls -l /etc/ibtrs/keys | grep -q '^-rw------- .* web1.key$'")
    of_client("unmap ibnbd0")
    client.run(stack.unload("client"))
    # The next start needs the keys.
    said = server.run(f"{of_server.program} export remove --all 2>&1")
    assert "the keys of web1 stay, for the next start" in said
    server.run(stack.unload("server"))
    for guest, tool in zip(pair, tools):
        # What ibnbd-key@web1 does where there is systemd.
        guest.run("modprobe ibtrs_core")
        tool("key load web1 --file /etc/ibtrs/keys/web1.key")
        tool("apply")
    assert keyring.key_ids(client, "client", SESSION) == ["default", "default"]
    assert client.run("cat /sys/block/ibnbd0/ibnbd/mapping_path").strip() == "disk1"


@pytest.mark.rdma("siw")
def test_over_iwarp_the_addresses_are_those_of_the_interfaces(pair, stack, tools):
    """The GID of such a device is no address."""
    of_server, of_client = tools
    pair.server.null_blk(size_mb=16)
    of_server("export add /dev/nullb0 disk1 --host web1")
    token = of_server("host add web1 --token")
    assert token.startswith("ibtrs-token-1/web1/10.0.1.1,10.0.2.1/11235/")
    assert "disk1" in of_client(f"join {token}")
    assert of_client("map disk1") == "/dev/ibnbd0"
    assert keyring.key_ids(pair.client, "client", SESSION) == ["default", "default"]
