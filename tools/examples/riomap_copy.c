// SPDX-License-Identifier: GPL-2.0
/*
 * A program in the shape of the RFC's examples, on rsocket_shim.h: `riomap_copy receive NAME FILE' maps memory at an
 * offset, `riomap_copy send SESSION NAME FILE' writes the file there, a window at a time, and gets each window back to
 * compare it.
 */
#define _DEFAULT_SOURCE
#include "rsocket_shim.h"

#define WINDOW	(1u << 20)
/* Where the memory begins for the other program. */
#define OFFSET	(1u << 16)

static void receive(const char *name, const char *path)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct rsocket *rs = raccept(rlisten(name));
	char *window = new_memory(WINDOW);
	__u64 bytes = 0, len;

	if (file < 0)
		die(path);
	if (riomap(rs, window, WINDOW, PROT_READ | PROT_WRITE, 0, OFFSET) != OFFSET)
		die("riomap");
	/* Which says that it may begin. */
	if (rsend(rs, "x", 1) < 0)
		die("rsend");
	while (rrecv(rs, &len, sizeof(len)) == sizeof(len) && len && len <= WINDOW) {
		for (__u64 at = 0; at < len;) {
			ssize_t written = write(file, window + at, len - at);

			if (written < 0)
				die(path);
			at += (__u64)written;
		}
		bytes += len;
		if (rsend(rs, "x", 1) < 0)
			die("rsend");
	}
	if (riounmap(rs, OFFSET, WINDOW))
		die("riounmap");
	rclose(rs);
	printf("%llu bytes received\n", (unsigned long long)bytes);
}

static void await(struct rsocket *rs)
{
	char byte;

	if (rrecv(rs, &byte, 1) != 1)
		die("rrecv");
}

static void send_file(const char *session, const char *name, const char *path)
{
	struct rsocket *rs = rconnect(session, name);
	char *window = new_memory(WINDOW), *again = new_memory(WINDOW);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	__u64 bytes = 0, len;

	if (file < 0)
		die(path);
	await(rs);
	do {
		ssize_t got = read(file, window, WINDOW);

		if (got < 0)
			die(path);
		len = (__u64)got;
		if (len && (riowrite(rs, window, len, OFFSET, 0) != got || rioget(rs, again, len, OFFSET, 0) != got))
			die("riowrite");
		if (len && memcmp(window, again, len)) {
			fprintf(stderr, "%s: not what was written\n", path);
			exit(1);
		}
		if (rsend(rs, &len, sizeof(len)) < 0)
			die("rsend");
		if (len)
			await(rs);
		bytes += len;
	} while (len);
	printf("%llu bytes sent\n", (unsigned long long)bytes);
	/* The memory was taken back before the other end was closed. */
	if (rrecv(rs, &len, sizeof(len)) || riowrite(rs, window, 1, OFFSET, 0) != -1 || errno != ENXIO)
		die("after the end");
	rclose(rs);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "receive")) {
		receive(argv[2], argv[3]);
		return 0;
	}
	if (argc == 5 && !strcmp(argv[1], "send")) {
		send_file(argv[2], argv[3], argv[4]);
		return 0;
	}
	fprintf(stderr, "usage: %s receive NAME FILE | send SESSION NAME FILE\n", argv[0]);
	return 2;
}
