/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena: large allocations of the program placed in memory files that the
 * node can map, so that it copies them at memory speed and needs no other
 * access to the process. Opt-in by WEFT_ARENA=1, or =only where registrations
 * outside of it are to be refused. arena.c places memory; arena_libc.c defines
 * the interposed allocation functions, which pass straight through where the
 * variable is not set.
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
 * program has mapped over, for chunks with a descriptor that it has closed, and in
 * the child of a fork for memory inherited from the parent. No lock: callable
 * at any time.
 */
WEFT_HIDDEN bool weft_arena_contains(const void *p, size_t n);

/*
 * Whether the program has mapped other memory over part of [p, p+n) inside a
 * chunk. The node would reach the chunk instead, so a registration must be
 * refused. All other memory that is not contained can be reached by address.
 */
WEFT_HIDDEN bool weft_arena_torn(const void *p, size_t n);

/* Changes whenever the list of chunks did: compare with the value at the last
 * announcement before asking for the list. Never 0. */
WEFT_HIDDEN uint64_t weft_arena_generation(void);

/*
 * Copies chunks from number first on into out, at most max, and returns how
 * many it wrote. Numbers are stable and chunks are never unmapped, so a caller
 * that announced n of them goes on at n. After a fork the child starts again
 * at 0: the chunks of the parent are gone from its list (the generation differs).
 * A chunk has fd -1 if the program has closed its descriptor: it cannot be
 * announced.
 */
WEFT_HIDDEN size_t weft_arena_chunks(size_t first, struct weft_arena_chunk *out, size_t max);

/* How many large allocations went elsewhere because the arena could not grow. */
WEFT_HIDDEN uint64_t weft_arena_misses(void);

/* --- for the interposed allocation functions (arena_libc.c) only ----------- */

#define ARENA_PAGE 4096ul

/* Whether WEFT_ARENA is set. */
WEFT_HIDDEN bool arena_on(void);
/* n bytes (at least 1) at a multiple of align (a power of two) in whole pages,
 * filled with zeros if asked for; NULL where the arena cannot. */
WEFT_HIDDEN void *arena_alloc(size_t n, size_t align, bool zero);
/* Whether p lies in a chunk, also an inherited one. */
WEFT_HIDDEN bool arena_owns(const void *p);
/* p as arena_alloc returned it; anything else ends the program, as in libc. */
WEFT_HIDDEN void arena_free(void *p);
WEFT_HIDDEN size_t arena_usable(const void *p);
/* Changes the size in place; false where it cannot grow. New memory is not
 * cleared. */
WEFT_HIDDEN bool arena_resize(void *p, size_t n);
/* Bytes from p to the end of the allocation that p lies in; 0 if in none. */
WEFT_HIDDEN size_t arena_rest(const void *p);
/* Gives whole pages back, whatever allocations they belong to. */
WEFT_HIDDEN void arena_unmap(void *p, size_t n);
/* Makes whole pages read as zeros; false if the kernel refuses. */
WEFT_HIDDEN bool arena_clear(void *p, size_t n);
/* Notes that other memory is mapped at these whole pages from now on. */
WEFT_HIDDEN void arena_lose(void *p, size_t n);
/* How far [p, p+n) reaches into or beyond a chunk: whether any page of it is the
 * arena's. */
WEFT_HIDDEN bool arena_overlaps(const void *p, size_t n);
/* Registers the fork handlers, once. */
WEFT_HIDDEN void arena_watch_fork(void);

#endif
