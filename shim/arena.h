/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena: large allocations of the program placed in memory files that the
 * node can map, so that it copies them at memory speed and needs no other
 * access to the process. Opt-in by WEFT_ARENA=1, or =only where registrations
 * outside of it are to be refused; arena.c defines the interposed allocation
 * functions, which pass straight through where the variable is not set.
 */
#ifndef WEFT_ARENA_H
#define WEFT_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef WEFT_HIDDEN
#define WEFT_HIDDEN __attribute__((visibility("hidden")))
#endif

enum weft_arena_mode { WEFT_ARENA_OFF, WEFT_ARENA_ON, WEFT_ARENA_ONLY };

/* What WEFT_ARENA asked for. */
WEFT_HIDDEN enum weft_arena_mode weft_arena_mode(void);

/* One memory file mapped at base, len bytes from its offset 0. The arena keeps
 * fd (close-on-exec, sealed against shrinking and growing); use it only to
 * pass it on. */
struct weft_arena_chunk {
	void *base;
	size_t len;
	int fd;
};

/* The most chunks there can ever be. */
#define WEFT_ARENA_CHUNKS 128

/*
 * Whether [p, p+n) lies in one chunk, so that the node can reach it once that
 * chunk is announced. False for n bytes that straddle chunks, for memory the
 * program has mapped over, and in the child of a fork for memory inherited
 * from the parent. No lock: callable at any time.
 */
WEFT_HIDDEN bool weft_arena_contains(const void *p, size_t n);

/*
 * Whether [p, p+n) touches the arena's address range without being contained:
 * the node would mistake it for announced memory, so a registration of it must
 * be refused.
 */
WEFT_HIDDEN bool weft_arena_torn(const void *p, size_t n);

/* Changes whenever the list of chunks did: compare with the value at the last
 * announcement before asking for the list. */
WEFT_HIDDEN uint64_t weft_arena_generation(void);

/*
 * Copies chunks from number first on into out, at most max, and returns how
 * many it wrote. Numbers are stable and chunks are never unmapped, so a caller
 * that announced n of them goes on at n. After a fork the child starts again
 * at 0: the chunks of the parent are gone from its list (the generation tells).
 * A chunk whose descriptor the program has closed has fd -1: it cannot be
 * announced, and weft_arena_contains is false for it from then on.
 */
WEFT_HIDDEN size_t weft_arena_chunks(size_t first, struct weft_arena_chunk *out, size_t max);

#endif
