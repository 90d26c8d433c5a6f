// SPDX-License-Identifier: GPL-2.0

#include <rdma/ib_verbs.h>

__rust_helper int rust_helper_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
					   const struct ib_send_wr **bad)
{
	return ib_post_send(qp, wr, bad);
}

__rust_helper int rust_helper_ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
					   const struct ib_recv_wr **bad)
{
	return ib_post_recv(qp, wr, bad);
}

__rust_helper void rust_helper_ib_update_fast_reg_key(struct ib_mr *mr, u8 newkey)
{
	ib_update_fast_reg_key(mr, newkey);
}

__rust_helper int rust_helper_ibdev_to_node(struct ib_device *ibdev)
{
	return ibdev_to_node(ibdev);
}

__rust_helper u32 rust_helper_ib_inc_rkey(u32 rkey)
{
	return ib_inc_rkey(rkey);
}

__rust_helper void rust_helper_sg_set_dma_len(struct scatterlist *sg, unsigned int len)
{
	sg_dma_len(sg) = len;
}
