// SPDX-License-Identifier: GPL-2.0

#include <asm/barrier.h>
#include <linux/cpumask.h>
#include <linux/percpu-refcount.h>
#include <linux/percpu.h>

/*
 * Pointers from Rust have no address space.  If the compiler has named address spaces
 * (gcc's __seg_gs), a pointer must be converted through an integer to change its
 * address space, as the kernel's own macros do.
 */
#define kx_percpu_u64(address) ((u64 __percpu *)(unsigned long)(address))

__rust_helper void rust_helper_percpu_ref_get(struct percpu_ref *ref)
{
	percpu_ref_get(ref);
}

__rust_helper void rust_helper_percpu_ref_put(struct percpu_ref *ref)
{
	percpu_ref_put(ref);
}

__rust_helper void rust_helper_percpu_ref_kill(struct percpu_ref *ref)
{
	percpu_ref_kill(ref);
}

__rust_helper void rust_helper_kx_this_cpu_add(void *counter, u64 value)
{
	this_cpu_add(*kx_percpu_u64(counter), value);
}

__rust_helper u64 rust_helper_kx_this_cpu_next(void *number)
{
	return this_cpu_inc_return(*kx_percpu_u64(number));
}

/*
 * If two numbers are read one after the other, the second value is at least as new as
 * the first: see Counters::on_cpu(), and Flow::in_flight() of ibtrs-core.
 */
__rust_helper u64 rust_helper_kx_per_cpu_read(void *counter, unsigned int cpu)
{
	/* Pairs with the release in kx_per_cpu_write(). */
	return smp_load_acquire(per_cpu_ptr(kx_percpu_u64(counter), cpu));
}

/* Raises a number to @value.  It never falls, even if an interrupt raises it meanwhile. */
__rust_helper void rust_helper_kx_this_cpu_raise(void *number, u64 value)
{
	u64 __percpu *this = kx_percpu_u64(number);
	u64 seen = this_cpu_read(*this);

	while (seen < value && !this_cpu_try_cmpxchg(*this, &seen, value))
		;
}

__rust_helper void rust_helper_kx_per_cpu_write(void *number, unsigned int cpu, u64 value)
{
	/* Pairs with the acquire in kx_per_cpu_read(). */
	smp_store_release(per_cpu_ptr(kx_percpu_u64(number), cpu), value);
}

__rust_helper bool rust_helper_cpu_possible(unsigned int cpu)
{
	return cpu < nr_cpu_ids && cpu_possible(cpu);
}
