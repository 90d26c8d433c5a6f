// SPDX-License-Identifier: GPL-2.0

#include <linux/preempt.h>
#include <linux/rcupdate.h>

/*
 * Returns whether the task is inside an RCU read section, as far as the kernel can
 * tell.  A kernel without CONFIG_PREEMPT_RCU and CONFIG_PREEMPT_COUNT cannot tell,
 * and the result is false.
 */
__rust_helper bool rust_helper_kx_in_rcu_section(void)
{
	return rcu_preempt_depth() > 0 ||
	       (!IS_ENABLED(CONFIG_PREEMPT_RCU) && IS_ENABLED(CONFIG_PREEMPT_COUNT) && in_atomic());
}

/* The same as synchronize_rcu() in kernels that never preempt a task in the kernel. */
__rust_helper void rust_helper_kx_synchronize_tasks(void)
{
	synchronize_rcu_tasks();
}
