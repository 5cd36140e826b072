/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: each must end as verbs defines, and touch no byte it should not. */
#include "vc.h"

#include <errno.h>
#include <string.h>

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		    IBV_ACCESS_REMOTE_ATOMIC)

/* after_error: the failed queue pair is in ERR, later requests flush, nothing else completes. */
static void after_error(struct conn *c, int i)
{
	struct side *s = &c->s[i];
	struct swr w = swr(c, IBV_WR_SEND, 0);

	wait_state(s->e, s->qp, IBV_QPS_ERR);
	add(&w, s->txm, 0, 4);
	post(c, i, &w);
	want_wc(s->e, s->scq, w.wr_id, IBV_WC_WR_FLUSH_ERR);
	want_none(s->e, s->scq, 10);
}

/* untouched: no byte of either end has changed. */
static void untouched(struct conn *c, const char *what)
{
	for (int i = 0; i < 2; i++) {
		verify(c->s[i].e, c->s[i].rx, 0, what);
		verify(c->s[i].e, c->s[i].tx, 0, what);
	}
}

void fails(struct conn *c, struct swr *w, enum ibv_wc_status st)
{
	struct side *s = &c->s[0];
	struct swr list[2] = { *w, swr(c, IBV_WR_RDMA_WRITE, 0) };

	add(&list[1], s->txm, 0, 4);
	target(&list[1], c, 0, c->s[1].rxm, 0);
	OK(try_post_send(s->e, s->qp, list, 2, NULL));
	struct ibv_wc wc = one(s->e, s->scq);
	CHECK(wc.wr_id == w->wr_id && wc.qp_num == s->qpn, "completion of %llx, want the failing request",
	      (unsigned long long)wc.wr_id);
	CHECK(wc.status == st || flushed_fault(s->e, st, wc.status), "%s, want %s", ibv_wc_status_str(wc.status),
	      ibv_wc_status_str(st));
	want_wc(s->e, s->scq, list[1].wr_id, IBV_WC_WR_FLUSH_ERR);
	after_error(c, 0);
}

/* ---- local faults of the sender ---- */

enum { KEY_WRONG, KEY_OTHER_PD, KEY_FREED, KEY_RANGE, KEY_BELOW, KEY_WRAP };

static struct ibv_sge bad_sge(struct side *s, int kind, int access)
{
	struct mr m;
	struct ibv_sge g = { .addr = s->tx.addr + 100, .length = 64, .lkey = s->txm.lkey };

	switch (kind) {
	case KEY_WRONG:
		g.lkey ^= 0x5a5a5a5a;
		break;
	case KEY_OTHER_PD:
		m = make_mr(s->e, make_pd(s->e), s->tx, 0, s->tx.len, access);
		g.lkey = m.lkey;
		break;
	case KEY_FREED:
		m = make_mr(s->e, s->pd, s->tx, 0, s->tx.len, access);
		OK(try_free(s->e, OP_MR_FREE, m.id));
		g.lkey = m.lkey;
		break;
	case KEY_RANGE:
		m = make_mr(s->e, s->pd, s->tx, 100, 63, access);
		g.lkey = m.lkey;
		break;
	case KEY_BELOW:
		m = make_mr(s->e, s->pd, s->tx, 101, 500, access);
		g.lkey = m.lkey;
		break;
	case KEY_WRAP:
		g.addr = UINT64_MAX - 15;
		break;
	}
	return g;
}

/* Soft-RoCE reports a key of a send that it does not find as LOC_QP_OP. */
static enum ibv_wc_status prot(struct end *e, int kind)
{
	return e->rxe && kind < KEY_RANGE ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR;
}

