/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The input of bindgen for the bindings of this tree: headers that the kernel crate
 * does not bind, and constants that bindgen cannot evaluate itself.
 */

/* This header must come first: it defines an enum that later headers only declare. */
#include <linux/hrtimer_types.h>

#include <crypto/curve25519.h>
#include <crypto/sha2.h>
#include <linux/anon_inodes.h>
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/bio.h>
#include <linux/crc32.h>
#include <linux/hdreg.h>
#include <linux/inet.h>
#include <linux/io_uring/cmd.h>
#include <linux/mmu_notifier.h>
#include <linux/namei.h>
#include <linux/random.h>
#include <linux/ratelimit.h>
#include <linux/reboot.h>
#include <linux/trace_events.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>
#include <rdma/ib.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "../helpers/trace.h"

const blk_status_t RUST_CONST_HELPER_BLK_STS_NOTSUPP = BLK_STS_NOTSUPP;
const blk_status_t RUST_CONST_HELPER_BLK_STS_TIMEOUT = BLK_STS_TIMEOUT;
const blk_status_t RUST_CONST_HELPER_BLK_STS_NOSPC = BLK_STS_NOSPC;
const blk_status_t RUST_CONST_HELPER_BLK_STS_TRANSPORT = BLK_STS_TRANSPORT;
const blk_status_t RUST_CONST_HELPER_BLK_STS_TARGET = BLK_STS_TARGET;
const blk_status_t RUST_CONST_HELPER_BLK_STS_RESV_CONFLICT = BLK_STS_RESV_CONFLICT;
const blk_status_t RUST_CONST_HELPER_BLK_STS_MEDIUM = BLK_STS_MEDIUM;
const blk_status_t RUST_CONST_HELPER_BLK_STS_PROTECTION = BLK_STS_PROTECTION;
const blk_status_t RUST_CONST_HELPER_BLK_STS_RESOURCE = BLK_STS_RESOURCE;
const blk_status_t RUST_CONST_HELPER_BLK_STS_IOERR = BLK_STS_IOERR;
const blk_status_t RUST_CONST_HELPER_BLK_STS_AGAIN = BLK_STS_AGAIN;
const blk_status_t RUST_CONST_HELPER_BLK_STS_DEV_RESOURCE = BLK_STS_DEV_RESOURCE;
const blk_status_t RUST_CONST_HELPER_BLK_STS_OFFLINE = BLK_STS_OFFLINE;
const blk_status_t RUST_CONST_HELPER_BLK_STS_INVAL = BLK_STS_INVAL;

const blk_features_t RUST_CONST_HELPER_BLK_FEAT_WRITE_CACHE = BLK_FEAT_WRITE_CACHE;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_FUA = BLK_FEAT_FUA;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_ROTATIONAL = BLK_FEAT_ROTATIONAL;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_STABLE_WRITES = BLK_FEAT_STABLE_WRITES;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_NOWAIT = BLK_FEAT_NOWAIT;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_POLL = BLK_FEAT_POLL;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_ZONED = BLK_FEAT_ZONED;

const blk_mode_t RUST_CONST_HELPER_BLK_OPEN_READ = BLK_OPEN_READ;
const blk_mode_t RUST_CONST_HELPER_BLK_OPEN_WRITE = BLK_OPEN_WRITE;
const blk_mode_t RUST_CONST_HELPER_BLK_OPEN_EXCL = BLK_OPEN_EXCL;
const blk_mode_t RUST_CONST_HELPER_BLK_OPEN_STRICT_SCAN = BLK_OPEN_STRICT_SCAN;

const blk_opf_t RUST_CONST_HELPER_REQ_OP_MASK = REQ_OP_MASK;
const blk_opf_t RUST_CONST_HELPER_REQ_SYNC = REQ_SYNC;
const blk_opf_t RUST_CONST_HELPER_REQ_IDLE = REQ_IDLE;
const blk_opf_t RUST_CONST_HELPER_REQ_FUA = REQ_FUA;
const blk_opf_t RUST_CONST_HELPER_REQ_PREFLUSH = REQ_PREFLUSH;
const blk_opf_t RUST_CONST_HELPER_REQ_NOUNMAP = REQ_NOUNMAP;
const blk_opf_t RUST_CONST_HELPER_REQ_NOWAIT = REQ_NOWAIT;

const unsigned int RUST_CONST_HELPER_LOOKUP_BENEATH = LOOKUP_BENEATH;
const unsigned int RUST_CONST_HELPER_LOOKUP_DIRECTORY = LOOKUP_DIRECTORY;
const unsigned int RUST_CONST_HELPER_LOOKUP_FOLLOW = LOOKUP_FOLLOW;
const unsigned int RUST_CONST_HELPER_LOOKUP_NO_MAGICLINKS = LOOKUP_NO_MAGICLINKS;

const gfp_t RUST_CONST_HELPER_GFP_NOIO = GFP_NOIO;
const gfp_t RUST_CONST_HELPER___GFP_COMP = __GFP_COMP;
const gfp_t RUST_CONST_HELPER___GFP_NOMEMALLOC = __GFP_NOMEMALLOC;
const gfp_t RUST_CONST_HELPER___GFP_NORETRY = __GFP_NORETRY;
const gfp_t RUST_CONST_HELPER___GFP_RETRY_MAYFAIL = __GFP_RETRY_MAYFAIL;
const gfp_t RUST_CONST_HELPER_GFP_NOWAIT = GFP_NOWAIT;

const int RUST_CONST_HELPER_DEFAULT_RATELIMIT_INTERVAL = DEFAULT_RATELIMIT_INTERVAL;
const int RUST_CONST_HELPER_DEFAULT_RATELIMIT_BURST = DEFAULT_RATELIMIT_BURST;

const fmode_t RUST_CONST_HELPER_FMODE_NOWAIT = FMODE_NOWAIT;
const int RUST_CONST_HELPER_IOCB_NOWAIT = IOCB_NOWAIT;
