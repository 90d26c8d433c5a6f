# SPDX-License-Identifier: GPL-2.0
"""Operations of operators, servers and devices on a disk, each against each other.

Scenarios use the names.  In a guest that is server and client at once this is a program:
`races.py BUDGET SECONDS SEED PAIR...` repeats both operations of each pair, `one+other`, for
SECONDS, in one process each, while a third process maps the disk and adds missing paths, and
others write and compare.  After each pair everything is restored: the disk must be there and hold
what was written.  No pair begins after BUDGET seconds.  The program prints a line for each pair
and a summary in JSON, and ends with 0 if all was well."""

import errno
import glob
import json
import os
import random
import sys
import time

SESSION, DEVICE = "demo", "/dev/nullb0"
DISK = "/dev/ibnbd0"
CLIENT = f"/sys/class/ibtrs-client/{SESSION}"
SERVER = "/sys/class/ibtrs-server/*"
EXPORT = "/sys/class/ibnbd-server/ctl/devices/*/sessions/*"
MAP = f"sessname={SESSION} path=ip:10.0.1.1 path=ip:10.0.2.1 device_path={DEVICE}"
SETTINGS = {"hb_interval_ms": 1000, "reconnect_delay_ms": 50, "queue_timeout_s": 10}
SIZE_MB, BLOCKS = 16, 512
# So long may one thing take that is done to a disk, and putting all right.
TIME_LIMIT = 120


def write(pattern: str, text: str) -> str:
    """Writes to a file, or to each that fits; what came of it."""
    answer = "none"
    for path in glob.glob(pattern):
        try:
            file = os.open(path, os.O_WRONLY)
            try:
                os.write(file, text.encode())
                answer = "ok"
            finally:
                os.close(file)
        except OSError as error:
            answer = errno.errorcode.get(error.errno, str(error.errno))
    return answer


def program(*words: str) -> str:
    child = os.posix_spawnp(words[0], words, os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2)])
    return "ok" if os.waitpid(child, 0)[1] == 0 else "refused"


def insmod(name: str, *arguments: str) -> str:
    """Much sooner than modprobe where programs take their time to start."""
    if os.path.exists(f"/sys/module/{name}"):
        return "none"
    return program("busybox", "insmod", f"/lib/modules/{os.uname().release}/extra/{name}.ko", *arguments)


def rmmod(name: str) -> str:
    return program("busybox", "rmmod", name)


def parameters(module: str) -> list[str]:
    """The parameters of a module on the kernel's command line, which insmod does not read."""
    with open("/proc/cmdline", encoding="utf-8") as file:
        return [word.partition(".")[2] for word in file.read().split() if word.startswith(module + ".")]


def load_needed() -> None:
    """Loads what ours need of the kernel; the second is not a module everywhere."""
    program("modprobe", "-a", "rdma_cm", "libcurve25519")


def load() -> list[str]:
    """Loads all modules of ours; what came of each."""
    if not os.path.exists("/sys/module/rdma_cm"):
        load_needed()
    return [insmod(name, *parameters(name), *more) for name, *more in (
        ("ibtrs_core",), ("ibtrs_server", "sess_queue_depth=32"), ("ibtrs_client",), ("ibnbd_client",),
        ("ibnbd_server", "dev_search_path=/dev"))]


def map_disk(dice) -> str:
    return write("/sys/class/ibnbd-client/ctl/map_device", MAP)


def restore(dice) -> str:
    """Undoes the effects of the others: everything that is missing is restored."""
    answer = map_disk(dice)
    if len(glob.glob(f"{CLIENT}/paths/*")) < 2:
        add_path(dice)
    time.sleep(0.03)
    return answer


def unmap(dice, how: str = "normal") -> str:
    return write("/sys/block/ibnbd*/ibnbd/unmap_device", how)


def add_path(dice) -> str:
    return write(f"{CLIENT}/add_path", f"ip:10.0.{dice.choice((1, 2))}.1")


def remove_path(dice) -> str:
    return write(f"{CLIENT}/paths/*ip:10.0.{dice.choice((1, 2))}.1/remove_path", "1")


