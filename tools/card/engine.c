// SPDX-License-Identifier: GPL-2.0
/*
 * The engine of a queue pair sends its work requests to the queue pair at the other end, and completes them.
 *
 * It runs wherever it is kicked: by a post, by its timer, by an error. Only one processor runs it at a time. It
 * sends in order and receives acknowledgements in order; a schedule may put time between the two, and between the
 * data of a work request and the message that announces them.
 */
#include "card.h"

/* Steps of one run, which has interrupts off; an interrupt of its own goes on. */
#define CARD_BUDGET 16

/* Whether a work request was sent, and if not, why it is tried again. */
enum card_sent { CARD_SENT, CARD_NO_ANSWER, CARD_NOT_READY };

static void card_push_send(struct card_qp *qp, const struct card_wqe *wqe, u32 index, enum ib_wc_status status)
{
	static const enum ib_wc_opcode opcodes[] = {
		[IB_WR_RDMA_WRITE] = IB_WC_RDMA_WRITE,
		[IB_WR_RDMA_WRITE_WITH_IMM] = IB_WC_RDMA_WRITE,
		[IB_WR_SEND] = IB_WC_SEND,
		[IB_WR_SEND_WITH_IMM] = IB_WC_SEND,
		[IB_WR_SEND_WITH_INV] = IB_WC_SEND,
		[IB_WR_RDMA_READ] = IB_WC_RDMA_READ,
		[IB_WR_LOCAL_INV] = IB_WC_LOCAL_INV,
		[IB_WR_REG_MR] = IB_WC_REG_MR,
	};
	struct card_cqe cqe = {
		.wc = { .wr_id = wqe->wr_id, .status = status, .opcode = opcodes[wqe->opcode], .qp = &qp->ibqp,
			.byte_len = wqe->length },
		.qp = qp, .index = index,
	};

	card_complete(to_cq(qp->ibqp.send_cq), &cqe, false);
}

/* The engine takes out the next receive work request; the caller holds rq_lock. */
static void card_push_receive(struct card_qp *qp, enum ib_wc_status status, const struct card_wqe *wqe)
{
	const struct card_rqe *rqe = card_rqe(qp, qp->rq_taken);
	struct card_cqe cqe = {
		.wc = { .wr_id = rqe->wr_id, .status = status, .opcode = IB_WC_RECV, .qp = &qp->ibqp },
		.qp = qp, .index = qp->rq_taken++, .receive = true,
	};

	if (wqe) {
		cqe.wc.byte_len = wqe->length;
		cqe.wc.src_qp = qp->dest_qpn;
		switch (wqe->opcode) {
		case IB_WR_RDMA_WRITE_WITH_IMM:
			cqe.wc.opcode = IB_WC_RECV_RDMA_WITH_IMM;
			fallthrough;
		case IB_WR_SEND_WITH_IMM:
			cqe.wc.wc_flags = IB_WC_WITH_IMM;
			cqe.wc.ex.imm_data = wqe->imm;
			break;
		case IB_WR_SEND_WITH_INV:
			cqe.wc.wc_flags = IB_WC_WITH_INVALIDATE;
			cqe.wc.ex.invalidate_rkey = wqe->inv;
			break;
		default:
			break;
		}
		atomic64_inc(&qp->card->receives);
	}
	card_complete(to_cq(qp->ibqp.recv_cq), &cqe, wqe && (wqe->flags & IB_SEND_SOLICITED));
}

/* The other end, if it would answer: a card drops what it does not expect, and the sender waits in vain. */
static struct card_qp *card_other_end(struct card_qp *qp)
{
	struct card_qp *other = card_find_qp(qp->dest_qpn);
	enum ib_qp_state state;

	if (!other || !card_is_up(qp->card) || !card_is_up(other->card))
		return NULL;
	state = READ_ONCE(other->state);
	if ((state != IB_QPS_RTR && state != IB_QPS_RTS) || other->dest_qpn != qp->qpn)
		return NULL;
	if (state == IB_QPS_RTR)
		card_raise(other, IB_EVENT_COMM_EST);
	return other;
}

