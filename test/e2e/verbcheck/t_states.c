/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pair states: every transition, every attribute of each. */
#include "vc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define S IBV_QP_STATE
#define CUR IBV_QP_CUR_STATE
#define SQDN IBV_QP_EN_SQD_ASYNC_NOTIFY
#define ACC IBV_QP_ACCESS_FLAGS
#define PKEY IBV_QP_PKEY_INDEX
#define PORT IBV_QP_PORT
#define QKEY IBV_QP_QKEY
#define AV IBV_QP_AV
#define PMTU IBV_QP_PATH_MTU
#define TMO IBV_QP_TIMEOUT
#define RTRY IBV_QP_RETRY_CNT
#define RNR IBV_QP_RNR_RETRY
#define RPSN IBV_QP_RQ_PSN
#define MRD IBV_QP_MAX_QP_RD_ATOMIC
#define ALT IBV_QP_ALT_PATH
#define MRNR IBV_QP_MIN_RNR_TIMER
#define SPSN IBV_QP_SQ_PSN
#define MDRD IBV_QP_MAX_DEST_RD_ATOMIC
#define MIG IBV_QP_PATH_MIG_STATE
#define DQPN IBV_QP_DEST_QPN

enum { RESET, INIT, RTR, RTS, SQD, SQE, ERR };
static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

/* IBA volume 1, 11.2.5.2 (modify queue pair): what each transition needs and allows. */
static const struct rule {
	int type, from, to, need, may;
} rules[] = {
	{ IBV_QPT_RC, RESET, INIT, PKEY | PORT | ACC, 0 },
	{ IBV_QPT_UC, RESET, INIT, PKEY | PORT | ACC, 0 },
	{ IBV_QPT_UD, RESET, INIT, PKEY | PORT | QKEY, 0 },
	{ IBV_QPT_RC, INIT, INIT, 0, PKEY | PORT | ACC },
	{ IBV_QPT_UC, INIT, INIT, 0, PKEY | PORT | ACC },
	{ IBV_QPT_UD, INIT, INIT, 0, PKEY | PORT | QKEY },
	{ IBV_QPT_RC, INIT, RTR, AV | PMTU | DQPN | RPSN | MDRD | MRNR, ALT | ACC | PKEY },
	{ IBV_QPT_UC, INIT, RTR, AV | PMTU | DQPN | RPSN, ALT | ACC | PKEY },
	{ IBV_QPT_UD, INIT, RTR, 0, PKEY | QKEY },
	{ IBV_QPT_RC, RTR, RTS, TMO | RTRY | RNR | SPSN | MRD, CUR | ALT | ACC | MRNR | MIG },
	{ IBV_QPT_UC, RTR, RTS, SPSN, CUR | ALT | ACC | MIG },
	{ IBV_QPT_UD, RTR, RTS, SPSN, CUR | QKEY },
	{ IBV_QPT_RC, RTS, RTS, 0, CUR | ACC | ALT | MIG | MRNR },
	{ IBV_QPT_UC, RTS, RTS, 0, CUR | ACC | ALT | MIG },
	{ IBV_QPT_UD, RTS, RTS, 0, CUR | QKEY },
	{ IBV_QPT_RC, RTS, SQD, 0, SQDN },
	{ IBV_QPT_UC, RTS, SQD, 0, SQDN },
	{ IBV_QPT_UD, RTS, SQD, 0, SQDN },
	{ IBV_QPT_RC, SQD, RTS, 0, CUR | ALT | ACC | MRNR | MIG },
	{ IBV_QPT_UC, SQD, RTS, 0, CUR | ALT | ACC | MIG },
	{ IBV_QPT_UD, SQD, RTS, 0, CUR | QKEY },
	{ IBV_QPT_RC, SQD, SQD, 0, PORT | AV | TMO | RTRY | RNR | MRD | MDRD | ALT | ACC | PKEY | MRNR | MIG },
	{ IBV_QPT_UC, SQD, SQD, 0, AV | ALT | ACC | PKEY | MIG },
	{ IBV_QPT_UD, SQD, SQD, 0, PKEY | QKEY },
};

static const struct rule *rule(int type, int from, int to)
{
	for (unsigned i = 0; i < sizeof rules / sizeof *rules; i++)
		if (rules[i].type == type && rules[i].from == from && rules[i].to == to)
			return &rules[i];
	return NULL;
}

