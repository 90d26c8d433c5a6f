// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin of QEMU that counts how often the guest's kernel executes each block
 * of instructions, and which processors execute locked instructions on which
 * lines of memory. The counts are in a file that the bench reads while the guest
 * runs: see the layout below, and ../tracing.py.
 *
 * For one host thread that runs all processors (thread=single).
 */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "qemu_plugin.h"

__attribute__((visibility("default"))) int qemu_plugin_version = 4;

#define BLOCKS	(1u << 19)
#define LINES	(1u << 18)
/* The last of a table is for all that finds no place. */
#define TRIES	64

struct block {
	uint64_t addr;
	uint64_t insns;
	uint64_t runs;
};

struct line {
	uint64_t insn;
	uint64_t line;
	uint64_t cpu;
	uint64_t runs;
};

static struct {
	struct block blocks[BLOCKS];
	struct line lines[LINES];
} *table;

static int in_kernel(uint64_t addr)
{
	return addr >> 63;
}

static uint64_t hash(uint64_t a, uint64_t b)
{
	a = (a ^ (b * 0x9e3779b97f4a7c15ull)) * 0xff51afd7ed558ccdull;
	return a ^ (a >> 32);
}

static struct block *find_block(uint64_t addr, uint64_t insns)
{
	for (unsigned int i = 0; i < TRIES; i++) {
		struct block *block = &table->blocks[(hash(addr, insns) + i) % (BLOCKS - 1)];

		if (!block->insns) {
			block->addr = addr;
			block->insns = insns;
		}
		if (block->addr == addr && block->insns == insns)
			return block;
	}
	return NULL;
}

static void on_block(unsigned int cpu, void *data)
{
	(void)cpu;
	((struct block *)data)->runs++;
}

static void on_locked(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t addr, void *data)
{
	uint64_t insn = (uint64_t)(uintptr_t)data, at = addr / 64;

	(void)info;
	for (unsigned int i = 0; i < TRIES; i++) {
		struct line *line = &table->lines[(hash(insn, at + cpu) + i) % (LINES - 1)];

		if (!line->insn) {
			line->insn = insn;
			line->line = at;
			line->cpu = cpu;
		}
		if (line->insn == insn && line->line == at && line->cpu == cpu) {
			line->runs++;
			return;
		}
	}
	table->lines[LINES - 1].runs++;
}

/* A lock prefix, or an exchange with memory, which needs none. */
static int is_locked(const struct qemu_plugin_insn *insn)
{
	uint8_t code[15] = { 0 };
	size_t length = qemu_plugin_insn_data(insn, code, sizeof(code)), i = 0;

	for (; i < length; i++) {
		if (code[i] == 0xf0)
			return 1;
		/* Other prefixes: of segments, sizes and registers. */
		if (code[i] != 0x2e && code[i] != 0x3e && code[i] != 0x65 && code[i] != 0x66 &&
		    (code[i] & 0xf0) != 0x40)
			break;
	}
	return i + 1 < length && (code[i] == 0x86 || code[i] == 0x87) && code[i + 1] < 0xc0;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t insns = qemu_plugin_tb_n_insns(tb);
	uint64_t addr = qemu_plugin_tb_vaddr(tb);
	struct block *block;

	(void)id;
	/* Programs are one block. */
	block = in_kernel(addr) ? find_block(addr, insns) : find_block(0, insns);
	if (!block)
		block = &table->blocks[BLOCKS - 1];
	qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
	if (!in_kernel(addr))
		return;
	for (size_t i = 0; i < insns; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		/* Such an instruction loads and stores: once, at its store. */
		if (is_locked(insn))
			qemu_plugin_register_vcpu_mem_cb(insn, on_locked, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W,
							 (void *)(uintptr_t)qemu_plugin_insn_vaddr(insn));
	}
}

__attribute__((visibility("default")))
int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	int fd;

	(void)info;
	if (argc != 1 || strncmp(argv[0], "counts=", 7)) {
		fprintf(stderr, "trace: needs counts=FILE\n");
		return -1;
	}
	fd = open(argv[0] + 7, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*table))) {
		perror("trace");
		return -1;
	}
	table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (table == MAP_FAILED) {
		perror("trace");
		return -1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
