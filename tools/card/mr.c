// SPDX-License-Identifier: GPL-2.0
/* Memory regions: keys that change and die, rights, bounds, protection domains. */
#include <linux/slab.h>
#include "card.h"

/*
 * For reading while the card uses regions, for writing while it changes one: an invalidation ends only when
 * nothing uses the region any longer.
 */
DEFINE_RWLOCK(card_memory);

#define CARD_REMOTE (IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE)

static atomic64_t last_serial;

static struct card_mr *card_new_mr(struct ib_pd *pd)
{
	struct card *card = to_card(pd->device);
	struct card_mr *mr;
	unsigned long flags;
	u32 index;
	int err;

	if (card_fails(card, "alloc_mr"))
		return ERR_PTR(-ENOMEM);
	mr = kzalloc_obj(*mr);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->card = card;
	mr->ibmr.pd = pd;
	mr->ibmr.device = pd->device;
	/* Reserved first: what is not complete cannot be found. */
	err = xa_alloc_irq(&card->mrs, &index, NULL, XA_LIMIT(1, card->profile->mrs), GFP_KERNEL);
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	mr->index = index;
	mr->serial = atomic64_inc_return(&last_serial);
	mr->key = index << 8;
	mr->ibmr.lkey = mr->key;
	mr->ibmr.rkey = mr->key;
	write_lock_irqsave(&card_memory, flags);
	xa_store(&card->mrs, index, mr, 0);
	write_unlock_irqrestore(&card_memory, flags);
	return mr;
}

struct ib_mr *card_get_dma_mr(struct ib_pd *pd, int access)
{
	struct card_mr *mr = card_new_mr(pd);

	if (IS_ERR(mr))
		return ERR_CAST(mr);
	mr->ibmr.type = IB_MR_TYPE_DMA;
	mr->length = U64_MAX;
	mr->access = access;
	WRITE_ONCE(mr->state, CARD_MR_VALID);
	return &mr->ibmr;
}

struct ib_mr *card_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_sg)
{
	struct card *card = to_card(pd->device);
	struct card_mr *mr;

	if (type != IB_MR_TYPE_MEM_REG)
		return ERR_PTR(-EOPNOTSUPP);
	if (!max_sg || max_sg > card->profile->page_list)
		return ERR_PTR(-EINVAL);
	mr = card_new_mr(pd);
	if (IS_ERR(mr))
		return ERR_CAST(mr);
	mr->ibmr.type = type;
	mr->max_pages = max_sg;
	mr->pages[0] = card_alloc(card, max_sg, sizeof(u64));
	mr->pages[1] = card_alloc(card, max_sg, sizeof(u64));
	if (mr->pages[0] && mr->pages[1])
		return &mr->ibmr;
	card_dereg_mr(&mr->ibmr, NULL);
	return ERR_PTR(-ENOMEM);
}

int card_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct card_mr *mr = to_mr(ibmr);
	unsigned long flags;

	if (atomic_read(&mr->busy))
		card_misuse(mr->card, NULL, CARD_MR_BUSY, 0, mr->ibmr.iova, 0);
	write_lock_irqsave(&card_memory, flags);
	mr->state = CARD_MR_FREE;
	xa_erase(&mr->card->mrs, mr->index);
	write_unlock_irqrestore(&card_memory, flags);
	card_free(mr->card, mr->pages[0], mr->max_pages, sizeof(u64));
	card_free(mr->card, mr->pages[1], mr->max_pages, sizeof(u64));
	kfree(mr);
	return 0;
}

static int card_set_page(struct ib_mr *ibmr, u64 address)
{
	struct card_mr *mr = to_mr(ibmr);

	if (mr->filled == mr->max_pages)
		return -ENOMEM;
	mr->pages[mr->mapped][mr->filled++] = address;
	return 0;
}

int card_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int nents, unsigned int *offset)
{
	struct card_mr *mr = to_mr(ibmr);

	/* A card reads the list when the registration runs. */
	if (atomic_read(&mr->busy))
		card_misuse(mr->card, NULL, CARD_PAGE_LIST_BUSY, 0, ibmr->iova, 0);
	mr->filled = 0;
	mr->mapped = !READ_ONCE(mr->live);
	return ib_sg_to_pages(ibmr, sg, nents, offset, card_set_page);
}

