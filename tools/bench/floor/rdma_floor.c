// SPDX-License-Identifier: GPL-2.0
/*
 * rdma_floor: block devices whose I/O is two messages, and nothing else.
 *
 * Both ends are this module: a client, which has the block devices, and a server
 * without a disk behind it. The client sends each request by one RDMA WRITE WITH
 * IMMEDIATE into the request's slot of the server, a header with the data behind
 * it if there is any; the server answers by one RDMA WRITE WITH IMMEDIATE, with
 * the data of a read. No protocol that has a request and an answer does with
 * less, so what this device costs on an RDMA device is the floor of all of them.
 *
 * Without a block device and its user, the same exchange is made by a write to the parameter `exchange'.
 *
 * It is for measurements only: one key opens all memory, nothing is checked,
 * nothing is stored, and a lost connection stays lost. Data in more than one
 * piece is registered, which costs work requests and no message.
 */

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/inet.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#define FLOOR_DEPTH	128
#define FLOOR_DATA	SZ_128K
/* The header has a page of its own in each slot. */
#define FLOOR_HEADER	SZ_4K
#define FLOOR_SLOT	(FLOOR_HEADER + FLOOR_DATA)
#define FLOOR_SEGMENTS	(FLOOR_DATA / PAGE_SIZE + 1)
#define FLOOR_QUEUES	16
#define FLOOR_DISKS	16
#define FLOOR_PORT	7777
#define FLOOR_TIMEOUT	msecs_to_jiffies(20000)
/* An invalidation, a registration and the message for each request. */
#define FLOOR_SEND_WRS	(4 * FLOOR_DEPTH)
#define FLOOR_RECV_WRS	(2 * FLOOR_DEPTH)
/* Every Nth message is signalled, so that entries of the send queue are freed. */
#define FLOOR_SIGNAL	32

static char *addr = "10.0.1.1";
module_param(addr, charp, 0444);
MODULE_PARM_DESC(addr, "IPv4 address of the RDMA device, both ends of the connections");

/* Not "server", as the local variables for a side are named. */
static char *server_context = "process";
module_param_named(server, server_context, charp, 0444);
MODULE_PARM_DESC(server, "where the server handles completions: process (a work queue), thread (one for each connection) or softirq");

static unsigned int queues = 1;
module_param(queues, uint, 0444);
MODULE_PARM_DESC(queues, "number of queues, each with a connection (1 to 16)");

static unsigned int disks = 1;
module_param(disks, uint, 0444);
MODULE_PARM_DESC(disks, "number of disks, which share the queues (1 to 16)");

struct floor_header {
	u64 addr;
	u32 rkey;
	/* Bytes that the answer has. */
	u32 answer;
};

/* One end of a connection. */
struct floor_side {
	struct rdma_cm_id *id;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
	struct ib_cqe recv_cqe;
	/* Handles the completions, if there is one. */
	struct task_struct *thread;
	unsigned int sent;
};

struct floor_exchange;

struct floor_queue {
	unsigned int index;
	struct floor_side client;
	struct floor_side server;
	struct completion connected;
	int status;
	/* The server's memory. */
	void *slot[FLOOR_DEPTH];
	u64 slot_dma[FLOOR_DEPTH];
	/* While there is one, answers are for it. */
	struct floor_exchange *exchange;
};

/* Exchanges without a block device: see floor_exchange(). */
struct floor_exchange {
	/* How many more may be in flight. */
	struct semaphore room;
	struct floor_header headers[FLOOR_DEPTH];
	u64 headers_dma;
	/* Of all requests and answers. */
	void *data;
	u64 data_dma;
	u32 bytes;
};

struct floor_request {
	struct floor_header header;
	u64 header_dma;
	struct ib_mr *mr;
	bool registered;
	int segments;
	struct scatterlist sg[FLOOR_SEGMENTS];
	/* The work requests that one request may need, in their order. */
	struct ib_send_wr invalidate;
	struct ib_reg_wr reg;
	struct ib_rdma_wr write;
	struct ib_sge sge[2];
};

