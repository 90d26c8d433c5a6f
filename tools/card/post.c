// SPDX-License-Identifier: GPL-2.0
/* Posting: what a driver checks before it rings the doorbell. */
#include "card.h"

static int card_fill_inline(struct card_qp *qp, struct card_wqe *wqe, const struct ib_send_wr *wr)
{
	void *data = wqe->sge;

	if (wqe->length > qp->cap.max_inline_data) {
		card_misuse(qp->card, qp, CARD_TOO_LONG, wr->wr_id, 0, wqe->length);
		return -EINVAL;
	}
	for (int i = 0; i < wr->num_sge; i++) {
		memcpy(data, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		data += wr->sg_list[i].length;
	}
	return 0;
}

static int card_fill_data(struct card_qp *qp, struct card_wqe *wqe, const struct ib_send_wr *wr)
{
	u32 limit = qp->cap.max_send_sge;

	if (wr->opcode == IB_WR_RDMA_READ)
		limit = min(limit, qp->card->profile->sge_read);
	if (wr->num_sge < 0 || wr->num_sge > limit) {
		card_misuse(qp->card, qp, CARD_TOO_MANY_SGES, wr->wr_id, 0, wr->num_sge);
		return -EINVAL;
	}
	for (int i = 0; i < wr->num_sge; i++)
		wqe->length += wr->sg_list[i].length;
	if (wr->send_flags & IB_SEND_INLINE)
		return card_fill_inline(qp, wqe, wr);
	wqe->sges = wr->num_sge;
	memcpy(wqe->sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	return 0;
}

static int card_fill_reg(struct card_qp *qp, struct card_wqe *wqe, const struct ib_send_wr *wr)
{
	struct card_mr *mr = to_mr(reg_wr(wr)->mr);

	wqe->reg.index = mr->index;
	wqe->reg.serial = mr->serial;
	wqe->reg.iova = mr->ibmr.iova;
	wqe->reg.length = mr->ibmr.length;
	wqe->reg.page_shift = ilog2(mr->ibmr.page_size);
	wqe->reg.key = reg_wr(wr)->key;
	wqe->reg.access = reg_wr(wr)->access;
	atomic_inc(&mr->busy);
	return 0;
}

static int card_fill_wqe(struct card_qp *qp, struct card_wqe *wqe, const struct ib_send_wr *wr)
{
	wqe->wr_id = wr->wr_id;
	wqe->opcode = wr->opcode;
	wqe->flags = wr->send_flags;
	wqe->imm = wr->ex.imm_data;
	wqe->length = 0;
	wqe->status = IB_WC_SUCCESS;
	wqe->ack_at = 0;
	wqe->sges = 0;
	wqe->drawn = false;
	wqe->placed = false;
	wqe->late = false;
	if (qp->ibqp.qp_type != IB_QPT_RC) {
		if (wr->opcode != IB_WR_SEND)
			goto bad;
		wqe->ud.ah = to_ah(ud_wr(wr)->ah);
		wqe->ud.qpn = ud_wr(wr)->remote_qpn;
		wqe->ud.qkey = ud_wr(wr)->remote_qkey;
		return card_fill_data(qp, wqe, wr);
	}
	switch (wr->opcode) {
	case IB_WR_RDMA_READ:
		if (wr->send_flags & IB_SEND_INLINE)
			goto bad;
		fallthrough;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		wqe->rdma.address = rdma_wr(wr)->remote_addr;
		wqe->rdma.rkey = rdma_wr(wr)->rkey;
		fallthrough;
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_SEND_WITH_INV:
		return card_fill_data(qp, wqe, wr);
	case IB_WR_REG_MR:
		return card_fill_reg(qp, wqe, wr);
	case IB_WR_LOCAL_INV:
		return 0;
	default:
		break;
	}
bad:
	card_misuse(qp->card, qp, CARD_BAD_OPCODE, wr->wr_id, wr->opcode, 0);
	return -EINVAL;
}

static int card_post_one(struct card_qp *qp, const struct ib_send_wr *wr)
{
	int err;

	if (qp->state != IB_QPS_RTS && qp->state != IB_QPS_ERR && qp->state != IB_QPS_SQE) {
		card_misuse(qp->card, qp, CARD_WRONG_STATE, wr->wr_id, qp->state, 0);
		return -EINVAL;
	}
	if (qp->sq_head - READ_ONCE(qp->sq_tail) >= qp->cap.max_send_wr) {
		card_misuse(qp->card, qp, CARD_SQ_FULL, wr->wr_id, 0, qp->cap.max_send_wr);
		return -ENOMEM;
	}
	if (card_fails(qp->card, "post_send"))
		return -ENOMEM;
	err = card_fill_wqe(qp, card_wqe(qp, qp->sq_head), wr);
	if (!err)
		/* Pairs with the engine's, which reads the work request. */
		smp_store_release(&qp->sq_head, qp->sq_head + 1);
	return err;
}

int card_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct card_qp *qp = to_qp(ibqp);
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&qp->lock, flags);
	for (; wr; wr = wr->next) {
		err = card_post_one(qp, wr);
		if (err) {
			*bad = wr;
			break;
		}
	}
	spin_unlock_irqrestore(&qp->lock, flags);
	card_run(qp);
	return err;
}

static int card_post_one_recv(struct card_qp *qp, const struct ib_recv_wr *wr)
{
	struct card_rqe *rqe;

	if (qp->state == IB_QPS_RESET) {
		card_misuse(qp->card, qp, CARD_WRONG_STATE, wr->wr_id, qp->state, 0);
		return -EINVAL;
	}
	if (wr->num_sge < 0 || wr->num_sge > qp->cap.max_recv_sge) {
		card_misuse(qp->card, qp, CARD_TOO_MANY_SGES, wr->wr_id, 0, wr->num_sge);
		return -EINVAL;
	}
	if (qp->rq_head - READ_ONCE(qp->rq_tail) >= qp->cap.max_recv_wr) {
		card_misuse(qp->card, qp, CARD_RQ_FULL, wr->wr_id, 0, qp->cap.max_recv_wr);
		return -ENOMEM;
	}
	if (card_fails(qp->card, "post_recv"))
		return -ENOMEM;
	rqe = card_rqe(qp, qp->rq_head);
	rqe->wr_id = wr->wr_id;
	rqe->sges = wr->num_sge;
	memcpy(rqe->sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	qp->rq_head++;
	return 0;
}

int card_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct card_qp *qp = to_qp(ibqp);
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&qp->rq_lock, flags);
	for (; wr; wr = wr->next) {
		err = card_post_one_recv(qp, wr);
		if (err) {
			*bad = wr;
			break;
		}
	}
	spin_unlock_irqrestore(&qp->rq_lock, flags);
	if (READ_ONCE(qp->state) == IB_QPS_ERR)
		card_run(qp);
	return err;
}
