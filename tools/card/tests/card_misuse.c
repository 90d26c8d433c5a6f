// SPDX-License-Identifier: GPL-2.0
/*
 * Misuses of an RDMA device, one for each load: `insmod card_misuse.ko case=dead_key`. Loading fails unless the
 * device refuses or completes the work request as the case expects; what the device reported is for the caller.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

static char *device = "card0";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "whose queue pairs are misused");
static char *name = "good";
module_param_named(case, name, charp, 0444);
MODULE_PARM_DESC(case, "which misuse");

#define SIZE 4096
#define DEPTH 8
#define BOTH (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ)

/* Two queue pairs of one device that are connected with each other: 0 sends, 1 receives. */
struct rig {
	struct ib_device *dev;
	struct ib_pd *pd, *other_pd;
	struct ib_cq *cq[2];
	struct ib_qp *qp[2];
	void *buffer[2];
	u64 dma[2];
	enum dma_data_direction dir[2];
	struct ib_mr *mr;
	struct scatterlist sg;
	u32 cq_entries;
	/* RDMA READs at a time: of the sender, and of the receiver as their target. */
	u8 reads, takes_reads;
	int access;
};

static void ignore_completion(struct ib_cq *cq, void *context)
{
}

static void ignore_event(struct ib_event *event, void *context)
{
}

static int map(struct rig *rig, int side, enum dma_data_direction dir, size_t size)
{
	rig->dma[side] = ib_dma_map_single(rig->dev, rig->buffer[side], size, dir);
	rig->dir[side] = dir;
	return ib_dma_mapping_error(rig->dev, rig->dma[side]);
}

static void unmap(struct rig *rig, int side, size_t size)
{
	ib_dma_unmap_single(rig->dev, rig->dma[side], size, rig->dir[side]);
	rig->dma[side] = 0;
}

static struct ib_sge element(struct rig *rig, int side, u32 length)
{
	return (struct ib_sge) { .addr = rig->dma[side], .length = length, .lkey = rig->pd->local_dma_lkey };
}

static int post_send(struct rig *rig, struct ib_send_wr *wr)
{
	wr->send_flags |= IB_SEND_SIGNALED;
	return ib_post_send(rig->qp[0], wr, NULL);
}

static int send(struct rig *rig, struct ib_sge sge)
{
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1 };

	return post_send(rig, &wr);
}

static int receive(struct rig *rig, struct ib_sge sge)
{
	struct ib_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(rig->qp[1], &wr, NULL);
}

static int transfer(struct rig *rig, enum ib_wr_opcode opcode, u64 address, u32 length, u32 key)
{
	struct ib_sge sge = element(rig, 0, length);
	struct ib_rdma_wr wr = {
		.wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1 }, .remote_addr = address, .rkey = key,
	};

	return post_send(rig, &wr.wr);
}

/* The status of the next completion, or a negative number. */
static int completion(struct rig *rig, int side)
{
	struct ib_wc wc;

	for (int i = 0; i < 3000; i++) {
		if (ib_poll_cq(rig->cq[side], 1, &wc) == 1)
			return wc.status;
		usleep_range(1000, 2000);
	}
	return -ETIMEDOUT;
}

/* Whether the post was accepted, and the next completion of the sender has this status. */
static int expect(struct rig *rig, int posted, enum ib_wc_status status)
{
	int got = posted ?: completion(rig, 0);

	if (got == status)
		return 0;
	pr_err("card_misuse: %s: %d in place of status %d\n", name, got, status);
	return -EINVAL;
}

static int expect_errno(int got, int wanted)
{
	if (got == wanted)
		return 0;
	pr_err("card_misuse: %s: %d in place of errno %d\n", name, got, wanted);
	return -EINVAL;
}

static int invalidate(struct rig *rig, u32 key)
{
	struct ib_send_wr wr = { .opcode = IB_WR_LOCAL_INV, .ex.invalidate_rkey = key };

	return post_send(rig, &wr);
}

