// SPDX-License-Identifier: GPL-2.0
/*
 * The mappings for DMA of each card, kept by probes on the tracepoints of the DMA API. They say for each address
 * whether it is mapped, in which direction, and whether it is the card's turn or the processor's, in every mode.
 */
#include <linux/bitmap.h>
#include <linux/dma-mapping.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>
#include "card.h"

/* The processor's part of a mapping is noted in units of this size. */
#define CARD_UNIT 8

struct card_mapping {
	struct interval_tree_node node;
	enum dma_data_direction dir;
	bool coherent;
	/* The units that were synchronised for the processor and not for the card since; NULL if there are none. */
	unsigned long *cpu;
};

static bool tracking;
static struct kmem_cache *mappings;

bool card_tracked(void)
{
	return tracking;
}

static struct card_tracker *card_tracker_of(struct device *dev)
{
	struct card *card = dev->type == &card_dma_type ? dev_get_drvdata(dev) : NULL;

	return card ? &card->tracker : NULL;
}

void card_tracker_init(struct card_tracker *tracker)
{
	spin_lock_init(&tracker->lock);
	tracker->mappings = RB_ROOT_CACHED;
}

static void card_free_mapping(struct card_mapping *mapping)
{
	kfree(mapping->cpu);
	kmem_cache_free(mappings, mapping);
}

void card_tracker_free(struct card_tracker *tracker)
{
	struct interval_tree_node *node;

	if (tracker->count)
		pr_warn("rdma_card: %llu mappings for DMA were left\n", tracker->count);
	while ((node = interval_tree_iter_first(&tracker->mappings, 0, ULONG_MAX))) {
		interval_tree_remove(node, &tracker->mappings);
		card_free_mapping(container_of(node, struct card_mapping, node));
	}
}

static void card_note_map(struct device *dev, u64 dma, u64 size, enum dma_data_direction dir, bool coherent)
{
	struct card_tracker *tracker = card_tracker_of(dev);
	struct card_mapping *mapping;
	unsigned long flags;

	if (!tracker || dma == DMA_MAPPING_ERROR || !size)
		return;
	mapping = kmem_cache_zalloc(mappings, GFP_ATOMIC);
	if (!mapping) {
		WRITE_ONCE(tracker->incomplete, true);
		return;
	}
	mapping->node.start = dma;
	mapping->node.last = dma + size - 1;
	mapping->dir = dir;
	mapping->coherent = coherent;
	spin_lock_irqsave(&tracker->lock, flags);
	interval_tree_insert(&mapping->node, &tracker->mappings);
	tracker->count++;
	spin_unlock_irqrestore(&tracker->lock, flags);
}

/*
 * The same address may be mapped more than once, and a bounce buffer that was returned may be mapped again before
 * this is told of the former mapping's end: any one with this size and direction is as good as another.
 */
static void card_note_unmap(struct device *dev, u64 dma, u64 size, enum dma_data_direction dir)
{
	struct card_tracker *tracker = card_tracker_of(dev);
	struct card_mapping *found = NULL, *mapping;
	struct interval_tree_node *node;
	unsigned long flags;

	if (!tracker || !size)
		return;
	spin_lock_irqsave(&tracker->lock, flags);
	for (node = interval_tree_iter_first(&tracker->mappings, dma, dma); node;
	     node = interval_tree_iter_next(node, dma, dma)) {
		mapping = container_of(node, struct card_mapping, node);
		if (node->start == dma && node->last == dma + size - 1 && mapping->dir == dir) {
			found = mapping;
			interval_tree_remove(node, &tracker->mappings);
			tracker->count--;
			break;
		}
	}
	spin_unlock_irqrestore(&tracker->lock, flags);
	if (found)
		card_free_mapping(found);
	else if (!READ_ONCE(tracker->incomplete))
		card_misuse(container_of(tracker, struct card, tracker), NULL, CARD_BAD_UNMAP, 0, dma, size);
}

