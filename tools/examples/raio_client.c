// SPDX-License-Identifier: GPL-2.0
/*
 * A client of ibmsg-raio: `raio_client put SESSION PORTAL FROM TO' and `raio_client get SESSION PORTAL FROM TO' copy a
 * file, `raio_client verify SESSION PORTAL FILE BLOCKS OPERATIONS SEED' writes and reads blocks of a file at random.
 *
 * `verify' does what fio does with --verify: each block says where it belongs and which write it is of, and has a checksum.
 * It cannot be an engine of fio, as Debian packages no headers of fio to build one with.
 */
#define _GNU_SOURCE
#include "raio.h"

#define WINDOW	(1u << 20)
#define BLOCK	4096u
/* The most blocks of one operation. */
#define MANY	(WINDOW / BLOCK)

static struct raio raio;

static void check(__s64 result, const char *what)
{
	if (result < 0)
		die(what);
}

static void open_service(const char *session, const char *portal)
{
	if (raio_connect(&raio, session, portal, new_memory(WINDOW), WINDOW))
		die(portal);
}

/* --- whole files --- */

static void put(const char *from, const char *to)
{
	int source = open(from, O_RDONLY | O_CLOEXEC);
	int file = raio_open(&raio, to, RAIO_F_WRITE | RAIO_F_CREATE | RAIO_F_TRUNCATE);
	__u64 at = 0;

	check(source, from);
	check(file, to);
	for (;;) {
		ssize_t len = read(source, raio.memory, WINDOW);

		check(len, from);
		if (!len)
			break;
		for (ssize_t done = 0; done < len;) {
			ssize_t part = raio_pwrite(&raio, file, raio.memory + done, (size_t)(len - done), at);

			check(part, to);
			done += part;
			at += (__u64)part;
		}
	}
	check(raio_fsync(&raio, file), to);
	check(raio_close(&raio, file), to);
	printf("%llu bytes\n", (unsigned long long)at);
}

static void get(const char *from, const char *to)
{
	int target = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int file = raio_open(&raio, from, 0);
	__u64 at = 0;
	ssize_t len;

	check(target, to);
	check(file, from);
	while ((len = raio_pread(&raio, file, raio.memory, WINDOW, at)) > 0) {
		if (write(target, raio.memory, (size_t)len) != len)
			die(to);
		at += (__u64)len;
	}
	check(len, from);
	if (raio_size(&raio, file) != (__s64)at)
		die("size");
	check(raio_close(&raio, file), from);
	printf("%llu bytes\n", (unsigned long long)at);
}

/* --- blocks at random --- */

struct block {
	__u64 sum;
	__u64 number;		/* of the block in the file */
	__u64 generation;	/* of the write; 0: none yet */
	__u64 words[BLOCK / 8 - 3];
};

static __u64 next_random(__u64 *state)
{
	/* splitmix64 */
	__u64 x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static __u64 sum_of(const struct block *block)
{
	const __u64 *words = &block->number;
	__u64 sum = 0;

	for (size_t i = 0; i < BLOCK / 8 - 1; i++)
		sum = (sum ^ words[i]) * 1099511628211u;
	return sum;
}

static void fill(struct block *block, __u64 number, __u64 generation)
{
	__u64 state = number << 32 ^ generation;

	block->number = number;
	block->generation = generation;
	for (size_t i = 0; i < sizeof(block->words) / 8; i++)
		block->words[i] = next_random(&state);
	block->sum = sum_of(block);
}

static void verify_block(const struct block *block, __u64 number, __u64 generation)
{
	if (block->number == number && block->generation == generation && block->sum == sum_of(block))
		return;
	fprintf(stderr, "block %llu has write %llu of block %llu, in place of write %llu; its checksum is %s\n",
		(unsigned long long)number, (unsigned long long)block->generation,
		(unsigned long long)block->number, (unsigned long long)generation,
		block->sum == sum_of(block) ? "right" : "wrong");
	exit(1);
}

static void write_blocks(int file, __u64 first, __u64 count, const __u64 *generations)
{
	struct block *blocks = (struct block *)raio.memory;

	for (__u64 i = 0; i < count; i++)
		fill(&blocks[i], first + i, generations[first + i]);
	if (raio_pwrite(&raio, file, blocks, count * BLOCK, first * BLOCK) != (ssize_t)(count * BLOCK))
		die("pwrite");
}

static void verify_blocks(int file, __u64 first, __u64 count, const __u64 *generations)
{
	struct block *blocks = (struct block *)raio.memory;

	memset(blocks, 0xa5, count * BLOCK);
	if (raio_pread(&raio, file, blocks, count * BLOCK, first * BLOCK) != (ssize_t)(count * BLOCK))
		die("pread");
	for (__u64 i = 0; i < count; i++)
		verify_block(&blocks[i], first + i, generations[first + i]);
}

static void verify(const char *path, __u64 blocks, __u64 operations, __u64 seed)
{
	int file = raio_open(&raio, path, RAIO_F_WRITE | RAIO_F_CREATE | RAIO_F_TRUNCATE);
	__u64 *generations = calloc(blocks, sizeof(*generations));
	__u64 writes = 0;

	check(file, path);
	if (!generations || !blocks)
		die("blocks");
	for (__u64 first = 0; first < blocks; first += MANY)
		write_blocks(file, first, blocks - first < MANY ? blocks - first : MANY, generations);
	for (__u64 at = 1; at <= operations; at++) {
		__u64 first = next_random(&seed) % blocks;
		__u64 count = next_random(&seed) % MANY + 1;

		/* Mostly small ones. */
		if (next_random(&seed) % 4)
			count = count % 8 + 1;
		if (count > blocks - first)
			count = blocks - first;
		if (next_random(&seed) % 2) {
			for (__u64 i = 0; i < count; i++)
				generations[first + i] = at;
			write_blocks(file, first, count, generations);
			writes++;
		} else {
			verify_blocks(file, first, count, generations);
		}
		if (at % 32 == 0)
			check(raio_fsync(&raio, file), "fsync");
	}
	for (__u64 first = 0; first < blocks; first += MANY)
		verify_blocks(file, first, blocks - first < MANY ? blocks - first : MANY, generations);
	check(raio_close(&raio, file), path);
	printf("%llu writes, %llu reads\n", (unsigned long long)writes, (unsigned long long)(operations - writes));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int is_copy = argc == 6 && (!strcmp(what, "put") || !strcmp(what, "get"));

	if (!is_copy && (argc != 8 || strcmp(what, "verify"))) {
		fprintf(stderr, "usage: %s put|get SESSION PORTAL FROM TO | verify SESSION PORTAL FILE BLOCKS OPERATIONS SEED\n",
			argv[0]);
		return 2;
	}
	open_service(argv[2], argv[3]);
	if (!strcmp(what, "put"))
		put(argv[4], argv[5]);
	else if (is_copy)
		get(argv[4], argv[5]);
	else
		verify(argv[4], strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10), strtoull(argv[7], NULL, 10));
	raio_disconnect(&raio);
	return 0;
}
