# SPDX-License-Identifier: GPL-2.0
"""The parts of `make qualify` that need no machine: answers, refusals, plans, the record of changes, reports; and a whole
run on machines that only answer."""

import dataclasses
import json
import os
import signal
import subprocess
from functools import partial

import pytest

from qualify import __main__ as command
from qualify import (causes, changes, checks, failover, links, loads, machine, options, parts, plan, probe, report, results, undo,
                     users)
from qualify.machine import Answer, Failed, Unreachable
from qualify.results import FAILED, PASSED, SKIPPED, Outcome, Scrub, Step
from qualify.run import Run
from qualify.undo import Change

MODULES = "ibtrs_core 0.1.0\nibtrs_server 0.1.0\nibnbd_server 0.1.0\nibtrs_client 0.1.0\nibnbd_client 0.1.0\nnull_blk \nloop \nnf_tables "


def interfaces(side: int, dynamic: bool = False) -> str:
    def link(name: str, address: str, mtu: int = 9000, **more) -> dict:
        return {"ifname": name, "mtu": mtu, "addr_info": [{"local": address, "prefixlen": 24, "scope": "global", **more}]}
    return json.dumps([link("eth0", f"192.168.1.{side}", 1500), link("eth1", f"10.0.1.{side}"),
                       link("eth2", f"10.0.2.{side}", dynamic=dynamic)])


def sections(side: str, **other: str) -> dict[str, str]:
    number = 1 if side == "server" else 2
    found = {
        "uid": "0", "kernel": "7.3.4", "host": f"box-{side}", "boot": f"boot-{side}", "os": "Debian", "processor": "cpu",
        "processors": "4", "time": "100.0", "uptime": "50.5", "memory": "MemAvailable: 4194304 kB", "io_uring": "0",
        "programs": "\n".join(probe.PROGRAMS), "versions": "ibnbd 0.1.0\nfio-3.33", "loaded": "ext4", "modules": MODULES,
        "ssh": f"192.168.1.9 50000 192.168.1.{number} 22",
        "rdma": json.dumps([{"ifname": f"rxe{n}/1", "state": "ACTIVE", "netdev": f"eth{n + 1}"} for n in (0, 1)]),
        "devices": "rxe0|rxe|||2.5 Gb/sec|\nrxe1|rxe|||2.5 Gb/sec|", "queue_pairs": "[]", "addresses": interfaces(number),
        "routes": '[{"dst":"10.0.1.0/24","dev":"eth1","protocol":"kernel"}]', "routes6": "[]", "neighbours": "[]", "keep": "",
        "lower": "", "tcp": "", "udp": "", "now": "ext4", "left": "", "search_path": "", "search_path: status": "1", "end": "yes",
        "clients": '{"clients":[]}', "sessions": '{"sessions":[]}', "list": '{"disks":[]}', "paths": '{"paths":[]}',
        "export list": "", "export list: status": probe.NO_MODULE, "port list": "", "port list: status": probe.NO_MODULE,
        "key list": "", "key list: status": probe.NO_MODULE}
    good = {f"{name}: status": "0" for name in ("queue_pairs", "addresses", "routes", "routes6", "neighbours", "tcp", "udp", "now",
                                                "loaded", "clients", "sessions", "list", "paths")}
    return found | good | other


# As after set-up.
DISK = {"name": "ibnbd0", "session": changes.SESSION, "queues": 2, "poll_queues": 0}
RUNNING = {"now": "ext4\nibtrs_core\nibtrs_server\nibnbd_server", "ours": "ibtrs_core\nibtrs_server\nibnbd_server",
           "list": json.dumps({"disks": [DISK]}),
           "sessions": json.dumps({"sessions": [{"name": changes.SESSION}]}),
           "clients": json.dumps({"clients": [{"session": changes.SESSION}]}),
           "queue_pairs": json.dumps([{"type": "GSI"}] + 6 * [{"type": "RC"}]),
           "export list": json.dumps({"configfs": [{"name": changes.DATA}], "exports": []}), "export list: status": "0",
           "port list": '{"ports":[]}', "port list: status": "0"}


def facts(side: str, **other: str) -> probe.Facts:
    return probe.parse(side, answer(side, **other))


def answer(side: str, **other: str) -> str:
    return "".join(f"\n== {name}\n{text}\n" for name, text in sections(side, **other).items())


def pair(**of_client: str) -> list[links.Link]:
    return links.find(facts("server"), facts("client", **of_client))


# What machines say.

def test_what_a_machine_says_is_read():
    server = facts("server", io_uring="2")
    assert server.free_mib == 4096 and server.engine == "libaio" and facts("server").engine == "io_uring"
    assert server.modules["ibnbd_server"] == "0.1.0" and server.modules["loop"] == ""
    assert [(port.device, port.interface, port.driver, port.mtu) for port in server.ports] == [
        ("rxe0", "eth1", "rxe", 9000), ("rxe1", "eth2", "rxe", 9000)]
    assert facts("server", rdma="nothing").ports == [] and server.items("clients", "clients") == []
    assert server.whole and not facts("server", end="").whole
    down = json.dumps([{"ifname": "rxe0/1", "state": "DOWN", "netdev": "eth1"}])
    assert facts("server", rdma=down).ports == []


