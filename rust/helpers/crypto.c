// SPDX-License-Identifier: GPL-2.0

#include <crypto/sha2.h>

__rust_helper void rust_helper_kx_hmac_sha256_update(struct hmac_sha256_ctx *ctx,
						     const u8 *data, size_t len)
{
	hmac_sha256_update(ctx, data, len);
}
