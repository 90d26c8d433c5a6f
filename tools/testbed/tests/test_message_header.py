# SPDX-License-Identifier: GPL-2.0
"""The header of messages is plain C without padding, and has the numbers that the module uses."""

import re
import subprocess

import pytest

from testbed import messages
from testbed.paths import TOP
from testbed.tool import C_FLAGS

HEADER = TOP / "ibmsg/ibmsg.h"
PROGRAM = """
#include "{header}"
#include <stddef.h>
#include <stdio.h>
int main(void)
{{
{lines}
	return 0;
}}
"""
STRUCTS = ("msg", "offer", "opts", "bind", "connect", "accept", "info", "call", "map", "unmap", "body", "release", "copy", "tune", "subscribe",
           "unsubscribe", "log")
NUMBERS = ("IBMSG_IOC_BIND", "IBMSG_IOC_CONNECT", "IBMSG_IOC_ACCEPT", "IBMSG_IOC_INFO", "IBMSG_IOC_SHUTDOWN",
           "IBMSG_IOC_CALL", "IBMSG_IOC_FLUSH", "IBMSG_IOC_TUNE",
           "IBMSG_IOC_MAP", "IBMSG_IOC_UNMAP", "IBMSG_IOC_PUT", "IBMSG_IOC_GET", "IBMSG_IOC_RELEASE", "IBMSG_IOC_SUBSCRIBE", "IBMSG_IOC_UNSUBSCRIBE", "IBMSG_IOC_LOG")


def values(folder, expressions: list[str]) -> list[int]:
    lines = "\n".join(f'	printf("%ld\\n", (long)({expression}));' for expression in expressions)
    (folder / "print.c").write_text(PROGRAM.format(header=HEADER, lines=lines))
    subprocess.run(["cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wpadded", "-Werror", "-o", folder / "print",
                    folder / "print.c"], check=True)
    return list(map(int, subprocess.run(folder / "print", check=True, capture_output=True, text=True).stdout.split()))


def test_structures_have_the_sizes_that_the_module_takes(tmp_path):
    sizes = dict(zip(STRUCTS, values(tmp_path, [f"sizeof(struct ibmsg_{name})" for name in STRUCTS]), strict=True))
    assert sizes == {"msg": 32, "offer": 72, "opts": 32, "bind": 112, "connect": 440, "accept": 280, "info": 248, "call": 48,
                     "map": 40, "unmap": 16, "body": 24, "release": 16, "copy": 48, "tune": 24, "subscribe": 40, "unsubscribe": 16, "log": 72}
    assert sizes["info"] == messages.INFO_FIELDS.size and sizes["msg"] == messages.HEADER.size
    source = (TOP / "ibmsg/file.rs").read_text() + (TOP / "ibmsg/file/publish.rs").read_text()
    numbers = dict(re.findall(r"^const (\w+): usize = (\d+);", source, re.M))
    assert [int(numbers[f"{name.upper()}_LEN"]) for name in (
        "bind", "info", "call", "map", "unmap", "release", "copy", "tune", "subscribe", "unsubscribe", "log")] == [
        sizes["bind"], sizes["info"], sizes["call"], sizes["map"], sizes["unmap"], sizes["release"], sizes["copy"],
        sizes["tune"], sizes["subscribe"], sizes["unsubscribe"], sizes["log"]]
    places = ("connect, status", "connect, data", "call, reply_len", "call, status", "map, handle")
    offsets = values(tmp_path, [f"offsetof(struct ibmsg_{place})" for place in places])
    assert [int(numbers[place.upper().replace(", ", "_")]) for place in places] == offsets


def test_numbers_are_those_of_the_module(tmp_path):
    source = (TOP / "ibmsg/file.rs").read_text()
    used = [int(re.search(rf"const {name.removeprefix('IBMSG_IOC_')}: u32 = (0x\w+);", source)[1], 16) for name in NUMBERS]
    assert used == values(tmp_path, list(NUMBERS)) == [messages.BIND, messages.CONNECT, messages.ACCEPT, messages.INFO,
                                                       messages.SHUTDOWN, messages.CALL, messages.FLUSH,
                                                       messages.TUNE, messages.MAP, messages.UNMAP, messages.PUT,
                                                       messages.GET, messages.RELEASE, messages.SUBSCRIBE, messages.UNSUBSCRIBE,
                                                       messages.LOG]


EXAMPLES = sorted(path.stem for path in (TOP / "tools/examples").glob("*.c"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_compile(tmp_path, name):
    subprocess.run(["cc", *C_FLAGS, "-o", tmp_path / name, TOP / f"tools/examples/{name}.c"], check=True)
    assert subprocess.run(tmp_path / name, capture_output=True).returncode == 2