/* bring takes side 0 from RESET to a state. */
static void bring(struct conn *c, int st)
{
	struct side *s = &c->s[0];

	if (s->e->rxe && state(s->e, s->qp) == IBV_QPS_SQD) /* which it leaves only once it has drained */
		wait_state(s->e, s->qp, IBV_QPS_SQD);
	to_state(c, 0, IBV_QPS_RESET);
	if (st == ERR) {
		to_state(c, 0, IBV_QPS_INIT);
		to_state(c, 0, IBV_QPS_ERR);
		return;
	}
	for (int s = INIT; s <= st; s++)
		to_state(c, 0, s);
	if (st == SQD)
		wait_state(s->e, s->qp, IBV_QPS_SQD);
}

/* everything has a good value for every attribute. */
static struct ibv_qp_attr everything(struct conn *c, int from, int to)
{
	struct ibv_qp_attr a, t;
	int mask;

	attr_rtr(c, 0, &a, &mask);
	attr_ah(c->s[0].e, c->s[1].e, &a.ah_attr);
	attr_rts(c, 0, &t, &mask);
	a.sq_psn = t.sq_psn, a.timeout = t.timeout, a.retry_cnt = t.retry_cnt, a.rnr_retry = t.rnr_retry,
		a.max_rd_atomic = t.max_rd_atomic;
	attr_init(c, 0, &t, &mask);
	a.qp_access_flags = t.qp_access_flags, a.port_num = t.port_num, a.qkey = t.qkey;
	a.qp_state = to;
	a.cur_qp_state = from;
	a.en_sqd_async_notify = 0;
	a.path_mig_state = IBV_MIG_MIGRATED;
	return a;
}

static void must(struct conn *c, int from, int to, int mask, int want, const char *why)
{
	struct ibv_qp_attr a = everything(c, from, to);
	int rc = try_modify(c->s[0].e, c->s[0].qp, &a, mask | S);
	CHECK(rc == want, "%s %s -> %s, %s (mask %06x): %s, want %s", type_name(c->o.type), names[from], names[to], why,
	      mask | S, errname(rc), errname(want));
	int is = state(c->s[0].e, c->s[0].qp), be = want ? from : to;
	CHECK(is == be, "%s %s -> %s, %s: the state is %s", type_name(c->o.type), names[from], names[to], why, names[is]);
}

static void transitions(int type)
{
	static const int from_states[] = { RESET, INIT, RTR, RTS, SQD, ERR };
	struct conn c;

	connect_pair(&c, &(struct opt){ .type = type, .until = NONE, .room = 4096 });
	for (unsigned f = 0; f < 6; f++)
		for (int to = RESET; to <= ERR; to++) {
			int from = from_states[f];
			const struct rule *r = rule(type, from, to);
			if (to == SQE)
				continue;
			bring(&c, from);
			if (to == RESET || (to == ERR && from != RESET)) {
				must(&c, from, to, 0, 0, "always legal");
				bring(&c, from);
				must(&c, from, to, PKEY, EINVAL, "with an attribute too many");
				continue;
			}
			if (!r) {
				must(&c, from, to, 0, EINVAL, "no such transition");
				const struct rule *usual = rule(type, to - 1, to); /* what normally leads there */
				if (usual)
					must(&c, from, to, usual->need, EINVAL, "no such transition, with its usual attributes");
				continue;
			}
			for (int bit = 1; bit <= DQPN; bit <<= 1) {
				if (bit == S || bit == IBV_QP_CAP)
					continue;
				if (r->need & bit)
					must(&c, from, to, r->need & ~bit, EINVAL, "a needed attribute missing");
				else if (!(r->may & bit))
					must(&c, from, to, r->need | bit, EINVAL, "an attribute too many");
				else if (!(bit & (ALT | MIG)) && /* alternate paths are optional features */
					 !(A->rxe && type == IBV_QPT_UC && from == SQD && bit == AV)) { /* the kernel adds PORT, then refuses it */
					must(&c, from, to, r->need | bit, 0, "with an allowed attribute");
					bring(&c, from);
				}
			}
			must(&c, from, to, r->need, 0, "with what it needs");
		}
}
static void rc_transitions(void) { transitions(IBV_QPT_RC); }
static void uc_transitions(void) { transitions(IBV_QPT_UC); }
static void ud_transitions(void) { transitions(IBV_QPT_UD); }

