# SPDX-License-Identifier: GPL-2.0
"""Writes blocks of a disk and compares what it reads with what it last wrote, from several
processes, while the disk comes, goes and fails.

It runs in guests, so it imports nothing of the testbed.  Each process has blocks of its own and
remembers, even while there is no disk, which content each block must hold: that of the last
acknowledged write or, after a failed write, either of the two.  Once a later write of the block
was acknowledged, the content of the failed one must not appear any more."""

import errno
import json
import mmap
import os
import random
import signal
import struct
import sys
import time

BLOCK = 4096
# The program ends when this is there.
END = "/tmp/checker-ends"
# Errors that a disk answers with while it is taken away, or has no server.
WHILE_IT_GOES = {errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.ETIMEDOUT, errno.ENOSPC,
                 errno.ENOLINK, errno.EAGAIN, errno.EBUSY, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOMEM,
                 errno.EREMOTEIO, errno.ENOMEDIUM}
# What `Shared` counts, each process for itself.
COUNTS = ("reads", "writes", "refused", "wrong", "unexpected", "checked")


class Shared:
    """Memory that the processes and the one that started them have in common."""

    STATES = (RACE, CALM, STOP) = (0, 1, 2)

    def __init__(self, processes: int):
        self.memory = mmap.mmap(-1, 8 * (1 + len(COUNTS) * processes))
        self.processes = processes

    def _at(self, index: int) -> int:
        return struct.unpack_from("Q", self.memory, 8 * index)[0]

    def _set(self, index: int, value: int) -> None:
        struct.pack_into("Q", self.memory, 8 * index, value)

    @property
    def state(self) -> int:
        return self._at(0) & 3

    @property
    def turn(self) -> int:
        """Counts the changes of the state."""
        return self._at(0) >> 2

    def enter(self, state: int) -> None:
        self._set(0, (self.turn + 1) << 2 | state)

    def get(self, process: int, name: str) -> int:
        return self._at(1 + process * len(COUNTS) + COUNTS.index(name))

    def put(self, process: int, name: str, value: int) -> None:
        self._set(1 + process * len(COUNTS) + COUNTS.index(name), value)

    def count(self, process: int, name: str) -> None:
        self.put(process, name, self.get(process, name) + 1)

    def total(self, name: str) -> int:
        return sum(self.get(process, name) for process in range(self.processes))