static void lkey(int kind)
{
	static const int ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	for (unsigned k = 0; k < 4; k++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = 4096 });
		struct swr w = swr(&c, ops[k], 0);
		struct rwr r = rwr(&c);
		radd(&r, c.s[1].rxm, 0, 200);
		post_recv(&c, 1, &r);
		w.sge[w.num_sge++] = bad_sge(&c.s[0], kind, ALL_ACCESS);
		if (k == 3)
			w.sge[0].length = 8;
		if (k == 3 && kind == KEY_RANGE) { /* eight bytes would fit */
			struct mr m = make_mr(A, c.s[0].pd, c.s[0].tx, 100, 7, ALL_ACCESS);
			w.sge[0].lkey = m.lkey;
		}
		target(&w, &c, 0, c.s[1].txm, (8 - c.s[1].tx.addr % 8) % 8);
		if (A->rxe && k >= 2) { /* finds out when the answer comes */
			struct ibv_wc wc;
			OK(try_post_send(A, c.s[0].qp, &w, 1, NULL));
			wc = one(A, c.s[0].scq);
			CHECK(wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR, "%s", ibv_wc_status_str(wc.status));
			destroy_qps(&c);
			continue;
		}
		fails(&c, &w, prot(A, kind));
		want_none(B, c.s[1].rcq, 0);
		if (k != 3) /* the atomic may have been executed */
			untouched(&c, "buffers after a local fault");
		destroy_qps(&c);
	}
}
static void lkey_wrong(void) { lkey(KEY_WRONG); }
static void lkey_pd(void) { lkey(KEY_OTHER_PD); }
static void lkey_freed(void) { lkey(KEY_FREED); }
static void lkey_range(void) { lkey(KEY_RANGE); }
static void lkey_below(void) { lkey(KEY_BELOW); }
static void lkey_wrap(void) { lkey(KEY_WRAP); }

/* The result of a READ or an atomic into memory that may not be written. */
static void read_into_readonly(void)
{
	for (int k = 0; k < 2; k++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = 4096 });
		struct mr ro = make_mr(A, c.s[0].pd, c.s[0].rx, 0, 4096, 0);
		struct swr w = swr(&c, k ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
		add(&w, ro, 0, k ? 8 : 100);
		target(&w, &c, 0, c.s[1].txm, (8 - c.s[1].tx.addr % 8) % 8);
		post(&c, 0, &w);
		struct ibv_wc wc = one(A, c.s[0].scq);
		CHECK(wc.wr_id == w.wr_id && (wc.status == IBV_WC_LOC_PROT_ERR || (A->rxe && wc.status == IBV_WC_LOC_QP_OP_ERR)),
		      "%s, want %s", ibv_wc_status_str(wc.status), ibv_wc_status_str(IBV_WC_LOC_PROT_ERR));
		after_error(&c, 0);
		verify(A, c.s[0].rx, 0, "read-only result buffer");
		destroy_qps(&c);
	}
}

/* ---- faults that the responder finds ---- */

static void put_target(struct conn *c, struct swr *w, int op, uint64_t at)
{
	*w = swr(c, op, 0);
	add(w, c->s[0].rxm, 0, op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_READ ? 64 : 8);
	target(w, c, 0, c->s[1].rxm, at);
}

/* remote runs one faulty request of each kind through make and expects the
 * sender's status and the responder's event. */
static void remote(void (*make)(struct conn *c, struct swr *w), const int *ops, int n, int access,
	enum ibv_wc_status st, int event)
{
	for (int k = 0; k < n; k++) {
		struct conn c;
		struct swr w;
		connect_pair(&c, &(struct opt){ .room = 4096, .access = { 0, access } });
		put_target(&c, &w, ops[k], aligned(c.s[1].rx));
		make(&c, &w);
		fails(&c, &w, st);
		untouched(&c, "buffers after a refused request");
		wait_state(B, c.s[1].qp, IBV_QPS_ERR);
		if (!B->rxe)
			want_async(B, event, c.s[1].qp);
		destroy_qps(&c);
	}
}

static const int rdma_ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
	IBV_WR_ATOMIC_FETCH_AND_ADD };
