# SPDX-License-Identifier: GPL-2.0
"""Selects the scenarios that `make test` and `.ci/run` leave out, so that the latter takes half an hour on two
processors.

The scenarios take turns: the number of the commit selects one part of them, and each one runs about every
36th commit.  Those that are listed here always run: a short way through everything that a user does.
`make test-all` runs all."""

from zlib import crc32

PARTS = range(1, 37)

# By file: all of it, or these; a name without its parameters stands for all of them.
ALWAYS = {
    # Every byte, over every operation.
    "test_data": None,
    # Paths and servers that come and go, and how long that takes.
    "test_failover": ("test_paths_are_added_and_removed", "test_the_server_is_killed_and_comes_back"),
    "test_failover_time": ("test_a_silent_loss_at_default_settings",),
    # The peers that users have, and those that nobody wants.
    "test_interop": ("test_each_with_each",),
    "test_hostile_client": ("test_attacks", "test_attacks_on_memory"),
    "test_hostile_server": ("test_lies",),
    # From a token to a disk.
    "test_join": ("test_a_token_leads_to_a_disk_over_all_paths",),
    # Messages and memory of one machine, and of two.
    "test_messages": ("test_what_programs_are_promised[begin-]", "test_what_programs_are_promised[flow-lossy]",
                      "test_what_programs_are_promised[calls-lossy]", "test_what_programs_are_promised[killed-]",
                      "test_order_and_exactly_once_although_the_link_is_lost"),
    "test_message_paths": ("test_no_message_is_lost_or_doubled_when_paths_are", "test_programs_of_two_machines"),
    "test_message_memory": ("test_get_and_put_by_io_uring", "test_what_is_put_stays_when_paths_are_lost"),
    "test_message_publish": ("test_subscribers_have_what_is_published[begin-]",),
}


def always_runs(file: str, name: str) -> bool:
    """Whether a scenario, by the name of its file without `.py` and its own, runs in each part."""
    names = ALWAYS.get(file, ())
    return names is None or name in names or name.partition("[")[0] in names


def part_of(file: str, name: str) -> int:
    """The part that has a scenario.  The name alone decides, so that it stays where it is when others come."""
    return PARTS[crc32(f"{file}::{name}".encode()) % len(PARTS)]


def runs(file: str, name: str, part: int | None) -> bool:
    """Whether a scenario runs in this part, or with all of them (None)."""
    return part is None or always_runs(file, name) or part_of(file, name) == part
