# SPDX-License-Identifier: GPL-2.0
"""The parts of the hostile peers that need no device."""

import pytest

from testbed.hostile import report, values, wire
from testbed.hostile.checksum import crc32c, sealed, trailer
from testbed.hostile.mutate import Mutator
from testbed.hostile.wire import Immediate
from testbed.hostile.x25519 import BASE, LOW_ORDER, x25519

UUID = bytes(range(16))


def hexes(text: str) -> bytes:
    return bytes.fromhex(text)


def test_messages_of_the_protocol_page():
    request = wire.CONN_REQ.pack(cid=0x0102, cid_num=0x0304, recon_cnt=0x0506, path=UUID, session=UUID[::-1])
    assert request == hexes("0000bd1b0002 0201 0403 0605") + UUID + UUID[::-1] + b"\x01" + bytes(11)
    accepted = wire.CONN_RSP.pack(queue_depth=512, max_io_size=131072 - 4096, max_hdr_size=4096, flags=wire.NEW_RKEY)
    assert accepted == hexes("bd1b0002 0000 0002 00f00100 00100000 02000000") + bytes(36)
    assert wire.CONN_RSP.pack(errno=-104) == hexes("bd1b000298ff") + bytes(50)
    assert wire.INFO_REQUEST.pack(name=b"blya") == hexes("0000626c7961") + bytes(266)
    assert wire.info_rsp([(0x1122334455667788, 0x0A0B0C0D, 24576)]) == hexes(
        "0100010000000000 8877665544332211 0d0c0b0a 00600000")
    assert wire.WRITE_REQUEST.pack(usr_len=0x0120) == hexes("02002001")
    assert wire.READ_REQUEST.pack(usr_len=32, flags=wire.NEED_INVAL, addr=0x0102030405060708, key=0x11121314,
                                  len=8192) == hexes("0300200001000100 0807060504030201 14131211 00200000")
    assert wire.READ_NOTHING.pack(usr_len=32) == hexes("0300200000000000")
    assert wire.FETCH_REQUEST.pack(usr_len=32, flags=wire.NEED_INVAL, addr=0x0102030405060708, key=0x11121314,
                                   len=8192) == hexes("0c00200001000100 0807060504030201 14131211 00200000")
    assert wire.CONN_RSP.pack(ext=1, more_flags=wire.RSP_TIMES | wire.RSP_SLOTS, slot_size=2)[20:24] == hexes("01000302")
    assert wire.RKEY.pack(chunk=0x0102, key=0x03040506) == hexes("0400020106050403")


