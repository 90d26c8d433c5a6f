# SPDX-License-Identifier: GPL-2.0
"""The scenarios that cannot pass on Debian's own kernel (--kernel stock), each with its reason.  All
others must pass."""

from fnmatch import fnmatchcase

NO_RNBD = "Debian's kernel has no RTRS and RNBD"
NO_SIW = "Debian's kernel has no soft-iWARP"
NO_FAULTS = "Debian's kernel has no fault injection"
COMPACTION = "Debian's kernel compacts memory, and has large pages"

# A disk that takes eight seconds for each read, and so minutes until it is there.
SLOW_DISK = "Debian's kernel looks for thirteen kinds of partition tables"

# File, function and parameters, as patterns of the shell.
REASONS = {
    "test_access.py::test_a_flood_of_messages_has_one_worker": SLOW_DISK,
    "test_access.py::test_mainline_knows_no_exclusive_use": NO_RNBD,
    "test_auth.py::test_mainlines_*": NO_RNBD,
    "test_card.py::test_mainlines_disk": NO_RNBD,
    "test_card.py::test_mainlines_server_on_a_small_card*": NO_RNBD,
    "test_card.py::test_mainlines_server_refuses_bounce_buffers": NO_RNBD,
    "test_checksums.py::test_a_server_without_checksums_is_refused": NO_RNBD,
    "test_checksums.py::test_another_path_is_tried": NO_FAULTS,
    "test_checksums.py::test_damage*": NO_FAULTS,
    "test_checksums.py::test_other_operations_are_checked": NO_FAULTS,
    "test_checksums.py::test_without_checksums_damage_stays": NO_FAULTS,
    "test_discovery.py::test_servers_without_lists": NO_RNBD,
    "test_encryption.py::*siw*": NO_SIW,
    "test_encryption.py::test_wireguard": NO_SIW,
    "test_exports.py::test_mainlines_client": NO_RNBD,
    "test_exports.py::test_taking_an_export_away_needs_no_memory": NO_FAULTS,
    "test_failover_time.py::test_mainlines_server*": NO_RNBD,
    "test_faults.py::*": NO_FAULTS,
    "test_join.py::test_over_iwarp_the_addresses_are_those_of_the_interfaces": NO_SIW,
    "test_message_faults.py::*": NO_FAULTS,
    "test_message_memory_ends.py::test_each_call_fails_once": NO_FAULTS,
    "test_few_queues.py::test_mainlines_server": NO_RNBD,
    "test_interop.py::*mainline*": NO_RNBD,
    "test_iwarp.py::*": NO_SIW,
    "test_mainline_selfcheck.py::test_map_and_verify": NO_RNBD,
    "test_mainline_selfcheck.py::test_a_guest_is_killed_and_comes_back*": NO_RNBD,
    "test_mainline_selfcheck.py::test_leaks_are_seen": "Debian's kernel has no kmemleak",
    "test_mapping_space.py::*": NO_FAULTS,
    "test_message_paths.py::test_a_client_of_mainline": NO_RNBD,
    "test_message_paths.py::test_a_server_of_mainline": NO_RNBD,
    "test_message_paths.py::test_over_iwarp": NO_SIW,
    "test_memory.py::test_a_path_needs_no_contiguous_memory*": COMPACTION,
    "test_operations.py::test_operations_with_mainline*": NO_RNBD,
    "test_overtaking.py::*mainline*": NO_RNBD,
    "test_polled.py::test_mainlines_server_is_polled": NO_RNBD,
    "test_server_limits.py::test_a_client_vanishes_while_it_connects": NO_RNBD,
    "test_server_paths.py::*": NO_RNBD,
    "test_tool.py::test_a_server_that_does_not_tell_its_share": NO_RNBD,
    "test_tool.py::test_the_kernels_own_disks_are_shown": NO_RNBD,
    "test_window.py::test_over_iwarp": NO_SIW,
    "test_window.py::test_towards_the_kernels_own_server": NO_RNBD,
}


def pattern_of(file: str, name: str) -> str | None:
    """The entry of the list that a scenario is on."""
    return next((pattern for pattern in REASONS if fnmatchcase(f"{file}::{name}", pattern)), None)


def reason(file: str, name: str) -> str | None:
    """Why a scenario is not for the stock kernel, if it is not."""
    pattern = pattern_of(file, name)
    return REASONS[pattern] if pattern else None
