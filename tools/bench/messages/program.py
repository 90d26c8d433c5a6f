# SPDX-License-Identifier: GPL-2.0
"""Builds harness/, and has it in guests."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from testbed import paths
from testbed.guest import Guest

SOURCE = Path(__file__).parent / "harness"
HEADER = paths.TOP / "ibmsg"
PATH = "/tmp/messages"


def build() -> Path:
    """Returns the program, built once for each state of its sources."""
    sources = sorted(SOURCE.glob("*.c"))
    content = b"".join(file.read_bytes() for file in [*sources, *SOURCE.glob("*.h"), HEADER / "ibmsg.h"])
    target = paths.cache() / "messages" / hashlib.sha256(content).hexdigest()[:12] / "messages"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Others may do the same now.
        new = target.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", HEADER, "-o", new, *sources,
                        "-luring", "-lrdmacm", "-libverbs", "-lzmq", "-lnng"], check=True)
        new.rename(target)
    return target


def push(guest: Guest) -> None:
    shutil.copy(build(), guest.share / "messages")
    # Not from the host's files: starting it would take longer.
    guest.run(f"cp /mnt/share/messages {PATH}")
