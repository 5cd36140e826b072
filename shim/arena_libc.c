// SPDX-License-Identifier: Apache-2.0
/*
 * The allocation functions in front of libc's: large requests go to the arena
 * where it is on, everything else straight on. Where it is off, each is a load,
 * a branch that is always taken, and a jump.
 *
 * Looking up the real functions may itself allocate; that comes from a small
 * static buffer and is never given back.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Linux 5.7, newer than the C library for which this is built. */
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

#include "arena.h"

#define INTERPOSE __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* From this size on a request without alignment is large. */
#define LARGE (64ul << 10)

#define FUNCTIONS(X) \
	X(malloc) X(calloc) X(realloc) X(free) X(memalign) X(posix_memalign) X(aligned_alloc) \
	X(valloc) X(pvalloc) X(malloc_usable_size) X(mmap) X(mmap64) X(munmap) X(mremap) X(madvise)

static struct {
#define X(f) __typeof__(f) *p_##f;
	FUNCTIONS(X)
#undef X
} next;

enum { UNKNOWN, OFF, ON };

/* Stored after next is complete. */
static atomic_int state;

/* --- before the real functions are known ----------------------------------- */

static _Alignas(16) char early[64 << 10];
static atomic_size_t early_used;

struct early_head {
	size_t n;
	size_t pad;
};

static bool is_early(const void *p)
{
	return (const char *)p >= early && (const char *)p < early + sizeof(early);
}

/* Zeroed: nothing of the buffer is used twice. */
static void *early_alloc(size_t n, size_t align)
{
	size_t at, old = atomic_load(&early_used);

	if (n > sizeof(early) || align > ARENA_PAGE)
		return NULL;
	if (align < 16)
		align = 16;
	do {
		uintptr_t a = (uintptr_t)early + old + sizeof(struct early_head);

		at = ((a + align - 1) & ~(align - 1)) - (uintptr_t)early;
		if (at + n > sizeof(early))
			return NULL;
	} while (!atomic_compare_exchange_weak(&early_used, &old, at + n));
	((struct early_head *)(void *)(early + at))[-1].n = n;
	return early + at;
}

static size_t early_size(const void *p)
{
	return ((const struct early_head *)p)[-1].n;
}

static atomic_int resolving;