/* Registers the receiver's buffer with a new key. */
static int post_register(struct rig *rig, int access)
{
	struct ib_reg_wr wr = { .wr.opcode = IB_WR_REG_MR, .mr = rig->mr, .access = access };

	ib_update_fast_reg_key(rig->mr, ib_inc_rkey(rig->mr->rkey));
	wr.key = rig->mr->rkey;
	return post_send(rig, &wr.wr);
}

static int allocate(struct rig *rig, struct ib_pd *pd, size_t size)
{
	rig->mr = ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, 1);
	if (IS_ERR(rig->mr))
		return PTR_ERR(rig->mr);
	sg_init_one(&rig->sg, rig->buffer[1], size);
	sg_dma_address(&rig->sg) = rig->dma[1];
	sg_dma_len(&rig->sg) = size;
	return ib_map_mr_sg(rig->mr, &rig->sg, 1, NULL, PAGE_SIZE) == 1 ? 0 : -EINVAL;
}

static int registered(struct rig *rig, int access)
{
	return allocate(rig, rig->pd, SIZE) ?: expect(rig, post_register(rig, access), IB_WC_SUCCESS);
}

static int good(struct rig *rig)
{
	int err = receive(rig, element(rig, 1, SIZE)) ?:
		  expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_SUCCESS) ?:
		  expect_errno(completion(rig, 1), IB_WC_SUCCESS);

	ib_dma_sync_single_for_cpu(rig->dev, rig->dma[1], SIZE, DMA_FROM_DEVICE);
	return err ?: expect_errno(!!memcmp(rig->buffer[0], rig->buffer[1], SIZE), 0);
}

static int good_rdma(struct rig *rig)
{
	return registered(rig, BOTH) ?:
	       expect(rig, transfer(rig, IB_WR_RDMA_WRITE, rig->mr->iova, SIZE, rig->mr->rkey), IB_WC_SUCCESS) ?:
	       expect(rig, invalidate(rig, rig->mr->rkey), IB_WC_SUCCESS);
}

static int unmapped(struct rig *rig)
{
	struct ib_sge sge = element(rig, 0, SIZE);

	unmap(rig, 0, SIZE);
	return receive(rig, element(rig, 1, SIZE)) ?: expect(rig, send(rig, sge), IB_WC_LOC_PROT_ERR);
}

/* The caller has the card hold the work request for a while. */
static int unmapped_too_early(struct rig *rig)
{
	int err = receive(rig, element(rig, 1, SIZE)) ?: send(rig, element(rig, 0, SIZE));

	unmap(rig, 0, SIZE);
	return expect(rig, err, IB_WC_LOC_PROT_ERR);
}

static int past_end(struct rig *rig)
{
	unmap(rig, 0, SIZE);
	return map(rig, 0, DMA_TO_DEVICE, 64) ?: receive(rig, element(rig, 1, SIZE)) ?:
	       expect(rig, send(rig, element(rig, 0, 128)), IB_WC_LOC_PROT_ERR);
}

static int reads_from_device(struct rig *rig)
{
	unmap(rig, 0, SIZE);
	return map(rig, 0, DMA_FROM_DEVICE, SIZE) ?: receive(rig, element(rig, 1, SIZE)) ?:
	       expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_LOC_PROT_ERR);
}

static int writes_to_device(struct rig *rig)
{
	unmap(rig, 1, SIZE);
	return map(rig, 1, DMA_TO_DEVICE, SIZE) ?: receive(rig, element(rig, 1, SIZE)) ?:
	       expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_REM_OP_ERR) ?:
	       expect_errno(completion(rig, 1), IB_WC_LOC_PROT_ERR);
}

static int not_synced(struct rig *rig)
{
	ib_dma_sync_single_for_cpu(rig->dev, rig->dma[0], SIZE, DMA_TO_DEVICE);
	return receive(rig, element(rig, 1, SIZE)) ?: expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_LOC_PROT_ERR);
}

static int bad_lkey(struct rig *rig)
{
	struct ib_sge sge = element(rig, 0, SIZE);

	sge.lkey = 0x12345678;
	return receive(rig, element(rig, 1, SIZE)) ?: expect(rig, send(rig, sge), IB_WC_LOC_PROT_ERR);
}

