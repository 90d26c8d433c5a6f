// SPDX-License-Identifier: GPL-2.0

#include <linux/io_uring/cmd.h>

/* What kx::file::uring keeps in a command. */
#define KX_URING_WORDS 3

__rust_helper struct file *rust_helper_kx_uring_file(struct io_uring_cmd *cmd)
{
	return cmd->file;
}

__rust_helper u32 rust_helper_kx_uring_op(struct io_uring_cmd *cmd)
{
	return cmd->cmd_op;
}

/* The program may change its entry at any time. */
__rust_helper u64 rust_helper_kx_uring_addr(struct io_uring_cmd *cmd)
{
	return READ_ONCE(cmd->sqe->addr);
}

__rust_helper u64 *rust_helper_kx_uring_words(struct io_uring_cmd *cmd)
{
	BUILD_BUG_ON(sizeof(cmd->pdu) < KX_URING_WORDS * sizeof(u64));
	return (u64 *)cmd->pdu;
}

__rust_helper void rust_helper_kx_uring_do_in_task(struct io_uring_cmd *cmd, io_req_tw_func_t func)
{
	io_uring_cmd_do_in_task_lazy(cmd, func);
}

__rust_helper struct io_uring_cmd *rust_helper_kx_uring_from_tw(struct io_tw_req tw_req)
{
	return io_uring_cmd_from_tw(tw_req);
}

/* In task work. */
__rust_helper void rust_helper_kx_uring_done_in_task(struct io_uring_cmd *cmd, s32 ret)
{
	io_uring_cmd_done(cmd, ret, IO_URING_CMD_TASK_WORK_ISSUE_FLAGS);
}

__rust_helper void rust_helper_kx_uring_done(struct io_uring_cmd *cmd, s32 ret,
					     unsigned int issue_flags)
{
	io_uring_cmd_done(cmd, ret, issue_flags);
}

__rust_helper void rust_helper_kx_uring_mark_cancelable(struct io_uring_cmd *cmd,
							unsigned int issue_flags)
{
	io_uring_cmd_mark_cancelable(cmd, issue_flags);
}
