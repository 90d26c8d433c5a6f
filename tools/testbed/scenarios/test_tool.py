# SPDX-License-Identifier: GPL-2.0
"""An administrator's tasks, done with the command `ibnbd` alone."""

import json
import time
from pathlib import Path

import pytest

from testbed import accel, key_traces, keyring, netns, sysfs_made
from testbed.lab import Solo
from testbed.load import Load
from testbed.stack import STACKS
from testbed.tool import PROGRAM, Tool

pytestmark = [pytest.mark.fast, pytest.mark.links(2)]

EXPORTS = "/dev/ibnbd-exports"
SERVE = f"modprobe ibnbd_server dev_search_path={EXPORTS}"
# The tool's output for two paths.
PATHS = {("ip:10.0.1.2", "ip:10.0.1.1"), ("ip:10.0.2.2", "ip:10.0.2.1")}
# How it is told to make them.
TWO_PATHS = "--path 10.0.1.2,10.0.1.1 --path 10.0.2.2,10.0.2.1"


def serve(server, *devices: str) -> Tool:
    """Loads the server and exports devices under their own names."""
    server.run(f"rm -rf {EXPORTS} && {SERVE}")
    tool = Tool(server)
    for device in devices:
        tool(f"export add {device}")
    return tool


def ready(pair) -> tuple[Tool, Tool]:
    """A server that exports a disk, and a client that can map it."""
    pair.client.run("modprobe ibnbd_client")
    return serve(pair.server, pair.server.null_blk()), Tool(pair.client)


def map_by_two_paths(tool: Tool) -> None:
    tool(f"map 10.0.1.1 nullb0 --session s {TWO_PATHS}")
    assert tool.json("sessions")["sessions"][0]["state"] == "connected"


def test_two_commands_map_a_disk(pair):
    """As README has it: each loads the module that it needs."""
    server, client = pair
    device = server.null_blk()
    for guest, module in ((server, "ibnbd_server"), (client, "ibnbd_client")):
        assert not guest.ok(f"[ -e /sys/module/{module} ]")
    Tool(server)(f"export add {device} disk1 --from 10.0.0.0/16")
    assert Tool(client)("map 10.0.1.1 disk1") == "/dev/ibnbd0"
    assert client.run("blockdev --getsize64 /dev/ibnbd0") == server.run(f"blockdev --getsize64 {device}")


def test_a_path_that_does_not_connect_is_named(pair):
    _, tool = ready(pair)
    said = tool.guest.run(f"{PROGRAM} map 10.0.1.1 nullb0 --session s "
                          "--path 10.0.1.2,10.0.1.1 --path 10.0.2.2,10.0.2.77 2>&1")
    assert "/dev/ibnbd0" in said.splitlines(), said
    assert "warning: the path ip:10.0.2.2@ip:10.0.2.77 is not connected yet" in said
    assert tool.json("sessions")["sessions"][0]["state"] == "degraded"


def ends(tool: Tool, session: str) -> set[tuple[str, str]]:
    return {(path["src"], path["dst"]) for path in tool.json(f"paths {session}")["paths"]}