def test_the_script_runs_where_there_is_nothing():
    said = subprocess.run(["sh", "-c", probe.SCRIPT], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0
    here = probe.parse("server", said.stdout)
    assert here.text("kernel") == os.uname().release and here.free_mib > 0 and here.text("uid").isdigit()
    assert here.whole
    # Also what is missing here has a status.
    for section in (*probe.DOCUMENTS, "now", "loaded", "queue_pairs", "tcp", "udp", "routes", "neighbours"):
        assert here.text(f"{section}: status").isdigit(), section
    later = subprocess.run(["sh", "-c", probe.NOW], capture_output=True, text=True, timeout=60)
    assert later.returncode == 0 and probe.parse("server", later.stdout).whole


def test_links_are_pairs_of_addresses_in_one_network():
    found = pair()
    assert [link.path for link in found] == ["10.0.1.2,10.0.1.1", "10.0.2.2,10.0.2.1"]
    assert found[1].folder == "ip:10.0.2.2@ip:10.0.2.1"
    alone = pair(addresses=interfaces(2).replace("10.0.2.", "10.0.9."))
    assert [link.path for link in alone] == ["10.0.1.2,10.0.1.1"]
    named = links.named(facts("server"), facts("client"), ["10.0.2.2,10.0.1.1"])
    assert named[0].client.port.interface == "eth2" and named[0].server.port.interface == "eth1"
    for wrong in ("10.0.1.2", "10.0.1.2,10.0.7.7", "x,y"):
        with pytest.raises(ValueError):
            links.named(facts("server"), facts("client"), [wrong])


# Refusals.

@pytest.mark.parametrize("change, words", [
    ({"uid": "1000"}, "do not run as root"), ({"programs": "ip"}, "apt install fio"),
    ({"modules": "loop "}, "Install ibtrs-dkms for this kernel"), ({"rdma": "[]"}, "rdma link add rxe0"),
    ({"memory": "MemAvailable: 102400 kB"}, "smaller scratch disk"), ({"left": undo.FOLDER}, "CLEAN=yes"),
    ({"end": ""}, "not answered all")])
def test_a_machine_that_cannot_be_tried_is_told_what_to_do(change, words):
    assert any(words in reason for reason in checks.machine(facts("server", **change), 256))
    assert checks.machine(facts("server"), 256) == []


def test_others_are_not_disturbed():
    assert users.before(facts("server"), facts("client")) == []
    loaded = {"now": "ibtrs_core\nibnbd_server", "export list: status": "0", "search_path: status": "0"}
    used = facts("server", **loaded | {
        "clients": '{"clients":[{"session":"web1"}]}', "export list": '{"configfs":[{"name":"d"}],"exports":[]}',
        "search_path": "/x"})
    mapping = facts("client", list='{"disks":[{"name":"ibnbd0","session":"s"}]}')
    said = users.before(used, mapping)
    assert len(said) == 4 and "web1" in said[0] and "(d)" in said[1] and "dev_search_path" in said[2] and "ibnbd0" in said[3]
    # Programs have sessions without disks.
    assert "there are sessions (s)" in users.of(facts("client", sessions='{"sessions":[{"name":"s"}]}'))[0]


def test_a_run_does_not_stand_in_its_own_way():
    for side in ("server", "client"):
        assert users.of(facts(side, **RUNNING), changes.OWN) == [] and len(users.of(facts(side, **RUNNING))) == 3
        assert users.queue_pairs(facts(side, **RUNNING), changes.SESSION, 2) == 6


@pytest.mark.parametrize("section", ["clients", "sessions", "list", "export list"])
@pytest.mark.parametrize("change", [("", "127"), ("", "0"), ("{", "0"), ("[]", "0"), ("{}", "0"), ('{"NAME":null}', "0"),
                                    ('{"NAME":[7]}', "0"), ('{"NAME":[{}]}', "0"), ('{"NAME":[],"exports":[]}', "1"),
                                    ('{"NAME":[],"exports":[],"notes":[{"file":"x"}]}', "0"), ("", probe.NO_MODULE)])
def test_no_answer_is_not_the_answer_that_there_is_nobody(section, change):
    name = {"list": "disks", "export list": "configfs"}.get(section, section)
    text, status = change
    said = users.of(facts("server", **{"now": "ibnbd_server", "export list": '{"configfs":[],"exports":[]}',
                                       "export list: status": "0", section: text.replace("NAME", name),
                                       f"{section}: status": status}))
    assert len(said) == 1 and f"`ibnbd {section} --output json` gives no answer" in said[0]


@pytest.mark.parametrize("change, words", [
    ({"now: status": "1"}, "/proc/modules cannot be read"), ({"now": "ibnbd_server"}, "cannot be read. Unload"),
    ({"now": "ibnbd_server", "search_path": "(null)", "search_path: status": "0"}, None)])
def test_a_directory_of_exports_is_not_overlooked(change, words):
    server = facts("server", **{"export list": '{"configfs":[],"exports":[]}', "export list: status": "0"} | change)
    said = users.before(server, facts("client"))
    assert said == [] if words is None else words in said[-1]


def test_two_machines_that_do_not_go_together():
    server, client = facts("server"), facts("client")
    assert checks.together(server, client, pair(), 0.1) == checks.Findings()
    assert "one machine" in checks.together(server, facts("client", boot="boot-server"), pair(), 0).errors[0]
    assert "PATHS=" in checks.together(server, client, [], 0).errors[0]
    assert checks.together(server, client, pair(), 60).warnings == [
        "the clocks differ by 60 s: times in logs cannot be compared; run NTP"]
    assert "one link only" in checks.together(server, client, pair()[:1], 0).warnings[0]
    small = pair(addresses=interfaces(2).replace("9000", "1500"))
    assert "MTU is 9000 at the server and 1500" in checks.together(server, client, small, 0).warnings[0]
    other = facts("client", modules=MODULES.replace("ibnbd_client 0.1.0", "ibnbd_client 0.2.0"))
    assert checks.together(server, other, pair(), 0).errors and checks.together(server, other, pair(), 0).warnings
    assert checks.offset(0, facts("server", time="110"), client, 4) == 6
    assert checks.offset(0, facts("server", time=""), client, 4) is None


FREE = {"path": "/dev/sdb", "block": "yes", "read_only": "0", "numbers": "8:16", "mounts": "8:1\n0:23", "exclusive": "yes",
        "searched": "yes", "end": "yes"}


@pytest.mark.parametrize("change, erase, words", [
    ({}, False, None), ({"block": ""}, True, "no block device"), ({"read_only": "1"}, True, "read-only"),
    ({"numbers": "8:16\n8:1"}, True, "mounted"), ({"swaps": "/dev/sdb2"}, True, "swaps"),
    ({"holders": "md0"}, True, "part of md0"), ({"exclusive": "no"}, True, "in use"),
    ({"exclusive": ""}, True, "perl-base"), ({"searched": ""}, False, "cannot be found out"), ({"searched": ""}, True, None),
    ({"signatures": "ext4"}, False, "not empty: it has ext4"), ({"signatures": "ext4"}, True, None),
    ({"partitions": "1"}, False, "partitions"), ({"end": ""}, True, "not answered all"),
    ({"numbers": ""}, True, "whether /dev/sdb is mounted"), ({"mounts": ""}, True, "whether /dev/sdb is mounted")])
def test_a_named_disk_is_written_to_only_if_nobody_needs_it(change, erase, words):
    found = checks.disk(probe.Facts("server", FREE | change), "/dev/sdb", erase)
    assert (found == []) if words is None else words in found[0]


def test_the_script_of_the_disk_runs():
    said = subprocess.run(["sh", "-c", checks.DISK_SCRIPT.format(disk="/nonesuch")], capture_output=True, text=True)
    assert said.returncode == 0
    assert "no block device" in checks.disk(probe.parse("server", said.stdout), "/nonesuch", True)[0]


@pytest.mark.parametrize("change, words", [
    ({}, None), ({"ssh": ""}, "not known"), ({"ssh": "192.168.1.9 1 192.168.7.7 22"}, "not known"),
    ({"ssh": "10.0.2.9 50000 10.0.2.2 22"}, "come by this interface"),
    ({"ssh": "10.0.2.9 50000 192.168.1.2 22"}, "come from its network"),
    ({"lower": "/sys/class/net/eth0/lower_eth2"}, "come by this interface"),
    ({"lower": "/sys/class/net/bond0/lower_eth2"}, "built on it"),
    ({"routes": '[{"dst":"default","dev":"eth2","protocol":"static"}]'}, "routes lead"),
    ({"routes6": '[{"dst":"fd00::/8","dev":"eth2","protocol":"static"}]'}, "routes lead"), ({"routes6": ""}, None),
    ({"routes": "?"}, "does not say which routes"), ({"routes6": "", "routes6: status": "127"}, "does not say which routes"),
    ({"routes: status": "1"}, "does not say which routes"), ({"tcp: status": "127"}, "does not say who has connections"),
    ({"addresses": interfaces(2, dynamic=True)}, "DHCP"),
    ({"tcp": "0 0 10.0.2.2:2049 10.0.2.1:900"}, "connections"), ({"tcp": "0 0 [::1]:2049 [::1]:900"}, None),
    ({"tcp": "0 0 [fe80::1]%eth2:22 [fe80::2]:9"}, "connections"), ({"tcp": "0 0 [fe80::1%eth2]:22 [fe80::2]:9"}, "connections"),
    ({"tcp": "0 0 [fe80::1]%eth1:22 [fe80::2]:9"}, None), ({"udp: status": "1"}, "does not say who has connections"),
    ({"udp": "UNCONN 0 0 10.0.2.2:123 0.0.0.0:*"}, "UDP socket"), ({"udp": "ESTAB 0 0 10.0.2.2:9 10.0.2.1:4789"}, "UDP socket"),
    ({"udp": "UNCONN 0 0 0.0.0.0%eth2:68 0.0.0.0:*"}, "UDP socket"),
    ({"udp": "UNCONN 0 0 [fe80::1]%eth2:546 [::]:*"}, "UDP socket"),
    ({"udp": "UNCONN 0 0 0.0.0.0:4791 0.0.0.0:*\nUNCONN 0 0 *:5353 *:*\nUNCONN 0 0 10.0.1.2:53 0.0.0.0:*"}, None),
    ({"queue_pairs": '[{"type":"RC"}]'}, "use RDMA"), ({"queue_pairs": "?"}, "does not say"),
    ({"queue_pairs: status": "1"}, "does not say"), ({"queue_pairs": ""}, "does not say")])
def test_an_interface_that_is_needed_is_not_disturbed(change, words):
    client = facts("client", **change)
    found = links.in_the_way(client, links.find(facts("server"), client)[1].client)
    assert (found is None) if words is None else words in found


def test_the_queue_pairs_of_the_run_itself_are_nobody_elses():
    client = facts("client", **RUNNING)
    end = pair()[1].client
    assert links.in_the_way(client, end, 6) is None and links.in_the_way(client, end, 5) == links.OTHERS
    assert "does not say" in links.in_the_way(client, end, None)
    assert users.queue_pairs(facts("client", **RUNNING | {"list": ""}), changes.SESSION, 2) is None
    assert users.queue_pairs(facts("client", **RUNNING | {"paths: status": "1"}), changes.SESSION, 2) is None
    assert "not active" in links.in_the_way(facts("client", rdma="[]"), end)


# Causes.

def test_causes_are_left_out_where_they_cannot_be_undone():
    found = {cause.name: cause for cause in causes.all_of(facts("server"), facts("client"), pair(), {"e": "/dev/x"})}
    assert not [cause.name for cause in found.values() if cause.skipped]
    loaded = facts("server", now="ibnbd_server", programs="ip", devices="rxe1|mlx5_core|||100 Gb/sec|")
    found = {cause.name: cause.skipped for cause in causes.all_of(
        loaded, facts("client"), links.find(loaded, facts("client")), {"e": "/dev/x"})}
    assert "others have loaded ibnbd_server" in found["server's modules loaded again"]
    assert "do not pass the network stack" in found["packets lost in silence"]


@pytest.mark.parametrize("change, name, words", [
    ({"port list": "", "port list: status": "1"}, "server's modules loaded again", "does not say whether the server has ports"),
    ({"port list": '{"ports":[{"name":"a"}]}'}, "server's modules loaded again", "the server has ports"),
    ({"now: status": "1"}, "server's modules loaded again", "/proc/modules does not say"),
    ({"ours": "ibtrs_core"}, "server's modules loaded again", "others have loaded ibtrs_server, ibnbd_server"),
    ({"neighbours": "", "neighbours: status": "255"}, "port down at the server", "`ip neigh` does not say"),
    ({"clients": '{"clients":[{"session":"web1"}]}'}, "server drained", "web1"),
    ({"export list": '{"configfs":[{"name":"new"}],"exports":[]}'}, "server's modules loaded again", "(new)"),
    ({"sessions: status": "1"}, "server drained", "gives no answer"),
    ({"queue_pairs": json.dumps(7 * [{"type": "RC"}])}, "port down at the server", "others use RDMA"),
    ({"tcp": "0 0 10.0.2.1:2049 10.0.2.9:900"}, "packets lost in silence", "other programs have connections"),
    ({"udp": "UNCONN 0 0 10.0.2.1:500 0.0.0.0:*"}, "port down at the server", "UDP socket"),
    ({"tcp": "0 0 [::ffff:10.0.2.1]:5432 [::ffff:10.0.2.9]:900"}, "packets lost in silence", "other programs have connections")])
def test_causes_are_left_out_if_others_have_come_or_nothing_says_that_nobody_has(change, name, words):
    server, client = facts("server", **RUNNING), facts("client", **RUNNING)
    assert not [cause.skipped for cause in causes.all_of(server, client, pair(), {"e": "/dev/x"}, 6) if cause.skipped]
    found = causes.all_of(facts("server", **RUNNING | change), client, pair(), {"e": "/dev/x"}, 6)
    assert words in next(cause for cause in found if cause.name == name).skipped


def test_a_port_that_went_down_is_as_before():
    client = facts("client", neighbours='[{"dst":"10.0.2.1","dev":"eth2","lladdr":"52:54:00:00:02:01"},'
                                        '{"dst":"10.0.1.1","dev":"eth1","lladdr":"52:54:00:00:01:01"}]')
    change = causes.port_down(client, pair()[1]).change
    assert change.urgent and "ip link set eth2 down" in change.do
    assert "ip neigh replace 10.0.2.1 lladdr 52:54:00:00:02:01 dev eth2 nud permanent" in change.undo
    assert "echo 0 > /proc/sys/net/ipv6/conf/eth2/keep_addr_on_down" in change.undo
    kept = facts("client", keep="/proc/sys/net/ipv6/conf/eth2/keep_addr_on_down:1")
    assert "echo 1 > /proc/sys/net/ipv6/conf/eth2/keep_addr_on_down" in causes.port_down(kept, pair()[1]).change.undo
    assert "10.0.1.1" not in change.undo and "rdma link add rxe1 type rxe netdev eth2" in change.undo


def test_every_undo_is_one_line_and_can_be_run_where_nothing_was_made():
    made = [changes.modules(), changes.scratch(32), changes.null_disk(4), changes.key("server"), changes.host(),
            changes.export("e", "/dev/x y"), changes.mapped("e", pair()), changes.load("true"),
            changes.nvme_export("/dev/x", "fd00::1", "nqn.h:uuid:1"), changes.nvme_connect("10.0.1.1", "nqn.h:uuid:1"),
            changes.rnbd_export("/dev/x"), changes.rnbd_map(pair()[0])]
    every = causes.all_of(facts("server"), facts("client"), pair(), {"e": "/dev/x"})
    for change in made + [cause.change for cause in every] + [cause.also for cause in every if cause.also]:
        for script in (undo.make(change), undo.take_back(change), change.undo):
            assert subprocess.run(["sh", "-n", "-c", script]).returncode == 0, script
    for change in (made[1], made[2], *made[7:]):
        assert subprocess.run(["sh", "-c", change.undo]).returncode == 0, change.undo


# The record of changes.

@pytest.fixture
def record(tmp_path):
    folder = str(tmp_path / "record")

    def sh(script: str) -> subprocess.CompletedProcess:
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert sh(undo.begin(folder)).returncode == 0
    return folder, sh


def made(tmp_path, name: str, **more) -> Change:
    return Change(name, f"touch {tmp_path}/{name}", f"rm {tmp_path}/{name} && echo {name} >> {tmp_path}/order", **more)


def test_changes_are_taken_back_in_the_reverse_order(record, tmp_path):
    folder, sh = record
    for name in ("one", "two", "three"):
        assert sh(undo.make(made(tmp_path, name), folder)).returncode == 0
    assert sh(undo.take_back(made(tmp_path, "two"), folder)).returncode == 0
    assert sh(undo.take_back(made(tmp_path, "two"), folder)).returncode == 0
    assert sh(undo.clean(folder=folder)).returncode == 0
    assert (tmp_path / "order").read_text().split() == ["two", "three", "one"]
    assert not os.path.exists(folder) and sh(undo.clean(folder=folder)).returncode == 0


def test_a_change_that_failed_is_recorded_before(record, tmp_path):
    folder, sh = record
    change = dataclasses.replace(made(tmp_path, "half"), do=f"touch {tmp_path}/half; false; touch {tmp_path}/never")
    assert sh(undo.make(change, folder)).returncode != 0 and not (tmp_path / "never").exists()
    assert sh(undo.clean(folder=folder)).returncode == 0 and not (tmp_path / "half").exists()


def test_cleaning_waits_for_a_change_that_goes_on(record, tmp_path):
    """As after Ctrl-C: the connection is lost, and the command goes on."""
    folder, sh = record
    begun, there = tmp_path / "begun", tmp_path / "there"
    change = Change("slow", f"touch {begun}; sleep 1; touch {there}", f"rm -f {there}")
    slow = subprocess.Popen(["sh", "-c", undo.make(change, folder)])
    while not begun.exists():
        subprocess.run(["sleep", "0.05"])
    assert sh(undo.clean(folder=folder)).returncode == 0
    assert slow.wait(10) == 0 and not there.exists() and not os.path.exists(folder)
    # One that comes even later finds no record, and does nothing.
    assert sh(undo.make(change, folder)).returncode == 1 and not there.exists()


def test_what_disturbs_the_network_is_taken_back_first(record, tmp_path):
    folder, sh = record
    for change in (made(tmp_path, "net", urgent=True), made(tmp_path, "disk")):
        assert sh(undo.make(change, folder)).returncode == 0
    assert sh(undo.clean(urgent_only=True, folder=folder)).returncode == 0
    assert (tmp_path / "disk").exists() and not (tmp_path / "net").exists()


def test_what_cannot_be_taken_back_stays_recorded_and_is_reported(record, tmp_path):
    folder, sh = record
    for change in (Change("bad", "true", "echo because; exit 1"), made(tmp_path, "good")):
        assert sh(undo.make(change, folder)).returncode == 0
    said = sh(undo.clean(folder=folder))
    assert said.returncode == 1 and said.stdout == "bad: because\n" and not (tmp_path / "good").exists()
    assert sh(undo.begin(folder)).returncode != 0


def test_an_urgent_change_is_taken_back_even_if_nobody_asks(record, tmp_path, monkeypatch):
    folder, sh = record
    monkeypatch.setattr(undo, "GUARD_S", 1)
    assert sh(undo.make(made(tmp_path, "net", urgent=True), folder)).returncode == 0
    assert (tmp_path / "net").exists()
    for _ in range(100):
        if (tmp_path / "order").exists():
            break
        subprocess.run(["sleep", "0.1"])
    assert not (tmp_path / "net").exists()


def test_a_change_of_several_lines_cannot_be_recorded():
    with pytest.raises(ValueError):
        undo.make(Change("x", "true", "one\ntwo"))


# Modules.

@pytest.fixture
def loads_modules(record, tmp_path, monkeypatch):
    """A machine whose modules are files; `modprobe` and `rmmod` make and remove them."""
    folder, sh = record
    there = tmp_path / "module"
    there.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("modprobe", f"for m; do touch {there}/$m; done"), ("rmmod", f"rm {there}/$1"),
                       ("ibnbd", "echo '{\n  \"keys\": []\n}'")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def here(script: str) -> subprocess.CompletedProcess:
        return sh(script.replace("/sys/module", str(there)).replace("/sys/", f"{tmp_path}/sys/"))
    assert here(undo.make(changes.modules(folder), folder)).returncode == 0
    return folder, here, there


def names(there) -> set[str]:
    return {module.name for module in there.iterdir()}


def test_modules_that_the_run_has_loaded_are_unloaded(loads_modules):
    folder, here, there = loads_modules
    (there / "loop").touch()
    loads_it = Change("x", "modprobe ibtrs_core ibnbd_client loop other; false", "true", loads=("ibtrs_core", "ibnbd_client", "loop"))
    assert here(undo.make(loads_it, folder)).returncode == 1
    assert names(there) == {"ibtrs_core", "ibnbd_client", "loop", "other"}
    # Others have loaded it after the run had begun, before a change of the run that needs it as well.
    (there / "null_blk").touch()
    assert here(undo.make(Change("y", "modprobe null_blk", "true", loads=("null_blk",)), folder)).returncode == 0
    assert here(undo.clean(folder=folder)).returncode == 0
    assert names(there) == {"loop", "other", "null_blk"} and not os.path.exists(folder)


@pytest.mark.parametrize("module, user", [("ibnbd_client", "block/ibnbd3"), ("ibnbd_server", "class/ibtrs-server/web1/paths"),
                                          ("ibnbd_server", "kernel/config/ibnbd/exports/d"), ("ibnbd_server", "kernel/config/ibnbd/ports/p"), ("null_blk", "block/nullb0"),
                                          ("ibtrs_client", "class/ibtrs-client/s/paths")])
def test_modules_that_others_use_by_the_end_stay(loads_modules, tmp_path, module, user):
    folder, here, there = loads_modules
    assert here(undo.make(Change("x", f"modprobe {module} loop", "true", loads=(module, "loop")), folder)).returncode == 0
    (tmp_path / "sys" / user).mkdir(parents=True)
    assert here(undo.clean(folder=folder)).returncode == 0 and names(there) == {module}


@pytest.mark.parametrize("transport, stays", [("rdma", {"nvme_rdma"}), ("pcie", set())])
def test_disks_over_nvme_rdma_keep_its_module(loads_modules, tmp_path, transport, stays):
    folder, here, there = loads_modules
    assert here(undo.make(Change("x", "modprobe nvme_rdma", "true", loads=("nvme_rdma",)), folder)).returncode == 0
    controller = tmp_path / "sys/class/nvme/nvme1"
    controller.mkdir(parents=True)
    (controller / "transport").write_text(f"{transport}\n")
    assert here(undo.clean(folder=folder)).returncode == 0 and names(there) == stays


def test_keys_of_others_stay(loads_modules, tmp_path):
    folder, here, there = loads_modules
    assert here(undo.make(Change("x", "modprobe ibtrs_core", "true", loads=("ibtrs_core",)), folder)).returncode == 0
    (tmp_path / "bin" / "ibnbd").write_text("#!/bin/sh\necho '{\"keys\": [{\"id\": \"a\"}]}'\n")
    assert here(undo.clean(folder=folder)).returncode == 0 and names(there) == {"ibtrs_core"}


# ssh.

LOCAL = """sh -c 'eval "$1"'"""


def test_a_command_runs_as_root_or_by_sudo(tmp_path):
    one = machine.Machine("server", "host", machine.transport(LOCAL, tmp_path))
    assert one.run("echo 'a b' \"$1\"; cat", stdin="c").text == "a b \nc"
    with pytest.raises(Failed, match="command: echo part"):
        one.run("exit 1", shown="echo part")
    with pytest.raises(Failed, match="server: no luck"):
        one.run("echo no luck >&2; exit 3")
    with pytest.raises(Unreachable, match="does not connect"):
        one.run("exit 255")
    with pytest.raises(Failed, match="not done within"):
        one.run("sleep 5", timeout=0.2)
    assert machine.transport("ssh -F x", tmp_path)[:3] == ["ssh", "-F", "x"]
    assert "ControlMaster=auto" in machine.transport(machine.DEFAULT, tmp_path)


# Figures.

FIO = {"jobs": [{"error": 0, "write": {"iops": 500.0, "bw_bytes": 2048000, "lat_ns": {"mean": 90000.0, "max": 812_000_000,
                                                                                     "percentile": {"99.000000": 150000}}},
                 "read": {"iops": 900.0, "bw_bytes": 4096000, "lat_ns": {"mean": 80000.0, "max": 1}}}]}
TEXT = "fio: this and that\n" + json.dumps(FIO)


def test_figures_of_fio():
    assert loads.figures(TEXT, "write").json() == {"iops": 500, "mib_s": 2.0, "mean_us": 90, "p99_us": 150}
    assert loads.figures(TEXT, "read").p99_us == 0 and loads.longest_ms(TEXT) == 812 and loads.errors(TEXT) == 0
    assert loads.rates("200, 101, 1, 0, 0\n400, 99, 0, 0, 0\n600, 0, 1, 0, 0\n") == [[0.2, 101.0], [0.6, 0.0]]
    # Nothing was written for a while: the log has no line of it.
    assert loads.rates("200, 101, 1, 0, 0\n2200, 34, 1, 0, 0\n") == [[0.2, 101.0], [2.0, 0.0], [2.2, 34.0]]
    job = loads.data(loads.DATA[3], "/dev/ibnbd0", "libaio", 32, 5)
    assert "--size=32m" in job and "--randseed=5" in job and "--ioengine=libaio" in job


# The document and the report.

def test_nothing_in_the_document_says_whose_machines_they_were(tmp_path):
    outcome = Outcome("2026-01-01 12:00", "0.1.0", machines={"server": {"firmware": "227.0.133.0"}}, steps=[Step(
        "check", "x", FAILED, 1, "box-server: 10.0.1.1 and fd00:0:0:1::2 by 52:54:00:00:01:02, wwn-0x5000c500a1b2c3d4, "
        f"{'ab' * 32}, /dev/disk/by-id/ata-X_123, 0001:0002:0003:0004, admin.box-server.org at 12:03")])
    scrub = Scrub({"box-server": "server"})
    text = json.dumps(results.save(outcome, scrub, tmp_path / "r.json"))
    for secret in ("box-server:", "10.0.1.1", "fd00", "52:54", "5000c5", "abab", "ata-X", "0002"):
        assert secret not in text, secret
    assert "227.0.133.0" in text and "server: [address] and [address] by [mac]" in text and "12:00" in text
    kept = json.dumps(results.save(outcome, Scrub({"box-server": "server"}, keep_names=True), tmp_path / "r.json"))
    assert "box-server: 10.0.1.1" in kept and "5000c5" not in kept and "abab" not in kept
    with pytest.raises(ValueError):
        results.load({"schema": 99})


@pytest.mark.parametrize("identifier", [
    "eui.0025388b710116f5", "EUI.0025388B710116F50000000000000001", "naa.5000c500a1b2c3d4", "naa.6001405a1b2c3d4e5f60718293a4b5c6",
    "nvme-eui.0025388b710116f5", "wwn-0x5000c500a1b2c3d4", "wwn-5000c500a1b2c3d4", "0x5000c500a1b2c3d4", "scsi-36001405a1b2c3d4e",
    "36001405a1b2c3d4e5f60718293a4b5c6", "nvme.1b36-31323334-51454d55-00000001", "uuid.0025388b710116f50025388b710116f5",
    "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-cdef-0123-456789abcdef", "t10.ATA     QEMU HARDDISK    QM00001"])
@pytest.mark.parametrize("keep_names", [False, True])
def test_no_identifier_of_a_disk_is_left(identifier, keep_names):
    left = Scrub({}, keep_names).text(f"wrong byte of {identifier}, see there\nnext line 12")
    serial = identifier.rpartition(".")[2].rpartition("-")[2].rpartition(":")[2].split()[-1]
    assert serial not in left and left.startswith("wrong byte of ") and left.endswith("\nnext line 12"), left


def test_words_that_look_like_identifiers_stay():
    for text in ("uuid: none", "scsi-mq of naa", "nvme.core and nvme0n1", "version 0123456789abcdef0123", "eui.12", "build 7.3.4-12"):
        assert Scrub({}).text(text) == text


def test_a_report_is_made_of_the_document():
    outcome = Outcome("now", "0.1.0", steps=[
        Step("failover", "port | down", PASSED, 1, "fine",
             {"longest_ms": 812.0, "rates": [[0, 500], [1, 0]], "marks": {"begins": 0.5}}),
        Step("bench", "NVMe-oF", SKIPPED, 0, "no <module>")],
        machines={"server": {"kernel": "7.3.4"}}, links={"link 1": {"client: MTU": 9000}},
        bench={"read 4k depth 1": {"ibnbd": loads.figures(TEXT, "read").json()}}, warnings=["a & b"])
    page = report.page(outcome)
    assert page.count("<svg") == 3 and "no &lt;module&gt;" in page and "a &amp; b" in page
    assert "1 passed, 0 failed, 1 skipped" in page
    assert outcome.passed and not dataclasses.replace(outcome, interrupted=True).passed and not Outcome().passed
    outcome.steps.append(Step("data", "x", FAILED, 0, "wrong byte"))
    assert not outcome.passed and "wrong byte" in report.page(outcome)
    document = json.loads(json.dumps(outcome.document()))
    assert document["passed"] is False and results.load(document) == outcome


def test_options():
    assert tuple(parts.PARTS) == options.PARTS
    found = options.parse("--server s --client c --disk  --erase  --short yes --paths".split(" ") + ["a,b c,d"])
    assert found.short and found.paths == ("a,b", "c,d") and not found.erase and found.ssh == machine.DEFAULT
    for wrong in (["--server", "s"], "--server s --client c --erase yes".split(), "--server s --client c --size-mib 8".split(),
                  "--server s --client c --short perhaps".split()):
        with pytest.raises(SystemExit):
            options.parse(wrong)


# Whole runs.

class Answering(machine.Machine):
    """Both machines of a run: `said` are all commands. Everything goes well unless `other` knows better."""

    USUAL = {"ibnbd check": '{"findings":[]}', "losetup --find": "/dev/loop0", "mkdir /sys/kernel/config/nullb": "/dev/nullbqualify",
             "ibnbd map": "/dev/ibnbd0", "sha256sum": "ff  -", "max_bytes": "4096", "awk '{print $5}'": "1", "fio.out": TEXT,
             "fio --name": TEXT, "fio_iops": "200, 101, 1, 0, 0"}

    def __init__(self, name, other=lambda name, command: None):
        super().__init__(name, f"root@{name}", ["none"])
        self.other, self.said = other, []

    def run(self, command, stdin="", timeout=120, check=True, shown=""):
        self.said.append(command)
        text = self.other(self.name, command)
        if text is None:
            text = self.usual(command)
        found = text if isinstance(text, Answer) else Answer(text, "", 0)
        if check and not found.ok:
            raise Failed(f"{self.name}: {found.errors}")
        return found

    def usual(self, command: str) -> str:
        if command == probe.SCRIPT:
            return answer(self.name)
        if command == probe.NOW:
            return answer(self.name, **RUNNING)
        if "ibnbd paths" in command and "path drain" not in command:
            return json.dumps({"paths": [{"name": link.folder, "side": "client", "state": "connected"} for link in pair()]})
        for words, text in self.USUAL.items():
            if words in command and "printf '%s\\n' 'load" not in command:
                return text
        return ""


def whole(tmp_path, monkeypatch, other=lambda name, command: None, real_signals=False, **more):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    monkeypatch.setattr(failover, "observe", lambda run, cause, step: None)
    machines = {name: Answering(name, other) for name in ("server", "client")}
    monkeypatch.setattr(command, "Machine", lambda name, host, words: machines[name])
    if not real_signals:
        monkeypatch.setattr(command, "_on_signals", lambda handler: None)
    words = {"server": "s", "client": "c", "short": "yes", "folder": tmp_path, **more}
    status = command.main([word for name, value in words.items() for word in (f"--{name}", str(value))])
    return status, machines


def test_a_run_that_passes(tmp_path, monkeypatch, capsys):
    status, machines = whole(tmp_path, monkeypatch)
    said = capsys.readouterr().out
    document = json.loads((tmp_path / "qualify.json").read_text())
    assert status == 0 and document["passed"], said
    assert "==> passed" in said and (tmp_path / "qualify.html").read_text().startswith("<!doctype html>")
    assert {step["part"] for step in document["steps"]} == {"set-up", *options.PARTS, "kernel log"}
    assert document["bench"]["read 4k depth 1"]["ibnbd"]["iops"] == 900
    for one in machines.values():
        assert one.said[-1] == undo.clean()
    # Each step that was planned has run, in that order.
    planned = plan.Plan.of(options.parse(["--server", "s", "--client", "c", "--short", "yes"]), facts("server"), facts("client"),
                           pair())
    assert [(step["part"], step["name"]) for step in document["steps"]] == [(step.part, step.name) for step in planned.steps]
    assert said.count("min left") == len(document["steps"])


def test_others_that_cannot_be_connected_are_left_out(tmp_path, monkeypatch, capsys):
    def other(name, command):
        if command in (probe.SCRIPT, probe.NOW):
            used = RUNNING if command == probe.NOW else {}
            return answer(name, modules=f"{MODULES}\nrnbd_server \nrnbd_client ", **used)
        return Answer("", "refused", 1) if "map_device of rnbd_client" in command else None
    status, machines = whole(tmp_path, monkeypatch, other, only="bench")
    steps = json.loads((tmp_path / "qualify.json").read_text())["steps"]
    found = next(step for step in steps if step["name"] == "connect RNBD")
    assert status == 0 and found["status"] == SKIPPED and "refused" in found["said"]
    # What was made for it is taken back; that was not planned, so it counts no further than the step before.
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if "disconnect rnbd" in line] == ["26/29]"] * 2
    assert undo.take_back(changes.rnbd_export("/dev/nullbqualify")) in machines["server"].said


