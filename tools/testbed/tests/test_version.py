# SPDX-License-Identifier: GPL-2.0
"""All parts of the tree have the version that Kbuild names."""

import re

import pytest

from testbed.paths import TOP

VERSION = re.search(r"^ibtrs-version := (\S+)$", (TOP / "Kbuild").read_text(), re.M)[1]
CARGOS = [TOP / "Cargo.toml", *TOP.glob("tools/*/Cargo.toml"), *TOP.glob("rust/proto/*/Cargo.toml")]
LOCKS = [TOP / "Cargo.lock", *TOP.glob("tools/*/Cargo.lock")]


def newest_version(changelog: str) -> str:
    return re.search(r"^## (\d\S*)", changelog, re.M)[1]


def test_it_is_a_semantic_version():
    assert re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", VERSION)


def test_each_module_shows_it():
    kbuild = (TOP / "Kbuild").read_text()
    modules = re.search(r"^obj-m := (.*)$", kbuild, re.M)[1].split()
    objects = kbuild.replace("\\\n", " ")
    shown = [re.search(rf"^{module[:-2]}-y := .*(rust/version/\S+\.o)", objects, re.M)[1] for module in modules]
    assert len(set(shown)) == len(modules) == 5


@pytest.mark.parametrize("cargo", CARGOS, ids=lambda path: str(path.relative_to(TOP)))
def test_crates_have_it(cargo):
    """That of the workspace, or the same number."""
    said = re.findall(r'^version(?:\.workspace = true| = "([^"]*)")$', cargo.read_text(), re.M)
    assert said and set(said) <= {"", VERSION}
    assert said == [VERSION] or cargo != TOP / "Cargo.toml"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(TOP)))
def test_locked_crates_have_it(lock):
    ours = re.findall(r'^name = "(ib(?:trs|nbd)\S*)"\nversion = "([^"]*)"$', lock.read_text(), re.M)
    assert ours and {version for _, version in ours} == {VERSION}


def test_packages_have_it():
    assert re.match(r"ibtrs \(([^)]*)\)", (TOP / "tools/debian/changelog").read_text())[1] == VERSION


def test_the_changelog_begins_with_it():
    assert newest_version((TOP / "Documentation/CHANGELOG.md").read_text()) == VERSION
    assert newest_version("# C\n\n## Unreleased\n\n## 1.2.3\n\n## 1.2.2\n") == "1.2.3"


def test_the_extension_number_is_the_protocols():
    code = (TOP / "rust/proto/ibtrs/handshake.rs").read_text()
    number = re.search(r"const EXT_VERSION: u8 = (\d+);", code)[1]
    changelog = " ".join((TOP / "Documentation/CHANGELOG.md").read_text().split())
    assert f"0 stands for none; this version has {number}." in changelog
    protocol = (TOP / "Documentation/protocol.md").read_text()
    assert f"extension number of the client: {number} for the extensions on this page" in protocol
