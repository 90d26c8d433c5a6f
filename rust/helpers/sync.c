// SPDX-License-Identifier: GPL-2.0

#include <linux/preempt.h>
#include <linux/rcupdate.h>

/*
 * Whether the task is inside an RCU read section, as far as the kernel can tell:
 * it cannot where sections leave no trace, which takes a kernel that never
 * preempts and counts nothing.
 */
__rust_helper bool rust_helper_kx_in_rcu_section(void)
{
	return rcu_preempt_depth() > 0 ||
	       (!IS_ENABLED(CONFIG_PREEMPT_RCU) && IS_ENABLED(CONFIG_PREEMPT_COUNT) && in_atomic());
}

/* The same as synchronize_rcu() where no task is preempted in the kernel. */
__rust_helper void rust_helper_kx_synchronize_tasks(void)
{
	synchronize_rcu_tasks();
}