static struct floor_queue *floor_queues;
static struct rdma_cm_id *floor_listener;
static struct blk_mq_tag_set floor_tags;
static struct gendisk *floor_disk[FLOOR_DISKS];
static struct ib_cqe floor_send_cqe;
static enum ib_poll_context floor_server_context;

static void floor_send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	if (wc->status && wc->status != IB_WC_WR_FLUSH_ERR)
		pr_err_ratelimited("rdma_floor: a send failed: %s\n", ib_wc_status_msg(wc->status));
}

static int floor_post_recv(struct floor_side *side)
{
	struct ib_recv_wr wr = { .wr_cqe = &side->recv_cqe };

	return ib_post_recv(side->qp, &wr, NULL);
}

static bool floor_recv_failed(struct ib_wc *wc)
{
	if (likely(!wc->status))
		return false;
	if (wc->status != IB_WC_WR_FLUSH_ERR)
		pr_err_ratelimited("rdma_floor: a receive failed: %s\n", ib_wc_status_msg(wc->status));
	return true;
}

static int floor_flags(struct floor_side *side)
{
	return ++side->sent % FLOOR_SIGNAL ? 0 : IB_SEND_SIGNALED;
}

/* The server: a request came. */
static void floor_server_recv(struct ib_cq *cq, struct ib_wc *wc)
{
	struct floor_queue *queue = cq->cq_context;
	struct floor_side *server = &queue->server;
	struct ib_rdma_wr wr = {};
	struct floor_header *header;
	struct ib_sge sge;
	u32 tag;

	if (floor_recv_failed(wc))
		return;
	tag = be32_to_cpu(wc->ex.imm_data) % FLOOR_DEPTH;
	header = queue->slot[tag];
	floor_post_recv(server);
	wr.wr.wr_cqe = &floor_send_cqe;
	wr.wr.opcode = IB_WR_RDMA_WRITE_WITH_IMM;
	wr.wr.ex.imm_data = wc->ex.imm_data;
	wr.wr.send_flags = floor_flags(server);
	if (header->answer) {
		sge.addr = queue->slot_dma[tag] + FLOOR_HEADER;
		sge.length = min_t(u32, header->answer, FLOOR_DATA);
		sge.lkey = server->pd->local_dma_lkey;
		wr.wr.sg_list = &sge;
		wr.wr.num_sge = 1;
		wr.remote_addr = header->addr;
		wr.rkey = header->rkey;
	}
	if (ib_post_send(server->qp, &wr.wr, NULL))
		pr_err_ratelimited("rdma_floor: the server cannot answer\n");
}

/* The client: an answer came. */
static void floor_client_recv(struct ib_cq *cq, struct ib_wc *wc)
{
	struct floor_queue *queue = cq->cq_context;
	struct ib_device *device = queue->client.id->device;
	struct floor_request *fr;
	struct request *rq;

	if (floor_recv_failed(wc))
		return;
	floor_post_recv(&queue->client);
	if (queue->exchange) {
		up(&queue->exchange->room);
		return;
	}
	rq = blk_mq_tag_to_rq(floor_tags.tags[queue->index], be32_to_cpu(wc->ex.imm_data));
	if (WARN_ON_ONCE(!rq))
		return;
	fr = blk_mq_rq_to_pdu(rq);
	ib_dma_unmap_single(device, fr->header_dma, sizeof(fr->header), DMA_TO_DEVICE);
	ib_dma_unmap_sg(device, fr->sg, fr->segments, rq_dma_dir(rq));
	blk_mq_end_request(rq, BLK_STS_OK);
}

/* Data in several pieces gets one address: returns the first work request. */
static struct ib_send_wr *floor_register(struct floor_request *fr, int mapped)
{
	struct ib_mr *mr = fr->mr;

