/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_node.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../weft_abi.h"
#include "own_dir.h"

#define SESSION  5u
#define QPS      64u
#define CQS      16u
#define RINGS    (3 + CQS + 2 * QPS)
#define BACKLOG  4096u

#define need(x)                                                             \
	do {                                                                \
		if (!(x)) {                                                 \
			fprintf(stderr, "fake node: line %d: %s\n", __LINE__, #x); \
			abort();                                            \
		}                                                           \
	} while (0)

_Atomic bool fake_hold, fake_swap, fake_ahead;
_Atomic uint32_t fake_inline_elements, fake_list_elements, fake_kicks, fake_bells;

struct ring {
	bool on;
	uint32_t num;
	struct weft_vring_desc *desc;
	struct weft_vring_avail *avail;
	struct weft_vring_used *used;
	int call;
	uint64_t call_value;
	uint16_t avail_at, used_at;
	/* A receive element that was taken and waits for a message; of another
	 * memory than the ring's where that has moved since. */
	bool ahead, moved;
	uint16_t ahead_id;
	uint8_t ahead_copy[512];
};

struct cq {
	bool on;
	uint32_t *arm;
	struct weft_cqe *backlog;
	uint32_t n;
};

static struct {
	int listener, sock, kick;
	struct weft_doorbell *db;
	uint32_t nbits;
	struct ring ring[RINGS];
	struct cq cq[CQS];
	struct {
		uint64_t base, size;
	} mem[64];
	int nmem;
	bool errno_ack;
	uint32_t evq;
	struct {
		bool on;
		uint32_t send_cq, recv_cq, srqn1, peer, num_sge;
		uint8_t state, type;
	} qp[QPS];
	bool srq[QPS];
	uint32_t srq_wr[QPS], srq_limit[QPS];
	struct {
		bool on;
		uint64_t va, len, iova;
		uint32_t access;
	} mr[64];
	uint64_t probe_word;
} n;

static pthread_mutex_t event_mu = PTHREAD_MUTEX_INITIALIZER;
static struct weft_event pending;
/* Events to be raised; dry: they found no buffer and wait for a bell. */
static _Atomic uint32_t have_pending;
static _Atomic bool dry;

static bool inside(uint64_t addr, uint64_t len)
{
	for (int i = 0; i < n.nmem; i++)
		if (addr >= n.mem[i].base && addr - n.mem[i].base <= n.mem[i].size &&
		    len <= n.mem[i].size - (addr - n.mem[i].base))
			return true;
	return false;
}

/* ---- rings ---- */

static bool available(struct ring *r)
{
	return r->on && __atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE) != r->avail_at;
}

static void *pop(struct ring *r, uint16_t *id, uint32_t *len)
{
	struct weft_vring_desc *d;

	need((uint16_t)(__atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE) - r->avail_at) <= r->num);
	*id = r->avail->ring[r->avail_at++ & (r->num - 1)];
	need(*id < r->num);
	d = &r->desc[*id];
	need(inside(d->addr, d->len));
	if (len)
		*len = d->len;
	return (void *)(uintptr_t)d->addr;
}

static void push(struct ring *r, uint16_t id, uint32_t len)
{
	r->used->ring[r->used_at & (r->num - 1)] = (struct weft_vring_used_elem){ id, len };
	__atomic_store_n(&r->used->idx, ++r->used_at, __ATOMIC_RELEASE);
}

static void call(struct ring *r)
{
	if (r->call >= 0)
		need(write(r->call, &r->call_value, 8) == 8);
}

static void flush(uint32_t cqn)
{
	struct ring *r = &n.ring[3 + cqn];
	struct cq *c = &n.cq[cqn];
	uint32_t i = 0;

	for (; i < c->n && available(r); i++) {
		uint16_t id;
		void *slot = pop(r, &id, NULL);

		memcpy(slot, &c->backlog[i], sizeof(struct weft_cqe));
		push(r, id, sizeof(struct weft_cqe));
	}
	memmove(c->backlog, c->backlog + i, (c->n - i) * sizeof(*c->backlog));
	c->n -= i;
}

