# SPDX-License-Identifier: GPL-2.0
"""The fixtures of the scenarios: `pair` (server and client), `reachable` (a pair with ssh), `trio` (two servers and a
client), `solo`, and, on Debian's kernel only, `debian` (a pair with systemd) and `installed` (a pair with
our packages).

Scenarios that ask for the same kind of guests share them, even across files, one kind at a time.
After each scenario the testbed checks the guests' kernel logs; after the last scenario on the same
guests kmemleak runs as well.  A scenario that failed leaves no guests behind.

With `-n N`, each of N workers (pytest-xdist) has guests of its own.  A worker that has finished a
batch of scenarios takes the next one: a batch has the scenarios of some files for one kind of
guests, or the long scenarios of one file."""

import functools
import os
import resource
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor

import bootloop
import emulator
import not_on_stock
import pytest
import rotation

from testbed import blockdev, boots, judge, mishaps, paths
from testbed.lab import RDMA_MODULES, Debian, Installed, Lab, Packaged, Pair, Reachable, Solo, Trio
from testbed.message_programs import load_both
from testbed.reset import reset
from testbed.stack import STACKS, Stack

MARKERS = {
    "fast": "runs on the kernel without checks, unless IBTRS_CHECKED=1",
    "links(n)": "asks for n links between the guests, or more",
    "kills": "kills guests: it runs after all others that share these",
    "leaky": "loses memory on purpose: its guests are discarded after it",
    "fresh": "gets guests that no other scenario has used, nor will",
    "kernel_arguments(text)": "adds to the guests' kernel command line",
    "cpus(n)": "asks for n processors in each guest",
    "memory(sizes)": "asks for guests with that much memory, in MiB, in the order of their names",
    "rdma(kind)": "asks for rxe or siw on every link",
    "stock": "is for Debian's kernel only, as those with systemd are",
    "versions": "is for the kernel that gives symbols versions only",
    "smoke": "of those with systemd, what .ci/run has",
    "long": "takes a minute or so: goes first, with others of its file",
    "thorough": "says in more cases, or at more length, what others say: only `make test-all` has it",
    "quiet": "times out on slow guests, or keeps all processors busy: is run when no others are",
}
# The most batches that the files that want the same guests are dealt to, and the fewest scenarios of a batch.  Guests
# take their time to boot; those that check themselves also to be asked for leaks.
BATCHES, BATCH = {"debug": 2, "fast": 8, "stock": 8}, 6
KINDS: dict[str, type[Lab]] = {"pair": Pair, "solo": Solo, "trio": Trio, "reachable": Reachable, "debian": Debian,
                               "installed": Installed, "packaged": Packaged}


def pytest_addoption(parser):
    parser.addoption("--kernel", choices=paths.FLAVOURS, default="debug",
                     help="the kernel for scenarios that do not ask for the fast one; all but debug for all of them")
    parser.addoption("--fast", choices=("fast", "stock"), default="fast",
                     help="the kernel for scenarios that ask for the fast one")
    parser.addoption("--rdma", choices=tuple(RDMA_MODULES), default="rxe",
                     help="the software RDMA for scenarios that ask for none")
    parser.addoption("--stack", choices=STACKS, default="ibtrs",
                     help="mainline tries the scenarios of `stack` with the kernel's own RNBD")
    parser.addoption("--part", type=int, choices=rotation.PARTS,
                     help="leaves out the other parts of the scenarios of rotation.py")
    parser.addoption("--boots", type=int, metavar="N",
                     help="only boots the guests, as often as this")


def pytest_configure(config):
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.bench = Bench()


def pytest_unconfigure(config):
    config.bench.clear()


def _has(item, name) -> bool:
    return item.get_closest_marker(name) is not None


def _argument(item, name, default):
    marker = item.get_closest_marker(name)
    return marker.args[0] if marker else default


def _unchecked(config) -> str:
    """The kernel in the place of the one that checks itself."""
    asked = config.getoption("kernel")
    return config.getoption("--fast") if asked == "debug" else asked


def _flavour(item) -> str:
    """The kernel that a scenario runs on."""
    if _has(item, "fast") and not os.environ.get("IBTRS_CHECKED"):
        return _unchecked(item.config)
    return item.config.getoption("kernel")


def wanted(item) -> tuple | None:
    """The kind of guests that a scenario asks for, without the number of links; None for one
    that needs none."""
    kind = next((name for name in KINDS if name in getattr(item, "fixturenames", ())), None)
    if kind is None:
        return None
    return (kind, _flavour(item), _argument(item, "kernel_arguments", ""), _argument(item, "cpus", 2),
            _argument(item, "rdma", item.config.getoption("--rdma")), _argument(item, "memory", ()))


