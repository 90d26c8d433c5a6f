# SPDX-License-Identifier: GPL-2.0
"""A client that breaks the protocol, against the kernel's server: its messages are answered or end
its own path, and no other client notices."""

import pytest

from testbed import exports, keyring
from testbed.hostile import launch, report
from testbed.hostile.beside import PART, Beside, at_least, ends_well, seconds, seed, table
from testbed.load import Load
from testbed.message_programs import push, start
from testbed.stack import STACKS

# The hostile client writes with immediates, which soft-iWARP does not have.
pytestmark = pytest.mark.rdma("rxe")
OURS = STACKS["ibtrs"]
# As in testbed.hostile.attacks, which only guests can import.
DISK, SLOW, OTHER, COMMON, SLOW_NS = "hostile", "slow", "other", "common", 500_000_000
ELSEWHERE = "10.0.1.99"


def export(server, *others: str) -> None:
    """Loads a server with the disk that attacks are about, and others."""
    for name in (DISK, *others):
        server.null_blk(name, size_mb=64)
    # Few chunks, as a session is set up again and again.
    server.run(f"modprobe ibmsg && modprobe {OURS.transport('server')} slots_over_rxe=Y sess_queue_depth=16 && {OURS.load_server()}")


def programs(server):
    """Programs for channels: one that writes what it reads, and one that reads nothing; the one that is returned publishes
    memory, and gets and puts."""
    push(server)
    server.start("exec python3 /tmp/messages.py echo_all echo deaf 2>&1")
    prey = start(server, "prey", "prey", program="message_memory")
    server.wait_until("[ $(ls -l /proc/[0-9]*/fd 2> /dev/null | grep -c ibmsg-portal) -ge 3 ]", 60)
    return prey


def is_unharmed(prey) -> None:
    assert prey.running and "Error" not in prey.text, prey.text


def slow_disk(server) -> None:
    """A disk whose requests take a while."""
    server.null_blk(SLOW, size_mb=64, slow_ns=SLOW_NS)


def run_attacks(client, arguments: str, cases: int) -> None:
    """Runs the table, which must have more cases than this number; none may fail."""
    client.run(f"ip addr add {ELSEWHERE}/24 dev eth0")
    said = launch.start(client, "attack", arguments).wait(3600, check=False)
    print(said)
    assert not report.failures(said)
    assert len(report.parse(said)) > at_least(cases), said
    client.run(f"ip addr del {ELSEWHERE}/24 dev eth0")


def nothing_is_left(server) -> None:
    server.wait_until("! rdma resource show qp | grep -q 'type RC'")
    server.run("pkill -f '[e]cho_all' || true; pkill -f '[m]essage_memory' || true")
    server.run(OURS.unload("server").replace("ibtrs_core", "ibmsg ibtrs_core"))


@pytest.mark.fast
@pytest.mark.long
def test_attacks(pair):
    server, client = pair
    export(server, OTHER, COMMON)
    slow_disk(server)
    prey = programs(server)
    run_attacks(client, table(), 190)
    is_unharmed(prey)
    nothing_is_left(server)


@pytest.mark.fast
@pytest.mark.long
def test_attacks_on_memory(pair):
    """All of those on the memory of programs."""
    server, client = pair
    export(server)
    prey = programs(server)
    run_attacks(client, f"--all --only 'on memory' --part {PART}", 90)
    is_unharmed(prey)
    nothing_is_left(server)


@pytest.mark.fast
@pytest.mark.quiet
def test_fuzz(pair):
    """A client that changes valid requests by chance; an honest one beside it keeps half
    of its speed."""
    server, client = pair
    export(server, OTHER)
    client.run(OURS.load_client())
    client.run(OURS.map_device(f"/dev/{OTHER}"))
    load = Load(client, OURS)
    fuzz = launch.ready(launch.start(client, "fuzz", f"{seed()} {seconds()} {DISK}"))
    ends_well(load, fuzz, Beside(client, "testbed.hostile.fuzz"))
    client.run(OURS.unmap())
    nothing_is_left(server)


KEY = f"--key {keyring.secret('right').hex()}"
# All that attacks are called, and sessions of the fuzzer.
NAMES = ("raw", "shared", "honest", "checksums", "look", "rewriter", "second", "one", "two", "deaf", "mute", "inval", "slow",
         "offered", "fetched", "capsules", "messages")
FUZZ_NAMES = tuple(f"fuzz{number}" for number in range(24))


def grant_all(server, names: tuple[str, ...], *devices: str) -> None:
    """Has hosts that may open the devices, and nobody else."""
    for name in names:
        keyring.load(server, session=name)
        exports.make_host(server, name)
    for device in devices:
        exports.make(server, device, f"/dev/{device}", allow_any_host=1)


@pytest.mark.thorough
@pytest.mark.fast
@pytest.mark.long
def test_attacks_of_a_host(pair):
    """The table once more, of one who has the keys of hosts."""
    server, client = pair
    export(server, OTHER, COMMON)
    slow_disk(server)
    prey = programs(server)
    grant_all(server, NAMES, DISK, OTHER, COMMON, SLOW)
    run_attacks(client, f"{KEY} {table()}", 100)
    is_unharmed(prey)
    assert "authenticated with key default" in server.run("dmesg")
    server.run(exports.CLEAR)
    nothing_is_left(server)


@pytest.mark.thorough
@pytest.mark.fast
@pytest.mark.quiet
def test_fuzz_of_a_host(pair):
    """The fuzzer once more, which proves keys by messages that may be changed."""
    server, client = pair
    export(server, OTHER)
    grant_all(server, ("demo", *FUZZ_NAMES), DISK, OTHER)
    keyring.load(client)
    client.run(OURS.load_client())
    client.run(OURS.map_device(OTHER))
    load = Load(client, OURS)
    fuzz = launch.ready(launch.start(client, "fuzz", f"{seed()} {seconds()} {DISK} {KEY}"))
    ends_well(load, fuzz, Beside(client, "testbed.hostile.fuzz"))
    client.run(OURS.unmap())
    server.run(exports.CLEAR)
    nothing_is_left(server)
