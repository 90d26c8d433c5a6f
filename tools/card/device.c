// SPDX-License-Identifier: GPL-2.0
/* The device: its registration with the RDMA core, its port, and the platform device that it does DMA with. */
#include <linux/debugfs.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/tracepoint.h>
#include <net/addrconf.h>
#include <rdma/ib_mad.h>
#include <rdma/rdma_netlink.h>
#include "card.h"

static char *profile_name = "mlx5";
module_param_named(profile, profile_name, charp, 0644);
MODULE_PARM_DESC(profile, "limits of the cards that are added from now on: mlx5, irdma, bnxt_re, hns or least");

static uint max_cqe;
module_param(max_cqe, uint, 0644);
MODULE_PARM_DESC(max_cqe, "entries of completion queues of the cards that are added from now on, 0: as the profile says");

static DEFINE_MUTEX(list_lock);

/* Tells the tracker which devices are ours. */
const struct device_type card_dma_type = { .name = "rdma_card" };

static int card_query_device(struct ib_device *ibdev, struct ib_device_attr *attr, struct ib_udata *udata)
{
	const struct card_profile *limits = to_card(ibdev)->profile;

	*attr = (struct ib_device_attr) {
		.max_mr_size = U64_MAX,
		.page_size_cap = PAGE_SIZE | (PAGE_SIZE << 4) | (PAGE_SIZE << 9),
		.max_qp = limits->qps,
		.max_qp_wr = limits->qp_wr,
		.device_cap_flags = IB_DEVICE_MEM_MGT_EXTENSIONS | IB_DEVICE_RC_RNR_NAK_GEN,
		.kernel_cap_flags = IBK_LOCAL_DMA_LKEY | IBK_ALLOW_USER_UNREG,
		.max_send_sge = limits->sge,
		.max_recv_sge = limits->sge,
		.max_sge_rd = limits->sge_read,
		.max_cq = limits->qps * 2,
		.max_cqe = to_card(ibdev)->max_cqe,
		.max_mr = limits->mrs,
		.max_pd = limits->qps,
		.max_ah = limits->qps,
		.max_qp_rd_atom = limits->reads,
		.max_qp_init_rd_atom = limits->reads,
		.max_res_rd_atom = limits->reads * limits->qps,
		.atomic_cap = IB_ATOMIC_NONE,
		.masked_atomic_cap = IB_ATOMIC_NONE,
		.max_fast_reg_page_list_len = limits->page_list,
		.max_pkeys = 1,
		.local_ca_ack_delay = 16,
	};
	return 0;
}

static int card_query_port(struct ib_device *ibdev, u32 port, struct ib_port_attr *attr)
{
	struct card *card = to_card(ibdev);
	bool up = card_is_up(card);

	attr->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = CARD_GIDS;
	attr->ip_gids = true;
	attr->port_cap_flags = IB_PORT_CM_SUP;
	attr->max_msg_sz = SZ_1G;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 1;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	return 0;
}

static int card_query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

static int card_port_immutable(struct ib_device *ibdev, u32 port, struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	immutable->pkey_tbl_len = 1;
	immutable->gid_tbl_len = CARD_GIDS;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static enum rdma_link_layer card_link_layer(struct ib_device *ibdev, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int card_alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return card_fails(to_card(pd->device), "alloc_pd") ? -ENOMEM : 0;
}

static int card_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int card_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	to_ah(ibah)->dgid = rdma_ah_read_grh(init->ah_attr)->dgid;
	return 0;
}

static int card_destroy_ah(struct ib_ah *ibah, u32 flags)
{
	return 0;
}

static struct ib_mr *card_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt, int access,
				      struct ib_dmah *dmah, struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

/* Registered, and no client has seen it yet. An interface has one card, as its addresses are those of one. */
static int card_enable(struct ib_device *ibdev)
{
	struct card *card = to_card(ibdev), *other;
	int err = 0;

	mutex_lock(&list_lock);
	list_for_each_entry(other, &card_list, entry)
		if (other->ndev == card->ndev)
			err = -EEXIST;
	if (!err)
		list_add_tail_rcu(&card->entry, &card_list);
	mutex_unlock(&list_lock);
	if (!err)
		card_debugfs_add(card);
	return err;
}

static void card_release(struct ib_device *ibdev)
{
	struct card *card = to_card(ibdev);

	mutex_lock(&list_lock);
	if (!list_empty(&card->entry))
		list_del_rcu(&card->entry);
	mutex_unlock(&list_lock);
	synchronize_rcu();
	debugfs_remove(card->folder);
	xa_destroy(&card->mrs);
	dev_set_drvdata(&card->parent->dev, NULL);
	/* A probe may still have the tracker. */
	tracepoint_synchronize_unregister();
	card_tracker_free(&card->tracker);
	platform_device_unregister(card->parent);
}

