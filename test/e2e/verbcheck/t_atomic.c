/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics: results, targets, and that none is lost or done twice. */
#include "vc.h"

static uint64_t word(struct end *e, struct buf b, uint64_t off)
{
	uint64_t v;
	get_bytes(e, b, off, &v, 8);
	return v;
}

static void set_word(struct end *e, struct buf b, uint64_t off, uint64_t v)
{
	struct msg m = { .op = OP_EXPECT_BYTES, .id = b.id, .u = { off, 8 }, .i = { 1 } };
	call(e, &m, &v, 8, NULL, 0);
}

static void atomic(struct conn *c, int dir, bool cas, uint64_t old, uint64_t arg, uint64_t swap, uint64_t want)
{
	struct side *me = &c->s[dir], *peer = &c->s[!dir];
	struct swr w = swr(c, cas ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED);
	uint64_t at = aligned(peer->rx);

	set_word(peer->e, peer->rx, at, old);
	expect_bytes(peer->e, peer->rx, at, &want, 8);
	expect_bytes(me->e, me->rx, 11, &old, 8); /* the result may lie anywhere */
	w.cmp_add = arg;
	w.swap = swap;
	add(&w, me->rxm, 11, 8);
	target(&w, c, dir, peer->rxm, at);
	post(c, dir, &w);
	want_ok(c, dir, &w, 8);
	verify(me->e, me->rx, 0, "result of the atomic");
	verify(peer->e, peer->rx, 0, "target of the atomic");
}

static void rc_atomic(void)
{
	struct conn c;
	uint64_t x = 0x0102030405060708;

	connect_pair(&c, &(struct opt){ .room = 4096 });
	for (int dir = 0; dir < 2; dir++) {
		atomic(&c, dir, false, x, 0x1000000000000001, 0, x + 0x1000000000000001);
		atomic(&c, dir, false, UINT64_MAX, 2, 0, 1);
		atomic(&c, dir, false, x, 0, 0, x);
		atomic(&c, dir, false, 5, (uint64_t)-7, 0, (uint64_t)-2);
		atomic(&c, dir, false, 0xffffffff, 1, 0, 0x100000000);
		atomic(&c, dir, true, x, x, 0xa1a2a3a4a5a6a7a8, 0xa1a2a3a4a5a6a7a8);
		atomic(&c, dir, true, x, x + 1, 0xa1a2a3a4a5a6a7a8, x);
		atomic(&c, dir, true, x, be64toh(x), 0, x); /* the swapped value is not equal */
		atomic(&c, dir, true, 0, 0, UINT64_MAX, UINT64_MAX);
		for (int k = 0; k < 20; k++) {
			uint64_t o = rnd(), a = rnd(), s = rnd();
			atomic(&c, dir, false, o, a, s, o + a);
			atomic(&c, dir, true, o, k & 1 ? o : a, s, k & 1 ? s : o);
		}
	}
}

/* The result of an atomic scattered over several entries. */
static void rc_atomic_sge(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = 4096 });
	struct side *me = &c.s[0], *peer = &c.s[1];
	uint64_t at = aligned(peer->rx), old = 0x1122334455667788, want = old + 1;
	struct swr w = swr(&c, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED);

	set_word(peer->e, peer->rx, at, old);
	expect_bytes(peer->e, peer->rx, at, &want, 8);
	expect_bytes(me->e, me->rx, 100, &old, 3);
	expect_bytes(me->e, me->rx, 5, (char *)&old + 3, 5);
	w.cmp_add = 1;
	add(&w, me->rxm, 100, 3);
	add(&w, me->rxm, 50, 0);
	add(&w, me->rxm, 5, 5);
	target(&w, &c, 0, peer->rxm, at);
	post(&c, 0, &w);
	want_ok(&c, 0, &w, 8);
	verify(me->e, me->rx, 0, "scattered result of the atomic");
	verify(peer->e, peer->rx, 0, "target of the atomic");
}

/* Several queue pairs, from both ends, add to one word: no addition is lost
 * and every one returns another value. */
