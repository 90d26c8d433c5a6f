# SPDX-License-Identifier: GPL-2.0
"""Exports and hosts in configfs, managed with the command `ibnbd` alone."""

import pytest

from testbed import keyring
from testbed.tool import PROGRAM, Tool

pytestmark = [pytest.mark.fast, pytest.mark.links(2)]

FOLDER = "/sys/kernel/config/ibnbd"
TWO_PATHS = "--path 10.0.1.2,10.0.1.1 --path 10.0.2.2,10.0.2.1"


@pytest.fixture
def tools(pair):
    """The command on a server without dev_search_path and on a client.  Configfs is empty again
    afterwards, as the server's module could not be unloaded otherwise."""
    pair.server.run("modprobe ibnbd_server")
    pair.client.run("modprobe ibnbd_client")
    server_tool, client_tool = Tool(pair.server), Tool(pair.client)
    yield server_tool, client_tool
    server_tool("export remove --all")


def load_keys(pair) -> None:
    for guest in pair:
        keyring.load(guest, session="web1")


def state(tool: Tool) -> str:
    return tool.json("list")["disks"][0]["state"]


def entries(pair, folder: str) -> list[str]:
    return pair.server.run(f"ls {FOLDER}/{folder}").split()


def export_of(tool: Tool, name: str) -> dict:
    (found,) = [export for export in tool.json("export list")["configfs"] if export["name"] == name]
    return found


def host_of(tool: Tool, name: str) -> dict:
    (found,) = [host for host in tool.json("host list")["hosts"] if host["name"] == name]
    return found


def test_a_host_from_its_key_to_its_removal(pair, tools):
    server_tool, client_tool = tools
    load_keys(pair)
    server_tool("host add web1 --address 10.0.1.0/24 --address 10.0.2.0/24 --max-paths 2")
    server_tool("host add web2")
    server_tool(f"export add {pair.server.null_blk()} disk1 --host web1")
    export = export_of(server_tool, "disk1")
    assert (export["device_path"], export["enable"], export["allowed_hosts"]) == ("/dev/nullb0", True, ["web1"])
    host = host_of(server_tool, "web1")
    assert (host["addresses"], host["max_paths"], host["exports"]) == (["10.0.1.0/24", "10.0.2.0/24"], 2, ["disk1"])
    findings = pair.server.run(f"{PROGRAM} check", check=False)
    assert "host web2 has no key" in findings and "host web1" not in findings

    # Nobody has it open, so nobody is asked.
    server_tool("export disable disk1")
    assert "the export is disabled on the server (ENODEV)" in client_tool.refused("map 10.0.1.1 disk1 --session web1")
    server_tool("export enable disk1")
    assert client_tool(f"map 10.0.1.1 disk1 --session web1 {TWO_PATHS}") == "/dev/ibnbd0"
    for tool in tools:
        assert [path["key_id"] for path in tool.json("paths web1")["paths"]] == ["default"] * 2
    assert host_of(server_tool, "web1")["paths"] == 2
    assert export_of(server_tool, "disk1")["sessions"] == ["web1"]

    # Exports in use stay, unless their removal is forced.
    assert "clients have it open: web1" in server_tool.refused("export remove disk1")
    assert "exports allow it: disk1" in server_tool.refused("host remove web1")
    assert "the export is enabled" in server_tool.refused("export set disk1 device_path=/dev/other")

    for words in ("export deny disk1 web1", "export disable disk1", "export set disk1 access_mode=ro"):
        assert "clients have it open: web1" in server_tool.refused(words)

    # A host that is denied loses the disk, and has it again once it is allowed.
    server_tool("export deny disk1 web1 --force")
    pair.client.wait_until(f"{PROGRAM} list | grep -q closed")
    assert "EACCES" in client_tool.refused("remap ibnbd0")
    server_tool("export allow disk1 web1 web2")
    client_tool("remap ibnbd0")
    assert state(client_tool) == "open"
    # So does everybody while it is disabled.
    server_tool("export disable disk1 --force")
    pair.client.wait_until(f"{PROGRAM} list | grep -q closed")
    assert "export disk1 is disabled" in server_tool("check")
    assert "the export is disabled on the server, or" in client_tool.refused("remap ibnbd0")
    server_tool("export enable disk1")
    client_tool("remap ibnbd0")

    server_tool("export remove disk1 --force")
    pair.client.wait_until(f"{PROGRAM} list | grep -q closed")
    client_tool("unmap ibnbd0 --force")
    server_tool("host remove web1 --force")
    assert entries(pair, "exports") == [] and entries(pair, "hosts") == ["web2"]


