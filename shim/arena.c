// SPDX-License-Identifier: Apache-2.0
/*
 * Where arena memory comes from and goes to.
 *
 * A range of addresses is reserved once. Chunks, each a memory file of a
 * multiple of 64 MiB, are mapped into it one behind the other and never
 * unmapped; a table by 64 MiB unit finds the chunk of an address. Memory files
 * are sparse, so a chunk costs what is touched of it.
 *
 * Within a chunk, memory is handed out in runs of pages. One descriptor per
 * page, outside the memory handed out, describes the runs: that of the first
 * page carries length and state, those of the others are blank, but for the
 * last of a free run, which leads back to its first. Neighbouring free runs merge;
 * free runs hang in lists by the power of two of their length.
 *
 * fork: the pages are shared, so a child would write into its parent's
 * memory. The handler before fork copies what is in use to ordinary memory,
 * which the child then moves to the same addresses; for the child it is memory
 * like any other. What runs without the handlers (vfork, posix_spawn) must not
 * write before exec anyway; _Fork and bare system calls share.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena.h"

#define PAGE ARENA_PAGE
#define UNIT_SHIFT 26
#define UNIT (1ul << UNIT_SHIFT)
#define UNITS (1ul << 14) /* 1 TiB */
#define BINS 32
/* From this size on a freed run is given back to the kernel at once. */
#define GIVE_BACK (4ul << 20)

enum state { BLANK, FREE, USED, LOST };

/* LOST pages each form a run of their own. */
struct page {
	uint32_t n;     /* first page: length of the run */
	uint32_t back;  /* last page of a free run: its length; else 0 */
	uint8_t state;  /* first page */
	uint8_t dirty;  /* first page of a free run: it may not be all zeros */
	uint16_t chunk; /* first page of a free run in a list */
	struct page *next, **pprev;
};

struct chunk {
	char *base;
	size_t len;
	struct page *pages;
	int fd;
	dev_t dev;
	ino_t ino;
	atomic_bool shared; /* not since a fork: the program's alone */
	atomic_bool closed; /* the program has closed fd */
	atomic_size_t lost; /* pages */
	char *copy;         /* between the fork handlers */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *base;    /* of the reserved range; set once, before any chunk */
static size_t units;  /* reserved */
static size_t unit;   /* next to be used */
static struct chunk chunks[WEFT_ARENA_CHUNKS];
static atomic_size_t nchunks;
static size_t inherited; /* chunks before this one are the parent's */
static atomic_uchar unit_chunk[UNITS]; /* number of the chunk + 1 */
static struct page *bins[BINS];
static atomic_uint_fast64_t generation = 1;
static atomic_uint_fast64_t misses;

/* Between the fork handlers this thread owns the lock; handlers of others may
 * free memory then. */
static atomic_bool forking;
static pthread_t forker;

/* --- mode ---------------------------------------------------------------- */

static atomic_int mode = -1;

enum weft_arena_mode weft_arena_mode(void)
{
	int m = atomic_load_explicit(&mode, memory_order_relaxed);

	if (m < 0) {
		const char *e = secure_getenv("WEFT_ARENA");

		m = !e || !*e || !strcmp(e, "0") ? WEFT_ARENA_OFF :
		    !strcmp(e, "only") ? WEFT_ARENA_ONLY : WEFT_ARENA_ON;
		atomic_store_explicit(&mode, m, memory_order_relaxed);
	}
	return (enum weft_arena_mode)m;
}

bool arena_on(void)
{
	return weft_arena_mode() != WEFT_ARENA_OFF;
}

/* --- lock ---------------------------------------------------------------- */

static bool inside_fork(void)
{
	return atomic_load_explicit(&forking, memory_order_acquire) &&
	       pthread_equal(forker, pthread_self());
}

static bool take(void)
{
	if (inside_fork())
		return false;
	pthread_mutex_lock(&lock);
	return true;
}

static void give(bool taken)
{
	if (taken)
		pthread_mutex_unlock(&lock);
}

/* --- chunks -------------------------------------------------------------- */

static struct chunk *find(const void *p)
{
	/* units is published by the chunk that unit_chunk names. */
	size_t off = (size_t)((const char *)p - base);

