// SPDX-License-Identifier: GPL-2.0

#include <linux/sched.h>

/* Returns whether another task is to run on this processor, now or at the next tick. */
__rust_helper bool rust_helper_kx_need_resched(void)
{
	return need_resched() || test_thread_flag(TIF_NEED_RESCHED_LAZY);
}