#define REM_ACCESS(name, n, body) \
	static void name##_make(struct conn *c, struct swr *w) body \
	static void name(void) { remote(name##_make, rdma_ops, n, 0, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR); }

REM_ACCESS(rkey_wrong, 4, { (void)c; w->rkey ^= 0x5a5a5a5a; })
REM_ACCESS(rkey_zero, 4, { (void)c; w->rkey = 0; })
REM_ACCESS(rkey_pd, 4, { w->rkey = make_mr(B, make_pd(B), c->s[1].rx, 0, 4096, ALL_ACCESS).rkey; })
REM_ACCESS(rkey_freed, 4, {
	struct mr m = make_mr(B, c->s[1].pd, c->s[1].rx, 0, 4096, ALL_ACCESS);
	OK(try_free(B, OP_MR_FREE, m.id));
	w->rkey = m.rkey;
})
REM_ACCESS(rkey_range, 4, { /* one byte too short */
	w->rkey = make_mr(B, c->s[1].pd, c->s[1].rx, aligned(c->s[1].rx), w->sge[0].length - 1, ALL_ACCESS).rkey;
})
REM_ACCESS(rkey_below, 4, { /* begins one byte too late */
	w->rkey = make_mr(B, c->s[1].pd, c->s[1].rx, aligned(c->s[1].rx) + 1, 1000, ALL_ACCESS).rkey;
})
REM_ACCESS(rkey_wrap, 2, { (void)c; w->raddr = UINT64_MAX - 31; })
REM_ACCESS(rkey_far, 4, { (void)c; w->raddr += 1ull << 40; })
REM_ACCESS(rkey_no_right, 4, { /* all rights but the one it takes */
	int need = w->opcode == IBV_WR_RDMA_WRITE ? IBV_ACCESS_REMOTE_WRITE :
		   w->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_ATOMIC;
	w->rkey = make_mr(B, c->s[1].pd, c->s[1].rx, 0, 4096, ALL_ACCESS & ~need).rkey;
})

static const uint32_t long_and_short[] = { 64, 20000 };

/* refused posts w to a responder with two receives, and expects the sender's status, the responder's event, and that no
 * receive reports a fault that is not its own. */
static void refused(struct conn *c, struct swr *w, enum ibv_wc_status st, int event)
{
	struct rwr r[2] = { rwr(c), rwr(c) };

	for (int i = 0; i < 2; i++) {
		radd(&r[i], c->s[1].txm, 0, 4);
		post_recv(c, 1, &r[i]);
	}
	fails(c, w, st);
	wait_state(B, c->s[1].qp, IBV_QPS_ERR);
	for (int i = 0; i < 2; i++)
		want_wc(B, c->s[1].rcq, r[i].wr_id, IBV_WC_WR_FLUSH_ERR);
	want_async(B, event, c->s[1].qp);
}

/* A WRITE with immediate that is refused consumes no receive, whether it has one packet or several. */
static void write_imm_refused(void)
{
	if (B->rxe)
		skip("soft-RoCE completes the receive of one packet with an error, and flushes that of several");
	for (int k = 0; k < 2; k++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = 32 << 10 });
		struct swr w = swr(&c, IBV_WR_RDMA_WRITE_WITH_IMM, 0);
		add(&w, c.s[0].txm, 0, long_and_short[k]);
		target(&w, &c, 0, c.s[1].rxm, 0);
		w.rkey ^= 0x5a5a5a5a;
		refused(&c, &w, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
		untouched(&c, "buffers after a refused WRITE with immediate");
		destroy_qps(&c);
	}
}

/* A request for memory that the program has unmapped since it registered it: the key is right, the responder fails. */
static void memory_gone(void)
{
	static const int ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
		IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };
	if (B->rxe)
		skip("soft-RoCE pins memory: it cannot go");
	for (unsigned k = 0; k < 5; k++)
		for (int l = 0; l < (k < 3 ? 2 : 1); l++) {
			struct conn c;
			connect_pair(&c, &(struct opt){ .room = 32 << 10 });
			struct swr w = swr(&c, ops[k], 0);
			/* Short enough that it is no arena's, which keeps it. */
			struct buf b = make_buf(B, 32 << 10, 0);
			struct mr m = make_mr(B, c.s[1].pd, b, 0, b.len, ALL_ACCESS);
			unmap(B, b);
			add(&w, k < 2 ? c.s[0].txm : c.s[0].rxm, 0, k < 3 ? long_and_short[l] : 8);
			target(&w, &c, 0, m, 0);
			refused(&c, &w, IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
			destroy_qps(&c);
		}
}

static void nothing(struct conn *c, struct swr *w) { (void)c, (void)w; }

/* The queue pair itself forbids the operation: invalid request (IBA 9.7.4.1.5). */
static void qp_no_right(void)
{
	for (int k = 0; k < 4; k++) {
		int need = k == 0 ? IBV_ACCESS_REMOTE_WRITE : k == 1 ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_ATOMIC;
		int rest = (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC) & ~need;
		remote(nothing, &rdma_ops[k], 1, rest, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
	}
}

static void atomic_misaligned(void)
{
	for (int k = 2; k < 4; k++)
		for (int off = 1; off < 8; off += 3) {
			struct conn c;
			struct swr w;
			connect_pair(&c, &(struct opt){ .room = 4096 });
			put_target(&c, &w, rdma_ops[k], aligned(c.s[1].rx) + off);
			if (A->rxe) { /* the library refuses it */
				EXPECT_RC(EINVAL, try_post_send(A, c.s[0].qp, &w, 1, NULL));
			} else {
				fails(&c, &w, IBV_WC_REM_INV_REQ_ERR);
				wait_state(B, c.s[1].qp, IBV_QPS_ERR);
			}
			untouched(&c, "buffers after a misaligned atomic");
			destroy_qps(&c);
		}
}

/* A message one byte longer than the receive, at several sizes. */
static void send_long(void)
{
	uint32_t lens[] = { 1, 100, 0, 0, 5000 };
	for (int k = 0; k < 5; k++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = 64 << 10 });
		uint32_t mtu = c.mtu, len = k == 2 ? mtu : k == 3 ? 3 * mtu + 1 : lens[k];
		uint64_t seed = rnd();
		struct swr w = swr(&c, IBV_WR_SEND, 0);
		struct rwr r[2] = { rwr(&c), rwr(&c) };
		fill(A, c.s[0].tx, 0, len, seed);
		radd(&r[0], c.s[1].rxm, 10, len - 1);
		radd(&r[1], c.s[1].rxm, 30000, 4);
		post_recv(&c, 1, &r[0]);
		post_recv(&c, 1, &r[1]);
		add(&w, c.s[0].txm, 0, len);
		fails(&c, &w, B->rxe ? IBV_WC_REM_OP_ERR : IBV_WC_REM_INV_REQ_ERR);
		want_wc(B, c.s[1].rcq, r[0].wr_id, B->rxe ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_LEN_ERR);
		want_wc(B, c.s[1].rcq, r[1].wr_id, IBV_WC_WR_FLUSH_ERR);
		wait_state(B, c.s[1].qp, IBV_QPS_ERR);
		/* Packets that fitted may have been placed, nothing else. */
		char got[3 * 4096];
		uint32_t whole = (len - 1) / mtu * mtu;
		if (whole) {
			CHECK(whole <= sizeof got, "test bug");
			get_bytes(B, c.s[1].rx, 10, got, whole);
			expect_bytes(B, c.s[1].rx, 10, got, whole);
		}
		if (len - 1 > whole && B->rxe) {
			get_bytes(B, c.s[1].rx, 10 + whole, got, len - 1 - whole);
			expect_bytes(B, c.s[1].rx, 10 + whole, got, len - 1 - whole);
		}
		verify(B, c.s[1].rx, 0, "receive buffer that was too short");
		destroy_qps(&c);
	}
}

