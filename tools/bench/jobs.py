# SPDX-License-Identifier: GPL-2.0
"""The fio loads of all measurements, and the selections of them."""

from dataclasses import dataclass

# Sizes and their shares as in the profile that IONOS published for its block storage.
IONOS = ("--rw=randrw --bssplit=512/20:1k/16:2k/9:4k/12:8k/19:16k/10:32k/8:64k/4 "
         "--random_distribution=zipf:1.2 --iodepth=129 --iodepth_batch=128")


@dataclass(frozen=True)
class Job:
    name: str
    # The arguments that make it what it is.
    load: str
    ios: int
    # At depth 1 the figure is the mean latency, otherwise the requests per second.
    unit: str = "IOPS"

    def arguments(self, disks: list[str], workers: int, scale: float, polled: bool = False) -> str:
        """The arguments of fio; the workers share the I/Os."""
        ios = max(int(self.ios * scale / workers), 20)
        return (f"--name=bench --filename={':'.join(disks)} {self.load} --number_ios={ios} "
                f"--numjobs={workers} --size=512m --direct=1 --ioengine=io_uring --randseed=1 "
                f"--norandommap{' --hipri=1' if polled else ''}")

    @property
    def lower_is_better(self) -> bool:
        return self.unit == "us"


def _random(size: str, depth: int, ios: int) -> list[Job]:
    """Reads and writes of one size, enough of them for a steady mean."""
    unit = "us" if depth == 1 else "IOPS"
    return [Job(f"{what} {size} QD{depth}", f"--rw=rand{what} --bs={size} --iodepth={depth}", ios, unit)
            for what in ("read", "write")]


# fio counts the time of a run in milliseconds: for rates within an eighth of a percent, a run
# has to take some 800 of them.
BASIC = [*_random("4k", 1, 1000), *_random("4k", 32, 24000)]
JOBS = [*BASIC, *_random("4k", 128, 8000), *_random("512", 1, 1000), *_random("16k", 8, 4000),
        *_random("128k", 4, 800), *_random("1m", 4, 120), Job("ionos", IONOS, 5000)]
# With as many workers as there are processors.
DEEP = [job for job in BASIC if job.unit == "IOPS"]
BY_NAME = {job.name: job for job in JOBS}
