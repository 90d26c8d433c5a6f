# SPDX-License-Identifier: GPL-2.0
"""The fixtures of the scenarios: `pair` (server and client) and `solo`.

Guests are shared by scenarios that ask for the same kind, in whatever file, one
kind at a time.  After each scenario their kernel logs are judged; after the
last one on the same guests kmemleak is asked as well.  A scenario that failed
leaves no guests behind."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from testbed import judge
from testbed.lab import RDMA_MODULES, Lab, Pair, Solo
from testbed.reset import reset
from testbed.stack import STACKS, Stack

MARKERS = {
    "fast": "runs on the kernel without checks",
    "links(n)": "asks for so many links between the guests, or more",
    "kills": "kills guests: its turn is after all others that share these",
    "leaky": "loses memory on purpose: its guests are given up after it",
    "fresh": "gets guests that no other scenario has used, nor will",
    "kernel_arguments(text)": "adds to the guests' kernel command line",
    "cpus(n)": "asks for so many processors in each guest",
    "rdma(kind)": "asks for rxe or siw on every link",
}
KINDS: dict[str, type[Lab]] = {"pair": Pair, "solo": Solo}


def pytest_addoption(parser):
    parser.addoption("--kernel", choices=("debug", "fast"), default="debug",
                     help="the kernel for scenarios that do not ask for the fast one")
    parser.addoption("--rdma", choices=tuple(RDMA_MODULES), default="rxe",
                     help="the software RDMA for scenarios that ask for none")
    parser.addoption("--share", default="1/1", metavar="N/M",
                     help="runs the Nth of M shares of the files, for several runs at once")
    parser.addoption("--stack", choices=STACKS, default="ibtrs",
                     help="mainline tries the scenarios of `stack` with the kernel's own RNBD")


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


def wanted(item) -> tuple | None:
    """What guests a scenario asks for, less the number of links; None for one
    that needs none."""
    kind = next((name for name in KINDS if name in getattr(item, "fixturenames", ())), None)
    if kind is None:
        return None
    flavour = "fast" if _has(item, "fast") else item.config.getoption("kernel")
    return (kind, flavour, _argument(item, "kernel_arguments", ""), _argument(item, "cpus", 2),
            _argument(item, "rdma", item.config.getoption("--rdma")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Scenarios that can share guests follow one another, those that kill
    some last.  Guests have as many links as the most demanding scenario
    of the selected ones asks for."""
    number, shares = map(int, config.getoption("--share").split("/"))
    files = sorted({item.path for item in items})
    items[:] = [item for item in items if files.index(item.path) % shares == number - 1]
    links = config.bench.links
    for item in items:
        if key := wanted(item):
            links[key] = max(links.get(key, 1), _argument(item, "links", 1))
    # Sorting keeps the order of those that are equal.
    items.sort(key=lambda item: (repr(wanted(item)), _has(item, "fresh"), _has(item, "leaky"),
                              _has(item, "kills")))


class Bench:
    """The guests that are up at the moment."""

    def __init__(self):
        self.lab, self.key = None, None
        # How many links each kind of guests gets.
        self.links = {}

    def take(self, key: tuple, fresh: bool) -> Lab:
        if fresh or self.key != key or not all(g.alive for g in self.lab.guests.values()):
            self.clear()
            kind, flavour, arguments, cpus, rdma = key
            self.lab = KINDS[kind](flavour, links=self.links[key], kernel_arguments=arguments, cpus=cpus,
                                   rdma=rdma)
            self.key = key
            # What a kernel says while it boots is judged with the first scenario.
        return self.lab

    def clear(self):
        if self.lab is not None:
            self.lab.close()
        self.lab, self.key = None, None


def _lab(request) -> Lab:
    item = request.node
    return item.config.bench.take(wanted(item), _has(item, "fresh"))


@pytest.fixture
def pair(request) -> Pair:
    """Two guests: `server, client = pair`."""
    return _lab(request)


@pytest.fixture
def solo(request):
    """The one guest that is server and client at once; its lab is guest.lab."""
    return _lab(request).guest


@pytest.fixture
def stack(request) -> Stack:
    """The names of the block transport that is tested."""
    return STACKS[request.config.getoption("--stack")]


def _judge(item, lab: Lab, leaks: bool):
    judge.check(lab)
    with ThreadPoolExecutor() as pool:
        list(pool.map(reset, [guest for guest in lab.guests.values() if guest.alive]))
    # What came up while things were unmapped and unloaded.
    judge.check(lab)
    if leaks:
        judge.check_leaks(lab)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs a scenario and judges the guests as a part of it, so that what a
    kernel says fails the scenario during which it was said."""
    if wanted(pyfuncitem) is None:
        return None
    item, bench = pyfuncitem, pyfuncitem.config.bench
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    lab, fresh, leaky = bench.lab, _has(item, "fresh"), _has(item, "leaky")
    try:
        item.obj(**arguments)
        _judge(item, lab, leaks=not leaky and (fresh or _before_a_change(item)))
    except BaseException as error:
        words = [f"logs kept in {judge.keep(lab, item.nodeid)}"]
        if not isinstance(error, judge.Harmed):
            words += judge.kernel_reports(lab) + [judge.last_words(lab)]
        item.add_report_section("call", "guests", "\n\n".join(words))
        bench.clear()
        raise
    if fresh or leaky:
        bench.clear()
    return True


def _before_a_change(item) -> bool:
    """Whether the next scenario needs other guests, or harms these."""
    following = item.session.items[item.session.items.index(item) + 1:]
    if not following or wanted(following[0]) != wanted(item) or _has(following[0], "fresh"):
        return True
    return any(_has(following[0], name) and not _has(item, name) for name in ("kills", "leaky"))