/* Values out of range are refused and change nothing. */
static void values(void)
{
	struct conn c;
	struct ibv_qp_attr a;
	int mask;

	connect_pair(&c, &(struct opt){ .until = NONE, .room = 4096 });
	struct end *e = A;
	int qp = c.s[0].qp;
#define REFUSE(step, change) do { \
		step(&c, 0, &a, &mask); \
		change; \
		int rc_ = try_modify(e, qp, &a, mask); \
		CHECK(rc_ == EINVAL, "%s: %s, want EINVAL", #change, errname(rc_)); \
	} while (0)
	REFUSE(attr_init, a.port_num = 0);
	REFUSE(attr_init, a.port_num = e->h.dev.phys_port_cnt + 1);
	if (!e->rxe)
		REFUSE(attr_init, a.pkey_index = 30000);
	to_state(&c, 0, IBV_QPS_INIT);
	if (!e->rxe) { /* which checks fewer */
		if (e->h.active_mtu < IBV_MTU_4096)
			REFUSE(attr_rtr, a.path_mtu = e->h.active_mtu + 1);
		REFUSE(attr_rtr, a.path_mtu = 0);
		REFUSE(attr_rtr, a.max_dest_rd_atomic = 255);
	}
	if (!opt_lid) {
		attr_rtr(&c, 0, &a, &mask);
		a.ah_attr.grh.sgid_index = 255;
		int no_gid = try_modify(e, qp, &a, mask);
		CHECK(no_gid == EINVAL || no_gid == ENODATA, "GID index 255: %s", errname(no_gid));
	}
	if (port_is_ib()) {
		REFUSE(attr_rtr, a.ah_attr.dlid = 0);
		REFUSE(attr_rtr, a.ah_attr.dlid = 0xffff);
		REFUSE(attr_rtr, a.ah_attr.sl = 16);
	}
	REFUSE(attr_rtr, a.ah_attr.port_num = e->h.dev.phys_port_cnt + 1);
	if (!port_is_ib())
		REFUSE(attr_rtr, a.ah_attr.is_global = 0);
	CHECK(state(e, qp) == IBV_QPS_INIT, "a refused change took effect");
	to_state(&c, 0, IBV_QPS_RTR);
	REFUSE(attr_rts, a.max_rd_atomic = 255);
	REFUSE(attr_rts, a.timeout = 32);
	if (!e->rxe) {
		REFUSE(attr_rts, a.retry_cnt = 8);
		REFUSE(attr_rts, a.rnr_retry = 8);
	}
	CHECK(state(e, qp) == IBV_QPS_RTR, "a refused change took effect");
	to_state(&c, 0, IBV_QPS_RTS);
	to_state(&c, 1, IBV_QPS_INIT);
	to_state(&c, 1, IBV_QPS_RTR);
	to_state(&c, 1, IBV_QPS_RTS);
	ping(&c, 0);
	ping(&c, 1);
}