static const struct ib_device_ops card_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.alloc_mr = card_alloc_mr,
	.alloc_pd = card_alloc_pd,
	.create_ah = card_create_ah,
	.create_cq = card_create_cq,
	.create_qp = card_create_qp,
	.dealloc_driver = card_release,
	.dealloc_pd = card_dealloc_pd,
	.dereg_mr = card_dereg_mr,
	.destroy_ah = card_destroy_ah,
	.destroy_cq = card_destroy_cq,
	.destroy_qp = card_destroy_qp,
	.enable_driver = card_enable,
	.get_dma_mr = card_get_dma_mr,
	.get_link_layer = card_link_layer,
	.get_port_immutable = card_port_immutable,
	.map_mr_sg = card_map_mr_sg,
	.modify_qp = card_modify_qp,
	.poll_cq = card_poll_cq,
	.post_recv = card_post_recv,
	.post_send = card_post_send,
	.query_device = card_query_device,
	.query_pkey = card_query_pkey,
	.query_port = card_query_port,
	.query_qp = card_query_qp,
	.reg_user_mr = card_reg_user_mr,
	.req_notify_cq = card_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, card_ah, ibah),
	INIT_RDMA_OBJ_SIZE(ib_cq, card_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_pd, card_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_qp, card_qp, ibqp),
};

/* The device that consumers map memory for. */
static struct platform_device *card_add_parent(struct card *card)
{
	struct platform_device *parent = platform_device_alloc("rdma_card", PLATFORM_DEVID_AUTO);
	int err;

	if (!parent)
		return ERR_PTR(-ENOMEM);
	parent->dev.type = &card_dma_type;
	err = dma_set_mask_and_coherent(&parent->dev, DMA_BIT_MASK(64));
	if (!err) {
		dma_set_max_seg_size(&parent->dev, SZ_2G);
		dma_set_seg_boundary(&parent->dev, ULONG_MAX);
		platform_set_drvdata(parent, card);
		err = platform_device_add(parent);
	}
	if (err) {
		platform_device_put(parent);
		return ERR_PTR(err);
	}
#ifdef CONFIG_DMA_NEED_SYNC
	/* The DMA API skips calls that do nothing on this machine: the tracker wants to see them. */
	if (card_tracked())
		dev_clear_dma_skip_sync(&parent->dev);
#endif
	return parent;
}

static int card_register_device(struct card *card, const char *name, struct net_device *ndev)
{
	struct ib_device *ibdev = &card->ibdev;
	int err;

	strscpy(ibdev->node_desc, "rdma_card");
	ibdev->node_type = RDMA_NODE_IB_CA;
	ibdev->phys_port_cnt = 1;
	ibdev->num_comp_vectors = min(card->profile->vectors, num_possible_cpus());
	ibdev->local_dma_lkey = CARD_LOCAL_DMA_LKEY;
	ibdev->link_ops = &card_link_ops;
	ibdev->dev.parent = &card->parent->dev;
	addrconf_addr_eui48((u8 *)&ibdev->node_guid, ndev->dev_addr);
	ib_set_device_ops(ibdev, &card_ops);
	err = ib_device_set_netdev(ibdev, ndev, CARD_PORT);
	if (err)
		return err;
	return ib_register_device(ibdev, name, &card->parent->dev);
}

int card_add(const char *name, struct net_device *ndev)
{
	const struct card_profile *profile;
	struct card *card;
	int err;

	kernel_param_lock(THIS_MODULE);
	profile = card_find_profile(profile_name);
	kernel_param_unlock(THIS_MODULE);
	if (!profile)
		return -EINVAL;
	card = ib_alloc_device(card, ibdev);
	if (!card)
		return -ENOMEM;
	INIT_LIST_HEAD(&card->entry);
	card->profile = profile;
	card->max_cqe = READ_ONCE(max_cqe) ?: profile->cqe;
	card->ndev = ndev;
	card->link_up = netif_running(ndev) && netif_carrier_ok(ndev);
	xa_init_flags(&card->mrs, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_IRQ);
	card_tracker_init(&card->tracker);
	card->parent = card_add_parent(card);
	if (IS_ERR(card->parent)) {
		err = PTR_ERR(card->parent);
		/* Only with its operations would it free what does not exist. */
		ib_dealloc_device(&card->ibdev);
		return err;
	}
	ib_mark_name_assigned_by_user(&card->ibdev);
	err = card_register_device(card, name, ndev);
	if (err) {
		ib_dealloc_device(&card->ibdev);
		return err;
	}
	return 0;
}

static int card_newlink(const char *name, struct net_device *ndev)
{
	return card_add(name, ndev);
}

static int card_dellink(struct ib_device *ibdev)
{
	return 0;
}

struct rdma_link_ops card_link_ops = {
	.type = "card",
	.newlink = card_newlink,
	.dellink = card_dellink,
};

void card_set_link(struct net_device *ndev, bool up)
{
	struct card *card;

	rcu_read_lock();
	list_for_each_entry_rcu(card, &card_list, entry)
		if (card->ndev == ndev)
			WRITE_ONCE(card->link_up, up);
	rcu_read_unlock();
}

void card_remove_from(struct net_device *ndev)
{
	struct card *card;

	/* Those in the list have not been released. */
	mutex_lock(&list_lock);
	list_for_each_entry(card, &card_list, entry) {
		if (card->ndev != ndev || !ib_device_try_get(&card->ibdev))
			continue;
		ib_unregister_device_queued(&card->ibdev);
		ib_device_put(&card->ibdev);
	}
	mutex_unlock(&list_lock);
}