def test_the_tasks_of_the_guide(pair):
    server, client = pair
    server_tool, client_tool = serve(server, server.null_blk()), Tool(client)
    assert [export["device"] for export in server_tool.json("export list")["exports"]] == ["nullb0"]

    # Without the client's module each command says what is missing; `map` loads it.
    assert "remedy: modprobe ibnbd_client" in client_tool.refused("unmap ibnbd0", code=4)

    # Two paths, a name for the session that nobody has given, a disk that works.
    assert client_tool(f"map 10.0.1.1 nullb0 {TWO_PATHS}") == "/dev/ibnbd0"
    # A disk without identity is no fault once somebody vouches for it.
    status = client.run(f"{PROGRAM} status", check=False)
    assert status.status == 1 and "WARNING: ibnbd0 has no identity" in status
    assert "remedy: export a partition" in client_tool("check")
    client_tool("set ibnbd0 identity=none")
    (disk,) = client_tool.json("list")["disks"]
    assert disk["identity"] == "none"
    session = disk["session"]
    assert session.endswith("@10-0-1-1") and (disk["state"], disk["access_mode"]) == ("open", "rw")
    assert (disk["mapping_path"], disk["size_bytes"]) == ("nullb0", 256 << 20)
    client.run("dd if=/dev/urandom of=/dev/ibnbd0 bs=1M count=4 oflag=direct status=none")
    client.wait_until(f"{PROGRAM} sessions | grep -q ' 2/2 '")
    assert ends(client_tool, session) == PATHS
    assert client_tool("status").startswith("OK: 1 of 1 disks open, 2 of 2 paths connected")

    # Both ends tell of it.
    (peer,) = server_tool.json("clients")["clients"]
    assert peer["devices"] == ["nullb0"] and peer["addresses"] == ["ip:10.0.1.2", "ip:10.0.2.2"]
    assert server_tool.json("show nullb0")["opened"]["session"] == session
    traffic = [path["stats"]["traffic"] for path in client_tool.json(f"stats {session}")["paths"]]
    assert sum(each["write_bytes"] for each in traffic) >= 4 << 20
    client_tool(f"stats {session} --reset")
    assert all(path["stats"]["traffic"]["write_bytes"] == 0
               for path in client_tool.json(f"stats {session}")["paths"])

    # Paths go, are disconnected, and come back.
    client_tool(f"path remove {session} 10.0.2.1")
    assert ends(client_tool, session) == {("ip:10.0.1.2", "ip:10.0.1.1")}
    client_tool(f"path add {session} 10.0.2.2,10.0.2.1")
    client_tool(f"path disconnect {session} 10.0.2.1")
    status = client.run(f"{PROGRAM} status", check=False)
    assert status.status == 1 and f"WARNING: session {session}: 1 of 2 paths connected" in status
    assert f"remedy: ibnbd path reconnect {session} ip:10.0.2.2@ip:10.0.2.1" in client_tool("check")
    client_tool(f"path reconnect {session} 10.0.2.1")
    assert client_tool("status").startswith("OK")

    # Settings.
    client_tool(f"policy {session} round-robin")
    assert client_tool(f"policy {session}") == "round-robin"
    client_tool(f"set {session} queue_timeout_s=300 hb_interval_ms=1000")
    client_tool("set ibnbd0 io_timeout_limit=3 io_timeout_ms=20000")
    settings = client_tool.json(f"show {session}")["session"]["settings"]
    assert (settings["queue_timeout_s"], settings["hb_interval_ms"]) == (300, 1000)
    disk = client_tool.json("show nullb0")["disk"]
    assert (disk["io_timeout_limit"], disk["io_timeout_ms"]) == (3, 20000)
    assert "ERANGE" in client_tool.refused(f"set {session} hb_interval_ms=1")

    # The operator of the server takes the disk, and gives it back.
    server_tool("close nullb0")
    client.wait_until(f"{PROGRAM} list | grep -q closed")
    status = client.run(f"{PROGRAM} status", check=False)
    assert status.status == 2 and "CRITICAL: ibnbd0 is closed" in status
    assert "remedy: ibnbd remap ibnbd0" in client_tool.refused("check")
    client_tool("remap ibnbd0")
    assert "the disk is open" in client_tool.refused("remap ibnbd0")

    # A second disk on the session, for reading only, and then both are unmapped.
    server_tool(f"export add {server.null_blk('nullb1', size_mb=16)} second")
    assert client_tool("map 10.0.1.1 second --ro") == "/dev/ibnbd1"
    assert client_tool.json("show second")["disk"]["session"] == session
    client_tool("resize ibnbd1 8M")
    assert client.run("cat /sys/block/ibnbd1/size").strip() == str(8 << 11)
    answer = client_tool.refused("map 10.0.1.1 second --ro")
    assert "EEXIST" in answer and "kernel: ibnbd_client: map_device: second of session" in answer
    with_users = server_tool.refused("export remove second")
    assert f"the device is open, by {session}" in with_users
    # The same disk in the other modes; with queues for polling it has a session of its own.
    client_tool("unmap second")
    assert client_tool("map 10.0.1.1 second --migration") == "/dev/ibnbd1"
    disk = client_tool.json("show ibnbd1")["disk"]
    assert (disk["access_mode"], disk["exclusive"], disk["session"]) == ("migration", False, session)
    client_tool("unmap second")
    assert client_tool("map 10.0.1.1 second --exclusive --queues 1 --poll-queues 1") == "/dev/ibnbd1"
    disk = client_tool.json("show ibnbd1")["disk"]
    assert (disk["access_mode"], disk["exclusive"]) == ("rw", True)
    assert (disk["queues"], disk["poll_queues"]) == (1, 1)
    assert disk["session"] == f"{session}+second"
    # The histogram of a disk starts again, and a disconnected client comes back.
    client.run("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=8 iflag=direct status=none")
    client_tool("stats ibnbd0 --reset")
    (counted,) = client_tool.json("stats ibnbd0")["disks"]
    assert sum(row["reads"] for row in counted["latency"]["rows"]) == 0 and counted["timed_out"] == 0
    server_tool(f"disconnect {session}")
    client.wait_until(f"cat /sys/class/ibtrs-client/{session}/paths/*/stats/reconnects | grep -q '^[1-9]'")
    client.wait_until(f"{PROGRAM} sessions | grep -q ' 2/2 '")
    client_tool("unmap second nullb0")
    assert client_tool.json("list")["disks"] == []
    server_tool("export remove second")
    assert [export["name"] for export in server_tool.json("export list")["exports"]] == ["nullb0"]


