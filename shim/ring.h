/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the node reaches at the same address, and the split rings in it.
 */
#ifndef WEFT_RING_H
#define WEFT_RING_H

#include "base.h"
#include "weft_abi.h"

/* ---- mem.c: memory the node can see ---- */

struct weft_extent;
struct weft_ctx;

struct weft_mem {
	struct weft_lock lock;
	struct weft_extent *free;  /* ascending addresses, never adjacent */
	struct weft_chunk *chunks;
	size_t next_size;          /* of the chunk to be made next */
};

/*
 * Returns n zeroed bytes, aligned to 64, that the node reaches at the same
 * address, or NULL with errno set. May send an ADD_MEM_REG, so ctl must not be
 * held.
 */
void *weft_shm_alloc(struct weft_ctx *ctx, size_t n);
void weft_shm_free(struct weft_ctx *ctx, void *p, size_t n);
/* Unmaps everything; nothing of it may be used afterwards. */
void weft_shm_destroy(struct weft_ctx *ctx);

/* ---- ring.c ---- */

/* A split ring with its slots, in one allocation of shared memory. Positions
 * run freely; position p is slot p & mask. */
struct weft_ring {
	struct weft_vring_desc *desc;
	struct weft_vring_avail *avail;
	struct weft_vring_used *used;
	uint8_t *slots;
	uint32_t slot_size;
	uint32_t num, mask;
	uint32_t index;       /* number in the session */
	uint32_t head;        /* elements made available (published or about to be) */
	uint32_t tail;        /* elements known to be used */
	size_t bytes;         /* of the allocation that starts at desc */
};

/* Lays out a ring of num (a power of two) slots with every descriptor and
 * avail entry filled in. Returns 0 or an errno. */
int weft_ring_init(struct weft_ctx *ctx, struct weft_ring *r, uint32_t num, uint32_t slot_size,
		   bool device_writes);
void weft_ring_free(struct weft_ctx *ctx, struct weft_ring *r);

/* Registers r with the node as ring number index; call is the descriptor to
 * notify through, or -1. Returns 0 or an errno. */
int weft_ring_set(struct weft_ctx *ctx, struct weft_ring *r, uint32_t index, int call,
		  uint64_t call_value);
/* Has the node go on in r where ring number index runs: a shared receive
 * queue's, without a notification. Returns 0 or an errno. */
int weft_ring_move(struct weft_ctx *ctx, struct weft_ring *r, uint32_t index);
int weft_ring_stop(struct weft_ctx *ctx, uint32_t index);

static inline uint32_t weft_pow2(uint32_t n)
{
	return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

static inline uint8_t *weft_slot(const struct weft_ring *r, uint32_t pos)
{
	return r->slots + (size_t)(pos & r->mask) * r->slot_size;
}

static inline uint16_t weft_used_idx(const struct weft_ring *r)
{
	return __atomic_load_n(&r->used->idx, __ATOMIC_ACQUIRE);
}

/* Takes in what the node has used since; no more than was made available. */
static inline void weft_ring_reap(struct weft_ring *r)
{
	uint16_t used = weft_used_idx(r);
	uint16_t n = (uint16_t)(used - (uint16_t)r->tail);

	if (likely(n <= r->head - r->tail))
		r->tail += n;
}

static inline void weft_ring_publish(struct weft_ring *r)
{
	__atomic_store_n(&r->avail->idx, (uint16_t)r->head, __ATOMIC_RELEASE);
}

#endif
