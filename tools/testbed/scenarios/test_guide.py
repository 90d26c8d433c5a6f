# SPDX-License-Identifier: GPL-2.0
"""Runs the commands of the quick start and of the administrator's guide exactly as the pages show
them."""

from contextlib import ExitStack, contextmanager

import pytest

from testbed.blockdev import DMSETUP
from testbed.guide import commands, writable
from testbed.paths import TOP
from testbed.tool import PROGRAM, Tool

pytestmark = [pytest.mark.fast, pytest.mark.links(2)]

# The command, where a login shell of root would find it.
FOLDER = "/tmp/guide/bin"


@contextmanager
def usable(guest):
    """The guest as a machine on which the command is installed."""
    Tool(guest)
    with writable(guest):
        guest.run(f"ln -s {PROGRAM} {FOLDER}/ibnbd")
        yield


@pytest.mark.parametrize("page", ["quick-start.md", "guide.md"])
def test_the_commands_of_a_page_do_what_it_says(pair, page):
    server, client = pair
    guests = {"server": server, "client": client}
    # The disk that both pages export, a logical volume as device-mapper makes it.
    server.run(f"rm -rf /dev/ibnbd-exports && mkdir -p /dev/vg && modprobe dm_mod && {DMSETUP} create -u LVM-data data "
               f"--table '0 {256 << 11} linear {server.null_blk()} 0' && ln -sfn /dev/dm-0 /dev/vg/data")
    with ExitStack() as stack:
        for guest in guests.values():
            stack.enter_context(usable(guest))
        for step in commands((TOP / "Documentation" / page).read_text()):
            answer = guests[step.machine].run(f"export PATH={FOLDER}:$PATH; {step.command}", check=False)
            assert answer.ok, f"{page}: {step.command}: {answer}"
            said = [" ".join(line.split()) for line in str(answer).splitlines()]
            assert [line for line in step.output if line not in said] == [], f"{page}: {step.command}: {answer}"
