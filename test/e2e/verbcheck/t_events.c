/* SPDX-License-Identifier: Apache-2.0 */
/* Events: completion channels, solicited events, overflow, resize, shared receive queues. */
#include "vc.h"

#include <errno.h>
#include <string.h>

/* send posts a SEND of n bytes that succeeds, with a receive if the other side needs one. */
static void send(struct conn *c, int from, int flags, bool with_recv, struct swr *w, struct rwr *r)
{
	*w = swr(c, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED | flags);
	*r = rwr(c);
	radd(r, c->s[!from].rxm, 0, 64);
	if (with_recv)
		post_recv(c, !from, r);
	add(w, c->s[from].txm, 0, 16);
	target(w, c, from, c->s[!from].rxm, 0);
	post(c, from, w);
}

static void want_event(struct end *e, int channel, int cq)
{
	int got = get_event(e, channel, wait_ms);
	CHECK(got == cq, "event at %s for completion queue %d, want %d", e->name, got, cq);
}

static void want_no_event(struct end *e, int channel)
{
	int got = get_event(e, channel, 20);
	CHECK(got == NONE, "event at %s for completion queue %d, want none", e->name, got);
}

static void room_for_pings(struct conn *c)
{
	for (int i = 0; i < 2; i++) { /* contents are of no interest here: make both buffers equal */
		fill(c->s[i].e, c->s[i].tx, 0, 16, 1);
		fill(c->s[!i].e, c->s[!i].rx, 0, 16, 1);
	}
}

/* One arm, one event, however much completes; none without. */
static void arm(void)
{
	struct conn c;
	struct swr w;
	struct rwr r;

	connect_pair(&c, &(struct opt){ .channels = true, .room = 4096 });
	room_for_pings(&c);
	struct side *a = &c.s[0], *b = &c.s[1];
	for (int round = 0; round < 3; round++) {
		OK(try_arm(a->e, a->scq, false));
		OK(try_arm(b->e, b->rcq, false));
		want_no_event(a->e, a->sch);
		for (int k = 0; k < 3; k++) {
			send(&c, 0, 0, true, &w, &r);
			want_ok(&c, 0, &w, 16);
			want_recv(&c, 1, &r, &w, 16);
		}
		want_event(a->e, a->sch, a->scq);
		want_event(b->e, b->rch, b->rcq);
		want_no_event(a->e, a->sch);
		want_no_event(b->e, b->rch);
		send(&c, 0, 0, true, &w, &r); /* not armed */
		want_ok(&c, 0, &w, 16);
		want_recv(&c, 1, &r, &w, 16);
		want_no_event(a->e, a->sch);
		want_no_event(b->e, b->rch);
	}
}

/* Arming a queue that has entries notifies at once, or a program that polls, then
 * arms, then waits would sleep on them. (Soft-RoCE leaves that to the program.) */
static void arm_nonempty(void)
{
	struct conn c;
	struct swr w;
	struct rwr r;

	connect_pair(&c, &(struct opt){ .channels = true, .room = 4096 });
	room_for_pings(&c);
	struct side *a = &c.s[0], *b = &c.s[1];
	if (a->e->rxe || b->e->rxe)
		skip("soft-RoCE does not");
	send(&c, 0, 0, true, &w, &r);
	/* The sender has its completion: it is in the queue. */
	while (get_event(a->e, a->sch, 0) != NONE)
		;
	want_ok(&c, 0, &w, 16);
	struct swr w2;
	struct rwr r2;
	send(&c, 0, 0, true, &w2, &r2);
	want_recv(&c, 1, &r, &w, 16);
	want_recv(&c, 1, &r2, &w2, 16);
	OK(try_arm(a->e, a->scq, false)); /* w2's entry, sooner or later */
	want_event(a->e, a->sch, a->scq);
	want_ok(&c, 0, &w2, 16);
}

/* Arming between the event and the poll: what the event reported causes no second
 * time, and the next completion does. perftest's latency tests live on it. */
static void arm_before_poll(void)
{
	struct conn c;
	struct swr w;
	struct rwr r;

	connect_pair(&c, &(struct opt){ .channels = true, .room = 4096 });
	room_for_pings(&c);
	struct side *b = &c.s[1];
	OK(try_arm(b->e, b->rcq, false));
	for (int k = 0; k < 5; k++) {
		send(&c, 0, 0, true, &w, &r);
		want_ok(&c, 0, &w, 16);
		want_event(b->e, b->rch, b->rcq);
		OK(try_arm(b->e, b->rcq, false));
		want_no_event(b->e, b->rch);
		want_recv(&c, 1, &r, &w, 16);
		want_no_event(b->e, b->rch);
	}
}

