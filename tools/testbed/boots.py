# SPDX-License-Identifier: GPL-2.0
"""Counts the guests that were booted, and those that were booted again because they did not come
up, or because their emulator failed later on."""

import shutil
import sys
import threading
import time
from pathlib import Path

from . import paths

# How often a guest is booted at most until it is up.
TRIES = 3


class Count:
    """Counts for this process; guests are booted by several threads."""

    def __init__(self):
        self.booted = 0
        # A line for each boot that failed and was repeated.
        self.failed: list[str] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self.booted += 1

    def fail(self, guest, error: Exception) -> None:
        """Notes a boot that failed, and keeps its logs."""
        reason = getattr(error, "reason", str(error).partition("\n")[0])
        line = f"{guest.name} ({guest.spec.kernel.flavour}): {reason}; logs kept in {_keep(guest)}"
        with self._lock:
            self.failed.append(line)
        print(f"==> Booted again: {line}", file=sys.stderr, flush=True)


COUNT = Count()


def summary(booted: int, failed: int) -> str:
    """The line for the end of a run."""
    return f"{booted} guests booted, {failed} of them again as they did not come up, or their emulator failed"


def _keep(guest) -> Path:
    folder = paths.cache() / "artefacts" / f"{time.strftime('%Y%m%d-%H%M%S')}-boot-{guest.folder.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for log in guest.folder.glob("*.log"):
        shutil.copy(log, folder)
    return folder