def test_refusals_are_said_in_words(pair):
    server, client = pair
    _, tool = ready(pair)
    answer = tool.refused("map 10.0.1.1 nowhere --session s")
    assert "ibnbd: cannot map nowhere of session s: the server has no such export (ENOENT)" in answer
    assert "kernel: ibnbd_client: map_device: nowhere of session s: cannot open the device on the server: ENOENT" in answer
    assert "remedy: check the name with `ibnbd export list` on the server" in answer
    # Names that need quoting, some of which no kernel takes.
    server.run(f"cp --archive {EXPORTS}/nullb0 '{EXPORTS}/a$b;c\"d'")
    assert "blanks" in tool.refused("map 10.0.1.1 'a b' --session s", code=2)
    assert tool("""map 10.0.1.1 'a$b;c"d' --session s""") == "/dev/ibnbd0"
    assert tool.json("list")["disks"][0]["mapping_path"] == 'a$b;c"d'
    # A disk that is in use.
    client.run("mkfs.ext4 -q /dev/ibnbd0 && mkdir -p /mnt/disk && mount /dev/ibnbd0 /mnt/disk")
    answer = tool.refused("unmap ibnbd0")
    assert "the disk is in use (EBUSY)" in answer and "kernel: ibnbd_client: ibnbd0: unmap_device: EBUSY" in answer
    client.run("umount /mnt/disk")
    # Users other than root may read.
    as_nobody = f"setpriv --reuid=65534 --clear-groups {PROGRAM}"
    assert "ibnbd0" in client.run(f"{as_nobody} list")
    answer = client.run(f"{as_nobody} unmap ibnbd0 2>&1", check=False)
    assert answer.status == 5 and "only root may do that" in answer
    tool("unmap ibnbd0")
    assert "nobody listens on the server's port" in tool.refused("map 10.0.1.1 nullb0 --session s --port 999")