/* Polling fewer than there are, once per event, must not sleep on the rest.
 * (Soft-RoCE leaves that to the program.) */
static void arm_poll_few(void)
{
	enum { N = 12 };
	struct conn c;
	struct swr w[N];
	struct rwr r[N];
	struct ibv_wc wc[2];
	int left = N;

	connect_pair(&c, &(struct opt){ .channels = true, .room = 4096 });
	room_for_pings(&c);
	struct side *b = &c.s[1];
	if (b->e->rxe)
		skip("soft-RoCE does not");
	OK(try_arm(b->e, b->rcq, false));
	for (int k = 0; k < N; k++)
		send(&c, 0, 0, true, &w[k], &r[k]);
	for (int k = 0; k < N; k++)
		want_ok(&c, 0, &w[k], 16);
	while (left > 0) {
		want_event(b->e, b->rch, b->rcq);
		OK(try_arm(b->e, b->rcq, false));
		int got = poll_cq(b->e, b->rcq, wc, 0, 2, 0);
		for (int k = 0; k < got; k++, left--)
			CHECK(!wc[k].status && wc[k].wr_id == r[N - left].wr_id, "receive %d: %s", N - left,
			      ibv_wc_status_str(wc[k].status));
	}
}

/* Armed for solicited events only. */
static void solicited(int type)
{
	struct conn c;
	struct swr w;
	struct rwr r;

	connect_pair(&c, &(struct opt){ .type = type, .channels = true, .room = 4096 });
	struct side *b = &c.s[1];
	for (int round = 0; round < 3; round++) {
		OK(try_arm(b->e, b->rcq, true));
		for (int k = 0; k < 2; k++) {
			send(&c, 0, 0, true, &w, &r);
			want_ok(&c, 0, &w, 16);
			want_recv(&c, 1, &r, &w, 16);
		}
		want_no_event(b->e, b->rch);
		send(&c, 0, IBV_SEND_SOLICITED, true, &w, &r);
		want_ok(&c, 0, &w, 16);
		want_event(b->e, b->rch, b->rcq);
		want_recv(&c, 1, &r, &w, 16);
		want_no_event(b->e, b->rch);
	}
}
static void rc_solicited(void) { solicited(IBV_QPT_RC); }
static void uc_solicited(void) { solicited(IBV_QPT_UC); }
static void ud_solicited(void) { solicited(IBV_QPT_UD); }

static void solicited_imm(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .channels = true, .room = 64 << 10 });
	struct side *b = &c.s[1];
	for (int k = 0; k < 4; k++) { /* one packet, several packets; with and without */
		uint32_t len = k & 1 ? 30000 : 8;
		struct swr w = swr(&c, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED | (k & 2 ? IBV_SEND_SOLICITED : 0));
		struct rwr r = rwr(&c);
		OK(try_arm(b->e, b->rcq, true));
		post_recv(&c, 1, &r);
		fill(A, c.s[0].tx, 0, len, k);
		expect(B, b->rx, 0, len, k, 0);
		add(&w, c.s[0].txm, 0, len);
		target(&w, &c, 0, b->rxm, 0);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, len);
		if (k & 2)
			want_event(b->e, b->rch, b->rcq);
		want_recv(&c, 1, &r, &w, len);
		want_no_event(b->e, b->rch);
		verify(B, b->rx, 0, "WRITE with immediate");
	}
}

/* An error completion counts as solicited. */
static void solicited_error(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .channels = true, .room = 4096 });
	struct side *a = &c.s[0];
	OK(try_arm(a->e, a->rcq, true));
	struct rwr r = rwr(&c);
	radd(&r, a->rxm, 0, 10);
	post_recv(&c, 0, &r);
	want_no_event(a->e, a->rch);
	to_state(&c, 0, IBV_QPS_ERR);
	if (a->e->rxe) { /* the event of Linux 6.1 is there with the completion */
		want_wc(a->e, a->rcq, r.wr_id, IBV_WC_WR_FLUSH_ERR);
		if (get_event(a->e, a->rch, wait_ms / 4) == NONE)
			skip("soft-RoCE of this kernel takes no flush for solicited");
		return;
	}
	want_event(a->e, a->rch, a->rcq);
	want_wc(a->e, a->rcq, r.wr_id, IBV_WC_WR_FLUSH_ERR);
}

