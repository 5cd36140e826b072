// SPDX-License-Identifier: Apache-2.0
/*
 * The arena, linked with arena.c and arena_libc.c; their functions stand in
 * front of libc's as those of a preloaded library do. The program runs itself
 * again once for each mode. With CORE_ONLY it is linked with arena.c alone and
 * tests that, under sanitizers that bring their own malloc.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../arena.h"
#include "check.h"

/* Lookups of addresses of unwritten memory are frequent. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define KIB 1024ul
#define MIB (1024ul * KIB)

static int all_are(const void *p, int v, size_t n)
{
	const unsigned char *b = p;

	for (size_t i = 0; i < n; i++)
		if (b[i] != (unsigned char)v)
			return 0;
	return 1;
}

static int zeros(const void *p, size_t n)
{
	return all_are(p, 0, n);
}

/* Runs f in a child and returns its wait status. */
static int in_child(void (*f)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		failures = 0;
		f();
		_exit(failures != 0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	return status;
}

/* --- the core -------------------------------------------------------------- */

static uint32_t next_random(uint64_t *s)
{
	*s = *s * 6364136223846793005ul + 1442695040888963407ul;
	return (uint32_t)(*s >> 33);
}

#define SLOTS 64
#define STEPS 1500

struct slot {
	unsigned char *p;
	size_t n;
	unsigned char mark;
};

/* Every slot keeps its mark on all of its pages until it is freed. */
static int intact(const struct slot *s)
{
	for (size_t i = 0; i < s->n; i += 512)
		if (s->p[i] != s->mark)
			return 0;
	return s->p[s->n - 1] == s->mark;
}

static void mark(struct slot *s, size_t from)
{
	for (size_t i = from; i < s->n; i += 512)
		s->p[i] = s->mark;
	for (size_t i = from & ~511ul; i < s->n; i += 512)
		s->p[i] = s->mark;
	s->p[s->n - 1] = s->mark;
}

static void *stress(void *arg)
{
	uint64_t seed = (uintptr_t)arg;
	static const size_t sizes[] = { 1, 4096, 64 * KIB, 300 * KIB, 3 * MIB, 9 * MIB };
	struct slot slots[SLOTS] = { 0 };

	for (int step = 0; step < STEPS && !failures; step++) {
		struct slot *s = &slots[next_random(&seed) % SLOTS];
		uint32_t r = next_random(&seed);

		if (!s->p) {
			size_t align = 1ul << (r % 3 ? 0 : 12 + r / 3 % 10);
			int zero = r / 64 % 2;

			s->n = 1 + next_random(&seed) % sizes[r / 128 % 6];
			s->mark = (unsigned char)(1 + r / 1024 % 255);
			s->p = arena_alloc(s->n, align, zero);
			CHECK(s->p && (uintptr_t)s->p % align == 0 && (uintptr_t)s->p % 4096 == 0);
			if (!s->p)
				continue;
			CHECK(weft_arena_contains(s->p, s->n) && arena_usable(s->p) >= s->n);
			if (zero)
				for (size_t i = 0; i < s->n; i += 256)
					CHECK(s->p[i] == 0);
			mark(s, 0);
		} else if (r % 4 == 0) {
			size_t old = s->n, n = 1 + next_random(&seed) % (old * 2);

			CHECK(intact(s));
			if (arena_resize(s->p, n)) {
				s->n = n;
				mark(s, n < old ? n - 1 : old);
			}
			CHECK(intact(s));
		} else if (r % 4 == 1 && s->n > 3 * ARENA_PAGE) {
			/* Give the middle back, then the front: the rest still is a run. */
			size_t pages = arena_usable(s->p) / ARENA_PAGE;

			CHECK(intact(s));
			arena_unmap(s->p + ARENA_PAGE, ARENA_PAGE);
			CHECK(arena_rest(s->p) == ARENA_PAGE);
			CHECK(arena_rest(s->p + 2 * ARENA_PAGE) == (pages - 2) * ARENA_PAGE);
			arena_unmap(s->p, ARENA_PAGE);
			s->p += 2 * ARENA_PAGE;
			s->n -= 2 * ARENA_PAGE;
			CHECK(intact(s));
		} else {
			CHECK(intact(s));
			arena_free(s->p);
			s->p = NULL;
		}
	}
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].p) {
			CHECK(intact(&slots[i]));
			arena_free(slots[i].p);
		}
	return NULL;
}