def test_configuration_makes_a_machine_anew(pair):
    server, client = pair
    tools = ready(pair)
    map_by_two_paths(tools[1])
    tools[1]("set s queue_timeout_s=300 mp_policy=round-robin")
    for tool in tools:
        tool("save --config /tmp/ibtrs")
        assert tool("apply --config /tmp/ibtrs --prune --dry-run") == ""
    # As after a boot of both: no modules, no directory in /dev.
    tools[1]("unmap nullb0")
    client.run("busybox rmmod ibnbd_client ibtrs_client")
    server.run(f"busybox rmmod ibnbd_server ibtrs_server && rm -r {EXPORTS}")
    # The client comes up first, and says why it has no disk.
    answer = tools[1].refused("apply --config /tmp/ibtrs")
    assert "+ load ibnbd_client" in answer and "nobody listens on the server's port" in answer
    # An hour later, or a second.
    assert f"+ export /dev/nullb0 as {EXPORTS}/nullb0" in tools[0]("apply --config /tmp/ibtrs")
    assert "+ map nullb0 of session s" in tools[1]("apply --config /tmp/ibtrs")
    client.wait_until(f"{PROGRAM} sessions | grep -q ' 2/2 '")
    assert tools[1]("policy s") == "round-robin" and ends(tools[1], "s") == PATHS
    assert tools[1].json("show s")["session"]["settings"]["queue_timeout_s"] == 300
    for tool in tools:
        assert tool("apply --config /tmp/ibtrs --prune --dry-run") == ""


@pytest.mark.kills
def test_a_server_that_is_gone(pair):
    server, client = pair
    _, tool = ready(pair)
    tool("map 10.0.1.1 nullb0 --session s --identity none")
    # The server does not answer. Ctrl-C ends the command, which leaves nothing behind.
    server.freeze()
    said = client.run(f"timeout --signal=INT 3 {PROGRAM} map 10.0.1.1 nullb0 --session other 2>&1", check=False)
    server.thaw()
    assert said.status == 124 and "ibnbd: waiting to map nullb0 of session other" in said, said
    client.wait_until("[ ! -e /sys/class/ibtrs-client/other ]", 60)
    client.wait_until(f"{PROGRAM} status", 60)
    events = client.start(f"{PROGRAM} watch -n 2 --output json")
    time.sleep(1)
    server.run("modprobe -r ibnbd_server")
    client.wait_until(f"{PROGRAM} list --output csv | grep -q closed")
    told = [json.loads(line) for line in events.wait(60).splitlines()]
    assert all(event["subsystem"] in ("block", "ibtrs-client") for event in told) and len(told) == 2
    # Each says whose path or disk it is, and what became of it.
    assert all(event["name"] in ("s", "ibnbd0") and event["variables"] for event in told), told
    answer = tool.refused("status", code=2)
    assert "session s: 0 of 1 paths connected since " in answer and "waits for its server, fails in " in answer
    assert "session s has no path to its server" in tool.refused("check")
    # Commands that only show something do not wait for the server.
    started = client.uptime()
    assert "waits for its server" in tool("list") and "disconnected" in tool("paths") and tool("stats") and tool("metrics")
    assert client.uptime() - started < 20
    tool("unmap ibnbd0 --force")
    assert tool.json("list")["disks"] == []


BUFFERS = "/sys/kernel/tracing/instances"
SHARES = "wire_us", "server_queue_us", "disk_us"


def follow(client, words: str, disk: str = "ibnbd0"):
    """Starts to trace a disk."""
    job = client.start(f"{PROGRAM} trace {disk} {words}")
    client.wait_until(f"grep -qx 1 {BUFFERS}/ibnbd-*/events/ibtrs/ibtrs_client_complete/enable")
    return job


def followed(client, job, told: bool = True) -> list[dict]:
    """The requests of a trace, which has ended; `told` says whether the server tells its share."""
    found = [json.loads(line) for line in job.wait(120).splitlines()]
    assert client.run(f"ls {BUFFERS}").strip() == ""
    for each in found:
        assert each["total_us"] == each["client_us"] + each["failover_us"] + each["wire_and_server_us"], each
        shares = [each[share] for share in SHARES]
        assert (sum(shares) == each["wire_and_server_us"]) if told else (shares == [None] * 3), each
    return found


