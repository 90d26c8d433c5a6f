# SPDX-License-Identifier: GPL-2.0
"""The reports in a kernel log: which lines count, and where a report begins and ends."""

import pytest

from testbed import klog

WARNING = """\
[   10.000001] rxe: something quite usual
[   10.100000] ------------[ cut here ]------------
[   10.100001] WARNING: CPU: 0 PID: 77 at lib/refcount.c:28 refcount_warn_saturate+0xbe/0x110
[   10.100002] Call Trace:
[   10.100003]  <TASK>
[   10.100004]  ibtrs_close+0x10/0x20
[   10.100005]  </TASK>
[   10.100006] ---[ end trace 0000000000000000 ]---
[   10.200000] rxe: usual again
""".splitlines()

KASAN = """\
[   11.000000] ==================================================================
[   11.000001] BUG: KASAN: slab-use-after-free in ibtrs_done+0x1/0x2
[   11.000002] Read of size 8 at addr ff11000001 by task kworker/0:1/9
[   11.000003] Freed by task 8:
[   11.000004] ==================================================================
[   11.000005] harmless
""".splitlines()


def test_one_report_for_each_fault():
    found = klog.faults(WARNING + KASAN)
    assert [report.lines[0].split("] ")[1].split()[0] for report in found] == ["WARNING:", "BUG:"]
    assert "ibtrs_close" in found[0].text
    assert "usual again" not in found[0].text
    assert "Freed by task" in found[1].text and "harmless" not in found[1].text


@pytest.mark.parametrize("line", [
    "WARNING: possible circular locking dependency detected",
    "WARNING: inconsistent lock state",
    "WARNING: suspicious RCU usage",
    "BUG: sleeping function called from invalid context at mm/slab.h:1",
    "BUG: KASAN: use-after-free in x",
    "BUG: kernel NULL pointer dereference, address: 0000000000000000",
    "kernel BUG at lib/list_debug.c:29!",
    "UBSAN: array-index-out-of-bounds in a.c:1:2",
    "refcount_t: underflow; use-after-free.",
    "ODEBUG: free active (active state 0) object: 00 object type: timer_list",
    "DMA-API: rxe0: device driver tries to free DMA memory it has not allocated",
    "INFO: task fio:99 blocked for more than 120 seconds.",
    "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "watchdog: BUG: soft lockup - CPU#1 stuck for 22s!",
    "rust_kernel: panicked at main.rs:10:5:",
    "Kernel panic - not syncing: Fatal exception",
    "INFO: trying to register non-static key.",
    "Oops: int3: 0000 [#1] SMP KASAN",
    "task/9 is leaving the kernel with a held lock!",
    "rdma_card: card0: unmapped: queue pair 3, work request 0xff, address 0x4df14000, length 288",
    "BUG ibtrs_iu (Tainted: G): Objects remaining in ibtrs_iu on __kmem_cache_shutdown()",
])
def test_faults_are_known(line):
    assert klog.faults([f"[    1.000000] {line}"])
    # With the task in front of the line, and without any stamp.
    assert klog.faults([f"[    1.000000][  T123] {line}"])
    assert klog.faults([line])


@pytest.mark.parametrize("line", [
    "kasan: KernelAddressSanitizer initialized (generic)",
    "kmemleak: Kernel memory leak detector initialized (mem pool available: 30799)",
    "DMA-API: preallocated 65536 debug entries",
    "DMA-API: debugging enabled by kernel config",
    "Lock dependency validator: Copyright (c) 2006 Red Hat, Inc., Ingo Molnar",
    "debug: ignoring loglevel setting.",
    "ibnbd_client: disk0: unmapped",
    "rdma_card: card0: not_returned: queue pair 3, work request 0xff, address 0x4df14000, length 288",
])
def test_ordinary_lines_are_not_faults(line):
    assert not klog.faults([f"[    1.000000] {line}"])


def test_an_allowed_report_hides_no_other(monkeypatch):
    monkeypatch.setattr(klog, "ALLOWED", [klog.Allowed("refcount_warn", "for this test")])
    hidden_inside = WARNING[:5] + ["[   10.100004] BUG: scheduling while atomic: x"] + WARNING[5:]
    assert not klog.faults(WARNING)
    assert len(klog.faults(hidden_inside)) == 1


