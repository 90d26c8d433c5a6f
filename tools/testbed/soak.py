# SPDX-License-Identifier: GPL-2.0
"""A soak test: for hours, two disks are under fio with verification, and their I/O must never fail;
a third one comes and goes under programs that compare.  Meanwhile links fail in every way, paths
are disconnected, removed and added, and, on the debug kernel, calls fail in the client and in the
server.

Prints a line each minute, and a table at the end, which it also leaves as JSON below the cache.
The status is 0 if no byte was wrong, no I/O of the first two disks failed, no kernel complained
and nothing leaked."""

import argparse
import json
import random
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from . import blockdev, checker, faults, fio, judge, mishaps, paths
from .channel import CommandFailed
from .lab import SERVER_ADDRESS, Pair, wait_for
from .reset import CannotReset, reset
from .stack import STACKS

STACK = STACKS["ibtrs"]
STEADY, FLEETING = ("nullb0", "nullb1"), "nullb2"
SIZE_MB = 48
SETTINGS = {"hb_interval_ms": 1000, "hb_missed_max": 3, "reconnect_delay_ms": 100, "queue_timeout_s": 600}
LOAD = ("fio --output-format=json --name=soak --filename={disk} --rw=randwrite --bsrange=4k-128k "
        f"--size={SIZE_MB}m --iodepth=16 --direct=1 --ioengine=io_uring --time_based --runtime=1000000 "
        "--verify=crc32c --verify_fatal=1 --verify_backlog=64 --verify_backlog_batch=64 " + fio.IN_BURSTS)
POLICIES = ("rr", "mi", "ml")
# Where memory fails for those that ask below a call of ours; not below the server's own
# disk, whose I/O fails then, and ought to.
INJECTORS = [f"{kind}@{module}" for kind in (faults.SLAB, faults.PAGES)
             for module in ("ibtrs_client", "ibtrs_server", "ibnbd_client")]
# A server that cannot open its disk again refuses it, as it should, and its I/O fails then;
# so does an I/O that a region cannot describe.
FUNCTIONS = [function for function in faults.FUNCTIONS
             if function.name not in ("filp_open", "bdev_file_open_by_dev", "kernel_read", "ib_map_mr_sg")]
LINKS = {
    "interface down": mishaps.interface_down,
    "cable pulled": mishaps.cable_out,
    "RDMA device removed": mishaps.device_gone,
    "all packets lost": lambda pair, guest, link: mishaps.losing(guest, link, 100),
    "some packets lost": lambda pair, guest, link: mishaps.losing(guest, link, 3),
    "packets late": lambda pair, guest, link: mishaps.late(guest, link, 20),
}


@dataclass
class Tally:
    """The figures of the report."""

    failovers: int = 0
    faults: int = 0
    events: dict[str, int] = field(default_factory=dict)
    # The last values of counters that begin again with their path or disk.
    last: dict[str, int] = field(default_factory=dict)

    def follow(self, name: str, value: int) -> int:
        """The increase of a counter since the last call."""
        before = self.last.get(name, 0)
        self.last[name] = value
        return value - before if value >= before else value