static void core(void)
{
	struct weft_arena_chunk c[WEFT_ARENA_CHUNKS], again[2];
	uint64_t gen = weft_arena_generation();
	pthread_t t[3];
	size_t n;
	char *p, *q, *alias;

	CHECK(weft_arena_mode() != WEFT_ARENA_OFF);
	p = arena_alloc(5000, 1, true);
	CHECK(p && zeros(p, 8192) && arena_usable(p) == 8192);
	CHECK(weft_arena_contains(p, 8192) && !weft_arena_contains(&p, 8) && !weft_arena_torn(p, 8192));
	CHECK(!weft_arena_contains(p, 2048 * MIB) && !weft_arena_contains(p, SIZE_MAX));
	CHECK(gen != weft_arena_generation());
	gen = weft_arena_generation();

	/* The file behind it holds the same bytes, and is sealed. */
	n = weft_arena_chunks(0, c, WEFT_ARENA_CHUNKS);
	CHECK(n == 1 && c[0].fd >= 0);
	CHECK(fcntl(c[0].fd, F_GETFD) & FD_CLOEXEC);
	CHECK(fcntl(c[0].fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW));
	alias = mmap(NULL, c[0].len, PROT_READ | PROT_WRITE, MAP_SHARED, c[0].fd, 0);
	CHECK(alias != MAP_FAILED);
	strcpy(p + 4999, "seen");
	CHECK(!strcmp(alias + (p - (char *)c[0].base) + 4999, "seen"));

	/* What does not fit makes a chunk of its own; numbers go on. */
	q = arena_alloc(3 * c[0].len + 1, 1, false);
	CHECK(q && gen != weft_arena_generation());
	CHECK(weft_arena_chunks(0, c, WEFT_ARENA_CHUNKS) == 2 && weft_arena_chunks(1, again, 2) == 1);
	CHECK(again[0].base == c[1].base && again[0].fd == c[1].fd && weft_arena_chunks(2, again, 2) == 0);
	CHECK(weft_arena_contains(q, 3 * c[0].len + 1));
	CHECK(!weft_arena_contains((char *)c[0].base + c[0].len - 1, 2));
	q[0] = q[3 * c[0].len] = 9;
	arena_free(q);
	/* Given back: the next one starts from nothing, without new chunks. */
	q = arena_alloc(3 * c[0].len + 1, 1, true);
	CHECK(q && q[0] == 0 && q[3 * c[0].len] == 0 && weft_arena_chunks(0, c, 4) == 2);
	arena_free(q);
	CHECK(!strcmp(p + 4999, "seen"));
	arena_free(p);
	CHECK(!arena_alloc(SIZE_MAX, 1, false) && !arena_alloc(1, 1ul << 62, false));
	CHECK(weft_arena_misses() == 0); /* these cannot be served */
	q = arena_alloc(4096, 256 * MIB, false);
	CHECK(q && (uintptr_t)q % (256 * MIB) == 0);
	arena_free(q);

	for (uintptr_t i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, stress, (void *)(i + 1)) == 0);
	stress((void *)99);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);

	/* All is free and merged: what filled a whole chunk fits again. */
	n = weft_arena_chunks(0, c, WEFT_ARENA_CHUNKS);
	munmap(alias, c[0].len);
	for (size_t i = 0; i < n; i++) {
		size_t most = 0, k;

		for (k = 0; k < n; k++)
			if (c[k].len > c[most].len)
				most = k;
		p = arena_alloc(c[most].len, 1, false);
		for (k = 0; k < n && (c[k].base != p || c[k].len != c[most].len); k++)
			;
		CHECK(k < n); /* a whole chunk of that size */
		if (k < n)
			c[k].len = 0;
	}
	CHECK(weft_arena_chunks(0, c, WEFT_ARENA_CHUNKS) == n);
	for (size_t i = 0; i < n; i++)
		arena_free(c[i].base);
}