static void card_refuse(struct card_qp *other, struct card_wqe *wqe, enum ib_wc_status status)
{
	wqe->status = status;
	card_break_qp(other, status == IB_WC_REM_ACCESS_ERR ? IB_EVENT_QP_ACCESS_ERR : IB_EVENT_QP_REQ_ERR);
}

static u32 card_room(const struct card_rqe *rqe)
{
	u32 room = 0;

	for (u32 i = 0; i < rqe->sges; i++)
		room += rqe->sge[i].length;
	return room;
}

/* Writes the data of a message into the next receive work request. The caller holds rq_lock. */
static bool card_place_message(struct card_qp *qp, struct card_qp *other, struct card_wqe *wqe)
{
	const struct card_rqe *rqe = card_rqe(other, other->rq_taken);
	struct card_memory_ref from = card_local(qp, wqe, false), to = card_received(other, rqe);
	enum card_copied copied;

	if (wqe->length > card_room(rqe)) {
		card_misuse(other->card, other, CARD_RECEIVE_TOO_SHORT, rqe->wr_id, 0, wqe->length);
		card_push_receive(other, IB_WC_LOC_LEN_ERR, NULL);
		card_refuse(other, wqe, IB_WC_REM_INV_REQ_ERR);
		return false;
	}
	read_lock(&card_memory);
	copied = card_copy(&to, &from, wqe->length);
	read_unlock(&card_memory);
	if (copied == CARD_TO_FAILED) {
		card_push_receive(other, IB_WC_LOC_PROT_ERR, NULL);
		card_refuse(other, wqe, IB_WC_REM_OP_ERR);
	} else if (copied == CARD_FROM_FAILED) {
		wqe->status = IB_WC_LOC_PROT_ERR;
	}
	wqe->placed = true;
	return copied == CARD_COPIED;
}

static enum card_sent card_send_message(struct card_qp *qp, struct card_qp *other, struct card_wqe *wqe, bool early)
{
	enum card_sent sent = CARD_SENT;
	bool fine = true;

	spin_lock(&other->rq_lock);
	if (other->rq_taken == other->rq_head) {
		sent = CARD_NOT_READY;
		goto out;
	}
	if (!wqe->placed && wqe->opcode != IB_WR_RDMA_WRITE_WITH_IMM)
		fine = card_place_message(qp, other, wqe);
	if (!fine || early)
		goto out;
	if (wqe->opcode == IB_WR_SEND_WITH_INV) {
		write_lock(&card_memory);
		fine = card_invalidate(other, wqe->inv, wqe->wr_id);
		write_unlock(&card_memory);
	}
	if (fine)
		card_push_receive(other, IB_WC_SUCCESS, wqe);
	else
		card_refuse(other, wqe, IB_WC_REM_ACCESS_ERR);
out:
	spin_unlock(&other->rq_lock);
	return sent;
}

/* RDMA READ and WRITE. */
static void card_move(struct card_qp *qp, struct card_qp *other, struct card_wqe *wqe)
{
	bool read = wqe->opcode == IB_WR_RDMA_READ;
	struct card_memory_ref local = card_local(qp, wqe, read), remote = {
		.card = other->card, .qp = other, .address = wqe->rdma.address, .left = wqe->length,
		.write = !read, .wr_id = wqe->wr_id,
	};
	enum card_copied copied = CARD_COPIED;

	wqe->placed = true;
	if (!wqe->length)
		return;
	read_lock(&card_memory);
	remote.mr = card_find_mr(other, wqe->rdma.rkey, true, wqe->wr_id);
	if (!remote.mr || !card_check_mr(other, remote.mr, wqe->rdma.address, wqe->length,
					 read ? IB_ACCESS_REMOTE_READ : IB_ACCESS_REMOTE_WRITE, wqe->wr_id))
		copied = read ? CARD_FROM_FAILED : CARD_TO_FAILED;
	else if (read)
		copied = card_copy(&local, &remote, wqe->length);
	else
		copied = card_copy(&remote, &local, wqe->length);
	read_unlock(&card_memory);
	if (copied == CARD_COPIED)
		return;
	if (copied == (read ? CARD_TO_FAILED : CARD_FROM_FAILED))
		wqe->status = IB_WC_LOC_PROT_ERR;
	else
		card_refuse(other, wqe, IB_WC_REM_ACCESS_ERR);
}

