# SPDX-License-Identifier: GPL-2.0
"""Starts the hostile programs in a guest, which sees the checkout where the host has it."""

from .. import paths
from ..channel import Job
from ..guest import Guest, wait_for

READY = "modprobe -a ib_uverbs rdma_ucm"
PYTHON = f"PYTHONPATH={paths.TOP}/tools PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3"


def start(guest: Guest, module: str, arguments: str = "") -> Job:
    """Starts one of the package's programs."""
    return guest.start(f"{READY} && {PYTHON} -m testbed.hostile.{module} {arguments}")


def ready(job: Job, seconds: float = 120) -> Job:
    """Waits until a program says that it has begun."""
    wait_for(lambda: "ready" in job.text or not job.running, seconds, f"{job.command}: ready")
    assert job.running, job.text
    return job


def program(guest: Guest, text: str) -> Job:
    """Starts a program that has what a client is made of at hand."""
    guest.push("/tmp/program.py", "import os\nimport time\nfrom testbed.hostile.client import *\n" + text)
    return guest.start(f"{READY} && {PYTHON} /tmp/program.py")