/* A query returns what was set. */
static void query(void)
{
	struct conn c;
	struct ibv_qp_attr a, want;
	struct ibv_qp_init_attr ia;
	int mask;

	connect_pair(&c, &(struct opt){ .rd = 8, .min_rnr = 12, .timeout = 17, .retry = 5, .rnr = 6, .sig_all = true,
		.psn = { 0x123456, 0x654321 }, .room = 4096 });
	OK(try_query(A, c.s[0].qp, &a, &ia));
	CHECK(a.qp_state == IBV_QPS_RTS && (a.cur_qp_state == IBV_QPS_RTS || A->rxe), "state %d, current %d", a.qp_state,
	      a.cur_qp_state);
	CHECK(a.path_mtu == (unsigned)c.o.mtu, "path MTU %d, want %d", a.path_mtu, c.o.mtu);
	CHECK(a.dest_qp_num == c.s[1].qpn, "destination %06x, want %06x", a.dest_qp_num, c.s[1].qpn);
	CHECK(a.rq_psn == 0x654321 && a.sq_psn == 0x123456, "PSNs %06x %06x, want 654321 123456", a.rq_psn, a.sq_psn);
	CHECK(a.timeout == 17 && a.retry_cnt == 5 && a.rnr_retry == 6 && a.min_rnr_timer == 12,
	      "timeout %d, retries %d and %d, RNR timer %d", a.timeout, a.retry_cnt, a.rnr_retry, a.min_rnr_timer);
	CHECK(a.max_rd_atomic == 8 && a.max_dest_rd_atomic == 8, "READs %d, granted %d, want 8", a.max_rd_atomic,
	      a.max_dest_rd_atomic);
	attr_init(&c, 0, &want, &mask);
	CHECK(a.qp_access_flags == want.qp_access_flags && a.port_num == want.port_num && a.pkey_index == 0,
	      "access %x, port %d, P_Key index %d", a.qp_access_flags, a.port_num, a.pkey_index);
	attr_rtr(&c, 0, &want, &mask);
	CHECK(a.ah_attr.is_global == !opt_lid && a.ah_attr.dlid == want.ah_attr.dlid &&
	      !memcmp(&a.ah_attr.grh.dgid, &want.ah_attr.grh.dgid, 16) &&
	      a.ah_attr.grh.sgid_index == want.ah_attr.grh.sgid_index &&
	      a.ah_attr.grh.hop_limit == want.ah_attr.grh.hop_limit && a.ah_attr.port_num == want.ah_attr.port_num,
	      "address vector differs");
	CHECK(ia.qp_type == IBV_QPT_RC && ia.sq_sig_all, "type %d, sq_sig_all %d", ia.qp_type, ia.sq_sig_all);
	CHECK(ia.cap.max_send_wr >= 64 && ia.cap.max_recv_wr >= 64 && ia.cap.max_send_sge >= 4 && ia.cap.max_recv_sge >= 4,
	      "capacities shrank");
	ping(&c, 0);
	ping(&c, 1);
}

/* What may be posted in which state. */
static void posting(void)
{
	struct conn c;
	int bad;

	connect_pair(&c, &(struct opt){ .until = NONE, .room = 4096 });
	struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
	struct rwr r = rwr(&c);
	add(&w, c.s[0].txm, 0, 4);
	radd(&r, c.s[0].rxm, 0, 4);
	EXPECT_RC(EINVAL, try_post_send(A, c.s[0].qp, &w, 1, &bad));
	EXPECT_RC(EINVAL, try_post_recv(A, c.s[0].qp, &r, 1, &bad));
	to_state(&c, 0, IBV_QPS_INIT);
	EXPECT_RC(EINVAL, try_post_send(A, c.s[0].qp, &w, 1, &bad));
	OK(try_post_recv(A, c.s[0].qp, &r, 1, &bad));
	to_state(&c, 0, IBV_QPS_RTR);
	EXPECT_RC(EINVAL, try_post_send(A, c.s[0].qp, &w, 1, &bad));
	to_state(&c, 0, IBV_QPS_ERR);
	want_wc(A, c.s[0].rcq, r.wr_id, IBV_WC_WR_FLUSH_ERR);
	OK(try_post_send(A, c.s[0].qp, &w, 1, &bad));
	want_wc(A, c.s[0].scq, w.wr_id, IBV_WC_WR_FLUSH_ERR);
	if (!A->rxe) { /* does not notice a receive posted in this state */
		OK(try_post_recv(A, c.s[0].qp, &r, 1, &bad));
		want_wc(A, c.s[0].rcq, r.wr_id, IBV_WC_WR_FLUSH_ERR);
		want_none(A, c.s[0].scq, 20); /* where soft-RoCE may flush the same request twice */
	}
	want_none(A, c.s[0].rcq, 0);
}

/* RESET forgets what was posted, without completions; then all works again. */
static void reset(void)
{
	struct conn c;

	connect_pair(&c, &(struct opt){ .room = 64 << 10 });
	for (int round = 0; round < 3; round++) {
		ping(&c, 0);
		struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
		add(&w, c.s[0].txm, 0, 4);
		post(&c, 0, &w); /* no receive for it */
		struct rwr r = rwr(&c);
		radd(&r, c.s[0].rxm, 0, 4);
		post_recv(&c, 0, &r);
		for (int i = 0; i < 2; i++)
			to_state(&c, i, IBV_QPS_RESET);
		want_none(A, c.s[0].scq, 20);
		want_none(A, c.s[0].rcq, 0);
		for (int st = IBV_QPS_INIT; st <= IBV_QPS_RTS; st++)
			for (int i = 0; i < 2; i++)
				to_state(&c, i, st);
		ping(&c, 0);
		ping(&c, 1);
	}
}