def test_the_mark_moves(tmp_path):
    path = tmp_path / "console.log"
    log = klog.Log(path)
    assert log.new_lines() == []
    path.write_bytes(b"one\r\ntwo\r\n")
    assert log.new_lines() == ["one", "two"]
    log.move_mark()
    assert log.new_lines() == []
    path.open("ab").write(b"three\r\n")
    assert log.new_lines() == ["three"]
    assert log.lines() == ["one", "two", "three"]


def test_soft_roces_wait_for_a_queue_pair_is_let_through_and_nothing_like_it():
    line = "[  1.0] WARNING: drivers/infiniband/sw/rxe/rxe_pool.c:212 at __rxe_cleanup+0x84/0x110 [rdma_rxe]"
    assert not klog.faults([line, "[  1.0]  rxe_destroy_qp+0x5b/0xb0 [rdma_rxe]"])
    assert klog.faults([line, "[  1.0]  rxe_dereg_mr+0x5b/0xb0 [rdma_rxe]"])


def test_soft_roces_mistake_about_reads_is_let_through_and_no_other():
    line = "[  1.0] WARNING: drivers/infiniband/sw/rxe/rxe_comp.c:827 at rxe_completer+0xb8e/0xee0 [rdma_rxe], CPU#1"
    assert not klog.faults([line])
    assert klog.faults([line.replace("rxe_comp.c", "rxe_req.c")])
    assert klog.faults([line.replace("rxe_completer", "rxe_sender")])


def test_the_block_layers_lock_of_control_groups_is_let_through_and_no_other():
    report = """\
[  1.0] WARNING: possible circular locking dependency detected
[  1.0] bash/13 is trying to acquire lock:
[  1.0] ffffffff820f1ad8 (fs_reclaim){+.+.}-{0:0}, at: kmem_cache_alloc_noprof+0x4f/0x310
[  1.0]
[  1.0] but task is already holding lock:
[  1.0] ffff8880050d1dd8 (&q->blkcg_mutex){+.+.}-{4:4}, at: blkg_conf_prep+0x6e/0x960"""
    assert not klog.faults(report.splitlines())
    assert klog.faults(report.replace("&q->blkcg_mutex", "QueuePair::drained").splitlines())
    assert klog.faults(report.replace("(fs_reclaim)", "(Attempt::cons)").splitlines())


KCSAN = """\
[   12.000000] ==================================================================
[   12.000001] BUG: KCSAN: data-race in {} / rxe_requester
[   12.000002] write to 0xff11 of 8 bytes by task 9 on cpu 1:
[   12.000003]  {}
[   12.000004] ==================================================================
"""


def test_races_are_ours_if_our_code_is_in_them():
    assert klog.faults(KCSAN.format("rxe_completer", "rxe_completer+0x1/0x2 [rdma_rxe]").splitlines()) == []
    assert len(klog.faults(KCSAN.format("ib_post", "send+0x1/0x2 [ibtrs_core]").splitlines())) == 1
    # An interrupt that came while our code ran.
    assert klog.faults(KCSAN.format("virtqueue_disable_cb", "recv_done+0x1/0x2 [ibtrs_server]").splitlines()) == []
    timer = KCSAN.format("__mod_timer", "queue_rq+0x1/0x2 [ibnbd_client]")
    assert klog.faults(timer.replace("rxe_requester", "blk_add_timer").splitlines()) == []
    assert len(klog.faults(timer.splitlines())) == 1
    flags = KCSAN.format("__blk_flush_plug", "recv_done+0x1/0x2 [ibtrs_server]")
    assert klog.faults(flags.replace("rxe_requester", "kernel_fpu_begin_mask").splitlines()) == []
    assert len(klog.faults(flags.splitlines())) == 1


def test_objects_that_found_no_memory():
    failed = "[    1.000000] kobject_add_internal failed for ibnbd0 (error: {} parent: block)"
    assert klog.faults([failed.format(-12)]) == []
    assert len(klog.faults([failed.format(-2)])) == 1


def test_a_page_that_virtio_net_did_not_get_is_let_through_and_no_other():
    line = "[    1.000000] ksoftirqd/1: page allocation failure: order:0, mode:0x820(GFP_ATOMIC)"
    assert klog.faults([line, "[    1.000001]  try_fill_recv+0x18f/0x7c0", "[    1.000002]  </TASK>"]) == []
    assert len(klog.faults([line, "[    1.000001]  accept+0x18f/0x7c0 [ibtrs_server]", "[    1.000002]  </TASK>"])) == 1