	if (ib_map_mr_sg(mr, fr->sg, mapped, NULL, PAGE_SIZE) != mapped)
		return NULL;
	fr->invalidate = (struct ib_send_wr) {
		.wr_cqe = &floor_send_cqe,
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = mr->rkey,
		.next = &fr->reg.wr,
	};
	if (fr->registered)
		ib_update_fast_reg_key(mr, ib_inc_rkey(mr->rkey));
	fr->reg = (struct ib_reg_wr) {
		.wr.wr_cqe = &floor_send_cqe,
		.wr.opcode = IB_WR_REG_MR,
		.wr.next = &fr->write.wr,
		.mr = mr,
		.key = mr->rkey,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE,
	};
	if (fr->registered)
		return &fr->invalidate;
	fr->registered = true;
	return &fr->reg.wr;
}

static blk_status_t floor_queue_rq(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct floor_queue *queue = hctx->driver_data;
	struct floor_side *client = &queue->client;
	struct ib_device *device = client->id->device;
	struct floor_request *fr = blk_mq_rq_to_pdu(bd->rq);
	struct request *rq = bd->rq;
	struct ib_send_wr *first = &fr->write.wr;
	bool write = rq_data_dir(rq) == WRITE;
	u32 lkey = client->pd->local_dma_lkey;
	int mapped;

	if (req_op(rq) != REQ_OP_READ && req_op(rq) != REQ_OP_WRITE)
		return BLK_STS_NOTSUPP;
	blk_mq_start_request(rq);
	sg_init_table(fr->sg, FLOOR_SEGMENTS);
	fr->segments = blk_rq_map_sg(rq, fr->sg);
	mapped = ib_dma_map_sg(device, fr->sg, fr->segments, rq_dma_dir(rq));
	if (unlikely(!mapped))
		return BLK_STS_RESOURCE;
	fr->header = (struct floor_header) {
		.addr = sg_dma_address(fr->sg),
		.rkey = client->pd->unsafe_global_rkey,
		.answer = write ? 0 : blk_rq_bytes(rq),
	};
	if (mapped > 1) {
		first = floor_register(fr, mapped);
		if (unlikely(!first))
			goto unmap;
		fr->header.addr = fr->mr->iova;
		fr->header.rkey = fr->mr->rkey;
		lkey = fr->mr->lkey;
	}
	fr->header_dma = ib_dma_map_single(device, &fr->header, sizeof(fr->header), DMA_TO_DEVICE);
	fr->sge[0] = (struct ib_sge) {
		.addr = fr->header_dma,
		.length = sizeof(fr->header),
		.lkey = client->pd->local_dma_lkey,
	};
	/* In the slot, data of a write follows its header. */
	fr->sge[1] = (struct ib_sge) {
		.addr = fr->header.addr,
		.length = blk_rq_bytes(rq),
		.lkey = lkey,
	};
	fr->write = (struct ib_rdma_wr) {
		.wr.wr_cqe = &floor_send_cqe,
		.wr.opcode = IB_WR_RDMA_WRITE_WITH_IMM,
		.wr.ex.imm_data = cpu_to_be32(rq->tag),
		.wr.sg_list = fr->sge,
		.wr.num_sge = write ? 2 : 1,
		.wr.send_flags = floor_flags(client),
		.remote_addr = queue->slot_dma[rq->tag],
		.rkey = queue->server.pd->unsafe_global_rkey,
	};
	if (likely(!ib_post_send(client->qp, first, NULL)))
		return BLK_STS_OK;
	ib_dma_unmap_single(device, fr->header_dma, sizeof(fr->header), DMA_TO_DEVICE);
unmap:
	ib_dma_unmap_sg(device, fr->sg, fr->segments, rq_dma_dir(rq));
	return BLK_STS_IOERR;
}

static int floor_init_hctx(struct blk_mq_hw_ctx *hctx, void *data, unsigned int index)
{
	hctx->driver_data = &floor_queues[index];
	return 0;
}

