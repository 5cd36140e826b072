/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_parts.h"

#include <string.h>
#include <unistd.h>

bool fake_inside(uint64_t addr, uint64_t len)
{
	for (int i = 0; i < fake.nmem; i++)
		if (addr >= fake.mem[i].base && addr - fake.mem[i].base <= fake.mem[i].size &&
		    len <= fake.mem[i].size - (addr - fake.mem[i].base))
			return true;
	return false;
}
bool fake_available(struct ring *r)
{
	return r->on && __atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE) != r->avail_at;
}

void *fake_pop(struct ring *r, uint16_t *id, uint32_t *len)
{
	struct weft_vring_desc *d;

	need((uint16_t)(__atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE) - r->avail_at) <= r->num);
	*id = r->avail->ring[r->avail_at++ & (r->num - 1)];
	need(*id < r->num);
	d = &r->desc[*id];
	need(fake_inside(d->addr, d->len));
	if (len)
		*len = d->len;
	return (void *)(uintptr_t)d->addr;
}

void fake_push(struct ring *r, uint16_t id, uint32_t len)
{
	r->used->ring[r->used_at & (r->num - 1)] = (struct weft_vring_used_elem){ id, len };
	__atomic_store_n(&r->used->idx, ++r->used_at, __ATOMIC_RELEASE);
}

void fake_call(struct ring *r)
{
	if (r->call >= 0)
		need(write(r->call, &r->call_value, 8) == 8);
}

void fake_flush(uint32_t cqn)
{
	struct ring *r = &fake.ring[3 + cqn];
	struct cq *c = &fake.cq[cqn];
	uint32_t i = 0;

	for (; i < c->n && fake_available(r); i++) {
		uint16_t id;
		void *slot = fake_pop(r, &id, NULL);

		memcpy(slot, &c->backlog[i], sizeof(struct weft_cqe));
		fake_push(r, id, sizeof(struct weft_cqe));
	}
	memmove(c->backlog, c->backlog + i, (c->n - i) * sizeof(*c->backlog));
	c->n -= i;
}

void fake_complete(uint32_t cqn, const struct weft_cqe *e, bool solicited)
{
	struct cq *c = &fake.cq[cqn];
	uint32_t armed;

	need(c->on && c->n < BACKLOG);
	c->backlog[c->n++] = *e;
	fake_flush(cqn);
	if (!c->arm)
		return;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	armed = __atomic_load_n(c->arm, __ATOMIC_SEQ_CST);
	if (armed == WEFT_ARM_NEXT || (armed && (solicited || e->status))) {
		if (__atomic_exchange_n(c->arm, 0, __ATOMIC_SEQ_CST))
			fake_call(&fake.ring[3 + cqn]);
	}
}

void fake_move(struct ring *r, struct ring *now)
{
	uint16_t end = __atomic_load_n(&now->avail->idx, __ATOMIC_ACQUIRE), id;

	need(r->on && r->call < 0 && end == __atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE));
	now->avail_at = now->used_at = now->used->idx;
	need((uint16_t)(end - now->avail_at) >= (uint16_t)(end - r->avail_at));
	while (now->avail_at != r->avail_at) {
		fake_pop(now, &id, NULL);
		fake_push(now, id, 0);
	}
	now->ahead = now->moved = r->ahead;
	memcpy(now->ahead_copy, r->ahead_copy, sizeof(now->ahead_copy));
	*r = *now;
}
