# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest, beside faults.py and messages.py: makes the calls of the module for messages fail, one at a time.

    python3 message_faults.py BUDGET SEED [CASE...]

It counts the calls in each phase, and has the nth call of a function fail in that phase: each named case
(`phase:function:n`), or as many as fit into BUDGET seconds, in an order that SEED determines. The phase may end with an
error that says so; afterwards everything works, and no message is lost, doubled or changed. The last line is a summary in
JSON."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import faults
import messages
from faults import FOLDER, Function, Injection, counts, put, say

RULES = "/sys/kernel/config/ibmsg"
FUNCTIONS = (
    Function("krealloc_node_align_noprof", "alloc", 4),
    Function("kvrealloc_node_align_noprof", "alloc", 4),
    Function("alloc_workqueue_noprof", "null"),
    Function("misc_register"),
    Function("anon_inode_getfile"),
    Function("config_item_set_name"),
    Function("configfs_register_subsystem"),
)
# What a program may be told when there is no memory.
ALLOWED = {errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN}
PHASES = ("load", "open", "talk", "rules", "end")


def refused(error: OSError) -> str:
    if error.errno not in ALLOWED:
        raise error
    return errno.errorcode[error.errno]


def until_there_is_memory(do, *args, **kwargs):
    """The kernel has said that there is none; the failure strikes once."""
    end = time.monotonic() + 20
    while True:
        try:
            return do(*args, **kwargs)
        except OSError as error:
            if error.errno not in ALLOWED or time.monotonic() > end:
                raise
            time.sleep(0.01)


def module(word: str) -> bool:
    return subprocess.run(["busybox", word, "ibmsg"], capture_output=True).returncode == 0


def loaded() -> bool:
    return os.path.exists("/sys/module/ibmsg")


def put_right() -> None:
    for _ in range(2):
        if not loaded():
            subprocess.run(["modprobe", "ibmsg"], check=True)
    for place in ("portals", "sessions", "hosts"):
        for name in os.listdir(f"{RULES}/{place}"):
            os.rmdir(f"{RULES}/{place}/{name}")


class Channel:
    """A portal and both ends of a channel, some of which may not be there."""

    def __init__(self):
        self.portal = self.client = self.server = None

    def open(self) -> None:
        options = messages.opts(timeout=0)
        self.portal = messages.bind("faults", options=options)
        self.client = messages.connect("faults", flags=messages.NONBLOCK, options=options)
        try:
            messages.ready(self.portal, messages.select.POLLIN, 1)
        except AssertionError:
            # The portal has refused, for want of memory.
            closed = messages.wait_one(self.client)
            assert closed.event == messages.CLOSED, closed
            raise OSError(closed.status, os.strerror(closed.status)) from None
        (offer,) = messages.read(self.portal)
        self.server = until_there_is_memory(messages.accept, self.portal, offer.id)
        assert messages.wait_one(self.client).event == messages.CONNECTED
        messages.fcntl.fcntl(self.client, messages.fcntl.F_SETFL, 0)

    def talk(self) -> None:
        for number, length in enumerate((0, 50, 700, 5000, 30000, 65536, 8000, 1)):
            for here, there in ((self.client, self.server), (self.server, self.client)):
                body = messages.body_of(number, length)
                until_there_is_memory(messages.write, here, body, tag=number, flags=messages.F_RECEIPT)
                message = messages.wait_one(there)
                assert (message.kind, message.tag, message.body) == (messages.MSG, number, body), message
                receipt = messages.wait_one(here)
                assert (receipt.kind, receipt.tag, receipt.status) == (messages.RECEIPT, number, 0), receipt
        serving = threading.Thread(target=self.answer)
        serving.start()
        for length in (10, 20000):
            body = messages.body_of(length, length)
            assert until_there_is_memory(messages.call, self.client, body) == (0, body)
        serving.join()

    def answer(self) -> None:
        for _ in range(2):
            request = messages.wait_one(self.server)
            assert request.kind == messages.REQUEST, request
            until_there_is_memory(messages.write, self.server, request.body, kind=messages.REPLY, id=request.id)

    def close(self) -> None:
        for fd in (self.client, self.server, self.portal):
            if fd is not None:
                os.close(fd)
        self.__init__()