	if (off >> UNIT_SHIFT >= UNITS)
		return NULL;
	unsigned int c = atomic_load_explicit(&unit_chunk[off >> UNIT_SHIFT], memory_order_acquire);

	return c ? &chunks[c - 1] : NULL;
}

bool arena_owns(const void *p)
{
	return atomic_load_explicit(&nchunks, memory_order_acquire) && find(p);
}

bool arena_overlaps(const void *p, size_t n)
{
	uintptr_t a = (uintptr_t)p, lo, hi;

	if (!n || !atomic_load_explicit(&nchunks, memory_order_acquire))
		return false;
	lo = (uintptr_t)base;
	hi = lo + UNITS * UNIT;
	if (a >= hi || (a < lo && lo - a >= n))
		return false;
	if (a < lo) {
		n -= lo - a;
		a = lo;
	}
	for (uintptr_t end = n < hi - a ? a + n : hi; a < end; a = (a / UNIT + 1) * UNIT)
		if (find((void *)a))
			return true;
	return false;
}

static bool reserve(void)
{
	struct rlimit r;
	size_t n = UNITS * UNIT;
	char *p;

	/* A limit on the address space is mostly the program's. */
	if (!getrlimit(RLIMIT_AS, &r) && r.rlim_cur != RLIM_INFINITY)
		while (n > r.rlim_cur / 4)
			n /= 4;
	for (; n >= UNIT * 2; n /= 4) {
		p = (char *)syscall(SYS_mmap, NULL, n, PROT_NONE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			continue;
		/* Units aligned to their size keep the arithmetic on addresses whole. */
		base = (char *)(((uintptr_t)p + UNIT - 1) & ~(UNIT - 1));
		units = n / UNIT - 1;
		return true;
	}
	return false;
}

/* Programs take low descriptor numbers for granted and close ranges of them. */
static int high_fd(int fd)
{
	struct rlimit r;
	rlim_t n = 4096;
	int up;

	if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < n)
		n = r.rlim_cur;
	up = fcntl(fd, F_DUPFD_CLOEXEC, (int)(n > 512 ? n - 192 : n / 2));
	if (up < 0)
		return fd;
	close(fd);
	return up;
}

/* A memory file mapped at addr, or -1. */
static int new_file(char *addr, size_t len, struct stat *st)
{
	struct rlimit r;
	int fd;

	/* Growing a file beyond the limit raises a signal. */
	if (!getrlimit(RLIMIT_FSIZE, &r) && r.rlim_cur < len)
		return -1;
	fd = (int)syscall(SYS_memfd_create, "weft-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)len) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) ||
	    fstat(fd, st) ||
	    (char *)syscall(SYS_mmap, addr, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			    fd, 0) != addr) {
		close(fd);
		return -1;
	}
	return high_fd(fd);
}

static void put_free(struct chunk *c, size_t i, size_t n, bool dirty);

/* Adds a chunk with room for need bytes. Chunks grow with their number, so that
 * the table suffices for all addresses reserved. */
static bool grow(size_t need)
{
	size_t k = atomic_load_explicit(&nchunks, memory_order_relaxed);
	size_t want = (need + UNIT - 1) >> UNIT_SHIFT, step = 1ul << (k / 4 < 10 ? k / 4 : 10);
	struct chunk *c = &chunks[k];
	struct stat st;
	struct page *pages;
	size_t size;
	int fd;

	if (k == WEFT_ARENA_CHUNKS || (!base && !reserve()))
		return false;
	if (step < want || step > units - unit)
		step = want;
	if (step > units - unit)
		return false;
	size = (step << UNIT_SHIFT) / PAGE * sizeof(*pages);
	pages = (struct page *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pages == MAP_FAILED)
		return false;
	c->base = base + (unit << UNIT_SHIFT);
	c->len = step << UNIT_SHIFT;
	c->pages = pages;
	fd = new_file(c->base, c->len, &st);
	if (fd < 0 && step > want) {
		step = want;
		c->len = step << UNIT_SHIFT;
		fd = new_file(c->base, c->len, &st);
	}
	if (fd < 0) {
		syscall(SYS_munmap, pages, size);
		return false;
	}
	c->fd = fd;
	c->dev = st.st_dev;
	c->ino = st.st_ino;
	atomic_store(&c->shared, true);
	for (size_t u = unit; u < unit + step; u++)
		atomic_store_explicit(&unit_chunk[u], (unsigned char)(k + 1), memory_order_release);
	unit += step;
	put_free(c, 0, c->len / PAGE, false);
	atomic_store_explicit(&nchunks, k + 1, memory_order_release);
	atomic_fetch_add_explicit(&generation, 1, memory_order_release);
	return true;
}

/* --- runs ---------------------------------------------------------------- */

static void set_run(struct chunk *c, size_t i, size_t n, enum state s)
{
	c->pages[i].n = (uint32_t)n;
	c->pages[i].state = s;
}

static unsigned int bin_of(size_t n)
{
	return 63u - (unsigned int)__builtin_clzl(n);
}

/* Takes the free run at i out of its list; its pages are then blank. */
static size_t unlink_free(struct chunk *c, size_t i, bool *dirty)
{
	struct page *p = &c->pages[i];

	*p->pprev = p->next;
	if (p->next)
		p->next->pprev = p->pprev;
	p->state = BLANK;
	c->pages[i + p->n - 1].back = 0;
	*dirty |= p->dirty;
	return p->n;
}

/* Makes [i, i+n), with blank pages, free, and merges it. */
static void put_free(struct chunk *c, size_t i, size_t n, bool dirty)
{
	if (!atomic_load_explicit(&c->shared, memory_order_relaxed)) {
		/* Nothing new is placed in memory that is not shared. */
		set_run(c, i, n, FREE);
		return;
	}
	if (i > 0 && c->pages[i - 1].back) {
		i -= c->pages[i - 1].back;
		n += unlink_free(c, i, &dirty);
	}
	if (i + n < c->len / PAGE && c->pages[i + n].state == FREE)
		n += unlink_free(c, i + n, &dirty);
	set_run(c, i, n, FREE);
	c->pages[i + n - 1].back = (uint32_t)n;

	struct page *p = &c->pages[i], **bin = &bins[bin_of(n)];

	p->dirty = dirty;
	p->chunk = (uint16_t)(c - chunks);
	p->next = *bin;
	p->pprev = bin;
	if (p->next)
		p->next->pprev = &p->next;
	*bin = p;
}

/* Finds n free pages at a multiple of align bytes and makes them a used run. */
static struct chunk *take_free(size_t n, size_t align, size_t *at, bool *dirty)
{
	*dirty = false;
	for (unsigned int b = bin_of(n); b < BINS; b++) {
		for (struct page *p = bins[b]; p; p = p->next) {
			struct chunk *c = &chunks[p->chunk];
			size_t i = (size_t)(p - c->pages), m = p->n;
			uintptr_t a = (uintptr_t)c->base + i * PAGE;
			size_t skip = (-a & (align - 1)) / PAGE;

			if (m < n || m - n < skip)
				continue;
			unlink_free(c, i, dirty);
			/* First the run itself: free neighbours merge up to it. */
			set_run(c, i + skip, n, USED);
			if (skip)
				put_free(c, i, skip, *dirty);
			if (m > skip + n)
				put_free(c, i + skip + n, m - skip - n, *dirty);
			*at = i + skip;
			return c;
		}
	}
	return NULL;
}

/* The first page of the run that page i lies in. */
static size_t head(const struct chunk *c, size_t i)
{
	while (c->pages[i].state == BLANK && i > 0)
		i--;
	return i;
}

/*
 * Frees pages [from, to) of the used run at i. What is left of it before and
 * behind stays used.
 */
static void release(struct chunk *c, size_t i, size_t from, size_t to, bool dirty)
{
	size_t end = i + c->pages[i].n;

	if (from > i)
		set_run(c, i, from - i, USED);
	else
		c->pages[i].state = BLANK;
	if (to < end)
		set_run(c, to, end - to, USED);
	put_free(c, from, to - from, dirty);
}

bool arena_clear(void *p, size_t n)
{
	return !madvise(p, n, MADV_REMOVE);
}

void *arena_alloc(size_t n, size_t align, bool zero)
{
	size_t pages, at;
	struct chunk *c;
	bool dirty, taken;
	int saved = errno;

	if (n > UNITS * UNIT || align > UNITS * UNIT || inside_fork())
		return NULL;
	if (align < PAGE)
		align = PAGE;
	pages = (n + PAGE - 1) / PAGE;
	arena_watch_fork();
	taken = take();
	c = take_free(pages, align, &at, &dirty);
	if (!c && grow(pages * PAGE + (align > UNIT ? align : 0)))
		c = take_free(pages, align, &at, &dirty);
	give(taken);
	errno = saved;
	if (!c) {
		atomic_fetch_add_explicit(&misses, 1, memory_order_relaxed);
		return NULL;
	}
	char *p = c->base + at * PAGE;

	if (zero && dirty && (pages < 64 || !arena_clear(p, pages * PAGE)))
		memset(p, 0, pages * PAGE);
	errno = saved;
	return p;
}

/* The chunk and first page of a pointer that arena_alloc returned. */
static struct chunk *used(const void *p, size_t *i, const char *what)
{
	struct chunk *c = find(p);
	size_t off = (size_t)((const char *)p - c->base);

