# SPDX-License-Identifier: GPL-2.0
"""X25519, of which no library is in the guests, as RFC 7748 describes it."""

PRIME, BASE = 2**255 - 19, (9).to_bytes(32, "little")
# Shares of low order, with which nobody agrees on a secret.
LOW_ORDER = [bytes(32), bytes([1]) + bytes(31),
             bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
             (PRIME - 1).to_bytes(32, "little"), (PRIME + 1).to_bytes(32, "little")]


def x25519(secret: bytes, point: bytes) -> bytes:
    """The function of RFC 7748, in a time that tells about the secret."""
    scalar = int.from_bytes(secret, "little") & ~7 & (2**254 - 1) | 2**254
    x1 = (int.from_bytes(point, "little") & (2**255 - 1)) % PRIME
    x2, z2, x3, z3 = 1, 0, x1, 1
    for bit in range(254, -1, -1):
        odd = scalar >> bit & 1
        if odd:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a % PRIME, c * b % PRIME, a * a % PRIME, b * b % PRIME
        x3, z3 = (da + cb) ** 2 % PRIME, x1 * (da - cb) ** 2 % PRIME
        e = aa - bb
        x2, z2 = aa * bb % PRIME, e * (aa + 121665 * e) % PRIME
        if odd:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")
