/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of UC and UD: losses are silent, local faults stop only the send side. */
#include "vc.h"

#include <errno.h>

/* arrived returns when what A has sent is with B: what a reliable pair sends
 * after it has been acknowledged, and so had time to be dropped. A message
 * that is still on its way would take the receive of the next. */
static void arrived(struct conn *reliable)
{
	ping(reliable, 0);
	want_none(B, reliable->s[1].rcq, 20);
}

/* ---- UC ---- */

static void uc_drop(void)
{
	struct conn c, reliable;
	connect_pair(&reliable, &(struct opt){ .room = 4096 });
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UC, .room = 64 << 10 });
	for (int k = 0; k < 4; k++) {
		for (int lost = 0; lost < 3; lost++) {
			struct swr w = swr(&c, k & 1 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND, IBV_SEND_SIGNALED);
			add(&w, c.s[0].txm, 0, lost * 5000); /* no receive for it */
			target(&w, &c, 0, c.s[1].rxm, 40000);
			if (k & 1) { /* may be placed before it is dropped */
				fill(A, c.s[0].tx, 0, lost * 5000, 9);
				fill(B, c.s[1].rx, 40000, lost * 5000, 9 + k);
				w.num_sge = 0;
			}
			post(&c, 0, &w);
			want_ok(&c, 0, &w, 0);
		}
		arrived(&reliable);
		want_none(B, c.s[1].rcq, 0);
		ping(&c, 0);
		ping(&c, 1);
	}
}

static void uc_rkey(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UC, .room = 64 << 10 });
	for (int k = 0; k < 4; k++) {
		struct swr w = swr(&c, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
		add(&w, c.s[0].txm, 0, k & 1 ? 10000 : 10);
		target(&w, &c, 0, c.s[1].rxm, 0);
		if (k & 2)
			w.raddr = c.s[1].rxm.addr + c.s[1].rxm.len - 9;
		else
			w.rkey ^= 0x10101010;
		post(&c, 0, &w);
		want_ok(&c, 0, &w, 0);
		if (B->rxe)
			continue;
		verify(B, c.s[1].rx, 0, "memory after a refused UC WRITE");
		CHECK(state(B, c.s[1].qp) == IBV_QPS_RTS, "the receiver left RTS");
		ping(&c, 0);
	}
}

/* A message longer than its receive is dropped, and the receive serves the next. */
static void uc_long(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UC, .room = 64 << 10 });
	if (B->rxe)
		skip("soft-RoCE ends the queue pair");
	for (int k = 0; k < 3; k++) {
		uint32_t len = k == 0 ? 50 : k == 1 ? c.mtu : 5 * c.mtu;
		uint64_t seed = rnd();
		struct rwr r = rwr(&c);
		radd(&r, c.s[1].rxm, 0, len - 1);
		post_recv(&c, 1, &r);
		struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED), v = swr(&c, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED);
		fill(A, c.s[0].tx, 0, len, seed);
		add(&w, c.s[0].txm, 0, len);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, 0);
		want_none(B, c.s[1].rcq, 20);
		/* Packets of the lost message may have been placed: write all of it. */
		add(&v, c.s[0].txm, 0, len - 1);
		expect(B, c.s[1].rx, 0, len - 1, seed, 0);
		post(&c, 0, &v);
		want_ok(&c, 0, &v, 0);
		want_recv(&c, 1, &r, &v, len - 1);
		verify(B, c.s[1].rx, 0, "a message after one that was too long");
	}
}

/* A local fault stops only the send side (SQE), and RTS revives it. */
static void sqe(int type)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .type = type, .room = 4096 });
	if (A->rxe)
		skip("soft-RoCE goes to ERR");
	for (int round = 0; round < 2; round++) {
		struct swr w[2] = { swr(&c, IBV_WR_SEND, 0), swr(&c, IBV_WR_SEND, 0) };
		for (int k = 0; k < 2; k++) {
			add(&w[k], c.s[0].txm, 0, 10);
			target(&w[k], &c, 0, c.s[1].rxm, 0);
		}
		w[0].sge[0].lkey ^= 0x33333333;
		OK(try_post_send(A, c.s[0].qp, w, 2, NULL));
		want_wc(A, c.s[0].scq, w[0].wr_id, IBV_WC_LOC_PROT_ERR);
		want_wc(A, c.s[0].scq, w[1].wr_id, IBV_WC_WR_FLUSH_ERR);
		wait_state(A, c.s[0].qp, IBV_QPS_SQE);
		want_none(B, c.s[1].rcq, 10);
		ping(&c, 1); /* receiving goes on */
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS };
		OK(try_modify(A, c.s[0].qp, &a, IBV_QP_STATE));
		ping(&c, 0);
	}
}
static void uc_sqe(void) { sqe(IBV_QPT_UC); }
static void ud_sqe(void) { sqe(IBV_QPT_UD); }

/* ---- UD ---- */

static void ud_qkey(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UD, .room = 4096 });
	struct rwr r = rwr(&c);
	radd(&r, c.s[1].rxm, 0, 140);
	post_recv(&c, 1, &r);
	for (int k = 0; k < 3; k++) {
		struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
		add(&w, c.s[0].txm, 0, 100);
		target(&w, &c, 0, c.s[1].rxm, 0);
		w.rqkey = qkey ^ 1 << (k * 15);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, 0);
	}
	want_none(B, c.s[1].rcq, 20);
	verify(B, c.s[1].rx, 0, "buffer of a datagram with the wrong Q_Key");
	/* The receive is still there for the right one; with the top bit set the sender's own Q_Key is used. */
	struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
	uint8_t grh[40];
	fill(A, c.s[0].tx, 0, 100, 3);
	add(&w, c.s[0].txm, 0, 100);
	target(&w, &c, 0, c.s[1].rxm, 0);
	if (!A->rxe)
		w.rqkey = 0x80001234;
	post(&c, 0, &w);
	want_ok(&c, 0, &w, 0);
	want_recv(&c, 1, &r, &w, 100);
	get_bytes(B, c.s[1].rx, 0, grh, 40);
	expect_bytes(B, c.s[1].rx, 0, grh, 40);
	expect(B, c.s[1].rx, 40, 100, 3, 0);
	verify(B, c.s[1].rx, 0, "datagram with the right Q_Key");
}