/* Of units that are shared, the card keeps the right to write: that errs on the side of no report. */
static void card_sync_mapping(struct card_mapping *mapping, u64 from, u64 to, bool for_cpu)
{
	u64 start = mapping->node.start, size = mapping->node.last - start + 1, first, end;

	from = max(from, start) - start;
	to = min(to, start + size) - start;
	if (for_cpu) {
		first = DIV_ROUND_UP(from, CARD_UNIT);
		end = to == size ? DIV_ROUND_UP(to, CARD_UNIT) : to / CARD_UNIT;
		if (!mapping->cpu)
			mapping->cpu = kcalloc(BITS_TO_LONGS(DIV_ROUND_UP(size, CARD_UNIT)), sizeof(long),
					       GFP_ATOMIC | __GFP_NOWARN);
		if (mapping->cpu && first < end)
			bitmap_set(mapping->cpu, first, end - first);
	} else if (mapping->cpu) {
		first = from / CARD_UNIT;
		end = DIV_ROUND_UP(to, CARD_UNIT);
		bitmap_clear(mapping->cpu, first, end - first);
	}
}

static void card_note_sync(struct device *dev, u64 dma, u64 size, bool for_cpu)
{
	struct card_tracker *tracker = card_tracker_of(dev);
	struct interval_tree_node *node;
	unsigned long flags;

	if (!tracker || !size)
		return;
	spin_lock_irqsave(&tracker->lock, flags);
	for (node = interval_tree_iter_first(&tracker->mappings, dma, dma + size - 1); node;
	     node = interval_tree_iter_next(node, dma, dma + size - 1))
		card_sync_mapping(container_of(node, struct card_mapping, node), dma, dma + size, for_cpu);
	spin_unlock_irqrestore(&tracker->lock, flags);
}

static bool card_is_cpus(const struct card_mapping *mapping, u64 dma, u64 last)
{
	unsigned long first = (dma - mapping->node.start) / CARD_UNIT;
	unsigned long end = (last - mapping->node.start) / CARD_UNIT + 1;

	return mapping->cpu && find_next_bit(mapping->cpu, end, first) < end;
}

/* Where the part that begins at `dma` ends that may be accessed, or what is wrong, as a negative number. */
static s64 card_covered(struct card_tracker *tracker, u64 dma, u64 last, bool write)
{
	enum dma_data_direction needed = write ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
	struct interval_tree_node *node;
	s64 wrong = -1 - CARD_UNMAPPED;

	for (node = interval_tree_iter_first(&tracker->mappings, dma, dma); node;
	     node = interval_tree_iter_next(node, dma, dma)) {
		struct card_mapping *mapping = container_of(node, struct card_mapping, node);
		u64 end = min_t(u64, node->last, last);

		if (mapping->dir != needed && mapping->dir != DMA_BIDIRECTIONAL)
			wrong = -1 - CARD_DIRECTION;
		else if (card_is_cpus(mapping, dma, end))
			wrong = -1 - (write ? CARD_NOT_RETURNED : CARD_NOT_SYNCED);
		else
			return end;
	}
	return wrong;
}

/* What is wrong with an access, or a negative number. */
int card_look_up(struct card_tracker *tracker, u64 dma, u32 length, bool write)
{
	u64 at = dma, last = dma + length - 1;
	unsigned long flags;
	s64 end;

	if (!tracking)
		return -1;
	spin_lock_irqsave(&tracker->lock, flags);
	do {
		end = card_covered(tracker, at, last, write);
		if (end < 0)
			break;
		at = end + 1;
	} while (at <= last);
	spin_unlock_irqrestore(&tracker->lock, flags);
	if (end >= 0)
		return -1;
	if (end == -1 - CARD_UNMAPPED && at != dma)
		return CARD_PAST_END;
	if (end == -1 - CARD_UNMAPPED && READ_ONCE(tracker->incomplete))
		return -1;
	return -1 - end;
}

static void card_on_map(void *data, struct device *dev, phys_addr_t phys, dma_addr_t dma, size_t size,
			enum dma_data_direction dir, unsigned long attrs)
{
	card_note_map(dev, dma, size, dir, false);
}

static void card_on_unmap(void *data, struct device *dev, dma_addr_t dma, size_t size,
			  enum dma_data_direction dir, unsigned long attrs)
{
	card_note_unmap(dev, dma, size, dir);
}

