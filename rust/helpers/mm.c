// SPDX-License-Identifier: GPL-2.0

#include <linux/blk-mq.h>
#include <linux/compiler.h>
#include <linux/crc32.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/scatterlist.h>
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
 * memcpy() for memory that others may write to meanwhile.  After the barrier, the
 * compiler can neither read @src again in place of @dst nor assume anything about
 * the contents of @dst.
 */
__rust_helper void rust_helper_kx_memcpy_shared(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
	barrier_data(dst);
}

/*
 * The same for data.  copy_page() is the architecture's best way to copy a whole
 * page: memcpy() takes three times as many instructions on processors without fast
 * short string moves.
 */
__rust_helper void rust_helper_kx_copy_shared(void *dst, const void *src, size_t len)
{
	if (PAGE_ALIGNED(dst) && PAGE_ALIGNED(src)) {
		for (; len >= PAGE_SIZE; len -= PAGE_SIZE) {
			copy_page(dst, (void *)src);
			dst += PAGE_SIZE;
			src += PAGE_SIZE;
		}
	}
	if (len)
		memcpy(dst, src, len);
	barrier_data(dst);
}

/*
 * sg_copy_buffer(), but without iterating if the data is in a single page.
 * Returns the number of bytes that were copied.
 */
__rust_helper size_t rust_helper_kx_sg_copy(struct scatterlist *sgl, unsigned int nents, void *buf,
					    size_t len, bool to_buffer)
{
	void *data;

	if (!nents || sgl->length < len || sgl->offset + len > PAGE_SIZE ||
	    PageHighMem(sg_page(sgl)))
		return sg_copy_buffer(sgl, nents, buf, len, 0, to_buffer);
	data = sg_virt(sgl);
	if (to_buffer) {
		rust_helper_kx_copy_shared(buf, data, len);
	} else {
		rust_helper_kx_copy_shared(data, buf, len);
		flush_dcache_page(sg_page(sgl));
	}
	return len;
}

/*
 * Copies @len bytes from the beginning of a request's data to @buf, or the other way, if
 * they are in a single page, and returns whether they are.  Others may write to the data
 * meanwhile.
 */
__rust_helper bool rust_helper_kx_rq_copy(struct request *rq, void *buf, size_t len, bool to_buffer)
{
	struct bio_vec vec;
	void *data;

	if (!bio_has_data(rq->bio))
		return false;
	/* It has what is left of the first page, even if several pages are next to each other. */
	vec = bio_iovec(rq->bio);
	if (vec.bv_len < len || PageHighMem(vec.bv_page))
		return false;
	data = page_address(vec.bv_page) + vec.bv_offset;
	if (to_buffer) {
		rust_helper_kx_copy_shared(buf, data, len);
	} else {
		rust_helper_kx_copy_shared(data, buf, len);
		flush_dcache_page(vec.bv_page);
	}
	return true;
}

/* Continues a CRC-32C over the data of a scatterlist, in any context. */
__rust_helper u32 rust_helper_kx_sg_crc32c(u32 crc, struct scatterlist *sgl, unsigned int nents)
{
	struct sg_mapping_iter miter;

	sg_miter_start(&miter, sgl, nents, SG_MITER_ATOMIC | SG_MITER_FROM_SG);
	while (sg_miter_next(&miter))
		crc = crc32c(crc, miter.addr, miter.length);
	sg_miter_stop(&miter);
	return crc;
}

/* memset() where someone else may read or write meanwhile. */
__rust_helper void rust_helper_kx_memzero_shared(void *dst, size_t len)
{
	memset(dst, 0, len);
	barrier_data(dst);
}
