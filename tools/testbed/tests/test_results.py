# SPDX-License-Identifier: GPL-2.0
"""Parsers of other programs' results: kmemleak, KUnit, cargo, pytest."""

from testbed import ktap, leaks
from testbed.tally import Tally, cargo, junit, main, total

KMEMLEAK = """\
unreferenced object 0xff11000004a1b400 (size 64):
  comm "modprobe", pid 95, jiffies 4294672322
  hex dump (first 32 bytes):
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................
  backtrace (crc 0):
    kmalloc_trace+0x1/0x2
    ibtrs_init+0x3/0x4
unreferenced object 0xff11000004a1b800 (size 128):
  comm "fio", pid 101, jiffies 4294672400
  backtrace (crc 1):
    __kmalloc+0x1/0x2
"""

KTAP = """\
[    9.000000] some module: loaded
[    9.000001] KTAP version 1
[    9.000002] 1..1
[    9.000003]     KTAP version 1
[    9.000004]     # Subtest: rust_ibtrs
[    9.000005]     # speed: normal
[    9.000006]     1..3
[    9.000007]     ok 1 rust_ibtrs_alpha
[    9.000008]     # rust_ibtrs_beta: ASSERTION FAILED at rust/x.rs:7
[    9.000009]     not ok 2 rust_ibtrs_beta
[    9.000010]     ok 3 rust_ibtrs_gamma # SKIP not here
[    9.000011] # Totals: pass:1 fail:1 skip:1 total:3
[    9.000012] not ok 1 rust_ibtrs
""".splitlines()


def test_leaks_are_told_apart():
    found = leaks.parse(KMEMLEAK)
    assert len(found) == 2
    assert "ibtrs_init" in found[0].text and "fio" not in found[0].text
    assert found[1].lines[0].endswith("(size 128):")
    assert leaks.parse("") == []


def test_kunit_cases():
    alpha, beta, gamma = ktap.parse(KTAP)
    assert (alpha.suite, alpha.name, alpha.passed) == ("rust_ibtrs", "rust_ibtrs_alpha", True)
    assert not beta.passed and "ASSERTION FAILED" in beta.words[0]
    assert gamma.skipped


def test_cargo_counts_are_added_up():
    log = ("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n"
           "test good ... ok\ntest keys::bad ... FAILED\n"
           "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n")
    assert cargo(log) == Tally(15, 2, 1, failures=["keys::bad"])
    error = "error[E0425]: cannot find value"
    assert cargo(error + "\n") == Tally(0, 1, failures=[error])
    # As scripts/test.sh writes of the fuzzer.
    assert cargo("test result: FAILED. 0 passed; 1 failed (fuzzing)\n") == Tally(0, 1)


def test_junit_counts():
    text = ("<testsuites><testsuite><testcase name='a'/><testcase classname='f' name='b'>"
            "<failure message='assert 1 == 2&#10;more'/></testcase>"
            "<testcase name='c'><error/></testcase><testcase name='d'><skipped/></testcase>"
            "<testcase name='e'><properties><property name='booted' value='3'/>"
            "<property name='booted again' value='client: silent'/></properties></testcase>"
            "</testsuite></testsuites>")
    failures = ["f::b: assert 1 == 2", "::c: "]
    assert junit(text) == Tally(2, 2, 1, booted=3, again=1, failures=failures)


def test_a_suite_that_ran_nothing_has_failed(tmp_path):
    Tally(4, 0, 2).save(tmp_path / "good")
    Tally(0, 0, 7).save(tmp_path / "all-skipped")
    assert total([tmp_path / "good"]) == Tally(4, 0, 2)
    assert total([tmp_path / "good", tmp_path / "all-skipped"]) == Tally(4, 1, 9, failures=["all-skipped: no test ran"])
    assert total([tmp_path / "good", tmp_path / "never-written"]) == Tally(4, 1, 2, failures=["never-written: no test ran"])
    assert str(total([tmp_path / "good"])) == "4 passed, 0 failed, 2 skipped"


def test_the_closing_lines(tmp_path, capsys):
    Tally(4, 0, 2, booted=5, again=1).save(tmp_path / "scenarios")
    Tally(3, 0, 0, booted=1).save(tmp_path / "kunit")
    assert main("sum", str(tmp_path / "scenarios"), str(tmp_path / "kunit")) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "6 guests booted, 1 of them again as they did not come up, or their emulator failed", "7 passed, 0 failed, 2 skipped"]


def test_what_failed_is_said_at_the_end(tmp_path, capsys):
    Tally(4, 1, 0, failures=["test_a: assert 1 == 2"]).save(tmp_path / "scenarios")
    assert main("sum", str(tmp_path / "scenarios")) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "FAILED test_a: assert 1 == 2", "4 passed, 1 failed, 0 skipped"]