static void card_on_map_sg(void *data, struct device *dev, struct scatterlist *sgl, int nents, int ents,
			   enum dma_data_direction dir, unsigned long attrs)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, ents, i)
		card_note_map(dev, sg_dma_address(sg), sg_dma_len(sg), dir, false);
}

static void card_on_unmap_sg(void *data, struct device *dev, struct scatterlist *sgl, int nents,
			     enum dma_data_direction dir, unsigned long attrs)
{
	struct scatterlist *sg;
	int i;

	/* An IOMMU may have joined entries: the others have no length. */
	for_each_sg(sgl, sg, nents, i)
		card_note_unmap(dev, sg_dma_address(sg), sg_dma_len(sg), dir);
}

static void card_on_sync_for_cpu(void *data, struct device *dev, dma_addr_t dma, size_t size,
				 enum dma_data_direction dir)
{
	card_note_sync(dev, dma, size, true);
}

static void card_on_sync_for_device(void *data, struct device *dev, dma_addr_t dma, size_t size,
				    enum dma_data_direction dir)
{
	card_note_sync(dev, dma, size, false);
}

static void card_on_sync_sg_for_cpu(void *data, struct device *dev, struct scatterlist *sgl, int nents,
				    enum dma_data_direction dir)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, nents, i)
		card_note_sync(dev, sg_dma_address(sg), sg_dma_len(sg), true);
}

static void card_on_sync_sg_for_device(void *data, struct device *dev, struct scatterlist *sgl, int nents,
				       enum dma_data_direction dir)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, nents, i)
		card_note_sync(dev, sg_dma_address(sg), sg_dma_len(sg), false);
}

static void card_on_alloc(void *data, struct device *dev, void *virt, dma_addr_t dma, size_t size,
			  enum dma_data_direction dir, gfp_t gfp, unsigned long attrs)
{
	if (virt)
		card_note_map(dev, dma, size, dir, true);
}

static void card_on_free(void *data, struct device *dev, void *virt, dma_addr_t dma, size_t size,
			 enum dma_data_direction dir, unsigned long attrs)
{
	if (virt)
		card_note_unmap(dev, dma, size, dir);
}

static struct {
	const char *name;
	void *probe;
	struct tracepoint *point;
} probes[] = {
	{ "dma_map_phys", card_on_map },
	{ "dma_unmap_phys", card_on_unmap },
	{ "dma_map_sg", card_on_map_sg },
	{ "dma_unmap_sg", card_on_unmap_sg },
	{ "dma_sync_single_for_cpu", card_on_sync_for_cpu },
	{ "dma_sync_single_for_device", card_on_sync_for_device },
	{ "dma_sync_sg_for_cpu", card_on_sync_sg_for_cpu },
	{ "dma_sync_sg_for_device", card_on_sync_sg_for_device },
	{ "dma_alloc", card_on_alloc },
	{ "dma_free", card_on_free },
	{ "dma_alloc_pages", card_on_alloc },
	{ "dma_free_pages", card_on_free },
};

static void card_match_tracepoint(struct tracepoint *point, void *data)
{
	for (u32 i = 0; i < ARRAY_SIZE(probes); i++)
		if (!strcmp(point->name, probes[i].name))
			probes[i].point = point;
}

static void card_remove_probes(u32 count)
{
	while (count--)
		tracepoint_probe_unregister(probes[count].point, probes[count].probe, NULL);
	tracepoint_synchronize_unregister();
}

int card_track_start(void)
{
	mappings = KMEM_CACHE(card_mapping, 0);
	if (!mappings)
		return -ENOMEM;
	for_each_kernel_tracepoint(card_match_tracepoint, NULL);
	for (u32 i = 0; i < ARRAY_SIZE(probes); i++) {
		int err = -ENOENT;

		if (probes[i].point)
			err = tracepoint_probe_register(probes[i].point, probes[i].probe, NULL);
		if (err) {
			pr_err("rdma_card: no probe on %s: %d\n", probes[i].name, err);
			card_remove_probes(i);
			kmem_cache_destroy(mappings);
			return err;
		}
	}
	tracking = true;
	return 0;
}

void card_track_stop(void)
{
	tracking = false;
	card_remove_probes(ARRAY_SIZE(probes));
	kmem_cache_destroy(mappings);
}
