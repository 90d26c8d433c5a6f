// SPDX-License-Identifier: GPL-2.0

#include <linux/workqueue.h>

__rust_helper bool rust_helper_work_pending(struct work_struct *work)
{
	return work_pending(work);
}