#ifndef CORE_ONLY
/* --- the interposed functions ---------------------------------------------- */

static void allocations(void)
{
	char *p, *q;
	size_t n;
	void *v;

	p = malloc(64 * KIB - 1);
	CHECK(p && !weft_arena_contains(p, 1));
	p = realloc(p, 64 * KIB);
	CHECK(p && weft_arena_contains(p, 64 * KIB));
	memset(p, 7, 64 * KIB);
	q = realloc(p, 40 * KIB);
	CHECK(q == p && malloc_usable_size(q) == 40 * KIB);
	q = realloc(q, 1000);
	CHECK(q && !weft_arena_contains(q, 1) && all_are(q, 7, 1000));
	q = realloc(q, 5 * MIB);
	CHECK(q && weft_arena_contains(q, 5 * MIB) && all_are(q, 7, 1000));
	memset(q, 8, 5 * MIB);
	p = malloc(64 * KIB); /* in the way */
	q = realloc(q, 50 * MIB);
	CHECK(q && all_are(q, 8, 5 * MIB) && weft_arena_contains(q, 50 * MIB));
	free(p);
	free(q);
	CHECK(realloc(malloc(64 * KIB), 0) == NULL);
	q = realloc(NULL, 64 * KIB);
	CHECK(weft_arena_contains(q, 64 * KIB));
	memset(q, 0xa5, 64 * KIB);
	errno = 77;
	free(q);
	CHECK(errno == 77);
	free(NULL);
	for (n = 64 * KIB; n < 12 * MIB; n = n * 3 / 2) {
		p = malloc(n);
		memset(p, 0xa5, n);
		free(p);
		p = calloc(n / 16, 16);
		CHECK(p && weft_arena_contains(p, n & ~15ul) && zeros(p, n & ~15ul));
		memset(p, 0xa5, n & ~15ul);
		free(p);
	}
	volatile size_t huge = SIZE_MAX / 2;
	errno = 0;
	CHECK(calloc(huge, 3) == NULL && errno == ENOMEM);
	errno = 0;
	CHECK(malloc(huge) == NULL && errno == ENOMEM);
	p = strdup("small");
	CHECK(p && !weft_arena_contains(p, 1));
	free(p);

	/* Alignment of a page or more: any size. */
	CHECK(posix_memalign(&v, 4096, 1) == 0 && weft_arena_contains(v, 1));
	CHECK(malloc_usable_size(v) == 4096);
	free(v);
	CHECK(posix_memalign(&v, 64, 100) == 0 && !weft_arena_contains(v, 1));
	free(v);
	CHECK(posix_memalign(&v, 64, 100 * KIB) == 0 && weft_arena_contains(v, 100 * KIB));
	free(v);
	CHECK(posix_memalign(&v, 2 * MIB, 100) == 0 && weft_arena_contains(v, 1) && (uintptr_t)v % (2 * MIB) == 0);
	free(v);
	CHECK(posix_memalign(&v, 3, 100 * KIB) == EINVAL && posix_memalign(&v, 12288, 1) == EINVAL);
	CHECK(posix_memalign(&v, 4096, 0) == 0);
	free(v);
	p = memalign(8192, 10);
	CHECK(p && weft_arena_contains(p, 10) && (uintptr_t)p % 8192 == 0);
	free(p);
	p = aligned_alloc(4096, 4096);
	CHECK(weft_arena_contains(p, 4096));
	free(p);
	p = valloc(10);
	CHECK(weft_arena_contains(p, 10));
	free(p);
	p = pvalloc(4097);
	CHECK(weft_arena_contains(p, 8192) && malloc_usable_size(p) == 8192);
	free(p);
}

