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
#define PROCESSORS 64
/* The last of a table is for all that finds no place. */
#define TRIES	64

struct block {
	uint64_t addr;
	uint64_t insns;
	/* By the processors below `split`, and by the others. */
	uint64_t runs[2];
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

static unsigned int split = ~0u;

/*
 * QEMU tells callbacks the number of a processor, but with one host thread it is the one for which the block was
 * translated (gen_cpu_index() in accel/tcg/plugin-gen.c). So the processor is known by the base of its data, which
 * the kernel keeps in the register GS, or keeps for itself while a program runs. The bases are in the order of the
 * processors.
 */
static struct qemu_plugin_register *kernel_gs, *programs_gs;
static struct g_byte_array *bytes;
static uint64_t bases[PROCESSORS];
static unsigned int nr_bases, processor;

static void on_processor(qemu_plugin_id_t id, unsigned int cpu)
{
	struct g_array *registers = qemu_plugin_get_registers();
	const struct qemu_plugin_reg_descriptor *list = (void *)registers->data;

	(void)id;
	(void)cpu;
	for (unsigned int i = 0; i < registers->len; i++) {
		if (!strcmp(list[i].name, "gs_base"))
			kernel_gs = list[i].handle;
		else if (!strcmp(list[i].name, "k_gs_base"))
			programs_gs = list[i].handle;
	}
}

/* Of a processor's data before it is moved, at the start, there is no number. */
static void find_processor(int kernel)
{
	unsigned int i;
	uint64_t base;

	g_byte_array_set_size(bytes, 0);
	if (qemu_plugin_read_register(kernel ? kernel_gs : programs_gs, bytes) < (int)sizeof(base))
		return;
	memcpy(&base, bytes->data, sizeof(base));
	if (processor < nr_bases && bases[processor] == base)
		return;
	if (base < 0xffff800000000000ull || base >= 0xffffffff00000000ull)
		return;
	for (i = 0; i < nr_bases && bases[i] < base; i++)
		;
	if ((i == nr_bases || bases[i] != base) && nr_bases < PROCESSORS) {
		memmove(&bases[i + 1], &bases[i], (nr_bases - i) * sizeof(*bases));
		bases[i] = base;
		nr_bases++;
	}
	processor = i;
}

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
	struct block *block = data;

	(void)cpu;
	find_processor(block->addr != 0);
	block->runs[processor >= split]++;
}

static void on_locked(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t addr, void *data)
{
	uint64_t insn = (uint64_t)(uintptr_t)data, at = addr / 64;

	(void)info;
	cpu = processor;
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
	qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_R_REGS, block);
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
	if (argc < 1 || argc > 2 || strncmp(argv[0], "counts=", 7) || (argc == 2 && strncmp(argv[1], "split=", 6))) {
		fprintf(stderr, "trace: needs counts=FILE, and takes split=PROCESSOR\n");
		return -1;
	}
	if (argc == 2)
		split = strtoul(argv[1] + 6, NULL, 10);
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
	bytes = g_byte_array_new();
	qemu_plugin_register_vcpu_init_cb(id, on_processor);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
