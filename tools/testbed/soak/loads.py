# SPDX-License-Identifier: GPL-2.0
"""The disks of a soak test, and the programs that use them: two under fio with verification, whose I/O
must never fail, and one that comes and goes under programs that compare."""

import json
import random
from pathlib import Path

from .. import blockdev, checker, fio
from ..lab import SERVER_ADDRESS, Pair, wait_for
from ..stack import STACKS
from .tally import Tally

STACK = STACKS["ibtrs"]
STEADY, FLEETING = ("nullb0", "nullb1"), "nullb2"
SIZE_MB = 48
SETTINGS = {"hb_interval_ms": 1000, "hb_missed_max": 3, "reconnect_delay_ms": 100, "queue_timeout_s": 600}
LOAD = ("fio --output-format=json --name=soak --filename={disk} --rw=randwrite --bsrange=4k-128k "
        f"--size={SIZE_MB}m --iodepth=16 --direct=1 --ioengine=io_uring --time_based --runtime=1000000 "
        "--verify=crc32c --verify_fatal=1 --verify_backlog=64 --verify_backlog_batch=64 " + fio.IN_BURSTS)


def map_line(session: str, name: str) -> str:
    ways = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in (1, 2))
    return f'echo "sessname={session} {ways} device_path=/dev/{name}" > {STACK.map_file}'


class Loads:
    def __init__(self, pair: Pair, dice: random.Random, tally: Tally):
        self.pair, self.dice, self.tally = pair, dice, tally
        self.fio: list = []

    def export(self) -> None:
        """Makes the disks on the server."""
        for name in (*STEADY, FLEETING):
            self.pair.server.null_blk(name, SIZE_MB)
            # A disk that has all its pages does not ask for memory below a call of ours.
            self.pair.server.run(f"dd if=/dev/zero of=/dev/{name} bs=1M count={SIZE_MB} oflag=direct status=none")

    def begin(self) -> None:
        """Loads the client, maps the disks and starts the programs."""
        client = self.pair.client
        client.run(STACK.load_client())
        for number, name in enumerate(STEADY):
            client.run(map_line("demo", name))
            assert client.ok(f"[ -b /dev/ibnbd{number} ]")
        self.set_up("demo")
        self.fio = [client.start(LOAD.format(disk=f"/dev/ibnbd{number}")) for number in range(len(STEADY))]
        self.third_is_back()
        client.push("/tmp/checker.py", Path(checker.__file__).read_text())
        client.run(f"rm -f {checker.END}")
        self.checker = client.start(f"exec python3 /tmp/checker.py /dev/ibnbd2 2 256 {self.dice.randrange(1 << 30)}")

    def end(self) -> None:
        """Ends the programs; whatever was written is read back and compared."""
        client = self.pair.client
        self.put_back("other")
        client.run(f"echo > {checker.END}; pkill -INT -x fio")
        for load in self.fio:
            assert load.wait(300, check=False).status in (0, 128, 130), f"fio: {load.text[-2000:]}"
        assert self.checker.wait(300, check=False).ok, self.checker.text[-3000:]
        self.count()
        for number, name in enumerate(STEADY):
            assert blockdev.same_on_both(self.pair, f"/dev/{name}", f"/dev/ibnbd{number}", SIZE_MB)

    def set_up(self, session: str) -> None:
        self.pair.client.run(f"cd /sys/class/ibtrs-client/{session} && " + " && ".join(
            f"echo {value} > {name}" for name, value in SETTINGS.items()), check=False)

    def third_is_back(self) -> None:
        client = self.pair.client
        if not client.ok("[ -e /sys/block/ibnbd2 ]"):
            client.run(map_line("other", FLEETING), check=False)
            self.set_up("other")
        # Operators may have left it without any, and then its requests wait for as long as it may take.
        self.put_back("other")

    def both_connected(self) -> None:
        def back() -> bool:
            if blockdev.connected(self.pair.client) == 2:
                return True
            self.put_back("demo")
            return False

        wait_for(back, 300, "both paths are connected", pause=1)

    def put_back(self, session: str) -> None:
        """Puts back paths that an operator's order or a failed call took away."""
        folder = f"/sys/class/ibtrs-client/{session}"
        for link in (1, 2):
            address = f"ip:{SERVER_ADDRESS.format(link=link)}"
            self.pair.client.run(f"if [ -e {folder}/paths/*@{address} ]; then "
                                 f"grep -qx disconnected {folder}/paths/*@{address}/state && "
                                 f"echo 1 > {folder}/paths/*@{address}/reconnect; "
                                 f"else echo {address} > {folder}/add_path; fi", check=False)

    # What the programs have done.

    def run(self) -> None:
        """They do, and nothing was wrong."""
        for job in (*self.fio, self.checker):
            assert job.running, f"`{job.command[:60]}...` has ended: {job.text[-3000:]}"
        assert "WRONG" not in self.checker.text, self.checker.text[-3000:]

    def go_on(self) -> None:
        """Nothing is stuck: both first disks do something now."""
        before = self.steady()

        def more() -> bool:
            self.run()
            return self.steady() > before

        wait_for(more, 300, "I/O of the first disks goes on", pause=1)

    def steady(self) -> int:
        """Requests of the first disk or of the second, whichever had fewer."""
        return min(reads + writes for reads, _, writes in self._disks())

    def _disks(self) -> list[tuple[int, int, int]]:
        """Of the first disks: completed reads, sectors that were read, and completed writes."""
        said = self.pair.client.run("for disk in ibnbd0 ibnbd1; do cat /sys/block/$disk/stat; done")
        return [(int(words[0]), int(words[2]), int(words[4])) for words in map(str.split, said.splitlines())]

    def _checked(self) -> dict[str, int]:
        lines = [line for line in self.checker.text.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else dict.fromkeys(checker.COUNTS, 0)

    def count(self) -> None:
        """Adds to the figures what was done since the last time."""
        tally, checked = self.tally, self._checked()
        for number, (reads, sectors, writes) in enumerate(self._disks()):
            tally.requests += tally.follow(f"disk {number}", reads + writes)
            # Whatever fio reads it compares.
            tally.verified += 512 * tally.follow(f"sectors {number}", sectors)
        tally.requests += tally.follow("checker", checked["reads"] + checked["writes"])
        tally.verified += checker.BLOCK * tally.follow("checked", checked["reads"])
        for line in self.pair.client.run("for file in /sys/class/ibtrs-client/*/paths/*/stats/rdma; do "
                                         "echo ${file#*client/} $(< $file); done 2> /dev/null || true").splitlines():
            name, *values = line.split()
            if len(values) == 6:
                tally.failovers += tally.follow(name, int(values[5]))
