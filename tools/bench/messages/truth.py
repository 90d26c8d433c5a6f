# SPDX-License-Identifier: GPL-2.0
"""The truth table: the outcomes of numbered requests while the network is cut again and again.

A cut loses all packets of a link, in both directions, without a word to either machine. The client keeps requests in
flight and sends none of them twice; harness/truth.c has what is counted on either side."""

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import tables
from bench.__main__ import commit
from bench import devices
from bench.measure import FAILURES
from testbed import blockdev, mishaps, paths
from testbed.channel import Job
from testbed.guest import wait_for
from testbed.lab import SERVER_ADDRESS, Pair

from . import program, targets
from .targets import SESSION, Program

DEPTH = 32
BYTES = 512
# Seconds of load before the first cut and after each of them, when answers come again.
PAUSE = 3.0
# Seconds that a transport may take for that, and how many answers it must have given by then.
RESUMES, AGAIN = 200, 50
# Until the last answers, more than LAST_WAIT of truth.c.
END = 180


@dataclass(frozen=True)
class Row:
    name: str
    target: str
    links: int = 1


ROWS = (
    Row("ibmsg, two paths", "ibmsg", links=2),
    Row("ibmsg, one path", "ibmsg"),
    Row("TCP", "TCP"),
    Row("SMC-R", "SMC-R"),
    Row("RDS", "RDS"),
    Row("rsockets", "rsockets"),
    Row("ZeroMQ", "ZeroMQ"),
    Row("NNG", "NNG"),
)
BY_NAME = {row.name: row for row in ROWS}
# Seconds of the cuts, of which there are as many as are asked for; or, of ours alone, until there were many requests.
CUTS = (1, 5, 25)
HOUR, MANY = "hour", 10_000_000


