# SPDX-License-Identifier: GPL-2.0
"""A server that lies, against the kernel's client: it corrupts no memory, and cannot keep users from
removing its disk."""

import pytest

from testbed import blockdev
from testbed.hostile import launch, report
from testbed.hostile.beside import Beside, at_least, ends_well, seconds, seed, table
from testbed.lab import SERVER_ADDRESS
from testbed.load import Load
from testbed.stack import STACKS

# The hostile server writes with immediates, which soft-iWARP does not have.
pytestmark = pytest.mark.rdma("rxe")
OURS = STACKS["ibtrs"]


def serve(server) -> None:
    """Starts the hostile server."""
    launch.ready(launch.start(server, "serve_lies", SERVER_ADDRESS.format(link=1)))


@pytest.mark.fast
@pytest.mark.long
def test_lies(pair):
    server, client = pair
    # The table has lies about slots as well.
    client.run(f"modprobe {OURS.transport('client')} slots_over_rxe=Y && {OURS.load_client()}")
    serve(server)
    said = launch.start(client, "hear_lies", table()).wait(3600, check=False)
    print(said)
    assert not report.failures(said)
    assert len(report.parse(said)) > at_least(60), said
    client.run(OURS.unload("client"))


# What the fuzzer has found, by seed and session: an immediate of an unknown type in the place of an answer, after which
# a task that was killed while it mapped did not end.
FOUND = ((1698678525, 3),)


@pytest.mark.fast
@pytest.mark.parametrize("found, session", FOUND)
def test_fuzz_as_before(pair, found, session):
    server, client = pair
    client.run(f"modprobe {OURS.transport('client')} && {OURS.load_client()}")
    serve(server)
    said = launch.start(client, "fuzz_victim", f"{found} 0 --only {session}").wait(900, check=False)
    print(said)
    assert report.parse(said) and not report.failures(said), said


@pytest.mark.fast
@pytest.mark.quiet
def test_fuzz(pair):
    """A server that changes valid answers by chance; a disk of an honest server keeps half
    of its speed beside those of the hostile one."""
    server, client = pair
    blockdev.map_new(pair, OURS, size_mb=64)
    load = Load(client, OURS)
    serve(server)
    fuzz = launch.ready(launch.start(client, "fuzz_victim", f"{seed()} {seconds()}"))
    ends_well(load, fuzz, Beside(client, "testbed.hostile.fuzz_victim"))
