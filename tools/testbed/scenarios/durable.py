# SPDX-License-Identifier: GPL-2.0
"""Writes numbered blocks to a disk or a file, from several threads at once, some with FUA, sometimes
with flushes as well: `durable.py PATH BLOCKS [FIFO]`, in a guest.

Prints which blocks will survive a power cut from then on, and records in each block what was
known when it was written.  With FIFO it waits, after each period without flushes, until somebody
has written to that file.  It ends at the first error, because a program must not go on with a
disk that it cannot trust.

On the host, scenarios use the functions that read such blocks."""

import mmap
import os
import struct
import sys
import threading

THREADS = 4
SIZE = 4096
# Every 8th block is written with FUA, every 16th is followed by a flush.  Flushes stop for a
# while from time to time, so that blocks with FUA are not made durable by a flush.
EACH_FUA, EACH_FLUSH, WHILE = 8, 16, 64
MAGIC = b"numbered"
# Its thread and number; of each thread how many blocks were flushed, and which was
# the last one with FUA (its number + 1).
BLOCK = struct.Struct(f"<8sQQ{THREADS}Q{THREADS}Q")


class Known:
    """The blocks that will survive: of each thread, how many of its blocks from the first
    on, and the last one with FUA."""

    def __init__(self, flushed=(0,) * THREADS, single=(0,) * THREADS):
        self.flushed, self.single = list(flushed), list(single)

    def missing(self, there: list[set[int]]) -> list[tuple[int, int]]:
        """The numbers that are not among those of each thread."""
        wanted = ((thread, number) for thread in range(THREADS)
                  for number in (*range(self.flushed[thread]), self.single[thread] - 1) if number >= 0)
        return [(thread, number) for thread, number in wanted if number not in there[thread]]


def known(text: str) -> Known:
    """The blocks that will survive, by the writer's last line."""
    # The last line is unfinished.
    lines = [line for line in text.split("\n")[:-1] if line.startswith("known ")]
    numbers = list(map(int, lines[-1].split()[1:])) if lines else [0] * 2 * THREADS
    return Known(numbers[:THREADS], numbers[THREADS:])


def blocks(data: bytes):
    """Thread, number and what was known, of each numbered block in this."""
    for at in range(0, len(data) - SIZE + 1, SIZE):
        magic, thread, number, *known = BLOCK.unpack_from(data, at)
        if magic == MAGIC:
            yield thread, number, Known(known[:THREADS], known[THREADS:])


class Writer:
    def __init__(self, path: str, count: int, fifo: str | None = None):
        flags = os.O_RDWR | os.O_DIRECT
        self.plain, self.fua = os.open(path, flags), os.open(path, flags | os.O_DSYNC)
        self.count = count
        self.done = [0] * THREADS
        self.known = Known()
        # One at a time: what a flush is for is then in the log when any later
        # one has ended.
        self.flushing, self.printing = threading.Lock(), threading.Lock()
        self.fifo, self.together = fifo, threading.Barrier(THREADS, action=self.pause)

    def flush(self) -> None:
        with self.flushing:
            done = list(self.done)
            os.fsync(self.plain)
            self.known.flushed = done

    def tell(self) -> None:
        with self.printing:
            print("known", *self.known.flushed, *self.known.single, flush=True)

    def pause(self) -> None:
        if self.fifo:
            print("pause", flush=True)
            open(self.fifo).read()

    def work(self, thread: int) -> None:
        try:
            self.write(thread)
        except OSError as error:
            with self.printing:
                print(error.strerror, flush=True)
            # The others may wait for this one.
            os._exit(1)

    def write(self, thread: int) -> None:
        block = mmap.mmap(-1, SIZE)
        for number in range(self.count):
            BLOCK.pack_into(block, 0, MAGIC, thread, number, *self.known.flushed, *self.known.single)
            durable = number % EACH_FUA == EACH_FUA // 2
            os.pwrite(self.fua if durable else self.plain, block, (thread * self.count + number) * SIZE)
            self.done[thread] = number + 1
            if durable:
                self.known.single[thread] = number + 1
            # At different times.
            if number // WHILE % 2 == 0 and number % EACH_FLUSH == thread * EACH_FLUSH // THREADS:
                self.flush()
            self.tell()
            if number % (2 * WHILE) == 2 * WHILE - 1:
                self.together.wait()


def main() -> None:
    writer = Writer(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
    threads = [threading.Thread(target=writer.work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush()
    writer.tell()


if __name__ == "__main__":
    main()
