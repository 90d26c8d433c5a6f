#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""html.py FOLDER: builds the pages of Documentation and the README as HTML, with Sphinx.

The pages are written to be read as plain text.  This script adds a table of contents, grouped by the readers that
index.md names and in its order, links in the lists of contents, colours for commands, and a page for each entry of
the ABI.  A broken link is an error."""

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
CONFIGURATION = """\
project = "ibtrs"
author = "the ibtrs contributors"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "sidebar_width": "240px", "show_powered_by": False, "show_relbars": True}
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
highlight_language = "commands"
# Options such as --force keep their two dashes.
smartquotes = False


def setup(app):
    from pygments.lexer import RegexLexer, bygroups
    from pygments.token import Generic, Text

    class Commands(RegexLexer):
        # What is typed stands out from what is printed.
        name = "commands"
        tokens = {"root": [
            (r"^(\\w*# )(.*\\n)", bygroups(Generic.Prompt, Generic.Strong)),
            (r".*\\n", Text),
        ]}

    app.add_lexer("commands", Commands)
    app.add_lexer("console", Commands)
"""
# The readers of index.md, in the order of the groups of the table of contents; a page is in the group of its first reader.
READERS = {"everybody": "Start here", "operators": "Operators", "tools": "Operators", "programmers": "Programmers",
           "contributors": "Contributors", "implementers": "Implementers"}


def moved_links(text: str) -> str:
    """Links as they are from a folder that has the README beside the pages."""
    text = re.sub(r"\]\(\.\./README\.md", "](README.md", text)
    text = re.sub(r"\]\(Documentation/", "](", text)
    text = re.sub(r"\]\(ABI/testing\)", "](ABI/testing/index.md)", text)
    return re.sub(r"\]\((ABI/testing/(?:configfs|dev|sysfs)-[\w-]+)\)", r"](\1.md)", text)


def contents(index: str) -> str:
    """Tables of contents with the pages and the entries of the ABI that the index links to: one for each kind of
    readers, in the order of the index."""
    groups = {title: [] for title in READERS.values()}
    for page, readers in re.findall(r"^\| \[[^\]]*\]\(([^)]+)\.md\) \| (\w+)", index, re.M):
        groups[READERS[readers]].append(page)
    groups["Operators"].append("ABI/testing/index")
    return "".join(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(dict.fromkeys(pages)) + "\n```\n"
                   for title, pages in groups.items())


def anchor(heading: str) -> str:
    """The anchor of a heading, as MyST and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def linked(text: str) -> str:
    """Has the list of contents of a page lead to its sections."""
    sections = {heading.replace("`", "").lower(): heading for heading in re.findall(r"^##+ (.+)$", text, re.M)}

    def link(item: str) -> str:
        name = " ".join(item.split())
        return f"[{name}](#{anchor(sections[name.lower()])})" if name.lower() in sections else name

    def links(found: re.Match) -> str:
        return "Contents: " + " - ".join(map(link, re.split(r"\s-\s", found[1]))) + ".\n\n"

    return re.sub(r"^Contents: (.+?)\.\n\n", links, text, count=1, flags=re.M | re.S)


def stage(folder: Path) -> None:
    """Puts the sources of the book into a folder."""
    source = TOP / "Documentation"
    for page in [TOP / "README.md", *source.glob("*.md")]:
        # Examples that rustdoc compiles; Sphinx knows the language without the rest.
        text = moved_links(page.read_text()).replace("```rust,no_run\n", "```rust\n")
        (folder / page.name).write_text(text + contents(text) if page.name == "index.md" else linked(text))
    if (source / "pictures").is_dir():
        shutil.copytree(source / "pictures", folder / "pictures")
    for file in [*source.glob("*.json"), *source.glob("*.vp")]:
        shutil.copy(file, folder)
    entries = folder / "ABI/testing"
    entries.mkdir(parents=True)
    names = sorted(entry.name for entry in (source / "ABI/testing").iterdir())
    for name in names:
        text = (source / "ABI/testing" / name).read_text()
        (entries / f"{name}.md").write_text(f"# {name}\n\n```text\n{text}```\n")
    listing = "# Files in configfs and sysfs\n\n" + "".join(f"- [{name}]({name}.md)\n" for name in names)
    (entries / "index.md").write_text(listing)
    (folder / "conf.py").write_text(CONFIGURATION)


def build(out: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder))
        words = ["-b", "html", "-q", "-W", "--keep-going", "-n", "-j", "auto", "-d", f"{folder}/.doctrees"]
        return subprocess.run([sys.executable, "-m", "sphinx", *words, folder, out]).returncode


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: html.py FOLDER")
    if not all(find_spec(module) for module in ("sphinx", "myst_parser")):
        sys.exit("error: Sphinx is missing: apt install python3-sphinx python3-myst-parser")
    return build(Path(sys.argv[1]).resolve())


if __name__ == "__main__":
    sys.exit(main())
