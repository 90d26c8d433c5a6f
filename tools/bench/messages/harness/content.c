// SPDX-License-Identifier: GPL-2.0
/*
 * What messages contain: eight bytes with the number, then a piece of random bytes that depends on it. Both filling
 * and checking are one copy or comparison, so that they cost little beside the transport.
 */
#include <string.h>

#include "harness.h"

#define WANTS_ANSWER	(1ull << 63)
#define SHIFTS		4096

static unsigned char pattern[MAX_BYTES + SHIFTS];

void content_init(void)
{
	uint64_t state = 0x9e3779b97f4a7c15ull;

	for (size_t i = 0; i < sizeof(pattern); i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		pattern[i] = (unsigned char)state;
	}
}

void fill(void *room, uint64_t number, bool wants_answer, size_t length)
{
	uint64_t first = number | (wants_answer ? WANTS_ANSWER : 0);

	memcpy(room, &first, sizeof(first));
	memcpy((char *)room + sizeof(first), pattern + number % SHIFTS, length - sizeof(first));
}

bool asks(const void *content)
{
	uint64_t first;

	memcpy(&first, content, sizeof(first));
	return first & WANTS_ANSWER;
}

uint64_t check(const void *content, size_t length, bool *wants_answer)
{
	uint64_t first, number;

	if (length < sizeof(first))
		fail("a message of %zu bytes", length);
	memcpy(&first, content, sizeof(first));
	number = first & ~WANTS_ANSWER;
	*wants_answer = first & WANTS_ANSWER;
	if (memcmp((const char *)content + sizeof(first), pattern + number % SHIFTS, length - sizeof(first)))
		fail("message %llu is not as it was sent", (unsigned long long)number);
	return number;
}