def test_warnings_are_of_the_machines_and_not_of_the_runs_own_disks(tmp_path, monkeypatch):
    def other(name, command):
        found = [{"severity": "warning", "what": what} for what in
                 ("ibnbd0 has no identity: any disk is used", "ibnbd7 has no identity: any disk is used", "rxe0: slow")]
        return json.dumps({"findings": found}) if name == "client" and "ibnbd check" in command else None
    whole(tmp_path, monkeypatch, other, only="check")
    document = json.loads((tmp_path / "qualify.json").read_text())
    assert document["warnings"] == ["client: ibnbd7 has no identity: any disk is used", "client: rxe0: slow"]


def test_a_dry_run_changes_nothing(tmp_path, monkeypatch, capsys):
    def other(name, command):
        return answer("server", **FREE) if "wipefs --no-act" in command else None
    status, machines = whole(tmp_path, monkeypatch, other, **{"dry-run": "yes", "disk": "/dev/sdb"})
    assert status == 0 and not (tmp_path / "qualify.json").exists()
    assert machines["client"].said == [probe.SCRIPT] and len(machines["server"].said) == 2
    said = capsys.readouterr().out
    assert "OF /dev/sdb ARE OVERWRITTEN" in said and "failover: server drained" in said


def test_a_machine_without_the_modules_is_left_alone(tmp_path, monkeypatch, capsys):
    def other(name, command):
        return answer(name, modules="loop ") if command == probe.SCRIPT and name == "client" else None
    status, machines = whole(tmp_path, monkeypatch, other)
    assert status == 2 and "client: ibtrs_core, ibtrs_client, ibnbd_client cannot be loaded" in capsys.readouterr().err
    assert [one.said for one in machines.values()] == [[probe.SCRIPT], [probe.SCRIPT]]