/* A receive with faulty entries of its own. */
static void recv_fault(void)
{
	for (int kind = KEY_WRONG; kind <= KEY_WRAP + 1; kind++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = 4096 });
		struct swr w = swr(&c, IBV_WR_SEND, 0);
		struct rwr r = rwr(&c);
		if (kind > KEY_WRAP) { /* a region that may not be written */
			struct mr ro = make_mr(B, c.s[1].pd, c.s[1].tx, 0, 4096, IBV_ACCESS_REMOTE_READ);
			radd(&r, ro, 100, 64);
		} else {
			r.sge[r.num_sge++] = bad_sge(&c.s[1], kind, ALL_ACCESS);
		}
		post_recv(&c, 1, &r);
		add(&w, c.s[0].txm, 0, 64);
		if (B->rxe) { /* reports some of them otherwise */
			post(&c, 0, &w);
			struct ibv_wc wc = one(A, c.s[0].scq);
			CHECK(wc.status == IBV_WC_REM_OP_ERR || wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR,
			      "sender: %s", ibv_wc_status_str(wc.status));
			wc = one(B, c.s[1].rcq);
			CHECK(wc.status == IBV_WC_LOC_QP_OP_ERR || wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_ACCESS_ERR,
			      "receiver: %s", ibv_wc_status_str(wc.status));
		} else {
			fails(&c, &w, IBV_WC_REM_OP_ERR);
			want_wc(B, c.s[1].rcq, r.wr_id, IBV_WC_LOC_PROT_ERR);
		}
		wait_state(B, c.s[1].qp, IBV_QPS_ERR);
		untouched(&c, "buffers after a faulty receive");
		destroy_qps(&c);
	}
}

/* ---- not ready, not there ---- */

