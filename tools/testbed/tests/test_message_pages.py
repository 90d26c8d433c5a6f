# SPDX-License-Identifier: GPL-2.0
"""The manual pages of messages say what ibmsg.h and messages.md say, and are good manual pages."""

import re
import subprocess

import pytest
from test_message_header import HEADER, NUMBERS, values

from testbed.paths import TOP

FOLDER = TOP / "tools/ibmsg/man"
PAGES = sorted(FOLDER.iterdir())
ALL = {page.name: page.read_text() for page in PAGES}
GUIDE = (TOP / "Documentation/messages.md").read_text()
C = HEADER.read_text()
# Only the tables of numbers have them, not the text.
OUR_OWN = {"IBMSG_H", "IBMSG_IOC"}


def names(text: str) -> set[str]:
    return set(re.findall(r"\bIBMSG_[A-Z_]*[A-Z]\b", text)) - OUR_OWN


def in_header() -> set[str]:
    """Constants and macros."""
    return (set(re.findall(r"#define\s+(IBMSG_\w+)", C)) | set(re.findall(r"^\t(IBMSG_\w+)\s*=", C, re.M))) - OUR_OWN


def structures(text: str) -> dict[str, list[tuple[str, str]]]:
    """Types and names of the fields of each structure."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    found = re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.S | re.M)
    return {name: re.findall(r"^\s+([\w ]+?)\s+(\w+(?:\[\w+\])?);", body, re.M) for name, body in found}


def section(page: str, title: str) -> str:
    return re.search(rf'^\.S[HS] "?{title}"?\n(.*?)(?=^\.SH|^\.SS|\Z)', ALL[page], re.S | re.M)[1]


def errors(page: str, title: str = "ERRORS") -> set[str]:
    """What the tags of a list are."""
    return set(re.findall(r"\bE[A-Z0-9]{2,}\b", " ".join(re.findall(r"^\.TP\n(\.B.*)$", section(page, title), re.M))))


def rows(title: str) -> list[list[str]]:
    """The table of messages.md below a heading."""
    _, table = GUIDE.split(f"| {title} |", 1)
    lines = table.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def in_table(title: str) -> set[str]:
    return {name for row in rows(title) for name in re.findall(r"`(E[A-Z0-9]+)`", row[0])}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_mandoc_finds_no_fault(page):
    found = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")
    name, section = page.name.split(".")
    assert re.search(rf"^\.TH {name} {section} ", ALL[page.name], re.M)
    assert re.search(rf'^\.SH NAME\n{name} \\- [a-z]', ALL[page.name], re.M)


def test_mandoc_does_find_faults(tmp_path):
    (tmp_path / "x.2").write_text(".TH x 2\n.SH NAME\nx\n.XY\n")
    assert subprocess.run(["mandoc", "-T", "lint", "-W", "warning", tmp_path / "x.2"], capture_output=True).returncode


def test_there_is_a_page_for_each_call():
    assert {f"ioctl_{name.lower().replace('_ioc', '')}.2" for name in NUMBERS} == {
        name for name in ALL if name.endswith(".2")}


def test_pages_refer_to_pages_that_exist():
    own = {tuple(name.split(".")) for name in ALL} | {("ibmsg", "1")}
    for name, text in ALL.items():
        cited = re.findall(r"^\.BR (\S*ibmsg\S*) \((\d)\)", text, re.M)
        assert cited and set(cited) <= own, name


def test_constants_are_those_of_the_header(tmp_path):
    said = set().union(*map(names, ALL.values()))
    assert said - in_header() == set()
    assert in_header() - said == set()
    numbers = {name: int(number) for text in ALL.values()
               for name, number in re.findall(r"\b(IBMSG_[A-Z_]+)\n\((\d+)\)", text)}
    assert len(numbers) > 2 and list(numbers.values()) == values(tmp_path, list(numbers))


def test_structures_are_those_of_the_header():
    ours = structures(C)
    said = [(name, fields) for text in ALL.values() for name, fields in structures(text).items()]
    assert {name for name, _ in said} == set(ours)
    for name, fields in said:
        assert fields == ours[name] and fields, name


def test_fields_are_explained():
    """Each by its name, but for those that are reserved."""
    for text in ALL.values():
        for name, fields in structures(text).items():
            for _, field in fields:
                field = field.split("[")[0]
                assert field == "reserved" or re.search(rf"^\.(I|IR|B) .*\b{field}\b", text, re.M), (name, field)


def test_sizes_of_the_header_are_right(tmp_path):
    (size,) = values(tmp_path, ["sizeof(struct ibmsg_msg)"])
    assert f"header of {size} bytes" in ALL["ibmsg_msg.5"]
    assert f"next multiple of {values(tmp_path, ['IBMSG_ALIGN(1)'])[0]}" in ALL["ibmsg_msg.5"]


def test_errors_are_those_of_the_guide():
    assert in_table("errno of `IBMSG_IOC_CONNECT` | meaning") <= errors("ioctl_ibmsg_connect.2")
    assert in_table("errno of `IBMSG_IOC_CALL` | meaning") <= errors("ioctl_ibmsg_call.2")
    assert in_table("errno of `IBMSG_IOC_MAP` | meaning") <= errors("ioctl_ibmsg_map.2")
    copies = in_table("errno of `IBMSG_IOC_PUT` and `IBMSG_IOC_GET` | meaning")
    assert copies <= errors("ioctl_ibmsg_put.2") and copies - {"EIO"} <= errors("ioctl_ibmsg_get.2") and len(copies) > 8
    assert in_table("reason of a refusal | meaning") == errors("ioctl_ibmsg_connect.2", "Reasons of a refusal")
    outcomes = errors("ibmsg_msg.5", "Read")
    assert in_table("`status` of a receipt | meaning") | in_table("`status` of a reply with `IBMSG_F_KERNEL` | meaning") == outcomes
    # Something was compared.
    assert len(outcomes) == 4 and len(errors("ioctl_ibmsg_call.2")) > 10


def test_terms_are_those_of_the_guide():
    page = section("ibmsg.4", "Terms")
    table = rows("field | default | greatest")
    assert len(table) > 5
    for cells in table:
        for field in re.findall(r"`(\w+)`", cells[0]):
            text = re.search(rf"^\.I {field}\n(.*?)(?=^\.TP|^\.P)", page, re.S | re.M)[1]
            for number in re.findall(r"\d+\^?\d*", " ".join(cells[1:])):
                assert re.search(rf"(?<![\d^]){re.escape(number)}(?![\d^])", text), (field, number)
