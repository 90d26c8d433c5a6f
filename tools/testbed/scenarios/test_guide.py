# SPDX-License-Identifier: GPL-2.0
"""Runs the commands of the quick start and of the administrator's guide exactly as the pages show
them."""

import re
from contextlib import ExitStack, contextmanager

import pytest

from testbed.blockdev import DMSETUP
from testbed.guide import commands, writable
from testbed.paths import TOP
from testbed.tool import PROGRAM, Tool

pytestmark = [pytest.mark.fast, pytest.mark.links(2)]

# The command, where a login shell of root would find it.
FOLDER = "/tmp/guide/bin"


TOKEN = re.compile(r"ibtrs-token-1/\S+")


def means(shown: str, line: str) -> bool:
    """Whether a page shows a line, in which dots stand for what is another time different."""
    return re.fullmatch(re.escape(shown).replace(re.escape("..."), ".*"), line) is not None


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
        token = ""
        for step in commands((TOP / "Documentation" / page).read_text()):
            # Each time it is another one.
            command = TOKEN.sub(token, step.command)
            answer = guests[step.machine].run(f"export PATH={FOLDER}:$PATH; {command}", check=False)
            assert answer.ok, f"{page}: {command}: {answer}"
            said = [" ".join(line.split()) for line in str(answer).splitlines()]
            token = next((line for line in said if TOKEN.fullmatch(line)), token)
            missing = [line for line in step.output if not any(means(line, one) for one in said)]
            assert missing == [], f"{page}: {command}: {answer}"