static void rnr_exceeded(void)
{
	for (int tries = 0; tries <= 3; tries++)
		for (int op = 0; op < 2; op++) {
			struct conn c;
			connect_pair(&c, &(struct opt){ .until = IBV_QPS_RTR, .min_rnr = 14, .room = 4096 });
			c.o.rnr = tries;
			for (int i = 0; i < 2; i++)
				to_state(&c, i, IBV_QPS_RTS);
			struct swr w = swr(&c, op ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND, 0);
			add(&w, c.s[0].txm, 0, 32);
			target(&w, &c, 0, c.s[1].rxm, 0);
			if (op) { /* its data may have been placed */
				fill(A, c.s[0].tx, 0, 32, 7);
				fill(B, c.s[1].rx, 0, 32, 7);
			}
			fails(&c, &w, IBV_WC_RNR_RETRY_EXC_ERR);
			untouched(&c, "buffers after a message that nobody received");
			CHECK(state(B, c.s[1].qp) == IBV_QPS_RTS, "the responder left RTS");
			destroy_qps(&c);
		}
}

/* With rnr_retry 7 a sender waits as long as it takes; the first packets of a
 * long message included. */
static void rnr_forever(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .rnr = 7, .min_rnr = 8, .room = 64 << 10 });
	for (int k = 0; k < 4; k++) {
		uint32_t len = k & 1 ? 20000 : 10;
		uint64_t seed = rnd();
		struct swr w = swr(&c, k & 2 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND, IBV_SEND_SIGNALED);
		struct rwr r = rwr(&c);
		fill(A, c.s[0].tx, 0, len, seed);
		expect(B, c.s[1].rx, 5, len, seed, 0);
		add(&w, c.s[0].txm, 0, len);
		target(&w, &c, 0, c.s[1].rxm, 5);
		post(&c, 0, &w);
		want_none(A, c.s[0].scq, 60);
		if (!(k & 2))
			radd(&r, c.s[1].rxm, 5, len);
		post_recv(&c, 1, &r);
		want_ok(&c, 0, &w, len);
		want_recv(&c, 1, &r, &w, len);
		verify(B, c.s[1].rx, 0, "a message that had to wait for its receive");
	}
}

/* A peer that does not answer: in RESET, destroyed, or never there. */
static void retry_exceeded(void)
{
	for (int k = 0; k < 3; k++)
		for (int op = 0; op < 3; op++) {
			static const int ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
			struct conn c;
			connect_pair(&c, &(struct opt){ .timeout = 8, .retry = 2, .room = 4096 });
			if (k == 0)
				to_state(&c, 1, IBV_QPS_RESET);
			else
				OK(try_free(B, OP_QP_FREE, c.s[1].qp));
			if (k == 2) { /* another one has moved in: it must not answer either */
				struct conn d;
				connect_pair(&d, &(struct opt){ .room = 4096 });
			}
			struct swr w = swr(&c, ops[op], 0);
			add(&w, c.s[0].txm, 0, 32);
			target(&w, &c, 0, c.s[1].rxm, 0);
			fails(&c, &w, IBV_WC_RETRY_EXC_ERR);
			untouched(&c, "buffers after no answer");
			OK(try_free(A, OP_QP_FREE, c.s[0].qp));
			if (k == 0)
				OK(try_free(B, OP_QP_FREE, c.s[1].qp));
		}
}

/* ---- order of flushing, recovery ---- */

static void flush_order(void)
{
	enum { N = 12 };
	struct conn c;
	struct swr w[N];
	struct rwr r[N];

	connect_pair(&c, &(struct opt){ .room = 4096 });
	for (int k = 0; k < N; k++) { /* sends that cannot leave, receives that nothing fills */
		w[k] = swr(&c, k % 3 ? IBV_WR_SEND : IBV_WR_RDMA_READ, k % 2 ? IBV_SEND_SIGNALED : 0);
		if (k == 0)
			w[k].opcode = IBV_WR_SEND;
		add(&w[k], c.s[0].rxm, 0, 16);
		target(&w[k], &c, 0, c.s[1].txm, 0);
		r[k] = rwr(&c);
		radd(&r[k], c.s[0].rxm, 64, 16);
	}
	OK(try_post_recv(A, c.s[0].qp, r, N, NULL));
	OK(try_post_send(A, c.s[0].qp, w, N, NULL));
	want_none(A, c.s[0].scq, 20);
	to_state(&c, 0, IBV_QPS_ERR);
	for (int k = 0; k < N; k++) {
		want_wc(A, c.s[0].scq, w[k].wr_id, IBV_WC_WR_FLUSH_ERR);
		want_wc(A, c.s[0].rcq, r[k].wr_id, IBV_WC_WR_FLUSH_ERR);
	}
	want_none(A, c.s[0].scq, 20);
	want_none(A, c.s[0].rcq, 0);
	untouched(&c, "buffers of flushed requests");
	CHECK(state(B, c.s[1].qp) == IBV_QPS_RTS, "the peer left RTS");
}

