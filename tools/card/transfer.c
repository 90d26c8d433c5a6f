// SPDX-License-Identifier: GPL-2.0
/* Copies between the memory of two work requests. The caller holds card_memory. */
#include "card.h"

/* The copy that hardware would make: all of it counts as the card's, and none as the kernel's. */
static __always_inline void card_copy_bytes(void *to, const void *from, u32 length)
{
#ifdef CONFIG_X86_64
	unsigned long words = length / 8, rest = length % 8;

	asm volatile("rep movsq" : "+D" (to), "+S" (from), "+c" (words) : : "memory");
	asm volatile("rep movsb" : "+D" (to), "+S" (from), "+c" (rest) : : "memory");
#else
	memcpy(to, from, length);
#endif
}

static bool card_next_entry(struct card_memory_ref *memory)
{
	const struct ib_sge *sge = memory->sge++;

	memory->sges--;
	memory->address = sge->addr;
	memory->left = sge->length;
	memory->mr = NULL;
	if (likely(sge->lkey == CARD_LOCAL_DMA_LKEY))
		return true;
	memory->mr = card_find_mr(memory->qp, sge->lkey, false, memory->wr_id);
	return memory->mr && card_check_mr(memory->qp, memory->mr, sge->addr, sge->length,
					   memory->write ? IB_ACCESS_LOCAL_WRITE : 0, memory->wr_id);
}

/* The next piece without a gap, of at most `length` bytes; NULL if it may not be accessed. */
static void *card_next_piece(struct card_memory_ref *memory, u32 *length)
{
	void *piece;
	u64 dma;

	while (!memory->left)
		if (!memory->sges || !card_next_entry(memory))
			return NULL;
	*length = min(*length, memory->left);
	if (memory->own) {
		piece = memory->own;
		memory->own += *length;
	} else {
		dma = memory->mr ? card_mr_dma(memory->mr, memory->address, length) : memory->address;
		piece = card_reach(memory->card, memory->qp, dma, length, memory->write, memory->wr_id);
	}
	memory->address += *length;
	memory->left -= *length;
	return piece;
}

enum card_copied card_copy(struct card_memory_ref *to, struct card_memory_ref *from, u32 length)
{
	u32 source_left = 0, target_left = 0, n;
	void *source = NULL, *target = NULL;

	for (; length; length -= n) {
		if (!source_left) {
			source_left = length;
			source = card_next_piece(from, &source_left);
			if (!source)
				return CARD_FROM_FAILED;
		}
		if (!target_left) {
			target_left = length;
			target = card_next_piece(to, &target_left);
			if (!target)
				return CARD_TO_FAILED;
		}
		n = min(source_left, target_left);
		card_copy_bytes(target, source, n);
		source += n;
		target += n;
		source_left -= n;
		target_left -= n;
	}
	return CARD_COPIED;
}

/* Whether all of it may be accessed now. */
bool card_touch(struct card_memory_ref *memory, u32 length)
{
	u32 n;

	for (; length; length -= n) {
		n = length;
		if (!card_next_piece(memory, &n))
			return false;
	}
	return true;
}

struct card_memory_ref card_local(struct card_qp *qp, struct card_wqe *wqe, bool write)
{
	struct card_memory_ref memory = {
		.card = qp->card, .qp = qp, .write = write, .wr_id = wqe->wr_id,
		.sge = wqe->sge, .sges = wqe->sges,
	};

	if (wqe->flags & IB_SEND_INLINE) {
		memory.own = wqe->sge;
		memory.left = wqe->length;
		memory.sges = 0;
	}
	return memory;
}

struct card_memory_ref card_received(struct card_qp *qp, const struct card_rqe *rqe)
{
	return (struct card_memory_ref) {
		.card = qp->card, .qp = qp, .write = true, .wr_id = rqe->wr_id,
		.sge = rqe->sge, .sges = rqe->sges,
	};
}
