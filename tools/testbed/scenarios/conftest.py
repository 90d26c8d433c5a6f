# SPDX-License-Identifier: GPL-2.0
"""The fixtures of the scenarios: `pair` (server and client) and `solo`.

Guests are shared by scenarios that ask for the same kind, one kind at a time.
After each scenario their kernel logs are judged; after the last one of a file
kmemleak is asked as well.  A scenario that failed leaves no guests behind."""

import pytest

from testbed import judge
from testbed.lab import Lab, Pair, Solo
from testbed.reset import reset
from testbed.stack import STACKS, Stack

MARKERS = {
    "fast": "runs on the kernel without checks",
    "links(n)": "asks for so many links between the guests",
    "fresh": "gets guests that no other scenario has used, nor will",
    "kernel_arguments(text)": "adds to the guests' kernel command line",
    "cpus(n)": "asks for so many processors in each guest",
}
KINDS: dict[str, type[Lab]] = {"pair": Pair, "solo": Solo}


def pytest_addoption(parser):
    parser.addoption("--kernel", choices=("debug", "fast"), default="debug",
                     help="the kernel for scenarios that do not ask for the fast one")
    parser.addoption("--stack", choices=STACKS, default="ibtrs",
                     help="mainline tries the scenarios of `stack` with the kernel's own RNBD")


def pytest_configure(config):
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.bench = Bench()


def pytest_unconfigure(config):
    config.bench.clear()


def wanted(item) -> tuple | None:
    """What guests a scenario asks for; None for one that needs none."""
    kind = next((name for name in KINDS if name in getattr(item, "fixturenames", ())), None)
    if kind is None:
        return None

    def argument(name, default):
        marker = item.get_closest_marker(name)
        return marker.args[0] if marker else default

    flavour = "fast" if item.get_closest_marker("fast") else item.config.getoption("kernel")
    return (kind, flavour, argument("links", 1), argument("kernel_arguments", ""), argument("cpus", 2))


def pytest_collection_modifyitems(items):
    """Within a file, scenarios that can share guests follow one another."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [item for group in files.values()
                for item in sorted(group, key=lambda item: repr(wanted(item)))]


class Bench:
    """The guests that are up at the moment."""

    def __init__(self):
        self.lab, self.key = None, None

    def take(self, key: tuple, fresh: bool) -> Lab:
        if fresh or self.key != key or not all(g.alive for g in self.lab.guests.values()):
            self.clear()
            kind, flavour, links, arguments, cpus = key
            self.lab = KINDS[kind](flavour, links=links, kernel_arguments=arguments, cpus=cpus)
            self.key = key
            # What a kernel says while it boots is judged with the first scenario.
        return self.lab

    def clear(self):
        if self.lab is not None:
            self.lab.close()
        self.lab, self.key = None, None


def _lab(request) -> Lab:
    item = request.node
    return item.config.bench.take(wanted(item), bool(item.get_closest_marker("fresh")))


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
    for guest in lab.guests.values():
        if guest.alive:
            reset(guest)
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
    lab, fresh = bench.lab, item.get_closest_marker("fresh")
    try:
        item.obj(**arguments)
        _judge(item, lab, leaks=bool(fresh) or _last_of_its_kind(item))
    except BaseException as error:
        words = [f"logs kept in {judge.keep(lab, item.nodeid)}"]
        if not isinstance(error, judge.Harmed):
            words += judge.kernel_reports(lab) + [judge.last_words(lab)]
        item.add_report_section("call", "guests", "\n\n".join(words))
        bench.clear()
        raise
    if fresh:
        bench.clear()
    return True


def _last_of_its_kind(item) -> bool:
    """Whether the next scenario is in another file or needs other guests."""
    items = item.session.items
    following = items.index(item) + 1
    if following == len(items):
        return True
    other = items[following]
    return (other.path != item.path or wanted(other) != wanted(item)
            or bool(other.get_closest_marker("fresh")))