/* The other end has resources for no more reads than it said when it was connected. */
static bool card_takes_read(struct card_qp *qp, struct card_qp *other, struct card_wqe *wqe)
{
	if (likely(qp->reads_out < other->max_dest_rd_atomic))
		return true;
	card_misuse(other->card, other, CARD_TOO_MANY_READS, wqe->wr_id, 0, other->max_dest_rd_atomic);
	card_refuse(other, wqe, IB_WC_REM_INV_REQ_ERR);
	return false;
}

static enum card_sent card_send_to(struct card_qp *qp, struct card_wqe *wqe, bool early)
{
	struct card_qp *other = card_other_end(qp);

	if (!other)
		return CARD_NO_ANSWER;
	switch (wqe->opcode) {
	case IB_WR_RDMA_READ:
		if (!card_takes_read(qp, other, wqe))
			return CARD_SENT;
		if (!wqe->late || early)
			card_move(qp, other, wqe);
		return CARD_SENT;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		if (!wqe->placed)
			card_move(qp, other, wqe);
		if (wqe->opcode == IB_WR_RDMA_WRITE || wqe->status != IB_WC_SUCCESS || early)
			return CARD_SENT;
		fallthrough;
	default:
		return card_send_message(qp, other, wqe, early);
	}
}

static enum card_sent card_execute(struct card_qp *qp, struct card_wqe *wqe)
{
	switch (wqe->opcode) {
	case IB_WR_REG_MR:
		write_lock(&card_memory);
		wqe->status = card_register(qp, wqe);
		write_unlock(&card_memory);
		return CARD_SENT;
	case IB_WR_LOCAL_INV:
		write_lock(&card_memory);
		if (!card_invalidate(qp, wqe->inv, wqe->wr_id))
			wqe->status = IB_WC_MW_BIND_ERR;
		write_unlock(&card_memory);
		return CARD_SENT;
	default:
		break;
	}
	if (qp->ibqp.qp_type != IB_QPT_RC) {
		wqe->status = card_send_datagram(qp, wqe);
		return CARD_SENT;
	}
	return card_send_to(qp, wqe, false);
}

static bool card_has_data(const struct card_wqe *wqe)
{
	return wqe->opcode != IB_WR_REG_MR && wqe->opcode != IB_WR_LOCAL_INV;
}

/* No more than the bits of the draw that are left for it. */
static u32 card_delay(u32 draw)
{
	return draw % (min_t(u32, READ_ONCE(card_max_delay_us), U16_MAX) + 1);
}

/* Draws what the schedule has for a work request that is about to be sent. */
static void card_draw(struct card_qp *qp, struct card_wqe *wqe)
{
	u32 hold = READ_ONCE(qp->card->hold_us), draw;
	ktime_t now = ktime_get();

	wqe->drawn = true;
	qp->not_before = now;
	if (hold && (!qp->card->hold_qp || qp->card->hold_qp == qp->qpn))
		qp->not_before = ktime_add_us(now, hold);
	if (!card_timing || qp->ibqp.qp_type != IB_QPT_RC)
		return;
	draw = prandom_u32_state(&qp->random);
	if (draw & 1)
		qp->not_before = ktime_add_us(qp->not_before, card_delay(draw >> 8));
	wqe->ack_at = qp->not_before;
	if (draw & 2)
		wqe->ack_at = ktime_add_us(wqe->ack_at, card_delay(draw >> 16));
	wqe->late = wqe->opcode == IB_WR_RDMA_READ && (draw & 4);
	if ((draw & 8) && card_has_data(wqe) && wqe->opcode != IB_WR_RDMA_READ)
		card_send_to(qp, wqe, true);
}

/* 10 microseconds; the index is the attribute min_rnr_timer. */
static const u16 rnr_timers[] = {
	65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152
};

