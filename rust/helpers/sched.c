// SPDX-License-Identifier: GPL-2.0

#include <linux/sched.h>

/* Returns whether another task is to run on this processor now.  One that may wait for the next tick does. */
__rust_helper bool rust_helper_kx_need_resched(void)
{
	return need_resched();
}

/* Lets another task run if one wants this processor, and tells a kernel with checks that this may sleep. */
__rust_helper void rust_helper_kx_cond_resched(void)
{
	cond_resched();
}
