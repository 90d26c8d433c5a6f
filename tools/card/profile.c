// SPDX-License-Identifier: GPL-2.0
/* Limits of real cards. */
#include <linux/string.h>
#include "card.h"

/*
 * From the drivers of Linux 7.3. What a driver reads from its card is what common cards of the kind tell:
 * ConnectX-5 and later for mlx5, HIP09 for hns, Thor for bnxt_re. The last is what a consumer should still do with.
 */
static const struct card_profile profiles[] = {
	{ .name = "mlx5", .qp_wr = 8192, .sge = 30, .sge_read = 30, .cqe = 4194303, .page_list = 65536, .reads = 16,
	  .vectors = 64, .inline_bytes = 448, .qps = 131072, .mrs = (1 << 24) - 1 },
	{ .name = "irdma", .qp_wr = 4063, .sge = 13, .sge_read = 13, .cqe = 1048574, .page_list = 262144, .reads = 127,
	  .vectors = 32, .inline_bytes = 101, .qps = 65536, .mrs = 1 << 20 },
	{ .name = "bnxt_re", .qp_wr = 8192, .sge = 6, .sge_read = 6, .cqe = 65535, .page_list = 512, .reads = 126,
	  .vectors = 64, .inline_bytes = 96, .qps = 65536, .mrs = 1 << 18 },
	{ .name = "hns", .qp_wr = 32768, .sge = 64, .sge_read = 64, .cqe = 4194304, .page_list = 512, .reads = 128,
	  .vectors = 64, .inline_bytes = 1024, .qps = 65536, .mrs = 1 << 20 },
	{ .name = "least", .qp_wr = 2048, .sge = 3, .sge_read = 1, .cqe = 4096, .page_list = 64, .reads = 1,
	  .vectors = 1, .inline_bytes = 0, .qps = 1024, .mrs = 1 << 16 },
};

const struct card_profile *card_find_profile(const char *name)
{
	for (u32 i = 0; i < ARRAY_SIZE(profiles); i++)
		/* Written to sysfs it ends with a line feed. */
		if (sysfs_streq(profiles[i].name, name))
			return &profiles[i];
	return NULL;
}