/* Whether to try again, at not_before; otherwise the work request has failed. */
static bool card_try_again(struct card_qp *qp, struct card_wqe *wqe, enum card_sent why)
{
	const struct card_qp *other;

	if (why == CARD_NO_ANSWER) {
		if (!qp->timeout)
			qp->not_before = ktime_add_ms(ktime_get(), 10);
		else
			qp->not_before = ktime_add_ns(ktime_get(), 4096ULL << qp->timeout);
		/* The first was no retry. */
		qp->retries += !!qp->timeout;
		return true;
	}
	qp->retries = 0;
	other = card_find_qp(qp->dest_qpn);
	if (other && !qp->rnr_retries)
		card_misuse(other->card, (struct card_qp *)other, CARD_NO_RECEIVE, wqe->wr_id, 0, wqe->length);
	if (qp->rnr_retry != 7 && qp->rnr_retries >= qp->rnr_retry) {
		wqe->status = IB_WC_RNR_RETRY_EXC_ERR;
		return false;
	}
	qp->rnr_retries++;
	qp->not_before = ktime_add_us(ktime_get(), 10ULL * rnr_timers[(other ? other->min_rnr_timer : 12) & 31]);
	return true;
}

/* A queue pair that was connected for no reads cannot wait for one to end. */
static void card_refuse_read(struct card_qp *qp, struct card_wqe *wqe)
{
	if (wqe->status != IB_WC_SUCCESS)
		return;
	card_misuse(qp->card, qp, CARD_TOO_MANY_READS, wqe->wr_id, 0, 0);
	wqe->status = IB_WC_LOC_QP_OP_ERR;
}

/* Sends the next work request. False if there is none, or not yet. */
static bool card_send_next(struct card_qp *qp)
{
	enum card_sent sent;
	struct card_wqe *wqe;

	/* Pairs with the post's. */
	if (qp->failed || qp->sq_sent == smp_load_acquire(&qp->sq_head))
		return false;
	wqe = card_wqe(qp, qp->sq_sent);
	if ((wqe->flags & IB_SEND_FENCE) && qp->reads_out)
		return false;
	if (wqe->opcode == IB_WR_RDMA_READ && qp->reads_out >= qp->max_rd_atomic) {
		if (qp->reads_out)
			return false;
		card_refuse_read(qp, wqe);
	}
	if (unlikely(!wqe->drawn) && (card_timing || READ_ONCE(qp->card->hold_us)))
		card_draw(qp, wqe);
	if (qp->not_before && wqe->status == IB_WC_SUCCESS) {
		if (ktime_before(ktime_get(), qp->not_before))
			return false;
		qp->not_before = 0;
	}
	/* After the last retry it has waited once more. */
	if (unlikely(qp->retries > qp->retry_cnt))
		wqe->status = IB_WC_RETRY_EXC_ERR;
	if (wqe->status == IB_WC_SUCCESS) {
		sent = card_execute(qp, wqe);
		if (unlikely(sent != CARD_SENT) && card_try_again(qp, wqe, sent))
			return false;
	}
	qp->retries = 0;
	qp->rnr_retries = 0;
	if (wqe->opcode == IB_WR_RDMA_READ)
		qp->reads_out++;
	qp->failed = wqe->status != IB_WC_SUCCESS && qp->ibqp.qp_type == IB_QPT_RC;
	qp->sq_sent++;
	return true;
}

/* What a card does once more before it reports a success: data may have to be sent again until then. */
static void card_finish(struct card_qp *qp, struct card_wqe *wqe)
{
	struct card_memory_ref memory;
	struct card_qp *other;

	if (!card_has_data(wqe) || wqe->status != IB_WC_SUCCESS || qp->ibqp.qp_type != IB_QPT_RC)
		return;
	if (card_loses_ack(qp->card)) {
		wqe->status = IB_WC_RETRY_EXC_ERR;
		return;
	}
	if (wqe->opcode == IB_WR_RDMA_READ) {
		if (wqe->placed)
			return;
		other = card_other_end(qp);
		if (other)
			card_move(qp, other, wqe);
		else
			wqe->status = IB_WC_RETRY_EXC_ERR;
		return;
	}
	/* In the same breath nothing can have changed. */
	if (!wqe->ack_at)
		return;
	memory = card_local(qp, wqe, false);
	read_lock(&card_memory);
	if (!card_touch(&memory, wqe->length))
		wqe->status = IB_WC_LOC_PROT_ERR;
	read_unlock(&card_memory);
}