static int registers_for_other_pd(struct rig *rig)
{
	return allocate(rig, rig->other_pd, SIZE) ?: expect(rig, post_register(rig, BOTH), IB_WC_MW_BIND_ERR);
}

static int invalidates_in_other_pd(struct rig *rig)
{
	return allocate(rig, rig->other_pd, SIZE) ?: expect(rig, invalidate(rig, rig->mr->rkey), IB_WC_MW_BIND_ERR);
}

static int peer_invalidates_other_pd(struct rig *rig)
{
	struct ib_sge sge = element(rig, 0, SIZE);
	struct ib_send_wr wr = { .opcode = IB_WR_SEND_WITH_INV, .sg_list = &sge, .num_sge = 1 };
	int err = allocate(rig, rig->other_pd, SIZE) ?: receive(rig, element(rig, 1, SIZE));

	wr.ex.invalidate_rkey = err ? 0 : rig->mr->rkey;
	return expect(rig, err ?: post_send(rig, &wr), IB_WC_REM_ACCESS_ERR);
}

static int dead_key(struct rig *rig)
{
	return registered(rig, BOTH) ?: expect(rig, invalidate(rig, rig->mr->rkey), IB_WC_SUCCESS) ?:
	       expect(rig, transfer(rig, IB_WR_RDMA_WRITE, rig->mr->iova, SIZE, rig->mr->rkey), IB_WC_REM_ACCESS_ERR);
}

static int stale_key(struct rig *rig)
{
	u32 old;
	int err = registered(rig, BOTH);

	if (err)
		return err;
	old = rig->mr->rkey;
	return expect(rig, invalidate(rig, old), IB_WC_SUCCESS) ?: expect(rig, post_register(rig, BOTH), IB_WC_SUCCESS) ?:
	       expect(rig, transfer(rig, IB_WR_RDMA_READ, rig->mr->iova, SIZE, old), IB_WC_REM_ACCESS_ERR);
}

static int invalidates_twice(struct rig *rig)
{
	return registered(rig, BOTH) ?: expect(rig, invalidate(rig, rig->mr->rkey), IB_WC_SUCCESS) ?:
	       expect(rig, invalidate(rig, rig->mr->rkey), IB_WC_MW_BIND_ERR);
}

static int registers_twice(struct rig *rig)
{
	return registered(rig, BOTH) ?: expect(rig, post_register(rig, BOTH), IB_WC_MW_BIND_ERR);
}

static int out_of_bounds(struct rig *rig)
{
	return registered(rig, BOTH) ?: expect(rig, transfer(rig, IB_WR_RDMA_WRITE, rig->mr->iova + 1, SIZE,
							      rig->mr->rkey), IB_WC_REM_ACCESS_ERR);
}

static int region_read_only(struct rig *rig)
{
	return registered(rig, IB_ACCESS_REMOTE_READ) ?:
	       expect(rig, transfer(rig, IB_WR_RDMA_WRITE, rig->mr->iova, SIZE, rig->mr->rkey), IB_WC_REM_ACCESS_ERR);
}

static int queue_pair_read_only(struct rig *rig)
{
	struct ib_qp_attr attr = { .qp_access_flags = IB_ACCESS_REMOTE_READ };

	return ib_modify_qp(rig->qp[1], &attr, IB_QP_ACCESS_FLAGS) ?: registered(rig, BOTH) ?:
	       expect(rig, transfer(rig, IB_WR_RDMA_WRITE, rig->mr->iova, SIZE, rig->mr->rkey), IB_WC_REM_ACCESS_ERR);
}

static int receives_read_only(struct rig *rig)
{
	struct ib_sge sge;
	int err = registered(rig, IB_ACCESS_REMOTE_READ);

	if (err)
		return err;
	sge = (struct ib_sge) { .addr = rig->mr->iova, .length = SIZE, .lkey = rig->mr->lkey };
	return receive(rig, sge) ?: expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_REM_OP_ERR);
}