static int floor_init_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int index, int node)
{
	struct floor_request *fr = blk_mq_rq_to_pdu(rq);
	struct ib_mr *mr;

	mr = ib_alloc_mr(floor_queues[index].client.pd, IB_MR_TYPE_MEM_REG, FLOOR_SEGMENTS);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	fr->mr = mr;
	fr->registered = false;
	return 0;
}

static void floor_exit_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int index)
{
	struct floor_request *fr = blk_mq_rq_to_pdu(rq);

	ib_dereg_mr(fr->mr);
}

static const struct blk_mq_ops floor_mq_ops = {
	.queue_rq = floor_queue_rq,
	.init_hctx = floor_init_hctx,
	.init_request = floor_init_request,
	.exit_request = floor_exit_request,
};

static const struct block_device_operations floor_fops = { .owner = THIS_MODULE };

/* Connections. One is made after the other, so there is one to be accepted. */
static struct floor_queue *floor_connecting;

static void floor_wake(struct ib_cq *cq, void *context)
{
	struct floor_queue *queue = context;

	wake_up_process(queue->server.thread);
}

static int floor_thread(void *data)
{
	struct ib_cq *cq = data;

	while (!kthread_should_stop()) {
		ib_process_cq_direct(cq, -1);
		set_current_state(TASK_INTERRUPTIBLE);
		if (!ib_req_notify_cq(cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) && !kthread_should_stop())
			schedule();
		__set_current_state(TASK_RUNNING);
	}
	return 0;
}

/* Completions of a queue that is polled directly wake a thread. */
static int floor_start_thread(struct floor_side *side)
{
	struct task_struct *thread = kthread_create(floor_thread, side->cq, "rdma_floor");

	if (IS_ERR(thread))
		return PTR_ERR(thread);
	set_user_nice(thread, MIN_NICE);
	side->thread = thread;
	side->cq->comp_handler = floor_wake;
	wake_up_process(thread);
	return 0;
}

static int floor_make_side(struct floor_queue *queue, struct floor_side *side, struct rdma_cm_id *id,
			   void (*recv)(struct ib_cq *cq, struct ib_wc *wc), enum ib_poll_context context)
{
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap.max_send_wr = FLOOR_SEND_WRS,
		.cap.max_recv_wr = FLOOR_RECV_WRS,
		.cap.max_send_sge = 2,
		.cap.max_recv_sge = 1,
	};
	int vector = queue->index % id->device->num_comp_vectors;
	int i, ret;

	side->id = id;
	side->recv_cqe.done = recv;
	side->pd = ib_alloc_pd(id->device, IB_PD_UNSAFE_GLOBAL_RKEY);
	if (IS_ERR(side->pd))
		return PTR_ERR(side->pd);
	side->cq = ib_alloc_cq(id->device, queue, FLOOR_SEND_WRS + FLOOR_RECV_WRS, vector, context);
	if (IS_ERR(side->cq)) {
		ret = PTR_ERR(side->cq);
		goto free_pd;
	}
	attr.send_cq = side->cq;
	attr.recv_cq = side->cq;
	ret = rdma_create_qp(id, side->pd, &attr);
	if (ret)
		goto free_cq;
	side->qp = id->qp;
	if (context == IB_POLL_DIRECT)
		ret = floor_start_thread(side);
	for (i = 0; i < FLOOR_RECV_WRS && !ret; i++)
		ret = floor_post_recv(side);
	/* Taken down with everything else. */
	return ret;
free_cq:
	ib_free_cq(side->cq);
free_pd:
	ib_dealloc_pd(side->pd);
	side->pd = NULL;
	return ret;
}

static void floor_free_side(struct floor_side *side)
{
	if (side->thread)
		kthread_stop(side->thread);
	if (side->qp) {
		ib_drain_qp(side->qp);
		rdma_destroy_qp(side->id);
		ib_free_cq(side->cq);
		ib_dealloc_pd(side->pd);
	}
	if (side->id)
		rdma_destroy_id(side->id);
	memset(side, 0, sizeof(*side));
}