/* Completes the oldest work request that was sent, if its acknowledgement is there. */
static bool card_acknowledge(struct card_qp *qp)
{
	enum ib_wc_status status;
	struct card_wqe *wqe;
	u32 index = qp->sq_done;

	if (index == qp->sq_sent)
		return false;
	wqe = card_wqe(qp, index);
	if (wqe->status == IB_WC_SUCCESS && wqe->ack_at && ktime_before(ktime_get(), wqe->ack_at))
		return false;
	card_finish(qp, wqe);
	if (wqe->opcode == IB_WR_RDMA_READ) {
		qp->reads_out--;
		atomic64_inc(&qp->card->reads);
	}
	qp->sq_done++;
	atomic64_inc(&qp->card->sends);
	status = wqe->status;
	/* Once it has completed its place may be used again. */
	if (status != IB_WC_SUCCESS || qp->signal_all || (wqe->flags & IB_SEND_SIGNALED))
		card_push_send(qp, wqe, index, status);
	if (unlikely(status != IB_WC_SUCCESS) && qp->ibqp.qp_type == IB_QPT_RC)
		card_break_qp(qp, 0);
	return true;
}

/* Before it was sent. */
static void card_discard(struct card_qp *qp, const struct card_wqe *wqe)
{
	if (wqe->opcode != IB_WR_REG_MR)
		return;
	read_lock(&card_memory);
	card_drop_registration(qp, wqe);
	read_unlock(&card_memory);
}

static void card_flush(struct card_qp *qp)
{
	/* Pairs with the post's. */
	u32 head = smp_load_acquire(&qp->sq_head), index;

	for (index = qp->sq_done; index != head; index++) {
		struct card_wqe *wqe = card_wqe(qp, index);

		if (qp->sq_sent == index) {
			card_discard(qp, wqe);
			qp->sq_sent++;
		}
		qp->sq_done++;
		card_push_send(qp, wqe, index, IB_WC_WR_FLUSH_ERR);
	}
	qp->reads_out = 0;
	spin_lock(&qp->rq_lock);
	while (qp->rq_taken != qp->rq_head)
		card_push_receive(qp, IB_WC_WR_FLUSH_ERR, NULL);
	spin_unlock(&qp->rq_lock);
}

static void card_arm_timer(struct card_qp *qp)
{
	ktime_t when = KTIME_MAX;

	if (qp->sq_sent != READ_ONCE(qp->sq_head) && qp->not_before)
		when = qp->not_before;
	if (qp->sq_done != qp->sq_sent)
		when = min(when, card_wqe(qp, qp->sq_done)->ack_at);
	if (when != KTIME_MAX)
		hrtimer_start(&qp->timer, when, HRTIMER_MODE_ABS);
}

/* Works off the queues, and says how much of the budget is left; if nothing is, there may be more to do. */
static u32 card_work(struct card_qp *qp, u32 budget)
{
	while (budget && READ_ONCE(qp->state) == IB_QPS_RTS) {
		bool sent = card_send_next(qp), acknowledged = card_acknowledge(qp);

		budget--;
		if (sent || acknowledged)
			continue;
		card_arm_timer(qp);
		return budget;
	}
	if (budget && READ_ONCE(qp->state) == IB_QPS_ERR) {
		card_flush(qp);
		budget--;
	}
	return budget;
}

void card_run(struct card_qp *qp)
{
	u32 budget = CARD_BUDGET;
	unsigned long flags;
	int kicks;

	if (atomic_inc_return(&qp->kicks) != 1)
		return;
	local_irq_save(flags);
	rcu_read_lock();
	do {
		kicks = atomic_read(&qp->kicks);
		budget = card_work(qp, budget);
		if (!budget) {
			/* Pairs with the increment: the next run sees what was posted by those who left it to this one. */
			atomic_xchg(&qp->kicks, 0);
			irq_work_queue(&qp->kick);
			break;
		}
	} while (atomic_sub_return(kicks, &qp->kicks));
	rcu_read_unlock();
	local_irq_restore(flags);
}

void card_kicked(struct irq_work *work)
{
	card_run(container_of(work, struct card_qp, kick));
}

enum hrtimer_restart card_timer(struct hrtimer *timer)
{
	card_run(container_of(timer, struct card_qp, timer));
	return HRTIMER_NORESTART;
}
