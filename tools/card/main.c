// SPDX-License-Identifier: GPL-2.0
/* The module: its parameters, and the kind of link that makes cards. */
#include <linux/module.h>
#include <linux/netdevice.h>
#include <rdma/rdma_netlink.h>
#include "card.h"

LIST_HEAD(card_list);

bool card_timing;
module_param_named(timing, card_timing, bool, 0644);
MODULE_PARM_DESC(timing, "delay and split transfers by a seeded schedule");
/* Without it the card checks no access, and costs a driver nothing when it maps: for measurements. */
static bool track = true;
module_param(track, bool, 0444);
MODULE_PARM_DESC(track, "note mappings for DMA, and check accesses");
bool card_halves;
module_param_named(halves, card_halves, bool, 0444);
MODULE_PARM_DESC(halves, "completions of the end that accepted a connection come on the second half of the processors");
u32 card_seed = 1;
module_param_named(seed, card_seed, uint, 0644);
MODULE_PARM_DESC(seed, "of the schedules of queue pairs that are created from now on");
u32 card_max_delay_us = 200;
module_param_named(max_delay_us, card_max_delay_us, uint, 0644);
MODULE_PARM_DESC(max_delay_us, "longest delay of a schedule");
/*
 * A card that writes where the processor may still read harms nobody as long as the processor only reads, and
 * the kernel's own drivers rely on that. The data that a card reads may be stale.
 */
unsigned long card_lenient = BIT(CARD_NOT_RETURNED);
module_param_named(lenient, card_lenient, ulong, 0644);
MODULE_PARM_DESC(lenient, "bit n: report n is counted, but breaks no queue pair");

static int card_netdev_event(struct notifier_block *block, unsigned long event, void *arg)
{
	struct net_device *ndev = netdev_notifier_info_to_dev(arg);

	switch (event) {
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		card_set_link(ndev, netif_running(ndev) && netif_carrier_ok(ndev));
		break;
	case NETDEV_UNREGISTER:
		card_remove_from(ndev);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block card_netdev_block = { .notifier_call = card_netdev_event };

static int __init card_init(void)
{
	int err = track ? card_track_start() : 0;

	if (err)
		return err;
	card_debugfs_init();
	err = register_netdevice_notifier(&card_netdev_block);
	if (err) {
		card_debugfs_exit();
		if (track)
			card_track_stop();
		return err;
	}
	rdma_link_register(&card_link_ops);
	return 0;
}

static void __exit card_exit(void)
{
	rdma_link_unregister(&card_link_ops);
	ib_unregister_driver(RDMA_DRIVER_UNKNOWN);
	unregister_netdevice_notifier(&card_netdev_block);
	if (track)
		card_track_stop();
	card_debugfs_exit();
	/* Memory of queue pairs and devices. */
	rcu_barrier();
}

module_init(card_init);
module_exit(card_exit);
MODULE_ALIAS_RDMA_LINK("card");
MODULE_DESCRIPTION("Strict RoCE v2 device in software");
MODULE_LICENSE("GPL");
