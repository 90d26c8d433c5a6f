# SPDX-License-Identifier: GPL-2.0
"""What sessions.py has its guest do; each command prints a line of JSON.

    write DEVICE BLOCKS         writes its own number to each block
    map DEVICE FIRST END        maps a disk for each of these sessions
    verify SESSIONS             reads the block of each session's number from its disk
    now                         seconds since 1970
    wait SESSIONS SINCE PATHS   waits until each session has as many paths"""

import json
import mmap
import os
import sys
import time
from pathlib import Path

MAP = Path("/sys/class/ibnbd-client/ctl/map_device")
CLIENT = Path("/sys/class/ibtrs-client")
BLOCK = 4096
LIMIT = 300


def content(number: int) -> bytes:
    return number.to_bytes(8, "little") * (BLOCK // 8)


def write(device: str, blocks: str) -> dict:
    with open(device, "wb") as file:
        for number in range(int(blocks)):
            file.write(content(number))
        file.flush()
        os.fsync(file.fileno())
    return {}


def map(device: str, first: str, end: str) -> dict:
    took = []
    for number in range(int(first), int(end)):
        line = f"sessname=s{number} path=ip:10.0.1.1 path=ip:10.0.2.1 device_path={device} access_mode=ro nr_queues=1"
        begin = time.monotonic_ns()
        MAP.write_text(line)
        took.append((time.monotonic_ns() - begin) / 1e6)
    return {"ms": took}


def verify(sessions: str) -> dict:
    buffer, right = mmap.mmap(-1, BLOCK), 0
    for number in range(int(sessions)):
        file = os.open(f"/dev/ibnbd{number}", os.O_RDONLY | os.O_DIRECT)
        os.preadv(file, [buffer], number * BLOCK)
        os.close(file)
        right += buffer[:] == content(number)
    return {"right": right}


def now() -> dict:
    return {"now": time.time()}


def connected(number: int) -> int:
    states = (CLIENT / f"s{number}/paths").glob("*/state")
    return sum(file.read_text().startswith("connected") for file in states)


def last_event(number: int, since: float) -> float:
    """When the last path of a session changed, in seconds after the given time."""
    for line in (CLIENT / f"s{number}/events").read_text().splitlines():
        at, path, *_ = line.split()
        if path.startswith("ip:"):
            return float(at) - since
    raise AssertionError(f"session s{number} has no event of a path")


def wait(sessions: str, since: str, paths: str) -> dict:
    """How long each session took until it had that number of paths."""
    deadline = time.monotonic() + LIMIT
    left = set(range(int(sessions)))
    while left:
        left -= {number for number in left if connected(number) == int(paths)}
        assert not left or time.monotonic() < deadline, f"{len(left)} sessions have not {paths} paths"
        time.sleep(0.1)
    return {"s": [last_event(number, float(since)) for number in range(int(sessions))]}


if __name__ == "__main__":
    command = {function.__name__: function for function in (write, map, verify, now, wait)}[sys.argv[1]]
    print(json.dumps(command(*sys.argv[2:])))
