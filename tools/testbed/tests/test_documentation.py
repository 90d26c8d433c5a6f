# SPDX-License-Identifier: GPL-2.0
"""The files, code, tests, headings and pages that Documentation names exist."""

import re
import runpy
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.paths import TOP

PAGES = [TOP / "README.md", *sorted((TOP / "Documentation").glob("*.md"))]
# Folders of the kernel, whose files a page may name as well.
OF_THE_KERNEL = ("drivers/", "include/", "lib/Kconfig", "rust/libkernel.rmeta", "rust/bindgen_parameters",
                 "rust/Makefile", "scripts/gendwarfksyms/", ".config")
# Files that an operator writes, and those that the bench leaves behind.
NOT_IN_THE_TREE = {"/etc/ibtrs/client.toml", "/etc/ibtrs/joined.toml", "/etc/ibtrs/messages.toml", "/etc/ibtrs/server.toml", "client.toml",
                   "server.toml", "tables.md", "/usr/include/ibmsg.h"}
CRATES = ("kx", "rdma", "ibtrs_proto", "ibnbd_proto", "ibmsg_proto", "ibtrs_core", "ibtrs_client", "ibtrs_server",
          "ibnbd_client", "ibnbd_server", "ibmsg")
# Crates of others, and an address.
FOREIGN = {"kernel", "core", "ibtrs_bindings", "fe80"}
# Names of files that security.md shortens.
SHORT = {"hostile_client": "test_hostile_client.py", "hostile_server": "test_hostile_server.py"}


@cache
def files() -> list[str]:
    """Those of the checkout, new ones among them."""
    answer = subprocess.run(["git", "-C", TOP, "ls-files", "--cached", "--others", "--exclude-standard"],
                            stdout=subprocess.PIPE, check=True, text=True)
    return [name for name in answer.stdout.splitlines() if (TOP / name).exists()]


@cache
def sources() -> list[str]:
    """The text of each file of Rust."""
    return [(TOP / name).read_text() for name in files() if name.endswith(".rs")]


@cache
def is_defined(outer: str, inner: str) -> bool:
    """Whether a type or a module `outer` has something called `inner`."""
    item = rf"\b(fn|const|static|struct|enum|trait|type|mod|macro_rules!) {inner}\b|\b{inner}( *:|,| <-)|^ +{inner}\b"
    if outer[0].isupper():
        holder = rf"\b(struct|enum|trait|type) {outer}\b|\bimpl\b[^{{;]*\b{outer}\b"
        return any(re.search(holder, text) and re.search(item, text, re.M) for text in sources())
    is_module = outer in CRATES or any(re.search(rf"\bmod {outer}\b", text) for text in sources())
    return is_module and any(re.search(item, text, re.M) for text in sources())


def spans(text: str) -> list[str]:
    """Code within a paragraph; not blocks of commands."""
    text = re.sub(r"(?m)^(    |\t).*$", "", text)
    return re.findall(r"`([^`]+)`", text)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_files(text: str) -> list[str]:
    """Paths of ours, whole or by their ends, that no file or folder has."""
    paths = [span for span in spans(text) if re.fullmatch(r"[\w.\-/]+", span)
             and re.search(r"\.(rs|py|md|sh|c|h|toml|config|params|mk|awk)$|^(rust|tools|scripts|ibtrs-\w+|ibnbd)/", span)]
    names = files()
    known = {folder for name in names for folder in map(str, Path(name).parents)} | set(names)
    ends = {"/".join(name.split("/")[i:]) for name in known for i in range(name.count("/") + 1)}
    return [path for path in paths if path.rstrip("/") not in ends | NOT_IN_THE_TREE
            and not path.startswith(OF_THE_KERNEL)]


def missing_code(text: str) -> list[str]:
    """Names such as `Path::kept` of something that its type or its module does not have."""
    names = re.findall(r"[\[`]([A-Za-z]\w*(?:::\w+)+)", text)
    return [name for name in names if not name.startswith((*SHORT, *(f"{crate}::" for crate in FOREIGN)))
            and not all(is_defined(outer, inner) for outer, inner in pairwise(name.split("::")))]


def missing_tests(text: str) -> list[str]:
    """Tests such as `wire.rs::open_golden` that are not in that file."""
    lost = []
    for file, test in re.findall(r"`([\w.]+)::(\w+)`", text):
        file = SHORT.get(file, file)
        if not file.endswith((".rs", ".py")):
            continue
        found = [name for name in files() if name.endswith(f"/{file}")]
        if not any(re.search(rf"\b(fn|def) {test}\b", (TOP / name).read_text()) for name in found):
            lost.append(f"{file}::{test}")
    return lost


def missing_sections(text: str) -> list[str]:
    """Sections of a page that a comment cites, such as `protocol.md, "Answers"`, which the page does not have."""
    text = re.sub(r"\n\s*(//[/!]?|#)\s*", " ", text)
    cited = re.findall(r'Documentation/([\w.]+\.md), "([^"]+)"', text)
    return [f"{page}: {section}" for page, section in cited
            if not re.search(rf"(?m)^#+ {re.escape(section)}$", (TOP / "Documentation" / page).read_text())]


