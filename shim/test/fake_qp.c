/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_parts.h"

#include <string.h>

static uint8_t *reach(const struct weft_sge *s)
{
	uint32_t i = s->lkey - 100;

	if (i >= 64 || !fake.mr[i].on || s->addr < fake.mr[i].iova ||
	    s->addr - fake.mr[i].iova + s->length > fake.mr[i].len)
		return NULL;
	return (uint8_t *)(uintptr_t)(s->addr - fake.mr[i].iova + fake.mr[i].va);
}

/* Copies between a byte string and a scatter list. */
static bool scatter(const struct weft_sge *sg, uint32_t k, uint8_t *bytes, uint32_t len, bool in)
{
	for (uint32_t i = 0; i < k && len; i++) {
		uint32_t m = sg[i].length < len ? sg[i].length : len;
		uint8_t *p = reach(&sg[i]);

		if (m && !p)
			return false;
		if (in)
			memcpy(p, bytes, m);
		else
			memcpy(bytes, p, m);
		bytes += m;
		len -= m;
	}
	return !len;
}

static uint32_t sum(const struct weft_sge *sg, uint32_t k)
{
	uint32_t t = 0;

	for (uint32_t i = 0; i < k; i++)
		t += sg[i].length;
	return t;
}

static struct ring *recv_ring(uint32_t q)
{
	return &fake.ring[4 + CQS + 2 * (fake.qp[q].srqn1 ? fake.qp[q].srqn1 - 1 : q)];
}

/* Whether a message finds a receive element. */
static bool ready(struct ring *r)
{
	return r->ahead || fake_available(r);
}

/* Takes an element of a shared queue before there is a message for it. */
static void take_ahead(struct ring *r)
{
	uint32_t len;
	void *e;

	if (r->ahead || !fake_available(r))
		return;
	e = fake_pop(r, &r->ahead_id, &len);
	need(len <= sizeof(r->ahead_copy));
	memcpy(r->ahead_copy, e, len);
	r->ahead = true;
}

/* Executes one send element. Returns false where the receiver is not ready. */
static bool execute(uint32_t q, struct weft_sq_hdr *e)
{
	static uint8_t buf[1 << 20];
	struct weft_cqe done = { .wr_id = e->wr_id, .qp_num = SESSION << 14 | q };
	uint32_t peer = fake.qp[q].peer, len;
	bool imm = e->opcode == WEFT_OP_SEND_IMM || e->opcode == WEFT_OP_RDMA_WRITE_IMM;
	bool takes = imm || e->opcode == WEFT_OP_SEND;

	if (fake.qp[q].type == 4)
		peer = e->ud.remote_qpn & 0x3fff;
	if (fake.qp[q].state == 6) {
		done.status = WEFT_WC_WR_FLUSH_ERR;
		fake_complete(fake.qp[q].send_cq, &done, false);
		return true;
	}
	if (takes && !ready(recv_ring(peer)))
		return false;
	if (e->send_flags & WEFT_SEND_INLINE) {
		fake_inline_elements++;
		len = e->num_sge;
		memcpy(buf, e->sge, len);
	} else {
		fake_list_elements++;
		len = sum(e->sge, e->num_sge);
		need(len <= sizeof(buf));
		if (e->opcode <= WEFT_OP_SEND_IMM && !scatter(e->sge, e->num_sge, buf, len, false))
			done.status = WEFT_WC_LOC_PROT_ERR;
	}
	switch (e->opcode) {
	case WEFT_OP_RDMA_WRITE:
	case WEFT_OP_RDMA_WRITE_IMM:
		if (!done.status)
			memcpy((void *)(uintptr_t)e->rdma.remote_addr, buf, len);
		done.opcode = WEFT_WC_OP_RDMA_WRITE;
		break;
	case WEFT_OP_RDMA_READ:
		if (!scatter(e->sge, e->num_sge, (void *)(uintptr_t)e->rdma.remote_addr, len, true))
			done.status = WEFT_WC_LOC_PROT_ERR;
		done.opcode = WEFT_WC_OP_RDMA_READ;
		break;
	case WEFT_OP_ATOMIC_CMP_SWP:
	case WEFT_OP_ATOMIC_FETCH_ADD: {
		uint64_t *w = (void *)(uintptr_t)e->atomic.remote_addr, old = *w;

		if (e->opcode == WEFT_OP_ATOMIC_FETCH_ADD)
			*w += e->atomic.compare_add;
		else if (old == e->atomic.compare_add)
			*w = e->atomic.swap;
		need(scatter(e->sge, e->num_sge, (uint8_t *)&old, 8, true));
		done.opcode = e->opcode;
		break;
	}
	}
	done.byte_len = done.status ? 0 : len;
	if (takes && !done.status) {
		struct weft_cqe got = { .opcode = imm && e->opcode == WEFT_OP_RDMA_WRITE_IMM ?
						WEFT_WC_OP_RECV_RDMA_WITH_IMM : WEFT_WC_OP_RECV,
					.byte_len = len, .qp_num = SESSION << 14 | peer };
		struct ring *r = recv_ring(peer);
		uint16_t id, other = 0;
		bool swap = fake_swap && fake.qp[peer].srqn1 &&
			(uint16_t)(__atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE) - r->avail_at) >= 2;
		struct weft_rq_hdr *w;

		if (swap) {
			/* The second comes first: exchange the two entries. */
			uint16_t a = r->avail_at & (r->num - 1), b = (uint16_t)(r->avail_at + 1) & (r->num - 1);

			other = r->avail->ring[a];
			r->avail->ring[a] = r->avail->ring[b];
			r->avail->ring[b] = other;
		}
		if (r->ahead) {
			w = (void *)r->ahead_copy;
			id = r->ahead_id;
		} else {
			w = fake_pop(r, &id, NULL);
		}
		got.wr_id = w->wr_id;
		if (imm) {
			got.wc_flags = WEFT_WC_FLAG_WITH_IMM;
			memcpy(&got.imm_data, e->imm_data, 4);
		}
		if (fake.qp[peer].type == 4) {
			memmove(buf + 40, buf, len);
			memset(buf, 0, 40);
			got.byte_len = len += 40;
			got.wc_flags |= WEFT_WC_FLAG_GRH;
			got.src_qp = SESSION << 14 | q;
			got.sl = 2;
		}
		if (got.opcode == WEFT_WC_OP_RECV && !scatter(w->sge, w->num_sge, buf, len, true)) {
			got.status = WEFT_WC_LOC_LEN_ERR;
			done.status = WEFT_WC_REM_INV_REQ_ERR;
		}
		if (!r->ahead || !r->moved)
			fake_push(r, id, 0);
		r->ahead = r->moved = false;
		fake_complete(fake.qp[peer].recv_cq, &got, e->send_flags & WEFT_SEND_SOLICITED);
	}
	if (done.status || e->send_flags & WEFT_SEND_SIGNALED)
		fake_complete(fake.qp[q].send_cq, &done, false);
	return true;
}

