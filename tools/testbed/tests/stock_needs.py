# SPDX-License-Identifier: GPL-2.0
"""A plugin of pytest that lists scenarios as JSON, with what each uses that Debian's own kernel lacks, and the kernel
on which it runs."""

import ast
import inspect
import json
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType

from testbed import faults
from testbed.stack import STACKS

SCENARIOS = Path(__file__).parents[1] / "scenarios"
RNBD, INJECTION, SIW = "RNBD", "fault injection", "soft-iWARP"


class Uses(ast.NodeVisitor):
    """The names that a function or class uses, with those of the functions and classes of scenarios that it names."""

    def __init__(self, thing, seen: set):
        self.found: set[str] = set()
        self.seen = seen
        self.names = vars(inspect.getmodule(thing))
        seen.add(thing)
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
        # A decorator has the parameters of all cases.
        tree.decorator_list = []
        self.visit(tree)

    def value(self, node):
        """The object of an expression that is a name, or a name of a module."""
        match node:
            case ast.Name():
                return self.names.get(node.id)
            case ast.Attribute() if isinstance(module := self.value(node.value), ModuleType):
                return getattr(module, node.attr, None)
            case ast.Subscript(slice=ast.Constant()) if self.value(node.value) is STACKS:
                return STACKS.get(node.slice.value)
        return None

    def visit(self, node):
        value = self.value(node)
        if value is STACKS["mainline"]:
            self.found.add(RNBD)
        elif value is faults.load:
            self.found.add(INJECTION)
        elif is_of_scenarios(value) and value not in self.seen:
            self.found |= Uses(value, self.seen).found
        super().visit(node)

    def visit_Compare(self, node):
        """To compare with mainline is not to use it."""

    def visit_If(self, node):
        """Nor is what only those do that are mainline."""
        conditions = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) \
            else [node.test]
        only_mainline = any(isinstance(condition, ast.Compare) and isinstance(condition.ops[0], ast.Is)
                            and self.value(condition.comparators[0]) is STACKS["mainline"] for condition in conditions)
        for part in [node.test, *([] if only_mainline else node.body), *node.orelse]:
            self.visit(part)


def is_of_scenarios(value) -> bool:
    return isinstance(value, FunctionType | type) and \
        Path(getattr(inspect.getmodule(value), "__file__", None) or "/").parent == SCENARIOS


def needs(item) -> set[str]:
    values = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
    values += [argument for marker in item.iter_markers("rdma") for argument in marker.args]
    found = {RNBD for value in values if value is STACKS["mainline"]} | {SIW for value in values if value == "siw"}
    fixtures = [each.func for name in item.fixturenames for each in item._fixtureinfo.name2fixturedefs.get(name, ())]
    for function in [item.function, *fixtures, *values]:
        function = inspect.unwrap(function) if callable(function) else function
        if is_of_scenarios(function):
            found |= Uses(function, set()).found
    return found


def kernel(item) -> str | None:
    """The kernel on which a scenario runs; None if it needs none, or is skipped."""
    conftest = item.config.pluginmanager.get_plugin(str(SCENARIOS / "conftest.py"))
    guests = conftest.wanted(item)
    return guests[1] if guests and not item.get_closest_marker("skip") else None


def pytest_collection_finish(session):
    print("\n" + json.dumps([(item.path.name, item.name, sorted(needs(item)), kernel(item)) for item in session.items]))
