# SPDX-License-Identifier: GPL-2.0
"""Changes valid messages and their order at random: the same seed makes the same changes."""

import random

from .values import numbers


class Mutator:
    """Changes about `rate` of what it is given."""

    def __init__(self, seed: str, rate: float):
        self.random, self.rate = random.Random(seed), rate
        # The changes, for the search for the cause of a failure.
        self.changed = 0

    def hits(self) -> bool:
        hit = self.random.random() < self.rate
        self.changed += hit
        return hit

    def message(self, message: bytes, fixed: bool = False) -> bytes:
        """A message, perhaps changed; one that is fixed keeps its length."""
        if not message or not self.hits():
            return message
        kinds = [self._flip, self._boundary, self._blank, self._move]
        if not fixed:
            kinds += [self._cut, self._lengthen]
        return bytes(self.random.choice(kinds)(bytearray(message)))

    def number(self, number: int, bits: int = 32) -> int:
        """A number, perhaps with a bit flipped or another one."""
        if not self.hits():
            return number
        if self.random.random() < 0.5:
            return number ^ 1 << self.random.randrange(bits)
        return self.random.choice(numbers(bits // 8))

    def order(self, steps: list) -> list:
        """Steps, perhaps with one of them twice, missing, or at another place."""
        steps = list(steps)
        if not steps or not self.hits():
            return steps
        at, to = self.random.randrange(len(steps)), self.random.randrange(len(steps))
        match self.random.randrange(3):
            case 0:
                steps.insert(to, steps[at])
            case 1:
                del steps[at]
            case 2:
                steps.insert(to, steps.pop(at))
        return steps

    def _flip(self, message: bytearray) -> bytearray:
        for _ in range(self.random.choice((1, 1, 1, 2, 8))):
            bit = self.random.randrange(8 * len(message))
            message[bit // 8] ^= 1 << bit % 8
        return message

    def _boundary(self, message: bytearray) -> bytearray:
        size = self.random.choice([size for size in (1, 2, 4, 8) if size <= len(message)])
        at = self.random.randrange((len(message) - size) // size + 1) * size
        message[at:at + size] = self.random.choice(numbers(size)).to_bytes(size, "little")
        return message

    def _blank(self, message: bytearray) -> bytearray:
        start = self.random.randrange(len(message))
        end = self.random.randrange(start, len(message)) + 1
        message[start:end] = bytes([self.random.choice((0, 0xFF))]) * (end - start)
        return message

    def _move(self, message: bytearray) -> bytearray:
        """A part of it over another one."""
        start, to = self.random.randrange(len(message)), self.random.randrange(len(message))
        part = message[start:start + self.random.randrange(1, 17)][:len(message) - to]
        message[to:to + len(part)] = part
        return message

    def _cut(self, message: bytearray) -> bytearray:
        return message[:self.random.randrange(len(message))]

    def _lengthen(self, message: bytearray) -> bytearray:
        return message + bytes(self.random.randrange(256) for _ in range(self.random.choice((1, 4, 16, 4096))))
