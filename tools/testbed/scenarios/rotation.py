# SPDX-License-Identifier: GPL-2.0
"""Selects the scenarios that `make test` and `.ci/run` leave out, so that the latter takes half an hour on two
processors.

The files below take turns: the number of the commit selects one part of them, so the scenarios of
each file run about every twelfth commit, those of the packages about every sixth.  Scenarios of all other
files, and new ones, always run.  `make test-all` runs all."""

ROTATION = (
    # Authentication, whose cost the next part has, and subscribers.
    {"test_auth", "test_message_publish", "test_message_publish_paths"},
    # Short scenarios: .ci/run installs the packages beside them.
    {"test_auth_cost", "test_card", "test_iwarp", "test_message_programs", "test_message_remote"},
    # Ports, and the tools.
    {"test_message_operators", "test_ports", "test_qualify", "test_terminals", "test_tool", "test_tool_exports"},
    # Exports, and machines that share a server.
    {"test_access", "test_discovery", "test_export", "test_export_sysfs", "test_exports", "test_machines",
     "test_mapping_space", "test_resize"},
    # Limits.
    {"test_log_limits", "test_mainline_selfcheck", "test_message_memory_ends", "test_server_limits"},
    # Queues and capsules.
    {"test_capsules", "test_few_queues", "test_message_truth", "test_polled", "test_queues", "test_scale"},
    # Slots, and two cards.
    {"test_card_messages", "test_card_paths", "test_slots"},
    # Files and names.
    {"test_gid", "test_guide", "test_namespaces", "test_stacking", "test_sysfs"},
    # Failures of allocations, and lost memory. Short as well.
    {"test_encryption", "test_faults", "test_heartbeats", "test_message_faults", "test_reclaim"},
    # Disks, modules and links that come and go.
    {"test_life", "test_planned_stop", "test_races", "test_reopen", "test_unload"},
    # The way of the data.
    {"test_checksum_cost", "test_checksums", "test_durability", "test_modes", "test_operations"},
    # The way of a request, and what is written to sysfs.
    {"test_changes", "test_ghost_writes", "test_identity", "test_latency", "test_map_device_input", "test_overtaking",
     "test_request_timeouts"},
)
PARTS = range(1, len(ROTATION) + 1)


def runs(file: str, part: int | None) -> bool:
    """Whether the scenarios of a file, by its name without `.py`, run in this part, or with all of them
    (None)."""
    return part is None or all(file not in files or number == part
                               for number, files in zip(PARTS, ROTATION))