/* Armed for anything, then for solicited: still anything. */
static void arm_upgrade(void)
{
	struct conn c;
	struct swr w;
	struct rwr r;

	connect_pair(&c, &(struct opt){ .channels = true, .room = 4096 });
	room_for_pings(&c);
	struct side *b = &c.s[1];
	OK(try_arm(b->e, b->rcq, true));
	OK(try_arm(b->e, b->rcq, false));
	send(&c, 0, 0, true, &w, &r);
	want_ok(&c, 0, &w, 16);
	want_recv(&c, 1, &r, &w, 16);
	want_event(b->e, b->rch, b->rcq);
	if (b->e->rxe)
		return; /* takes the last arm */
	OK(try_arm(b->e, b->rcq, false));
	OK(try_arm(b->e, b->rcq, true));
	send(&c, 0, 0, true, &w, &r);
	want_ok(&c, 0, &w, 16);
	want_recv(&c, 1, &r, &w, 16);
	want_event(b->e, b->rch, b->rcq);
}

/* One channel for several queues: each event names its queue. */
static void channel_shared(void)
{
	enum { N = 5 };
	int ch = make_channel(A), cq[N], qp[N];
	struct conn c;
	int seen[MAX_OBJ] = { 0 };

	connect_pair(&c, &(struct opt){ .room = 4096 });
	for (int k = 0; k < N; k++) {
		struct qp_init in = { .type = IBV_QPT_RC, .pd = c.s[0].pd, .srq = NONE, .cap = { 4, 4, 1, 1, 0 } };
		cq[k] = in.scq = in.rcq = make_cq(A, 8, ch);
		OK(try_qp(A, &in, &qp[k], NULL));
		struct ibv_qp_attr a;
		int mask;
		attr_init(&c, 0, &a, &mask);
		OK(try_modify(A, qp[k], &a, mask));
		struct rwr r = rwr(&c);
		OK(try_post_recv(A, qp[k], &r, 1, NULL));
		OK(try_arm(A, cq[k], false));
	}
	for (int k = N - 1; k >= 0; k -= 2) { /* flushing makes a completion */
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
		OK(try_modify(A, qp[k], &a, IBV_QP_STATE));
	}
	for (int k = 0; k < (N + 1) / 2; k++) {
		int got = get_event(A, ch, wait_ms);
		CHECK(got != NONE && !seen[got]++, "event %d: queue %d", k, got);
	}
	for (int k = 0; k < N; k++)
		CHECK(seen[cq[k]] == !(k & 1), "queue %d: %d events", k, seen[cq[k]]);
	/* A destroyed queue's event is not delivered. */
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	OK(try_modify(A, qp[1], &a, IBV_QP_STATE));
	struct ibv_wc wc = one(A, cq[1]);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(wc.status));
	OK(try_free(A, OP_QP_FREE, qp[1]));
	OK(try_free(A, OP_CQ_FREE, cq[1]));
	want_no_event(A, ch);
}

/* More completions than entries: the event, the entries that fitted, and the
 * queue pairs that use the queue in error. */