class Phases:
    """What is done while a call fails. Before each the module is there, unless it is loaded by the phase."""

    def __init__(self):
        self.channel = Channel()

    def before(self, phase: str) -> None:
        if phase == "load":
            assert not loaded() or module("rmmod")
        else:
            put_right()
        if phase in ("talk", "end"):
            self.channel.open()
        if phase == "end":
            # Messages that nobody reads, in both directions.
            for fd in (self.channel.client, self.channel.server):
                for number in range(20):
                    messages.write(fd, bytes(3000), tag=number)

    def load(self) -> str:
        return "ok" if subprocess.run(["modprobe", "ibmsg"], capture_output=True).returncode == 0 else "not loaded"

    def open(self) -> str:
        self.channel.open()
        return "ok"

    def talk(self) -> str:
        self.channel.talk()
        return "ok"

    def rules(self) -> str:
        portal = f"{RULES}/portals/faults"
        os.mkdir(portal)
        for file, text in (("allowed_uids", "1 2 3"), ("allowed_hosts", "local web1 web2"), ("allow_unauthenticated", "1")):
            put(f"{portal}/{file}", text)
        os.mkdir(f"{RULES}/sessions/s")
        os.mkdir(f"{RULES}/hosts/h")
        return "ok"

    def end(self) -> str:
        """Nothing that ends a channel, or the module, needs memory."""
        self.channel.close()
        if not module("rmmod"):
            raise OSError(errno.EBUSY, "the module stays")
        return "ok"

    def after(self) -> None:
        """Everything works, whatever has failed."""
        self.channel.close()
        put_right()
        channel = Channel()
        channel.open()
        channel.talk()
        channel.close()


class Run:
    def __init__(self, seed: int):
        self.phases, self.dice = Phases(), random.Random(seed)

    def deed(self, phase: str, injection: Injection | None) -> tuple[str, int, dict]:
        say(f"{phase} {f'with {injection.what}:{injection.n}' if injection else 'is counted'}")
        signal.alarm(60)
        self.phases.before(phase)
        if injection:
            injection.arm()
        else:
            put(f"{FOLDER}/arm", "- 0 0 0")
        struck = 0
        try:
            answer = getattr(self.phases, phase)()
        except OSError as error:
            if phase == "end":
                raise
            answer = refused(error)
        finally:
            called = counts()
            if injection:
                struck = injection.disarm()
        self.phases.after()
        signal.alarm(0)
        return answer, struck, called

    def cases(self) -> list[str]:
        found = []
        for phase in PHASES:
            answer, _, called = self.deed(phase, None)
            assert answer == "ok", (phase, answer)
            for name, (calls, _) in called.items():
                which = range(1, calls + 1) if calls <= 40 else {*range(1, 20), calls, *self.dice.sample(range(20, calls), 20)}
                found += [f"{phase}:{name}:{n}" for n in sorted(which)]
        return found

    def case(self, case: str) -> int:
        phase, what, n = case.split(":")
        answer, struck, _ = self.deed(phase, Injection(what, int(n)))
        say(f"{case}: {answer}{'' if struck else ' (not reached)'}")
        return struck


def main() -> int:
    budget, seed, named = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    faults.BY_NAME.update({function.name: function for function in FUNCTIONS})
    missing = []
    for function in FUNCTIONS:
        try:
            put(f"{FOLDER}/functions", function.watched)
        except OSError as error:
            missing.append(f"{function.name}: {error.strerror}")
    put_right()
    run, done, struck, failed = Run(seed), 0, 0, None
    case = "before the first case"
    try:
        cases = named or faults.pick(run.cases(), run.dice)
        end = time.monotonic() + budget
        for case in cases:
            if not named and time.monotonic() > end:
                break
            struck += bool(run.case(case))
            done += 1
    except (AssertionError, OSError) as error:
        failed = f"{case}: {error!r}"
        print(f"FAILED: {failed}", flush=True)
    print(json.dumps({"cases": len(cases) if not failed else 0, "run": done, "struck": struck, "failed": failed,
                      "missing": missing}), flush=True)
    return 0 if failed is None else 1


if __name__ == "__main__":
    sys.exit(main())
