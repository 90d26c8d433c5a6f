# SPDX-License-Identifier: GPL-2.0
"""Ghost writes: a write that was sent again over another path, and whose first attempt reaches the disk after later
writes to the same block.

The recipe is one of linux-nvme (February 2025, "possible data corruption when host detected path error and
resubmit IOs on another path"), with two paths: the target's disk holds write A for 40 s; its path is lost; the host
sends A again over the other path, then writes B to the same block; the first attempt of A is executed; the block is
read.  The same recipe runs against this project, RNBD and NVMe over RDMA with native multipath.

As a program it runs each variant some times, with fresh guests each time, and prints a table."""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Callable

from . import blockdev, history, mishaps, nvmeof, paths, register
from .channel import CommandFailed
from .guest import Guest
from .held_disk import DEVICE, HeldDisk
from .lab import SERVER_ADDRESS, Pair, wait_for
from .stack import STACKS, Stack

LINKS = (1, 2)
ADDRESSES = [SERVER_ADDRESS.format(link=link) for link in LINKS]
HOLD_S = 40
STOP = "/tmp/stop"


class Target:
    """A multipath transport between the guests of a pair."""

    name: str

    def connect(self, pair: Pair) -> str:
        """Connects the client to the server's disk by both links; returns the client's disk."""
        raise NotImplementedError

    def busy_link(self, client: Guest) -> int:
        """The link over which the requests in flight went; one of the links, if it is both."""
        raise NotImplementedError


class Session(Target):
    """This project, or RTRS and RNBD of the kernel."""

    def __init__(self, stack: Stack):
        self.name, self._stack = {"ibtrs": "ibnbd", "mainline": "RNBD"}[stack.name], stack

    def connect(self, pair):
        blockdev.load(pair, self._stack)
        both = " ".join(f"path=ip:{address}" for address in ADDRESSES)
        pair.client.run(f'echo "sessname=demo {both} device_path={self._stack.exported(DEVICE)}" > {self._stack.map_file}')
        # A path has its full name once it is connected.
        states = f"{self._stack.sessions('client')}/demo/paths/*@*/state"
        pair.client.wait_until(f"[ $(cat {states} | grep -c '^connected') = {len(LINKS)} ]")
        return self._stack.disk

    def busy_link(self, client):
        folder = f"{self._stack.sessions('client')}/demo/paths"
        for link, address in zip(LINKS, ADDRESSES):
            if int(client.run(f"cat {folder}/*@ip:{address}/stats/rdma").split()[4]):
                return link
        raise AssertionError("no path has a request in flight")


class Nvme(Target):
    """NVMe over RDMA of the kernel, with native multipath."""

    name = "NVMe-oF"

    def connect(self, pair):
        nvmeof.export(pair.server, "ghost_writes", [DEVICE], ADDRESSES)
        for address in ADDRESSES:
            nvmeof.connect(pair.client, "ghost_writes", address)
        (disk,) = nvmeof.disks(pair.client, 1)
        pair.client.wait_until(f"[ $(ls -d /sys/block/nvme0c*n1 | wc -l) = {len(LINKS)} ] && "
                               "[ $(cat /sys/class/nvme/nvme*/state | grep -c live) = 2 ]")
        return disk

    def busy_link(self, client):
        for path in client.run("ls -d /sys/block/nvme0c*n1").split():
            if sum(map(int, client.run(f"cat {path}/inflight").split())):
                number = path.removeprefix("/sys/block/nvme0c").removesuffix("n1")
                address = client.run(f"cat /sys/class/nvme/nvme{number}/address")
                return next(link for link, its in zip(LINKS, ADDRESSES) if f"traddr={its}" in address)
        raise AssertionError("no controller has a request in flight")


TARGETS = {target.name: target for target in (Session(STACKS["ibtrs"]), Session(STACKS["mainline"]), Nvme())}


@contextmanager
def silent_link(pair: Pair, link: int):
    """Everything that either guest sends over the link is lost."""
    with mishaps.losing(pair.server, link, 100), mishaps.losing(pair.client, link, 100):
        yield


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    # What happens to the path of the write, a context.
    loss: Callable
    # How long after the write has reached the disk.
    after_s: float = 1
    # Blocks that are written at once, each over and over until the held writes have been executed; the recipe
    # has one, which is written twice.
    blocks: int = 1

    @property
    def versions(self) -> int:
        return 2 if self.blocks == 1 else 0