static int sq_full(struct rig *rig)
{
	int err = 0;

	for (int i = 0; !err && i <= DEPTH; i++)
		err = transfer(rig, IB_WR_RDMA_WRITE, 0, 0, 0);
	return expect_errno(err, -ENOMEM);
}

static int rq_full(struct rig *rig)
{
	int err = 0;

	for (int i = 0; !err && i <= DEPTH; i++)
		err = receive(rig, element(rig, 1, SIZE));
	return expect_errno(err, -ENOMEM);
}

static int cq_full(struct rig *rig)
{
	struct ib_qp_attr attr;
	struct ib_qp_init_attr init;
	int err = 0;

	for (int i = 0; !err && i < 3; i++)
		err = receive(rig, element(rig, 1, SIZE)) ?: send(rig, element(rig, 0, SIZE));
	/* The third has found no room at either side. */
	msleep(20);
	return err ?: ib_query_qp(rig->qp[0], &attr, IB_QP_STATE, &init) ?: expect_errno(attr.qp_state, IB_QPS_ERR);
}

static int no_receive(struct rig *rig)
{
	return expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_RNR_RETRY_EXC_ERR);
}

static int receive_too_short(struct rig *rig)
{
	return receive(rig, element(rig, 1, 64)) ?:
	       expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_REM_INV_REQ_ERR) ?:
	       expect_errno(completion(rig, 1), IB_WC_LOC_LEN_ERR);
}

static int not_connected(struct rig *rig)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RESET };

	return ib_modify_qp(rig->qp[0], &attr, IB_QP_STATE) ?:
	       expect_errno(send(rig, element(rig, 0, SIZE)), -EINVAL);
}

static int too_many_elements(struct rig *rig)
{
	struct ib_sge sge[3] = { element(rig, 0, 8), element(rig, 0, 8), element(rig, 0, 8) };
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .sg_list = sge, .num_sge = 3 };

	return expect_errno(post_send(rig, &wr), -EINVAL);
}

static int inline_too_long(struct rig *rig)
{
	struct ib_sge sge = { .addr = (uintptr_t)rig->buffer[0], .length = 33 };
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = IB_SEND_INLINE };

	return expect_errno(post_send(rig, &wr), -EINVAL);
}

static int atomic(struct rig *rig)
{
	struct ib_atomic_wr wr = { .wr.opcode = IB_WR_ATOMIC_FETCH_AND_ADD };

	return expect_errno(post_send(rig, &wr.wr), -EINVAL);
}

/* The caller has the card hold the work request for a while. */
static int page_list_changes(struct rig *rig)
{
	int err = allocate(rig, rig->pd, SIZE) ?: post_register(rig, BOTH);

	return err ?: expect_errno(ib_map_mr_sg(rig->mr, &rig->sg, 1, NULL, PAGE_SIZE), 1) ?:
	       expect(rig, 0, IB_WC_SUCCESS);
}

/* The caller has the card hold the work request for a while. */
static int deregisters_too_early(struct rig *rig)
{
	int err = allocate(rig, rig->pd, SIZE) ?: post_register(rig, BOTH);

	if (err)
		return err;
	err = ib_dereg_mr(rig->mr);
	rig->mr = NULL;
	return expect(rig, err, IB_WC_MW_BIND_ERR);
}

static int connected_for_no_reads(struct rig *rig)
{
	return registered(rig, BOTH) ?:
	       expect(rig, transfer(rig, IB_WR_RDMA_READ, rig->mr->iova, SIZE, rig->mr->rkey), IB_WC_LOC_QP_OP_ERR);
}

static int peer_takes_no_reads(struct rig *rig)
{
	return registered(rig, BOTH) ?:
	       expect(rig, transfer(rig, IB_WR_RDMA_READ, rig->mr->iova, SIZE, rig->mr->rkey), IB_WC_REM_INV_REQ_ERR);
}

static int unmaps_half(struct rig *rig)
{
	ib_dma_unmap_single(rig->dev, rig->dma[0], SIZE / 2, rig->dir[0]);
	return 0;
}