def dead_links(page: Path) -> list[str]:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        other = page if not name else page.parent / name
        if not other.exists() or anchor and anchor not in anchors(other):
            lost.append(target)
    return lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page):
    text = page.read_text()
    if page.name == "glossary.md":
        # Its last column has names that are gone.
        text = re.sub(r"\|[^|\n]*\|$", "|", text, flags=re.M)
    assert (missing_files(text), missing_code(text), missing_tests(text), dead_links(page)) == ([], [], [], [])


def test_pages_install_what_building_the_packages_takes():
    asked = re.findall(r"apt install ([a-z0-9- ]+)\"", (TOP / "scripts/build-deb.sh").read_text())
    needed = {"make", *" ".join(asked).split()}
    assert {"cargo", "dh-dkms"} < needed
    said = {page.name: re.findall(r"(?m)^    apt install (.+)\n    make deb$", page.read_text()) for page in PAGES}
    said = {name: [set(line.split()) for line in lines] for name, lines in said.items() if lines}
    assert said == {"README.md": [needed], "installation.md": [needed]}


def test_first_examples_say_who_may_open_an_export():
    """No directory of devices, which everybody may open, and a key for each client."""
    for page in (TOP / "README.md", TOP / "Documentation/quick-start.md", TOP / "Documentation/guide.md"):
        text = page.read_text()
        added = re.findall(r"ibnbd export add (.*)", text)
        assert added and all(" --host web1" in words for words in added), page
        assert "dev_search_path" not in text and "--token" in text and "ibnbd join ibtrs-token-1/" in text, page


def test_the_command_leads_and_sysfs_is_the_appendix():
    """A new user types the command; files of sysfs come behind it, on pages of their own."""
    for page in ("quick-start", "guide", "joining"):
        assert "/sys/" not in (TOP / f"Documentation/{page}.md").read_text(), page
    readme = (TOP / "README.md").read_text()
    commands = [found.start() for found in re.finditer(r"(?m)^(    |\w+)[#$]? ?ibnbd \w", readme)]
    assert len(commands) > 3 and max(commands) < readme.index("/sys/")
    index = (TOP / "Documentation/index.md").read_text()
    assert index.index("(tool.md)") < index.index("(reference.md)")
    head = (TOP / "Documentation/reference.md").read_text().split("\n## ")[0]
    assert "[`ibnbd`](tool.md) does most of this" in head.replace("\n", " ")


def test_sections_that_the_sources_cite_are_there():
    assert any("Documentation/protocol.md, \"" in text for text in sources())
    assert [lost for text in sources() for lost in missing_sections(text)] == []


def without_a_row(lib: str) -> list[str]:
    """Modules that the crate has, and the table at the top of its lib.rs has not."""
    table = "".join(line for line in lib.splitlines() if line.startswith("//! |"))
    lib = re.sub(r"#\[cfg\(test\)\]\n(#\[.*\]\n)*mod \w+;", "", lib)
    modules = re.findall(r"(?m)^(?:pub(?:\(crate\))? )?mod (\w+);", lib)
    # A macro may have the same name.
    return [module for module in modules if f"[`{module}`]" not in table and f"[`mod@{module}`]" not in table]


def test_tables_of_modules_are_whole():
    libs = {name: (TOP / name).read_text() for name in files() if name.endswith("/lib.rs")}
    tables = {name: text for name, text in libs.items() if "//! |" in text}
    assert "rust/kx/lib.rs" in tables and len(tables) > 4
    assert {name: without_a_row(text) for name, text in tables.items() if without_a_row(text)} == {}


def test_the_index_has_every_page():
    index = (TOP / "Documentation/index.md").read_text()
    pages = [str(path.relative_to(TOP / "Documentation")) for path in (TOP / "Documentation").rglob("*")
             if path.is_file() and path.name != "index.md" and path.parent.name != "pictures"]
    assert [page for page in pages if f"({page})" not in index] == []


def test_pictures_are_shown_and_as_new_as_their_sources():
    pages = "".join(page.read_text() for page in PAGES)
    stamp = runpy.run_path(TOP / "scripts/pictures.py")["stamp"]
    for source in (TOP / "Documentation/pictures").glob("*.dot"):
        picture = source.with_suffix(".svg")
        assert f"](pictures/{picture.name})" in pages, picture.name
        assert picture.read_text().endswith(stamp(source)), f"{picture.name} is older than its source: make pictures"
    drawn = {path.stem for path in (TOP / "Documentation/pictures").iterdir()}
    assert len(drawn) * 2 == len(list((TOP / "Documentation/pictures").iterdir()))


def test_what_is_gone_is_found():
    assert missing_files("`scripts/none.sh` `Kbuild` `path.rs` `none.rs` `drivers/x/y.c`") == ["scripts/none.sh", "none.rs"]
    assert missing_code("`Session::submit` [`kx::sync::Nonesuch`] `Session::nonesuch` `kx::sync::PercpuArc`") == [
        "kx::sync::Nonesuch", "Session::nonesuch"]
    assert missing_tests("`wire.rs::open_golden` `wire.rs::nonesuch` `hostile_client::test_attacks`") == ["wire.rs::nonesuch"]
    assert missing_sections('//! x (Documentation/protocol.md, "Answers";\n//! Documentation/protocol.md,\n//! "None").') == [
        "protocol.md: None"]
    assert without_a_row("//! | [`one`] | x |\npub mod one;\nmod two;\n#[cfg(test)]\nmod three;\n") == ["two"]
    assert spans("`one`\n\n    `two`\n") == ["one"]
    assert "debians-own-kernel" in anchors(TOP / "Documentation/testing.md")
