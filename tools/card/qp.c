// SPDX-License-Identifier: GPL-2.0
/* Queue pairs: creation, states, errors, destruction. */
#include <linux/slab.h>
#include "card.h"

/* Of all cards, so that a number names one queue pair on the wire. That of the datagrams is not here. */
static DEFINE_XARRAY_FLAGS(queue_pairs, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_IRQ);

/* Under RCU. */
struct card_qp *card_find_qp(u32 qpn)
{
	return xa_load(&queue_pairs, qpn);
}

static void card_qp_event(struct work_struct *work)
{
	struct card_qp *qp = container_of(work, struct card_qp, event);
	struct ib_event event = { .device = qp->ibqp.device, .element.qp = &qp->ibqp };

	for (event.event = IB_EVENT_QP_FATAL; event.event <= IB_EVENT_COMM_EST; event.event++)
		if (test_and_clear_bit(event.event, &qp->events) && qp->ibqp.event_handler)
			qp->ibqp.event_handler(&event, qp->ibqp.qp_context);
}

/* An asynchronous event, once until it was delivered. */
void card_raise(struct card_qp *qp, enum ib_event_type event)
{
	if (!test_and_set_bit(event, &qp->events))
		schedule_work(&qp->event);
}

/* Moves it to the error state, with an event unless that is 0; its engine flushes it a little later. */
void card_break_qp(struct card_qp *qp, enum ib_event_type event)
{
	unsigned long flags;
	bool breaks;

	spin_lock_irqsave(&qp->lock, flags);
	breaks = qp->state == IB_QPS_RTR || qp->state == IB_QPS_RTS;
	if (breaks)
		WRITE_ONCE(qp->state, IB_QPS_ERR);
	spin_unlock_irqrestore(&qp->lock, flags);
	if (!breaks)
		return;
	if (event)
		card_raise(qp, event);
	irq_work_queue(&qp->kick);
}

void card_break_all(struct card *card)
{
	struct card_qp *qp;
	unsigned long qpn;

	rcu_read_lock();
	xa_for_each(&queue_pairs, qpn, qp)
		if (qp->card == card)
			card_break_qp(qp, IB_EVENT_QP_FATAL);
	rcu_read_unlock();
}

static int card_check_caps(const struct card_profile *limits, const struct ib_qp_init_attr *attr)
{
	const struct ib_qp_cap *cap = &attr->cap;

	if (attr->srq || attr->create_flags || (attr->qp_type != IB_QPT_RC && attr->qp_type != IB_QPT_GSI))
		return -EOPNOTSUPP;
	if (cap->max_send_wr > limits->qp_wr || cap->max_recv_wr > limits->qp_wr || cap->max_send_sge > limits->sge ||
	    cap->max_recv_sge > limits->sge || cap->max_inline_data > limits->inline_bytes)
		return -EINVAL;
	return 0;
}

static int card_make_queues(struct card_qp *qp)
{
	size_t payload = max_t(size_t, qp->cap.max_send_sge * sizeof(struct ib_sge), qp->cap.max_inline_data);

	/* Verbs allow a card to give more than was asked for: no queue is without an entry. */
	qp->cap.max_send_wr = max(qp->cap.max_send_wr, 1U);
	qp->cap.max_recv_wr = max(qp->cap.max_recv_wr, 1U);
	qp->sq_mask = roundup_pow_of_two(qp->cap.max_send_wr) - 1;
	qp->rq_mask = roundup_pow_of_two(qp->cap.max_recv_wr) - 1;
	qp->sq_stride = ALIGN(sizeof(struct card_wqe) + payload, 64);
	qp->rq_stride = sizeof(struct card_rqe) + qp->cap.max_recv_sge * sizeof(struct ib_sge);
	qp->sq = card_alloc(qp->card, qp->sq_mask + 1, qp->sq_stride);
	qp->rq = card_alloc(qp->card, qp->rq_mask + 1, qp->rq_stride);
	return qp->sq && qp->rq ? 0 : -ENOMEM;
}

static void card_free_queues(struct card_qp *qp)
{
	card_free(qp->card, qp->sq, qp->sq_mask + 1, qp->sq_stride);
	card_free(qp->card, qp->rq, qp->rq_mask + 1, qp->rq_stride);
}

