# SPDX-License-Identifier: GPL-2.0
"""The targets: ways to send messages from one program to another, and the floor."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from bench import devices
from testbed.guest import Guest, wait_for
from testbed.lab import CLIENT_ADDRESS, SERVER_ADDRESS

from . import program
from .loads import Load

ADDRESS = SERVER_ADDRESS.format(link=1)
CLIENT = CLIENT_ADDRESS.format(link=1)
SESSION = "demo"
TIME_LIMIT = 900
# All on one processor: where programs go otherwise differs from run to run, and with it the number of interrupts
# between processors. The clock counts the instructions of all processors, so that nothing is gained by several.
PINNED = "taskset -c 0"


@dataclass(frozen=True)
class Target:
    name: str
    # Targets of a group share a guest.
    group: str
    # The kinds of loads that it can have.
    kinds: tuple[str, ...] = ("calls", "round", "oneway", "connects")
    # Whether both sides can be in one guest, and in two.
    together: bool = True
    apart: bool = True
    # The module that a kernel must have.
    needs: str = ""
    # More than one needs files to wait for.
    many_channels: bool = True

    def join(self, server: Guest, client: Guest) -> None:
        """Loads and connects what its group needs; both guests may be one."""

    def run(self, server: Guest, client: Guest, load: Load, count: int) -> int:
        """Sends messages; returns the nanoseconds that they took."""
        raise NotImplementedError

    def can(self, load: Load) -> bool:
        return load.kind in self.kinds and (self.many_channels or load.channels == 1)


@dataclass(frozen=True)
class Program(Target):
    """A back end of the harness."""

    backend: str = ""
    address: str = ADDRESS

    def run(self, server: Guest, client: Guest, load: Load, count: int) -> int:
        words = f"{self.backend} --peer {CLIENT} {load.arguments(count)}"
        serving = server.start(f"exec {PINNED} {program.PATH} server {words} {ADDRESS}")
        wait_for(lambda: "ready" in serving.text or not serving.running, 60, "the server is ready", pause=0.02)
        try:
            said = client.run(f"{PINNED} {program.PATH} client {words} {self.address} 2>&1", TIME_LIMIT)
        except Exception:
            time.sleep(1)
            print(f"*** the server: {serving.text}", flush=True)
            serving.kill()
            raise
        serving.wait(60)
        return json.loads(said)["ns"]


@dataclass(frozen=True)
class Ours(Program):
    """Channels over a session without disks."""

    address: str = SESSION

    def join(self, server: Guest, client: Guest) -> None:
        server.run("modprobe ibmsg && modprobe ibnbd_server")
        client.run("modprobe ibmsg && modprobe ibnbd_client")
        client.run(f'echo "sessname={SESSION} path=ip:{ADDRESS}" > /sys/class/ibnbd-client/ctl/open_session')


@dataclass(frozen=True)
class OverRdma(Program):
    """A transport of the kernel that uses an RDMA device between two machines, and something else in one."""

    together: bool = False

    def run(self, server: Guest, client: Guest, load: Load, count: int) -> int:
        before = devices.RXE.counted(client)["packets"]
        taken = super().run(server, client, load, count)
        packets = devices.RXE.counted(client)["packets"] - before
        # Of a load of many, several may go in one packet.
        assert packets > count / 50, f"{packets} packets of {count} messages went over RDMA"
        return taken


@dataclass(frozen=True)
class Smc(OverRdma):
    def join(self, server: Guest, client: Guest) -> None:
        for guest in (server, client):
            guest.push("/tmp/smc_id.py", (Path(__file__).parent / "smc_id.py").read_text())
            guest.run("modprobe smc && python3 /tmp/smc_id.py")


@dataclass(frozen=True)
class Rds(OverRdma):
    def join(self, server: Guest, client: Guest) -> None:
        for guest in (server, client):
            guest.run("modprobe rds_rdma")


@dataclass(frozen=True)
class Rsockets(OverRdma):
    """Sockets of librdmacm. In one guest, connections to the same machine hang now and then."""

    many_channels: bool = False

    def join(self, server: Guest, client: Guest) -> None:
        for guest in (server, client):
            guest.run("modprobe rdma_ucm && modprobe ib_uverbs")


@dataclass(frozen=True)
class Floor(Target):
    """Two messages, between two ends in one kernel: tools/bench/floor."""

    # How the server handles completions.
    server: str = "process"
    kinds: tuple[str, ...] = ("calls",)
    apart: bool = False
    many_channels: bool = False

    def join(self, server: Guest, client: Guest) -> None:
        client.run(f"modprobe rdma_floor addr={ADDRESS} server={self.server}")

    def run(self, server: Guest, client: Guest, load: Load, count: int) -> int:
        parameter = "/sys/module/rdma_floor/parameters/exchange"
        for messages in (64, count):
            exchange = f"echo {load.bytes} {messages} {load.depth} > {parameter}"
            client.run(f"{PINNED} bash -c '{exchange}'", TIME_LIMIT)
        return int(client.run(f"cat {parameter}"))


# Rings open channels as programs without them do, RDS has no connections of programs, and a load that does nothing else
# is for files.
WITHOUT_CONNECTS = ("calls", "round", "oneway")
TARGETS: list[Target] = [
    Floor("floor, process", "floor in process context"),
    Floor("floor, softirq", "floor in softirq", server="softirq"),
    Program("TCP", "sockets", backend="tcp"),
    Program("TCP, io_uring", "sockets", backend="tcp-ring", kinds=WITHOUT_CONNECTS),
    Program("ZeroMQ", "libraries", backend="zeromq", kinds=WITHOUT_CONNECTS, many_channels=False),
    Program("NNG", "libraries", backend="nng", kinds=WITHOUT_CONNECTS, many_channels=False),
    Smc("SMC-R", "SMC", backend="smc", needs="smc"),
    Rds("RDS", "RDS", backend="rds", needs="rds_rdma", kinds=WITHOUT_CONNECTS),
    Rsockets("rsockets", "rsockets", backend="rsockets", needs="rdma_ucm", kinds=WITHOUT_CONNECTS),
    Ours("ibmsg", "ours", backend="ibmsg"),
    Ours("ibmsg, MORE", "ours", backend="ibmsg-more", kinds=("oneway",)),
    Ours("ibmsg, polling", "ours", backend="ibmsg-polling", kinds=("calls", "round"), many_channels=False),
    Ours("ibmsg, CALL", "ours", backend="ibmsg-call", kinds=("calls",)),
    Ours("ibmsg, io_uring", "ours", backend="ibmsg-ring", kinds=WITHOUT_CONNECTS),
    Ours("ibmsg, memory", "ours", backend="ibmsg-memory", kinds=("get", "put")),
    Ours("ibmsg, publish", "ours", backend="ibmsg-publish", kinds=("publish",)),
]
BY_NAME = {target.name: target for target in TARGETS}


def possible(modules: str, only: str = "") -> list[Target]:
    """Those that a kernel with these modules (its modules.order) can have, and whose name is asked for: by a part of it, or
    by whole names between bars."""
    there, names = {Path(line).stem for line in modules.split()}, only.split("|")
    return [target for target in TARGETS if (target.name in names if "|" in only else only in target.name)
            and (not target.needs or target.needs in there)]