def numbers(ranges: list[list[int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


@dataclass(frozen=True)
class Truth:
    """What became of the requests of one run."""

    sent: int
    # Neither delivered nor in doubt for the program.
    lost: int
    doubled: int
    out_of_order: int
    # Delivered when the program had gone on after their error.
    after_error: int
    # Failures that the program has seen, and the requests that were in doubt then.
    errors: int
    in_doubt: int
    # Requests in doubt that were delivered.
    delivered_in_doubt: int
    longest_ms: int
    error: str = ""
    cuts: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether the promise is kept: each request delivered once and in order, or in doubt."""
        return not (self.lost or self.doubled or self.out_of_order or self.after_error)


def judge(client: dict, server: dict) -> Truth:
    """From what both sides have printed."""
    doubt = numbers(client["in_doubt"])
    # `highest' is one more than the highest number that the server has.
    missing = numbers(server["missing"]) | set(range(server["highest"], client["sent"]))
    return Truth(client["sent"], len(missing - doubt), server["doubled"], server["out_of_order"], server["after_error"],
                 client["errors"], len(doubt), len(doubt - missing), client["longest_ms"], client["error"])


def lose_all(pair: Pair, link: int, percent: int) -> None:
    """On both ends at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda guest: guest.run(
            f"tc qdisc change dev eth{link - 1} root {mishaps.ALL_WELL} loss {percent}%"), pair))


@contextmanager
def cut(pair: Pair, link: int) -> Iterator[None]:
    lose_all(pair, link, 100)
    yield
    lose_all(pair, link, 0)


def connect(pair: Pair, row: Row) -> Program:
    """Loads what the row needs, with a path for each link."""
    target = targets.BY_NAME[row.target]
    for guest in pair:
        program.push(guest)
    mishaps.make_ready(pair)
    target.join(pair.server, pair.client)
    for link in range(2, row.links + 1):
        pair.client.run(f"echo ip:{SERVER_ADDRESS.format(link=link)} > /sys/class/ibtrs-client/{SESSION}/add_path")
    if isinstance(target, targets.Ours):
        whole(pair, row)
    return target


def whole(pair: Pair, row: Row) -> None:
    """Waits until all paths are there."""
    wait_for(lambda: blockdev.connected(pair.client, SESSION) == row.links, 120, "all paths are connected")


def answers(pair: Pair) -> int:
    """How many the client has had so far."""
    return int(pair.client.run("od -An -t u8 /tmp/messages-answers"))


def _cut_once(pair: Pair, row: Row, target: Program, client: Job, link: int, seconds: float) -> None:
    """Cuts a link, and waits until there is a load again, or the client has had its number of messages."""
    with cut(pair, link):
        time.sleep(seconds)
    before = answers(pair)
    wait_for(lambda: answers(pair) > before + AGAIN or not client.running, RESUMES, f"{row.name}: answers come again")
    if isinstance(target, targets.Ours):
        whole(pair, row)


def run(pair: Pair, row: Row, cuts: Iterable[float], messages: int = 0) -> Truth:
    """Cuts the links in turn, until no cut is left, or the client has sent the given number of messages."""
    target = connect(pair, row)
    words = f"{target.backend} --peer {targets.CLIENT} --load calls --bytes {BYTES} --depth {DEPTH}"
    server = pair.server.start(f"exec {program.PATH} truth-server {words} {targets.ADDRESS}")
    wait_for(lambda: "ready" in server.text, 60, "the server is ready")
    limit = f"--count {messages}" if messages else ""
    client = pair.client.start(f"exec {program.PATH} truth-client {words} {limit} {target.address}")
    before = devices.RXE.counted(pair.client)["packets"]
    time.sleep(PAUSE)
    packets = devices.RXE.counted(pair.client)["packets"] - before
    assert not isinstance(target, (targets.Ours, targets.OverRdma)) or packets > 100, f"{packets} packets have gone over RDMA"
    made = 0
    for number, seconds in enumerate(cuts):
        if not client.running:
            break
        made += 1
        _cut_once(pair, row, target, client, 1 + number % row.links, seconds)
        time.sleep(PAUSE)
    assert server.running and (client.running or messages), client.text + server.text
    if not messages:
        pair.client.run("pkill -TERM -x -o messages")
    told = json.loads(client.wait(END))
    pair.server.run("pkill -TERM -x -o messages")
    return replace(judge(told, json.loads(server.wait(60).splitlines()[-1])), cuts=made)


def table(found: dict[str, Truth]) -> str:
    columns = ["cuts", "sent", "lost", "doubled", "out of order", "delivered after their error", "errors that the program saw",
               "requests in doubt", "longest silence, s"]
    return tables.table("", columns, [
        (name, [str(truth.cuts), f"{truth.sent:,}", *map(str, (truth.lost, truth.doubled, truth.out_of_order, truth.after_error)),
                f"{truth.errors} ({truth.error})" if truth.errors else "0",
                f"{truth.in_doubt} ({truth.delivered_in_doubt} delivered)" if truth.in_doubt else "0", f"{truth.longest_ms / 1000:.1f}"])
        for name, truth in found.items()])


def _cuts(kind: str) -> list[int]:
    return [seconds for seconds in CUTS for _ in range(int(kind))]


def load(file: Path) -> dict[str, Truth]:
    """The rows that were measured; none without a file."""
    return {name: Truth(**row) for name, row in json.loads(file.read_text()).items()} if file.exists() else {}


def measure(kind: str, flavour: str, only: str, folder: Path, modules: Path | None = None, of: str = "",
            add: bool = False) -> list[Exception]:
    """Leaves the table in a folder, to whose rows it adds others if it is to; returns what went wrong, which includes a
    promise that was not kept."""
    kernel = paths.kernel(flavour)
    file = folder / f"truth-{kind}.json"
    found = load(file) if add else {}
    failed: list[Exception] = []
    possible = targets.possible((kernel.build / "modules.order").read_text())
    for row in [row for row in ROWS if only in row.name and targets.BY_NAME[row.target] in possible]:
        if row.name in found or kind == HOUR and row.target != "ibmsg":
            continue
        try:
            with Pair(flavour, links=row.links, our_modules=modules or kernel.our_modules) as pair:
                found[row.name] = (run(pair, row, itertools.cycle(CUTS), MANY) if kind == HOUR
                                   else run(pair, row, _cuts(kind)))
        except FAILURES as error:
            print(f"*** {row.name}: {error}", flush=True)
            failed.append(error)
            continue
        print(f"{row.name:18} {found[row.name]}", flush=True)
        if row.target == "ibmsg" and (not found[row.name].is_kept or found[row.name].errors and row.links > 1):
            failed.append(AssertionError(f"{row.name}: {found[row.name]}"))
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({name: asdict(truth) for name, truth in found.items()}, indent=1) + "\n")
        file.with_suffix(".md").write_text(f"Modules of {of or commit()}, kernel {kernel.build.name}.\n\n{table(found)}\n")
    return failed