class Soak:
    def __init__(self, pair: Pair, seconds: float, seed: int):
        self.pair, self.seconds, self.dice = pair, seconds, random.Random(seed)
        self.tally, self.rows = Tally(), []
        self.started = time.monotonic()
        self.can_fail = pair.kernel.flavour == "debug"
        self.injections: list = []

    # Setting up.

    def begin(self) -> None:
        server, client = self.pair
        for guest in self.pair:
            # A busy machine is not what is looked for.
            guest.command_timeout = 600
            if self.can_fail:
                guest.run("modprobe rdma_cm")
                faults.load(guest)
                words = "; ".join(f"echo {f.watched} > {faults.FOLDER}/functions" for f in faults.FUNCTIONS)
                guest.run(f"({words}) 2> /dev/null; true")
        mishaps.make_ready(self.pair)
        for name in (*STEADY, FLEETING):
            server.null_blk(name, SIZE_MB)
            # A disk that has all its pages does not ask for memory below a call of ours.
            server.run(f"dd if=/dev/zero of=/dev/{name} bs=1M count={SIZE_MB} oflag=direct status=none")
        blockdev.load(self.pair, STACK)
        for number, name in enumerate(STEADY):
            client.run(self.map_line("demo", name))
            assert client.ok(f"[ -b /dev/ibnbd{number} ]")
        self.set_up("demo")
        self.loads = [client.start(LOAD.format(disk=f"/dev/ibnbd{number}")) for number in range(len(STEADY))]
        client.run(self.map_line("other", FLEETING))
        self.set_up("other")
        client.push("/tmp/checker.py", Path(checker.__file__).read_text())
        self.checker = client.start(f"exec python3 /tmp/checker.py /dev/ibnbd2 2 256 {self.dice.randrange(1 << 30)}")

    @staticmethod
    def map_line(session: str, name: str) -> str:
        ways = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in (1, 2))
        return f'echo "sessname={session} {ways} device_path=/dev/{name}" > {STACK.map_file}'

    def set_up(self, session: str) -> None:
        self.pair.client.run(f"cd /sys/class/ibtrs-client/{session} && " + " && ".join(
            f"echo {value} > {name}" for name, value in SETTINGS.items()), check=False)

    # The events.

    def connected(self, session: str = "demo") -> int:
        return blockdev.connected(self.pair.client, session)

    def both_connected(self) -> None:
        """A path that an operator's order or a failed call took away is put back."""
        client, folder = self.pair.client, "/sys/class/ibtrs-client/demo"

        def back() -> bool:
            if self.connected() == 2:
                return True
            for link in (1, 2):
                address = f"ip:{SERVER_ADDRESS.format(link=link)}"
                client.run(f"if [ -e {folder}/paths/*@{address} ]; then "
                           f"grep -qx disconnected {folder}/paths/*@{address}/state && "
                           f"echo 1 > {folder}/paths/*@{address}/reconnect; "
                           f"else echo {address} > {folder}/add_path; fi", check=False)
            return False

        wait_for(back, 300, "both paths are connected", pause=1)

    def link_fails(self) -> None:
        what, link = self.dice.choice(list(LINKS)), self.dice.choice((1, 2))
        guest = self.dice.choice(list(self.pair))
        self.note(f"link: {what}")
        with LINKS[what](self.pair, guest, link):
            time.sleep(self.dice.uniform(0, 12))

    def both_links_fail(self) -> None:
        self.note("both links: all packets lost")
        with ExitStack() as stack:
            for link in (1, 2):
                stack.enter_context(mishaps.losing(self.pair.client, link, 100))
            time.sleep(self.dice.uniform(1, 15))

    def server_disconnects(self) -> None:
        self.note("the server disconnects paths")
        self.pair.server.run("for path in /sys/class/ibtrs-server/*/paths/*/disconnect; do "
                             f"[ $((RANDOM % 2)) = 0 ] || echo 1 > $path; done", check=False)

    def operator(self) -> None:
        """One of the client's, on one path at a time: the other one carries the load."""
        link = self.dice.choice((1, 2))
        session = self.dice.choice(("demo", "other"))
        folder = f"/sys/class/ibtrs-client/{session}"
        path = f"{folder}/paths/*@ip:{SERVER_ADDRESS.format(link=link)}"
        deeds = {
            "disconnect, reconnect": f"echo 1 > {path}/disconnect; echo 1 > {path}/reconnect",
            "remove, add": f"echo 1 > {path}/remove_path; echo ip:{SERVER_ADDRESS.format(link=link)} > {folder}/add_path",
            "policy": f"echo {self.dice.choice(POLICIES)} > {folder}/mp_policy",
            "reset": f"for file in {folder}/paths/*/stats/reset_all; do echo 1 > $file; done",
            "rename": f"rdma dev set {self.pair.rdma}{link - 1} name other && cat {folder}/paths/*/hca_name; "
                      f"rdma dev set other name {self.pair.rdma}{link - 1}",
        }
        what = self.dice.choice(list(deeds))
        self.note(f"operator: {what}")
        self.pair.client.run(deeds[what], check=False)

    def disk_goes(self) -> None:
        how = self.dice.choice(("normal", "force", "force", "force_close", "resize"))
        self.note(f"third disk: {how}")
        client = self.pair.client
        if how == "force_close":
            self.pair.server.run("for file in /sys/class/ibnbd-server/ctl/devices/nullb2/sessions/*/force_close; do "
                                 "echo 1 > $file; done", check=False)
            client.run("echo 1 > /sys/block/ibnbd2/ibnbd/remap_device", check=False)
        elif how == "resize":
            client.run("cd /sys/block/ibnbd2/ibnbd && echo 8192 > resize && "
                       f"echo {SIZE_MB << 11} > resize", check=False)
        else:
            client.run(f"echo {how} > /sys/block/ibnbd2/ibnbd/unmap_device", check=False)

    def disk_is_back(self) -> None:
        client = self.pair.client
        if not client.ok("[ -e /sys/block/ibnbd2 ]"):
            client.run(self.map_line("other", FLEETING), check=False)
            self.set_up("other")

    def all_at_once(self) -> None:
        """Several operators who know nothing of one another, on the third disk's session."""
        self.note("several operators at once")
        folder = "/sys/class/ibtrs-client/other"
        words = [f"echo 1 > {folder}/paths/*@ip:10.0.{link}.1/{what}" for link in (1, 2)
                 for what in ("disconnect", "reconnect", "remove_path")]
        words += [f"echo ip:10.0.{link}.1 > {folder}/add_path" for link in (1, 2)]
        words += [self.map_line("other", FLEETING), "echo force > /sys/block/ibnbd2/ibnbd/unmap_device"]
        chosen = self.dice.sample(words, 4)
        self.pair.client.run("for i in 1 2 3 4 5; do " + " ".join(f"({word}) 2> /dev/null &" for word in chosen) +
                             " wait; done", timeout=300, check=False)

    def call_fails(self) -> None:
        """Armed now; whatever happens next meets it. Looked at, and disarmed, after that."""
        guest = self.dice.choice(list(self.pair))
        if self.dice.random() < 0.7:
            function = self.dice.choice(FUNCTIONS)
            order = (f"echo {function.name} {self.dice.choice((1, 1, 2, 3, 5, 10, 30))} {function.error} 1 "
                     f"> {faults.FOLDER}/arm")
        else:
            kind, _, module = self.dice.choice(INJECTORS).partition("@")
            order = (f"while read -r name first end; do [ $name != {module} ] || break; done "
                     f"< {faults.FOLDER}/modules && cd {faults.DEBUG}/{kind} && echo N > ignore-gfp-wait && "
                     "echo 24 > stacktrace-depth && echo $first > require-start && echo $end > require-end && "
                     f"echo 2 > verbose && echo {self.dice.choice((1, 3, 11, 37))} > interval && echo 1 > times && "
                     "echo 100 > probability")
        if guest.ok(order):
            self.note("a call is to fail")
            self.injections.append(guest)

    def disarm(self) -> None:
        for guest in self.injections:
            words = guest.run(
                "struck=0; while read -r _ _ failed; do struck=$((struck + failed)); done "
                f"< {faults.FOLDER}/functions; echo '- 0 0 0' > {faults.FOLDER}/arm; "
                f"for kind in {faults.SLAB} {faults.PAGES}; do cd {faults.DEBUG}/$kind; "
                "[ $(< probability) = 0 ] || { struck=$((struck + 1 - $(< times))); echo 0 > probability; }; done; "
                "echo $struck")
            self.tally.faults += int(words)
        self.injections.clear()

    def note(self, event: str) -> None:
        self.tally.events[event] = self.tally.events.get(event, 0) + 1

    # The results.

    def look(self) -> dict:
        """One row of the table."""
        client = self.pair.client
        stats = client.run("for disk in ibnbd0 ibnbd1; do cat /sys/block/$disk/stat; done").splitlines()
        numbers = [list(map(int, line.split())) for line in stats]
        figures = self.checked()
        for line in client.run("for file in /sys/class/ibtrs-client/*/paths/*/stats/rdma; do "
                               "echo ${file#*client/} $(< $file); done 2> /dev/null || true").splitlines():
            name, *values = line.split()
            if len(values) == 6:
                self.tally.failovers += self.tally.follow(name, int(values[5]))
        row = {
            "seconds": round(time.monotonic() - self.started),
            "requests": sum(n[0] + n[4] for n in numbers) + figures["reads"] + figures["writes"],
            "failed_over": self.tally.failovers, "faults": self.tally.faults,
            # Whatever fio reads it compares.
            "verified_mib": (sum(n[2] for n in numbers) * 512 + figures["reads"] * checker.BLOCK) >> 20,
        }
        for guest in self.pair:
            words = guest.run("while read -r name value _; do case $name in Slab:|MemAvailable:) echo $value ;; "
                              "esac; done < /proc/meminfo").split()
            row |= {f"{guest.name}_available_kib": int(words[0]), f"{guest.name}_slab_kib": int(words[1])}
        return row

    def checked(self) -> dict[str, int]:
        lines = [line for line in self.checker.text.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else dict.fromkeys(checker.COUNTS, 0)

    def judge(self) -> None:
        judge.check(self.pair)
        self.loads_run()
        assert "WRONG" not in self.checker.text, self.checker.text[-3000:]

    def loads_run(self) -> None:
        for job in (*self.loads, self.checker):
            assert job.running, f"`{job.command[:60]}...` has ended: {job.text[-3000:]}"

    def progress(self, done_before: int) -> None:
        """Nothing is stuck: the first disks have done something since."""
        def more() -> bool:
            self.loads_run()
            return self.steady() > done_before

        wait_for(more, 300, "I/O of the first disks goes on", pause=1)

    def steady(self) -> int:
        return min(sum(int(word) for word in line.split()[0:5:4]) for line in self.pair.client.run(
            "for disk in ibnbd0 ibnbd1; do cat /sys/block/$disk/stat; done").splitlines())

    def go(self) -> None:
        events = [self.link_fails, self.link_fails, self.both_links_fail, self.server_disconnects, self.operator,
                  self.operator, self.disk_goes, self.disk_goes, self.all_at_once]
        next_row = 0.0
        while (now := time.monotonic() - self.started) < self.seconds:
            if now >= next_row:
                self.rows.append(self.look())
                print(", ".join(f"{name} {value}" for name, value in self.rows[-1].items()), flush=True)
                self.judge()
                next_row = now + min(60, self.seconds / 5)
            done = self.steady()
            if self.can_fail and self.dice.random() < 0.7:
                self.call_fails()
            self.dice.choice(events)()
            self.disk_is_back()
            self.disarm()
            self.both_connected()
            self.disk_is_back()
            self.progress(done)

    def end(self) -> None:
        """Everything is read back and compared, and nothing is left."""
        server, client = self.pair
        self.rows.append(self.look())
        self.judge()
        client.run(f"echo > {checker.END}; pkill -INT -x fio")
        for load in self.loads:
            assert load.wait(300, check=False).status in (0, 128, 130), f"fio: {load.text[-2000:]}"
        assert self.checker.wait(120, check=False).ok, self.checker.text[-3000:]
        for number, name in enumerate(STEADY):
            assert blockdev.same_on_both(self.pair, f"/dev/{name}", f"/dev/ibnbd{number}", SIZE_MB)
        for guest in (client, server):
            reset(guest)
        judge.check(self.pair)
        judge.check_leaks(self.pair)

    def report(self, failed: str | None, seed: int) -> Path:
        names = list(self.rows[0]) if self.rows else []
        step = max(1, len(self.rows) // 20)
        print("\n| " + " | ".join(names) + " |\n|" + " ---: |" * len(names))
        for row in self.rows[::-step][::-1]:
            print("| " + " | ".join(str(value) for value in row.values()) + " |")
        print()
        for event, times in sorted(self.tally.events.items()):
            print(f"{times:6} {event}")
        target = paths.cache() / "soak" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({"seed": seed, "kernel": self.pair.kernel.flavour, "failed": failed,
                                      "rows": self.rows, "events": self.tally.events}, indent=1))
        print(f"\n{'FAILED: ' + failed if failed else 'All was well.'}\nseed {seed}; {target}")
        return target


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("hours", type=float)
    parser.add_argument("--kernel", choices=("debug", "fast"), default="debug")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"==> {options.hours} hours on the {options.kernel} kernel, seed {seed}", flush=True)
    with Pair(options.kernel, links=2) as lab:
        soak, failed = Soak(lab, options.hours * 3600, seed), None
        try:
            soak.begin()
            soak.started = time.monotonic()
            soak.go()
            soak.end()
        except (AssertionError, CommandFailed, CannotReset) as error:
            failed = f"{type(error).__name__}: {error}"
            print(f"logs kept in {judge.keep(lab, 'soak')}")
        soak.report(failed, seed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
