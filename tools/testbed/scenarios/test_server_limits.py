# SPDX-License-Identifier: GPL-2.0
"""The limits of a server: sessions, memory, clients that vanish."""

import errno
import os
import time

import pytest

from testbed import blockdev, free_memory
from testbed.hostile import launch
from testbed.lab import wait_for
from testbed.stack import STACKS

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
# IBTRS_LONG=1 runs the larger numbers.
LOSSES = 50 if os.environ.get("IBTRS_LONG") else 8


def start(pair, parameters: str) -> None:
    server, client = pair
    for number in range(2):
        server.null_blk(f"nullb{number}", size_mb=16)
    server.run(f"dmesg -C; modprobe ibtrs_server {parameters}")
    blockdev.load(pair, OURS)


def refused(client, session: str, device: str) -> str:
    output = client.run(OURS.map_device(device, session=session), check=False)
    assert not output.ok
    return output


def test_a_session_too_many_is_refused(pair):
    server, client = pair
    start(pair, "max_sessions=1")
    client.run(OURS.map_device("/dev/nullb0", session="one"))
    assert os.strerror(errno.ENOSPC) in refused(client, "two", "/dev/nullb1")
    assert ("ip:10.0.1.2@ip:10.0.1.1: refused: the server already has max_sessions sessions (ENOSPC)"
            in server.run("dmesg"))
    client.run(f"dd if={OURS.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    client.run(OURS.unmap())
    server.wait_for_log("one: session closed")
    client.run(OURS.map_device("/dev/nullb1", session="two"))


def test_memory_is_limited_and_given_back(pair):
    server, client = pair
    # 64 chunks of 144 KiB: a path takes 9 MiB, and a little for capsules and its queues.
    start(pair, "slots=N sess_queue_depth=64 max_chunk_memory_mib=13")
    for _ in range(3):
        client.run(OURS.map_device("/dev/nullb0", session="one"))
        assert os.strerror(errno.ENOMEM) in refused(client, "two", "/dev/nullb1")
        client.run(OURS.unmap())
        server.wait_until("! rdma resource show qp | grep -q 'type RC'")
    assert "other paths leave too little of max_chunk_memory_mib (ENOMEM)" in server.run("dmesg")


def test_queues_count_as_memory(pair):
    server, client = pair
    # Seven eighths of it are 9.6 MiB. The chunks have 9.5, and all of a path 10.2.
    start(pair, "slots=N capsules=N sess_queue_depth=64 max_chunk_memory_mib=11")
    assert os.strerror(errno.ENOMEM) in refused(client, "one", "/dev/nullb0")
    # Nothing else is there, so to try again is of no use.
    assert ("refused: one path of this size is more than max_chunk_memory_mib allows: raise it (ENOMEM)"
            in server.run("dmesg"))


# Invalid values are refused as they are read, values that contradict each other after that.
OUT_OF_RANGE = "max_sessions=0 max_sessions=65537 hb_interval_ms=60001 hb_missed_max=0 " \
               "hb_missed_max=101 max_chunk_size=4096 max_chunk_size=1052673 sess_queue_depth=1 sess_queue_depth=65536 " \
               "max_connections=1 max_connections=4097 max_attempts_per_address=0 setup_timeout_ms=999"
NO_NUMBER = "max_chunk_memory_mib=-1 max_sessions=many"
NO_SESSION = {
    "max_chunk_size=10000": "max_chunk_size is below 8192 or not a multiple of 4096",
    "slots=N max_chunk_size=1048576 sess_queue_depth=65535":
        "max_chunk_size and sess_queue_depth need more than 28 bits together",
    "max_chunk_size=135168 sess_queue_depth=65535": "sess_queue_depth is above 32768, which is the most with slots",
}


@pytest.mark.fast
def test_parameters_that_make_no_session_are_refused(pair):
    """With the error that fits, and one line in the log that says which it was."""
    server = pair.server
    # So that it exists, whether or not the other one does.
    server.run("modprobe ibtrs_core")

    def refused(parameters: str, error: int, words: str) -> None:
        server.run("dmesg --clear")
        said = server.run(f"modprobe ibtrs_server {parameters}", check=False)
        assert not said.ok and os.strerror(error) in said, (parameters, said)
        lines = server.run("dmesg").splitlines()
        assert len(lines) == 1 and f"ibtrs_server: {words}" in lines[0], (parameters, lines)
        assert not server.ok("[ -e /sys/module/ibtrs_server ]")

    for error, parameters in ((errno.ERANGE, OUT_OF_RANGE), (errno.EINVAL, NO_NUMBER)):
        for parameter in parameters.split():
            name, value = parameter.split("=")
            refused(parameter, error, f"`{value}' invalid for parameter `{name}'")
    # 0 means something else.
    refused("hb_interval_ms=99", errno.ERANGE, "hb_interval_ms=99: not 0, or 100 to 60000")
    for parameters, why in NO_SESSION.items():
        given = {"sess_queue_depth": "512", **dict(part.split("=") for part in parameters.split())}
        refused(parameters, errno.EINVAL,
                f"sess_queue_depth={given['sess_queue_depth']} with max_chunk_size={given['max_chunk_size']}: {why}")
    # The last that can be taken on both sides.
    for parameters in ("max_sessions=65536 hb_interval_ms=60000 hb_missed_max=100", "hb_interval_ms=0",
                       "max_sessions=1 hb_interval_ms=100 hb_missed_max=1 max_chunk_size=8192 sess_queue_depth=2"):
        server.run(f"modprobe ibtrs_server {parameters} && busybox rmmod ibtrs_server")


def sits(client, code: str, last: str = ""):
    """Starts a program of a stranger, who asks for what he likes, and waits until he sits there.
    `ask()` makes the connection `cid` of a path of `count` connections; it gives the number of the
    error that the server refuses it with, 0 if it does not.  `source` is another address than the
    client's own. The code in `last` runs when it leaves."""
    client.run("rm -f /tmp/leave /tmp/sits")
    program = launch.program(client, """
kept = []
def ask(count, cid=0, path=None, session=None, source=None):
    party = Party(cid_num=count, source=source)
    party.path, party.session = path or party.path, session or party.session
    kept.append(party)
    return party.refused(cid)
""" + code + """
open("/tmp/sits", "w").close()
while not os.path.exists("/tmp/leave"):
    time.sleep(0.2)
""" + last)
    wait_for(lambda: not program.running or client.ok("[ -e /tmp/sits ]"), 120, "the stranger sits")
    return program


def leaves(client, program) -> list[str]:
    client.run("touch /tmp/leave")
    return program.wait(60).splitlines()


@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_who_asks_for_much_has_little(pair):
    """A path of 300 connections, of which one comes: who asks so does not keep others out."""
    server, client = pair
    start(pair, "")
    free = "awk '/^MemAvailable/ { print $2 }' /proc/meminfo"
    before = int(server.run(free))
    program = sits(client, "print(ask(300), ask(300))")
    assert before - int(server.run(free)) < 32 << 10
    client.run(OURS.map_device("/dev/nullb0", session="honest"))
    client.run(f"dd if={OURS.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    assert leaves(client, program) == ["0 0"]
    client.run(OURS.unmap())


@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_a_path_of_too_many_connections_is_refused(pair):
    server, client = pair
    # Short queues, as there is too little memory for long ones.
    start(pair, "sess_queue_depth=16")
    # The most that a client of 256 CPUs makes has room, twice.
    cpus = 256
    program = sits(client, f"print(ask(1025), ask(2000), ask(1024), ask({1 + 2 * cpus}))")
    assert leaves(client, program) == [f"{errno.ENOSPC} {errno.ENOSPC} 0 0"]
    assert ("refused: its session has more queues than max_connections allows: raise it, or map with fewer nr_queues (ENOSPC)"
            in server.run("dmesg"))


@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_paths_that_one_address_begins_are_limited(pair):
    server, client = pair
    start(pair, "max_attempts_per_address=3 setup_timeout_ms=8000")
    program = sits(client, "print([ask(2) for _ in range(5)])")
    assert os.strerror(errno.EBUSY) in refused(client, "honest", "/dev/nullb0")
    assert leaves(client, program) == [str([0, 0, 0, errno.EBUSY, errno.EBUSY])]
    assert ("refused: the address is connecting max_attempts_per_address paths already (EBUSY)"
            in server.run("dmesg"))
    # A client that left has none any more.
    server.wait_until("! rdma resource show qp | grep -q 'type RC'", 60)
    client.run(OURS.map_device("/dev/nullb0", session="honest"))
    # An address that is known waits for itself, too.
    program = sits(client, "print([ask(2) for _ in range(4)])")
    assert leaves(client, program) == [str([0, 0, 0, errno.EBUSY])]


@pytest.fixture
def strangers(pair):
    """Two more addresses of the client, which the server has never heard of."""
    addresses = ["10.0.1.98", "10.0.1.99"]
    for address in addresses:
        pair.client.run(f"ip addr add {address}/24 dev eth0")
    yield addresses
    for address in addresses:
        pair.client.run(f"ip addr del {address}/24 dev eth0")


@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_the_last_sessions_are_for_those_who_are_known(pair, strangers):
    server, client = pair
    # An eighth of them is one.
    start(pair, "max_sessions=8 max_attempts_per_address=16 sess_queue_depth=16 setup_timeout_ms=60000")
    client.run(OURS.map_device("/dev/nullb0", session="one"))
    program = sits(client, f"print([ask(2, source='{strangers[0]}') for _ in range(7)])")
    client.run(OURS.map_device("/dev/nullb1", session="two"))
    assert os.strerror(errno.ENOSPC) in refused(client, "three", "/dev/nullb1")
    assert leaves(client, program) == [str([0] * 6 + [errno.ENOSPC])]
    client.run(f"{OURS.unmap()} && {OURS.unmap(1)}")


@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_strangers_leave_memory_to_others(pair, strangers):
    """One address has half of the memory for paths that it begins; the last eighth of all is for
    those who are known."""
    server, client = pair
    # A path takes some 0.4 MiB when it begins, and as much when it is complete.
    start(pair, "slots=N capsules=N max_chunk_memory_mib=4 sess_queue_depth=16 max_chunk_size=8192 "
                "max_attempts_per_address=16 setup_timeout_ms=60000")
    first = sits(client, f"print([ask(2, source='{strangers[0]}') for _ in range(6)])")
    client.run(OURS.map_device("/dev/nullb0", session="one"))
    second = sits(client, f"print(ask(2, source='{strangers[1]}'))")
    client.run(OURS.map_device("/dev/nullb1", session="two"))
    said = server.run("dmesg")
    assert leaves(client, first) == [str([0] * 5 + [errno.ENOMEM])]
    assert leaves(client, second) == [str(errno.ENOMEM)]
    assert (f"ip:{strangers[0]}@ip:10.0.1.1: refused: incomplete paths of this address already use half of "
            "max_chunk_memory_mib (ENOMEM)") in said
    assert (f"ip:{strangers[1]}@ip:10.0.1.1: refused: other paths leave too little of max_chunk_memory_mib (ENOMEM)"
            in said)
    client.run(f"{OURS.unmap()} && {OURS.unmap(1)}")


@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_a_path_has_so_much_time_in_all(pair):
    """Each connection gives the next some more time, but the path has to be complete some day."""
    server, client = pair
    start(pair, "setup_timeout_ms=6000")
    program = sits(client, """
path, session = os.urandom(16), os.urandom(16)
begin = time.monotonic()
cid = 0
while time.monotonic() - begin < 20:
    ask(64, cid, path, session)
    cid += 1
    time.sleep(0.5)
print(cid)
""")
    asked = int(leaves(client, program)[0])
    # Each connection alone would keep the path for as long again.
    said = server.run("dmesg").count("the client did not complete the path in time; the path is closed")
    assert asked > 4 and said >= 2, (asked, said)


@pytest.mark.thorough
@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_a_server_that_is_behind_closes_no_path(pair):
    """All connections of a path are asked for at once, and the server takes much longer for them than
    a client may: the path comes up."""
    server, client = pair
    limit = 1.0
    # Long queues take long to be made, above all where others keep the processors busy.
    start(pair, f"sess_queue_depth=1000 setup_timeout_ms={int(1000 * limit)}")
    hogs = server.run("for cpu in $(seq $(nproc)); do nice -n -10 sh -c 'while :; do :; done' > /dev/null 2>&1 & "
                      "echo $!; done").split()
    program = sits(client, """
party = Party(name="many", cid_num=100)
kept.append(party)
cons = [party.resolve() for _ in range(party.cid_num)]
def take(cid):
    answer = cons[cid].answered(60)
    cons[cid].establish()
    party.connections[cid] = cons[cid]
    party.accepted = party.accepted or wire.CONN_RSP.unpack(answer)
cons[0].ask(party.request(0))
take(0)
begun = time.monotonic()
for cid in range(1, party.cid_num):
    cons[cid].ask(party.request(cid))
for cid in range(1, party.cid_num):
    take(cid)
print(time.monotonic() - begun)
party.introduce()
party.heartbeat()
print("connected")
""")
    said = leaves(client, program)
    server.run(f"kill {' '.join(hogs)}")
    assert said[1:] == ["connected"], said
    assert float(said[0]) > 2 * limit, f"the server was not behind: {said[0]} s for all connections"


@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_a_request_that_has_ended_costs_nothing(pair):
    """A stranger asks for many paths and leaves before the server has come to them: it says nothing of those, as it
    has not begun any."""
    server, client = pair
    asked = 60
    start(pair, f"max_attempts_per_address={asked}")
    program = sits(client, f"""
parties = [Party() for _ in range({asked})]
connections = [party.resolve() for party in parties]
""", last="""
for party, connection in zip(parties, connections):
    connection.ask(party.request(0))
for connection in connections:
    connection.close(quietly=True)
""")
    server.freeze()
    assert leaves(client, program) == []
    server.thaw()
    client.run(OURS.map_device("/dev/nullb0", session="honest"))
    # Of some it hears while it makes their queue pairs. The log has ten lines of an address at once.
    said = server.run("dmesg")
    begun = said.count("(unnamed)") + said.count("refused: the connection cannot be created")
    print(f"{begun} of {asked} begun")
    assert begun < 10, said
    client.run(OURS.unmap())


def fill_page_cache(server) -> None:
    """Leaves next to no free memory: all is full of what was read, as long as somebody has the disk
    open."""
    device = server.null_blk("nullb9", size_mb=4096)
    server.run(f"sleep 900 < {device} > /dev/null 2>&1 & echo $! > /tmp/reader; "
               f"dd if={device} of=/dev/null bs=1M status=none", timeout=300)
    free_kb = int(server.run("awk '/^MemFree/ { print $2 }' /proc/meminfo"))
    assert free_kb < 200 << 10, free_kb


# What is left takes the queues of a path, and not its 66 MiB of chunks.
LEFT_MIB = 48


@pytest.mark.thorough
@pytest.mark.fast
@pytest.mark.links(2)
def test_paths_wait_for_a_name_no_longer_than_their_client(pair):
    """The session that has the name ends only when its disk goes on.  A path after the other waits for that; one whose
    client has given up does not."""
    server, client = pair
    server.null_blk(size_mb=16)
    stuck = blockdev.StuckDisk(server, "/dev/nullb0")
    blockdev.load(pair, OURS)
    line = f'echo "sessname=s path=ip:10.0.1.1 path=ip:10.0.2.1 device_path={stuck.device}" > {OURS.map_file}'
    client.run(line)
    with stuck.suspended():
        write = client.start(f"dd if=/dev/zero of={OURS.disk} bs=4k count=1 oflag=direct status=none")
        server.wait_until("[ $(cat /sys/class/ibtrs-server/s/paths/*/stats/rdma | awk '{ n += $5 } END { print n }') = 1 ]", 30)
        client.run(OURS.unmap(how="force"))
        write.wait(30, check=False)
        # What the server still has of the former session.
        server.run("sleep 2")
        left = blockdev.queue_pairs(server)
        assert not client.run(line, timeout=120, check=False).ok
        wait_for(lambda: blockdev.queue_pairs(server) == left, 8, "the paths are gone")
    server.wait_for_log("s: session closed")
    client.run(f"{line} && {OURS.unmap()}")
    server.wait_until("[ ! -e /sys/class/ibnbd-server/ctl/devices/dm-0 ]")
    stuck.remove()


def test_a_session_without_devices_has_no_thread(pair):
    """The thread that submits requests while there is no memory comes with the first device."""
    server, client = pair
    name, threads = "/dev/disk-of-a-thread", "cat /proc/[0-9]*/comm 2> /dev/null | grep -c kworker/R-ibnbd-io-one || true"
    server.run(f"ln -s $(basename {server.null_blk(size_mb=16)}) {name}")
    blockdev.load(pair, OURS)
    client.run(OURS.map_device(name, session="one"))
    assert server.run(threads) == "1"
    server.run(f"{OURS.unload('server')} && rm {name}", timeout=60)
    server.run(OURS.load_server())
    client.wait_for_log(f"ibnbd0: {name} cannot be opened again yet", 60)
    assert server.run("ls /sys/class/ibtrs-server") == "one" and server.run(threads) == "0"
    server.run(f"ln -s nullb0 {name}")
    client.wait_until("[ $(cat /sys/block/ibnbd0/ibnbd/state) = open ]", 60)
    assert server.run(threads) == "1"
    client.run(OURS.unmap())


@pytest.mark.fast
def test_the_memory_of_a_lost_path_is_kept_for_it(pair):
    """Programs take all memory while the only path is lost, and the client comes back all the same."""
    server, client = pair
    start(pair, "slots=N")
    client.run(OURS.map_device("/dev/nullb0", session="one"))
    path = "/sys/class/ibtrs-client/one/paths/*"
    client.run(f"echo 1 > {path}/disconnect")
    server.wait_for_log("one: session closed")
    hog = free_memory.take(server, LEFT_MIB)
    client.run(f"echo 1 > {path}/reconnect && grep -qx connected {path}/state")
    client.run(f"dd if={OURS.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    hog.kill()
    client.run(OURS.unmap())


@pytest.mark.thorough
@pytest.mark.fast
@pytest.mark.long
def test_a_lost_path_gets_its_memory_back(pair):
    """The server's memory is full of cached files when a path is lost. The client comes back, again
    and again, and is never refused."""
    server, client = pair
    start(pair, "")
    client.run(OURS.map_device("/dev/nullb0", session="one"))
    client.run("cd /sys/class/ibtrs-client/one && echo 10 > reconnect_delay_ms && echo -1 > max_reconnect_attempts")
    fill_page_cache(server)
    print(server.run("cat /proc/buddyinfo; grep -E '^(MemFree|MemAvailable|Cached|Buffers)' /proc/meminfo"))
    for loss in range(1, 1 + LOSSES):
        server.run("echo 1 > $(ls -d /sys/class/ibtrs-server/one/paths/*/disconnect)")
        server.wait_until(f"[ $(dmesg | grep -c 'one: .*: path connected') -gt {loss} ]", 60)
        client.run(f"dd if={OURS.disk} of=/dev/null bs=64k count=16 iflag=direct status=none", timeout=60)
    log = server.run("dmesg")
    assert "ENOMEM" not in log and "oom" not in log.lower(), log
    client.run(OURS.unmap())
    server.run("kill $(cat /tmp/reader)")


@pytest.mark.kills
def test_a_client_that_dies_is_noticed(pair):
    server, client = pair
    start(pair, "hb_interval_ms=500 hb_missed_max=4")
    client.run(OURS.map_device("/dev/nullb0", session="one"))
    assert blockdev.queue_pairs(server)
    client.kill()
    server.wait_for_log("one: session closed", 60)
    assert "no heartbeat from the client" in server.run("dmesg")
    assert blockdev.queue_pairs(server) == 0


@pytest.mark.kills
@pytest.mark.fast
def test_a_client_vanishes_while_it_connects(pair):
    """The kernel's own client makes one connection after the other: on a slow
    link there is time to stop it in between."""
    server, client = pair
    start(pair, "")
    client.run(MAINLINE.load_client())
    client.run("tc qdisc replace dev eth0 root netem delay 1500ms")
    client.start(f'echo "sessname=s path=ip:10.0.1.1 device_path=nullb0" > {MAINLINE.map_file}')
    server.wait_until("rdma resource show qp | grep -q 'type RC'", 60)
    client.kill()
    server.wait_for_log("the client did not complete the path in time; the path is closed", 60)
    server.wait_until("! rdma resource show qp | grep -q 'type RC'", 60)
    # All of it is gone, and the module can go.
    server.run("modprobe -r ibnbd_server", timeout=60)