def test_x25519_of_the_standard():
    for secret, point, product in [
            ("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
             "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
             "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"),
            ("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
             "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
             "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957")]:
        assert x25519(hexes(secret), hexes(point)) == hexes(product)
    alice = hexes("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = hexes("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    shares = [x25519(secret, BASE) for secret in (alice, bob)]
    assert shares == [hexes("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"),
                      hexes("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")]
    assert x25519(alice, shares[1]) == x25519(bob, shares[0]) == hexes(
        "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert [x25519(secret, point) for secret in (alice, bob) for point in LOW_ORDER] == [bytes(32)] * 2 * len(LOW_ORDER)


def test_messages_of_the_block_device():
    assert wire.SESS_INFO_REQ.pack() == hexes("0000000002") + bytes(31)
    assert wire.OPEN_REQ.pack(access_mode=2, dev_name=b"ram0") == hexes("020000000200 72616d30") + bytes(254)
    assert wire.CLOSE_REQ.pack(device_id=0x04030201) == hexes("0500000001020304")
    io = wire.IO_REQ.pack(device_id=0x04030201, sector=0x0807060504030201, rw=wire.WRITE_ZEROES | 0xF00,
                          bytes=0x14131211, prio=0x6001)
    assert io == hexes("0400000001020304 0102030405060708 050f0000 11121314 0160") + bytes(6)
    details = wire.OPEN_ANSWER.pack(details=1, details_flags=7, details_physical=0x04030201, io_min=0x08070605,
                                    io_opt=0x0C0B0A09, max_secure_erase_sectors=0x14131211, alignment_offset=0x18171615)
    assert details[wire.OPEN_ANSWER_SHORT:] == hexes("01070000 01020304 05060708 090a0b0c 11121314 15161718") + bytes(8)


def test_checksums_of_the_protocol_page():
    assert crc32c(b"123456789") == 0xE3069283
    fields = {"device_id": 0x04030201, "sector": 0x0807060504030201, "bytes": 512, "prio": 0x6001}
    data = b"\x5a" * 512
    write = sealed(data, rw=wire.WRITE | wire.SYNC, **fields)
    assert write == hexes("04000000 01020304 0102030405060708 01110000 00020000 01600000 c810e629")
    read = sealed(rw=wire.READ | wire.SYNC, **fields)
    assert read[28:] == hexes("ea8b6175")
    assert trailer(read, data) == hexes("99a2e4e4")


def test_times_of_the_protocol_page():
    assert wire.WRITE_REQUEST.pack(usr_len=0x0120, type=wire.WRITE_HDR | wire.TIMED) == hexes("02802001")
    for number, times in ((0x07FF0001, (1, 2047)), (0x14000FFF, (4094, 4096)), (0x64C43C93, (149888, 4997120)),
                          (0xFFFFFFFF, (4395899027456, 4395899027456))):
        assert wire.times(number.to_bytes(4, "little")) == times
    assert wire.CONN_RSP.pack(more_flags=wire.RSP_TIMES)[22:24] == hexes("0100")


def test_lists_of_exports():
    assert wire.DISCOVER_REQ.pack(after=b"ram0") == hexes("06000000 0000 72616d30") + bytes(254)
    answer = wire.discovered([wire.listed(b"ram0", logical_block_size=4096, nsectors=0x07060504030201)],
                             [wire.PORTAL.pack(addr=bytes((10, 0, 1, 1)))], flags=wire.MORE)
    assert answer == (hexes("07000000 0100 01 01") + bytes(8) + hexes("0100d204 0a000101") + bytes(12)
                      + hexes("04010010 0102030405060700 72616d30"))


@pytest.mark.parametrize("layout", [item for item in vars(wire).values() if isinstance(item, wire.Layout)],
                         ids=lambda layout: layout.name)
def test_fields_do_not_overlap_and_come_back(layout):
    taken = [byte for item in layout.fields for byte in range(item.at, item.at + item.size)]
    assert len(set(taken)) == len(taken) and max(taken) < layout.length
    for item in layout.fields:
        for value in values.boundaries(item):
            expected = value if item.is_number else value.ljust(item.size, b"\0")
            message = layout.pack(**{item.name: value})
            assert len(message) == layout.length and layout.unpack(message)[item.name] == expected


def test_immediates():
    assert wire.request_imm(512, 5, 4128) == 0x00281020
    assert wire.request_imm(512, 0, 320) == 0x140
    assert wire.answer_imm(5) == 0x10000005 and wire.answer_imm(5, kind=wire.IMM_ANSWER_INV) == 0x20000005
    assert wire.answer_imm(5, 5) == 0x10280005 and wire.answer_imm(7, 107) == 0x13580007
    assert wire.fence_imm(5) == 0x30000005 and wire.fence_imm(5, drain=True) == 0x38000005
    assert wire.downtime_imm(600) == 0xD0000258 and wire.downtime_imm(600, seen=True) == 0xD8000258
    answer = Immediate.of(0x13580007)
    assert (answer.kind, answer.errno, answer.chunk) == (1, 107, 7)
    assert Immediate.of(0x00281020).request(512) == (5, 4128)
    for depth in (1, 2, 500, 512, 513, 65535):
        last = Immediate.of(wire.request_imm(depth, depth - 1, 8))
        assert last.kind == wire.IMM_REQUEST and last.request(depth) == (depth - 1, 8)


def test_boundaries_are_those_of_the_field():
    for size in (1, 2, 4, 8):
        found = values.numbers(size)
        top = 1 << 8 * size
        assert {0, 1, top // 2 - 1, top // 2, top - 1} <= set(found) and max(found) < top


def test_results_are_read_back():
    text = "\n".join(["noise", report.line(report.Result("a b", True, "0.1 s")),
                      report.line(report.Result("c", False, "OSError: x: y\nz"))])
    assert [(result.name, result.ok) for result in report.parse(text)] == [("a b", True), ("c", False)]
    assert report.failures(text) == ["c: OSError: x: y z"]


def test_a_case_that_fails_is_a_result(capsys):
    def case(number):
        assert number == 1, "not one"

    assert report.run("good", case, 1).ok and not report.run("bad", case, 2).ok
    assert report.failures(capsys.readouterr().out)[0].startswith("bad: AssertionError: not one")


def test_mutations_are_made_again_by_their_seed():
    messages = [bytes(range(length)) for length in (1, 4, 8, 36, 56, 200)] * 50

    def run(seed: str) -> list[bytes]:
        mutator = Mutator(seed, 0.5)
        return [mutator.message(message, fixed=True) for message in messages]

    assert run("1") == run("1") != run("2")
    assert [len(message) for message in run("1")] == [len(message) for message in messages]
    changed = sum(a != b for a, b in zip(run("1"), messages))
    assert len(messages) / 4 < changed < len(messages) * 3 / 4


def test_mutations_of_every_kind_happen():
    mutator = Mutator("kinds", 1)
    lengths = {len(mutator.message(b"0123456789")) for _ in range(500)}
    assert lengths > set(range(10)) | {11, 14, 26, 4106}
    assert {mutator.number(0x10000005) for _ in range(2000)} >= {0x10000004, 0xFFFFFFFF, 0, 0x90000005}
    orders = {tuple(mutator.order([1, 2, 3])) for _ in range(500)}
    assert {(1, 2), (1, 3, 2), (1, 1, 2, 3)} <= orders
    assert Mutator("none", 0).message(b"as it is") == b"as it is"


def test_some_of_each_kind_are_chosen():
    names = [*(f"type {number}" for number in range(9)), *(f"key 0x{number}" for number in range(4)), "alone",
             "other, so", "other, so or so", "size=1"]
    assert values.representatives(names) == {"type 0", "type 4", "type 8", "key 0x0", "key 0x3", "alone",
                                             "other, so", "other, so or so", "size=1"}


def test_parts_make_the_whole():
    names = [f"type {number}" for number in range(10)]
    parts = [values.part(names, f"{number}/3") for number in (1, 2, 3)]
    assert set.union(*parts) == set(names) and sum(map(len, parts)) == len(names)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert values.part(names, "1/1") == set(names)
    with pytest.raises(AssertionError):
        values.part(names, "4/3")