	*i = off / PAGE;
	if (off % PAGE || c->pages[*i].state != USED) {
		static const char tail[] = "(): invalid pointer\n";

		(void)!write(STDERR_FILENO, what, strlen(what));
		(void)!write(STDERR_FILENO, tail, sizeof(tail) - 1);
		abort();
	}
	return c;
}

/* Gives the contents of n bytes back; returns whether anything may be left. */
static bool drop(struct chunk *c, char *p, size_t n)
{
	/* Before the fork handler of a child has run these are still its parent's
	 * pages. */
	if (inside_fork())
		return true;
	if (!atomic_load_explicit(&c->shared, memory_order_relaxed))
		return syscall(SYS_madvise, p, n, MADV_DONTNEED) != 0;
	return n < GIVE_BACK || !arena_clear(p, n);
}

void arena_free(void *p)
{
	int saved = errno;
	size_t i, n;
	bool taken = take(), dirty;
	struct chunk *c = used(p, &i, "free");

	n = c->pages[i].n;
	/* The run is still used: no other thread changes it meanwhile. */
	give(taken);
	dirty = drop(c, p, n * PAGE);
	taken = take();
	release(c, i, i, i + n, dirty);
	give(taken);
	errno = saved;
}

size_t arena_usable(const void *p)
{
	size_t i, n;
	bool taken = take();

	n = used(p, &i, "malloc_usable_size")->pages[i].n * PAGE;
	give(taken);
	return n;
}

bool arena_resize(void *p, size_t n)
{
	size_t i, have, want = (n + PAGE - 1) / PAGE;
	bool ok = true, taken;
	struct chunk *c;

	if (n > UNITS * UNIT || inside_fork())
		return false;
	taken = take();
	c = used(p, &i, "realloc");
	have = c->pages[i].n;
	if (want < have) {
		release(c, i, i + want, i + have,
			drop(c, (char *)p + want * PAGE, (have - want) * PAGE));
	} else if (want > have) {
		size_t j = i + have, more = want - have, m;
		bool dirty = false;

		ok = atomic_load_explicit(&c->shared, memory_order_relaxed) &&
		     j < c->len / PAGE && c->pages[j].state == FREE && c->pages[j].n >= more;
		if (ok) {
			m = unlink_free(c, j, &dirty);
			set_run(c, i, want, USED);
			if (m > more)
				put_free(c, j + more, m - more, dirty);
		}
	}
	give(taken);
	return ok;
}

size_t arena_rest(const void *p)
{
	struct chunk *c = find(p);
	size_t off = (size_t)((const char *)p - c->base), i, n = 0;
	bool taken = take();

	i = head(c, off / PAGE);
	if (c->pages[i].state == USED)
		n = (i + c->pages[i].n) * PAGE - off;
	give(taken);
	return n;
}

/* Calls f for each part of [p, p+n) that lies in one run of one chunk. */
static void each_part(char *p, size_t n, void (*f)(struct chunk *, size_t i, size_t from, size_t to))
{
	for (char *end = p + n; p < end;) {
		struct chunk *c = find(p);

		if (!c) {
			p = (char *)(((uintptr_t)p / UNIT + 1) * UNIT);
			continue;
		}
		size_t from = (size_t)(p - c->base) / PAGE, i = head(c, from);
		size_t to = i + c->pages[i].n, stop = (size_t)(end - c->base) / PAGE;

		if (to > stop)
			to = stop;
		f(c, i, from, to);
		p = c->base + to * PAGE;
	}
}

static void unmap_part(struct chunk *c, size_t i, size_t from, size_t to)
{
	char *p = c->base + from * PAGE;
	size_t n = (to - from) * PAGE;

	if (c->pages[i].state == USED) {
		/* The next owner of these pages may write them. */
		mprotect(p, n, PROT_READ | PROT_WRITE);
		release(c, i, from, to, drop(c, p, n));
	} else if (c->pages[i].state == LOST) {
		syscall(SYS_mmap, p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	}
}

void arena_unmap(void *p, size_t n)
{
	bool taken = take();

	each_part(p, n, unmap_part);
	give(taken);
}

static void lose_part(struct chunk *c, size_t i, size_t from, size_t to)
{
	size_t end = i + c->pages[i].n;
	bool dirty = false;

	if (c->pages[i].state == LOST)
		return;
	if (c->pages[i].state == FREE) {
		/* Without an owner: removed from the list for good. */
		if (atomic_load_explicit(&c->shared, memory_order_relaxed))
			unlink_free(c, i, &dirty);
		if (from > i)
			put_free(c, i, from - i, dirty);
		if (to < end)
			put_free(c, to, end - to, dirty);
	} else {
		if (from > i)
			set_run(c, i, from - i, USED);
		if (to < end)
			set_run(c, to, end - to, USED);
	}
	for (size_t j = from; j < to; j++)
		set_run(c, j, 1, LOST);
	atomic_fetch_add_explicit(&c->lost, to - from, memory_order_release);
}

void arena_lose(void *p, size_t n)
{
	bool taken = take();

	each_part(p, n, lose_part);
	give(taken);
}

/* --- what the verbs part calls ---------------------------------------------- */

static bool any_lost(const struct chunk *c, const char *p, size_t n)
{
	if (!n || !atomic_load_explicit(&c->lost, memory_order_acquire))
		return false;
	for (size_t i = (size_t)(p - c->base) / PAGE; i <= (size_t)(p + n - 1 - c->base) / PAGE; i++)
		if (__atomic_load_n(&c->pages[i].state, __ATOMIC_RELAXED) == LOST)
			return true;
	return false;
}

bool weft_arena_contains(const void *p, size_t n)
{
	struct chunk *c = arena_owns(p) ? find(p) : NULL;

	return c && atomic_load_explicit(&c->shared, memory_order_acquire) &&
	       !atomic_load_explicit(&c->closed, memory_order_relaxed) &&
	       n <= c->len - (size_t)((const char *)p - c->base) && !any_lost(c, p, n);
}

bool weft_arena_torn(const void *p, size_t n)
{
	const char *a = p, *end;

	if (n > UINTPTR_MAX - (uintptr_t)p)
		return false; /* the range wraps around, and so is no memory */
	end = a + n;
	while (a < end && arena_overlaps(a, (size_t)(end - a))) {
		struct chunk *c = find(a);

		if (!c) {
			a = (const char *)(((uintptr_t)a / UNIT + 1) * UNIT);
			continue;
		}
		const char *stop = c->base + c->len < end ? c->base + c->len : end;

		if (atomic_load_explicit(&c->shared, memory_order_acquire) &&
		    any_lost(c, a, (size_t)(stop - a)))
			return true;
		a = stop;
	}
	return false;
}

uint64_t weft_arena_generation(void)
{
	return atomic_load_explicit(&generation, memory_order_acquire);
}

uint64_t weft_arena_misses(void)
{
	return atomic_load_explicit(&misses, memory_order_relaxed);
}

/* Programs close descriptors they do not know, and the number may by now be
 * another file's. */
static bool fd_valid(struct chunk *c)
{
	struct stat st;

	if (!atomic_load_explicit(&c->closed, memory_order_relaxed) &&
	    (fstat(c->fd, &st) || st.st_dev != c->dev || st.st_ino != c->ino))
		atomic_store_explicit(&c->closed, true, memory_order_relaxed);
	return !atomic_load_explicit(&c->closed, memory_order_relaxed);
}

size_t weft_arena_chunks(size_t first, struct weft_arena_chunk *out, size_t max)
{
	size_t n = atomic_load_explicit(&nchunks, memory_order_acquire), k = 0;
	int saved = errno;

	for (size_t i = inherited + first; i < n && k < max; i++, k++) {
		struct chunk *c = &chunks[i];

		out[k] = (struct weft_arena_chunk){ c->base, c->len, fd_valid(c) ? c->fd : -1 };
	}
	errno = saved;
	return k;
}

/* --- fork ------------------------------------------------------------------ */

/* Copies pages [from, to) of the file, but for holes. */
static void copy_pages(struct chunk *c, size_t from, size_t to)
{
	off_t at = (off_t)(from * PAGE), end = (off_t)(to * PAGE);

	if (!fd_valid(c)) {
		memcpy(c->copy + at, c->base + at, (size_t)(end - at));
		return;
	}
	while (at < end) {
		off_t data = lseek(c->fd, at, SEEK_DATA), hole;

		if (data < 0 || data >= end)
			return;
		hole = lseek(c->fd, data, SEEK_HOLE);
		if (hole < 0 || hole > end)
			hole = end;
		/* Through the descriptor: the program may have protected the pages. */
		for (at = data; at < hole;) {
			ssize_t n = pread(c->fd, c->copy + at, (size_t)(hole - at), at);

			if (n <= 0)
				break;
			at += n;
		}
		at = hole;
	}
}

static void fork_prepare(void)
{
	pthread_mutex_lock(&lock);
	forker = pthread_self();
	atomic_store_explicit(&forking, true, memory_order_release);
	for (size_t k = inherited; k < nchunks; k++) {
		struct chunk *c = &chunks[k];

		c->copy = (char *)syscall(SYS_mmap, NULL, c->len, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (c->copy == MAP_FAILED) {
			c->copy = NULL;
			continue;
		}
		for (size_t i = 0; i < c->len / PAGE; i += c->pages[i].n)
			if (c->pages[i].state == USED)
				copy_pages(c, i, i + c->pages[i].n);
	}
}

static void fork_parent(void)
{
	for (size_t k = inherited; k < nchunks; k++) {
		if (chunks[k].copy)
			syscall(SYS_munmap, chunks[k].copy, chunks[k].len);
		chunks[k].copy = NULL;
	}
	atomic_store_explicit(&forking, false, memory_order_release);
	pthread_mutex_unlock(&lock);
}

/* Puts the child's own memory in place of [from, to). */
static void make_private(struct chunk *c, size_t from, size_t to)
{
	char *to_addr = c->base + from * PAGE;
	size_t n = (to - from) * PAGE;

	if (c->copy)
		syscall(SYS_mremap, c->copy + from * PAGE, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to_addr);
	else if (fd_valid(c))
		/* No memory for a copy: pages the child has not written follow the
		 * parent's. */
		syscall(SYS_mmap, to_addr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, c->fd,
			(off_t)(from * PAGE));
}

static void fork_child(void)
{
	for (size_t k = inherited; k < nchunks; k++) {
		struct chunk *c = &chunks[k];
		size_t from = 0, i = 0, end = c->len / PAGE;

		/* Everything but what the program has mapped over. */
		for (; i < end; i += c->pages[i].n) {
			if (c->pages[i].state != LOST)
				continue;
			if (i > from)
				make_private(c, from, i);
			from = i + 1;
		}
		if (end > from)
			make_private(c, from, end);
		if (fd_valid(c))
			close(c->fd);
		c->copy = NULL;
		atomic_store(&c->shared, false);
	}
	memset(bins, 0, sizeof(bins));
	inherited = nchunks;
	atomic_fetch_add_explicit(&generation, 1, memory_order_release);
	pthread_mutex_init(&lock, NULL);
	atomic_store_explicit(&forking, false, memory_order_release);
}

void arena_watch_fork(void)
{
	static atomic_bool done;

	if (!atomic_load_explicit(&done, memory_order_relaxed) && !atomic_exchange(&done, true))
		pthread_atfork(fork_prepare, fork_parent, fork_child);
}
