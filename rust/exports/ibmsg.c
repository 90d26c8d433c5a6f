// SPDX-License-Identifier: GPL-2.0
/*
 * Exports what the modules above this one need of its Rust code; the list is
 * made by scripts/exports.awk.
 */

#include <linux/export.h>

#define EXPORT_SYMBOL_RUST_GPL(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "ibmsg_generated.h"
