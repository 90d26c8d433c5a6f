# SPDX-License-Identifier: GPL-2.0
"""The kernel's events for user space."""

from .channel import Job
from .guest import Guest
from .lab import wait_for

# udevadm wants more of a system than the guests are.
LISTENER = """
import socket
line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)
line.bind((0, 1))
print("listening")
while True:
    print(line.recv(8192).replace(bytes(1), b" ").decode())
"""


def listen(guest: Guest) -> Job:
    """Prints each event on a line of its own, until it is killed."""
    job = guest.start(f"exec python3 -uc '{LISTENER}'")
    wait_for(lambda: "listening" in job.text, 60, "someone listens for events")
    return job