def reconnect(dice) -> str:
    return write(f"{CLIENT}/paths/*ip:10.0.{dice.choice((1, 2))}.1/reconnect", "1")


def disconnect_path(dice) -> str:
    return write(f"{CLIENT}/paths/*ip:10.0.{dice.choice((1, 2))}.1/disconnect", "1")


def policy(dice) -> str:
    return write(f"{CLIENT}/mp_policy", dice.choice(("rr", "mi", "ml")))


def reset(dice) -> str:
    return write(f"{CLIENT}/paths/*/stats/reset_all", "1")


def unload(side: str) -> str:
    answer = rmmod(f"ibnbd_{side}")
    if answer == "ok":
        rmmod(f"ibtrs_{side}")
    load()
    return answer


def remove_device(dice) -> str:
    link = dice.choice((0, 1))
    answer = program("rdma", "link", "del", f"rxe{link}")
    time.sleep(dice.random() / 10)
    program("rdma", "link", "add", f"rxe{link}", "type", "rxe", "netdev", f"dummy{link}")
    return answer


def rename_device(dice) -> str:
    link = dice.choice((0, 1))
    answer = program("rdma", "dev", "set", f"rxe{link}", "name", f"other{link}")
    for path in glob.glob(f"{CLIENT}/paths/*/hca_name") + glob.glob(f"{SERVER}/paths/*/hca_name"):
        try:
            with open(path, encoding="utf-8") as file:
                file.read()
        except OSError:
            pass
    program("rdma", "dev", "set", f"other{link}", "name", f"rxe{link}")
    return answer


def server_disconnect(dice) -> str:
    return write(f"{SERVER}/paths/*{dice.choice((1, 2))}.1/disconnect", "1")


def force_close(dice) -> str:
    answer = write(f"{EXPORT}/force_close", "1")
    write("/sys/block/ibnbd*/ibnbd/remap_device", "1")
    return answer