static int floor_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct floor_queue *queue = id->context;
	int ret = 0;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		ret = rdma_resolve_route(id, 2000);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		ret = floor_make_side(queue, &queue->client, id, floor_client_recv, IB_POLL_SOFTIRQ);
		if (!ret)
			ret = rdma_connect_locked(id, &param);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		queue = READ_ONCE(floor_connecting);
		if (!queue || queue->server.id)
			return -ECONNREFUSED;
		id->context = queue;
		ret = floor_make_side(queue, &queue->server, id, floor_server_recv,
				      floor_server_context);
		if (!ret)
			ret = rdma_accept(id, &param);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (id == queue->client.id)
			complete(&queue->connected);
		return 0;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return 0;
	default:
		pr_err("rdma_floor: %s, status %d\n", rdma_event_msg(event->event), event->status);
		ret = -EIO;
	}
	if (ret && queue) {
		queue->status = ret;
		complete(&queue->connected);
	}
	/* The ids are destroyed by those who wait. */
	return 0;
}

static int floor_alloc_slots(struct floor_queue *queue)
{
	int i;

	for (i = 0; i < FLOOR_DEPTH; i++) {
		queue->slot[i] = alloc_pages_exact(FLOOR_SLOT, GFP_KERNEL | __GFP_ZERO);
		if (!queue->slot[i])
			return -ENOMEM;
		queue->slot_dma[i] = ib_dma_map_single(queue->client.id->device, queue->slot[i], FLOOR_SLOT,
						       DMA_BIDIRECTIONAL);
	}
	return 0;
}

static void floor_free_queue(struct floor_queue *queue)
{
	struct ib_device *device = queue->client.id ? queue->client.id->device : NULL;
	int i;

	if (queue->client.qp)
		rdma_disconnect(queue->client.id);
	for (i = 0; i < FLOOR_DEPTH && queue->slot[i]; i++)
		ib_dma_unmap_single(device, queue->slot_dma[i], FLOOR_SLOT, DMA_BIDIRECTIONAL);
	floor_free_side(&queue->client);
	floor_free_side(&queue->server);
	for (i = 0; i < FLOOR_DEPTH && queue->slot[i]; i++)
		free_pages_exact(queue->slot[i], FLOOR_SLOT);
}

static int floor_connect(struct floor_queue *queue, struct sockaddr_in *to)
{
	struct rdma_cm_id *id;
	int ret;

	init_completion(&queue->connected);
	WRITE_ONCE(floor_connecting, queue);
	id = rdma_create_id(&init_net, floor_event, queue, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	queue->client.id = id;
	ret = rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000);
	if (ret)
		return ret;
	if (!wait_for_completion_timeout(&queue->connected, FLOOR_TIMEOUT))
		return -ETIMEDOUT;
	return queue->status ?: floor_alloc_slots(queue);
}

static int floor_listen(struct sockaddr_in *to)
{
	struct rdma_cm_id *id = rdma_create_id(&init_net, floor_event, NULL, RDMA_PS_TCP, IB_QPT_RC);
	int ret;

	if (IS_ERR(id))
		return PTR_ERR(id);
	ret = rdma_bind_addr(id, (struct sockaddr *)to);
	if (!ret)
		ret = rdma_listen(id, FLOOR_QUEUES);
	if (ret)
		rdma_destroy_id(id);
	else
		floor_listener = id;
	return ret;
}

static int floor_add_disk(unsigned int number)
{
	struct queue_limits limits = {
		.logical_block_size = 512,
		.max_hw_sectors = FLOOR_DATA >> SECTOR_SHIFT,
		.max_segments = FLOOR_SEGMENTS,
		/* What one registration can take. */
		.virt_boundary_mask = PAGE_SIZE - 1,
	};
	struct gendisk *disk = blk_mq_alloc_disk(&floor_tags, &limits, NULL);
	int ret;

	if (IS_ERR(disk))
		return PTR_ERR(disk);
	snprintf(disk->disk_name, sizeof(disk->disk_name), "floor%u", number);
	disk->fops = &floor_fops;
	set_capacity(disk, SZ_1G >> SECTOR_SHIFT);
	ret = add_disk(disk);
	if (ret)
		put_disk(disk);
	else
		floor_disk[number] = disk;
	return ret;
}

