# SPDX-License-Identifier: GPL-2.0
"""What `make test` leaves out: it is to take half an hour on two processors, and all scenarios take
longer.  Those of the files below run in every third commit or so, by the commit's number; those of all
other files, new ones among them, run in each.  `make test-all` runs all."""

THIRDS = (
    # Access.
    {"test_auth", "test_discovery", "test_encryption", "test_log_limits", "test_ports"},
    # Servers, and what comes and goes.
    {"test_exports", "test_life", "test_modes", "test_planned_stop", "test_reopen", "test_server_limits"},
    # The way of the data.
    {"test_changes", "test_checksums", "test_durability", "test_export", "test_heartbeats", "test_latency",
     "test_operations", "test_overtaking", "test_polled", "test_queues", "test_reclaim", "test_request_timeouts",
     "test_resize", "test_scale", "test_stacking"},
)


def runs(file: str, third: int | None) -> bool:
    """Whether the scenarios of a file, by its name without `.py`, run in this third (1 to 3), or with
    all of them (None)."""
    return third is None or all(file not in files or number == third
                                for number, files in enumerate(THIRDS, 1))