static int card_name_qp(struct card_qp *qp)
{
	static u32 next = 2;
	int err;

	if (qp->ibqp.qp_type == IB_QPT_GSI) {
		qp->qpn = 1;
		rcu_assign_pointer(qp->card->gsi, qp);
	} else {
		/* Cyclic: late packets for a number find nobody. */
		err = xa_alloc_cyclic_irq(&queue_pairs, &qp->qpn, qp, XA_LIMIT(2, 0xfffffe), &next, GFP_KERNEL);
		if (err < 0)
			return err;
	}
	qp->ibqp.qp_num = qp->qpn;
	return 0;
}

int card_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct card_qp *qp = to_qp(ibqp);
	int err;

	qp->card = to_card(ibqp->device);
	err = card_check_caps(qp->card->profile, attr);
	if (err)
		return err;
	if (card_fails(qp->card, "create_qp"))
		return -ENOMEM;
	qp->cap = attr->cap;
	qp->signal_all = attr->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->state = IB_QPS_RESET;
	spin_lock_init(&qp->lock);
	spin_lock_init(&qp->rq_lock);
	atomic_set(&qp->kicks, 0);
	qp->kick = IRQ_WORK_INIT(card_kicked);
	hrtimer_setup(&qp->timer, card_timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	INIT_WORK(&qp->event, card_qp_event);
	err = card_make_queues(qp);
	if (!err)
		err = card_name_qp(qp);
	if (err) {
		card_free_queues(qp);
		return err;
	}
	prandom_seed_state(&qp->random, card_seed + qp->qpn);
	attr->cap = qp->cap;
	return 0;
}

static void card_set_attributes(struct card_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	if (mask & IB_QP_ACCESS_FLAGS)
		qp->access = attr->qp_access_flags;
	if (mask & IB_QP_QKEY)
		qp->qkey = attr->qkey;
	if (mask & IB_QP_AV)
		qp->ah_attr = attr->ah_attr;
	if (mask & IB_QP_PATH_MTU)
		qp->path_mtu = attr->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		qp->timeout = attr->timeout & 31;
	if (mask & IB_QP_RETRY_CNT)
		qp->retry_cnt = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		qp->rnr_retry = attr->rnr_retry;
	if (mask & IB_QP_MIN_RNR_TIMER)
		qp->min_rnr_timer = attr->min_rnr_timer;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		qp->max_rd_atomic = attr->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		qp->max_dest_rd_atomic = attr->max_dest_rd_atomic;
	if (mask & IB_QP_DEST_QPN)
		qp->dest_qpn = attr->dest_qp_num;
	if (mask & IB_QP_RQ_PSN)
		qp->rq_psn = attr->rq_psn;
	if (mask & IB_QP_SQ_PSN)
		qp->sq_psn = attr->sq_psn;
}

/* Waits until nothing of the card uses the queue pair; nothing kicks it any longer. */
static void card_quiesce(struct card_qp *qp)
{
	/* Engines at the other end. */
	synchronize_rcu();
	irq_work_sync(&qp->kick);
	hrtimer_cancel(&qp->timer);
	while (atomic_read(&qp->kicks))
		cpu_relax();
}

/* Of work requests that neither run nor are flushed. */
static void card_drop_registrations(struct card_qp *qp)
{
	unsigned long flags;

	read_lock_irqsave(&card_memory, flags);
	for (u32 index = qp->sq_sent; index != qp->sq_head; index++) {
		const struct card_wqe *wqe = card_wqe(qp, index);

		if (wqe->opcode == IB_WR_REG_MR)
			card_drop_registration(qp, wqe);
	}
	read_unlock_irqrestore(&card_memory, flags);
}

static void card_reset(struct card_qp *qp)
{
	card_quiesce(qp);
	card_drop_registrations(qp);
	card_forget_completions(to_cq(qp->ibqp.send_cq), qp);
	card_forget_completions(to_cq(qp->ibqp.recv_cq), qp);
	qp->sq_head = 0;
	qp->sq_sent = 0;
	qp->sq_done = 0;
	qp->sq_tail = 0;
	qp->rq_head = 0;
	qp->rq_taken = 0;
	qp->rq_tail = 0;
	qp->reads_out = 0;
	qp->failed = false;
	qp->not_before = 0;
	qp->retries = 0;
	qp->rnr_retries = 0;
}