static void floor_remove_disks(void)
{
	unsigned int i;

	for (i = 0; i < disks && floor_disk[i]; i++) {
		del_gendisk(floor_disk[i]);
		put_disk(floor_disk[i]);
	}
	blk_mq_free_tag_set(&floor_tags);
}

static int floor_add_disks(void)
{
	unsigned int i;
	int ret;

	floor_tags = (struct blk_mq_tag_set) {
		.ops = &floor_mq_ops,
		.nr_hw_queues = queues,
		.queue_depth = FLOOR_DEPTH,
		.numa_node = NUMA_NO_NODE,
		.cmd_size = sizeof(struct floor_request),
	};
	ret = blk_mq_alloc_tag_set(&floor_tags);
	if (ret)
		return ret;
	for (i = 0; i < disks && !ret; i++)
		ret = floor_add_disk(i);
	if (ret)
		floor_remove_disks();
	return ret;
}

static void floor_disconnect(void)
{
	unsigned int i;

	for (i = 0; i < queues; i++)
		floor_free_queue(&floor_queues[i]);
	if (floor_listener)
		rdma_destroy_id(floor_listener);
	kvfree(floor_queues);
}

static int floor_request(struct floor_queue *queue, struct floor_exchange *exchange, u32 tag)
{
	struct floor_side *client = &queue->client;
	struct ib_sge sge[2] = {
		{
			.addr = exchange->headers_dma + tag * sizeof(*exchange->headers),
			.length = sizeof(*exchange->headers),
			.lkey = client->pd->local_dma_lkey,
		}, {
			.addr = exchange->data_dma,
			.length = exchange->bytes,
			.lkey = client->pd->local_dma_lkey,
		},
	};
	struct ib_rdma_wr wr = {
		.wr.wr_cqe = &floor_send_cqe,
		.wr.opcode = IB_WR_RDMA_WRITE_WITH_IMM,
		.wr.ex.imm_data = cpu_to_be32(tag),
		.wr.sg_list = sge,
		.wr.num_sge = 2,
		.wr.send_flags = floor_flags(client),
		.remote_addr = queue->slot_dma[tag],
		.rkey = queue->server.pd->unsafe_global_rkey,
	};

	exchange->headers[tag] = (struct floor_header) {
		.addr = exchange->data_dma,
		.rkey = client->pd->unsafe_global_rkey,
		.answer = exchange->bytes,
	};
	return ib_post_send(client->qp, &wr.wr, NULL);
}

/* The caller sleeps while as many requests as may be are in flight. */
static int floor_make_exchanges(struct floor_queue *queue, struct floor_exchange *exchange, u32 count, u32 depth)
{
	int ret = 0;
	u32 i;

	sema_init(&exchange->room, depth);
	for (i = 0; i < count && !ret; i++) {
		ret = down_timeout(&exchange->room, FLOOR_TIMEOUT);
		if (!ret)
			ret = floor_request(queue, exchange, i % depth);
	}
	for (i = 0; i < depth && !ret; i++)
		ret = down_timeout(&exchange->room, FLOOR_TIMEOUT);
	return ret;
}

static u64 floor_exchange_ns;

/*
 * "BYTES COUNT DEPTH": makes COUNT exchanges of two messages of BYTES each, DEPTH of them in flight, on the first
 * connection. Read, the parameter has the nanoseconds that they took. The disks must be idle.
 */
