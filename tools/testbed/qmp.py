# SPDX-License-Identifier: GPL-2.0
"""A small client of QEMU's machine protocol, to freeze guests and pull cables."""

import json
import socket
from pathlib import Path


class Qmp:
    def __init__(self, path: Path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(path))
        self.stream = self.socket.makefile("rb")
        self.stream.readline()
        self("qmp_capabilities")

    def __call__(self, command: str, **arguments):
        request = {"execute": command, "arguments": arguments}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = json.loads(self.stream.readline())
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']['desc']}")
