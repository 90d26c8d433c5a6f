// SPDX-License-Identifier: GPL-2.0

#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <net/net_namespace.h>

__rust_helper struct net *rust_helper_get_net(struct net *net)
{
	return get_net(net);
}

__rust_helper void rust_helper_put_net(struct net *net)
{
	put_net(net);
}

/* Returns NULL if the task is exiting. */
__rust_helper struct net *rust_helper_kx_current_net(void)
{
	return current->nsproxy ? current->nsproxy->net_ns : NULL;
}
