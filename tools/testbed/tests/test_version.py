# SPDX-License-Identifier: GPL-2.0
"""All parts of the tree have the version that Kbuild names."""

import re
import subprocess

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
    assert len(set(shown)) == len(modules) == 6


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


def test_the_build_in_symbol_names_follows_the_sources(tmp_path):
    """Modules of another build are refused, as their symbols have other names. Files that Kbuild generates beside
    the sources change no name, nor do tests."""
    kbuild = (TOP / "Kbuild").read_text()
    how = re.search(r"^ibtrs-build = .*?[^\\]$", kbuild, re.M | re.S)[0]
    makefile = tmp_path / "Makefile"
    makefile.write_text(f"src := {tmp_path}\n{how}\nall:\n\t@echo $(call ibtrs-build,rust)\n")

    def build(path: str = "", text: str = "") -> str:
        if path:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return subprocess.run(["make", "-s", "-f", makefile], capture_output=True, text=True, check=True).stdout

    first = build("rust/kx/lib.rs", "one")
    assert re.fullmatch(r"[0-9a-f]{16}\n", first)
    for path in ("rust/bindings/generated.rs", "rust/proto/ibtrs/tests/x.rs", "rust/exports/core.c", "rust/meta/x.rmeta"):
        assert build(path, "generated") == first
    found = {first} | {build(path, "two") for path in (
        "rust/kx/lib.rs", "rust/rdma/qp/sendq.rs", "rust/helpers/keys.c", "rust/helpers/trace.h", "rust/bindings/bindgen.params")}
    assert len(found) == 6
    # Each crate has one.
    assert kbuild.count("-C metadata=$(ibtrs-build-") == 1
    for folder in ("rust", "ibtrs-client", "ibtrs-server", "ibnbd"):
        assert re.search(rf"^ibtrs-build-{folder} := ", kbuild, re.M)
