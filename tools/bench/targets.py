# SPDX-License-Identifier: GPL-2.0
"""The targets: disks that reach a null block device by one transport or another."""

from dataclasses import dataclass

from testbed import keyring, nvmeof
from testbed.guest import Guest
from testbed.lab import SERVER_ADDRESS
from testbed.stack import STACKS, Stack

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
ADDRESS = SERVER_ADDRESS.format(link=1)


@dataclass(frozen=True)
class Target:
    name: str
    # Paths of a session, each with an interface of its own.
    links: int = 1
    polled: bool = False
    # Whether it needs RTRS and RNBD of the kernel, or modules of ours.
    mainline: bool = False
    ours: bool = False
    # Whether both sides have a key, and so authenticate.
    keys: bool = False
    # By which suites; what the module's parameter takes.
    suites: str = "any"
    # Whether others of its kind can be measured in the same guest later.
    leaves: bool = True

    def connect(self, guest: Guest, exported: list[str], cpus: int) -> list[str]:
        """Loads and connects what is measured; returns the disks."""
        raise NotImplementedError

    def leave(self, guest: Guest) -> None:
        """Makes room for others that `leaves` promises."""


@dataclass(frozen=True)
class Null(Target):
    """The null block device itself."""

    def connect(self, guest, exported, cpus):
        return exported


@dataclass(frozen=True)
class Floor(Target):
    """Two messages for an I/O, and no disk behind them."""

    # How the server handles completions.
    server: str = "process"
    # One connection for all processors, in place of one for each.
    one: bool = False

    def connect(self, guest, exported, cpus):
        queues, disks = 1 if self.one else cpus, len(exported)
        guest.run(f"modprobe rdma_floor addr={ADDRESS} queues={queues} disks={disks} server={self.server}")
        return [f"/dev/floor{number}" for number in range(disks)]

    def leave(self, guest):
        guest.run("modprobe -r rdma_floor")


@dataclass(frozen=True)
class Remote(Target):
    """A target whose sides may be guests of their own."""

    leaves: bool = False

    def join(self, server: Guest, client: Guest, exported: list[str], cpus: int) -> list[str]:
        """As `connect`, with two guests, or with one for both sides."""
        raise NotImplementedError

    def connect(self, guest, exported, cpus):
        return self.join(guest, guest, exported, cpus)


@dataclass(frozen=True)
class Transport(Remote):
    """Ours, or RTRS and RNBD of the kernel, or one of each."""

    client: Stack = OURS
    server: Stack = OURS
    invalidate: str = "Y"
    # Whether our server invalidates the keys of mainline's clients.
    remote_invalidation: bool = True
    # The value of data_checksum for map_device.
    checksum: str = "none"
    # Slots in place of chunks.
    slots: bool = False

    def load(self, server: Guest, client: Guest) -> None:
        """Loads either side; both may be one guest, which then gets its key twice."""
        if self.keys:
            keyring.load(server)
            keyring.load(client)
            client.run(f"modprobe ibtrs_client auth_suites={self.suites}")
        slots = ""
        if self.slots:
            # Lost packets are what soft-RoCE cannot bear with slots, and none is lost here.
            slots = "slots_over_rxe=Y"
            client.run(f"modprobe ibtrs_client {slots}")
        remote = "" if self.remote_invalidation else "remote_invalidation=N"
        server.run(f"modprobe {self.server.transport('server')} always_invalidate={self.invalidate} {remote} {slots}")
        server.run(self.server.load_server())
        client.run(self.client.load_client())

    def map(self, guest: Guest, device: str) -> None:
        paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in range(1, self.links + 1))
        options = " nr_poll_queues=-1" if self.polled else ""
        options += f" data_checksum={self.checksum}" if self.checksum != "none" else ""
        guest.run(f'echo "sessname=demo {paths} device_path={self.server.exported(device)}{options}" > {self.client.map_file}')

    def join(self, server, client, exported, cpus):
        self.load(server, client)
        for device in exported:
            self.map(client, device)
        return [f"/dev/{self.client.family}{number}" for number in range(len(exported))]


@dataclass(frozen=True)
class NvmeOf(Remote):
    """NVMe over fabrics of the kernel, both ends."""

    def join(self, server, client, exported, cpus):
        nvmeof.export(server, "bench", exported, [ADDRESS])
        nvmeof.connect(client, "bench", ADDRESS, f",nr_poll_queues={cpus}" if self.polled else "")
        return nvmeof.disks(client, len(exported))


TARGETS: list[Target] = [
    Null("null_blk"),
    Floor("floor, process"),
    Floor("floor, softirq", server="softirq"),
    Floor("floor, thread", server="thread"),
    Floor("floor, one connection", one=True),
    Transport("RNBD Y", client=MAINLINE, server=MAINLINE, mainline=True),
    Transport("RNBD N", client=MAINLINE, server=MAINLINE, mainline=True, invalidate="N"),
    NvmeOf("NVMe-oF"),
    Transport("ibnbd Y", ours=True),
    Transport("ibnbd N", ours=True, invalidate="N"),
    Transport("ibnbd Y, slots", ours=True, slots=True),
    Transport("ibnbd Y, keys", ours=True, keys=True),
    Transport("ibnbd Y, checksums", ours=True, checksum="crc32c"),
    Transport("ibnbd to RNBD Y", server=MAINLINE, ours=True, mainline=True),
    Transport("RNBD to ibnbd Y", client=MAINLINE, ours=True, mainline=True),
    Transport("RNBD to ibnbd Y, client invalidates", client=MAINLINE, ours=True, mainline=True, remote_invalidation=False),
    Transport("ibnbd Y, two paths", ours=True, links=2),
    Transport("ibnbd Y, polled", ours=True, polled=True),
    Transport("RNBD Y, polled", client=MAINLINE, server=MAINLINE, mainline=True, polled=True),
    NvmeOf("NVMe-oF, polled", polled=True),
]
BY_NAME = {target.name: target for target in TARGETS}