class Checker:
    """The work of one process: its blocks are `number`, `number` + `processes`, and so on."""

    def __init__(self, disk: str, shared: Shared, number: int, blocks: int, seed: int):
        self.disk, self.shared, self.number = disk, shared, number
        self.mine = range(number, blocks, shared.processes)
        self.dice = random.Random(seed * 1000 + number)
        self.buffer = mmap.mmap(-1, BLOCK)
        self.serial = 0
        # For each block the serials that it may hold; none: not known.
        self.may_hold: dict[int, set[int]] = {}

    def content(self, block: int, serial: int) -> bytes:
        return struct.pack("QQQQ", 0x69627472735f6368, self.number, block, serial) * (BLOCK // 32)

    def write(self, disk: int, block: int) -> None:
        self.serial += 1
        serial = self.serial
        self.buffer[:] = self.content(block, serial)
        before = self.may_hold.get(block, set())
        # Also if the call does not return as it should. What is not known does not get known by
        # writes that fail.
        self.may_hold[block] = before | {serial} if before else set()
        done = os.pwritev(disk, [self.buffer], block * BLOCK)
        if done != BLOCK:
            raise OSError(errno.EIO, "short write")
        self.may_hold[block] = {serial}
        self.shared.count(self.number, "writes")

    def read(self, disk: int, block: int) -> None:
        self.buffer[:] = bytes(BLOCK)
        done = os.preadv(disk, [self.buffer], block * BLOCK)
        if done != BLOCK:
            raise OSError(errno.EIO, "short read")
        self.shared.count(self.number, "reads")
        known = self.may_hold.get(block)
        if not known:
            return
        found = bytes(self.buffer)
        right = [serial for serial in known if found == self.content(block, serial)]
        if right:
            # One content was read: the other will not come any more.
            self.may_hold[block] = set(right)
            return
        self.shared.count(self.number, "wrong")
        print(f"WRONG: {self.disk} block {block} holds {struct.unpack_from('QQQQ', found)}, "
              f"{'all' if len(set(struct.iter_unpack('QQQQ', found))) == 1 else 'not all'} of it; "
              f"it must hold one of {sorted(known)} of process {self.number}", flush=True)
        self.may_hold.pop(block)

    def session(self, calm: bool) -> None:
        """Opens the disk once, and does a few requests, or compares everything."""
        turn = self.shared.turn
        disk = os.open(self.disk, os.O_RDWR | os.O_DIRECT)
        try:
            if calm:
                for block in list(self.may_hold):
                    self.read(disk, block)
                self.shared.put(self.number, "checked", turn)
            for _ in range(self.dice.randint(1, 30)):
                if self.shared.turn != turn:
                    break
                block = self.dice.choice(self.mine)
                (self.write if self.dice.random() < 0.6 else self.read)(disk, block)
        finally:
            os.close(disk)

    def run(self) -> None:
        while (state := self.shared.state) != Shared.STOP:
            calm = state == Shared.CALM
            turn = self.shared.turn
            # There are times when nobody has it open.
            time.sleep(self.dice.choice((0, self.dice.random() / 10)))
            try:
                # Blocks of a file that a program created in place of a disk do not count.
                if not os.path.exists("/sys/block/" + os.path.basename(self.disk)):
                    raise OSError(errno.ENOENT, "no disk")
                self.session(calm)
            except OSError as error:
                self.shared.count(self.number, "refused")
                if calm and turn == self.shared.turn or error.errno not in WHILE_IT_GOES:
                    self.shared.count(self.number, "unexpected")
                    print(f"UNEXPECTED: {self.disk}: {error} {'when all was calm' if calm else ''}", flush=True)
                time.sleep(0.01)


class Checkers:
    """The processes for one disk."""

    def __init__(self, disk: str, processes: int, blocks: int, seed: int):
        self.disk, self.shared = disk, Shared(processes)
        self.children = []
        for number in range(processes):
            child = os.fork()
            if not child:
                status = 1
                try:
                    Checker(disk, self.shared, number, blocks, seed).run()
                    status = 0
                finally:
                    os._exit(status)
            self.children.append(child)

    def race(self) -> None:
        """From now on I/O may fail."""
        self.shared.enter(Shared.RACE)

    def calm(self, timeout: float) -> bool:
        """From now on it may not; whether each process has compared all its blocks in that time."""
        self.shared.enter(Shared.CALM)
        turn, end = self.shared.turn, time.monotonic() + timeout
        while any(self.shared.get(number, "checked") != turn for number in range(self.shared.processes)):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def stop(self) -> None:
        self.shared.enter(Shared.STOP)
        for child in self.children:
            os.waitpid(child, 0)

    def end(self, well: bool) -> None:
        """Waits for the processes, or kills them, whose I/O may hang."""
        if well:
            self.stop()
            return
        for child in self.children:
            os.kill(child, signal.SIGKILL)

    @property
    def faults(self) -> int:
        return self.shared.total("wrong") + self.shared.total("unexpected")

    def figures(self) -> dict[str, int]:
        return {name: self.shared.total(name) for name in COUNTS if name != "checked"}


def _main() -> int:
    """`checker.py DISK PROCESSES BLOCKS SEED`: until there is a file END, prints its figures
    every few seconds; ends with 0 if nothing was wrong."""
    disk, processes, blocks, seed = sys.argv[1], *map(int, sys.argv[2:5])
    checkers = Checkers(disk, processes, blocks, seed)
    while not os.path.exists(END) and not checkers.faults:
        time.sleep(2)
        print(json.dumps(checkers.figures()), flush=True)
    checkers.stop()
    print(json.dumps(checkers.figures()), flush=True)
    return 1 if checkers.faults else 0


if __name__ == "__main__":
    sys.exit(_main())