static void complete(uint32_t cqn, const struct weft_cqe *e, bool solicited)
{
	struct cq *c = &n.cq[cqn];
	uint32_t armed;

	need(c->on && c->n < BACKLOG);
	c->backlog[c->n++] = *e;
	flush(cqn);
	if (!c->arm)
		return;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	armed = __atomic_load_n(c->arm, __ATOMIC_SEQ_CST);
	if (armed == WEFT_ARM_NEXT || (armed && (solicited || e->status))) {
		if (__atomic_exchange_n(c->arm, 0, __ATOMIC_SEQ_CST))
			call(&n.ring[3 + cqn]);
	}
}

/* ---- data ---- */

static uint8_t *reach(const struct weft_sge *s)
{
	uint32_t i = s->lkey - 100;

	if (i >= 64 || !n.mr[i].on || s->addr < n.mr[i].iova ||
	    s->addr - n.mr[i].iova + s->length > n.mr[i].len)
		return NULL;
	return (uint8_t *)(uintptr_t)(s->addr - n.mr[i].iova + n.mr[i].va);
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
	return &n.ring[4 + CQS + 2 * (n.qp[q].srqn1 ? n.qp[q].srqn1 - 1 : q)];
}

/* Whether a message finds a receive element. */
static bool ready(struct ring *r)
{
	return r->ahead || available(r);
}

/* Takes an element of a shared queue before there is a message for it. */
static void take_ahead(struct ring *r)
{
	uint32_t len;
	void *e;

	if (r->ahead || !available(r))
		return;
	e = pop(r, &r->ahead_id, &len);
	need(len <= sizeof(r->ahead_copy));
	memcpy(r->ahead_copy, e, len);
	r->ahead = true;
}

/* Executes one send element. Returns false where the receiver is not ready. */
static bool execute(uint32_t q, struct weft_sq_hdr *e)
{
	static uint8_t buf[1 << 20];
	struct weft_cqe done = { .wr_id = e->wr_id, .qp_num = SESSION << 14 | q };
	uint32_t peer = n.qp[q].peer, len;
	bool imm = e->opcode == WEFT_OP_SEND_IMM || e->opcode == WEFT_OP_RDMA_WRITE_IMM;
	bool takes = imm || e->opcode == WEFT_OP_SEND;

	if (n.qp[q].type == 4)
		peer = e->ud.remote_qpn & 0x3fff;
	if (n.qp[q].state == 6) {
		done.status = WEFT_WC_WR_FLUSH_ERR;
		complete(n.qp[q].send_cq, &done, false);
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
		bool swap = fake_swap && n.qp[peer].srqn1 && (uint16_t)(__atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE) - r->avail_at) >= 2;
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
			w = pop(r, &id, NULL);
		}
		got.wr_id = w->wr_id;
		if (imm) {
			got.wc_flags = WEFT_WC_FLAG_WITH_IMM;
			memcpy(&got.imm_data, e->imm_data, 4);
		}
		if (n.qp[peer].type == 4) {
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
			push(r, id, 0);
		r->ahead = r->moved = false;
		complete(n.qp[peer].recv_cq, &got, e->send_flags & WEFT_SEND_SOLICITED);
	}
	if (done.status || e->send_flags & WEFT_SEND_SIGNALED)
		complete(n.qp[q].send_cq, &done, false);
	return true;
}

