# SPDX-License-Identifier: GPL-2.0
"""The machines of a scenario: two guests joined by cables, or one alone, with soft-RoCE on every
link."""

import dataclasses
import itertools
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import accel, boots, card, modules, paths
from .accel import Accel
from .channel import CommandFailed
# The last one for those who have a lab.
from .guest import DidNotBoot, Guest, Spec, wait_for  # noqa: F401

SERVER_ADDRESS = "10.0.{link}.1"
CLIENT_ADDRESS = "10.0.{link}.2"
MTU = 9000
# Kinds of software RDMA, and the modules that have them.
RDMA_MODULES = {"rxe": "rdma_rxe", "siw": "siw", "card": "rdma_card"}

# Watchdogs wait longer for the same reason as in guest.COMMAND_LINE.
STOCK_ARGUMENTS = "sysctl.kernel.watchdog_thresh=60 sysctl.kernel.hung_task_timeout_secs=120"
# Tests inside modules run when these are loaded: only where asked for.  Sessions
# are small, as setting up what a request needs takes longest where every
# allocation is watched; scenarios that want the default of 512 say so.
DEBUG_ARGUMENTS = ("ibtrs_server.sess_queue_depth=64 rtrs_server.sess_queue_depth=64 "
                   f"kunit.enable=0 workqueue.watchdog_thresh=240 {STOCK_ARGUMENTS}")

_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Boot:
    """How a guest boots that has a root of its own."""

    initrd: Path
    kernel_arguments: str


def _mac(link: int, side: int) -> str:
    """The hardware address of the server's (1) or the client's (2) end."""
    return f"52:54:00:00:{link:02x}:{side:02x}"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _run_folder() -> Path:
    """A new folder for sockets and logs, named by the process, so that what a
    killed one left can be cleared away."""
    base = paths.cache() / "runs"
    base.mkdir(parents=True, exist_ok=True)
    for old in base.iterdir():
        if not Path("/proc", old.name.split("-")[0]).exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = base / f"{os.getpid()}-{next(_numbers)}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


class Lab:
    """Base of Pair and Solo: guests that share a kernel and a module tree."""

    names: tuple[str, ...] = ()
    # Whether they boot into a Debian of their own.
    systemd = False

    def __init__(self, flavour: str = "debug", links: int = 1, rdma: str = "rxe",
                 kernel_arguments: str = "", cpus: int = 2, disks: dict | None = None,
                 how: Accel | None = None, our_modules: Path | None = None, memory: tuple[int, ...] = ()):
        self.kernel = paths.kernel(flavour)
        if our_modules is not None:
            self.kernel = dataclasses.replace(self.kernel, our_modules=our_modules)
        self.links, self.rdma, self.cpus = links, rdma, cpus
        self.accel = how or accel.choose(self.kernel)
        if self.kernel.slow:
            kernel_arguments = f"{DEBUG_ARGUMENTS} {kernel_arguments}"
        elif flavour == "stock":
            kernel_arguments = f"{STOCK_ARGUMENTS} {kernel_arguments}"
        self.kernel_arguments = kernel_arguments
        self.disks = disks or {}
        # Of the guests in the order of their names, in MiB.
        self.memory = dict(zip(self.names, memory))
        # Files that guests with systemd have in their Debian from the next boot on: by guest, texts
        # by their paths.  Whatever they write there themselves is gone by then.
        self.files: dict[str, dict[str, str | bytes]] = {}
        # Those that boot otherwise from the next boot on.
        self.boots: dict[str, Boot] = {}
        self.tree = self._debian() if self.systemd else None
        self.folder = _run_folder()
        self.more_modules = card.build(flavour) if rdma == "card" else None
        modules.stage(self.kernel, self.folder / "modules", self.more_modules)
        self.generation = itertools.count(1)
        self.guests: dict[str, Guest] = {}
        try:
            for name in self.names:
                self._launch(name)
            self._all_ready()
        except BaseException:
            self.close(keep=True)
            raise

    def _nics(self, name: str) -> list[list[str]]:
        return []

    def _debian(self) -> Path:
        """The root file system of guests with systemd."""
        return paths.guest_tree()

    def _files(self, name: str) -> dict[str, str | bytes]:
        return self.files.get(name, {})

    def accel_of(self, name: str) -> Accel:
        """How the processors of a guest run."""
        return self.accel

    def _launch(self, name: str) -> None:
        folder = self.folder / f"{name}-{next(self.generation)}"
        boot = self.boots.get(name)
        arguments = f"{self.kernel_arguments} {boot.kernel_arguments}" if boot else self.kernel_arguments
        spec = Spec(name, self.kernel, self.accel_of(name), self.folder / "modules", cpus=self.cpus,
                    nics=self._nics(name), disks=self.disks.get(name, []),
                    kernel_arguments=arguments, tree=self.tree,
                    files=self._files(name), initrd=boot and boot.initrd, memory=self.memory.get(name))
        self.guests[name] = Guest(spec, folder)

    def _all_ready(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._ready, self.guests.values()))

    def _ready(self, guest: Guest) -> None:
        """Waits for a guest that was launched, and sets its links up.  Nothing of ours is loaded
        by then: one that does not get there is booted again, whatever the reason."""
        name = guest.name
        for again in reversed(range(boots.TRIES)):
            boots.COUNT.begin()
            try:
                guest.wait_booted()
                guest.run(together(self.network(name)))
                return
            except (DidNotBoot, CommandFailed) as error:
                guest.kill()
                if not again:
                    raise
                boots.COUNT.fail(guest, error)
                self._launch(name)
                guest = self.guests[name]

    def network(self, name: str) -> list[str]:
        """The commands that set a guest's links up."""
        raise NotImplementedError

    def reboot(self, name: str, disks: list[Path] | None = None) -> Guest:
        """Kills a guest and starts it again, as after a power cut.  It keeps the
        disks that it had (images on the host: /dev/vda, /dev/vdb and so on),
        unless others are given."""
        if disks is not None:
            self.disks = {**self.disks, name: disks}
        self.launch(name)
        return self.ready(name)

    def launch(self, name: str) -> Guest:
        """The same for one that cannot come up yet, and is not waited for."""
        self.guests[name].kill()
        self._launch(name)
        return self.guests[name]

    def ready(self, name: str) -> Guest:
        """Waits until a guest that was launched is up."""
        self._ready(self.guests[name])
        return self.guests[name]

    def restage(self) -> None:
        """Gives the running guests our modules as they are built now."""
        modules.restage(self.kernel, self.folder / "modules", self.more_modules)

    def close(self, keep: bool = False) -> None:
        for guest in self.guests.values():
            guest.kill()
        shutil.rmtree(self.folder / "modules", ignore_errors=True)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close(keep=kind is not None)


