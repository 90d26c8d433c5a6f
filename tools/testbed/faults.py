# SPDX-License-Identifier: GPL-2.0
"""Makes the calls of our modules fail, one at a time.

Scenarios use the table of functions.  In a guest that is server and client at once this is a
program: `faults.py BUDGET SEED [CASE...]` counts the calls in each phase, makes cases of them, and
runs the named cases, or as many as fit into BUDGET seconds, in an order that SEED determines.  A
case is `phase:function:n`: the nth call of a function fails in that phase; or
`phase:injector@where:n`, for the kernel's own injectors.  After each case everything must work
again, and the disk must hold what was written.  The program prints a line for each case and a
summary in JSON, and ends with 0 if all was well."""

import errno
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass

try:
    from . import races
except ImportError:  # in a guest, where it lies beside it
    import races

FOLDER = "/sys/kernel/debug/ibtrs_faults"
DEBUG = "/sys/kernel/debug"
MODPROBE = "/proc/sys/kernel/modprobe"
MODULES = ("ibtrs_core", "ibtrs_server", "ibtrs_client", "ibnbd_server", "ibnbd_client")


@dataclass(frozen=True)
class Function:
    """A function that is made to fail: what its callers get (see faults/ibtrs_faults.c),
    how many calls there may be between it and ours, and the error."""

    name: str
    kind: str = "errno"
    depth: int = 1
    error: int = errno.ENOMEM

    @property
    def watched(self) -> str:
        """The order to watch it."""
        return f"{self.name} {self.kind} {self.depth}"


FUNCTIONS = (
    # Memory: through the kernel crate, whose own functions are in between.
    Function("krealloc_node_align_noprof", "alloc", 4),
    Function("kvrealloc_node_align_noprof", "alloc", 4),
    Function("vrealloc_node_align_noprof", "alloc", 4),
    Function("alloc_pages_node_noprof", "null"),
    Function("pcpu_alloc_noprof", "null", 2),
    Function("percpu_ref_init"),
    Function("alloc_workqueue_noprof", "null"),
    # Verbs.
    Function("ib_register_client"),
    Function("__ib_alloc_pd"),
    Function("__ib_alloc_cq"),
    Function("ib_alloc_mr"),
    Function("ib_map_mr_sg", error=errno.EINVAL),
    Function("ib_dma_virt_map_sg", "null", 2),
    Function("rxe_post_send", "post"),
    Function("rxe_post_recv", "post"),
    # The connection manager.
    Function("__rdma_create_kernel_id"),
    Function("rdma_create_qp"),
    Function("rdma_bind_addr", error=errno.EADDRNOTAVAIL),
    Function("rdma_listen"),
    Function("rdma_resolve_addr", error=errno.ENODEV),
    Function("rdma_resolve_route", error=errno.EINVAL),
    Function("rdma_connect_locked"),
    Function("rdma_accept"),
    Function("rdma_notify", error=errno.EINVAL),
    Function("rdma_disconnect", error=errno.EINVAL),
    Function("rdma_reject"),
    Function("rdma_set_ack_timeout", error=errno.EINVAL),
    Function("rdma_set_reuseaddr", error=errno.EINVAL),
    Function("rdma_set_afonly", error=errno.EINVAL),
    # The block layer, and files.
    Function("blk_mq_alloc_tag_set"),
    Function("__blk_mq_alloc_disk"),
    Function("blk_mq_alloc_queue"),
    Function("bd_prepare_to_claim", error=errno.EBUSY),
    Function("device_add_disk"),
    Function("kern_path", error=errno.ENOENT),
    Function("vfs_path_lookup", error=errno.ENOENT),
    Function("bdev_file_open_by_dev", error=errno.EBUSY),
    Function("blkdev_issue_flush", error=errno.EIO),
    Function("filp_open", error=errno.EMFILE),
    Function("kernel_read", error=errno.EIO),
    Function("register_reboot_notifier"),
    # Keys and randomness.
    Function("wait_for_random_bytes", error=errno.EINTR),
    Function("keyring_alloc"),
    Function("keyring_search"),
    # configfs.
    Function("config_item_set_name"),
    Function("configfs_register_subsystem"),
    # sysfs.
    Function("class_create"),
    Function("dev_set_name"),
    Function("device_add"),
    Function("kobject_add"),
    Function("kobject_rename"),
    Function("kobject_uevent", depth=2),
    Function("kobject_uevent_env"),
    Function("sysfs_create_file_ns"),
    Function("sysfs_create_link_nowarn"),
    Function("kernfs_find_and_get_ns", "null"),
)
BY_NAME = {function.name: function for function in FUNCTIONS}
# Where the name in the sources is that of an inline function or an operation of a device,
# what stands behind it in a test.
BEHIND = {"alloc_pages_node": "alloc_pages_node_noprof", "ib_dma_map_sg": "ib_dma_virt_map_sg",
          "ib_post_send": "rxe_post_send", "ib_post_recv": "rxe_post_recv",
          "kx_keyring_alloc": "keyring_alloc", "kx_keyring_search": "keyring_search"}
