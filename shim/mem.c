// SPDX-License-Identifier: Apache-2.0
/*
 * Memory the node can see: sealed memory files, announced to it at the address
 * they have in this process, and a first-fit allocator on them. Everything the
 * socket shares lives here: rings, slots, inline data, completions, arm words.
 */
#include "weft.h"

#include <fcntl.h>
#include <sys/mman.h>

struct weft_chunk {
	struct weft_chunk *next;
	void *base;
	size_t len;
};

struct weft_extent {
	struct weft_extent *next;
	uintptr_t addr;            /* Invariant: the bytes are zero */
	size_t len;
};

#define ALIGN 64u
#define CHUNK_MIN ((size_t)16 << 20)   /* address space; pages appear when touched */
#define CHUNK_MAX ((size_t)1 << 30)
#define PUNCH_MIN ((size_t)256 << 10)  /* freed blocks from here on return their pages */

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) & ~(to - 1);
}

/* Returns a free extent to the list, merging neighbours. Takes ownership of e. */
static void put_extent(struct weft_mem *m, struct weft_extent *e)
{
	struct weft_extent **at = &m->free, *prev = NULL;

	while (*at && (*at)->addr < e->addr) {
		prev = *at;
		at = &(*at)->next;
	}
	e->next = *at;
	*at = e;
	if (e->next && e->addr + e->len == e->next->addr) {
		struct weft_extent *n = e->next;

		e->len += n->len;
		e->next = n->next;
		free(n);
	}
	if (prev && prev->addr + prev->len == e->addr) {
		prev->len += e->len;
		prev->next = e->next;
		free(e);
	}
}

static int add_chunk(struct weft_ctx *ctx, size_t need)
{
	struct weft_mem *m = &ctx->mem;
	size_t len = m->next_size ? m->next_size : CHUNK_MIN;
	struct weft_chunk *c = malloc(sizeof(*c));
	struct weft_extent *e = malloc(sizeof(*e));
	struct weft_vu_mem_reg reg = { 0 };
	void *base = MAP_FAILED;
	int fd = -1, err;

	if (!c || !e) {
		err = ENOMEM;
		goto fail;
	}
	if (len < need)
		len = round_up(need, (size_t)2 << 20);
	fd = memfd_create("weft-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, (off_t)len) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		err = errno;
		goto fail;
	}
	base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		err = errno;
		goto fail;
	}
	/* A child of fork must not reach the rings of its parent. */
	madvise(base, len, MADV_DONTFORK);
	reg.gpa = reg.user_addr = (uintptr_t)base;
	reg.size = len;
	err = weft_session_request(ctx, WEFT_VU_ADD_MEM_REG, &reg, sizeof(reg), fd);
	if (err)
		goto fail;
	weft_sys_close(fd);

	*c = (struct weft_chunk){ .base = base, .len = len };
	*e = (struct weft_extent){ .addr = (uintptr_t)base, .len = len };
	weft_lock(&m->lock);
	c->next = m->chunks;
	m->chunks = c;
	m->next_size = len * 2 < CHUNK_MAX ? len * 2 : CHUNK_MAX;
	put_extent(m, e);
	weft_unlock(&m->lock);
	return 0;
fail:
	if (base != MAP_FAILED)
		munmap(base, len);
	if (fd >= 0)
		weft_sys_close(fd);
	free(c);
	free(e);
	return err;
}

static void *take(struct weft_mem *m, size_t n)
{
	void *p = NULL;

	weft_lock(&m->lock);
	for (struct weft_extent **at = &m->free, *e; (e = *at); at = &e->next) {
		if (e->len < n)
			continue;
		p = (void *)e->addr;
		e->addr += n;
		e->len -= n;
		if (!e->len) {
			*at = e->next;
			free(e);
		}
		break;
	}
	weft_unlock(&m->lock);
	return p;
}

void *weft_shm_alloc(struct weft_ctx *ctx, size_t n)
{
	void *p;
	int err;

	n = round_up(n, n >= PUNCH_MIN ? 4096 : ALIGN);
	while (!(p = take(&ctx->mem, n))) {
		err = add_chunk(ctx, n);
		if (err) {
			errno = err;
			return NULL;
		}
	}
	return p;
}

void weft_shm_free(struct weft_ctx *ctx, void *p, size_t n)
{
	struct weft_extent *e;

	if (!p || atomic_load(&ctx->dead) == WEFT_FORKED)
		return;
	n = round_up(n, n >= PUNCH_MIN ? 4096 : ALIGN);
	if (n >= PUNCH_MIN) {
		/* Whole pages go back to the system; the ends, which share pages
		 * with neighbours, are cleared by hand. */
		uintptr_t from = (uintptr_t)p, to = from + n;
		uintptr_t first = round_up(from, 4096), last = to & ~(uintptr_t)4095;

		memset(p, 0, first - from);
		memset((void *)last, 0, to - last);
		if (madvise((void *)first, last - first, MADV_REMOVE))
			memset((void *)first, 0, last - first);
	} else {
		memset(p, 0, n);
	}
	e = malloc(sizeof(*e));
	if (!e)
		return; /* the block is lost until the context closes */
	*e = (struct weft_extent){ .addr = (uintptr_t)p, .len = n };
	weft_lock(&ctx->mem.lock);
	put_extent(&ctx->mem, e);
	weft_unlock(&ctx->mem.lock);
}

void weft_shm_destroy(struct weft_ctx *ctx)
{
	struct weft_mem *m = &ctx->mem;
	struct weft_extent *e;
	struct weft_chunk *c;

	while ((e = m->free)) {
		m->free = e->next;
		free(e);
	}
	while ((c = m->chunks)) {
		m->chunks = c->next;
		if (atomic_load(&ctx->dead) != WEFT_FORKED)
			munmap(c->base, c->len);
		free(c);
	}
}