/* Of all that follows, the caller holds card_memory. */

/* The region of a registration that is posted; NULL if it was deregistered since, which was reported then. */
static struct card_mr *card_posted_mr(struct card_qp *qp, const struct card_wqe *wqe)
{
	struct card_mr *mr = xa_load(&qp->card->mrs, wqe->reg.index);

	return mr && mr->serial == wqe->reg.serial ? mr : NULL;
}

/* A registration that has not run, and does not any longer. */
void card_drop_registration(struct card_qp *qp, const struct card_wqe *wqe)
{
	struct card_mr *mr = card_posted_mr(qp, wqe);

	if (mr)
		atomic_dec(&mr->busy);
}

enum ib_wc_status card_register(struct card_qp *qp, struct card_wqe *wqe)
{
	struct card_mr *mr = card_posted_mr(qp, wqe);
	enum card_report wrong;

	if (!mr)
		return IB_WC_MW_BIND_ERR;
	atomic_dec(&mr->busy);
	if (mr->ibmr.pd != qp->ibqp.pd)
		wrong = CARD_WRONG_PD;
	else if (mr->state != CARD_MR_FREE)
		wrong = CARD_MR_NOT_FREE;
	else if (wqe->reg.key >> 8 != mr->index)
		wrong = CARD_MR_KEY;
	else if (!mr->filled)
		wrong = CARD_OUT_OF_BOUNDS;
	else if ((wqe->reg.access & IB_ACCESS_REMOTE_WRITE) && !(wqe->reg.access & IB_ACCESS_LOCAL_WRITE))
		wrong = CARD_NO_RIGHT;
	else
		goto fine;
	card_misuse(mr->card, qp, wrong, wqe->wr_id, wqe->reg.iova, wqe->reg.length);
	return IB_WC_MW_BIND_ERR;
fine:
	WRITE_ONCE(mr->live, mr->mapped);
	mr->key = wqe->reg.key;
	mr->iova = wqe->reg.iova;
	mr->length = wqe->reg.length;
	mr->page_shift = wqe->reg.page_shift;
	mr->access = wqe->reg.access;
	mr->state = CARD_MR_VALID;
	return IB_WC_SUCCESS;
}

struct card_mr *card_find_mr(struct card_qp *qp, u32 key, bool remote, u64 wr_id)
{
	struct card_mr *mr = xa_load(&qp->card->mrs, key >> 8);
	enum card_report wrong = remote ? CARD_BAD_RKEY : CARD_BAD_LKEY;

	if (mr && mr->ibmr.pd != qp->ibqp.pd)
		wrong = CARD_WRONG_PD;
	else if (mr && mr->state == CARD_MR_VALID && mr->key == key)
		return mr;
	card_misuse(qp->card, qp, wrong, wr_id, key, 0);
	return NULL;
}

bool card_invalidate(struct card_qp *qp, u32 key, u64 wr_id)
{
	struct card_mr *mr = card_find_mr(qp, key, true, wr_id);

	if (!mr)
		return false;
	mr->state = CARD_MR_FREE;
	return true;
}

bool card_check_mr(struct card_qp *qp, struct card_mr *mr, u64 address, u32 length, int access, u64 wr_id)
{
	enum card_report wrong;

	if ((mr->access & access) != access || ((access & CARD_REMOTE) & ~qp->access))
		wrong = CARD_NO_RIGHT;
	else if (address < mr->iova || length > mr->length || address - mr->iova > mr->length - length)
		wrong = CARD_OUT_OF_BOUNDS;
	else
		return true;
	card_misuse(qp->card, qp, wrong, wr_id, address, length);
	return false;
}

/* The address for DMA of a part of a region, and how much of `length` is there without a gap. */
u64 card_mr_dma(struct card_mr *mr, u64 address, u32 *length)
{
	u64 in_first, offset, page_size;

	if (mr->ibmr.type == IB_MR_TYPE_DMA)
		return address;
	page_size = 1ULL << mr->page_shift;
	in_first = mr->iova & (page_size - 1);
	offset = address - mr->iova + in_first;
	*length = min_t(u64, *length, page_size - (offset & (page_size - 1)));
	return mr->pages[mr->live][offset >> mr->page_shift] + (offset & (page_size - 1));
}