def test_requests_are_followed(pair):
    """Each request's time is divided among the client, lost paths, and the rest of its way."""
    server, client = pair
    _, tool = ready(pair)
    map_by_two_paths(tool)
    buffers = BUFFERS

    def ended(job) -> list[dict]:
        return followed(client, job)

    job = follow(client, "--output json -n 8")
    client.run("dd if=/dev/zero of=/dev/ibnbd0 bs=4k count=4 seek=8 oflag=direct status=none && "
               "dd if=/dev/ibnbd0 of=/dev/null bs=8k count=4 iflag=direct status=none")
    plain = ended(job)
    assert [(each["operation"][0], each["sector"], each["bytes"]) for each in plain] == [
        *(("W", 64 + 8 * n, 4096) for n in range(4)), *(("R", 16 * n, 8192) for n in range(4))]
    for each in plain:
        assert each["path"] in ("ip:10.0.1.2@ip:10.0.1.1", "ip:10.0.2.2@ip:10.0.2.1") and each["error"] == 0
        assert each["wire_and_server_us"] > 0 and each["failover_us"] == 0

    # One waits for a server that stands still, and only that is shown; for its client, that is the wire.
    job = follow(client, "--output json -n 1 --slower-than 900")
    client.run("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=4 iflag=direct status=none")
    server.freeze()
    load = client.start("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 skip=100 iflag=direct status=none")
    time.sleep(2)
    server.thaw()
    load.wait(60)
    (slow,) = ended(job)
    assert slow["sector"] == 800 and slow["wire_us"] > 900_000

    # One is lost with its path, and is sent again over the other one.
    job = follow(client, "--output json -n 1 --slower-than 900")
    server.freeze()
    load = client.start("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 skip=200 iflag=direct status=none")
    client.wait_until("grep -qE ' 1 [0-9]+$' /sys/class/ibtrs-client/s/paths/*/stats/rdma")
    busy = client.run("cd /sys/class/ibtrs-client/s/paths && grep -lE ' 1 [0-9]+$' */stats/rdma").split("/")[0]
    change = client.start(f"echo 1 > /sys/class/ibtrs-client/s/paths/{busy}/disconnect")
    time.sleep(2)
    server.thaw()
    change.wait(60)
    load.wait(60)
    (again,) = ended(job)
    assert again["sector"] == 1600 and again["path"] != busy
    assert again["failover_us"] > 900_000 and again["error"] == 0

    # A signal leaves nothing behind, however early it comes.
    for name in ("INT", "TERM", "HUP"):
        job = client.start(f"{PROGRAM} trace ibnbd0 --output json")
        client.run(f"until [ -n \"$(ls {buffers})\" ]; do :; done; "
                   f"kill -{name} $(busybox pidof {PROGRAM.rsplit('/', 1)[1]})")
        assert ended(job) == []
    # Nor does the end of whatever reads the requests.
    client.run(f"(sleep 1; dd if=/dev/ibnbd0 of=/dev/null bs=4k count=8 iflag=direct status=none) & "
               f"{PROGRAM} trace ibnbd0 | true; wait; [ -z \"$(ls {buffers})\" ]")
    assert "nothing has that name" in tool.refused("trace nothing", code=3)
    tool("unmap ibnbd0")


