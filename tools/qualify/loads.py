# SPDX-License-Identifier: GPL-2.0
"""The loads by fio, and its figures."""

import json
from dataclasses import asdict, dataclass

from . import undo
from .undo import FOLDER

MIB = 1 << 20
# All of it happens in the first part of a disk.
WORKING_SET_MIB = 256
# Writes per second around a failure, few enough for any disk.
RATE = 500
# For how long their number is averaged; a moment without any is not in the log.
WINDOW_MS = 200


@dataclass(frozen=True)
class Data:
    """Writes that are read back and compared."""

    name: str
    sizes: str
    depth: int
    mib: int


DATA = (Data("4 KiB, depth 1", "--bs=4k", 1, 4), Data("4 KiB, depth 32", "--bs=4k", 32, 64),
        Data("64 KiB, depth 8", "--bs=64k", 8, 128), Data("1 MiB, depth 4", "--bs=1m", 4, 256),
        Data("4 to 256 KiB mixed, depth 32", "--bsrange=4k-256k --blockalign=4k", 32, 128))


@dataclass(frozen=True)
class Bench:
    what: str
    size: str
    depth: int

    @property
    def name(self) -> str:
        return f"{self.what} {self.size} depth {self.depth}"


BENCH = tuple(Bench(what, size, depth) for size in ("4k", "128k") for depth in (1, 32) for what in ("read", "write"))


@dataclass(frozen=True)
class Figures:
    iops: float
    mib_s: float
    mean_us: float
    p99_us: float

    def json(self) -> dict:
        return {name: round(value, 1) for name, value in asdict(self).items()}


def _fio(disk: str, engine: str, words: str, seed: int = 1) -> str:
    return undo.noted(f"fio --name=ibnbd-qualify --filename={disk} --thread --direct=1 --ioengine={engine} --randseed={seed} "
                      f"--verify_state_save=0 --output-format=json {words}")


def data(job: Data, disk: str, engine: str, working_set_mib: int, seed: int) -> str:
    mib = min(job.mib, working_set_mib)
    return _fio(disk, engine, f"--rw=randwrite {job.sizes} --iodepth={job.depth} --size={mib}m --verify=crc32c "
                              "--verify_fatal=1 --do_verify=1", seed)


def around_failure(disk: str, engine: str, seconds: int, working_set_mib: int) -> str:
    """Writes at a steady rate and then reads all of it back; its log has the rate over time."""
    mib = max(min(RATE * seconds * 4096 // MIB, working_set_mib), 1)
    return _fio(disk, engine, f"--rw=randwrite --bs=4k --iodepth=16 --size={mib}m --rate_iops=,{RATE} --verify=crc32c "
                              f"--verify_fatal=1 --do_verify=1 --write_iops_log={FOLDER}/fio --log_avg_msec={WINDOW_MS}")


def flushes(disk: str, engine: str) -> str:
    return _fio(disk, engine, "--rw=randwrite --bs=4k --iodepth=1 --size=1m --fsync=1 --verify=crc32c --do_verify=1 "
                              "--verify_fatal=1")


def bench(job: Bench, disk: str, engine: str, seconds: int) -> str:
    return _fio(disk, engine, f"--rw=rand{job.what} --bs={job.size} --iodepth={job.depth} --size=100% --norandommap "
                              f"--time_based --runtime={seconds} --ramp_time={min(seconds * 250, 1000)}ms "
                              # From submission on, as the mean: a disk may answer while the request is submitted.
                              "--lat_percentiles=1 --clat_percentiles=0")


def _job(text: str) -> dict:
    """The only job of fio's JSON, which complaints may stand before."""
    return json.loads("{" + text.partition("{")[2])["jobs"][0]


def figures(text: str, what: str) -> Figures:
    side = _job(text)[what]
    percentiles = side["lat_ns"].get("percentile", {})
    return Figures(side["iops"], side["bw_bytes"] / MIB, side["lat_ns"]["mean"] / 1000,
                   percentiles.get("99.000000", 0) / 1000)


def errors(text: str) -> int:
    return int(_job(text).get("error", 0))


def longest_ms(text: str) -> float:
    """The longest that a write took."""
    return _job(text)["write"]["lat_ns"]["max"] / 1e6


def rates(log: str) -> list[list[float]]:
    """Seconds since the start, and writes per second until then from the point before."""
    found, last = [], 0
    for line in log.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) >= 3 and words[2] == "1":
            ms = int(words[0])
            if ms - last > 2 * WINDOW_MS:
                found.append([(ms - WINDOW_MS) / 1000, 0.0])
            found.append([ms / 1000, float(words[1])])
            last = ms
    return found