class Pair(Lab):
    """A storage server and a client; link n has 10.0.n.1 and 10.0.n.2."""

    names = ("server", "client")

    @property
    def server(self) -> Guest:
        return self.guests["server"]

    @property
    def client(self) -> Guest:
        return self.guests["client"]

    def __iter__(self):
        return iter((self.server, self.client))

    def _nics(self, name: str) -> list[list[str]]:
        # One end listens again after the other went away, the other end tries
        # to connect again: either guest may be killed and come back.
        # Without mrg_rxbuf, virtio_net takes its buffers from no page pool: rxe
        # frees packets of a failed queue pair with interrupts off, which page
        # pools do not allow.
        side = self._side(name)
        role = "server=on" if side == 1 else "server=off,reconnect-ms=100"
        return [["-netdev", f"stream,id=link{link},{role},addr.type=unix,addr.path={self.folder}/link{link}",
                 "-device", f"virtio-net-pci,id=nic{link},netdev=link{link},host_mtu={MTU},romfile=,"
                            f"mrg_rxbuf=off,mac={_mac(link, side)}"]
                for link in self._links(name)]

    def _links(self, name: str) -> range:
        """The links that the guest is at an end of."""
        return range(1, self.links + 1)

    def _side(self, name: str) -> int:
        """The last part of the guest's addresses: 1 for servers, 2 for clients."""
        return 2 if name == "client" else 1

    def _end(self, name: str, link: int) -> tuple[str, str]:
        """The interface and the RDMA device at the guest's end of a link."""
        number = self._links(name).index(link)
        return f"eth{number}", f"{self.rdma}{number}"

    def wire(self, name: str, link: int) -> list[str]:
        """The commands that set one end of a link up, also again after its
        interface was down, which forgets neighbours and IPv6 addresses."""
        addresses = (SERVER_ADDRESS, CLIENT_ADDRESS)
        side = self._side(name)
        nic, other = self._end(name, link)[0], 3 - side
        # rxe gives a queue pair up, without a word, when the network stack
        # refuses one packet.  So the peer's address is not asked for again
        # and again, and there is room for everything that waits.
        neighbour = f"lladdr {_mac(link, other)} dev {nic} nud permanent"
        return [f"ip link set {nic} mtu {MTU} txqueuelen 20000 up",
                f"ip addr replace {addresses[side - 1].format(link=link)}/24 dev {nic}",
                f"ip addr replace fd00:0:0:{link}::{side}/64 dev {nic} nodad",
                f"ip neigh replace {addresses[other - 1].format(link=link)} {neighbour}",
                f"ip neigh replace fd00:0:0:{link}::{other} {neighbour}"]

    def add_device(self, name: str, link: int) -> str:
        """The command that makes the RDMA device of one end of a link."""
        nic, device = self._end(name, link)
        return f"rdma link add {device} type {self.rdma} netdev {nic}"

    def remove_device(self, name: str, link: int) -> str:
        """The command that takes it away again."""
        return f"rdma link del {self._end(name, link)[1]}"

    def network(self, name: str) -> list[str]:
        commands = [f"modprobe {RDMA_MODULES[self.rdma]}"]
        if self.rdma == "siw":
            # It connects as programs do, and nobody can stop it: two minutes if nobody answers.
            commands.append("echo 1 > /proc/sys/net/ipv4/tcp_syn_retries")
        for link in self._links(name):
            commands += [*self.wire(name, link), self.add_device(name, link)]
        return commands