static bool work(void)
{
	bool any = false;

	for (uint32_t q = 2; q < QPS; q++) {
		struct ring *r = &n.ring[3 + CQS + 2 * q];

		if (fake_ahead && n.srq[q])
			take_ahead(&n.ring[4 + CQS + 2 * q]);
		while (!fake_hold && n.qp[q].on && n.qp[q].state >= 3 && available(r)) {
			uint16_t at = r->avail_at, id;
			uint32_t len;
			struct weft_sq_hdr *e = pop(r, &id, &len);

			need(len >= sizeof(*e));
			/* The used entry comes before the completion; a request that
			 * cannot go on yet stays where it is. */
			if (n.qp[q].state != 6 &&
			    (e->opcode == 1 || e->opcode == 2 || e->opcode == 3) &&
			    !ready(recv_ring(n.qp[q].type == 4 ? e->ud.remote_qpn & 0x3fff :
								 n.qp[q].peer))) {
				r->avail_at = at;
				break;
			}
			push(r, id, 0);
			need(execute(q, e));
			any = true;
		}
		/* Flush what waits to receive. */
		r = &n.ring[4 + CQS + 2 * q];
		while (n.qp[q].on && n.qp[q].state == 6 && !n.qp[q].srqn1 && available(r)) {
			struct weft_cqe e = { .status = WEFT_WC_WR_FLUSH_ERR, .qp_num = SESSION << 14 | q };
			uint16_t id;
			struct weft_rq_hdr *w = pop(r, &id, NULL);

			e.wr_id = w->wr_id;
			push(r, id, 0);
			complete(n.qp[q].recv_cq, &e, false);
			any = true;
		}
	}
	for (uint32_t c = 0; c < CQS; c++)
		if (n.cq[c].on)
			flush(c);
	if (have_pending && !dry) {
		struct ring *r = &n.ring[3 + n.evq];
		uint16_t id;

		pthread_mutex_lock(&event_mu);
		if (available(r)) {
			memcpy(pop(r, &id, NULL), &pending, sizeof(pending));
			push(r, id, sizeof(pending));
			call(r);
			have_pending--;
		} else {
			dry = true;
		}
		any |= have_pending && !dry;
		pthread_mutex_unlock(&event_mu);
	}
	return any;
}

/* ---- control ---- */

/* How many requests wait in a shared receive queue. */
static uint32_t waiting(uint32_t srq)
{
	struct ring *r = &n.ring[4 + CQS + 2 * srq];

	return (uint16_t)(__atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE) - r->avail_at);
}

/* Goes on in now where r runs: what was taken is used at once. */
static void move(struct ring *r, struct ring *now)
{
	uint16_t end = __atomic_load_n(&now->avail->idx, __ATOMIC_ACQUIRE), id;

	need(r->on && r->call < 0 && end == __atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE));
	now->avail_at = now->used_at = now->used->idx;
	need((uint16_t)(end - now->avail_at) >= (uint16_t)(end - r->avail_at));
	while (now->avail_at != r->avail_at) {
		pop(now, &id, NULL);
		push(now, id, 0);
	}
	now->ahead = now->moved = r->ahead;
	memcpy(now->ahead_copy, r->ahead_copy, sizeof(now->ahead_copy));
	*r = *now;
}

