// SPDX-License-Identifier: GPL-2.0
/* Datagrams between the queue pairs of number 1, which the connection manager talks through. */
#include <linux/ip.h>
#include <net/ip.h>
#include <rdma/ib_mad.h>
#include "card.h"

static void card_fill_headers(union rdma_network_hdr *headers, const union ib_gid *from, const union ib_gid *to,
			      enum rdma_network_type type, u32 length)
{
	struct iphdr *ip = &headers->roce4grh;

	memset(headers, 0, sizeof(*headers));
	if (type == RDMA_NETWORK_IPV4) {
		ip->version = 4;
		ip->ihl = 5;
		ip->ttl = 64;
		ip->protocol = IPPROTO_UDP;
		ip->tot_len = htons(sizeof(*ip) + length);
		memcpy(&ip->saddr, from->raw + 12, sizeof(ip->saddr));
		memcpy(&ip->daddr, to->raw + 12, sizeof(ip->daddr));
		ip->check = ip_fast_csum((u8 *)ip, ip->ihl);
		return;
	}
	headers->ibgrh.version_tclass_flow = cpu_to_be32(6U << 28);
	headers->ibgrh.paylen = htons(length);
	headers->ibgrh.next_hdr = IPPROTO_UDP;
	headers->ibgrh.hop_limit = 64;
	headers->ibgrh.sgid = *from;
	headers->ibgrh.dgid = *to;
}

/* The card that has a GID, under RCU. */
static struct card *card_with_gid(const union ib_gid *gid)
{
	const struct ib_gid_attr *attr;
	struct card *card;

	list_for_each_entry_rcu(card, &card_list, entry) {
		attr = rdma_find_gid_by_port(&card->ibdev, gid, IB_GID_TYPE_ROCE_UDP_ENCAP, CARD_PORT, NULL);
		if (IS_ERR(attr))
			continue;
		rdma_put_gid_attr(attr);
		return card;
	}
	return NULL;
}

static void card_deliver(struct card_qp *qp, struct card_qp *other, struct card_wqe *wqe,
			 union rdma_network_hdr *headers, u8 type)
{
	const struct card_rqe *rqe = card_rqe(other, other->rq_taken);
	struct card_memory_ref to = card_received(other, rqe), from = card_local(qp, wqe, false);
	struct card_memory_ref own = { .own = headers, .left = sizeof(*headers) };
	enum card_copied copied;
	struct card_cqe cqe = {
		.wc = {
			.wr_id = rqe->wr_id, .opcode = IB_WC_RECV, .qp = &other->ibqp,
			.byte_len = wqe->length + sizeof(*headers), .src_qp = qp->ibqp.qp_num, .port_num = CARD_PORT,
			.wc_flags = IB_WC_GRH | IB_WC_WITH_NETWORK_HDR_TYPE, .network_hdr_type = type,
		},
		.qp = other, .index = other->rq_taken, .receive = true,
	};

	read_lock(&card_memory);
	copied = card_copy(&to, &own, sizeof(*headers));
	if (copied == CARD_COPIED)
		copied = card_copy(&to, &from, wqe->length);
	read_unlock(&card_memory);
	if (copied == CARD_FROM_FAILED) {
		wqe->status = IB_WC_LOC_PROT_ERR;
		return;
	}
	if (copied == CARD_TO_FAILED)
		cqe.wc.status = IB_WC_LOC_PROT_ERR;
	other->rq_taken++;
	atomic64_inc(&other->card->receives);
	card_complete(to_cq(other->ibqp.recv_cq), &cqe, true);
}

/* A datagram that nobody can receive is lost, and the sender does not know. */
enum ib_wc_status card_send_datagram(struct card_qp *qp, struct card_wqe *wqe)
{
	const struct ib_gid_attr *sgid = wqe->ud.ah->ibah.sgid_attr;
	struct card *card = card_with_gid(&wqe->ud.ah->dgid);
	struct card_qp *other = card ? rcu_dereference(card->gsi) : NULL;
	union rdma_network_hdr headers;
	u8 type;

	if (!other || wqe->ud.qpn != 1 || !card_is_up(qp->card) || !card_is_up(card))
		return IB_WC_SUCCESS;
	/* The highest bit asks for the sender's own key. */
	if ((wqe->ud.qkey & IB_QP_SET_QKEY ? qp->qkey : wqe->ud.qkey) != other->qkey)
		return IB_WC_SUCCESS;
	type = rdma_gid_attr_network_type(sgid);
	card_fill_headers(&headers, &sgid->gid, &wqe->ud.ah->dgid, type, wqe->length);
	spin_lock(&other->rq_lock);
	if (READ_ONCE(other->state) == IB_QPS_RTS && other->rq_taken != other->rq_head)
		card_deliver(qp, other, wqe, &headers, type);
	spin_unlock(&other->rq_lock);
	return wqe->status;
}