static char *map(size_t n)
{
	return mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void mappings(void)
{
	char *p, *q, *r;
	int fd;

	p = map(63 * KIB);
	CHECK(p != MAP_FAILED && !weft_arena_contains(p, 1));
	CHECK(munmap(p, 63 * KIB) == 0);
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED && !weft_arena_contains(p, 1));
	munmap(p, MIB);
	p = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED && !weft_arena_contains(p, 1));
	munmap(p, MIB);

	p = map(MIB);
	CHECK(p != MAP_FAILED && weft_arena_contains(p, MIB) && zeros(p, MIB));
	memset(p, 5, MIB);
	/* Holes, protection, and all of it reads as zeros when it comes back. */
	CHECK(mprotect(p + 64 * KIB, 64 * KIB, PROT_NONE) == 0);
	CHECK(munmap(p + 128 * KIB, 128 * KIB) == 0);
	CHECK(all_are(p, 5, 64 * KIB) && all_are(p + 256 * KIB, 5, 768 * KIB));
	CHECK(munmap(p + 64 * KIB, 64 * KIB) == 0);
	q = map(192 * KIB);
	CHECK(q == p + 64 * KIB && zeros(q, 192 * KIB));
	memset(q, 6, 192 * KIB);
	CHECK(all_are(p, 5, 64 * KIB) && all_are(p + 256 * KIB, 5, 768 * KIB));
	/* One call across two mappings. */
	CHECK(munmap(p, MIB) == 0);
	q = map(MIB);
	CHECK(q == p && zeros(q, MIB));
	CHECK(munmap(q + 1, 4096) == -1 && errno == EINVAL);

	/* madvise */
	memset(q, 5, MIB);
	CHECK(madvise(q, 64 * KIB, MADV_DONTNEED) == 0 && zeros(q, 64 * KIB));
	CHECK(madvise(q + 64 * KIB, 64 * KIB, MADV_FREE) == 0);
	CHECK(all_are(q + 128 * KIB, 5, MIB - 128 * KIB));
	CHECK(madvise(q, MIB, MADV_WILLNEED) == 0);

	/* mremap: shrink, grow at the same place or move, to a fixed place */
	memset(q, 5, MIB);
	CHECK(mremap(q, MIB, 512 * KIB, 0) == q);
	CHECK(mremap(q, 512 * KIB, MIB, 0) == MAP_FAILED && errno == ENOMEM);
	r = mremap(q, 512 * KIB, 2 * MIB, MREMAP_MAYMOVE);
	CHECK(r != MAP_FAILED && all_are(r, 5, 512 * KIB) && zeros(r + 512 * KIB, 2 * MIB - 512 * KIB));
	q = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mremap(r, 256 * KIB, 256 * KIB, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	CHECK(all_are(q, 5, 256 * KIB) && all_are(r + 256 * KIB, 5, 256 * KIB));
	munmap(q, MIB);
	CHECK(munmap(r + 256 * KIB, 2 * MIB - 256 * KIB) == 0);

	/* Anonymous memory over arena memory is arena memory. */
	p = map(MIB);
	memset(p, 5, MIB);
	q = mmap(p + 64 * KIB, 64 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(q == p + 64 * KIB && zeros(q, 64 * KIB) && weft_arena_contains(p, MIB));
	CHECK(all_are(p, 5, 64 * KIB) && all_are(p + 128 * KIB, 5, MIB - 128 * KIB));

	/* A file over it is not, and stays so. */
	fd = open("/proc/self/exe", O_RDONLY);
	q = mmap(p + 128 * KIB, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
	close(fd);
	CHECK(q == p + 128 * KIB && !memcmp(q, "\177ELF", 4));
	CHECK(!weft_arena_contains(p, MIB) && weft_arena_torn(p, MIB) && weft_arena_torn(q + 4095, 1));
	CHECK(weft_arena_contains(p, 128 * KIB) && !weft_arena_torn(p, 128 * KIB));
	CHECK(weft_arena_contains(q + 4096, 4096) && all_are(q + 4096, 5, 4096));
	CHECK(munmap(p, MIB) == 0);
	for (int i = 0; i < 40; i++) {
		r = map(96 * KIB);
		CHECK(!weft_arena_torn(r, 96 * KIB) && zeros(r, 96 * KIB));
	}
}

/* --- fork ------------------------------------------------------------------ */

static char *shared_data, *protected_data;

static void write_in_child(void)
{
	struct weft_arena_chunk c[WEFT_ARENA_CHUNKS];
	char *p;

	CHECK(all_are(shared_data, 1, 3 * MIB));
	memset(shared_data, 2, MIB);
	CHECK(!weft_arena_contains(shared_data, 1) && !weft_arena_torn(shared_data, 1));
	CHECK(weft_arena_chunks(0, c, WEFT_ARENA_CHUNKS) == 0);
	CHECK(protected_data[100] == 3);
	p = calloc(1, 2 * MIB);
	CHECK(weft_arena_contains(p, 2 * MIB) && zeros(p, 2 * MIB));
	CHECK(weft_arena_chunks(0, c, WEFT_ARENA_CHUNKS) == 1 && c[0].fd >= 0);
	/* Inherited memory still can be resized and freed. */
	shared_data = realloc(shared_data, 6 * MIB);
	CHECK(weft_arena_contains(shared_data, 6 * MIB));
	CHECK(all_are(shared_data, 2, MIB) && all_are(shared_data + MIB, 1, 2 * MIB));
	free(p);
}

static void write_in_grandchild(void)
{
	int status;

	CHECK(all_are(shared_data, 1, 3 * MIB));
	shared_data[0] = 9;
	status = in_child(write_in_child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1); /* its first check */
	CHECK(shared_data[0] == 9);
	shared_data[0] = 1;
	CHECK(in_child(write_in_child) == 0);
	CHECK(all_are(shared_data, 1, 3 * MIB));
	free(shared_data);
}

static int stop;

static void *churn(void *arg)
{
	uint64_t seed = (uintptr_t)arg;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		size_t n = 64 * KIB + next_random(&seed) % MIB;
		char *p = malloc(n);

		p[0] = p[n - 1] = 1;
		free(p);
	}
	return NULL;
}

static void use_heap(void)
{
	for (int i = 0; i < 20; i++) {
		char *p = malloc(100 * KIB);

		CHECK(p && weft_arena_contains(p, 100 * KIB));
		memset(p, i, 100 * KIB);
		free(p);
	}
}

static void forks(void)
{
	pthread_t t[2];
	int saved;

	shared_data = malloc(3 * MIB);
	memset(shared_data, 1, 3 * MIB);
	protected_data = map(MIB);
	memset(protected_data, 3, MIB);
	CHECK(mprotect(protected_data, 4096, PROT_NONE) == 0);
	CHECK(in_child(write_in_child) == 0);
	CHECK(all_are(shared_data, 1, 3 * MIB) && weft_arena_contains(shared_data, 3 * MIB));
	saved = dup(STDERR_FILENO); /* a check below must fail, quietly */
	close(STDERR_FILENO);
	open("/dev/null", O_WRONLY);
	CHECK(in_child(write_in_grandchild) == 0);
	dup2(saved, STDERR_FILENO);
	close(saved);
	CHECK(all_are(shared_data, 1, 3 * MIB));
	munmap(protected_data, MIB);
	free(shared_data);

	for (uintptr_t i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], NULL, churn, (void *)(i + 1)) == 0);
	for (int i = 0; i < 20; i++)
		CHECK(in_child(use_heap) == 0);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	CHECK(system("exit 3") == 3 << 8);
}