class Debian(Pair):
    """A pair that boots into Debian with systemd and udev, on Debian's kernel."""

    systemd = True


# Sets the links up while the guest boots, and down when it shuts down, as the programs that
# know networks do.
NETWORK_UNIT = """[Unit]
Description=Links of the testbed
Before=network.target network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec '{up}'
ExecStop=/bin/sh -ec '{down}'
"""
NETWORK_IS_ONLINE = """[Unit]
Wants=testbed-network.service
"""


class Installed(Pair):
    """A pair that boots into the Debian in which our packages are installed, with the modules
    that DKMS built from them, on Debian's kernel.  Its network is there when systemd says so."""

    systemd = True

    def __init__(self, flavour: str, **options):
        self.installed = paths.package_tree()
        built = self.installed / "usr/lib/modules" / paths.kernel(flavour).release / "updates/dkms"
        super().__init__(flavour, our_modules=built, **options)

    def _debian(self) -> Path:
        return self.installed

    def _files(self, name: str) -> dict[str, str | bytes]:
        folder = "/etc/systemd/system"
        unit = NETWORK_UNIT.format(
            up="; ".join(super().network(name)),
            down="; ".join(f"ip link set {self._end(name, link)[0]} down" for link in self._links(name)))
        return {f"{folder}/testbed-network.service": unit,
                f"{folder}/network-online.target.d/testbed.conf": NETWORK_IS_ONLINE,
                **super()._files(name)}

    def network(self, name: str) -> list[str]:
        return ["systemctl start network-online.target"]


class Reachable(Pair):
    """A pair that the host reaches by ssh: each guest has one more interface, on which there is nothing else, and
    whose port 22 is a port of the host."""

    ADDRESS = "10.9.0.15"

    def __init__(self, flavour: str, **options):
        self.ports = {name: _free_port() for name in self.names}
        super().__init__(flavour, **options)

    def _nics(self, name: str) -> list[list[str]]:
        forward = f"hostfwd=tcp:127.0.0.1:{self.ports[name]}-{self.ADDRESS}:22"
        return [*super()._nics(name),
                ["-netdev", f"user,id=outside,net=10.9.0.0/24,restrict=on,{forward}",
                 "-device", "virtio-net-pci,id=nicoutside,netdev=outside,romfile="]]

    def network(self, name: str) -> list[str]:
        nic = f"eth{self.links}"
        return [*super().network(name), f"ip link set {nic} up", f"ip addr replace {self.ADDRESS}/24 dev {nic}"]


class Packaged(Reachable, Installed):
    """Machines of a user: Debian with our packages, which the host reaches by ssh."""


class Trio(Pair):
    """Two storage servers and a client, which is joined to the first by link 1 and
    to the second by link 2."""

    names = ("server", "second", "client")

    @property
    def second(self) -> Guest:
        return self.guests["second"]

    def __iter__(self):
        return iter((self.server, self.second, self.client))

    def _links(self, name: str) -> range:
        return {"server": range(1, 2), "second": range(2, 3)}.get(name, range(1, 3))


class Solo(Lab):
    """One guest that is server and client at once: link n is a dummy
    interface with 10.0.n.1."""

    names = ("solo",)

    @property
    def guest(self) -> Guest:
        return self.guests["solo"]

    def network(self, name: str) -> list[str]:
        commands = [f"modprobe {RDMA_MODULES[self.rdma]}", "modprobe dummy numdummies=0"]
        for link in range(1, self.links + 1):
            nic = f"dummy{link - 1}"
            commands += [f"ip link add {nic} type dummy",
                         f"ip link set {nic} mtu {MTU} up",
                         f"ip addr add {SERVER_ADDRESS.format(link=link)}/24 dev {nic}",
                         f"rdma link add {self.rdma}{link - 1} type {self.rdma} netdev {nic}"]
        return commands


def together(commands: list[str]) -> str:
    """The commands as one, each only if those before went well.  Those for `ip`
    that follow one another are given to one: where the kernel checks itself
    most of the time goes into starting programs."""
    parts = []
    for is_ip, group in itertools.groupby(commands, lambda command: command.startswith("ip ")):
        if is_ip:
            lines = " ".join(f"'{command.removeprefix('ip ')}'" for command in group)
            parts.append(f"printf '%s\\n' {lines} | ip -batch -")
        else:
            parts += group
    return " && ".join(parts) or "true"