static void overflow(void)
{
	struct conn c;
	int got;

	connect_pair(&c, &(struct opt){ .cqe = 4, .depth = 128, .room = 4096 });
	room_for_pings(&c);
	OK(try_resize(A, c.s[0].scq, 4, &got));
	CHECK(got >= 4 && got < 120, "granted %d entries, asked 4", got);
	struct swr w[128];
	for (int k = 0; k < got + 3; k++) {
		w[k] = swr(&c, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
		add(&w[k], c.s[0].txm, 0, 16);
		target(&w[k], &c, 0, c.s[1].rxm, 0);
	}
	OK(try_post_send(A, c.s[0].qp, w, got + 3, NULL));
	want_async(A, IBV_EVENT_CQ_ERR, c.s[0].scq);
	for (int k = 0; k < got; k++) {
		struct ibv_wc wc = one(A, c.s[0].scq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == w[k].wr_id,
		      "entry %d of the queue that overflowed: %s, request %llx", k, ibv_wc_status_str(wc.status),
		      (unsigned long long)wc.wr_id);
	}
	if (!A->rxe)
		wait_state(A, c.s[0].qp, IBV_QPS_ERR);
	verify(B, c.s[1].rx, 0, "target of the writes");
}

/* Growing and shrinking a queue with entries in it. */
static void resize(void)
{
	struct conn c;
	int got;

	connect_pair(&c, &(struct opt){ .cqe = 16, .depth = 128, .room = 4096 });
	room_for_pings(&c);
	struct swr w[100];
	int posted = 0, polled = 0;
	static const struct { int post, resize, poll; } step[] = {
		{ 8, 64, 3 }, { 30, 200, 0 }, { 40, 150, 60 }, { 0, 16, 7 }, { 4, 300, 5 }, { 0, 0, 7 },
	};
	for (unsigned s = 0; s < sizeof step / sizeof *step; s++) {
		for (int k = 0; k < step[s].post; k++, posted++) {
			w[posted] = swr(&c, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
			add(&w[posted], c.s[0].txm, 0, 16);
			target(&w[posted], &c, 0, c.s[1].rxm, 0);
			post(&c, 0, &w[posted]);
		}
		/* most are in the queue when a later ping of the other direction is through */
		if (step[s].post)
			ping(&c, 1);
		if (step[s].resize) {
			int rc = try_resize(A, c.s[0].scq, step[s].resize, &got);
			CHECK(!rc && got >= step[s].resize, "resize to %d: %s, granted %d", step[s].resize, errname(rc), got);
		}
		for (int k = 0; k < step[s].poll; k++, polled++)
			want_ok(&c, 0, &w[polled], 16);
	}
	CHECK(polled == posted, "test bug");
	want_none(A, c.s[0].scq, 10);
	/* Not below what it holds, nor to nothing. The last one's bytes tell that B has executed, and so acknowledged, all
	 * before it sends anything else. */
	fill(A, c.s[0].tx, 16, 16, 2);
	expect(B, c.s[1].rx, 16, 16, 2, 16);
	for (int k = 0; k < 20; k++) {
		w[k] = swr(&c, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
		add(&w[k], c.s[0].txm, k == 19 ? 16 : 0, 16);
		target(&w[k], &c, 0, c.s[1].rxm, k == 19 ? 16 : 0);
		post(&c, 0, &w[k]);
	}
	verify(B, c.s[1].rx, wait_ms, "target of the last write");
	ping(&c, 1);
	EXPECT_RC(EINVAL, try_resize(A, c.s[0].scq, 0, &got));
	EXPECT_RC(EINVAL, try_resize(A, c.s[0].scq, A->h.dev.max_cqe + 1, &got));
	int rc = try_resize(A, c.s[0].scq, 3, &got);
	CHECK(rc == EINVAL, "resize below the entries present: %s, granted %d", errname(rc), got);
	for (int k = 0; k < 20; k++)
		want_ok(&c, 0, &w[k], 16);
}

/* Send and receive completions of several pairs in one queue. */
static void shared_cq(void)
{
	enum { Q = 4, N = 8 };
	struct conn c[Q];
	int qp[Q], next_s[Q] = { 0 }, next_r[Q] = { 0 }, cq = make_cq(A, 256, NONE);
	uint32_t qpn[Q];

	/* Side 0 of each pair is replaced by a queue pair with all completions in cq. */
	for (int q = 0; q < Q; q++) {
		connect_pair(&c[q], &(struct opt){ .until = NONE, .room = 4096 });
		struct qp_init in = { .type = IBV_QPT_RC, .pd = c[q].s[0].pd, .scq = cq, .rcq = cq, .srq = NONE,
			.cap = { 64, 64, 2, 2, 0 } };
		OK(try_qp(A, &in, &qp[q], &qpn[q]));
		c[q].s[0].qp = qp[q];
		c[q].s[0].qpn = qpn[q];
		for (int st = IBV_QPS_INIT; st <= IBV_QPS_RTS; st++)
			for (int i = 0; i < 2; i++)
				to_state(&c[q], i, st);
	}
	for (int k = 0; k < N; k++)
		for (int q = 0; q < Q; q++) {
			struct rwr in = { .wr_id = 0x100000 + q * 0x1000 + k }, out = rwr(&c[q]);
			struct swr w = swr(&c[q], IBV_WR_SEND, IBV_SEND_SIGNALED), v = swr(&c[q], IBV_WR_SEND, 0);
			OK(try_post_recv(A, qp[q], &in, 1, NULL));
			post_recv(&c[q], 1, &out);
			w.wr_id = q * 0x1000 + k;
			OK(try_post_send(A, qp[q], &w, 1, NULL));
			post(&c[q], 1, &v);
		}
	for (int k = 0; k < 2 * Q * N; k++) {
		struct ibv_wc wc = one(A, cq);
		int q = wc.wr_id >> 12 & 0xff, n = wc.wr_id & 0xfff;
		bool recv = wc.wr_id & 0x100000;
		CHECK(wc.status == IBV_WC_SUCCESS && q < Q && wc.qp_num == qpn[q], "completion %d: %s, request %llx, queue pair %06x",
		      k, ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id, wc.qp_num);
		CHECK(wc.opcode == (recv ? IBV_WC_RECV : IBV_WC_SEND), "completion %d: opcode %d", k, wc.opcode);
		CHECK(n == (recv ? next_r : next_s)[q]++, "completion %d: request %d of pair %d out of order", k, n, q);
	}
	want_none(A, cq, 10);
}

/* Several pairs fed from one shared receive queue, in order of posting. */
static void srq_shared(void)
{
	enum { Q = 4, N = 32 };
	struct conn c[Q];
	struct rwr r[N];
	uint64_t seed[N];

	connect_pair(&c[0], &(struct opt){ .srq = { false, true }, .room = N * 256 });
	for (int q = 1; q < Q; q++) {
		connect_pair(&c[q], &(struct opt){ .until = NONE, .room = 8192 });
		struct qp_init in = { .type = IBV_QPT_RC, .pd = c[0].s[1].pd, .scq = c[0].s[1].scq, .rcq = c[0].s[1].rcq,
			.srq = c[0].s[1].srq, .cap = { 4, 0, 1, 0, 0 } };
		OK(try_qp(B, &in, &c[q].s[1].qp, &c[q].s[1].qpn));
		for (int st = IBV_QPS_INIT; st <= IBV_QPS_RTS; st++)
			for (int i = 0; i < 2; i++)
				to_state(&c[q], i, st);
	}
	for (int k = 0; k < N; k++) {
		r[k] = rwr(&c[0]);
		radd(&r[k], c[0].s[1].rxm, k * 256, 200);
	}
	OK(try_post_srq(B, c[0].s[1].srq, r, N, NULL));
	for (int k = 0; k < N; k++) {
		int q = rnd_below(Q);
		uint32_t len = rnd_below(201);
		struct swr w = swr(&c[q], IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED);
		seed[k] = rnd();
		fill(A, c[q].s[0].tx, 0, len, seed[k]);
		expect(B, c[0].s[1].rx, k * 256, len, seed[k], 0);
		add(&w, c[q].s[0].txm, 0, len);
		post(&c[q], 0, &w);
		want_ok(&c[q], 0, &w, len);
		struct ibv_wc wc = one(B, c[0].s[1].rcq);
		CHECK(!wc.status && wc.wr_id == r[k].wr_id && wc.qp_num == c[q].s[1].qpn && wc.byte_len == len &&
		      wc.imm_data == w.imm,
		      "message %d: %s, request %llx, queue pair %06x, %u bytes", k, ibv_wc_status_str(wc.status),
		      (unsigned long long)wc.wr_id, wc.qp_num, wc.byte_len);
	}
	verify(B, c[0].s[1].rx, 0, "shared receive queue");
	/* Empty: reliable senders wait for the next request. */
	struct swr w = swr(&c[2], IBV_WR_SEND, IBV_SEND_SIGNALED);
	struct rwr late = rwr(&c[0]);
	add(&w, c[2].s[0].txm, 0, 0);
	post(&c[2], 0, &w);
	want_none(A, c[2].s[0].scq, 30);
	OK(try_post_srq(B, c[0].s[1].srq, &late, 1, NULL));
	want_ok(&c[2], 0, &w, 0);
	want_wc(B, c[0].s[1].rcq, late.wr_id, IBV_WC_SUCCESS);
}

/* The limit fires once, when the queue falls below it. */
static void srq_limit(void)
{
	struct conn c;
	struct ibv_srq_attr a = { .srq_limit = 5 }, q;
	struct swr w;
	struct rwr r;

	connect_pair(&c, &(struct opt){ .srq = { false, true }, .depth = 16, .room = 4096 });
	room_for_pings(&c);
	struct rwr list[10];
	for (int k = 0; k < 10; k++) {
		list[k] = rwr(&c);
		radd(&list[k], c.s[1].rxm, 0, 64);
	}
	OK(try_post_srq(B, c.s[1].srq, list, 10, NULL));
	OK(try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_LIMIT));
	for (int k = 0; k < 10; k++) {
		send(&c, 0, 0, false, &w, &r);
		want_ok(&c, 0, &w, 16);
		want_recv(&c, 1, &list[k], &w, 16);
		int left = 9 - k, el, ev;
		if (left == 4) {
			want_async(B, IBV_EVENT_SRQ_LIMIT_REACHED, c.s[1].srq);
			OK(try_srq_query(B, c.s[1].srq, &q));
			CHECK(q.srq_limit == 0, "limit %u after the event, want 0", q.srq_limit);
			continue;
		}
		do
			ev = get_async(B, 5, &el);
		while (ev == IBV_EVENT_COMM_EST);
		CHECK(ev == NONE, "%d requests left: event %s", left, ibv_event_type_str(ev));
	}
}

/* A shared receive queue grows and shrinks with requests in it, which keep their order, and with its limit armed. */
static void srq_resize(void)
{
	enum { N = 400, SLOT = 64 };
	struct conn c;
	struct swr w;
	static struct rwr r[N];
	struct ibv_srq_attr q, a;
	/* To be resized to; how many requests are then left for the next step. */
	static const struct { uint32_t size, leave; } step[] = {
		{ 16, 12 }, { 100, 30 }, { 30, 30 }, { 200, 7 }, { 7, 3 }, { 3, 0 }, { 40, 9 }, { 64, 0 },
	};
	int posted = 0, taken = 0;

	connect_pair(&c, &(struct opt){ .srq = { false, true }, .depth = 16, .room = N * SLOT });
	if (!(B->h.dev.device_cap_flags & IBV_DEVICE_SRQ_RESIZE))
		skip("IBV_DEVICE_SRQ_RESIZE is not set");
	for (unsigned s = 0; s < sizeof step / sizeof *step; s++) {
		a = (struct ibv_srq_attr){ .max_wr = step[s].size, .srq_limit = 9999 };
		OK(try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_MAX_WR));
		OK(try_srq_query(B, c.s[1].srq, &q));
		CHECK(q.max_wr >= step[s].size && q.srq_limit == 0, "resized to %u: %u requests, limit %u", step[s].size, q.max_wr,
		      q.srq_limit);
		int first = posted;
		for (; posted - taken < (int)step[s].size; posted++) {
			r[posted] = rwr(&c);
			radd(&r[posted], c.s[1].rxm, posted * SLOT, SLOT);
		}
		CHECK(posted <= N, "test bug");
		if (posted > first)
			OK(try_post_srq(B, c.s[1].srq, r + first, posted - first, NULL));
		/* A resize below the number of requests that wait is refused and changes nothing. */
		a.max_wr = step[s].size - 1;
		if (!refused_resize_kills(B))
			EXPECT_RC(EINVAL, try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_MAX_WR));
		for (; posted - taken > (int)step[s].leave; taken++) {
			uint64_t seed = rnd();
			uint32_t len = 1 + rnd_below(SLOT);
			w = swr(&c, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED);
			fill(A, c.s[0].tx, 0, len, seed);
			expect(B, c.s[1].rx, taken * SLOT, len, seed, 0);
			add(&w, c.s[0].txm, 0, len);
			post(&c, 0, &w);
			want_ok(&c, 0, &w, len);
			want_recv(&c, 1, &r[taken], &w, len);
		}
		verify(B, c.s[1].rx, 0, "requests of a queue that was resized");
	}
	a.max_wr = 0;
	EXPECT_RC(EINVAL, try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_MAX_WR));
	a.max_wr = B->h.dev.max_srq_wr + 1;
	EXPECT_RC(EINVAL, try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_MAX_WR));

	/* The limit stays as it is, and armed. */
	room_for_pings(&c);
	posted = 0;
	for (int k = 0; k < 10; k++) {
		r[k] = rwr(&c);
		radd(&r[k], c.s[1].rxm, 0, 64);
	}
	OK(try_post_srq(B, c.s[1].srq, r, 10, NULL));
	a = (struct ibv_srq_attr){ .max_wr = 20, .srq_limit = 9 };
	OK(try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	a = (struct ibv_srq_attr){ .max_wr = 50 };
	OK(try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_MAX_WR));
	OK(try_srq_query(B, c.s[1].srq, &q));
	CHECK(q.max_wr >= 50 && q.srq_limit == 9, "%u requests, limit %u, want 50, 9", q.max_wr, q.srq_limit);
	for (int k = 0; k < 10; k++) {
		struct rwr none;
		send(&c, 0, 0, false, &w, &none);
		want_ok(&c, 0, &w, 16);
		want_recv(&c, 1, &r[k], &w, 16);
		if (k == 1)
			want_async(B, IBV_EVENT_SRQ_LIMIT_REACHED, c.s[1].srq);
		if (k == 2) { /* not below a limit that is armed */
			a = (struct ibv_srq_attr){ .max_wr = 50, .srq_limit = 5 };
			OK(try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_LIMIT));
		}
		if (k == 6) {
			want_async(B, IBV_EVENT_SRQ_LIMIT_REACHED, c.s[1].srq);
			a = (struct ibv_srq_attr){ .max_wr = 12, .srq_limit = 12 };
			OK(try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_LIMIT));
		}
		if (k == 7) /* which fires when looked at */
			want_async(B, IBV_EVENT_SRQ_LIMIT_REACHED, c.s[1].srq);
	}
	a = (struct ibv_srq_attr){ .srq_limit = 12 };
	OK(try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_LIMIT));
	a.max_wr = 11;
	EXPECT_RC(EINVAL, try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_MAX_WR));
}

