# SPDX-License-Identifier: GPL-2.0
"""Runs fio in a guest and reads its figures."""

import json
from dataclasses import dataclass

from .channel import CommandFailed, Job
from .guest import Guest

# For I/O that is to be there while something else happens: as many requests at once as
# the depth says, and time in between for the rest of an emulated machine.
IN_BURSTS = "--thinktime=100ms --thinktime_blocks=64"
# The same, for scenarios that only ask whether I/O goes on: one that goes as fast as it can takes most of
# a machine's processors from all the others, above all where the kernel checks itself.
NOW_AND_THEN = "--thinktime=100ms --thinktime_blocks=8"
# As much as the disk takes, for scenarios that disturb it.
LOAD = ("fio --name=load --filename={disk} --rw=randrw --bs=16k --iodepth=16 --direct=1 --ioengine=io_uring "
        "--time_based --runtime=600 --size=32m")
# Writes a disk once, at so low a rate that the scenario has time to disturb it, and then verifies it.
WRITER = ("fio --name=w --filename={disk} --rw=randwrite --bs=4k --iodepth=8 --direct=1 --ioengine=io_uring "
          "--size={size_mb}m --rate_iops={rate} --verify=crc32c --verify_fatal=1 --do_verify=1 --output-format=terse")
GOES_ON = ("fio --name=load --filename={disk} --rw=randrw --bs=4k --iodepth=8 --direct=1 --ioengine=io_uring "
           "--time_based --runtime=600 --size=8m " + NOW_AND_THEN)


@dataclass(frozen=True)
class Side:
    """Figures of the reads, or of the writes, of all jobs together."""

    iops: float
    mean_us: float
    p99_us: float
    bytes: int


@dataclass(frozen=True)
class Figures:
    # With verification every byte that was read was compared.
    read: Side
    write: Side


def _side(jobs: list[dict], name: str) -> Side:
    sides = [job[name] for job in jobs if job[name]["total_ios"]]
    ios = sum(side["total_ios"] for side in sides)
    return Side(
        iops=sum(side["iops"] for side in sides),
        mean_us=sum(side["lat_ns"]["mean"] * side["total_ios"] for side in sides) / max(ios, 1) / 1000,
        p99_us=max((side["clat_ns"].get("percentile", {}).get("99.000000", 0) for side in sides),
                   default=0) / 1000,
        bytes=sum(side["io_bytes"] for side in sides))


def run(guest: Guest, arguments: str, timeout: float = 600) -> Figures:
    """Raises CommandFailed where fio met an error or a wrong byte."""
    output = guest.run(f"fio --output-format=json {arguments}", timeout, check=False)
    # Complaints come before the JSON, which is long.
    words, _, figures = output.partition("{")
    if not output.ok:
        raise CommandFailed(f"{guest.name}: `fio {arguments}` ended with status {output.status}\n{words}")
    jobs = json.loads("{" + figures)["jobs"]
    return Figures(_side(jobs, "read"), _side(jobs, "write"))


def end(guest: Guest, job: Job) -> None:
    """Has a fio that was started with guest.start() end as it does by itself,
    which reads the rest back; it must not have met an error."""
    assert guest.ok("pgrep -x fio"), "fio has ended"
    guest.run("pkill -INT -x fio")
    assert job.wait(120, check=False).status in (0, 128, 130), "fio met an error"
