// SPDX-License-Identifier: GPL-2.0

#include <linux/compiler.h>
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/sched/mm.h>
#include <linux/string.h>

__rust_helper struct page *rust_helper_alloc_pages_node(int nid, gfp_t gfp, unsigned int order)
{
	return alloc_pages_node(nid, gfp, order);
}

__rust_helper void *rust_helper_page_address(const struct page *page)
{
	return page_address(page);
}

__rust_helper bool rust_helper_node_online(int nid)
{
	return nid >= 0 && nid < MAX_NUMNODES && node_online(nid);
}

__rust_helper unsigned int rust_helper_memalloc_noio_save(void)
{
	return memalloc_noio_save();
}

__rust_helper void rust_helper_memalloc_noio_restore(unsigned int flags)
{
	memalloc_noio_restore(flags);
}

__rust_helper unsigned int rust_helper_memalloc_noreclaim_save(void)
{
	return memalloc_noreclaim_save();
}

__rust_helper void rust_helper_memalloc_noreclaim_restore(unsigned int flags)
{
	memalloc_noreclaim_restore(flags);
}

__rust_helper void rust_helper_kx_reclaim_acquire(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
}

__rust_helper void rust_helper_kx_reclaim_release(void)
{
	fs_reclaim_release(GFP_KERNEL);
}

__rust_helper unsigned long rust_helper_kx_totalram_pages(void)
{
	return totalram_pages();
}

/*
 * memcpy() where someone else may write to one side meanwhile: what is read is
 * read once, and the compiler can neither read it again nor assume anything
 * about it.
 */
__rust_helper void rust_helper_kx_memcpy_shared(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
	barrier_data(dst);
}

/* memset() where someone else may read or write meanwhile. */
__rust_helper void rust_helper_kx_memzero_shared(void *dst, size_t len)
{
	memset(dst, 0, len);
	barrier_data(dst);
}
