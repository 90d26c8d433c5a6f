// SPDX-License-Identifier: GPL-2.0
/* One access to memory by its address for DMA, as the bus would translate it at this moment. */
#include <linux/dma-direct.h>
#include <linux/iommu.h>
#include "card.h"

static void *card_translate(struct device *dev, u64 dma, u32 *length)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);
	phys_addr_t phys;

	if (domain && domain->type != IOMMU_DOMAIN_IDENTITY) {
		/* The next page may be anywhere. */
		*length = min_t(u64, *length, PAGE_SIZE - (dma & ~PAGE_MASK));
		phys = iommu_iova_to_phys(domain, dma);
	} else {
		phys = dma_to_phys(dev, dma);
	}
	if (!phys || !pfn_valid(PHYS_PFN(phys)) || !pfn_valid(PHYS_PFN(phys + *length - 1)))
		return NULL;
	return phys_to_virt(phys);
}

/*
 * The memory at `dma`, where the card is about to read or write; shortens `length` to what is there without a
 * gap. NULL if the access breaks the queue pair.
 */
void *card_reach(struct card *card, struct card_qp *qp, u64 dma, u32 *length, bool write, u64 wr_id)
{
	int wrong = card_look_up(&card->tracker, dma, *length, write);
	void *memory;

	if (unlikely(wrong >= 0) && card_misuse(card, qp, wrong, wr_id, dma, *length))
		return NULL;
	memory = card_translate(&card->parent->dev, dma, length);
	if (unlikely(!memory))
		card_misuse(card, qp, CARD_UNMAPPED, wr_id, dma, *length);
	return memory;
}