static void rc_atomic_contention(void)
{
	enum { Q = 4, N = 32 };
	struct conn c[Q];
	uint64_t seen[Q * N] = { 0 };
	struct swr w[N];

	for (int q = 0; q < Q; q++)
		connect_pair(&c[q], &(struct opt){ .end = { q & 1 ? B : A, B }, .rd = 1 << q % 3, .room = 4096, .sig_all = true });
	/* The word is in the B side's buffer of pair 0, reached through one key of a region in each pair's PD. */
	struct side *owner = &c[0].s[1];
	uint64_t at = aligned(owner->rx), base = 0xfffffffffffffff0;
	set_word(owner->e, owner->rx, at, base);
	for (int q = 0; q < Q; q++) {
		struct mr m = make_mr(B, c[q].s[1].pd, owner->rx, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		for (int k = 0; k < N; k++) {
			w[k] = swr(&c[q], IBV_WR_ATOMIC_FETCH_AND_ADD, 0);
			w[k].cmp_add = 1;
			add(&w[k], c[q].s[0].rxm, k * 8, 8);
			target(&w[k], &c[q], 0, m, at);
		}
		OK(try_post_send(c[q].s[0].e, c[q].s[0].qp, w, N, NULL));
	}
	for (int q = 0; q < Q; q++) {
		uint64_t last = 0;
		for (int k = 0; k < N; k++) {
			struct ibv_wc wc = one(c[q].s[0].e, c[q].s[0].scq);
			CHECK(wc.status == IBV_WC_SUCCESS, "fetch-and-add %d of pair %d: %s", k, q, ibv_wc_status_str(wc.status));
		}
		for (int k = 0; k < N; k++) {
			uint64_t v = word(c[q].s[0].e, c[q].s[0].rx, k * 8) - base;
			CHECK(v < Q * N && !seen[v]++,
			      "pair %d, addition %d returned base+%llu, which is out of range or was returned before", q, k,
			      (unsigned long long)v);
			CHECK(!k || v > last, "additions of pair %d executed out of order", q);
			last = v;
		}
	}
	uint64_t end = word(owner->e, owner->rx, at);
	CHECK(end == base + Q * N, "after %d additions the word is base+%llu", Q * N, (unsigned long long)(end - base));
}

/* A pair for ATOMIC WRITEs, which are posted by the calls of extended queue pairs or not. */
static void connect_atomic_write(struct conn *c, bool ex)
{
	connect_pair(c, &(struct opt){ .room = 4096, .send_ops = ex ? IBV_QP_EX_WITH_ATOMIC_WRITE : 0 });
	if (is_rxe(c))
		skip("soft-RoCE of this kernel does not know it");
}

/* Eight bytes of the sender's memory, whole, where writing is allowed. */
static void rc_atomic_write(void)
{
	for (int ex = 0; ex < 2; ex++) {
		struct conn c;
		connect_atomic_write(&c, ex);
		for (int k = 0; k < 40; k++) {
			int dir = k & 1;
			struct side *me = &c.s[dir], *peer = &c.s[!dir];
			struct swr w = swr(&c, IBV_WR_ATOMIC_WRITE, IBV_SEND_SIGNALED | (k & 2 ? IBV_SEND_INLINE : 0));
			uint64_t at = aligned(peer->rx) + 8 * (k / 4), seed = rnd();

			if (me->inl < 8)
				w.flags &= ~IBV_SEND_INLINE;
			fill(me->e, me->tx, 5, 8, seed);
			expect(peer->e, peer->rx, at, 8, seed, 5);
			add(&w, me->txm, 5, 8);
			target(&w, &c, dir, peer->rxm, at);
			post(&c, dir, &w);
			want_ok(&c, dir, &w, 8);
			verify(peer->e, peer->rx, 0, "target of an ATOMIC WRITE");
		}
		destroy_qps(&c);
	}
}

/* An ATOMIC WRITE is refused where no word is, in a region that may only be read, and with a length of 7. */
static void err_atomic_write(void)
{
	for (int ex = 0; ex < 2; ex++) {
		struct conn c;
		connect_atomic_write(&c, ex);
		struct swr w = swr(&c, IBV_WR_ATOMIC_WRITE, IBV_SEND_SIGNALED);
		add(&w, c.s[0].txm, 5, 8);
		target(&w, &c, 0, c.s[1].rxm, aligned(c.s[1].rx) + 4);
		post(&c, 0, &w);
		want_wc(A, c.s[0].scq, w.wr_id, IBV_WC_REM_INV_REQ_ERR);
		verify(B, c.s[1].rx, 0, "target of a refused ATOMIC WRITE");
		destroy_qps(&c);
	}
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = 4096 });
	struct mr ro = make_mr(B, c.s[1].pd, c.s[1].rx, 0, 4096, IBV_ACCESS_REMOTE_READ);
	struct swr w = swr(&c, IBV_WR_ATOMIC_WRITE, IBV_SEND_SIGNALED);
	add(&w, c.s[0].txm, 5, 8);
	target(&w, &c, 0, ro, aligned(c.s[1].rx));
	post(&c, 0, &w);
	want_wc(A, c.s[0].scq, w.wr_id, IBV_WC_REM_ACCESS_ERR);
	for (int st = IBV_QPS_RESET; st <= IBV_QPS_RTS; st++)
		for (int i = 0; i < 2; i++)
			to_state(&c, i, st);
	w.sge[0].length = 7;
	post(&c, 0, &w);
	want_wc(A, c.s[0].scq, w.wr_id, IBV_WC_LOC_LEN_ERR);
	verify(B, c.s[1].rx, 0, "target of refused ATOMIC WRITEs");
}

const struct test atomic_tests[] = {
	{ "rc.atomic.write", rc_atomic_write, 0 },
	{ "err.atomic.write", err_atomic_write, ASYNC },
	{ "rc.atomic", rc_atomic, 0 },
	{ "rc.atomic.sge", rc_atomic_sge, 0 },
	{ "rc.atomic.contention", rc_atomic_contention, 0 },
	{ 0 },
};