def test_the_servers_share_of_a_request(pair):
    """The server tells how long a request has waited there, and how long its disk took."""
    server, client = pair
    server.null_blk(size_mb=16)
    server.null_blk("nullb1", size_mb=16)
    delay = "--noudevsync slow --table '0 32768 delay /dev/nullb0 0 {}'"
    server.run(f"modprobe dm-delay && dmsetup create {delay.format(0)} && [ -b /dev/dm-0 ]")
    serve(server, "/dev/dm-0", "/dev/nullb1")
    client.run("modprobe ibnbd_client")
    tool = Tool(client)
    tool(f"map 10.0.1.1 dm-0 --session s {TWO_PATHS}")
    tool("map 10.0.1.1 nullb1 --session s --checksum crc32c")
    client.wait_until(f"{PROGRAM} sessions | grep -q ' 2/2 '")

    # All kinds of answers, with a checksum as well: short and long, with data and without.
    for disk in ("ibnbd0", "ibnbd1"):
        job = follow(client, "--output json -n 8", disk)
        client.run(f"for size in 4k 64k; do dd if=/dev/zero of=/dev/{disk} bs=$size count=2 oflag=direct status=none"
                   f" && dd if=/dev/{disk} of=/dev/null bs=$size count=2 iflag=direct status=none; done")
        plain = followed(client, job)
        assert [(each["operation"][0], each["bytes"]) for each in plain] == [
            (kind, size) for size in (4096, 65536) for kind in "WWRR"]
        assert all(each["disk_us"] > 0 and each["error"] == 0 for each in plain), plain
    assert client.run("cat /sys/block/ibnbd1/ibnbd/checksum_errors") == "0 0"

    # A slow disk.
    seconds = 5
    server.run(f"dmsetup reload {delay.format(seconds * 1000)} && dmsetup suspend --noudevsync slow && "
               "dmsetup resume --noudevsync slow")
    job = follow(client, "--output json -n 2")
    client.run("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 skip=8 iflag=direct status=none && "
               "dd if=/dev/zero of=/dev/ibnbd0 bs=64k count=1 seek=8 oflag=direct status=none", timeout=60)
    for each in followed(client, job):
        assert each["disk_us"] > seconds * 950_000, each
        assert each["wire_us"] + each["server_queue_us"] < each["disk_us"] / 2, each

    # One that is sent again waits on the server until the disk is done with it.
    job = follow(client, "--output json -n 1")
    load = client.start("dd if=/dev/zero of=/dev/ibnbd0 bs=4k count=1 oflag=direct status=none")
    client.wait_until("grep -qE ' 1 [0-9]+$' /sys/class/ibtrs-client/s/paths/*/stats/rdma")
    busy = client.run("cd /sys/class/ibtrs-client/s/paths && grep -lE ' 1 [0-9]+$' */stats/rdma").split("/")[0]
    client.run(f"echo 1 > /sys/class/ibtrs-client/s/paths/{busy}/disconnect", timeout=60)
    load.wait(60)
    (again,) = followed(client, job)
    assert again["path"] != busy and again["error"] == 0
    assert again["server_queue_us"] > 300_000 and again["disk_us"] > seconds * 950_000, again
    tool("unmap ibnbd1")
    tool("unmap ibnbd0")


def test_a_server_that_does_not_tell_its_share(pair):
    """The kernel's own: what is known is shown, and nobody asks it for more."""
    server, client = pair
    server.null_blk(size_mb=16)
    server.run(STACKS["mainline"].load_server())
    client.run("modprobe ibnbd_client")
    tool = Tool(client)
    tool("map 10.0.1.1 dev/nullb0 --session s --path 10.0.1.1")
    some = "dd if=/dev/ibnbd0 of=/dev/null bs=4k count=2 iflag=direct status=none"
    job = follow(client, "--output json -n 2")
    client.run(some)
    assert all(each["wire_and_server_us"] > 0 for each in followed(client, job, told=False))
    job = follow(client, "-n 2")
    client.run(some)
    head, *lines = job.wait(60).splitlines()
    columns = head.split()
    for line in lines:
        shown = dict(zip(columns, line.split(), strict=True))
        assert int(shown["SERVER"]) > 0 and {shown[share] for share in ("WIRE", "QUEUE", "DISK")} == {"-"}, line
    tool("unmap ibnbd0")


def test_the_kernels_own_disks_are_shown(pair):
    server, client = pair
    mainline = STACKS["mainline"]
    device = server.null_blk()
    server.run(mainline.load_server())
    client.run(f"{mainline.load_client()} && {mainline.map_device(device)}")
    tool = Tool(client)
    (disk,) = tool.json("list")["disks"]
    assert (disk["family"], disk["state"], disk["paths_connected"]) == ("rnbd", "open", 1)
    assert tool.json("paths")["paths"][0]["dst"] == "ip:10.0.1.1"
    assert tool.json("stats")["paths"][0]["stats"]["traffic"]["reads"] > 0
    assert Tool(server).json("list")["opened"][0]["device"] == "nullb0"
    tool.refused("unmap rnbd0", code=4)
    client.run(mainline.unmap())


