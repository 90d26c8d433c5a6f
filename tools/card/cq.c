// SPDX-License-Identifier: GPL-2.0
/* Completion queues: a ring that can overflow, and a hard interrupt on the processor of the vector. */
#include <linux/slab.h>
#include "card.h"

static void card_interrupt(void *data)
{
	struct card_cq *cq = data;

	/* Where interrupts are threads a driver's would be one: handlers may take locks that sleep there. */
	lockdep_hardirq_threaded();
	atomic64_inc(&cq->card->interrupts);
	clear_bit(0, &cq->pending);
	/* The consumer must see a completion that came before its signal was left out as pending. */
	smp_mb__after_atomic();
	cq->ibcq.comp_handler(&cq->ibcq, cq->ibcq.cq_context);
}

static void card_self_interrupt(struct irq_work *work)
{
	card_interrupt(container_of(work, struct card_cq, self_interrupt));
}

static void card_cq_event(struct work_struct *work)
{
	struct card_cq *cq = container_of(work, struct card_cq, event);
	struct ib_event event = { .device = cq->ibcq.device, .element.cq = &cq->ibcq, .event = IB_EVENT_CQ_ERR };

	if (cq->ibcq.event_handler)
		cq->ibcq.event_handler(&event, cq->ibcq.cq_context);
}

int card_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr, struct uverbs_attr_bundle *attrs)
{
	struct card *card = to_card(ibcq->device);
	struct card_cq *cq = to_cq(ibcq);

	if (attrs || attr->flags)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > card->max_cqe || attr->comp_vector >= card->ibdev.num_comp_vectors)
		return -EINVAL;
	if (card_fails(card, "create_cq"))
		return -ENOMEM;
	cq->mask = roundup_pow_of_two(attr->cqe) - 1;
	cq->ring = card_alloc(card, cq->mask + 1, sizeof(*cq->ring));
	if (!cq->ring)
		return -ENOMEM;
	cq->card = card;
	cq->size = attr->cqe;
	cq->cpu = attr->comp_vector % nr_cpu_ids;
	spin_lock_init(&cq->lock);
	cq->self_interrupt = IRQ_WORK_INIT(card_self_interrupt);
	INIT_CSD(&cq->interrupt, card_interrupt, cq);
	INIT_WORK(&cq->event, card_cq_event);
	ibcq->cqe = attr->cqe;
	return 0;
}

int card_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct card_cq *cq = to_cq(ibcq);

	while (test_bit(0, &cq->pending))
		cpu_relax();
	irq_work_sync(&cq->self_interrupt);
	/* A handler in a hard interrupt is a reader. */
	synchronize_rcu();
	cancel_work_sync(&cq->event);
	card_free(cq->card, cq->ring, cq->mask + 1, sizeof(*cq->ring));
	return 0;
}

/* Never calls the handler itself: the caller may hold locks of the consumer. */
static void card_signal(struct card_cq *cq)
{
	int cpu = READ_ONCE(cq->cpu);

	if (test_and_set_bit(0, &cq->pending))
		return;
	if (get_cpu() == cpu || smp_call_function_single_async(cpu, &cq->interrupt))
		irq_work_queue(&cq->self_interrupt);
	put_cpu();
}

void card_complete(struct card_cq *cq, const struct card_cqe *cqe, bool solicited)
{
	bool wake = false, full = false;
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	if (unlikely(cq->head - cq->tail == cq->size)) {
		full = !cq->broken;
		cq->broken = true;
	} else {
		cq->ring[cq->head++ & cq->mask] = *cqe;
		wake = cq->armed == IB_CQ_NEXT_COMP ||
		       (cq->armed && (solicited || cqe->wc.status != IB_WC_SUCCESS));
		if (wake)
			cq->armed = 0;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	if (wake)
		card_signal(cq);
	if (unlikely(full)) {
		card_misuse(cq->card, cqe->qp, CARD_CQ_FULL, cqe->wc.wr_id, 0, cq->size);
		schedule_work(&cq->event);
	}
	if (unlikely(READ_ONCE(cq->broken)))
		card_break_qp(cqe->qp, IB_EVENT_QP_FATAL);
}

/* As in a driver for hardware, polling is what makes room in the queues of the queue pair. */
static void card_release(const struct card_cqe *cqe)
{
	if (!cqe->qp)
		return;
	if (cqe->receive)
		WRITE_ONCE(cqe->qp->rq_tail, cqe->index + 1);
	else
		WRITE_ONCE(cqe->qp->sq_tail, cqe->index + 1);
}

int card_poll_cq(struct ib_cq *ibcq, int entries, struct ib_wc *wc)
{
	struct card_cq *cq = to_cq(ibcq);
	unsigned long flags;
	int n = 0;

	spin_lock_irqsave(&cq->lock, flags);
	while (n < entries && cq->tail != cq->head) {
		const struct card_cqe *cqe = &cq->ring[cq->tail++ & cq->mask];

		card_release(cqe);
		if (cqe->qp)
			wc[n++] = cqe->wc;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	return n;
}

int card_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	struct card_cq *cq = to_cq(ibcq);
	unsigned long irq;
	int missed = 0;

	spin_lock_irqsave(&cq->lock, irq);
	if (cq->armed != IB_CQ_NEXT_COMP)
		cq->armed = flags & IB_CQ_SOLICITED_MASK;
	if (flags & IB_CQ_REPORT_MISSED_EVENTS)
		missed = cq->head != cq->tail;
	spin_unlock_irqrestore(&cq->lock, irq);
	return missed;
}

void card_forget_completions(struct card_cq *cq, struct card_qp *qp)
{
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	for (u32 i = cq->tail; i != cq->head; i++)
		if (cq->ring[i & cq->mask].qp == qp)
			cq->ring[i & cq->mask].qp = NULL;
	spin_unlock_irqrestore(&cq->lock, flags);
}