# Injectors of the kernel, and what each is tried on: memory wherever it is taken below a
# call of ours, also by others for it; requests to the server's disk.
SLAB, PAGES, REQUESTS = "failslab", "fail_page_alloc", "fail_make_request"
# The Nth call from an unknown one fails: which one that is depends on chance, but it is one only.
INTERVALS = (1, 3, 11, 37, 101, 307)
# The device of a second disk of the session.
SECOND = "/dev/nullb1"


def put(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def say(words: str) -> None:
    """Also into the kernel's log, which tells then what was tried when it complained."""
    print(words, flush=True)
    put("/dev/kmsg", f"faults.py: {words}")


def watch() -> list[str]:
    """Has all functions watched that there are; those that there are not."""
    missing = []
    for function in FUNCTIONS:
        try:
            put(f"{FOLDER}/functions", function.watched)
        except OSError as error:
            if error.errno != errno.EEXIST:
                missing.append(f"{function.name}: {error.strerror}")
    return missing


def counts() -> dict[str, tuple[int, int]]:
    """Calls of each function, and how many of them failed."""
    with open(f"{FOLDER}/functions", encoding="utf-8") as file:
        return {name: (int(calls), int(failed)) for name, calls, failed in map(str.split, file)}


class Injection:
    """One failure that was ordered."""

    def __init__(self, what: str, n: int):
        self.what, self.n = what, n
        name, _, self.where = what.partition("@")
        self.function = BY_NAME.get(name)
        self.folder = f"{DEBUG}/{name}"

    def arm(self) -> None:
        if self.function:
            put(f"{FOLDER}/arm", f"{self.what} {self.n} {self.function.error} 1")
            return
        put(f"{FOLDER}/arm", "- 0 0 0")
        settings = {"interval": self.n, "space": 0, "verbose": 2, "times": 1}
        if self.what.startswith(REQUESTS):
            put(f"/sys/block/{self.where}/make-it-fail", "1")
        else:
            settings |= {"ignore-gfp-wait": "N", "task-filter": "N", "stacktrace-depth": 24, **self._range()}
            if self.what.startswith(PAGES):
                settings |= {"min-order": 0, "ignore-gfp-highmem": "N"}
        for name, value in {**settings, "probability": 100}.items():
            put(f"{self.folder}/{name}", str(value))

    def _range(self) -> dict[str, str]:
        """Nobody's text, as long as the module is not there."""
        with open(f"{FOLDER}/modules", encoding="utf-8") as file:
            for name, first, end in map(str.split, file):
                if name == self.where:
                    return {"require-start": first, "require-end": end}
        return {"require-start": "1", "require-end": "2"}

    def disarm(self) -> int:
        """How often it struck."""
        if self.function:
            struck = counts().get(self.what, (0, 0))[1]
            put(f"{FOLDER}/arm", "- 0 0 0")
            return struck
        put(f"{self.folder}/probability", "0")
        if self.what.startswith(REQUESTS):
            put(f"/sys/block/{self.where}/make-it-fail", "0")
        with open(f"{self.folder}/times", encoding="utf-8") as file:
            return 1 - int(file.read())


def path_of(link: int) -> str:
    return f"{races.CLIENT}/paths/*ip:10.0.{link}.1"


def unmapped() -> None:
    races.unmap(None, "force")
    races.wait(lambda: not glob.glob("/sys/block/ibnbd*"), "no disk is left")


def unload() -> str:
    """Removes all modules of ours; the first that will not go."""
    for name in ("ibnbd_client", "ibnbd_server", "ibtrs_client", "ibtrs_server", "ibtrs_core"):
        if os.path.exists(f"/sys/module/{name}") and races.rmmod(name) != "ok":
            return f"{name} stays"
    return "ok"


def healthy() -> bool:
    return races.states() == ["connected"] * 2


class Phases:
    """The operations during which a call fails. Before each the disk is there with both paths,
    unless its name is in `BEFORE`."""

    BEFORE = {"connect": unmapped, "load": lambda: (unmapped(), unload())}
    # After these the disk has to have both paths again, without anybody's help.
    HEALS = ("io", "failover")

    def __init__(self, checkers):
        self.checkers = checkers

    @staticmethod
    def load() -> str:
        """Where a call fails once, busybox loads the module at its second attempt."""
        answers = races.load()
        return "ok" if set(answers) <= {"ok", "none"} else "refused"

    @staticmethod
    def connect() -> str:
        return races.map_disk(None)

    def io(self) -> str:
        before = self.checkers.shared.total("refused")
        done = self.checkers.shared.total("writes") + 150
        races.wait(lambda: self.checkers.shared.total("writes") >= done, "I/O goes on")
        refused = self.checkers.shared.total("refused") - before
        return f"{refused} refused" if refused else "ok"

    def failover(self) -> str:
        """The server throws the client out, which fails over and connects again."""
        races.write(f"{races.SERVER}/paths/*1.1/disconnect", "1")
        noticed = time.monotonic() + 5
        while healthy() and time.monotonic() < noticed:
            time.sleep(0.01)
        done = self.checkers.shared.total("writes") + 20
        races.wait(lambda: self.checkers.shared.total("writes") >= done, "I/O goes on")
        races.wait(healthy, "both paths are connected")
        return "ok"

    @staticmethod
    def reconnect() -> str:
        races.write(f"{path_of(1)}/disconnect", "1")
        return races.write(f"{path_of(1)}/reconnect", "1")

    @staticmethod
    def add() -> str:
        races.write(f"{path_of(2)}/remove_path", "1")
        return races.write(f"{races.CLIENT}/add_path", "ip:10.0.2.1")

    @staticmethod
    def second() -> str:
        """Another disk of the session comes."""
        return races.write("/sys/class/ibnbd-client/ctl/map_device", races.MAP.replace(races.DEVICE, SECOND))

    @staticmethod
    def close() -> str:
        return races.force_close(None)

    @staticmethod
    def teardown() -> str:
        unmapped()
        if (answer := unload()) != "ok":
            raise OSError(errno.EBUSY, answer)
        return answer


PHASES = ("load", "connect", "io", "failover", "reconnect", "add", "second", "close", "teardown")


class Run:
    def __init__(self, checkers, seed: int):
        self.checkers, self.phases, self.dice = checkers, Phases(checkers), random.Random(seed)

    def deed(self, phase: str, injection: Injection | None) -> tuple[str, int, dict]:
        """Does what a phase is: the answer, how often the injection struck, and what was called."""
        say(f"{phase} {f'with {injection.what}:{injection.n}' if injection else 'is counted'}")
        self.checkers.race()
        Phases.BEFORE.get(phase, lambda: None)()
        if injection:
            injection.arm()
        else:
            put(f"{FOLDER}/arm", "- 0 0 0")
        struck = 0
        try:
            answer = getattr(self.phases, phase)()
        finally:
            called = counts()
            if injection:
                struck = injection.disarm()
        if phase in Phases.HEALS:
            races.wait(healthy, "both paths are connected again")
        else:
            races.put_right()
        if not self.checkers.calm(races.TIME_LIMIT):
            raise TimeoutError("I/O does not go on")
        return answer, struck, called

    def cases(self) -> list[str]:
        """All that can be made of what is called in each phase."""
        found = []
        for phase in PHASES:
            _, _, called = self.deed(phase, None)
            for name, (calls, _) in called.items():
                # Each of a few; of many the first, the last and some.
                which = range(1, calls + 1) if calls <= 8 else {
                    1, 2, 3, calls, calls - 1, calls // 2, *self.dice.sample(range(4, calls), 2)}
                found += [f"{phase}:{name}:{n}" for n in sorted(which)]
            # Where the modules are to be is known only once they are there.
            found += [f"{phase}:{kind}@{module}:{n}" for kind in (SLAB, PAGES) for module in MODULES
                      for n in INTERVALS if phase != "load"]
        return found + [f"io:{REQUESTS}@nullb0:{n}" for n in INTERVALS]

    def case(self, case: str) -> int:
        phase, what, n = case.split(":")
        answer, struck, _ = self.deed(phase, Injection(what, int(n)))
        say(f"{case}: {answer}{'' if struck else ' (not reached)'}")
        return struck


def pick(cases: list[str], dice) -> list[str]:
    """In an order in which the first ones are of many phases and functions."""
    groups: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        phase, what, _ = case.split(":")
        groups.setdefault((phase, what), []).append(case)
    queues = list(groups.values())
    for queue in queues:
        dice.shuffle(queue)
    dice.shuffle(queues)
    order = []
    while queues:
        order += [queue.pop() for queue in queues]
        queues = [queue for queue in queues if queue]
    return order


def of_share(cases: list[str], share: str) -> list[str]:
    """The cases of share k of n, which is written k/n, 1/n to n/n: all of a function in a phase, whose
    numbers may differ from run to run, are in one share."""
    number, count = map(int, share.split("/"))
    assert 1 <= number <= count, f"no share {share}"
    return [case for case in cases if zlib.crc32(case.rpartition(":")[0].encode()) % count == number - 1]


def main() -> int:
    from checker import Checkers

    budget, seed, share, named = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    # Functions of modules can be watched once these are there.
    races.load_needed()
    # The kernel would run modprobe for a disk that goes as it is opened, which holds up all.
    with open(MODPROBE, encoding="utf-8") as file:
        modprobe = file.read()
    put(MODPROBE, "\n")
    missing = watch()
    say(f"not watched: {missing}")
    races.put_right()
    say("the disk is mapped")
    checkers = Checkers(races.DISK, 2, 64, seed)
    run, done, struck, failed, cases = Run(checkers, seed), 0, 0, None, named
    case = "before the first case"
    try:
        if not named:
            cases = pick(of_share(run.cases(), share), run.dice)
        end = time.monotonic() + budget
        for case in cases:
            if not named and time.monotonic() > end:
                break
            struck += bool(run.case(case))
            done += 1
            if checkers.faults:
                failed = f"{case}: data"
                break
    except (TimeoutError, OSError) as error:
        failed = f"{case}: {error}"
        print(f"FAILED: {failed}\n{races.stacks()}", flush=True)
    checkers.end(failed is None)
    put(MODPROBE, modprobe)
    print(json.dumps({"cases": len(cases), "run": done, "struck": struck, "failed": failed, "missing": missing,
                      **checkers.figures()}), flush=True)
    return 0 if failed is None else 1


def build(flavour: str) -> str:
    """The module that makes functions fail, built for a test kernel; on the host."""
    from .paths import TOP

    script = TOP / "scripts/build-faults.sh"
    done = subprocess.run([script, flavour], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def load(guest) -> None:
    """Loads that module, which goes before ours: it looks for them when they come; on the host."""
    shutil.copy(build(guest.spec.kernel.flavour), guest.share)
    guest.run("busybox insmod /mnt/share/ibtrs_faults.ko")


if __name__ == "__main__":
    sys.exit(main())
