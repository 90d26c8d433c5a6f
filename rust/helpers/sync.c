// SPDX-License-Identifier: GPL-2.0

#include <linux/completion.h>

/* reinit_completion() under the lock, so that it races with nothing. */
__rust_helper void rust_helper_kx_reinit_completion(struct completion *x)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&x->wait.lock, flags);
	reinit_completion(x);
	raw_spin_unlock_irqrestore(&x->wait.lock, flags);
}
