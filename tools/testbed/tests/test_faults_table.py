# SPDX-License-Identifier: GPL-2.0
"""The table of injected failures has every call that can fail."""

import random
import re

import pytest

from testbed import faults, races
from testbed.paths import TOP

# These have no result that a caller would have to check.
CANNOT_FAIL = """
___ratelimit __mutex_init __blk_rq_map_sg __flush_workqueue __fput_sync __free_pages bd_abort_claiming bdev_alignment_offset
bdev_discard_alignment bio_add_virt_nofail bio_init bio_uninit blk_finish_plug blk_mark_disk_dead blk_mq_destroy_queue
blk_mq_complete_request blk_mq_end_request blk_mq_free_tag_set
blk_mq_freeze_queue blk_mq_quiesce_queue blk_mq_requeue_request blk_mq_rq_to_pdu
blk_mq_start_request blk_mq_unfreeze_queue blk_mq_unquiesce_queue blk_put_queue blk_start_plug blk_status_to_errno blk_update_request
cancel_delayed_work cancel_delayed_work_sync cancel_work cancel_work_sync class_destroy clear_bit complete_all
completion_done config_group_init config_item_put configfs_add_default_group crc32c
configfs_remove_default_groups configfs_unregister_subsystem cpu_possible del_gendisk destroy_workqueue dev_set_uevent_suppress device_del
curve25519 curve25519_generate_public device_initialize disable_delayed_work_sync disable_work_sync disk_uevent dma_max_mapping_size errno_to_blk_status
file_bdev flush_delayed_work flush_work free_pages_exact free_percpu get_net get_random_bytes get_random_u32
get_random_u64 hmac_sha256_final hmac_sha256_init_usingrawkey ib_dealloc_pd_user ib_dereg_mr_user ib_dma_mapping_error ib_dma_sync_single_for_cpu
ib_dma_needs_sync ib_dma_sync_single_for_device ib_dma_unmap_sg ib_dma_unmap_single ib_drain_qp ib_drain_rq ib_free_cq
ib_inc_rkey ibdev_to_node ib_process_cq_direct ib_unregister_client ib_update_fast_reg_key ib_wc_status_msg
init_completion init_work_with_key kernfs_put key_put key_revoke kobject_del kobject_init kobject_put kx_current_net
kx_hmac_sha256_update kx_keyring_is_empty
kx_copy_shared kx_cond_resched kx_dma_unmap_unused kx_in_rcu_section kx_need_resched kx_memcpy_shared kx_memzero_shared kx_per_cpu_read kx_per_cpu_write kx_plug_callback kx_plug_may_sleep kx_reclaim_acquire
kx_reclaim_release kx_release_disk kx_rq_copy kx_synchronize_tasks kx_sg_copy kx_sg_crc32c
kx_this_cpu_add kx_this_cpu_next kx_this_cpu_raise kx_totalram_pages memalloc_noio_restore
memalloc_noio_save memalloc_noreclaim_restore memalloc_noreclaim_save mod_delayed_work_on module_put mutex_destroy mutex_unlock node_online page_address
path_put percpu_ref_exit percpu_ref_get percpu_ref_kill percpu_ref_put put_device put_disk put_net
queue_delayed_work_on queue_work_on rdma_consumer_reject_data rdma_destroy_id rdma_destroy_qp
rdma_event_msg rdma_lock_handler rdma_unlock_handler set_bit set_capacity
set_disk_ro sg_dma_address sg_dma_len sg_init_one sg_init_table sg_next sg_set_dma_len split_page start_poll_synchronize_rcu
submit_bio sysfs_remove_link timer_init_key uuid_gen wait_for_completion
wait_for_completion_interruptible_timeout wait_for_completion_timeout
unregister_reboot_notifier
__override_init_fs __revert_init_fs bdev_fua bdev_nr_sectors bdev_partno bdev_read_only bdev_write_cache blk_queue_disable_discard
blk_queue_disable_secure_erase blk_queue_disable_write_zeroes d_backing_inode disk_openers get_capacity kx_disk_references
kx_disk_needs_part_scan kx_rq_elapsed_ns kx_rq_timeout_ms path_is_nodev
ib_dma_unmap_page kx_is_file_memory kx_is_plain_memory kx_page_follows kx_uncharge_pinned mmu_notifier_unregister unpin_user_pages_dirty_lock
__init_waitqueue_head __wake_up capable finish_wait init_wait_entry kx_current_euid kx_current_uid kx_in_egroup misc_deregister poll_wait stream_open
kx_uring_addr kx_uring_do_in_task kx_uring_done kx_uring_done_in_task kx_uring_file kx_uring_from_tw kx_uring_mark_cancelable
kx_uring_op kx_uring_words
""".split()
# These answer what is so already: something has gone or is going; no failure is in them.
TELL = """
kx_bdev_may_block kx_charge_pinned kx_hold_disk kx_key_read mutex_trylock poll_state_synchronize_rcu sysfs_remove_file_self try_module_get
wait_for_completion_killable prepare_to_wait_event schedule_timeout
""".split()
# The devices of software RDMA have the processor's addresses: nothing is mapped. Only our suites
# of KUnit call the others.
NEVER_IN_A_GUEST = ["blk_freeze_queue_start_non_owner", "blk_mq_unfreeze_queue_non_owner", "ib_dma_map_page",
                    "ib_dma_map_single", "kernel_write", "trace_set_clr_event"]