VARIANTS = {variant.name: variant for variant in (
    Variant("the path loses all packets", silent_link),
    Variant("the target's port goes down after 10 s", lambda pair, link: mishaps.interface_down(pair, pair.server, link),
            after_s=10),
    Variant("nothing is lost", lambda pair, link: nullcontext()),
    Variant("16 blocks, the path loses all packets", silent_link, blocks=16),
)}


@dataclasses.dataclass(frozen=True)
class Outcome:
    target: str
    variant: str
    # Of each block.
    judgements: list[history.Judgement]
    # Why there are none.
    failed: str | None = None

    @property
    def wrong(self) -> int:
        """Blocks that are wrong."""
        return sum(not judgement.is_right for judgement in self.judgements)


def start_writers(client: Guest, held: HeldDisk, disk: str, variant: Variant) -> list:
    """Starts a writer for each block, whose first write is held."""
    client.push("/tmp/register.py", Path(register.__file__).read_text())
    writers = []
    for block in range(variant.blocks):
        with held.holding_a_write():
            writers.append(client.start(f"python3 /tmp/register.py {disk} {block} {variant.versions} {STOP}"))
    return writers


def run(pair: Pair, held: HeldDisk, target: Target, variant: Variant, hold_s: float = HOLD_S,
        settings: str = "true") -> Outcome:
    """Runs a variant once.  `settings` is a command for the client once it has the disk."""
    mishaps.make_ready(pair)
    disk = target.connect(pair)
    pair.client.run(settings)
    writers = start_writers(pair.client, held, disk, variant)
    held_since = time.monotonic()
    link = target.busy_link(pair.client)
    time.sleep(variant.after_s)
    try:
        with variant.loss(pair, link):
            time.sleep(max(0, held_since + hold_s - time.monotonic()))
            held.release()
            pair.server.wait_until("[ $(awk '{ print $1 + $2 }' /sys/block/vda/inflight) = 0 ]")
            pair.client.run(f"touch {STOP}")
            histories = [writer.wait(240) for writer in writers]
    finally:
        held.release()
    # Nothing that the server still has in hand may change a block afterwards.
    time.sleep(2)
    judgements = [history.judge(text, block, held.block(block)) for block, text in enumerate(histories)]
    return Outcome(target.name, variant.name, judgements)


def run_afresh(kernel: str, target: Target, variant: Variant) -> Outcome:
    """The same with guests of its own."""
    with tempfile.TemporaryDirectory(prefix="ghost_writes-") as folder:
        image = Path(folder) / "held.img"
        with Pair(kernel, links=len(LINKS), disks={"server": [HeldDisk.create(image)]}) as pair:
            try:
                return run(pair, HeldDisk(pair.server, image), target, variant)
            except (CommandFailed, AssertionError) as error:
                return Outcome(target.name, variant.name, [], str(error).splitlines()[0])


def row(outcomes: list[Outcome]) -> str:
    """A row of the table for all runs of a variant with a target."""
    done = [outcome for outcome in outcomes if not outcome.failed]
    judgements = [judgement for outcome in done for judgement in outcome.judgements]
    times = [judgement.first_write_s for judgement in judgements if judgement.first_write_s is not None]
    first = f"{statistics.median(times):.0f} s" if times else "-"
    return (f"| {outcomes[0].target} | {outcomes[0].variant} | {len(done)} | {sum(o.wrong > 0 for o in done)} | "
            f"{sum(o.wrong for o in done)} of {len(judgements)} | {sum(len(v.errors) for v in judgements)} | {first} |")


HEAD = """| target | variant | runs | wrong runs | wrong blocks | I/O errors | A acknowledged after, median |
| --- | --- | --- | --- | --- | --- | --- |"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="ghost_writes", description=__doc__)
    parser.add_argument("--kernel", choices=paths.FLAVOURS, default="stock")
    parser.add_argument("--target", choices=TARGETS, default="ibnbd")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="all of them by default")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="a file for the outcomes, in JSON")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    rows = []
    for variant in [VARIANTS[name] for name in options.variant or VARIANTS]:
        these = []
        for number in range(options.runs):
            these.append(run_afresh(options.kernel, TARGETS[options.target], variant))
            print(f"{options.target}, {variant.name}, run {number + 1}: {these[-1].failed or f'{these[-1].wrong} wrong'}",
                  flush=True)
            if options.out:
                # After each, as a series takes an hour.
                done = [dataclasses.asdict(outcome) for outcome in outcomes + these]
                options.out.write_text(json.dumps(done, indent=1))
        outcomes += these
        rows.append(row(these))
    print("\n".join([HEAD, *rows]))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
