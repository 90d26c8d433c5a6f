// SPDX-License-Identifier: GPL-2.0

#include <linux/build_bug.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>

/*
 * Returns whether the task is inside an RCU read section.  Without CONFIG_PREEMPT_RCU a
 * section disables preemption, which the kernel has to count.  The result is also true
 * in any other atomic context then, where the caller must not sleep either.
 */
__rust_helper bool rust_helper_kx_in_rcu_section(void)
{
	BUILD_BUG_ON_MSG(!IS_ENABLED(CONFIG_PREEMPT_RCU) && !IS_ENABLED(CONFIG_PREEMPT_COUNT),
			 "RCU read sections cannot be told: enable CONFIG_PREEMPT or CONFIG_PREEMPT_LAZY");
	return rcu_preempt_depth() > 0 || (!IS_ENABLED(CONFIG_PREEMPT_RCU) && in_atomic());
}

/*
 * The same as synchronize_rcu() in kernels that never preempt a task in the kernel.  In others it
 * has to wait for preempted tasks, which takes an option that tracing and kprobes select.
 */
__rust_helper void rust_helper_kx_synchronize_tasks(void)
{
	BUILD_BUG_ON_MSG(IS_ENABLED(CONFIG_PREEMPTION) && !IS_ENABLED(CONFIG_TASKS_RCU),
			 "unloading needs CONFIG_TASKS_RCU: enable CONFIG_KPROBES or CONFIG_BPF_SYSCALL");
	synchronize_rcu_tasks();
}
