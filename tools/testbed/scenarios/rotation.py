# SPDX-License-Identifier: GPL-2.0
"""Selects the scenarios that `make test` leaves out, so that it takes half an hour on two processors.

The files below take turns: the number of the commit selects one part of them, so the scenarios of
each file run about every fifth commit.  Scenarios of all other files, and new ones, always run.
`make test-all` runs all."""

ROTATION = (
    # Authentication, and what needs it.
    {"test_auth", "test_auth_cost", "test_iwarp", "test_ports"},
    # Exports, and machines that share a server.
    {"test_access", "test_discovery", "test_export", "test_export_sysfs", "test_exports", "test_machines",
     "test_mapping_space", "test_resize"},
    # Limits, files and names.
    {"test_encryption", "test_faults", "test_heartbeats", "test_log_limits", "test_mainline_selfcheck",
     "test_server_limits", "test_sysfs"},
    # Disks, modules and links that come and go.
    {"test_life", "test_map_device_input", "test_planned_stop", "test_races", "test_reopen", "test_unload"},
    # The way of the data.
    {"test_changes", "test_checksum_cost", "test_checksums", "test_durability", "test_identity", "test_latency",
     "test_modes", "test_operations", "test_overtaking", "test_polled", "test_queues", "test_reclaim",
     "test_request_timeouts", "test_scale", "test_stacking"},
)
PARTS = range(1, len(ROTATION) + 1)


def runs(file: str, part: int | None) -> bool:
    """Whether the scenarios of a file, by its name without `.py`, run in this part, or with all of them
    (None)."""
    return part is None or all(file not in files or number == part
                               for number, files in zip(PARTS, ROTATION))