/* A failed pair can be reset and connected again. */
static void recover(void)
{
	struct conn c;

	connect_pair(&c, &(struct opt){ .room = 4096 });
	for (int round = 0; round < 3; round++) {
		ping(&c, round & 1);
		struct swr w;
		put_target(&c, &w, IBV_WR_RDMA_WRITE, 0);
		w.rkey ^= 0x77777777;
		fails(&c, &w, IBV_WC_REM_ACCESS_ERR);
		wait_state(B, c.s[1].qp, IBV_QPS_ERR);
		for (int st = IBV_QPS_RESET; st <= IBV_QPS_RTS; st++)
			for (int i = 0; i < 2; i++)
				to_state(&c, i, st);
		ping(&c, 0);
		ping(&c, 1);
	}
}

/* One pair's error leaves its neighbours alone, those on the same CQ included. */
static void neighbours(void)
{
	struct conn bad, good;

	connect_pair(&good, &(struct opt){ .room = 4096 });
	for (int k = 0; k < 5; k++) {
		struct swr w;
		connect_pair(&bad, &(struct opt){ .room = 4096 });
		put_target(&bad, &w, rdma_ops[k % 4], aligned(bad.s[1].rx));
		w.rkey++;
		fails(&bad, &w, IBV_WC_REM_ACCESS_ERR);
		ping(&good, k & 1);
	}
}

/* Destroying what still has work: no completion and no byte afterwards. */
static void destroy_outstanding(void)
{
	for (int k = 0; k < 4; k++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = 1 << 20 });
		struct swr w[8];
		struct rwr r = rwr(&c);
		fill(B, c.s[1].tx, 0, 1 << 20, 5);
		radd(&r, c.s[0].rxm, 0, 100);
		post_recv(&c, 0, &r);
		for (int i = 0; i < 8; i++) {
			w[i] = swr(&c, k & 1 ? IBV_WR_RDMA_READ : IBV_WR_SEND, IBV_SEND_SIGNALED);
			add(&w[i], c.s[0].rxm, 0, 1 << 20);
			target(&w[i], &c, 0, c.s[1].txm, 0);
		}
		OK(try_post_send(A, c.s[0].qp, w, 8, NULL));
		OK(try_free(A, OP_QP_FREE, c.s[0].qp));
		OK(try_free(A, OP_MR_FREE, c.s[0].rxm.id));
		/* The memory is the program's own again. */
		fill(A, c.s[0].rx, 0, 1 << 20, 6);
		verify(A, c.s[0].rx, 0, "memory after its users are gone");
		OK(try_free(B, OP_QP_FREE, c.s[1].qp));
		want_none(B, c.s[1].rcq, 20);
		verify(A, c.s[0].rx, 0, "memory after its users are gone");
	}
}

/* ---- regions that change ---- */

static void write_to(struct conn *c, struct mr m, uint64_t off, uint32_t len, uint64_t seed)
{
	struct swr w = swr(c, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	fill(A, c->s[0].tx, 0, len, seed);
	add(&w, c->s[0].txm, 0, len);
	target(&w, c, 0, m, off);
	post(c, 0, &w);
	want_ok(c, 0, &w, len);
}

static void zero_based(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = 8192 });
	struct mr m;
	int rc = try_mr(B, c.s[1].pd, c.s[1].rx.addr + 100, 1000, ALL_ACCESS | IBV_ACCESS_ZERO_BASED, &m);
	if (B->rxe)
		skip("soft-RoCE has no zero-based regions (registration: %s)", errname(rc));
	CHECK(!rc, "ibv_reg_mr, zero-based: %s", errname(rc));
	write_to(&c, m, 0, 1000, 11);
	expect(B, c.s[1].rx, 100, 1000, 11, 0);
	verify(B, c.s[1].rx, 0, "zero-based region");
	write_to(&c, m, 990, 10, 12);
	expect(B, c.s[1].rx, 1090, 10, 12, 0);
	verify(B, c.s[1].rx, 0, "end of a zero-based region");
	struct swr w;
	put_target(&c, &w, IBV_WR_RDMA_WRITE, 0);
	target(&w, &c, 0, m, 1000 - 63);
	fails(&c, &w, IBV_WC_REM_ACCESS_ERR);
	verify(B, c.s[1].rx, 0, "beyond a zero-based region");
}

