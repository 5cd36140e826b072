// SPDX-License-Identifier: Apache-2.0
/* A build without the arena: nothing is contained in it. Weak, so that the
 * arena's own definitions win where they are linked in. */
#include "arena.h"

#define OFF __attribute__((weak))

OFF enum weft_arena_mode weft_arena_mode(void)
{
	return WEFT_ARENA_OFF;
}

OFF bool weft_arena_contains(const void *p, size_t n)
{
	(void)p, (void)n;
	return false;
}

OFF bool weft_arena_torn(const void *p, size_t n)
{
	(void)p, (void)n;
	return false;
}

OFF uint64_t weft_arena_generation(void)
{
	return 0;
}

OFF size_t weft_arena_chunks(size_t first, struct weft_arena_chunk *out, size_t max)
{
	(void)first, (void)out, (void)max;
	return 0;
}