def test_keys_from_the_first_to_the_next(pair):
    """The pages of authentication and of the tool, step by step."""
    server_tool, client_tool = tools = ready(pair)
    pair.client.run(f"{PROGRAM} key new > /tmp/key && {PROGRAM} key new --id 2027 > /tmp/next")
    first, following = (pair.client.run(f"cat {file}").strip() for file in ("/tmp/key", "/tmp/next"))
    for guest in pair:
        for text, name in ((first, "key"), (following, "next")):
            guest.run(f"umask 077; echo {text} > /tmp/{name}")
    assert "checksum" in client_tool.refused("key load s <<< $(sed s/default/defau1t/ /tmp/key)", 2)
    # Until the client has it too, nobody gets in.
    server_tool("key load s --file /tmp/key")
    assert "authenticat" in client_tool.refused(f"map 10.0.1.1 nullb0 --session s {TWO_PATHS}")
    client_tool("key load s --file /tmp/key")
    map_by_two_paths(client_tool)
    assert client_tool.json("show s")["session"]["settings"]["key_id"] == "default"
    for tool in tools:
        tool("key load s --file /tmp/next")
        # Replaced by itself.
        tool("key load s --file /tmp/next")
        assert [(key["session"], key["id"]) for key in tool.json("key list")["keys"]] == [("s", "2027"), ("s", "default")]
    client_tool("set s key_id=2027")
    load = Load(pair.client, STACKS["ibtrs"])
    since = pair.client.uptime()
    client_tool("path reauth s")
    assert keyring.key_ids(pair.client, "client", "s") == ["2027", "2027"]
    load.goes_on()
    assert load.gap(since) < 10 and "no path to the server is left" not in pair.client.run("dmesg")
    load.end()
    for tool in tools:
        tool("key remove s")
        assert [key["id"] for key in tool.json("key list")["keys"]] == ["2027"]
        assert "no such key" in tool.refused("key remove s", 3)
    assert keyring.key_ids(pair.server, "server", "s") == ["2027", "2027"]


# Notes how it was called, and does what it is for.
NOTING = """#!/bin/sh
{ echo called; cat /proc/$$/cmdline /proc/$$/environ /proc/$PPID/cmdline /proc/$PPID/environ; } >> /tmp/calls
exec /usr/bin/keyctl "$@"
"""


def test_a_key_is_found_nowhere(pair):
    """Once the key is loaded, used and refused, nothing that root can read has it, and no command line had."""
    server_tool, client_tool = tools = ready(pair)
    client = pair.client
    client.run(f"{PROGRAM} key new > /tmp/key")
    text = client.run("cat /tmp/key").strip()
    pair.server.run(f"umask 077; echo {text} > /tmp/key")
    for tool in tools:
        guest = tool.guest
        guest.push("/tmp/key_traces.py", Path(key_traces.__file__).read_text())
        guest.run("mkdir -p /tmp/noting")
        guest.push("/tmp/noting/keyctl", NOTING, 0o755)
        guest.run(f"rm -f /tmp/calls; mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug; "
                  f"PATH=/tmp/noting:$PATH {PROGRAM} key load s --file /tmp/key && "
                  f"PATH=/tmp/noting:$PATH {PROGRAM} key list && grep -q called /tmp/calls")
    map_by_two_paths(client_tool)
    assert keyring.key_ids(pair.server, "server", "s") == ["default"] * 2
    # Another key of this id, and messages that are none.
    client.run(f"umask 077; {PROGRAM} key new > /tmp/another")
    client_tool("key load s --file /tmp/another")
    client_tool.refused("path reconnect s 10.0.1.1")
    client_tool("key load s --file /tmp/key")
    client_tool("path reconnect s 10.0.1.1")
    server_tool("key load s --file /tmp/key")
    for guest in pair:
        read, *found = guest.run("python3 /tmp/key_traces.py /tmp/key /tmp/calls").splitlines()
        assert found == [] and int(read.split()[1]) > 100, (read, found)
    # It would be found.
    client.run("cat /tmp/key > /dev/kmsg")
    assert client.run("python3 /tmp/key_traces.py /tmp/key").splitlines()[1:] == ["found: dmesg"]
    client.run("dmesg -C")


