# SPDX-License-Identifier: GPL-2.0
"""The pages as HTML: they build, and each link in them leads somewhere."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from testbed.paths import TOP


class Page(HTMLParser):
    """The links of a page of HTML, and its anchors."""

    def __init__(self, file: Path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.append(value)


def dead_links(folder: Path) -> list[str]:
    pages = {file: Page(file) for file in folder.rglob("*.html")}
    dead = []
    for file, page in pages.items():
        for link in page.links:
            if link.startswith(("http:", "https:", "mailto:", "data:")):
                continue
            name, _, anchor = link.partition("#")
            target = (file.parent / unquote(name.partition("?")[0])).resolve() if name else file
            missing = not target.exists()
            if missing or anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                dead.append(f"{file.relative_to(folder)}: {link}")
    return dead


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("html").resolve()
    made = subprocess.run([TOP / "scripts/html.py", folder], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert made.returncode == 0, made.stdout
    return folder


def test_each_link_leads_somewhere(book):
    assert dead_links(book) == []


def test_each_page_is_in_the_book(book):
    pages = [page.stem for page in (TOP / "Documentation").glob("*.md")] + ["README"]
    entries = [f"ABI/testing/{entry.name}" for entry in (TOP / "Documentation/ABI/testing").iterdir()]
    assert [name for name in pages + entries if not (book / f"{name}.html").exists()] == []
    # Each is in the table of contents, which all pages show.
    contents = Page(book / "index.html").links
    assert [name for name in pages + entries if name != "index" and f"{name}.html" not in contents] == []


def test_options_keep_their_dashes(book):
    """A reader copies `--force` from the text."""
    texts = {page.name: page.read_text() for page in book.glob("*.html")}
    assert [name for name, text in texts.items() if "–" in text or "’" in text] == []
    assert "--force" in texts["tool.html"]


def test_lists_of_contents_lead_to_sections(book):
    for page in (TOP / "Documentation").glob("*.md"):
        found = re.search(r"^Contents: (.+?)\.\n\n", page.read_text(), re.M | re.S)
        if found:
            _, _, rest = (book / f"{page.stem}.html").read_text().partition("<p>Contents: ")
            shown = rest.partition("</p>")[0]
            items = [" ".join(item.split()) for item in re.split(r"\s-\s", found[1])]
            assert shown.count('href="#') == len(items), (page.name, shown)


def test_pages_are_grouped_and_lead_to_the_next(book):
    text = (book / "quick-start.html").read_text()
    captions = [re.sub("<[^>]*>", "", caption) for caption in re.findall(r'<p class="caption"[^>]*>(.*?)</p>', text)]
    assert captions[:5] == ["Start here", "Operators", "Programmers", "Contributors", "Implementers"]
    assert 'rel="prev"' in text and 'rel="next"' in text
    assert 'class="related' in text


def test_commands_stand_out_from_what_they_print(book):
    text = (book / "quick-start.html").read_text()
    assert '<span class="gp">client# </span><span class="gs">ibnbd map disk1</span>' in text
    assert '<span class="gs">/dev/ibnbd0' not in text and "/dev/ibnbd0" in text


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#not"></a><a href="c.html"></a>')
    (tmp_path / "b.html").write_text('<p id="there"></p><img src="none.svg"><a href="https://example.org/"></a>')
    assert sorted(dead_links(tmp_path)) == ["a.html: b.html#not", "a.html: c.html", "b.html: none.svg"]