static void rereg(void)
{
	struct conn c, other;
	connect_pair(&c, &(struct opt){ .room = 8192 });
	connect_pair(&other, &(struct opt){ .room = 8192 });
	struct buf b = c.s[1].rx;
	struct mr m = make_mr(B, c.s[1].pd, b, 0, 1000, ALL_ACCESS);
	int rc = try_rereg(B, &m, IBV_REREG_MR_CHANGE_TRANSLATION, NONE, b.addr + 2000, 500, 0);
	if (B->rxe && rc)
		skip("soft-RoCE cannot re-register (%s)", errname(rc));
	CHECK(!rc, "new translation: %s", errname(rc));
	write_to(&c, m, 0, 500, 21);
	expect(B, b, 2000, 500, 21, 0);
	verify(B, b, 0, "moved region");
	/* To the other pair's PD: it serves that pair, and no longer this one. */
	rc = try_rereg(B, &m, IBV_REREG_MR_CHANGE_PD, other.s[1].pd, 0, 0, 0);
	CHECK(!rc, "new PD: %s", errname(rc));
	write_to(&other, m, 10, 100, 22);
	expect(B, b, 2010, 100, 22, 0);
	verify(B, b, 0, "region in another PD");
	struct swr w;
	put_target(&c, &w, IBV_WR_RDMA_WRITE, 0);
	target(&w, &c, 0, m, 0);
	fails(&c, &w, IBV_WC_REM_ACCESS_ERR);
	/* Without the right to be written. */
	rc = try_rereg(B, &m, IBV_REREG_MR_CHANGE_ACCESS, NONE, 0, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(!rc, "new access: %s", errname(rc));
	put_target(&other, &w, IBV_WR_RDMA_WRITE, 0);
	target(&w, &other, 0, m, 0);
	fails(&other, &w, IBV_WC_REM_ACCESS_ERR);
	verify(B, b, 0, "region without the right");
}

const struct test error_tests[] = {
	{ "err.lkey.wrong", lkey_wrong, ASYNC },
	{ "err.lkey.pd", lkey_pd, ASYNC },
	{ "err.lkey.freed", lkey_freed, ASYNC },
	{ "err.lkey.range", lkey_range, ASYNC },
	{ "err.lkey.below", lkey_below, ASYNC },
	{ "err.lkey.wrap", lkey_wrap, ASYNC },
	{ "err.lkey.readonly", read_into_readonly, ASYNC },
	{ "err.rkey.wrong", rkey_wrong, ASYNC },
	{ "err.rkey.zero", rkey_zero, ASYNC },
	{ "err.rkey.pd", rkey_pd, ASYNC },
	{ "err.rkey.freed", rkey_freed, ASYNC },
	{ "err.rkey.range", rkey_range, ASYNC },
	{ "err.rkey.below", rkey_below, ASYNC },
	{ "err.rkey.wrap", rkey_wrap, ASYNC },
	{ "err.rkey.far", rkey_far, ASYNC },
	{ "err.rkey.right", rkey_no_right, ASYNC },
	{ "err.write_imm.refused", write_imm_refused, ASYNC },
	{ "err.gone", memory_gone, ASYNC },
	{ "err.qp.right", qp_no_right, ASYNC },
	{ "err.atomic.misaligned", atomic_misaligned, ASYNC },
	{ "err.send.long", send_long, ASYNC },
	{ "err.recv.fault", recv_fault, ASYNC },
	{ "err.rnr.exceeded", rnr_exceeded, ASYNC },
	{ "err.rnr.forever", rnr_forever, 0 },
	{ "err.retry.exceeded", retry_exceeded, ASYNC },
	{ "err.flush.order", flush_order, ASYNC },
	{ "err.recover", recover, ASYNC },
	{ "err.neighbours", neighbours, ASYNC },
	{ "err.destroy", destroy_outstanding, ASYNC },
	{ "mr.zero_based", zero_based, ASYNC },
	{ "mr.rereg", rereg, ASYNC },
	{ 0 },
};