def test_a_half_made_export_is_taken_back(pair, tools):
    server_tool, _ = tools
    disk = pair.server.null_blk()
    server_tool("host add web1")
    for device, why in (("/dev/null", "ENOTBLK"), ("/dev/missing", "ENOENT")):
        answer = server_tool.refused(f"export add {device} x --host web1 --ro --from any")
        assert "cannot add export x (enable=1): " in answer and why in answer, answer
        assert entries(pair, "exports") == []
    # With the hosts that were made for it.
    assert "ENOENT" in server_tool.refused("export add /dev/missing x --host web1,web2")
    assert entries(pair, "exports") == [] and entries(pair, "hosts") == ["web1"]
    server_tool(f"export add {disk} x --host web1,web2")
    assert entries(pair, "hosts") == ["web1", "web2"]
    assert "there is an export of that name" in server_tool.refused(f"export add {disk} x --any-host")
    assert export_of(server_tool, "x")["allowed_hosts"] == ["web1", "web2"]
    # All settings of a command, or none.
    answer = server_tool.refused("export set x access_mode=ro device_path=/dev/other")
    assert "(device_path=/dev/other)" in answer and "EBUSY" in answer
    assert export_of(server_tool, "x")["access_mode"] == "rw"


def test_clients_without_a_key_by_their_addresses(pair, tools):
    server_tool, client_tool = tools
    server_tool(f"export add {pair.server.null_blk()} disk1 --from 10.0.1.0/24 --from 10.0.2.0/24")
    assert export_of(server_tool, "disk1")["allow_unauthenticated"] == ["10.0.1.0/24", "10.0.2.0/24"]
    client_tool(f"map 10.0.1.1 disk1 --session s {TWO_PATHS}")
    server_tool("export set disk1 allow_unauthenticated=10.9.0.0/16,fe80::/10 --force")
    pair.client.wait_until(f"{PROGRAM} list | grep -q closed")
    assert "EACCES" in client_tool.refused("remap ibnbd0")
    server_tool("export set disk1 allow_unauthenticated=any")
    assert "any machine that reaches the port may open it" in server_tool("check")
    client_tool("remap ibnbd0")
    server_tool("export set disk1 allow_unauthenticated= --force")
    assert "nobody may open it" in server_tool("check")
    client_tool("unmap ibnbd0 --force")


def test_the_first_export_switches_the_directory_off(pair):
    disk = pair.server.null_blk()
    pair.server.run("rm -rf /dev/ibnbd-exports && modprobe ibnbd_server dev_search_path=/dev/ibnbd-exports")
    tool = Tool(pair.server)
    tool(f"export add {disk} disk1")
    assert tool.json("export list")["directory"] == "/dev/ibnbd-exports" and entries(pair, "exports") == []
    said = pair.server.run(f"{PROGRAM} export add {disk} disk2 --from 10.0.1.0/24 2>&1")
    assert "clients can no longer open devices in /dev/ibnbd-exports" in said
    assert tool.json("export list")["directory"] is None
    assert "dev_search_path=/dev/ibnbd-exports is off" in tool("check")
    assert "there is no such export" in tool.refused("export remove disk1", code=3)
    tool("export remove disk2")
    assert [export["name"] for export in tool.json("export list")["exports"]] == ["disk1"]
    tool("export remove disk1")


CONFIGURATION = """# Who may come, and to what.
[[host]]
name = "web1" # the shop
addresses = ["10.0.0.0/16"]

[[host]]
name = "web2"

[[export]]
name = "disk1"
device = "/dev/nullb0"
hosts = ["web1", "web2"]
"""