/* Messages that come while the queue is resized find a request as ever: a peer that never tries again sees nothing. */
static void srq_resize_under_load(void)
{
	enum { N = 16, LEN = 60000 };
	struct conn c;
	struct swr w[N];
	struct rwr r[N];
	struct ibv_qp_attr qa;
	int mask;

	connect_pair(&c, &(struct opt){ .srq = { false, true }, .depth = 2 * N, .room = N * LEN, .until = IBV_QPS_RTR });
	if (!(B->h.dev.device_cap_flags & IBV_DEVICE_SRQ_RESIZE))
		skip("IBV_DEVICE_SRQ_RESIZE is not set");
	to_state(&c, 1, IBV_QPS_RTS);
	attr_rts(&c, 0, &qa, &mask);
	qa.rnr_retry = 0;
	OK(try_modify(A, c.s[0].qp, &qa, mask));
	for (int round = 0; round < 3; round++) {
		for (int k = 0; k < N; k++) {
			uint64_t seed = rnd();
			w[k] = swr(&c, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED);
			r[k] = rwr(&c);
			fill(A, c.s[0].tx, k * LEN, LEN, seed);
			expect(B, c.s[1].rx, k * LEN, LEN, seed, k * LEN);
			add(&w[k], c.s[0].txm, k * LEN, LEN);
			radd(&r[k], c.s[1].rxm, k * LEN, LEN);
		}
		OK(try_post_srq(B, c.s[1].srq, r, N, NULL));
		OK(try_post_send(A, c.s[0].qp, w, N, NULL));
		for (int k = 0; k < 12; k++) {
			struct ibv_srq_attr a = { .max_wr = k & 1 ? 64 : 32 };
			OK(try_srq_modify(B, c.s[1].srq, &a, IBV_SRQ_MAX_WR));
		}
		for (int k = 0; k < N; k++) {
			want_ok(&c, 0, &w[k], LEN);
			want_recv(&c, 1, &r[k], &w[k], LEN);
		}
		verify(B, c.s[1].rx, 0, "messages into a queue that was resized");
	}
}

