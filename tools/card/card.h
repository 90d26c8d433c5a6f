/* SPDX-License-Identifier: GPL-2.0 */
/*
 * rdma_card: a strict RoCE v2 device in software, for consumers in the kernel.
 *
 * Locks, outermost first: the engine of a queue pair (card_qp.kicks), card_qp.rq_lock, card_memory,
 * card_qp.lock, card_cq.lock, card_tracker.lock. No two locks of one class are held at once.
 */
#ifndef RDMA_CARD_H
#define RDMA_CARD_H

#include <linux/hrtimer.h>
#include <linux/interval_tree.h>
#include <linux/irq_work.h>
#include <linux/platform_device.h>
#include <linux/prandom.h>
#include <linux/smp.h>
#include <linux/xarray.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#define CARD_PORT 1
#define CARD_GIDS 64
/* No region has index 0, hence none has a key like this. */
#define CARD_LOCAL_DMA_LKEY 0xcau
#define CARD_GRH_BYTES 40

/* What a consumer did that no card would allow. The names in report.c have the same order. */
enum card_report {
	CARD_UNMAPPED,
	CARD_PAST_END,
	CARD_DIRECTION,
	CARD_NOT_SYNCED,
	CARD_NOT_RETURNED,
	CARD_BAD_LKEY,
	CARD_BAD_RKEY,
	CARD_WRONG_PD,
	CARD_NO_RIGHT,
	CARD_OUT_OF_BOUNDS,
	CARD_MR_NOT_FREE,
	CARD_MR_KEY,
	CARD_PAGE_LIST_BUSY,
	CARD_TOO_MANY_SGES,
	CARD_TOO_LONG,
	CARD_SQ_FULL,
	CARD_RQ_FULL,
	CARD_CQ_FULL,
	CARD_WRONG_STATE,
	CARD_BAD_OPCODE,
	CARD_NO_RECEIVE,
	CARD_RECEIVE_TOO_SHORT,
	CARD_MR_BUSY,
	CARD_TOO_MANY_READS,
	CARD_BAD_UNMAP,
	CARD_REPORTS,
};

enum card_copied { CARD_COPIED, CARD_FROM_FAILED, CARD_TO_FAILED };

/* The limits of one kind of card. */
struct card_profile {
	const char *name;
	u32 qp_wr;
	u32 sge;
	u32 sge_read;
	u32 cqe;
	u32 page_list;
	u32 reads;
	u32 vectors;
	u32 inline_bytes;
	u32 qps;
	u32 mrs;
};

/* The mappings for DMA that exist, as the kernel's tracepoints told. */
struct card_tracker {
	/* Of what follows. */
	spinlock_t lock;
	struct rb_root_cached mappings;
	u64 count;
	/* A mapping could not be noted: an unknown address proves nothing from then on. */
	bool incomplete;
};

struct card {
	struct ib_device ibdev;
	struct platform_device *parent;
	struct net_device *ndev;
	const struct card_profile *profile;
	u32 max_cqe;
	struct list_head entry;
	struct card_tracker tracker;
	/* Regions by the upper 24 bits of their keys, changed under card_memory. */
	struct xarray mrs;
	struct card_qp __rcu *gsi;
	struct dentry *folder;
	atomic64_t reports[CARD_REPORTS];
	atomic64_t sends;
	/* RDMA READs among them. */
	atomic64_t reads;
	atomic64_t receives;
	atomic64_t interrupts;
	/* Bytes of queues, completion queues and page lists. */
	atomic64_t memory;
	bool link_up;
	/* Faults, from debugfs. */
	bool port_down;
	u32 lose_acks;
	u32 hold_us;
	u32 hold_qp;
	atomic_t fail_in;
	char fail_verb[16];
};

struct card_pd {
	struct ib_pd ibpd;
};

struct card_ah {
	struct ib_ah ibah;
	union ib_gid dgid;
};

struct card_cqe {
	struct ib_wc wc;
	/* The queue pair whose queue has room again when this is polled, and the index of its work request. */
	struct card_qp *qp;
	u32 index;
	bool receive;
};

struct card_cq {
	struct ib_cq ibcq;
	struct card *card;
	/* Of the ring and of what follows. */
	spinlock_t lock;
	struct card_cqe *ring;
	/* The ring has a power of two entries, so that the indexes may wrap; `size` of them are used. */
	u32 size, mask, head, tail;
	enum ib_cq_notify_flags armed;
	bool broken;
	int cpu;
	/* Bit 0: an interrupt is on its way to that processor, from another one or from itself. */
	unsigned long pending;
	call_single_data_t interrupt;
	struct irq_work self_interrupt;
	struct work_struct event;
};