/* --- misuse and limits ------------------------------------------------------ */

static void free_inside(void)
{
	char *volatile p = malloc(MIB);

	p += 4096;
	close(STDERR_FILENO);
	free(p);
}

static void free_twice(void)
{
	char *volatile p = malloc(MIB), *volatile q = malloc(MIB);

	close(STDERR_FILENO);
	free(p);
	free(p);
	free(q);
}

static void close_all(void)
{
	struct weft_arena_chunk c[2];
	char *p = malloc(MIB), *q;
	int null;

	memset(p, 1, MIB);
	CHECK(weft_arena_chunks(0, c, 2) == 1);
	null = open("/dev/null", O_RDWR);
	dup2(null, c[0].fd); /* the number is now another file's */
	CHECK(weft_arena_chunks(0, c, 2) == 1 && c[0].fd == -1 && !weft_arena_contains(p, 1));
	q = malloc(MIB);
	CHECK(q && all_are(p, 1, MIB));
	free(p);
	shared_data = malloc(3 * MIB);
	memset(shared_data, 4, 3 * MIB);
	pid_t pid = fork();
	if (pid == 0) {
		int ok = all_are(shared_data, 4, 3 * MIB);

		memset(shared_data, 5, 3 * MIB);
		_exit(!ok);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0 && all_are(shared_data, 4, 3 * MIB));
}