def test_configuration_makes_exports_and_hosts(pair, tools):
    server_tool, client_tool = tools
    load_keys(pair)
    pair.server.null_blk()
    pair.server.run("busybox rmmod ibnbd_server ibtrs_server && mkdir -p /tmp/ibtrs")
    pair.server.push("/tmp/ibtrs/server.toml", CONFIGURATION)
    steps = server_tool("apply --config /tmp/ibtrs").splitlines()
    assert steps == ["+ load ibtrs_server", "+ load ibnbd_server", "+ host web1 addresses=10.0.0.0/16", "+ host web2",
                     "+ export /dev/nullb0 as disk1 for web1 web2"]
    assert server_tool("apply --config /tmp/ibtrs --prune") == ""
    client_tool(f"map 10.0.1.1 disk1 --session web1 {TWO_PATHS}")
    # Uses that the files no longer allow end, and unused exports go with --prune.
    server_tool("host add web3")
    pair.server.push("/tmp/ibtrs/server.toml", CONFIGURATION.replace('["web1", "web2"]', '["web2"]'))
    assert server_tool("apply --config /tmp/ibtrs") == "~ set hosts of export disk1 from web1 web2 to web2"
    pair.client.wait_until(f"{PROGRAM} list | grep -q closed")
    assert server_tool("apply --config /tmp/ibtrs --prune") == "- host web3 and its keys"
    # The operator's changes are saved between the comments.
    server_tool("export allow disk1 web1")
    server_tool("host set web1 max_devices=4")
    server_tool("save --config /tmp/ibtrs")
    text = pair.server.run("cat /tmp/ibtrs/server.toml")
    assert 'name = "web1" # the shop' in text and "max_devices = 4" in text
    assert server_tool("apply --config /tmp/ibtrs --prune --dry-run") == ""
    client_tool("unmap ibnbd0 --force")
    # The module cannot go before its exports.
    assert not pair.server.ok("busybox rmmod ibnbd_server")
    server_tool("export remove --all")
    pair.server.run("busybox rmmod ibnbd_server ibtrs_server")
    assert "+ export /dev/nullb0 as disk1" in server_tool("apply --config /tmp/ibtrs")
    assert host_of(server_tool, "web1")["max_devices"] == 4


def test_a_key_that_is_removed_ends_its_paths(pair, tools):
    server_tool, client_tool = tools
    load_keys(pair)
    server_tool(f"export add {pair.server.null_blk()} disk1 --any-host")
    client_tool(f"map 10.0.1.1 disk1 --session web1 {TWO_PATHS}")
    said = server_tool("key remove web1")
    assert said == "removed key default of session web1"
    pair.client.wait_until(f"{PROGRAM} sessions | grep -q ' 0/2 '")
    assert server_tool.json("clients")["clients"] == []
    # With the key it comes back by itself.
    keyring.load(pair.server, session="web1")
    pair.client.wait_until(f"{PROGRAM} sessions | grep -q ' 2/2 '")
    client_tool("unmap ibnbd0 --force")


def test_where_the_server_listens(pair, tools):
    """Ports, by commands and by server.toml."""
    server_tool, client_tool = tools

    def ports() -> dict[str, tuple]:
        rows = server_tool.json("port list")["ports"]
        return {row["name"]: (row["address"], row["port"], row["enable"], row["listening"]) for row in rows}

    warning = pair.server.run(f"{PROGRAM} port add left 10.0.1.1 2>&1")
    assert "from now on the server listens on ip:10.0.1.1 port 1234 only" in warning
    assert ports() == {"left": ("ip:10.0.1.1", 1234, True, True)}
    server_tool(f"export add {pair.server.null_blk()} disk1 --from any")
    client_tool("map 10.0.1.1 disk1 --session web1 --path 10.0.1.2,10.0.1.1")
    assert "ECONNREFUSED" in client_tool.refused("path add web1 10.0.2.2,10.0.2.1")
    # Two ports cannot have one address; the one that fails leaves nothing.
    assert "EADDRINUSE" in server_tool.refused("port add again 0.0.0.0")
    assert "no RDMA device" in server_tool.refused("port add again 127.0.0.1", code=2)
    assert list(ports()) == ["left"]
    server_tool("port add right 10.0.2.1")
    client_tool("path add web1 10.0.2.2,10.0.2.1")
    # A port that moves to another number.
    server_tool("port set right port=1235")
    assert ports()["right"] == ("ip:10.0.2.1", 1235, True, True)
    for name in ("left", "right"):
        server_tool(f"port set {name} enable=0")
    findings = pair.server.run(f"{PROGRAM} check", check=False)
    assert "the server listens nowhere" in findings
    assert [path["state"] for path in client_tool.json("paths web1")["paths"]] == ["connected"] * 2
    # The saved files create them again.
    server_tool("port set left enable=1")
    pair.server.run("rm -rf /tmp/ibtrs && mkdir /tmp/ibtrs")
    server_tool("save --config /tmp/ibtrs")
    text = pair.server.run("cat /tmp/ibtrs/server.toml")
    assert "[[port]]" in text and 'address = "10.0.1.1"' in text and "port = 1235" in text
    saved = ports()
    server_tool("export remove --all")
    assert ports() == {}
    server_tool("apply --config /tmp/ibtrs")
    assert ports() == saved
    client_tool("unmap ibnbd0 --force")