/* A queue pair in error reports when it no longer uses its shared receive queue,
 * so that its entries stay for others. */
static void srq_last(void)
{
	struct conn c, d;

	connect_pair(&c, &(struct opt){ .srq = { false, true }, .room = 4096 });
	struct rwr r[3];
	for (int k = 0; k < 3; k++) {
		r[k] = rwr(&c);
		radd(&r[k], c.s[1].rxm, k * 64, 64);
	}
	OK(try_post_srq(B, c.s[1].srq, r, 3, NULL));
	to_state(&c, 1, IBV_QPS_ERR);
	if (!B->rxe)
		want_async(B, IBV_EVENT_QP_LAST_WQE_REACHED, c.s[1].qp);
	want_none(B, c.s[1].rcq, 20);
	/* Another pair takes the entries. */
	connect_pair(&d, &(struct opt){ .until = NONE, .room = 4096 });
	struct qp_init in = { .type = IBV_QPT_RC, .pd = c.s[1].pd, .scq = c.s[1].scq, .rcq = c.s[1].rcq, .srq = c.s[1].srq,
		.cap = { 4, 0, 1, 0, 0 } };
	OK(try_qp(B, &in, &d.s[1].qp, &d.s[1].qpn));
	for (int st = IBV_QPS_INIT; st <= IBV_QPS_RTS; st++)
		for (int i = 0; i < 2; i++)
			to_state(&d, i, st);
	for (int k = 0; k < 3; k++) {
		uint64_t seed = rnd();
		struct swr w = swr(&d, IBV_WR_SEND, IBV_SEND_SIGNALED);
		fill(A, d.s[0].tx, 0, 64, seed);
		expect(B, c.s[1].rx, k * 64, 64, seed, 0);
		add(&w, d.s[0].txm, 0, 64);
		post(&d, 0, &w);
		want_ok(&d, 0, &w, 64);
		want_wc(B, c.s[1].rcq, r[k].wr_id, IBV_WC_SUCCESS);
		verify(B, c.s[1].rx, 0, "entries of a shared receive queue that outlived its user");
	}
}