static uint8_t control(uint8_t cmd, const uint8_t *in, uint32_t inlen, uint8_t *out, uint32_t outlen)
{
#define IN(type) (*(const struct type *)(const void *)memcpy(alloca(sizeof(struct type)), in, sizeof(struct type)))
#define NEED_IN(type) need(inlen == sizeof(struct type))
#define RESULT(...)                                                      \
	do {                                                             \
		__typeof__(__VA_ARGS__) r_ = __VA_ARGS__;                \
		need(outlen >= sizeof(r_));                              \
		memcpy(out, &r_, sizeof(r_));                            \
		return 0;                                                \
	} while (0)
	switch (cmd) {
	case WEFT_CMD_QUERY_DEVICE:
		RESULT((struct weft_res_query_device){
			.device_cap_flags = 1 | 1ull << WEFT_CAP_ATOMIC | 1ull << WEFT_CAP_SRQ |
				1ull << WEFT_CAP_ASYNC_EVQ | 1ull << WEFT_CAP_ERRNO_ACK |
				1ull << WEFT_CAP_SG_WQE | 1ull << WEFT_CAP_ARM_DOORBELL |
				1ull << WEFT_CAP_VERBS | 1ull << WEFT_CAP_SRQ_RESIZE,
			.max_mr_size = ~0ull, .page_size_cap = 0x1000, .max_qp_wr = 1024,
			.max_send_sge = 16, .max_recv_sge = 16, .max_sge_rd = 16, .max_cqe = 4096,
			.max_mr = 64, .max_pd = 64, .max_qp_rd_atom = 16,
			.max_qp_init_rd_atom = 16, .max_ah = 64, .max_srq = 8,
			.max_srq_wr = 1024, .max_srq_sge = 16, .atomic_cap = 1, .max_inline = 1024,
		});
	case WEFT_CMD_EXT_ENABLE:
		NEED_IN(weft_cmd_ext_enable);
		n.errno_ack = true;
		RESULT((struct weft_cmd_ext_enable){ IN(weft_cmd_ext_enable).mask });
	case WEFT_CMD_CREATE_CQ:
		NEED_IN(weft_cmd_create_cq);
		for (uint32_t c = 0; c < CQS; c++) {
			if (n.cq[c].on)
				continue;
			n.cq[c] = (struct cq){ .on = true, .backlog = calloc(BACKLOG, sizeof(struct weft_cqe)) };
			RESULT((struct weft_res_create_cq){ c });
		}
		return ENOSPC;
	case WEFT_CMD_DESTROY_CQ: {
		uint32_t c = IN(weft_cmd_destroy_cq).cqn;

		for (uint32_t q = 0; q < QPS; q++)
			if (n.qp[q].on && (n.qp[q].send_cq == c || n.qp[q].recv_cq == c))
				return EBUSY;
		n.cq[c].on = false;
		free(n.cq[c].backlog);
		return 0;
	}
	case WEFT_CMD_RESIZE_CQ:
		return 0;
	case WEFT_CMD_SET_EVQ:
		n.evq = IN(weft_cmd_set_evq).cqn;
		return 0;
	case WEFT_CMD_SET_ARM_AREA:
		need(inside(IN(weft_cmd_set_arm_area).gpa, 4));
		n.cq[IN(weft_cmd_set_arm_area).cqn].arm = (void *)(uintptr_t)IN(weft_cmd_set_arm_area).gpa;
		return 0;
	case WEFT_CMD_CREATE_PD:
		RESULT((struct weft_res_create_pd){ 1 });
	case WEFT_CMD_REG_MR_VA:
		for (uint32_t i = 0; i < 64; i++) {
			struct weft_cmd_reg_mr_va m = IN(weft_cmd_reg_mr_va);

			if (n.mr[i].on)
				continue;
			need(!(m.access & ~0x3fu));
			n.mr[i].on = true;
			n.mr[i].va = m.va;
			n.mr[i].len = m.length;
			n.mr[i].iova = m.iova;
			n.mr[i].access = m.access;
			RESULT((struct weft_mr_result){ i + 1, 100 + i, 100 + i });
		}
		return ENOSPC;
	case WEFT_CMD_DEREG_MR:
		n.mr[IN(weft_cmd_dereg_mr).mrn - 1].on = false;
		return 0;
	case WEFT_CMD_CREATE_QP: {
		struct weft_cmd_create_qp m = IN(weft_cmd_create_qp);

		NEED_IN(weft_cmd_create_qp);
		need(m.qp_flags == WEFT_QP_SG_WQE);
		for (uint32_t q = 2; q < QPS; q++) {
			if (n.qp[q].on || n.srq[q])
				continue;
			n.qp[q].on = true;
			n.qp[q].state = 0;
			n.qp[q].type = m.qp_type;
			n.qp[q].send_cq = m.send_cqn;
			n.qp[q].recv_cq = m.recv_cqn;
			n.qp[q].srqn1 = m.srqn1;
			RESULT((struct weft_res_create_qp_ex){ q, SESSION << 14 | q });
		}
		return ENOSPC;
	}
	case WEFT_CMD_MODIFY_QP_EX: {
		struct weft_qp_attr_ex m = IN(weft_qp_attr_ex);

		NEED_IN(weft_qp_attr_ex);
		if (m.attr_mask & 1 << 7 && !m.is_global)
			return EINVAL;
		if (m.attr_mask & 1 << 20)
			n.qp[m.qpn].peer = m.dest_qp_num & 0x3fff;
		if (m.attr_mask & 1)
			n.qp[m.qpn].state = m.qp_state;
		return 0;
	}
	case WEFT_CMD_QUERY_QP_EX:
		RESULT((struct weft_qp_attr_ex){ .qp_state = n.qp[IN(weft_cmd_query_qp_ex).qpn].state });
	case WEFT_CMD_DESTROY_QP:
		n.qp[IN(weft_cmd_destroy_qp).qpn].on = false;
		return 0;
	case WEFT_CMD_CREATE_SRQ:
		NEED_IN(weft_cmd_create_srq);
		for (uint32_t q = 2; q < QPS; q++) {
			if (n.qp[q].on || n.srq[q])
				continue;
			n.srq[q] = true;
			n.srq_wr[q] = IN(weft_cmd_create_srq).max_wr;
			n.srq_limit[q] = IN(weft_cmd_create_srq).limit;
			RESULT((struct weft_res_create_srq){ q, 4 + CQS + 2 * q });
		}
		return ENOSPC;
	case WEFT_CMD_MODIFY_SRQ: {
		struct weft_cmd_modify_srq m = IN(weft_cmd_modify_srq);
		uint32_t wr = m.mask & WEFT_SRQ_MAX_WR ? m.max_wr : n.srq_wr[m.srqn];
		uint32_t limit = m.mask & WEFT_SRQ_LIMIT ? m.limit : n.srq_limit[m.srqn];

		NEED_IN(weft_cmd_modify_srq);
		need(n.srq[m.srqn] && m.mask && !(m.mask & ~3u));
		if (limit > wr || (m.mask & WEFT_SRQ_MAX_WR && wr < waiting(m.srqn)))
			return EINVAL;
		n.srq_wr[m.srqn] = wr;
		n.srq_limit[m.srqn] = limit;
		return 0;
	}
	case WEFT_CMD_QUERY_SRQ: {
		uint32_t q = IN(weft_cmd_query_srq).srqn;

		need(n.srq[q]);
		RESULT((struct weft_res_query_srq){ n.srq_wr[q], 16, n.srq_limit[q], waiting(q) });
	}
	case WEFT_CMD_DESTROY_SRQ:
		n.srq[IN(weft_cmd_destroy_srq).srqn] = false;
		return 0;
	case WEFT_CMD_CREATE_AH:
		NEED_IN(weft_cmd_create_ah);
		if (IN(weft_cmd_create_ah).ah_attr.flags & WEFT_AH_NO_GRH)
			return EINVAL;
		RESULT((struct weft_res_create_ah){ 1 });
	case WEFT_CMD_QUERY_PORT_EX:
		RESULT((struct weft_res_query_port_ex){ .state = 4, .max_mtu = 5, .active_mtu = 3,
			.phys_state = 5, .link_layer = 2, .gid_tbl_len = 2, .pkey_tbl_len = 1,
			.max_msg_sz = 1u << 31, .flags = 1 });
	case WEFT_CMD_QUERY_GID: {
		struct weft_res_query_gid g = { .type = 2, .valid = 1, .ifindex = 1 };

		if (IN(weft_cmd_query_gid).index > 1)
			return EINVAL;
		memcpy(g.gid, IN(weft_cmd_query_gid).index ? "\0\0\0\0\0\0\0\0\0\0\377\377\12\0\0\1" :
			"\376\200\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 16);
		RESULT(g);
	}
	case WEFT_CMD_QUERY_PKEY:
		RESULT((struct weft_res_query_pkey){ .pkey = 0xffff });
	case WEFT_CMD_DESTROY_PD:
	case WEFT_CMD_DESTROY_AH:
		return 0;
	}
	return EOPNOTSUPP;
}

static bool commands(void)
{
	struct ring *r = &n.ring[2];
	struct weft_vring_desc *d;
	uint8_t *req, *res, in[4096];
	uint16_t id;

	if (!available(r))
		return false;
	req = pop(r, &id, NULL);
	d = &r->desc[id];
	need(d->flags == WEFT_VRING_DESC_NEXT && d->len >= 2 && d->len <= sizeof(in));
	memcpy(in, req, d->len);
	need(in[0] == WEFT_CLASS_ROCE);
	need(r->desc[d->next].flags == WEFT_VRING_DESC_WRITE && r->desc[d->next].len >= 1);
	res = (void *)(uintptr_t)r->desc[d->next].addr;
	need(inside(r->desc[d->next].addr, r->desc[d->next].len));
	res[0] = control(in[1], in + 2, d->len - 2, res + 1, r->desc[d->next].len - 1);
	push(r, id, r->desc[d->next].len);
	call(r);
	return true;
}

/* ---- messages ---- */

static void answer(uint32_t request, const void *p, uint32_t size)
{
	struct weft_vu_hdr h = { request, WEFT_VU_VERSION | WEFT_VU_REPLY, size };
	char m[256];

	memcpy(m, &h, sizeof(h));
	memcpy(m + sizeof(h), p, size);
	need(send(n.sock, m, sizeof(h) + size, MSG_NOSIGNAL) == (ssize_t)(sizeof(h) + size));
}

static bool message(void)
{
	struct weft_vu_hdr h;
	char body[256] = { 0 }, ctl[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { &h, sizeof(h) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof(ctl) };
	struct cmsghdr *c;
	uint64_t v = 0;
	int fd = -1;

	if (recvmsg(n.sock, &m, 0) != sizeof(h))
		return false;
	if ((c = CMSG_FIRSTHDR(&m)))
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	need((h.flags & 3) == 1 && h.size <= sizeof(body));
	if (h.size)
		need(recv(n.sock, body, h.size, MSG_WAITALL) == (ssize_t)h.size);
	switch (h.request) {
	case WEFT_VU_HELLO:
		need(h.size == sizeof(struct weft_hello));
		answer(h.request, &(struct weft_hello_reply){ .abi = WEFT_ABI_VERSION, .spin_us = 50 }, 16);
		return true;
	case WEFT_VU_GET_FEATURES:
		v = 1ull << 17 | 1ull << 30 | 1ull << 32 | 1ull << 55;
		answer(h.request, &v, 8);
		return true;
	case WEFT_VU_GET_PROTOCOL_FEATURES:
		v = 1ull << 3 | 1ull << 9 | 1ull << 15 | 1ull << 16 | 1ull << 56;
		answer(h.request, &v, 8);
		return true;
	case WEFT_VU_GET_STATUS:
		v = 0x0b;
		answer(h.request, &v, 8);
		return true;
	case WEFT_VU_GET_CONFIG: {
		struct weft_config conf = { .max_rdma_qps = QPS, .max_rdma_cqs = CQS };

		need(h.size == 44);
		memcpy(body + 12, &conf, sizeof(conf));
		answer(h.request, body, 44);
		return true;
	}
	case WEFT_VU_SET_PROTOCOL_FEATURES:
		return true;
	case WEFT_VU_ADD_MEM_REG: {
		struct weft_vu_mem_reg *r = (void *)body;
		struct stat st;

		need(h.size == sizeof(*r) && fd >= 0 && r->gpa == r->user_addr && !fstat(fd, &st) &&
		     (uint64_t)st.st_size >= r->size && n.nmem < 64);
		need((fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW));
		n.mem[n.nmem].base = r->gpa;
		n.mem[n.nmem++].size = r->size;
		break;
	}
	case WEFT_VU_SET_DOORBELL: {
		struct weft_set_doorbell *s = (void *)body;

		need(fd >= 0 && !(s->gpa % 64) && !(s->nbits % 64) && s->nbits >= RINGS &&
		     inside(s->gpa, 128 + s->nbits / 8));
		n.db = (void *)(uintptr_t)s->gpa;
		n.nbits = s->nbits;
		n.kick = fd;
		fd = -1;
		break;
	}
	case WEFT_VU_PROC_MEM: {
		struct weft_proc_mem *p = (void *)body;

		need(pread(fd, &n.probe_word, 8, (off_t)p->probe_addr) == 8 && n.probe_word == p->probe_value);
		break;
	}
	case WEFT_VU_SET_RING: {
		struct weft_set_ring *s = (void *)body;
		static struct ring now;

		need(h.size == sizeof(*s) && s->index < RINGS && s->num && !(s->num & (s->num - 1)) &&
		     inside(s->desc, 16ull * s->num) && inside(s->avail, 6 + 2ull * s->num) &&
		     inside(s->used, 6 + 8ull * s->num) && !(s->desc % 16) && !(s->used % 4));
		need((s->flags & WEFT_RING_CALL) == (fd >= 0));
		now = (struct ring){ .on = true, .num = s->num, .desc = (void *)(uintptr_t)s->desc,
			.avail = (void *)(uintptr_t)s->avail, .used = (void *)(uintptr_t)s->used,
			.call = fd, .call_value = s->call_value };
		if (s->flags & WEFT_RING_MOVE) {
			move(&n.ring[s->index], &now);
			break;
		}
		need(!n.ring[s->index].on);
		n.ring[s->index] = now;
		fd = -1;
		break;
	}
	case WEFT_VU_STOP_RING: {
		struct weft_stop_ring *s = (void *)body;

		need(s->index < RINGS && n.ring[s->index].on);
		if (n.ring[s->index].call >= 0)
			close(n.ring[s->index].call);
		n.ring[s->index] = (struct ring){ .call = -1 };
		break;
	}
	case WEFT_VU_SET_OWNER:
	case WEFT_VU_SET_STATUS:
	case WEFT_VU_SET_FEATURES:
		break;
	default:
		need(!"known request");
	}
	if (fd >= 0)
		close(fd);
	need(h.flags & WEFT_VU_NEED_REPLY);
	v = 0;
	answer(h.request, &v, 8);
	return true;
}

static bool bells(void)
{
	uint32_t words = n.nbits / 64;
	bool any = false;

	if (!__atomic_exchange_n(&n.db->summary, 0, __ATOMIC_SEQ_CST))
		return false;
	for (uint32_t w = 0; w < words; w++)
		any |= __atomic_exchange_n(&n.db->bits[w], 0, __ATOMIC_SEQ_CST) != 0;
	fake_bells++;
	return any;
}

static void *run(void *arg)
{
	int idle = 0;

	(void)arg;
	n.sock = accept4(n.listener, NULL, NULL, SOCK_CLOEXEC);
	n.kick = -1;
	need(n.sock >= 0);
	for (;;) {
		struct pollfd p[2] = { { n.sock, POLLIN, 0 }, { n.kick, POLLIN, 0 } };
		uint64_t k;
		int wait = 0;

		if (n.db && ++idle > 20) {
			__atomic_store_n(&n.db->sleeping, 1, __ATOMIC_SEQ_CST);
			if (!__atomic_load_n(&n.db->summary, __ATOMIC_SEQ_CST) && (!have_pending || dry))
				wait = 20;
		}
		need(poll(p, 2, n.db ? wait : -1) >= 0 || errno == EINTR);
		if (n.db)
			__atomic_store_n(&n.db->sleeping, 0, __ATOMIC_SEQ_CST);
		if (p[1].revents & POLLIN && read(n.kick, &k, 8) == 8)
			fake_kicks++;
		if (p[0].revents && !message())
			return NULL;
		/* Only rings with a rung bell have work: a lost bell must show. */
		if (n.db && bells()) {
			idle = 0;
			dry = false;
			while (commands())
				;
			while (work())
				;
		} else if (have_pending && !dry) {
			work();
		}
	}
}

static void put(const char *dir, const char *name, const char *text)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	need(f);
	fputs(text, f);
	fclose(f);
}

static void fill(const char *dir)
{
	char cmd[256], path[256];

	snprintf(cmd, sizeof(cmd), "mkdir -p %s/door %s/tree/sys/class/infiniband/weft0", dir, dir);
	need(!system(cmd));
	snprintf(path, sizeof(path), "%s/tree/sys/class/infiniband/weft0", dir);
	put(path, "node_guid", "0200:00ff:fe00:0001\n");
	put(path, "node_type", "1: CA\n");
}

void fake_exec(char **argv, const char *preload)
{
	own_dir(argv, fill, preload);
}

void fake_start(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	pthread_t t;

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/door/weft0.sock", getenv("WEFT_DIR"));
	n.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	need(!bind(n.listener, (struct sockaddr *)&sa, sizeof(sa)) && !listen(n.listener, 4));
	need(!pthread_create(&t, NULL, run, NULL));
}

void fake_kill(void)
{
	shutdown(n.sock, SHUT_RDWR);
}

bool fake_owns(int fd)
{
	bool own = fd == n.listener || fd == n.sock || fd == n.kick;

	for (uint32_t i = 0; i < RINGS; i++)
		own |= n.ring[i].on && n.ring[i].call == fd;
	return own;
}

void fake_events(uint32_t type, uint32_t object, uint32_t count)
{
	pthread_mutex_lock(&event_mu);
	pending = (struct weft_event){ .type = type, .object = object };
	have_pending = count;
	pthread_mutex_unlock(&event_mu);
	while (have_pending && !dry)
		usleep(100);
}

void fake_event(uint32_t type, uint32_t object)
{
	fake_events(type, object, 1);
}
