# SPDX-License-Identifier: GPL-2.0
"""Data that is written and compared, and operations that are neither reads nor writes."""

from . import changes, loads
from .changes import DATA, NAMED
from .machine import Failed, Machine
from .run import Run, Skip


def working_set_mib(run: Run) -> int:
    return min(loads.WORKING_SET_MIB, run.options.size_mib)


def checksum(run: Run, machine: Machine, disk: str, skip: int = 0, mib: int = 0) -> str:
    command = f"dd if={disk} bs=1M skip={skip} count={mib or working_set_mib(run)} iflag=direct status=none | sha256sum"
    return machine.run(command, timeout=300).text.split()[0]


def same(run: Run, name: str, what: str) -> None:
    if checksum(run, run.client, run.disks[name]) != checksum(run, run.server, run.devices[name]):
        raise Failed(f"the disk has other contents on the server than on the client {what}")


def all_data(run: Run) -> None:
    for name in (DATA, NAMED):
        if name in run.disks:
            data(run, name)


def data(run: Run, name: str) -> None:
    which = {DATA: "scratch disk", NAMED: "named disk"}[name]
    jobs = loads.DATA[1:4] if run.options.short else loads.DATA
    engine = run.facts["client"].engine
    for seed, job in enumerate(jobs, 1):
        with run.step("data", f"{which}, {job.name}"):
            answer = run.client.run(loads.data(job, run.disks[name], engine, working_set_mib(run), seed), timeout=600,
                                    check=False)
            good(answer.text, answer.errors)
    with run.step("data", f"{which}, the same on the server"):
        same(run, name, "after fio has written it")


def good(text: str, complaints: str) -> None:
    """fio has met no error and no wrong byte."""
    try:
        number = loads.errors(text)
    except (ValueError, KeyError, IndexError):
        raise Failed(f"fio did not say how it went: {complaints or text[:500]}") from None
    if number:
        raise Failed(f"fio met an error or a wrong byte ({number}): {complaints[:500]}")


def operations(run: Run) -> None:
    disk = run.disks[DATA]
    with run.step("operations", "flush"):
        answer = run.client.run(loads.flushes(disk, run.facts["client"].engine), timeout=300, check=False)
        good(answer.text, answer.errors)
    with run.step("operations", "discard"):
        if run.client.run(f"cat /sys/block/{disk.rpartition('/')[2]}/queue/discard_max_bytes").text == "0":
            raise Skip("the server's disk takes no discards")
        clear(run, "blkdiscard")
    with run.step("operations", "write zeroes"):
        clear(run, "blkdiscard --zeroout")
    with run.step("operations", "resize"):
        resize(run)
    with run.step("operations", "unmap and map again"):
        before = checksum(run, run.client, run.disks[DATA])
        run.take_back(run.client, changes.mapped(DATA, run.links))
        run.map(DATA)
        if checksum(run, run.client, run.disks[DATA]) != before:
            raise Failed("the disk has other contents after it was mapped again")


def clear(run: Run, command: str) -> None:
    """The second quarter of a disk in memory reads as zeroes afterwards, and the rest stays."""
    disk, part = run.disks[DATA], working_set_mib(run) // 4
    run.client.run(f"dd if=/dev/urandom of={disk} bs=1M count={3 * part} oflag=direct status=none", timeout=300)
    around = [checksum(run, run.client, disk, skip, part) for skip in (0, 2 * part)]
    run.client.run(f"{command} --offset {part << 20} --length {part << 20} {disk}")
    if around != [checksum(run, run.client, disk, skip, part) for skip in (0, 2 * part)]:
        raise Failed("data beside the range has changed")
    zeroes = (f"dd if={disk} bs=1M skip={part} count={part} iflag=direct status=none | "
              f"cmp -n {part << 20} - /dev/zero")
    if not run.client.run(zeroes, check=False, timeout=300).ok:
        raise Failed("the range does not read as zeroes")
    same(run, DATA, "after that")


def resize(run: Run) -> None:
    more = run.options.size_mib + 16
    run.server.run(f"truncate -s {more}M {changes.IMAGE} && losetup --set-capacity {run.devices[DATA]}")
    name = run.disks[DATA].rpartition("/")[2]
    run.client.wait(f"[ $(cat /sys/block/{name}/size) = {more << 11} ]", 30,
                    "the client learns of the new size of the disk")
    run.client.run(f"dd if=/dev/zero of={run.disks[DATA]} bs=1M seek={more - 1} count=1 oflag=direct status=none")