/* The first packet to a queue pair in RTR. */
static void comm_est(void)
{
	struct conn c;
	struct swr w;
	struct rwr r;

	connect_pair(&c, &(struct opt){ .until = IBV_QPS_RTR, .room = 4096 });
	room_for_pings(&c);
	to_state(&c, 0, IBV_QPS_RTS);
	send(&c, 0, 0, true, &w, &r);
	want_ok(&c, 0, &w, 16);
	want_recv(&c, 1, &r, &w, 16);
	if (!B->rxe)
		want_async(B, IBV_EVENT_COMM_EST, c.s[1].qp);
	to_state(&c, 1, IBV_QPS_RTS);
	ping(&c, 1);
}

/* An object may be destroyed with an event of its own not yet fetched. */
static void async_unfetched(void)
{
	for (int k = 0; k < 3; k++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = 4096 });
		struct swr w = swr(&c, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
		add(&w, c.s[0].rxm, 0, 8);
		target(&w, &c, 0, c.s[1].txm, 0);
		w.rkey ^= 0x01010101;
		post(&c, 0, &w);
		want_wc(A, c.s[0].scq, w.wr_id, IBV_WC_REM_ACCESS_ERR);
		wait_state(B, c.s[1].qp, IBV_QPS_ERR);
		destroy_qps(&c);
		int el, ev;
		while ((ev = get_async(B, 5, &el)) == IBV_EVENT_PORT_ACTIVE || ev == IBV_EVENT_GID_CHANGE)
			;
		CHECK(ev == NONE, "event %s of a destroyed object", ibv_event_type_str(ev));
	}
}