enum card_mr_state { CARD_MR_FREE, CARD_MR_VALID };

struct card_mr {
	struct ib_mr ibmr;
	struct card *card;
	enum card_mr_state state;
	/* Of the keys; the serial number is never given again. */
	u32 index;
	u64 serial;
	/* What the last registration or the allocation made valid. */
	u32 key;
	u64 iova, length;
	int access;
	u32 page_shift;
	/*
	 * Page lists: that of the registration, and the last one that ib_map_mr_sg() filled, which any number of
	 * registrations may use.
	 */
	u64 *pages[2];
	u8 live, mapped;
	u32 max_pages, filled;
	/* Registrations of the latter that are posted and have not run. */
	atomic_t busy;
};

/* A work request of a send queue; scatter entries or inline data follow it. */
struct card_wqe {
	u64 wr_id;
	enum ib_wr_opcode opcode;
	u32 flags;
	u32 length;
	union {
		__be32 imm;
		u32 inv;
	};
	union {
		struct {
			u64 address;
			u32 rkey;
		} rdma;
		struct {
			/* Not a pointer: the consumer may deregister the region at any time. */
			u64 serial;
			u64 iova, length;
			u32 index, key, page_shift;
			int access;
		} reg;
		struct {
			struct card_ah *ah;
			u32 qpn, qkey;
		} ud;
	};
	enum ib_wc_status status;
	/* When the acknowledgement is there. */
	ktime_t ack_at;
	u8 sges;
	/* The schedule was drawn; the data has been written; it is written with the acknowledgement. */
	bool drawn, placed, late;
	struct ib_sge sge[];
};

struct card_rqe {
	u64 wr_id;
	u32 sges;
	struct ib_sge sge[];
};

struct card_qp {
	struct ib_qp ibqp;
	struct card *card;
	u32 qpn;
	/* Of the state and of the posted end of the send queue. */
	spinlock_t lock;
	enum ib_qp_state state;
	struct ib_qp_cap cap;
	bool signal_all;

	/*
	 * Work requests: [tail, done) wait to be polled, [done, sent) for the acknowledgement, [sent, head) to be
	 * sent. The engine owns done and sent. Both queues have a power of two places, so that indexes may wrap.
	 */
	void *sq;
	u32 sq_stride, sq_mask, sq_head, sq_sent, sq_done, sq_tail;
	u32 reads_out;
	/* The work request that was sent last has failed; the error state follows. */
	bool failed;

	/* Of the receive queue: [tail, taken) wait to be polled, [taken, head) for messages. */
	spinlock_t rq_lock;
	void *rq;
	u32 rq_stride, rq_mask, rq_head, rq_taken, rq_tail;

	/* The engine runs while this is not zero. */
	atomic_t kicks;
	struct irq_work kick;
	struct hrtimer timer;
	ktime_t not_before;
	u32 retries, rnr_retries;
	struct rnd_state random;

	struct work_struct event;
	unsigned long events;

	/* Attributes. */
	int access;
	u32 dest_qpn;
	u32 qkey;
	u8 timeout, retry_cnt, rnr_retry, min_rnr_timer, max_rd_atomic, max_dest_rd_atomic;
	enum ib_mtu path_mtu;
	u32 sq_psn, rq_psn;
	struct rdma_ah_attr ah_attr;
	union ib_gid dgid;
	struct rcu_head rcu;
};

/* Memory that a transfer walks through: scatter entries of a queue pair, a region, or the card's own buffer. */
struct card_memory_ref {
	struct card *card;
	struct card_qp *qp;
	const struct ib_sge *sge;
	u32 sges;
	/* Instead of entries, for a remote access. */
	struct card_mr *mr;
	u64 address;
	u32 left;
	/* Instead of both. */
	void *own;
	bool write;
	u64 wr_id;
};

static inline struct card *to_card(struct ib_device *ibdev)
{
	return container_of(ibdev, struct card, ibdev);
}

static inline struct card_cq *to_cq(struct ib_cq *ibcq)
{
	return container_of(ibcq, struct card_cq, ibcq);
}

static inline struct card_mr *to_mr(struct ib_mr *ibmr)
{
	return container_of(ibmr, struct card_mr, ibmr);
}

static inline struct card_qp *to_qp(struct ib_qp *ibqp)
{
	return container_of(ibqp, struct card_qp, ibqp);
}

static inline struct card_ah *to_ah(struct ib_ah *ibah)
{
	return container_of(ibah, struct card_ah, ibah);
}