def test_packets_that_do_not_pass_are_found(solo):
    """An end of a cable that drops what is larger than it should be: connections are made, data is lost."""
    path = "ip:10.1.1.1@ip:10.1.1.2"
    solo.run(f"modprobe ibnbd_client && mkdir -p {EXPORTS} && cp --archive {solo.null_blk()} {EXPORTS}/nullb0")
    netns.add(solo, 1)
    solo.run(netns.inside(1, SERVE))
    tool = Tool(solo)
    tool("map 10.1.1.2 nullb0 --session s --path 10.1.1.1,10.1.1.2")
    read = "dd if=/dev/ibnbd0 of=/dev/null bs=64k count=1 iflag=direct status=none"
    solo.run(read)
    said = tool("check")
    assert "packets of" not in said and "nothing answers" not in said, said

    # The RDMA devices believe that 4096 bytes fit.
    solo.run("ip -n n1 link set far1 mtu 1280")
    said = tool.refused("check")
    assert f"error: session s: path {path}: packets of 4160 bytes, as RDMA sends them, do not reach 10.1.1.2" in said
    remedy = "ip link set near1 mtu 1280"
    assert "those of 1280 do" in said and f"remedy: {remedy}, at both ends, then: ibnbd path reconnect s {path}" in said
    waiting = solo.start(read)
    time.sleep(3)
    assert solo.run("busybox pidof dd", check=False).status == 0

    # Its remedy helps; the path may be connecting again by itself.
    solo.run(f"{remedy} && {PROGRAM} path reconnect s {path}", check=False)
    waiting.wait(120)
    solo.wait_until(f"{PROGRAM} sessions | grep -q ' 1/1 '", 60)
    assert "packets of" not in tool("check")
    tool("unmap ibnbd0")
    solo.run(f"modprobe -r ibnbd_server ibnbd_client && rm -r {EXPORTS}")
    netns.drop(solo, 1)


def test_the_cost_of_a_list():
    """200 disks and 64 sessions. The program is built as for its tests, without optimization. Instructions are
    counted: what they take of an emulator's time depends on what else the host does."""
    with Solo("fast", how=accel.counting(), cpus=1) as lab:
        tool = Tool(lab.guest)
        sysfs_made.unpack(lab.guest, disks=200, sessions=64)
        listed = tool(f"--root {sysfs_made.ROOT} list")
        assert len(listed.splitlines()) == 201 and " 2/2 " in listed
        # 71 were counted; test_services.py has the program of the package.
        assert lab.guest.counted_ms(f"{PROGRAM} --root {sysfs_made.ROOT} list") < 90


def test_what_is_listed_costs_the_same_for_each_of_a_thousand_sessions():
    """With a disk for each. One of 1,024 takes no more than one of 64, by the same count of instructions."""
    with Solo("fast", how=accel.counting(), cpus=1) as lab:
        tool, each = Tool(lab.guest, released=True), {}
        for sessions in (64, 1024):
            root = f"{sysfs_made.ROOT}-{sessions}"
            sysfs_made.unpack(lab.guest, disks=sessions, sessions=sessions, root=root)
            for words in ("list", "sessions", "metrics"):
                assert f"s{sessions - 1}" in tool(f"--root {root} {words}")
                each[words, sessions] = lab.guest.counted_ms(f"{PROGRAM} --root {root} {words}") / sessions
        print({f"{words}, {sessions}": f"{ms:.3f} ms" for (words, sessions), ms in each.items()})
        for words in ("list", "sessions", "metrics"):
            assert each[words, 1024] < 1.1 * each[words, 64], each