def resize(dice) -> str:
    return write("/sys/block/ibnbd*/ibnbd/resize", str(dice.choice((SIZE_MB // 2, SIZE_MB)) << 11))


# In the order in which pairs of them are named.
DEEDS = {
    "map": map_disk,
    "unmap": unmap,
    "force": lambda dice: unmap(dice, "force"),
    "add": add_path,
    "remove": remove_path,
    "reconnect": reconnect,
    "disconnect": disconnect_path,
    "policy": policy,
    "reset": reset,
    "unload": lambda dice: unload("client"),
    "unload-server": lambda dice: unload("server"),
    "remove-device": remove_device,
    "rename": rename_device,
    "server-disconnect": server_disconnect,
    "force-close": force_close,
    "resize": resize,
}


def pairs() -> list[str]:
    """Each with each, itself included."""
    names = list(DEEDS)
    return [f"{one}+{other}" for index, one in enumerate(names) for other in names[index:]]


class Doer:
    """A process that does one thing over and over."""

    def __init__(self, name: str, seed: str, end: float):
        self.name, self.deed = name, DEEDS.get(name, restore)
        reader, writer = os.pipe()
        self.child = os.fork()
        if not self.child:
            os.close(reader)
            self._work(random.Random(seed), end, writer)
        os.close(writer)
        self.results = reader
        self.pidfd = os.pidfd_open(self.child)

    def _work(self, dice, end: float, writer: int) -> None:
        status, answers = 1, {}
        try:
            while time.monotonic() < end:
                answer = self.deed(dice)
                answers[answer] = answers.get(answer, 0) + 1
                # At once, after a moment, or after what takes a while.
                time.sleep(dice.choice((0, 0, dice.random() / 100, dice.random() / 5)))
            os.write(writer, json.dumps(answers).encode())
            status = 0
        finally:
            os._exit(status)

    def wait(self, until: float) -> dict[str, int] | None:
        """How often it got which answer; None if it does not come to an end."""
        while True:
            if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
        os.waitpid(self.child, 0)
        os.close(self.pidfd)
        with open(self.results, encoding="utf-8") as results:
            return json.loads(results.read() or "{}")


def stacks() -> str:
    """Where everything is that waits: for a report of what hangs."""
    with open("/proc/sysrq-trigger", "w", encoding="utf-8") as trigger:
        trigger.write("w")
    found = []
    for path in glob.glob("/proc/[0-9]*/stack"):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(os.path.dirname(path) + "/comm", encoding="utf-8") as file:
                name = file.read().strip()
        except OSError:
            continue
        if "ib" in text:
            found.append(f"{path} {name}\n{text}")
    return "\n".join(found)


def wait(condition, what: str, state=lambda: "") -> None:
    """Waits until condition() holds; else says also what state() is at the end."""
    end = time.monotonic() + TIME_LIMIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {TIME_LIMIT} s: {what} {state()}")
        time.sleep(0.02)


def states() -> list[str]:
    found = []
    for path in glob.glob(f"{CLIENT}/paths/*/state"):
        try:
            with open(path, encoding="utf-8") as file:
                found.append(file.read().strip())
        except OSError:
            pass
    return found


def put_right() -> None:
    """Whatever was done: the disk is there, with both paths."""
    load()
    for link in (0, 1):
        if os.path.exists(f"/sys/class/infiniband/other{link}"):
            program("rdma", "dev", "set", f"other{link}", "name", f"rxe{link}")
        if not os.path.exists(f"/sys/class/infiniband/rxe{link}"):
            program("rdma", "link", "add", f"rxe{link}", "type", "rxe", "netdev", f"dummy{link}")
    unmap(None, "force")
    wait(lambda: not glob.glob("/sys/block/ibnbd*"), "no disk is left")
    # The session may take a moment longer than its last disk.
    answers = []
    wait(lambda: answers.append(map_disk(None)) or answers[-1] == "ok", "the disk is mapped", lambda: set(answers))
    if not os.path.exists(DISK.replace("/dev/", "/sys/block/")):
        raise OSError(errno.ENOENT, f"mapped as {glob.glob('/sys/block/ibnbd*')}")
    for name, value in SETTINGS.items():
        write(f"{CLIENT}/{name}", str(value))
    wait(lambda: states() == ["connected"] * 2, "both paths are connected", states)


def run_pair(pair: str, seconds: float, seed: int, checkers) -> dict:
    """Has a pair done against each other; raises if something does not end or is not put right."""
    checkers.race()
    end = time.monotonic() + seconds
    doers = [Doer(name, f"{seed} {pair} {index}", end)
             for index, name in enumerate((*pair.split("+"), "restore"))]
    answers = [doer.wait(end + TIME_LIMIT) for doer in doers]
    if None in answers:
        raise TimeoutError(f"{pair}: {[d.name for d, a in zip(doers, answers) if a is None]} did not end")
    put_right()
    if not checkers.calm(TIME_LIMIT):
        raise TimeoutError(f"{pair}: I/O does not go on")
    return dict(zip(("first", "second", "restored"), answers))


def main() -> int:
    from checker import Checkers  # beside it in a guest

    budget, seconds, seed = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    put_right()
    checkers, failed, done = Checkers(DISK, 2, BLOCKS, seed), None, 0
    begun = time.monotonic()
    try:
        for pair in sys.argv[4:]:
            if time.monotonic() > begun + budget:
                break
            before = checkers.figures()
            answers = run_pair(pair, seconds, seed, checkers)
            figures = {name: value - before[name] for name, value in checkers.figures().items()}
            done += 1
            print(f"{pair}: {json.dumps(answers)} {json.dumps(figures)}", flush=True)
            if checkers.faults:
                failed = f"{pair}: data"
                break
    except (TimeoutError, OSError) as error:
        failed = str(error)
        print(f"FAILED: {error}\n{stacks()}", flush=True)
    checkers.end(failed is None)
    print(json.dumps({"pairs": done, "failed": failed, **checkers.figures()}), flush=True)
    return 0 if failed is None else 1


if __name__ == "__main__":
    sys.exit(main())