static inline struct card_wqe *card_wqe(struct card_qp *qp, u32 index)
{
	return qp->sq + (size_t)(index & qp->sq_mask) * qp->sq_stride;
}

static inline struct card_rqe *card_rqe(struct card_qp *qp, u32 index)
{
	return qp->rq + (size_t)(index & qp->rq_mask) * qp->rq_stride;
}

static inline bool card_is_up(const struct card *card)
{
	return READ_ONCE(card->link_up) && !READ_ONCE(card->port_down);
}

/* main.c */
extern struct list_head card_list;
extern bool card_timing;
extern bool card_halves;
extern u32 card_seed;
extern u32 card_max_delay_us;
extern unsigned long card_lenient;

/* device.c */
int card_add(const char *name, struct net_device *ndev);
void card_set_link(struct net_device *ndev, bool up);
void card_remove_from(struct net_device *ndev);
extern struct rdma_link_ops card_link_ops;
extern const struct device_type card_dma_type;

/* cq.c */
int card_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr, struct uverbs_attr_bundle *attrs);
int card_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata);
int card_poll_cq(struct ib_cq *ibcq, int entries, struct ib_wc *wc);
int card_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags);
void card_complete(struct card_cq *cq, const struct card_cqe *cqe, bool solicited);
void card_forget_completions(struct card_cq *cq, struct card_qp *qp);

/* mr.c */
extern rwlock_t card_memory;
struct ib_mr *card_get_dma_mr(struct ib_pd *pd, int access);
struct ib_mr *card_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_sg);
int card_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int nents, unsigned int *offset);
int card_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata);
enum ib_wc_status card_register(struct card_qp *qp, struct card_wqe *wqe);
void card_drop_registration(struct card_qp *qp, const struct card_wqe *wqe);
bool card_invalidate(struct card_qp *qp, u32 key, u64 wr_id);
struct card_mr *card_find_mr(struct card_qp *qp, u32 key, bool remote, u64 wr_id);
bool card_check_mr(struct card_qp *qp, struct card_mr *mr, u64 address, u32 length, int access, u64 wr_id);
u64 card_mr_dma(struct card_mr *mr, u64 address, u32 *length);

/* qp.c */
int card_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *udata);
int card_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int card_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init);
int card_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata);
struct card_qp *card_find_qp(u32 qpn);
void card_break_qp(struct card_qp *qp, enum ib_event_type event);
void card_raise(struct card_qp *qp, enum ib_event_type event);
void card_break_all(struct card *card);

/* post.c */
int card_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int card_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);

/* engine.c */
void card_run(struct card_qp *qp);
void card_kicked(struct irq_work *work);
enum hrtimer_restart card_timer(struct hrtimer *timer);

/* transfer.c */
enum card_copied card_copy(struct card_memory_ref *to, struct card_memory_ref *from, u32 length);
bool card_touch(struct card_memory_ref *memory, u32 length);
struct card_memory_ref card_local(struct card_qp *qp, struct card_wqe *wqe, bool write);
struct card_memory_ref card_received(struct card_qp *qp, const struct card_rqe *rqe);

/* gsi.c */
enum ib_wc_status card_send_datagram(struct card_qp *qp, struct card_wqe *wqe);

/* dma.c */
void *card_reach(struct card *card, struct card_qp *qp, u64 dma, u32 *length, bool write, u64 wr_id);

/* track.c */
int card_track_start(void);
void card_track_stop(void);
void card_tracker_init(struct card_tracker *tracker);
void card_tracker_free(struct card_tracker *tracker);
bool card_tracked(void);
int card_look_up(struct card_tracker *tracker, u64 dma, u32 length, bool write);

/* report.c */
bool card_misuse(struct card *card, struct card_qp *qp, enum card_report what, u64 wr_id, u64 address, u32 length);
void card_debugfs_init(void);
void card_debugfs_exit(void);
void card_debugfs_add(struct card *card);

/* faults.c */
bool card_fails(struct card *card, const char *verb);
bool card_loses_ack(struct card *card);
void card_faults_add(struct card *card);

/* Memory that cards have of their own or in the machine, zeroed; counted. */
static inline void *card_alloc(struct card *card, size_t n, size_t size)
{
	void *memory = kvcalloc(n, size, GFP_KERNEL);

	if (memory)
		atomic64_add(n * size, &card->memory);
	return memory;
}

static inline void card_free(struct card *card, void *memory, size_t n, size_t size)
{
	if (memory)
		atomic64_sub(n * size, &card->memory);
	kvfree(memory);
}

/* profile.c */
const struct card_profile *card_find_profile(const char *name);

#endif