def test_a_wrong_byte_fails_the_run_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    def other(name, command):
        if "--bs=64k" in command:
            return Answer(TEXT.replace('"error": 0', '"error": 84'), "verify: bad magic", 1)
        return None
    status, _machines = whole(tmp_path, monkeypatch, other)
    document = json.loads((tmp_path / "qualify.json").read_text())
    failed = [step for step in document["steps"] if step["status"] == FAILED]
    assert status == 1 and [step["name"] for step in failed] == ["scratch disk, 64 KiB, depth 8"]
    assert "bad magic" in failed[0]["said"]
    assert document["steps"][-1]["part"] == "kernel log"


def test_an_interrupted_run_is_cleaned_up(tmp_path, monkeypatch):
    def other(name, said):
        if "blkdiscard" in said and "command -v" not in said:
            raise command.Interrupted(signal.SIGINT)
        return None
    status, machines = whole(tmp_path, monkeypatch, other)
    assert status == 130 and json.loads((tmp_path / "qualify.json").read_text())["interrupted"]
    for one in machines.values():
        assert one.said[-2:].count(undo.clean()) == 1


@pytest.fixture
def signals():
    """As a shell has them in the foreground, whatever runs the tests; afterwards as they were."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in command.SIGNALS}
    yield lambda number: os.kill(os.getpid(), number)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_further_signals_do_not_end_cleaning_up(tmp_path, monkeypatch, capfd, signals):
    """The first one comes during a step, others while all is taken back."""
    sent = []

    def other(name, said):
        if said == undo.clean(urgent_only=True) or "blkdiscard" in said and "command -v" not in said:
            sent.append(name)
            for number in (command.SIGNALS if len(sent) > 1 else [signal.SIGHUP]):
                signals(number)
        return None
    status, machines = whole(tmp_path, monkeypatch, other, real_signals=True)
    assert status == 128 + signal.SIGHUP and len(sent) == 3
    assert json.loads((tmp_path / "qualify.json").read_text())["interrupted"]
    for one in machines.values():
        assert undo.clean() in one.said[-2:]
    assert capfd.readouterr().err.count("==> cleaning up; what cannot") == 2 * len(command.SIGNALS)


def test_a_signal_while_the_record_is_made_waits_for_it(tmp_path, monkeypatch, signals):
    def other(name, said):
        if said == undo.begin() and name == "server":
            signals(signal.SIGINT)
        return None
    status, machines = whole(tmp_path, monkeypatch, other, real_signals=True)
    assert status == 130
    for one in machines.values():
        assert undo.begin() in one.said and undo.clean() in one.said[-2:]


def test_signals_that_are_ignored_stay_ignored(signals):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run = Run(None, None, None)
    command._on_signals(partial(command._interrupt, run))
    signals(signal.SIGHUP)
    with pytest.raises(command.Interrupted):
        signals(signal.SIGTERM)
    assert run.stopped.number == signal.SIGTERM


def test_a_signal_counts_although_something_cannot_be_taken_back(tmp_path, monkeypatch, signals):
    """As when a machine hangs, for which an operator ends the run."""
    sent = []

    def other(name, said):
        if "ibnbd path drain" in said and not sent:
            sent.append(said)
            signals(signal.SIGINT)
        if sent and said.startswith(undo._alone(undo.FOLDER) + "if "):
            return Answer("", "no answer", 1)
        return None
    status, machines = whole(tmp_path, monkeypatch, other, only="failover", real_signals=True)
    assert status == 130 and json.loads((tmp_path / "qualify.json").read_text())["interrupted"]
    assert not [said for said in machines["client"].said if "ibnbd path disconnect" in said]


def test_a_terminal_that_is_gone_does_not_end_a_run(tmp_path):
    """As when `make qualify | less` is left."""
    reader, writer = os.pipe()
    os.close(reader)
    text = "import sys; from qualify import terminal; terminal.say('x'); terminal.complain('y'); open(sys.argv[1], 'w')"
    subprocess.run(["python3", "-c", text, str(tmp_path / "done")], stdout=writer, stderr=writer, timeout=60, check=False,
                   env=os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(command.__file__))})
    os.close(writer)
    assert (tmp_path / "done").exists()


def test_others_that_come_during_a_run_are_left_alone(tmp_path, monkeypatch, capsys):
    """A program opens a connection over the link that is to be taken down: at the beginning there was none."""
    def other(name, command):
        return answer(name, **RUNNING | {"tcp": "0 0 10.0.2.2:2049 10.0.2.9:900"}) if command == probe.NOW else None
    status, machines = whole(tmp_path, monkeypatch, other, only="failover")
    steps = {step["name"]: step for step in json.loads((tmp_path / "qualify.json").read_text())["steps"]}
    assert status == 0 and "other programs have connections" in steps["port down at the client"]["said"]
    assert steps["port down at the server"]["status"] == PASSED
    assert not [said for said in machines["client"].said if "set eth2 down" in said]


@pytest.mark.parametrize("text", ["", answer("client", boot="another")])
def test_a_machine_that_does_not_answer_any_more_is_not_disturbed(tmp_path, monkeypatch, text):
    def other(name, command):
        return text if command == probe.NOW and name == "client" else None
    status, machines = whole(tmp_path, monkeypatch, other, only="failover")
    steps = [step for step in json.loads((tmp_path / "qualify.json").read_text())["steps"] if step["part"] == "failover"]
    assert status == 1 and {step["status"] for step in steps} == {FAILED}
    assert not [said for said in machines["server"].said if "ibnbd drain" in said or "ip link set" in said]


def test_the_record_of_another_run_is_left_alone(tmp_path, monkeypatch):
    def other(name, said):
        return Answer("", "File exists", 1) if said == undo.begin() and name == "client" else None
    status, machines = whole(tmp_path, monkeypatch, other)
    assert status == 1 and machines["server"].said[-1] == undo.clean()
    assert not [said for said in machines["client"].said if "tac " in said]
