/* SPDX-License-Identifier: GPL-2.0 */
#ifndef IBTRS_HELPER_H
#define IBTRS_HELPER_H

#include <linux/compiler_types.h>

/*
 * With CONFIG_RUST_INLINE_HELPERS the helpers are inlined into the crates that
 * call them.  bindgen ignores inline functions, so it sees them as plain ones.
 */
#if !defined(__BINDGEN__) && defined(CONFIG_RUST_INLINE_HELPERS)
#define __rust_helper __always_inline
#else
#define __rust_helper
#endif

#endif
