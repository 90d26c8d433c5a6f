# SPDX-License-Identifier: GPL-2.0
"""Sorts the kernel's functions by what they are for, by their names: a rough division, for a look at where the
instructions go. Functions of modules belong to their module."""

import re

# The first pattern that is found in a name decides.
_PATTERNS = [(layer, re.compile(pattern)) for layer, pattern in (
    ("block layer", r"^_*(blk|bio|bvec|submit_bio|sbitmap|blkdev|blkcg|elv_|part_|update_io_ticks|rq_|bdev|disk_)"),
    ("locks", r"spin_|_raw_|rcu_|mutex|rwsem|lockref|local_bh|refcount|preempt_|up_read|down_read|sem"),
    ("memory", r"kmalloc|kfree|krealloc|kmem_cache|slab|kvfree|free_pages|alloc_pages|page_|obj_|memcg|refill"),
    ("network", r"skb|ip_|ip6|dst_|udp|tcp|net|dev_|sock_|neigh|__ip|fib|nf_|qdisc|napi|eth_|siphash|loopback|rt_|inet|"
                r"route|sk_|virtqueue"),
    ("copies, checksums", r"memcpy|memset|crc|copy_|rep_|_copy|fpu|memmove|memcmp"),
    ("work queues", r"work|pool|kthread|wq_|pwq"),
    ("interrupts", r"softirq|irq|tasklet|asm_|apic|exc_|error_entry"),
    ("clocks, timers", r"ktime|hrtimer|clock|timer|tick|jiff|tsc|delta"),
    ("scheduler", r"sched|task|switch|entity|enqueue|dequeue|update_|pick|wake|ttwu|load_avg|place_|rq|curr|idle|fair|"
                  r"slice|avg|prio|dl_|cpu|finish_|balance|set_next|wait|completion|__up|down|vruntime|deadline"),
    ("system calls, files", r"sys|entry_|vfs|file|fd|ioctl|read|write|iov|io_|import|security|fget|fput|do_|access|"
                            r"uring"),
)]
OTHER = "other"


def of(name: str, module: str) -> str:
    """The layer of a function."""
    if module != "kernel":
        return module
    return f"kernel: {next((layer for layer, pattern in _PATTERNS if pattern.search(name)), OTHER)}"
