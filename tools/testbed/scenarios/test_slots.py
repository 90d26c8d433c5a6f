# SPDX-License-Identifier: GPL-2.0
"""Slots: the server's memory grows with use, and the data of larger writes is fetched."""

import pytest

from testbed import blockdev, exports, fio, keyring
from testbed.free_memory import free_bytes
from testbed.hostile import launch
from testbed.mishaps import ALL_WELL, losing, make_ready
from testbed.stack import STACKS

# Soft-iWARP has no immediates, and so no slots.
pytestmark = [pytest.mark.fast, pytest.mark.rdma("rxe")]

OURS = STACKS["ibtrs"]
MIB = 1 << 20
# The paths whose memory is measured together, as some pages are free only later.
PATHS = 5
# Processors of guests that have many connections.
CPUS = 8
# The disk of the second session.
OTHER = "/dev/ibnbd1"


def start(pair, parameters: str, disks: int = 1, size_mb: int = 64, client_takes: bool = True) -> list[str]:
    """Loads a server with these parameters, and the client; returns the devices."""
    server, client = pair
    devices = [server.null_blk(f"nullb{number}", size_mb=size_mb) for number in range(disks)]
    # Soft-RoCE has chunks otherwise.
    gives = "" if "slots" in parameters else "slots_over_rxe=Y"
    server.run(f"modprobe {OURS.transport('server')} {gives} {parameters} && {OURS.load_server()}")
    client.run(f"modprobe {OURS.transport('client')} slots_over_rxe={'Y' if client_takes else 'N'} && {OURS.load_client()}")
    return devices


def connections(pair) -> int:
    """Of a path: one for messages, one for each CPU of the client."""
    return 1 + int(pair.client.run("nproc"))


def mixed(client, disk: str, size_mb: int) -> None:
    """Reads and writes of all sizes, verified."""
    fio.run(client, f"--name=all --filename={disk} --rw=randrw --bsrange=512-256k --iodepth=64 --direct=1 "
            f"--ioengine=io_uring --verify=crc32c --verify_fatal=1 --size={size_mb}m", timeout=900)