static int unmaps_in_other_direction(struct rig *rig)
{
	ib_dma_unmap_single(rig->dev, rig->dma[0], SIZE, DMA_FROM_DEVICE);
	return 0;
}

static int unmaps_twice(struct rig *rig)
{
	u64 dma = rig->dma[0];

	unmap(rig, 0, SIZE);
	ib_dma_unmap_single(rig->dev, dma, SIZE, rig->dir[0]);
	return 0;
}

static int peer_is_gone(struct rig *rig)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	return ib_modify_qp(rig->qp[1], &attr, IB_QP_STATE) ?:
	       expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_RETRY_EXC_ERR);
}

/* The caller has the card lose the acknowledgement. */
static int ack_is_lost(struct rig *rig)
{
	return receive(rig, element(rig, 1, SIZE)) ?:
	       expect(rig, send(rig, element(rig, 0, SIZE)), IB_WC_RETRY_EXC_ERR) ?:
	       expect_errno(completion(rig, 1), IB_WC_SUCCESS);
}

static int flushes_in_order(struct rig *rig)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	struct ib_wc wc;
	int err = 0;

	for (u64 i = 0; !err && i < 3; i++) {
		struct ib_sge sge = element(rig, 1, SIZE);
		struct ib_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };

		err = ib_post_recv(rig->qp[1], &wr, NULL);
	}
	err = err ?: ib_modify_qp(rig->qp[1], &attr, IB_QP_STATE);
	for (u64 i = 0; !err && i < 3; i++)
		if (ib_poll_cq(rig->cq[1], 1, &wc) != 1 || wc.status != IB_WC_WR_FLUSH_ERR || wc.wr_id != i)
			err = -EINVAL;
	return err;
}

#define CASE(function) { #function, function }
static const struct {
	const char *name;
	int (*run)(struct rig *rig);
} cases[] = {
	CASE(good), CASE(good_rdma), CASE(unmapped), CASE(unmapped_too_early), CASE(past_end),
	CASE(reads_from_device), CASE(writes_to_device), CASE(not_synced), CASE(bad_lkey),
	CASE(registers_for_other_pd), CASE(invalidates_in_other_pd), CASE(peer_invalidates_other_pd), CASE(dead_key),
	CASE(stale_key), CASE(invalidates_twice), CASE(registers_twice), CASE(out_of_bounds), CASE(region_read_only),
	CASE(queue_pair_read_only), CASE(receives_read_only), CASE(sq_full), CASE(rq_full), CASE(cq_full),
	CASE(no_receive), CASE(receive_too_short), CASE(not_connected), CASE(too_many_elements), CASE(inline_too_long),
	CASE(atomic), CASE(page_list_changes), CASE(deregisters_too_early),
	CASE(connected_for_no_reads), CASE(peer_takes_no_reads), CASE(unmaps_half), CASE(unmaps_in_other_direction),
	CASE(unmaps_twice), CASE(peer_is_gone), CASE(ack_is_lost), CASE(flushes_in_order),
};

static int make_side(struct rig *rig, int side)
{
	struct ib_cq_init_attr cq_attr = { .cqe = rig->cq_entries };
	struct ib_qp_init_attr attr = {
		.event_handler = ignore_event, .qp_type = IB_QPT_RC, .sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1,
			 .max_inline_data = 32 },
	};
	struct ib_cq *cq = ib_create_cq(rig->dev, ignore_completion, ignore_event, NULL, &cq_attr);
	struct ib_qp *qp;

	if (IS_ERR(cq))
		return PTR_ERR(cq);
	rig->cq[side] = cq;
	attr.send_cq = cq;
	attr.recv_cq = cq;
	qp = ib_create_qp(rig->pd, &attr);
	if (IS_ERR(qp))
		return PTR_ERR(qp);
	rig->qp[side] = qp;
	rig->buffer[side] = kzalloc(SIZE, GFP_KERNEL);
	if (!rig->buffer[side])
		return -ENOMEM;
	memset(rig->buffer[side], 'a' + side, SIZE);
	return map(rig, side, side ? DMA_FROM_DEVICE : DMA_TO_DEVICE, SIZE);
}