static int card_check_attributes(struct card_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	u32 reads = qp->card->profile->reads;

	if ((mask & IB_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > reads)
		return -EINVAL;
	if ((mask & IB_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > reads)
		return -EINVAL;
	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	return card_fails(qp->card, "modify_qp") ? -ENOMEM : 0;
}

/*
 * One machine plays two: the end that accepts a connection is ready first, and has its completions on the second
 * half of the processors from then on, the other end on the first half.
 */
static void card_choose_half(struct card_qp *qp)
{
	struct card_cq *cqs[] = { to_cq(qp->ibqp.send_cq), to_cq(qp->ibqp.recv_cq) };
	int half = nr_cpu_ids / 2;
	struct card_qp *other;
	bool accepts;

	rcu_read_lock();
	other = card_find_qp(qp->dest_qpn);
	accepts = !other || READ_ONCE(other->state) < IB_QPS_RTR;
	rcu_read_unlock();
	for (u32 i = 0; half && i < ARRAY_SIZE(cqs); i++)
		WRITE_ONCE(cqs[i]->cpu, cqs[i]->cpu % half + (accepts ? half : 0));
}

int card_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct card_qp *qp = to_qp(ibqp);
	enum ib_qp_state from, to;
	unsigned long flags;
	int err = card_check_attributes(qp, attr, mask);

	if (err)
		return err;
	spin_lock_irqsave(&qp->lock, flags);
	from = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : qp->state;
	to = mask & IB_QP_STATE ? attr->qp_state : from;
	if (!ib_modify_qp_is_ok(from, to, ibqp->qp_type, mask)) {
		spin_unlock_irqrestore(&qp->lock, flags);
		return -EINVAL;
	}
	card_set_attributes(qp, attr, mask);
	WRITE_ONCE(qp->state, to);
	spin_unlock_irqrestore(&qp->lock, flags);
	if (card_halves && to == IB_QPS_RTR && ibqp->qp_type == IB_QPT_RC)
		card_choose_half(qp);
	if (to == IB_QPS_RESET)
		card_reset(qp);
	else
		card_run(qp);
	return 0;
}

int card_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init)
{
	struct card_qp *qp = to_qp(ibqp);

	*attr = (struct ib_qp_attr) {
		.qp_state = qp->state, .cur_qp_state = qp->state, .path_mtu = qp->path_mtu, .qkey = qp->qkey,
		.rq_psn = qp->rq_psn, .sq_psn = qp->sq_psn, .dest_qp_num = qp->dest_qpn,
		.qp_access_flags = qp->access, .cap = qp->cap, .ah_attr = qp->ah_attr,
		.max_rd_atomic = qp->max_rd_atomic, .max_dest_rd_atomic = qp->max_dest_rd_atomic,
		.min_rnr_timer = qp->min_rnr_timer, .port_num = CARD_PORT, .timeout = qp->timeout,
		.retry_cnt = qp->retry_cnt, .rnr_retry = qp->rnr_retry,
	};
	*init = (struct ib_qp_init_attr) {
		.event_handler = ibqp->event_handler, .qp_context = ibqp->qp_context, .send_cq = ibqp->send_cq,
		.recv_cq = ibqp->recv_cq, .cap = qp->cap, .qp_type = ibqp->qp_type,
		.sq_sig_type = qp->signal_all ? IB_SIGNAL_ALL_WR : IB_SIGNAL_REQ_WR,
	};
	return 0;
}

int card_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct card_qp *qp = to_qp(ibqp);
	unsigned long flags;

	if (ibqp->qp_type == IB_QPT_GSI)
		RCU_INIT_POINTER(qp->card->gsi, NULL);
	else
		xa_erase_irq(&queue_pairs, qp->qpn);
	spin_lock_irqsave(&qp->lock, flags);
	WRITE_ONCE(qp->state, IB_QPS_RESET);
	spin_unlock_irqrestore(&qp->lock, flags);
	card_quiesce(qp);
	card_drop_registrations(qp);
	cancel_work_sync(&qp->event);
	card_forget_completions(to_cq(ibqp->send_cq), qp);
	card_forget_completions(to_cq(ibqp->recv_cq), qp);
	card_free_queues(qp);
	return 0;
}