def _deal(items) -> None:
    """Tells pytest-xdist what stays together."""
    batches = {}
    counts = Counter(wanted(item) for item in items if not _has(item, "long"))
    for item in items:
        key = wanted(item)
        if _has(item, "long"):
            batch = item.path.stem
        else:
            # The files with scenarios for these guests, dealt one after another.
            files = batches.setdefault(key, [])
            if item.path not in files:
                files.append(item.path)
            most = BATCHES.get(key and key[1], 1)
            batch = files.index(item.path) % min(most, max(1, counts[key] // BATCH))
        item.add_marker(pytest.mark.xdist_group("-".join(map(str, [*(key or ()), batch]))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Batches go in the order of the scenarios.  Some versions of pytest-xdist begin with
    those that have most scenarios, and so end with the longest ones."""
    from xdist.scheduler import LoadGroupScheduling

    if config.getvalue("dist") != "loadgroup":
        return None
    scheduler = LoadGroupScheduling(config, log)

    class InOrder(OrderedDict):
        """The batches that wait, by name, each with its scenarios."""

        def popitem(self, last=True):
            name = min(self, key=lambda batch: scheduler.collection.index(next(iter(self[batch]))))
            return name, self.pop(name)

    scheduler.workqueue = InOrder()
    return scheduler


def _deselect(config, items, others) -> None:
    """Takes these others out of the items."""
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def _choose_for_kernel(config, items) -> None:
    """Skips what Debian's kernel cannot do, and leaves out what only another kernel is for."""
    kernel = config.getoption("kernel")
    others = [item for item in items if _has(item, "versions") and kernel != "versions"]
    for item in items:
        if _flavour(item) == "stock" and (reason := not_on_stock.reason(item.path.name, item.name)):
            item.add_marker(pytest.mark.skip(reason=reason))
    if kernel != "stock":
        others += [item for item in items
                   if _has(item, "stock") or {"debian", "installed", "packaged"} & set(getattr(item, "fixturenames", ()))]
    _deselect(config, items, others)


def _leave_out(config, items) -> None:
    """Deselects what other parts have."""
    part = config.getoption("part")
    _deselect(config, items, [item for item in items if not rotation.runs(item.path.stem, item.name, part)])


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_collection_modifyitems(session, config, items):
    """The longest go first.  Scenarios that can share guests follow one another,
    those that kill some last.  Guests have as many links as the most demanding
    scenario of the selected ones asks for."""
    _choose_for_kernel(config, items)
    _leave_out(config, items)
    _deal(items)
    # pytest-xdist takes the batches in, and what is not selected goes.
    yield
    links = config.bench.links
    for item in items:
        if key := wanted(item):
            links[key] = max(links.get(key, 1), _argument(item, "links", 1))
    # Sorting keeps the order of those that are equal.
    items.sort(key=lambda item: (not _has(item, "long"), repr(wanted(item)), _has(item, "fresh"),
                                 _has(item, "leaky"), _has(item, "kills")))
    if rounds := config.getoption("--boots"):
        items[:] = bootloop.in_place_of(items, session, rounds, wanted, _is_hard_on_guests)


def _is_hard_on_guests(item) -> bool:
    """Whether scenarios after it get others."""
    return any(_has(item, name) for name in ("fresh", "leaky", "kills"))


class Bench:
    """The guests that are up at the moment."""

    def __init__(self):
        self.lab, self.key = None, None
        # How many links each kind of guests gets.
        self.links = {}
        # The scenario that is run next.
        self.following = None
        # The cost of guests before the present scenario, how many had been booted, and of
        # these again.
        self.spent, self.booted, self.again = 0.0, 0, 0
        self.spoiled = emulator.Spoiled()

    def take(self, key: tuple, fresh: bool) -> Lab:
        if fresh or self.key != key or not all(g.alive for g in self.lab.guests.values()):
            self.clear()
            kind, flavour, arguments, cpus, rdma, memory = key
            self.lab = KINDS[kind](flavour, links=self.links[key], kernel_arguments=arguments, cpus=cpus,
                                   rdma=rdma, memory=memory)
            self.key = key
            # The kernel's lines during the boot are judged with the first scenario.
        return self.lab

    def cost(self) -> float:
        """The processor time that guests have taken so far, in seconds."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        alive = sum(guest.cpu_seconds for guest in self.lab.guests.values()) if self.lab else 0
        return ended.ru_utime + ended.ru_stime + alive

    def clear(self):
        if self.lab is not None:
            self.lab.close()
        self.lab, self.key = None, None


def _lab(request) -> Lab:
    item = request.node
    return item.config.bench.take(wanted(item), _has(item, "fresh"))


@pytest.fixture
def unchecked(request) -> str:
    """The kernel for what is counted: the checks of the debug kernel would be counted, too."""
    return _unchecked(request.config)


@pytest.fixture
def pair(request) -> Pair:
    """Two guests: `server, client = pair`."""
    return _lab(request)


@pytest.fixture
def trio(request) -> Trio:
    """Three guests: `server, second, client = trio`."""
    return _lab(request)


@pytest.fixture
def reachable(request) -> Reachable:
    """A pair that the host can reach by ssh; ssh.py starts its servers."""
    return _lab(request)


@pytest.fixture
def debian(request) -> Debian:
    """Two guests that run systemd and udev: `server, client = debian`."""
    return _lab(request)


@pytest.fixture
def installed(request) -> Installed:
    """Two guests with our packages, on the client installed: `server, client = installed`."""
    return _lab(request)


@pytest.fixture
def packaged(request) -> Packaged:
    """The same, which the host can reach by ssh, as `reachable`."""
    return _lab(request)


@pytest.fixture
def solo(request):
    """The one guest that is server and client at once; its lab is guest.lab."""
    return _lab(request).guest


@pytest.fixture
def stack(request) -> Stack:
    """The names of the block transport that is tested."""
    return STACKS[request.config.getoption("--stack")]


@pytest.fixture
def session(pair, stack):
    """Two paths with message connections, and a disk."""
    load_both(pair)
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)


def _judge(item, lab: Lab, leaks: bool):
    judge.check(lab)
    with ThreadPoolExecutor() as pool:
        list(pool.map(reset, [guest for guest in lab.guests.values() if guest.alive]))
    # Faults that showed while things were unmapped and unloaded.
    judge.check(lab)
    if leaks:
        judge.check_leaks(lab)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """The next scenario decides whether the guests of this one are discarded."""
    bench = item.config.bench
    bench.following, bench.spent = nextitem, bench.cost()
    bench.booted, bench.again = boots.COUNT.booted, len(boots.COUNT.failed)
    return emulator.run(item, nextitem, bench.spoiled)


def pytest_runtest_teardown(item):
    """How long a scenario takes depends on what else the machine does; what it costs, less."""
    bench = item.config.bench
    item.user_properties.append(("cpu_s", round(bench.cost() - bench.spent, 1)))
    item.user_properties.append(("booted", boots.COUNT.booted - bench.booted))
    item.user_properties += [("booted again", line) for line in boots.COUNT.failed[bench.again:]]


def pytest_terminal_summary(terminalreporter):
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    noted = [(report.nodeid, *note) for report in reports if getattr(report, "when", None) == "teardown"
             for note in report.user_properties]
    costs = {nodeid: seconds for nodeid, name, seconds in noted if name == "cpu_s"}
    terminalreporter.section(f"seconds of a processor: {sum(costs.values()):.0f}, the most for")
    for name in sorted(costs, key=costs.get, reverse=True)[:10]:
        terminalreporter.line(f"{costs[name]:.0f} {name}")
    again = [line for _, name, line in noted if name == "booted again"]
    booted = sum(count for _, name, count in noted if name == "booted")
    terminalreporter.section(boots.summary(booted, len(again)))
    for line in again:
        terminalreporter.line(line)


def pytest_exception_interact(node, report):
    """Guests that a fixture could not make ready are of no use to others."""
    bench = node.config.bench
    if report.when == "setup" and bench.lab is not None:
        bench.spoiled.look(bench.lab, bool(judge.kernel_reports(bench.lab)))
        bench.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Has the guests judged as a part of the scenario, so that what a kernel says fails
    the scenario during which it was said."""
    if wanted(pyfuncitem) is not None and not hasattr(pyfuncitem.obj, "judged"):
        pyfuncitem.obj = _judged(pyfuncitem, pyfuncitem.obj)
    # Left to pytest, which calls it now.
    return None


def _judged(item, scenario):
    @functools.wraps(scenario)
    def run(**arguments):
        bench = item.config.bench
        lab, fresh, leaky = bench.lab, _has(item, "fresh"), _has(item, "leaky")
        try:
            scenario(**arguments)
            # Others would have guests that no longer look for deadlocks.
            fresh |= judge.unwatched(lab)
            _judge(item, lab, leaks=not leaky and (fresh or _before_a_change(item, bench.following)))
        except BaseException as error:
            words = [f"logs kept in {judge.keep(lab, item.nodeid)}"]
            harmed, held_up = isinstance(error, judge.Harmed), judge.held_up(lab)
            reports = [] if harmed else judge.kernel_reports(lab)
            bench.spoiled.look(lab, harmed or bool(reports), held_up)
            if not harmed:
                words += reports + [judge.last_words(lab)]
            item.add_report_section("call", "guests", "\n\n".join(words))
            bench.clear()
            raise
        if fresh or leaky:
            bench.clear()
    # So that it is not judged twice when it is run again.
    run.judged = True
    return run


def _before_a_change(item, following) -> bool:
    """Whether the next scenario needs other guests, or harms these."""
    if following is None or wanted(following) != wanted(item) or _has(following, "fresh"):
        return True
    return any(_has(following, name) and not _has(item, name) for name in ("kills", "leaky"))