static int floor_exchange(const char *value, const struct kernel_param *parameter)
{
	struct floor_queue *queue = floor_queues;
	struct floor_exchange *exchange;
	struct ib_device *device;
	u32 bytes, count, depth;
	int ret = -ENOMEM;
	u64 began;

	if (sscanf(value, "%u %u %u", &bytes, &count, &depth) != 3 || !bytes || bytes > FLOOR_DATA ||
	    !depth || depth > FLOOR_DEPTH)
		return -EINVAL;
	if (!queue || !queue->slot[FLOOR_DEPTH - 1])
		return -ENODEV;
	device = queue->client.id->device;
	exchange = kzalloc_obj(*exchange);
	if (!exchange)
		return -ENOMEM;
	exchange->bytes = bytes;
	exchange->data = alloc_pages_exact(FLOOR_DATA, GFP_KERNEL | __GFP_ZERO);
	if (!exchange->data)
		goto free;
	exchange->data_dma = ib_dma_map_single(device, exchange->data, FLOOR_DATA, DMA_BIDIRECTIONAL);
	exchange->headers_dma = ib_dma_map_single(device, exchange->headers, sizeof(exchange->headers), DMA_TO_DEVICE);
	queue->exchange = exchange;
	began = ktime_get_ns();
	ret = floor_make_exchanges(queue, exchange, count, depth);
	floor_exchange_ns = ktime_get_ns() - began;
	/* An answer that is late still has somewhere to go, as the memory is not freed. */
	if (ret)
		return ret;
	queue->exchange = NULL;
	ib_dma_unmap_single(device, exchange->headers_dma, sizeof(exchange->headers), DMA_TO_DEVICE);
	ib_dma_unmap_single(device, exchange->data_dma, FLOOR_DATA, DMA_BIDIRECTIONAL);
	free_pages_exact(exchange->data, FLOOR_DATA);
free:
	kfree(exchange);
	return ret;
}

static int floor_exchange_time(char *buffer, const struct kernel_param *parameter)
{
	return sysfs_emit(buffer, "%llu\n", floor_exchange_ns);
}

static const struct kernel_param_ops floor_exchange_ops = {
	.set = floor_exchange,
	.get = floor_exchange_time,
};
module_param_cb(exchange, &floor_exchange_ops, NULL, 0600);
MODULE_PARM_DESC(exchange, "BYTES COUNT DEPTH: exchanges messages without a disk; read: the nanoseconds that it took");

static int floor_choose_context(void)
{
	if (sysfs_streq(server_context, "process"))
		floor_server_context = IB_POLL_WORKQUEUE;
	else if (sysfs_streq(server_context, "thread"))
		floor_server_context = IB_POLL_DIRECT;
	else if (sysfs_streq(server_context, "softirq"))
		floor_server_context = IB_POLL_SOFTIRQ;
	else
		return -EINVAL;
	return 0;
}

static int __init floor_init(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(FLOOR_PORT) };
	unsigned int i;
	int ret;

	ret = floor_choose_context();
	if (ret)
		return ret;
	queues = clamp(queues, 1U, FLOOR_QUEUES);
	disks = clamp(disks, 1U, FLOOR_DISKS);
	floor_send_cqe.done = floor_send_done;
	to.sin_addr.s_addr = in_aton(addr);
	floor_queues = kvcalloc(queues, sizeof(*floor_queues), GFP_KERNEL);
	if (!floor_queues)
		return -ENOMEM;
	ret = floor_listen(&to);
	for (i = 0; i < queues && !ret; i++) {
		floor_queues[i].index = i;
		ret = floor_connect(&floor_queues[i], &to);
	}
	if (!ret)
		ret = floor_add_disks();
	if (ret)
		floor_disconnect();
	return ret;
}

static void __exit floor_exit(void)
{
	floor_remove_disks();
	floor_disconnect();
}

module_init(floor_init);
module_exit(floor_exit);
MODULE_DESCRIPTION("Two RDMA messages for an I/O: the floor that block transports are measured against");
MODULE_LICENSE("GPL");