/* Returns false to a call that the look-up itself makes. */
static __attribute__((noinline, cold)) bool resolve(void)
{
	if (atomic_load(&resolving))
		return false;
	atomic_fetch_add(&resolving, 1);
#define X(f) \
	__atomic_store_n((void **)&next.p_##f, dlsym(RTLD_NEXT, #f), __ATOMIC_RELAXED);
	FUNCTIONS(X)
#undef X
	atomic_store_explicit(&state, arena_on() ? ON : OFF, memory_order_release);
	atomic_fetch_sub(&resolving, 1);
	return true;
}

/* OFF, ON, or UNKNOWN within the look-up of the real functions. */
static inline int status(void)
{
	int s = atomic_load_explicit(&state, memory_order_acquire);

	if (unlikely(s == UNKNOWN) && resolve())
		s = atomic_load_explicit(&state, memory_order_acquire);
	return s;
}

static __attribute__((constructor)) void arena_init(void)
{
	status();
	if (arena_on())
		arena_watch_fork();
}

/* --- malloc and kin -------------------------------------------------------- */

static bool power_of_two(size_t n)
{
	return n && !(n & (n - 1));
}

static bool large(size_t align, size_t n)
{
	return n >= LARGE || (n && align >= ARENA_PAGE);
}

/* The large half of malloc, calloc and the aligned ones; NULL: not here. */
static __attribute__((noinline)) void *big(size_t n, size_t align, bool zero)
{
	return arena_alloc(n, align, zero);
}

INTERPOSE void *malloc(size_t n)
{
	int s = status();

	if (likely(s == OFF))
		return next.p_malloc(n);
	if (s == UNKNOWN)
		return early_alloc(n, 16);
	void *p = n >= LARGE ? big(n, 1, false) : NULL;

	return p ? p : next.p_malloc(n);
}

INTERPOSE void *calloc(size_t n, size_t size)
{
	int s = status();
	size_t all;

	if (likely(s == OFF))
		return next.p_calloc(n, size);
	if (__builtin_mul_overflow(n, size, &all))
		all = 0; /* libc refuses it */
	if (s == UNKNOWN)
		return early_alloc(all, 16);
	void *p = all >= LARGE ? big(all, 1, true) : NULL;

	return p ? p : next.p_calloc(n, size);
}

INTERPOSE void free(void *p)
{
	int s = status();

	if (unlikely(is_early(p)))
		return;
	if (likely(s == OFF || !arena_owns(p))) {
		/* During the look-up only what it allocated itself is freed. */
		if (likely(s != UNKNOWN))
			next.p_free(p);
		return;
	}
	arena_free(p);
}

/* A new place for p, of which n bytes at most are kept. */
static void *move(void *p, size_t have, size_t n)
{
	void *q = malloc(n);

	if (q) {
		memcpy(q, p, have < n ? have : n);
		free(p);
	}
	return q;
}

INTERPOSE void *realloc(void *p, size_t n)
{
	int s = status();

	if (unlikely(is_early(p)))
		return move(p, early_size(p), n);
	if (likely(s == OFF))
		return next.p_realloc(p, n);
	if (!p)
		return malloc(n);
	if (s == UNKNOWN)
		return NULL;
	if (!arena_owns(p)) {
		if (n < LARGE)
			return next.p_realloc(p, n);
		size_t have = next.p_malloc_usable_size(p);
		void *q = big(n, 1, false);

		if (!q)
			return next.p_realloc(p, n);
		memcpy(q, p, have < n ? have : n);
		next.p_free(p);
		return q;
	}
	if (n == 0) {
		arena_free(p);
		return NULL;
	}
	/* Small again: worth leaving the arena for. */
	if (n >= LARGE / 2 && arena_resize(p, n))
		return p;
	return move(p, arena_usable(p), n);
}

INTERPOSE size_t malloc_usable_size(void *p)
{
	int s = status();

	if (unlikely(is_early(p)))
		return early_size(p);
	if (likely(s == OFF || !p || !arena_owns(p)))
		return s == UNKNOWN ? 0 : next.p_malloc_usable_size(p);
	return arena_usable(p);
}

INTERPOSE int posix_memalign(void **out, size_t align, size_t n)
{
	int s = status();
	void *p = NULL;

	if (likely(s == OFF))
		return next.p_posix_memalign(out, align, n);
	if (s == UNKNOWN)
		return (*out = early_alloc(n, align)) ? 0 : ENOMEM;
	if (large(align, n) && power_of_two(align) && align >= sizeof(void *))
		p = big(n, align, false);
	if (!p)
		return next.p_posix_memalign(out, align, n);
	*out = p;
	return 0;
}

#define DEFINE_ALIGNED(f) \
INTERPOSE void *f(size_t align, size_t n) \
{ \
	int s = status(); \
	void *p = NULL; \
\
	if (likely(s == OFF)) \
		return next.p_##f(align, n); \
	if (s == UNKNOWN) \
		return early_alloc(n, align); \
	if (large(align, n) && power_of_two(align)) \
		p = big(n, align, false); \
	return p ? p : next.p_##f(align, n); \
}

DEFINE_ALIGNED(memalign)
DEFINE_ALIGNED(aligned_alloc)

/* The arena rounds up to whole pages in any case, which is what pvalloc adds. */
#define DEFINE_PAGES(f) \
INTERPOSE void *f(size_t n) \
{ \
	int s = status(); \
	void *p = NULL; \
\
	if (likely(s == OFF)) \
		return next.p_##f(n); \
	if (s == UNKNOWN) \
		return early_alloc(n, ARENA_PAGE); \
	if (n) \
		p = big(n, ARENA_PAGE, false); \
	return p ? p : next.p_##f(n); \
}

DEFINE_PAGES(valloc)
DEFINE_PAGES(pvalloc)

/* --- mappings -------------------------------------------------------------- */

static size_t whole_pages(size_t n)
{
	return (n + ARENA_PAGE - 1) & ~(ARENA_PAGE - 1);
}

static bool on_page(const void *p)
{
	return ((uintptr_t)p & (ARENA_PAGE - 1)) == 0;
}

static void *raw_mmap(void *addr, size_t n, int prot, int flags, int fd, off64_t off)
{
	return (void *)syscall(SYS_mmap, addr, n, prot, flags, fd, off);
}

/*
 * A mapping at a fixed address within the arena. Anonymous private memory is
 * what the arena can be itself; anything else replaces it for good.
 */
static __attribute__((noinline, cold)) void *
map_over(void *addr, size_t n, int prot, int flags, int fd, off64_t off)
{
	const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_SHARED;
	size_t all = whole_pages(n);
	void *p;

	if (all >= n && on_page(addr) && (flags & kind) == (MAP_PRIVATE | MAP_ANONYMOUS) &&
	    arena_owns(addr) && arena_rest(addr) >= all && !weft_arena_torn(addr, all) &&
	    weft_arena_contains(addr, all)) {
		if (!arena_clear(addr, all) || mprotect(addr, all, prot))
			return MAP_FAILED;
		return addr;
	}
	p = raw_mmap(addr, n, prot, flags, fd, off);
	if (p != MAP_FAILED)
		arena_lose(addr, all);
	return p;
}

#define DEFINE_MMAP(f) \
INTERPOSE void *f(void *addr, size_t n, int prot, int flags, int fd, off64_t off) \
{ \
	int s = status(); \
	void *p = NULL; \
\
	if (likely(s == OFF)) \
		return next.p_##f(addr, n, prot, flags, fd, off); \
	if (s == UNKNOWN) \
		return raw_mmap(addr, n, prot, flags, fd, off); \
	if ((flags & MAP_FIXED) && arena_overlaps(addr, n)) \
		return map_over(addr, n, prot, flags, fd, off); \
	if (!addr && n >= LARGE && prot == (PROT_READ | PROT_WRITE) && \
	    (flags & ~MAP_POPULATE) == (MAP_PRIVATE | MAP_ANONYMOUS)) \
		p = big(n, 1, true); \
	return p ? p : next.p_##f(addr, n, prot, flags, fd, off); \
}

DEFINE_MMAP(mmap)
DEFINE_MMAP(mmap64)

INTERPOSE int munmap(void *addr, size_t n)
{
	int s = status();

	if (likely(s == OFF))
		return next.p_munmap(addr, n);
	if (s == UNKNOWN)
		return (int)syscall(SYS_munmap, addr, n);
	if (likely(!arena_overlaps(addr, n)))
		return next.p_munmap(addr, n);

	size_t all = whole_pages(n);

	if (!on_page(addr) || all < n) {
		errno = EINVAL;
		return -1;
	}
	/* Only mistakes reach beyond an end of the arena; the part outside goes
	 * as it would. */
	char *a = addr, *end = a + all;

	while (a < end && !arena_owns(a)) {
		char *from = a;

		while (a < end && !arena_owns(a))
			a += ARENA_PAGE;
		if (next.p_munmap(from, (size_t)(a - from)))
			return -1;
	}
	char *stop = end;

	while (stop > a && !arena_owns(stop - ARENA_PAGE))
		stop -= ARENA_PAGE;
	arena_unmap(a, (size_t)(stop - a));
	return stop < end ? next.p_munmap(stop, (size_t)(end - stop)) : 0;
}

/* Moves the mapping at old, part of the arena. */
static __attribute__((noinline, cold)) void *
remap(void *old, size_t have, size_t want, int flags, void *to)
{
	have = whole_pages(have);
	want = whole_pages(want);
	if (!on_page(old) || !want || !have || have > arena_rest(old) ||
	    (flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED))) {
		errno = EINVAL;
		return MAP_FAILED;
	}
	if (!(flags & MREMAP_FIXED)) {
		if (want <= have) {
			if (want < have)
				arena_unmap((char *)old + want, have - want);
			return old;
		}
		if (!(flags & MREMAP_MAYMOVE)) {
			errno = ENOMEM;
			return MAP_FAILED;
		}
	}
	void *p = flags & MREMAP_FIXED ?
		mmap(to, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) :
		mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return p;
	memcpy(p, old, have < want ? have : want);
	arena_unmap(old, have);
	return p;
}