const struct test event_tests[] = {
	{ "event.arm", arm, 0 },
	{ "event.arm.nonempty", arm_nonempty, 0 },
	{ "event.arm.before_poll", arm_before_poll, 0 },
	{ "event.arm.poll_few", arm_poll_few, 0 },
	{ "event.arm.upgrade", arm_upgrade, 0 },
	{ "event.solicited.rc", rc_solicited, 0 },
	{ "event.solicited.uc", uc_solicited, 0 },
	{ "event.solicited.ud", ud_solicited, 0 },
	{ "event.solicited.write_imm", solicited_imm, 0 },
	{ "event.solicited.error", solicited_error, ASYNC },
	{ "event.channel.shared", channel_shared, ASYNC },
	{ "cq.overflow", overflow, ASYNC },
	{ "cq.resize", resize, 0 },
	{ "cq.shared", shared_cq, 0 },
	{ "srq.shared", srq_shared, 0 },
	{ "srq.limit", srq_limit, 0 },
	{ "srq.resize", srq_resize, 0 },
	{ "srq.resize.load", srq_resize_under_load, 0 },
	{ "srq.last_wqe", srq_last, ASYNC },
	{ "event.comm_est", comm_est, 0 },
	{ "event.async.unfetched", async_unfetched, ASYNC },
	{ 0 },
};
