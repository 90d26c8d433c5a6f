# SPDX-License-Identifier: GPL-2.0
"""I/O that runs during a scenario, and its longest pause."""

from . import fio
from .guest import Guest
from .lab import wait_for
from .stack import Stack

# Written, and read back soon after that, for as long as the scenario goes on.
FIO = ("fio --name=load --filename={disk} --rw=randwrite --bsrange=4k-64k --size={size_mb}m "
       "--iodepth={depth} --direct=1 --ioengine=io_uring --time_based --runtime=3600 --verify=crc32c "
       "--verify_fatal=1 --verify_backlog=64 --verify_backlog_batch=64 "
       + fio.IN_BURSTS)
# For a shell that waits without starting a program, by `read -t SECONDS -u 8`: nothing comes
# from this pipe.
OPEN_PAUSE = "rm -f /tmp/never && mkfifo /tmp/never && exec 8<> /tmp/never"
# How many requests have ended, ten times a second.
WATCH = (OPEN_PAUSE + " && while :; do read up rest < /proc/uptime; read r a b c w rest < /sys/block/{name}/stat; "
         "echo $up $((r + w)); read -t 0.1 -u 8; done > /tmp/progress")


class Load:
    """fio on the first disk, and what it has got done."""

    def __init__(self, client: Guest, stack: Stack, size_mb: int = 24, depth: int = 16):
        self.client, self.name = client, stack.disk.removeprefix("/dev/")
        self.fio = client.start(FIO.format(disk=stack.disk, size_mb=size_mb, depth=depth))
        self.watch = client.start(WATCH.format(name=self.name))
        self.goes_on()

    def done(self) -> int:
        """Requests that have ended."""
        words = self.client.run(f"cat /sys/block/{self.name}/stat").split()
        return int(words[0]) + int(words[4])

    def goes_on(self, timeout: float = 60, more: int = 100) -> None:
        """I/O is done, and nothing has failed."""
        before = self.done()
        wait_for(lambda: self.done() > before + more, timeout, "I/O goes on")
        assert self.fio.running, f"fio has ended: {self.fio.text}"

    def progress(self) -> list[tuple[float, int]]:
        """Times of the guest's clock, and how many requests had ended then."""
        lines = [line.split() for line in self.client.run("cat /tmp/progress").splitlines()]
        # The last one may be half written.
        return [(float(line[0]), int(line[1])) for line in lines if len(line) == 2]

    def gap(self, since: float) -> float:
        """The longest time without any I/O from then on, by the client's uptime()."""
        return longest_gap(self.progress(), since)

    def end(self) -> None:
        """Ends fio as it ends by itself, which reads the rest back; no request
        is left behind."""
        fio.end(self.client, self.fio)
        self.watch.kill()
        self.watch.wait(20, check=False)
        assert self.client.run(f"cat /sys/block/{self.name}/inflight").split() == ["0", "0"]


def longest_gap(progress: list[tuple[float, int]], since: float, until: float = float("inf")) -> float:
    """The longest time for which the count did not change, of those that began
    from `since` to `until`."""
    longest, start, last = 0.0, since, None
    for up, done in progress:
        if up < since:
            continue
        longest = max(longest, up - start)
        if done != last:
            start, last = up, done
        if start > until:
            break
    return longest
