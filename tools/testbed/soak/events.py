# SPDX-License-Identifier: GPL-2.0
"""What happens in a soak test; after each, everything can go on."""

import random
import time
from contextlib import ExitStack

from .. import faults, free_memory, mishaps
from ..hostile import launch, report
from ..lab import SERVER_ADDRESS, Pair, wait_for
from ..reset import reset
from .loads import FLEETING, SIZE_MB, STACK, Loads, map_line
from .tally import Tally

POLICIES = ("rr", "mi", "ml")
# A hostile peer's program starts slowly in a guest that checks itself, beside the loads.
START_S = 600
# The disk that a hostile client may write to.
FOR_STRANGERS = "nullb3"
# MiB of a guest that others may not have; the rest is taken.  The network's packets have a reserve.
LEFT_MB, RESERVE_MB = 48, 16
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


class Events:
    """Each is a method that tells its name to the tally, makes it happen, and returns when it is over."""

    def __init__(self, pair: Pair, dice: random.Random, tally: Tally, loads: Loads):
        self.pair, self.dice, self.tally, self.loads = pair, dice, tally, loads
        self.can_fail = pair.kernel.flavour == "debug"
        self.injections: list = []
        # Some more often than others.
        self.beside_faults = [self.link_fails, self.link_fails, self.both_links_fail, self.server_disconnects,
                              self.operator, self.operator, self.disk_goes, self.disk_goes, self.all_at_once]
        # Without calls that fail, which would be taken for faults of what these look at.
        self.alone = [self.hostile_client, self.hostile_server, self.memory_is_exhausted, self.server_is_unloaded,
                      self.client_is_unloaded]

    def make_ready(self) -> None:
        """Before the loads begin."""
        self.pair.server.null_blk(FOR_STRANGERS, SIZE_MB)
        for guest in self.pair:
            guest.run(f"echo {RESERVE_MB << 10} > /proc/sys/vm/min_free_kbytes")
            if self.can_fail:
                guest.run("modprobe rdma_cm")
                faults.load(guest)
                words = "; ".join(f"echo {f.watched} > {faults.FOLDER}/functions" for f in faults.FUNCTIONS)
                guest.run(f"({words}) 2> /dev/null; true")
        mishaps.make_ready(self.pair)

    def one(self) -> None:
        if self.dice.random() < 0.2:
            self.dice.choice(self.alone)()
            return
        if self.can_fail and self.dice.random() < 0.7:
            self.call_fails()
        self.dice.choice(self.beside_faults)()

    # The network and its devices.

    def link_fails(self) -> None:
        what, link = self.dice.choice(list(LINKS)), self.dice.choice((1, 2))
        guest = self.dice.choice(list(self.pair))
        self.tally.note(f"link: {what}")
        with LINKS[what](self.pair, guest, link):
            time.sleep(self.dice.uniform(0, 12))

    def both_links_fail(self) -> None:
        self.tally.note("both links: all packets lost")
        with ExitStack() as stack:
            for link in (1, 2):
                stack.enter_context(mishaps.losing(self.pair.client, link, 100))
            time.sleep(self.dice.uniform(1, 15))

    # Orders.

    def server_disconnects(self) -> None:
        self.tally.note("the server disconnects paths")
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
        self.tally.note(f"operator: {what}")
        self.pair.client.run(deeds[what], check=False)

    def all_at_once(self) -> None:
        """Several operators who know nothing of one another, on the third disk's session."""
        self.tally.note("several operators at once")
        folder = "/sys/class/ibtrs-client/other"
        words = [f"echo 1 > {folder}/paths/*@ip:10.0.{link}.1/{what}" for link in (1, 2)
                 for what in ("disconnect", "reconnect", "remove_path")]
        words += [f"echo ip:10.0.{link}.1 > {folder}/add_path" for link in (1, 2)]
        words += [map_line("other", FLEETING), "echo force > /sys/block/ibnbd2/ibnbd/unmap_device"]
        chosen = self.dice.sample(words, 4)
        self.pair.client.run("for i in 1 2 3 4 5; do " + " ".join(f"({word}) 2> /dev/null &" for word in chosen) +
                             " wait; done", timeout=300, check=False)

    def disk_goes(self) -> None:
        how = self.dice.choice(("normal", "force", "force", "force_close", "resize"))
        self.tally.note(f"third disk: {how}")
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

    def server_is_unloaded(self) -> None:
        """Its sessions end, and their disks wait until it is back."""
        self.tally.note("the server's modules are unloaded and loaded again")
        self.pair.server.run(STACK.unload("server"), timeout=300)
        time.sleep(self.dice.uniform(0, 10))
        self.pair.server.run(STACK.load_server(), timeout=300)

    def client_is_unloaded(self) -> None:
        self.tally.note("the client's modules are unloaded and loaded again")
        self.loads.end()
        reset(self.pair.client)
        self.loads.begin()

    # Peers that break the protocol, beside honest ones.

    def hostile_client(self) -> None:
        self.tally.note("a hostile client")
        client = self.pair.client
        fuzz = launch.ready(launch.start(client, "fuzz", f"{self._seed()} 1 {FOR_STRANGERS}"), START_S)
        time.sleep(self.dice.uniform(5, 20))
        client.run(f"touch {report.ENOUGH}")
        assert fuzz.wait(900, check=False).ok, fuzz.text[-3000:]

    def hostile_server(self) -> None:
        """The client maps disks of it, which must all go again."""
        self.tally.note("a hostile server")
        server, client = self.pair
        serving = launch.ready(launch.start(server, "serve_lies", SERVER_ADDRESS.format(link=1)), START_S)
        victim = launch.ready(launch.start(client, "fuzz_victim", f"{self._seed()} 1"), START_S)
        time.sleep(self.dice.uniform(5, 20))
        client.run(f"touch {report.ENOUGH}")
        said = victim.wait(1500, check=False)
        serving.kill()
        assert said.ok and report.parse(said) and not report.failures(said), said

    def _seed(self) -> int:
        return self.dice.randrange(1 << 32)

    # Memory and calls.

    def memory_is_exhausted(self) -> None:
        guest = self.dice.choice(list(self.pair))
        self.tally.note(f"the {guest.name}'s memory is taken")
        hog = free_memory.take(guest, LEFT_MB)
        time.sleep(self.dice.uniform(5, 15))
        hog.kill()
        wait_for(lambda: not hog.running, 60, "the memory is given back")

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
            self.tally.note("a call is to fail")
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