bool fake_work(void)
{
	bool any = false;

	for (uint32_t q = 2; q < QPS; q++) {
		struct ring *r = &fake.ring[3 + CQS + 2 * q];

		if (fake_ahead && fake.srq[q])
			take_ahead(&fake.ring[4 + CQS + 2 * q]);
		while (!fake_hold && fake.qp[q].on && fake.qp[q].state >= 3 && fake_available(r)) {
			uint16_t at = r->avail_at, id;
			uint32_t len;
			struct weft_sq_hdr *e = fake_pop(r, &id, &len);

			need(len >= sizeof(*e));
			/* The used entry comes before the completion; a request that
			 * cannot go on yet stays where it is. */
			if (fake.qp[q].state != 6 &&
			    (e->opcode == 1 || e->opcode == 2 || e->opcode == 3) &&
			    !ready(recv_ring(fake.qp[q].type == 4 ? e->ud.remote_qpn & 0x3fff :
								 fake.qp[q].peer))) {
				r->avail_at = at;
				break;
			}
			fake_push(r, id, 0);
			need(execute(q, e));
			any = true;
		}
		/* Flush what waits to receive. */
		r = &fake.ring[4 + CQS + 2 * q];
		while (fake.qp[q].on && fake.qp[q].state == 6 && !fake.qp[q].srqn1 && fake_available(r)) {
			struct weft_cqe e = { .status = WEFT_WC_WR_FLUSH_ERR, .qp_num = SESSION << 14 | q };
			uint16_t id;
			struct weft_rq_hdr *w = fake_pop(r, &id, NULL);

			e.wr_id = w->wr_id;
			fake_push(r, id, 0);
			fake_complete(fake.qp[q].recv_cq, &e, false);
			any = true;
		}
	}
	for (uint32_t c = 0; c < CQS; c++)
		if (fake.cq[c].on)
			fake_flush(c);
	if (fake_have_pending && !fake_dry) {
		struct ring *r = &fake.ring[3 + fake.evq];
		uint16_t id;

		pthread_mutex_lock(&fake_event_mu);
		if (fake_available(r)) {
			memcpy(fake_pop(r, &id, NULL), &fake_pending, sizeof(fake_pending));
			fake_push(r, id, sizeof(fake_pending));
			fake_call(r);
			fake_have_pending--;
		} else {
			fake_dry = true;
		}
		any |= fake_have_pending && !fake_dry;
		pthread_mutex_unlock(&fake_event_mu);
	}
	return any;
}