/*
 * drained waits for the event that reports it. Where soft-RoCE lost it, requests
 * that do nothing are posted until it comes: they wait behind all others, and
 * each makes soft-RoCE look again whether all is drained. Returns whether that was
 * needed.
 */
static bool drained(struct conn *c)
{
	int waited = 0, ms = A->rxe ? wait_ms / 4 : wait_ms;

	for (; !comes_async(A, IBV_EVENT_SQ_DRAINED, c->s[0].qp, ms); waited += ms) {
		CHECK(A->rxe && waited < wait_ms, "no event at %s that the send queue has drained", A->name);
		struct swr kick = swr(c, IBV_WR_RDMA_WRITE, 0);
		post(c, 0, &kick);
	}
	return waited > 0;
}

/* SQD: what was posted before drains, what is posted in it waits for RTS. */
static void sqd(void)
{
	struct conn c;
	int lost = 0;

	connect_pair(&c, &(struct opt){ .room = 1 << 20 });
	for (int round = 0; round < 3; round++) {
		struct swr w[9];
		uint64_t seed = rnd();
		fill(A, c.s[0].tx, 0, 1 << 20, seed);
		for (int k = 0; k < 8; k++) {
			w[k] = swr(&c, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
			add(&w[k], c.s[0].txm, k * 100000, 90000);
			target(&w[k], &c, 0, c.s[1].rxm, k * 100000);
		}
		OK(try_post_send(A, c.s[0].qp, w, 8, NULL));
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
		OK(try_modify(A, c.s[0].qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
		lost += drained(&c);
		/* Whatever had not begun may wait; nothing begins now. */
		struct ibv_wc wc[16];
		int before = poll_cq(A, c.s[0].scq, wc, 0, 16, 20);
		for (int k = 0; k < before; k++)
			CHECK(!wc[k].status && wc[k].wr_id == w[k].wr_id, "completion %d while draining: %s", k,
			      ibv_wc_status_str(wc[k].status));
		w[8] = swr(&c, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
		add(&w[8], c.s[0].txm, 900000, 5000);
		target(&w[8], &c, 0, c.s[1].rxm, 900000);
		for (int k = 0; k < before; k++)
			expect(B, c.s[1].rx, k * 100000, 90000, seed, k * 100000);
		if (!A->rxe) /* which may stop in the middle of a message */
			verify(B, c.s[1].rx, 0, "memory when the send queue has drained");
		post(&c, 0, &w[8]);
		want_none(A, c.s[0].scq, 50);
		if (!A->rxe)
			verify(B, c.s[1].rx, 0, "memory while the send queue is drained");
		struct ibv_qp_attr q;
		struct ibv_qp_init_attr ia;
		OK(try_query(A, c.s[0].qp, &q, &ia));
		CHECK(q.qp_state == IBV_QPS_SQD && !q.sq_draining, "state %d, draining %d", q.qp_state, q.sq_draining);
		/* Receiving goes on. */
		ping(&c, 1);
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
		OK(try_modify(A, c.s[0].qp, &a, IBV_QP_STATE));
		if (A->rxe) { /* goes on only when something is posted */
			struct swr kick = swr(&c, IBV_WR_RDMA_WRITE, 0);
			post(&c, 0, &kick);
		}
		for (int k = before; k < 9; k++)
			want_ok(&c, 0, &w[k], 0);
		for (int k = 0; k < 8; k++)
			expect(B, c.s[1].rx, k * 100000, 90000, seed, k * 100000);
		expect(B, c.s[1].rx, 900000, 5000, seed, 900000);
		verify(B, c.s[1].rx, 0, "memory after the queue has run again");
	}
	if (lost) /* all else has been checked */
		skip("soft-RoCE loses the drained event until something is posted");
}

const struct test state_tests[] = {
	{ "state.rc", rc_transitions, 0 },
	{ "state.uc", uc_transitions, 0 },
	{ "state.ud", ud_transitions, 0 },
	{ "state.values", values, 0 },
	{ "state.query", query, 0 },
	{ "state.posting", posting, ASYNC },
	{ "state.reset", reset, 0 },
	{ "state.sqd", sqd, ASYNC },
	{ 0 },
};