# Those by which programs pin memory fail in scenarios of it.
OF_MEMORY = ["kx_pin_user_pages", "mmu_notifier_register"]
# Of the module for messages, whose calls fail in a scenario of their own.
OF_MESSAGES = set(re.findall(r'Function\("(\w+)"', (TOP / "tools/testbed/message_faults.py").read_text())) - set(faults.BY_NAME)


def called() -> set[str]:
    """The functions of the kernel that the crates with unsafe code call."""
    files = [file for crate in ("kx", "rdma") for file in (TOP / "rust" / crate).rglob("*.rs")]
    return {name for file in files for name in re.findall(r"(?:bindings|ours)::([a-z_][a-z_0-9]*)\(", file.read_text())}


def test_each_function_that_is_called_can_be_made_to_fail_or_cannot_fail():
    known = {*CANNOT_FAIL, *TELL, *NEVER_IN_A_GUEST, *OF_MEMORY, *OF_MESSAGES}
    behind = {name: faults.BEHIND.get(name, name) for name in called()}
    assert sorted(name for name, real in behind.items() if real not in faults.BY_NAME and name not in known) == []
    # Functions that nobody calls any more.
    assert sorted(known - called()) == []
    allocators = {name for name, function in faults.BY_NAME.items() if function.kind == "alloc"}
    assert sorted(set(faults.BY_NAME) - set(behind.values()) - allocators) == []


def test_the_first_cases_are_of_many_kinds():
    cases = [f"{phase}:{name}:{n}" for phase in ("io", "add") for name in ("a", "b", "c") for n in range(1, 9)]
    order = faults.pick(cases, random.Random(1))
    assert sorted(order) == sorted(cases)
    assert len({case.rpartition(":")[0] for case in order[:6]}) == 6
    assert faults.pick(cases, random.Random(1)) == order


def test_each_case_is_in_one_share():
    cases = [f"{phase}:{function.name}:{n}" for phase in faults.PHASES for function in faults.FUNCTIONS for n in (1, 2)]
    shares = [faults.of_share(cases, f"{number}/4") for number in range(1, 5)]
    assert sorted(sum(shares, [])) == sorted(cases) and faults.of_share(cases, "1/1") == cases
    assert all(len(share) > len(cases) / 6 for share in shares), list(map(len, shares))
    with pytest.raises(AssertionError):
        faults.of_share(cases, "5/4")


def test_each_pair_once():
    pairs = races.pairs()
    assert len(pairs) == len(set(pairs)) == len(races.DEEDS) * (len(races.DEEDS) + 1) // 2