@pytest.mark.parametrize("secure", ["Y", "N"])
def test_all_sizes(pair, secure):
    """Data that is pushed, fetched and returned, around the sizes at which the way changes."""
    server, client = pair
    device, = start(pair, f"always_invalidate={secure}")
    client.run(OURS.map_device(device, session="one"))
    for size in (512, 4096, 7680, 8192, 8704, 16384, 16896, 32768, 131072, 262144):
        fio.run(client, f"--name=size --filename={OURS.disk} --rw=randwrite --bs={size} --iodepth=16 --direct=1 "
                f"--ioengine=io_uring --verify=crc32c --verify_fatal=1 --size=4m --randrepeat=0", timeout=300)
    mixed(client, OURS.disk, 32)
    assert blockdev.same_on_both(pair, device, OURS.disk, 64)
    fetched = "/sys/class/ibtrs-server/one/paths/*/stats/fetched_bytes"
    before = int(server.run(f"cat {fetched}"))
    client.run(f"dd if=/dev/zero of={OURS.disk} bs=64k count=16 oflag=direct status=none && "
               f"dd if={OURS.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    assert int(server.run(f"cat {fetched}")) == before + MIB
    client.run(OURS.unmap())


def test_memory_of_a_path(pair):
    """A path that nobody uses takes little, one under load more, and gives that back."""
    server, client = pair
    first, *devices = start(pair, "", disks=1 + PATHS, size_mb=16)
    # The memory of the disk to which the load writes.
    server.run(f"dd if=/dev/zero of={devices[0]} bs=1M count=16 oflag=direct status=none")
    # With what is there only once.
    client.run(OURS.map_device(first, session="first"))
    # The client looks for partitions, and the server gives back the buffers for that.
    server.run("sleep 15")
    before = free_bytes(server)
    client.run(" && ".join(OURS.map_device(device, session=f"s{number}") for number, device in enumerate(devices)))
    server.run("sleep 15")
    idle = (before - free_bytes(server)) / PATHS
    of_connections = connections(pair) * 0.4 * MIB
    print(f"{idle / MIB:.2f} MiB idle, {of_connections / MIB:.1f} of them may be for connections")
    # Each path is of a session of its own here, which has a buffer for the largest request in reserve.
    assert idle < 4.5 * MIB + of_connections + MIB / 8, f"{idle / MIB:.2f} MiB idle"
    load = client.start(f"fio --name=small --filename={OTHER} --rw=randrw --bs=4k --iodepth=508 --direct=1 "
                        "--ioengine=io_uring --time_based --runtime=25")
    server.run("sleep 6")
    # Packets on their way take memory as well, the more the slower the emulator is.  The server keeps its
    # buffers for five seconds.
    client.run("pkill -STOP -x fio")
    of_load = before - free_bytes(server) - PATHS * idle
    client.run("pkill -CONT -x fio")
    print(f"{of_load / MIB:.2f} MiB more under load")
    # Those of a third of the requests at least.
    assert of_load > 3 * MIB, f"{of_load / MIB:.2f} MiB under load"
    assert idle + of_load < 16 * MIB, f"{of_load / MIB:.2f} MiB more under load"
    load.wait(120)
    # Two rounds of idle slots, and up to two intervals in which nobody needs the buffers.
    server.run("sleep 15")
    left = min(before - free_bytes(server) for _ in range(5)) - PATHS * idle
    assert left < MIB, f"{left / MIB:.2f} MiB more after the load"
    client.run(" && ".join(OURS.unmap(number) for number in range(1 + PATHS)))


def taken_by_a_path(pair, guest, parameters: str) -> float:
    """The bytes of the guest that a path takes with such a server. All are of sessions of their own, and stay mapped."""
    client = pair.client
    first, *devices = start(pair, parameters, disks=1 + PATHS, size_mb=16)
    client.run(OURS.map_device(first, session="first"))
    before = free_bytes(guest)
    client.run(" && ".join(OURS.map_device(device, session=f"s{number}") for number, device in enumerate(devices)))
    taken = (before - free_bytes(guest)) / PATHS
    print(f"{taken / MIB:.2f} MiB for each path")
    return taken


@pytest.mark.cpus(CPUS)
def test_memory_of_a_client(pair):
    """Its connections share the requests of a path, and have queues for their windows only."""
    client = pair.client
    taken = taken_by_a_path(pair, client, "")
    # Each path is of a session of its own here: 2 MiB are small buffers, and as much the requests of its disk.
    assert taken < 18 * MIB, f"{taken / MIB:.2f} MiB"
    # More than the window of a connection, so that some go by others.
    fio.run(client, f"--name=deep --filename={OURS.disk} --rw=randwrite --bs=16k --iodepth=256 --direct=1 "
            "--ioengine=io_uring --verify=crc32c --verify_fatal=1 --size=16m --cpus_allowed=0", timeout=300)
    client.run(" && ".join(OURS.unmap(number) for number in range(1 + PATHS)))


@pytest.mark.cpus(CPUS)
def test_memory_of_chunks(pair):
    """Their connections have send queues for their windows only, as well."""
    server, client = pair
    taken = taken_by_a_path(pair, server, "slots=N max_chunk_size=16384")
    assert taken < 28 * MIB, f"{taken / MIB:.2f} MiB"
    client.run(" && ".join(OURS.unmap(number) for number in range(1 + PATHS)))


def test_a_deep_queue(pair):
    """More slots than an immediate could name chunks."""
    server, client = pair
    device, = start(pair, "sess_queue_depth=4096", size_mb=16)
    before = free_bytes(server)
    client.run(OURS.map_device(device, session="one"))
    idle = before - free_bytes(server)
    print(f"{idle / MIB:.2f} MiB idle, with {connections(pair)} connections")
    assert idle < 40 * MIB
    fio.run(client, f"--name=deep --filename={OURS.disk} --rw=randwrite --bs=4k --iodepth=2048 --direct=1 "
            "--ioengine=io_uring --verify=crc32c --verify_fatal=1 --size=16m", timeout=300)
    client.run(OURS.unmap())


def test_requests_wait_for_buffers(pair):
    """The buffers of all sessions have room for few requests: the others wait, and none fails."""
    server, client = pair
    one, other = start(pair, "max_buffer_memory_mib=1", disks=2)
    client.run(f"{OURS.map_device(one, session='one')} && {OURS.map_device(other, session='two')}")
    load = client.start(f"fio --name=beside --filename={OTHER} --rw=randrw --bs=128k --iodepth=64 --direct=1 "
                        "--ioengine=io_uring --size=32m --verify=crc32c --verify_fatal=1")
    mixed(client, OURS.disk, 32)
    said = load.wait(600)
    assert "err= 0" in said, said
    assert blockdev.same_on_both(pair, one, OURS.disk, 64)
    assert "rror" not in client.run("dmesg | grep -i 'I/O error' || true")
    waits = "/sys/class/ibtrs-server/*/paths/*/stats/buffer_waits"
    assert max(map(int, server.run(f"cat {waits}").split())) > 0
    server.run(f"for file in {waits}; do echo 0 > $file; done")
    assert set(server.run(f"cat {waits}").split()) == {"0"}
    client.run(f"{OURS.unmap()} && {OURS.unmap(1)}")


def test_waiting_is_fair(pair):
    """A session with one request in flight gets its share beside one with hundreds."""
    server, client = pair
    one, other = start(pair, "max_buffer_memory_mib=1", disks=2)
    client.run(f"{OURS.map_device(one, session='one')} && {OURS.map_device(other, session='two')}")
    greedy = client.start(f"fio --name=greedy --filename={OURS.disk} --rw=randwrite --bs=128k --iodepth=256 --direct=1 "
                          "--ioengine=io_uring --time_based --runtime=20")
    client.run("sleep 3")
    modest = fio.run(client, f"--name=modest --filename={OTHER} --rw=randwrite --bs=128k --iodepth=1 "
                     "--direct=1 --ioengine=io_uring --time_based --runtime=10", timeout=120)
    greedy.wait(120)
    assert modest.write.iops > 5, modest
    client.run(f"{OURS.unmap()} && {OURS.unmap(1)}")


@pytest.mark.parametrize("chunk_kib", [788, 1024, 1028])
def test_the_largest_requests(pair, chunk_kib):
    """Their buffers consist of pieces, of which the last one may be odd."""
    device, = start(pair, f"max_chunk_size={chunk_kib * 1024} sess_queue_depth=64")
    client = pair.client
    client.run(OURS.map_device(device, session="one"))
    largest = (chunk_kib - 4) * 1024
    assert int(client.run("cat /sys/block/ibnbd0/queue/max_hw_sectors_kb")) == largest // 1024
    for size in (largest, 640 * 1024):
        fio.run(client, f"--name=large --filename={OURS.disk} --rw=randwrite --bs={size} --iodepth=8 --direct=1 "
                f"--ioengine=io_uring --verify=crc32c --verify_fatal=1 --size=48m", timeout=300)
    assert blockdev.same_on_both(pair, device, OURS.disk, 64)
    client.run(OURS.unmap())


def test_requests_larger_than_all_buffers(pair):
    """The buffers may take less than a request needs: the one that each session has in reserve serves
    one at a time."""
    device, = start(pair, "max_chunk_size=1052672 sess_queue_depth=64 max_buffer_memory_mib=1")
    client = pair.client
    client.run(OURS.map_device(device, session="one"))
    for kind in ("randwrite --verify=crc32c --verify_fatal=1", "randread"):
        fio.run(client, f"--name=large --filename={OURS.disk} --rw={kind} --bs=1m --iodepth=16 --direct=1 "
                "--ioengine=io_uring --size=32m", timeout=300)
    mixed(client, OURS.disk, 16)
    client.run(OURS.unmap())


def test_small_requests_leave_buffers_to_others(pair):
    """Slots keep the buffers of small requests, but not while another session waits for some."""
    server, client = pair
    one, other = start(pair, "max_buffer_memory_mib=4", disks=2)
    client.run(f"{OURS.map_device(one, session='one')} && {OURS.map_device(other, session='two')}")
    small = client.start(f"fio --name=small --filename={OURS.disk} --rw=randread --bs=4k --iodepth=508 --direct=1 "
                         "--ioengine=io_uring --time_based --runtime=25")
    client.run("sleep 5")
    large = fio.run(client, f"--name=large --filename={OTHER} --rw=randread --bs=128k --iodepth=32 --direct=1 "
                    "--ioengine=io_uring --time_based --runtime=10", timeout=120)
    said = small.wait(120)
    assert "err= 0" in said, said
    assert large.read.iops > 20, large
    client.run(f"{OURS.unmap()} && {OURS.unmap(1)}")


def test_a_hung_disk_keeps_no_memory_from_others(pair):
    """The requests to a disk that hangs keep their buffers, and others get some nevertheless; also when
    the path of these requests is lost."""
    server, client = pair
    one, other = start(pair, "max_buffer_memory_mib=4", disks=2)
    stuck = blockdev.StuckDisk(server, one, size_mb=64)
    client.run(f"{OURS.map_device(stuck.device, session='one')} && {OURS.map_device(other, session='two')}")
    client.run("cd /sys/class/ibtrs-client/one && echo 10 > reconnect_delay_ms && echo -1 > max_reconnect_attempts")
    with stuck.suspended():
        hung = client.start(f"fio --name=hung --filename={OURS.disk} --rw=randwrite --bs=128k --iodepth=128 --direct=1 "
                            "--ioengine=io_uring --size=32m --verify=crc32c --verify_fatal=1")
        client.run("sleep 5")
        mixed(client, OTHER, 16)
        server.run("echo 1 > $(ls -d /sys/class/ibtrs-server/one/paths/*/disconnect)")
        mixed(client, OTHER, 16)
    said = hung.wait(300)
    assert "err= 0" in said, said
    client.run(f"{OURS.unmap()} && {OURS.unmap(1)}")
    server.wait_for_log("one: session closed")
    stuck.remove()


def test_limits_hold_for_requests_that_waited(pair):
    """A host's limit counts for requests that had to wait for a buffer as for all others."""
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    device, = start(pair, "max_buffer_memory_mib=1", size_mb=16)
    exports.make_host(server, max_iops=100)
    exports.make(server, "disk1", device, ("demo",))
    client.run('echo "sessname=demo path=ip:10.0.1.1 device_path=disk1" > /sys/class/ibnbd-client/ctl/map_device')
    figures = fio.run(client, f"--name=rate --filename={OURS.disk} --direct=1 --ioengine=io_uring --rw=randrw --bs=128k "
                      "--iodepth=64 --size=8m --time_based --runtime=10", timeout=120)
    assert 5 < figures.read.iops + figures.write.iops <= 110, figures
    client.run(OURS.unmap())


# Owns numbers on one path by writes whose data comes late, and sends reads under the same numbers over another one. The
# server handles these reads at once, behind others that keep the connection waiting until the last of them was sent.
OVERTAKES = """
from testbed.hostile.auth import *

KEY, OWNED, BEFORE = {key!r}, 200, 250


def path(address, **options):
    me = KeyHolder(KEY, "demo", address=address, **options)
    me.extensions["ext_flags"] = wire.EXT_SAME_KEY | wire.EXT_INV_ANSWERS | wire.EXT_SLOTS
    me.reads = 4
    return me.set_up()


first = path("10.0.2.1")
second = path("10.0.1.1", session=first.session)
assert first.has_slots and first.depth > OWNED + BEFORE, first.accepted
device = second.open("disk1")
os.system("tc qdisc change dev eth1 root {netem} delay 4s")
for chunk in range(1, 1 + OWNED):
    first.post_fetch(first.io, chunk, first.io_header(device, WRITE, 0, 20480), 20480)
# They are there, and the server waits for their data.
time.sleep(4.5)
with second.io.pair.at_once():
    for chunk in (*range(1 + OWNED, 1 + OWNED + BEFORE), *range(1, 1 + OWNED)):
        second.post_io(device, READ, chunk=chunk)
    began = time.monotonic()
excess = 0
for answered in range(1, 1 + OWNED + BEFORE):
    assert second.answer_any(second.io, 60) == 0
    excess = max(excess, answered - 100 * (time.monotonic() - began))
print(excess)
second.leave()
os.system("tc qdisc change dev eth1 root {netem}")
first.leave(quietly=True)
"""


@pytest.mark.links(2)
@pytest.mark.quiet
def test_limits_hold_for_requests_that_waited_for_another_path(pair):
    """A client makes its requests wait for another path, as after the loss of one: they get no more than others."""
    server, client = pair
    keyring.load(server)
    device, = start(pair, "sess_queue_depth=512", size_mb=16)
    exports.make_host(server, max_iops=100)
    exports.make(server, "disk1", device, ("demo",))
    make_ready(pair)
    said = launch.program(client, OVERTAKES.format(key=keyring.secret("right"), netem=ALL_WELL)).wait(300)
    excess = float(said.split()[-1])
    print(f"{excess:.0f} more answers than the limit allows")
    # Those that the limit allows at once.
    assert excess < 10
    server.wait_for_log("demo: session closed")


def test_paths_are_lost_with_fetches_in_flight(pair):
    """Writes whose data is being fetched, or that wait for a buffer, are sent again over the next path."""
    server, client = pair
    device, = start(pair, "max_buffer_memory_mib=2")
    client.run(OURS.map_device(device, session="one"))
    client.run("cd /sys/class/ibtrs-client/one && echo 10 > reconnect_delay_ms && echo -1 > max_reconnect_attempts")
    load = client.start(f"fio --name=lost --filename={OURS.disk} --rw=randwrite --bsrange=4k-256k --iodepth=128 "
                        "--direct=1 --ioengine=io_uring --size=48m --verify=crc32c --verify_fatal=1 --loops=3")
    for loss in range(1, 7):
        server.run("echo 1 > $(ls -d /sys/class/ibtrs-server/one/paths/*/disconnect)", check=False)
        server.wait_until(f"[ $(dmesg | grep -c 'one: .*: path connected') -gt {loss} ]", 60)
    said = load.wait(900)
    assert "err= 0" in said, said
    assert blockdev.same_on_both(pair, device, OURS.disk, 64)
    client.run(OURS.unmap())
    server.wait_for_log("one: session closed")


@pytest.mark.parametrize(("parameters", "client_takes"), [
    ("slots=N", True), ("slots_over_rxe=N", True), ("slots_over_rxe=Y", False)])
def test_chunks_if_slots_are_off(pair, parameters, client_takes):
    """Over soft-RoCE, both sides must want slots; data is right either way."""
    device, = start(pair, f"{parameters} sess_queue_depth=512", client_takes=client_takes)
    server, client = pair
    before = free_bytes(server)
    client.run(OURS.map_device(device, session="one"))
    # Slots would take 4 MiB.
    assert before - free_bytes(server) > 60 * MIB
    mixed(client, OURS.disk, 16)
    assert blockdev.same_on_both(pair, device, OURS.disk, 64)
    client.run(OURS.unmap())


def test_packets_are_lost(pair):
    """Soft-RoCE's RDMA reads would go wrong, and warn, so it has chunks unless it is told otherwise."""
    server, client = pair
    device = server.null_blk(size_mb=64)
    make_ready(pair)
    blockdev.load(pair, OURS)
    client.run(OURS.map_device(device, session="one"))
    job = "--rw=randwrite --iodepth=8 --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 --verify_backlog=8 " \
        "--time_based --runtime=20"
    with losing(client, 1, 2), losing(server, 1, 2):
        fio.run(client, f"--name=large --filename={OURS.disk} --bs=64k --size=32m {job} "
                f"--name=small --filename={OURS.disk} --bs=4k --offset=32m --size=32m {job}", timeout=300)
    assert blockdev.same_on_both(pair, device, OURS.disk, 64)
    client.run(OURS.unmap())


SESSIONS = 64


@pytest.mark.thorough
@pytest.mark.links(2)
@pytest.mark.cpus(CPUS)
@pytest.mark.memory((2048, 3072))
def test_many_sessions_in_little_memory(pair):
    """64 sessions with two paths of nine connections each, on a server of 2 GiB: all connect, and all data
    is right."""
    server, client = pair
    devices = start(pair, "max_chunk_memory_mib=1536", disks=SESSIONS, size_mb=2)
    before = free_bytes(server)
    for number, device in enumerate(devices):
        line = OURS.map_device(device, session=f"s{number}").replace("ip:10.0.1.1", "ip:10.0.1.1 path=ip:10.0.2.1")
        client.run(line, timeout=120)
    client.wait_until(f"[ $(cat /sys/class/ibtrs-client/s*/paths/*/state | grep -c '^connected') = {2 * SESSIONS} ]", 300)
    assert int(client.run("cat /sys/block/ibnbd0/ibnbd/nr_queues")) == CPUS
    print(f"{(before - free_bytes(server)) / MIB / 2 / SESSIONS:.2f} MiB for each path")
    jobs = " ".join(f"--name=d{number} --filename=/dev/ibnbd{number}" for number in range(SESSIONS))
    fio.run(client, "--name=global --rw=randrw --bsrange=512-256k --iodepth=32 --size=2m --direct=1 --ioengine=io_uring "
            f"--verify=crc32c --verify_fatal=1 {jobs}", timeout=1200)
    for number, device in enumerate(devices):
        assert blockdev.same_on_both(pair, device, f"/dev/ibnbd{number}", 2)
    log = server.run("dmesg")
    assert "ENOMEM" not in log and "oom" not in log.lower(), log
    client.run(" && ".join(OURS.unmap(number) for number in range(SESSIONS)), timeout=300)
