// SPDX-License-Identifier: Apache-2.0
/* Rings: laid out once, told to the node, stopped. Posting is in weft.h. */
#include "weft.h"

static size_t align64(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

int weft_ring_init(struct weft_ctx *ctx, struct weft_ring *r, uint32_t num, uint32_t slot_size,
		   bool device_writes)
{
	size_t avail = align64(sizeof(struct weft_vring_desc) * num);
	size_t used = avail + align64(sizeof(struct weft_vring_avail) + 2 * ((size_t)num + 1));
	size_t slots = used + align64(sizeof(struct weft_vring_used) +
				      sizeof(struct weft_vring_used_elem) * num + 2);
	size_t bytes = slots + (size_t)num * slot_size;
	uint8_t *p = weft_shm_alloc(ctx, bytes);

	if (!p)
		return errno;
	*r = (struct weft_ring){
		.desc = (void *)p,
		.avail = (void *)(p + avail),
		.used = (void *)(p + used),
		.slots = p + slots,
		.slot_size = slot_size,
		.num = num,
		.mask = num - 1,
		.bytes = bytes,
	};
	for (uint32_t i = 0; i < num; i++) {
		r->desc[i].addr = (uintptr_t)weft_slot(r, i);
		r->desc[i].len = slot_size;
		r->desc[i].flags = device_writes ? WEFT_VRING_DESC_WRITE : 0;
		r->avail->ring[i] = (uint16_t)i;
	}
	return 0;
}

void weft_ring_free(struct weft_ctx *ctx, struct weft_ring *r)
{
	weft_shm_free(ctx, r->desc, r->bytes);
	*r = (struct weft_ring){ 0 };
}

static int set(struct weft_ctx *ctx, struct weft_ring *r, uint32_t index, int call,
	       uint64_t call_value, uint32_t flags)
{
	struct weft_set_ring m = {
		.index = index,
		.num = r->num,
		.desc = (uintptr_t)r->desc,
		.avail = (uintptr_t)r->avail,
		.used = (uintptr_t)r->used,
		.call_value = call_value,
		.flags = flags,
	};

	r->index = index;
	return weft_session_request(ctx, WEFT_VU_SET_RING, &m, sizeof(m), call);
}

int weft_ring_set(struct weft_ctx *ctx, struct weft_ring *r, uint32_t index, int call,
		  uint64_t call_value)
{
	return set(ctx, r, index, call, call_value, call >= 0 ? WEFT_RING_CALL : 0);
}

int weft_ring_move(struct weft_ctx *ctx, struct weft_ring *r, uint32_t index)
{
	return set(ctx, r, index, -1, 0, WEFT_RING_MOVE);
}

int weft_ring_stop(struct weft_ctx *ctx, uint32_t index)
{
	struct weft_stop_ring m = { .index = index };

	return weft_session_request(ctx, WEFT_VU_STOP_RING, &m, sizeof(m), -1);
}