INTERPOSE void *mremap(void *old, size_t have, size_t want, int flags, ...)
{
	int s = status();
	void *to = NULL;

	if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) {
		va_list ap;

		va_start(ap, flags);
		to = va_arg(ap, void *);
		va_end(ap);
	}
	if (unlikely(s == ON && arena_owns(old)))
		return remap(old, have, want, flags, to);
	if (unlikely(s == UNKNOWN))
		return (void *)syscall(SYS_mremap, old, have, want, flags, to);
	/* Onto the arena: as with a mapping of anything else. */
	void *p = next.p_mremap(old, have, want, flags, to);

	if (unlikely(s == ON && (flags & MREMAP_FIXED) && p != MAP_FAILED && arena_overlaps(to, want)))
		arena_lose(to, whole_pages(want));
	return p;
}

INTERPOSE int madvise(void *addr, size_t n, int advice)
{
	int s = status();

	if (unlikely(s == UNKNOWN))
		return (int)syscall(SYS_madvise, addr, n, advice);
	/* Dropping pages of a shared mapping would leave their contents; programs
	 * count on zeros. */
	if (unlikely(s == ON && (advice == MADV_DONTNEED || advice == MADV_FREE) &&
		     on_page(addr) && weft_arena_contains(addr, n) && n))
		return arena_clear(addr, whole_pages(n)) ? 0 : -1;
	return next.p_madvise(addr, n, advice);
}