static void limited_file(void)
{
	struct rlimit r = { 1 * MIB, 1 * MIB };
	char *p;

	CHECK(setrlimit(RLIMIT_FSIZE, &r) == 0);
	p = malloc(1000 * MIB);
	CHECK(p && !weft_arena_contains(p, 1) && weft_arena_misses() == 1);
	free(p);
	p = map(1000 * MIB);
	CHECK(p != MAP_FAILED && !weft_arena_contains(p, 1));
	CHECK(munmap(p, 1000 * MIB) == 0);
}

static void limited_space(void)
{
	struct rlimit r = { 1024 * MIB, 1024 * MIB };
	char *p;

	CHECK(setrlimit(RLIMIT_AS, &r) == 0);
	p = malloc(64 * KIB);
	CHECK(p && weft_arena_contains(p, 64 * KIB));
	free(p);
	p = malloc(600 * MIB);
	CHECK(p && !weft_arena_contains(p, 1));
	free(p);
}

static void run_on(void)
{
	int status;

	CHECK(in_child(core) == 0);
	CHECK(in_child(allocations) == 0);
	CHECK(in_child(mappings) == 0);
	CHECK(in_child(close_all) == 0);
	CHECK(in_child(limited_file) == 0);
	CHECK(in_child(limited_space) == 0);
	status = in_child(free_inside);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	status = in_child(free_twice);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	forks();
}

static void run_off(void)
{
	struct weft_arena_chunk c;
	void *v;
	char *p = malloc(MIB), *q = map(MIB);

	CHECK(weft_arena_mode() == WEFT_ARENA_OFF);
	CHECK(p && q != MAP_FAILED && posix_memalign(&v, 4096, 1) == 0);
	p = realloc(p, 2 * MIB);
	CHECK(malloc_usable_size(p) >= 2 * MIB);
	CHECK(!weft_arena_contains(p, 1) && !weft_arena_contains(q, 1) && !weft_arena_contains(v, 1));
	CHECK(!weft_arena_torn(p, 1) && weft_arena_chunks(0, &c, 1) == 0);
	CHECK(weft_arena_generation() == 1 && weft_arena_misses() == 0);
	free(p);
	free(v);
	free(calloc(MIB, 1));
	CHECK(munmap(q, MIB) == 0);
}

static const char *self;

static void run(const char *mode)
{
	int status;
	pid_t pid;

	if (mode)
		setenv("WEFT_ARENA", mode, 1);
	else
		unsetenv("WEFT_ARENA");
	pid = fork();
	if (pid == 0) {
		execl(self, "arena_test", mode ? mode : "", (char *)NULL);
		_exit(127);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc > 1) {
		if (!*argv[1] || !strcmp(argv[1], "0")) {
			run_off();
		} else {
			CHECK(weft_arena_mode() ==
			      (strcmp(argv[1], "only") ? WEFT_ARENA_ON : WEFT_ARENA_ONLY));
			run_on();
		}
		return failures != 0;
	}
	run(NULL);
	run("0");
	run("");
	run("1");
	run("only");
	return finish("arena_test");
}
#else
int main(void)
{
	setenv("WEFT_ARENA", "1", 1);
	core();
	(void)in_child;
	return finish("arena_test core");
}
#endif
