// SPDX-License-Identifier: GPL-2.0

#include <linux/blkdev.h>
#include <linux/device.h>

__rust_helper void rust_helper_dev_set_uevent_suppress(struct device *dev, int val)
{
	dev_set_uevent_suppress(dev, val);
}

/*
 * Keeps the devices of a disk and its partitions registered until kx_release_disk() is
 * called.  Returns false, and keeps nothing, if the disk was deleted.
 */
__rust_helper bool rust_helper_kx_hold_disk(struct device *dev)
{
	struct gendisk *disk = dev_to_disk(dev);

	mutex_lock(&disk->open_mutex);
	if (disk_live(disk))
		return true;
	mutex_unlock(&disk->open_mutex);
	return false;
}

__rust_helper void rust_helper_kx_release_disk(struct device *dev)
{
	mutex_unlock(&dev_to_disk(dev)->open_mutex);
}
