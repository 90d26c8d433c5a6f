// SPDX-License-Identifier: GPL-2.0

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/sched.h>

__rust_helper unsigned int rust_helper_blk_mq_freeze_queue(struct request_queue *q)
{
	return blk_mq_freeze_queue(q);
}

__rust_helper void rust_helper_blk_mq_unfreeze_queue(struct request_queue *q,
						     unsigned int memflags)
{
	blk_mq_unfreeze_queue(q, memflags);
}

__rust_helper unsigned int rust_helper_disk_openers(struct gendisk *disk)
{
	return disk_openers(disk);
}

/* The next task that opens the disk reads its partition table. */
__rust_helper void rust_helper_kx_disk_needs_part_scan(struct gendisk *disk)
{
	set_bit(GD_NEED_PART_SCAN, &disk->state);
}

__rust_helper sector_t rust_helper_get_capacity(struct gendisk *disk)
{
	return get_capacity(disk);
}

__rust_helper void rust_helper_blk_queue_disable_discard(struct request_queue *q)
{
	blk_queue_disable_discard(q);
}

__rust_helper void rust_helper_blk_queue_disable_secure_erase(struct request_queue *q)
{
	blk_queue_disable_secure_erase(q);
}

__rust_helper void rust_helper_blk_queue_disable_write_zeroes(struct request_queue *q)
{
	blk_queue_disable_write_zeroes(q);
}

/*
 * Returns the nanoseconds since the block layer began to account for a request, or 0 if
 * it does not account for it: the request then still has the time of an earlier one.  The
 * block layer always sets the time of a flush of its own.  The timer of requests may
 * change other flags meanwhile, but not RQF_IO_STAT.
 */
__rust_helper u64 rust_helper_kx_rq_elapsed_ns(struct request *rq)
{
	if (req_op(rq) == REQ_OP_FLUSH ? !blk_queue_io_stat(rq->q) :
					 !(READ_ONCE(rq->rq_flags) & RQF_IO_STAT))
		return 0;
	return ktime_get_ns() - rq->start_time_ns;
}

/* Returns the time after which a request times out, in milliseconds. */
__rust_helper unsigned int rust_helper_kx_rq_timeout_ms(struct request *rq)
{
	return jiffies_to_msecs(rq->timeout);
}

__rust_helper bool rust_helper_bdev_fua(struct block_device *bdev)
{
	return bdev_fua(bdev);
}

__rust_helper sector_t rust_helper_bdev_nr_sectors(struct block_device *bdev)
{
	return bdev_nr_sectors(bdev);
}

__rust_helper u8 rust_helper_bdev_partno(struct block_device *bdev)
{
	return bdev_partno(bdev);
}

__rust_helper bool rust_helper_bdev_read_only(struct block_device *bdev)
{
	return bdev_read_only(bdev);
}

/*
 * Returns whether the driver of a disk may sleep when it receives a request, or -EAGAIN
 * if nobody can tell now, as the queue is frozen.  @set gets the address of the tag set
 * that tells.  It is the driver's, which frees it after its disk: a reference to the queue
 * delays that.
 */
__rust_helper int rust_helper_kx_bdev_may_block(struct block_device *bdev, const void **set)
{
	struct request_queue *q = bdev_get_queue(bdev);
	struct blk_mq_tag_set *tags;
	bool may_block;

	if (!percpu_ref_tryget_live(&q->q_usage_counter))
		return -EAGAIN;
	tags = READ_ONCE(q->tag_set);
	may_block = tags && (tags->flags & BLK_MQ_F_BLOCKING);
	percpu_ref_put(&q->q_usage_counter);
	*set = tags;
	return may_block;
}

__rust_helper bool rust_helper_bdev_write_cache(struct block_device *bdev)
{
	return bdev_write_cache(bdev);
}

/* Returns the number of references to a disk. */
__rust_helper unsigned int rust_helper_kx_disk_references(struct gendisk *disk)
{
	return kref_read(&disk_to_dev(disk)->kobj.kref);
}

/*
 * Adds a callback to a plug, if it is the plug of this thread.  It is not if the thread
 * already had another plug, and is then not initialised either.
 */
__rust_helper void rust_helper_kx_plug_callback(struct blk_plug *plug, struct blk_plug_cb *cb)
{
	if (current->plug == plug)
		list_add(&cb->list, &plug->cb_list);
}

/*
 * Returns whether finishing a plug may put the thread to sleep without a call of @cb: in
 * a driver, or in another callback.
 */
__rust_helper bool rust_helper_kx_plug_may_sleep(struct blk_plug *plug, struct blk_plug_cb *cb)
{
	struct request *rq;

	if (current->plug != plug)
		return false;
	if (!list_empty(&plug->cb_list) &&
	    (plug->cb_list.next != &cb->list || plug->cb_list.prev != &cb->list))
		return true;
	rq_list_for_each(&plug->mq_list, rq)
		if (rq->mq_hctx->flags & BLK_MQ_F_BLOCKING)
			return true;
	return false;
}
