// SPDX-License-Identifier: GPL-2.0
/* Limits of kinds of cards. */
#include <linux/string.h>
#include "card.h"

/*
 * Of each kind of card, first what its driver in Linux 7.3 sets or bounds, then what is assumed: the driver reads it
 * from the firmware, or takes it from the machine. No such card was asked.
 */
static const struct card_profile profiles[] = {
	{
		.name = "mlx5",
		/* Driver. */
		.sge = 30, .sge_read = 30,
		/* Assumed. */
		.qp_wr = 8192, .cqe = 4194303, .page_list = 65536, .reads = 16, .vectors = 64, .inline_bytes = 448,
		.qps = 131072, .mrs = (1 << 24) - 1,
	}, {
		.name = "irdma",
		/* Driver. */
		.qp_wr = 4063, .sge = 13, .sge_read = 13, .cqe = 1048574, .page_list = 262144, .reads = 127,
		.inline_bytes = 101,
		/* Assumed. */
		.vectors = 32, .qps = 65536, .mrs = 1 << 20,
	}, {
		.name = "bnxt_re",
		/* Driver. */
		.sge = 6, .sge_read = 6, .page_list = 512, .inline_bytes = 96,
		/* Assumed. */
		.qp_wr = 8192, .cqe = 65535, .reads = 126, .vectors = 64, .qps = 65536, .mrs = 1 << 18,
	}, {
		.name = "hns",
		/* Driver. */
		.page_list = 512,
		/* Assumed. */
		.qp_wr = 32768, .sge = 64, .sge_read = 64, .cqe = 4194304, .reads = 128, .vectors = 64,
		.inline_bytes = 1024, .qps = 65536, .mrs = 1 << 20,
	}, {
		/* No kind of card: what a consumer should still do with. */
		.name = "least",
		.qp_wr = 1024, .sge = 3, .sge_read = 1, .cqe = 4096, .page_list = 64, .reads = 1, .vectors = 1,
		.inline_bytes = 0, .qps = 1024, .mrs = 1 << 16,
	},
};

const struct card_profile *card_find_profile(const char *name)
{
	for (u32 i = 0; i < ARRAY_SIZE(profiles); i++)
		/* Written to sysfs it ends with a line feed. */
		if (sysfs_streq(profiles[i].name, name))
			return &profiles[i];
	return NULL;
}