static int connect_side(struct rig *rig, int side)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT, .port_num = 1, .qp_access_flags = BOTH, .path_mtu = IB_MTU_4096,
		.dest_qp_num = rig->qp[!side]->qp_num, .min_rnr_timer = 1, .max_dest_rd_atomic = rig->takes_reads,
		.max_rd_atomic = rig->reads,
		.timeout = 8, .retry_cnt = 2, .rnr_retry = 2,
	};
	union ib_gid gid;
	int err = rdma_query_gid(rig->dev, 1, 0, &gid);

	if (err)
		return err;
	attr.ah_attr.type = rdma_ah_find_type(rig->dev, 1);
	rdma_ah_set_grh(&attr.ah_attr, &gid, 0, 0, 64, 0);
	rdma_ah_set_port_num(&attr.ah_attr, 1);
	err = ib_modify_qp(rig->qp[side], &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS);
	attr.qp_state = IB_QPS_RTR;
	err = err ?: ib_modify_qp(rig->qp[side], &attr, IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
				  IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	attr.qp_state = IB_QPS_RTS;
	return err ?: ib_modify_qp(rig->qp[side], &attr, IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
				   IB_QP_RNR_RETRY | IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC);
}

static int build(struct rig *rig)
{
	rig->pd = ib_alloc_pd(rig->dev, 0);
	if (IS_ERR(rig->pd))
		return PTR_ERR(rig->pd);
	rig->other_pd = ib_alloc_pd(rig->dev, 0);
	if (IS_ERR(rig->other_pd))
		return PTR_ERR(rig->other_pd);
	return make_side(rig, 0) ?: make_side(rig, 1) ?: connect_side(rig, 0) ?: connect_side(rig, 1);
}

static void tear_down(struct rig *rig)
{
	for (int side = 0; side < 2; side++) {
		if (rig->qp[side])
			ib_destroy_qp(rig->qp[side]);
		if (rig->cq[side])
			ib_destroy_cq(rig->cq[side]);
		/* A case that maps less has done so for the sender. */
		if (rig->dma[side])
			unmap(rig, side, !side && !strcmp(name, "past_end") ? 64 : SIZE);
		kfree(rig->buffer[side]);
	}
	if (!IS_ERR_OR_NULL(rig->mr))
		ib_dereg_mr(rig->mr);
	if (!IS_ERR_OR_NULL(rig->other_pd))
		ib_dealloc_pd(rig->other_pd);
	if (!IS_ERR_OR_NULL(rig->pd))
		ib_dealloc_pd(rig->pd);
}

static int result = -ENODEV;

static int add_device(struct ib_device *dev)
{
	struct rig rig = { .dev = dev, .cq_entries = 2 * DEPTH, .reads = 1, .takes_reads = 1 };

	if (strcmp(dev_name(&dev->dev), device))
		return -EOPNOTSUPP;
	if (!strcmp(name, "cq_full"))
		rig.cq_entries = 2;
	if (!strcmp(name, "connected_for_no_reads"))
		rig.reads = 0;
	if (!strcmp(name, "peer_takes_no_reads"))
		rig.takes_reads = 0;
	for (u32 i = 0; i < ARRAY_SIZE(cases); i++) {
		if (strcmp(cases[i].name, name))
			continue;
		result = build(&rig);
		if (result)
			pr_err("card_misuse: no queue pairs: %d\n", result);
		else
			result = cases[i].run(&rig);
		tear_down(&rig);
	}
	return -EOPNOTSUPP;
}

static void remove_device(struct ib_device *dev, void *data)
{
}

static struct ib_client client = { .name = "card_misuse", .add = add_device, .remove = remove_device };

static int __init misuse_init(void)
{
	int err = ib_register_client(&client);

	if (err)
		return err;
	ib_unregister_client(&client);
	return result;
}

static void __exit misuse_exit(void)
{
}

module_init(misuse_init);
module_exit(misuse_exit);
MODULE_DESCRIPTION("Misuses of an RDMA device");
MODULE_LICENSE("GPL");
