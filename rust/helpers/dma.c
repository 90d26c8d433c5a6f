// SPDX-License-Identifier: GPL-2.0

#include <linux/dma-mapping.h>
#include <rdma/ib_verbs.h>

__rust_helper u64 rust_helper_ib_dma_map_single(struct ib_device *dev, void *cpu_addr, size_t size,
						enum dma_data_direction dir)
{
	return ib_dma_map_single(dev, cpu_addr, size, dir);
}

__rust_helper void rust_helper_ib_dma_unmap_single(struct ib_device *dev, u64 addr, size_t size,
						   enum dma_data_direction dir)
{
	ib_dma_unmap_single(dev, addr, size, dir);
}

__rust_helper int rust_helper_ib_dma_mapping_error(struct ib_device *dev, u64 addr)
{
	return ib_dma_mapping_error(dev, addr);
}

__rust_helper int rust_helper_ib_dma_map_sg(struct ib_device *dev, struct scatterlist *sg,
					    int nents, enum dma_data_direction dir)
{
	return ib_dma_map_sg(dev, sg, nents, dir);
}

__rust_helper void rust_helper_ib_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg,
					       int nents, enum dma_data_direction dir)
{
	ib_dma_unmap_sg(dev, sg, nents, dir);
}

__rust_helper void rust_helper_ib_dma_sync_single_for_cpu(struct ib_device *dev, u64 addr,
							  size_t size, enum dma_data_direction dir)
{
	ib_dma_sync_single_for_cpu(dev, addr, size, dir);
}

__rust_helper void rust_helper_ib_dma_sync_single_for_device(struct ib_device *dev, u64 addr,
							     size_t size,
							     enum dma_data_direction dir)
{
	ib_dma_sync_single_for_device(dev, addr, size, dir);
}

/* Whether what is mapped at @addr ever needs one of the two functions above. */
__rust_helper bool rust_helper_ib_dma_needs_sync(struct ib_device *dev, u64 addr)
{
	return !ib_uses_virt_dma(dev) && dma_need_sync(dev->dma_device, addr);
}

__rust_helper u64 rust_helper_ib_dma_map_page(struct ib_device *dev, struct page *page,
					      unsigned long offset, size_t size,
					      enum dma_data_direction dir)
{
	return ib_dma_map_page(dev, page, offset, size, dir);
}

__rust_helper void rust_helper_ib_dma_unmap_page(struct ib_device *dev, u64 addr, size_t size,
						 enum dma_data_direction dir)
{
	ib_dma_unmap_page(dev, addr, size, dir);
}

/* Ends a mapping that the device has not used: the memory stays as it is, also if there was a bounce buffer. */
__rust_helper void rust_helper_kx_dma_unmap_unused(struct ib_device *dev, u64 addr, size_t size,
						   enum dma_data_direction dir)
{
	if (!ib_uses_virt_dma(dev))
		dma_unmap_page_attrs(dev->dma_device, addr, size, dir, DMA_ATTR_SKIP_CPU_SYNC);
}
