# SPDX-License-Identifier: GPL-2.0
"""The parameters of the modules are those that the documents and the tool know."""

import re

import pytest

from testbed import abi
from testbed.paths import TOP

SOURCES = {"ibtrs_client": "ibtrs-client/lib.rs", "ibtrs_server": "ibtrs-server/lib.rs",
           "ibnbd_server": "ibnbd/server/lib.rs", "ibmsg": "ibmsg/lib.rs"}
PARAMETER = re.compile(r"^\s+(?:pub\(crate\) )?(\w+): (?:[\w:]+::)?\w+Param(?:<\d+>)? = ", re.M)
# For tests only, or of a module that the command does not load: no configuration file sets it.
NOT_IN_FILES = {("ibtrs_client", "slots_over_rxe"), ("ibmsg", "lose_link"), ("ibmsg", "user_mib"), ("ibmsg", "total_mib"),
                ("ibmsg", "reconnect_s"), ("ibmsg", "stop_timeout_s")}


def parameters() -> set[tuple[str, str]]:
    return {(module, name) for module, file in SOURCES.items()
            for name in PARAMETER.findall((TOP / file).read_text())}


def test_other_modules_have_none():
    # Nobody installs the samples, which have a page of their own.
    sources = [path for path in TOP.glob("**/lib.rs") if "module_param!" in path.read_text()
               and TOP / "rust/samples" not in path.parents]
    assert {str(path.relative_to(TOP)) for path in sources} == set(SOURCES.values())


@pytest.mark.parametrize("module", SOURCES)
def test_parameters_are_found(module):
    declared = (TOP / SOURCES[module]).read_text().count("Param::new(")
    assert len([name for found, name in parameters() if found == module]) == declared > 0


def test_each_has_its_entry_in_the_abi():
    described = {entry.what for entry in abi.entries() if entry.what.startswith("/sys/module/")}
    files = {f"/sys/module/{module}/parameters/{name}" for module, name in parameters()}
    assert {what for what in described if "/parameters/" in what} == files


def test_each_is_in_the_reference():
    text = (TOP / "Documentation/reference.md").read_text()
    assert [name for _, name in parameters() if not re.search(f"`{name}[`=]", text)] == []


def test_configuration_files_can_set_them():
    text = (TOP / "tools/ibnbd/src/config.rs").read_text()
    table = re.search(r"const PARAMETERS: .*?\];", text, re.S)[0]
    known = set(re.findall(r'\("(\w+)", "(\w+)", "[^"]*"\)', table))
    assert known == parameters() - NOT_IN_FILES
