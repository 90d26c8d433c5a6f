// SPDX-License-Identifier: GPL-2.0

#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/memremap.h>
#include <linux/page-flags.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

/*
 * Counts pages as pinned by the current program, as ib_umem_get() does.  Returns a reference to its
 * memory map; NULL if its limit is reached.
 */
__rust_helper struct mm_struct *rust_helper_kx_charge_pinned(unsigned long pages)
{
	struct mm_struct *mm = current->mm;
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (!mm)
		return NULL;
	if (atomic64_add_return(pages, &mm->pinned_vm) > limit && !capable(CAP_IPC_LOCK)) {
		atomic64_sub(pages, &mm->pinned_vm);
		return NULL;
	}
	mmgrab(mm);
	return mm;
}

__rust_helper void rust_helper_kx_uncharge_pinned(struct mm_struct *mm, unsigned long pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
	mmdrop(mm);
}

__rust_helper int rust_helper_kx_pin_user_pages(unsigned long addr, int count, bool writes,
						struct page **pages)
{
	return pin_user_pages_fast(addr, count, FOLL_LONGTERM | (writes ? FOLL_WRITE : 0), pages);
}

/*
 * Whether a pinned page is memory without a file: anonymous, shmem or hugetlb.  Shmem is backed by
 * swap, as anonymous memory is.
 */
__rust_helper bool rust_helper_kx_is_plain_memory(struct page *page)
{
	struct folio *folio = page_folio(page);

	if (folio_is_zone_device(folio))
		return false;
	return folio_test_anon(folio) || folio_test_swapbacked(folio) || folio_test_hugetlb(folio);
}

/*
 * Whether the current program has memory at @addr of which pages are not pinned because it is that of
 * a file, or of a device.
 */
__rust_helper bool rust_helper_kx_is_file_memory(unsigned long addr)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	bool is_file = false;

	mmap_read_lock(mm);
	vma = find_vma(mm, addr);
	if (vma && vma->vm_start <= addr)
		is_file = (vma->vm_flags & (VM_IO | VM_PFNMAP)) ||
			  (vma->vm_file && (vma->vm_flags & VM_SHARED));
	mmap_read_unlock(mm);
	return is_file;
}

/* Whether one page comes right behind another one. */
__rust_helper bool rust_helper_kx_page_follows(struct page *page, struct page *other)
{
	return page_to_pfn(other) == page_to_pfn(page) + 1;
}