/* A Q_Key with the top bit is for the privileged; a connected queue pair has none. */
static void ud_controlled(void)
{
	struct conn c;
	struct ibv_qp_attr a;
	int mask;

	if (A->rxe)
		skip("soft-RoCE requires CAP_NET_RAW, which cannot be checked here");
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UD, .room = 4096, .until = NONE });
	for (int i = 0; i < 2; i++) {
		attr_init(&c, i, &a, &mask);
		a.qkey = 0x80010000;
		if (opt_user) {
			EXPECT_RC(EPERM, try_modify(c.s[i].e, c.s[i].qp, &a, mask));
			CHECK(state(c.s[i].e, c.s[i].qp) == IBV_QPS_RESET, "a refused change took effect");
			a.qkey &= 0x7fffffff;
		}
		OK(try_modify(c.s[i].e, c.s[i].qp, &a, mask));
		struct ibv_qp_init_attr ia;
		struct ibv_qp_attr got;
		OK(try_query(c.s[i].e, c.s[i].qp, &got, &ia));
		CHECK(got.qkey == a.qkey, "Q_Key %#x, want %#x", got.qkey, a.qkey);
	}
}

static void ud_drop(void)
{
	struct conn c, reliable;
	connect_pair(&reliable, &(struct opt){ .room = 4096 });
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UD, .room = 16384 });
	for (int k = 0; k < 4; k++) { /* no receive at all */
		struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
		add(&w, c.s[0].txm, 0, 100 * k);
		target(&w, &c, 0, c.s[1].rxm, 0);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, 0);
	}
	arrived(&reliable);
	want_none(B, c.s[1].rcq, 0);
	ping(&c, 0);
	if (B->rxe)
		return;
	/* A receive that is too short: without room for the header, or one byte. */
	static const uint32_t room[] = { 0, 39, 40, 139 };
	for (int k = 0; k < 4; k++) {
		struct rwr r = rwr(&c);
		radd(&r, c.s[1].rxm, 4096 + k * 1000, room[k]);
		post_recv(&c, 1, &r);
		struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
		add(&w, c.s[0].txm, 0, 100);
		target(&w, &c, 0, c.s[1].rxm, 0);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, 0);
		want_none(B, c.s[1].rcq, 20);
		verify(B, c.s[1].rx, 0, "receive too short for a datagram");
		CHECK(state(B, c.s[1].qp) == IBV_QPS_RTS, "the receiver left RTS");
		/* It is still the first in the queue. */
		if (room[k] < 40)
			break;
		struct swr v = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
		uint8_t grh[40];
		add(&v, c.s[0].txm, 0, room[k] - 40);
		target(&v, &c, 0, c.s[1].rxm, 0);
		fill(A, c.s[0].tx, 0, 100, 4 + k);
		post(&c, 0, &v);
		want_ok(&c, 0, &v, 0);
		want_recv(&c, 1, &r, &v, room[k] - 40);
		get_bytes(B, c.s[1].rx, 4096 + k * 1000, grh, 40);
		expect_bytes(B, c.s[1].rx, 4096 + k * 1000, grh, 40);
		expect(B, c.s[1].rx, 4096 + k * 1000 + 40, room[k] - 40, 4 + k, 0);
		verify(B, c.s[1].rx, 0, "datagram that fits exactly");
	}
}

/* A datagram longer than the port's MTU never leaves. */
static void ud_long(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UD, .room = 16384 });
	struct rwr r = rwr(&c);
	radd(&r, c.s[1].rxm, 0, 16384);
	post_recv(&c, 1, &r);
	struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
	uint32_t mtu = 128 << A->h.active_mtu;
	add(&w, c.s[0].txm, 0, mtu + 1);
	target(&w, &c, 0, c.s[1].rxm, 0);
	int rc = try_post_send(A, c.s[0].qp, &w, 1, NULL);
	if (!rc) {
		struct ibv_wc wc = one(A, c.s[0].scq);
		CHECK(wc.status == IBV_WC_LOC_LEN_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR || A->rxe, "%s",
		      ibv_wc_status_str(wc.status));
	} else {
		CHECK(rc == EINVAL, "ibv_post_send: %s", errname(rc));
	}
	want_none(B, c.s[1].rcq, 20);
	verify(B, c.s[1].rx, 0, "buffer of a datagram that was too long");
}

const struct test unreliable_tests[] = {

	{ "err.uc.drop", uc_drop, 0 },
	{ "err.uc.rkey", uc_rkey, ASYNC },
	{ "err.uc.long", uc_long, 0 },
	{ "err.uc.sqe", uc_sqe, ASYNC },
	{ "err.ud.sqe", ud_sqe, ASYNC },
	{ "err.ud.qkey", ud_qkey, 0 },
	{ "err.ud.controlled", ud_controlled, 0 },
	{ "err.ud.drop", ud_drop, 0 },
	{ "err.ud.long", ud_long, ASYNC },
	{ 0 },
};
