/* SPDX-License-Identifier: Apache-2.0 */
/* Objects: attributes, limits, what may be destroyed when, what a post refuses. */
#include "vc.h"

#include <errno.h>
#include <string.h>

/* Each end is checked, once. */
#define EACH(e) for (struct end *e = A; e; e = e == A && B->fd != NONE ? B : NULL)

static void device(void)
{
	EACH(e) {
		struct ibv_device_attr d;
		struct msg m = { .op = OP_QUERY_DEVICE };
		OK(call(e, &m, NULL, 0, &d, sizeof d));
		CHECK(d.node_guid && d.sys_image_guid && d.vendor_id, "no GUID or vendor");
		CHECK(d.max_qp > 0 && d.max_cq > 0 && d.max_mr > 0 && d.max_pd > 0 && d.max_ah > 0 && d.max_srq > 0,
		      "an object limit is zero");
		CHECK(d.max_qp_wr >= 64 && d.max_sge >= 4 && d.max_cqe >= 256 && d.max_srq_wr >= 64 && d.max_srq_sge >= 4,
		      "a queue limit is tiny");
		CHECK(d.max_qp_rd_atom >= 1 && d.max_qp_init_rd_atom >= 1, "no READs");
		CHECK(d.phys_port_cnt >= 1 && d.max_mr_size >= 1 << 30, "ports %d, region size %llu", d.phys_port_cnt,
		      (unsigned long long)d.max_mr_size);
		CHECK(memchr(d.fw_ver, 0, sizeof d.fw_ver), "firmware version is not a string");
		CHECK(!memcmp(&d, &e->h.dev, sizeof d), "two queries differ");
	}
}

static void port(void)
{
	EACH(e) {
		struct ibv_port_attr p;
		struct msg m = { .op = OP_QUERY_PORT, .i = { e->h.port } };
		OK(call(e, &m, NULL, 0, &p, sizeof p));
		CHECK(p.state == IBV_PORT_ACTIVE, "port is %d, not ACTIVE", p.state);
		CHECK(p.active_mtu >= IBV_MTU_256 && p.active_mtu <= p.max_mtu && p.max_mtu <= IBV_MTU_4096, "MTU %d of %d",
		      p.active_mtu, p.max_mtu);
		CHECK(p.gid_tbl_len >= 1 && p.pkey_tbl_len >= 1 && p.max_msg_sz >= 1 << 20, "GIDs %d, P_Keys %d, message size %u",
		      p.gid_tbl_len, p.pkey_tbl_len, p.max_msg_sz);
		CHECK(p.phys_state == 5, "physical state %d, want 5 (link up)", p.phys_state);
		m = (struct msg){ .op = OP_QUERY_PORT, .i = { 0 } };
		CHECK(call(e, &m, NULL, 0, NULL, 0), "port 0 exists");
		m = (struct msg){ .op = OP_QUERY_PORT, .i = { e->h.dev.phys_port_cnt + 1 } };
		CHECK(call(e, &m, NULL, 0, NULL, 0), "one port too many exists");

		union ibv_gid g;
		m = (struct msg){ .op = OP_QUERY_GID, .i = { e->h.gid_index } };
		OK(call(e, &m, NULL, 0, &g, sizeof g));
		CHECK(!memcmp(&g, &e->h.gid, sizeof g), "two queries of one GID differ");
		m = (struct msg){ .op = OP_QUERY_GID, .i = { p.gid_tbl_len } };
		CHECK(call(e, &m, NULL, 0, NULL, 0), "a GID beyond the table exists");
		m = (struct msg){ .op = OP_QUERY_PKEY, .i = { 0 } };
		OK(call(e, &m, NULL, 0, NULL, 0));
		CHECK((m.i[0] & 0x7fff) == 0x7fff, "P_Key 0 is %04x, not of the default partition", m.i[0]);
		m = (struct msg){ .op = OP_QUERY_PKEY, .i = { p.pkey_tbl_len } };
		CHECK(call(e, &m, NULL, 0, NULL, 0), "a P_Key beyond the table exists");
	}
}

static void reopen(void)
{
	EACH(e)
		for (int i = 0; i < 5; i++) {
			struct msg m = { .op = OP_REOPEN };
			OK(call(e, &m, NULL, 0, NULL, 0));
		}
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = 4096 });
	ping(&c, 0);
	ping(&c, 1);
}

static struct qp_init plain(int pd, int cq) 
{
	return (struct qp_init){ .type = IBV_QPT_RC, .pd = pd, .scq = cq, .rcq = cq, .srq = NONE,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
}

/* What is in use cannot be destroyed; afterwards it still works. */
static void busy(void)
{
	EACH(e) {
		int pd = make_pd(e), ch = make_channel(e), cq = make_cq(e, 8, ch), qp, srq, ah;
		struct buf b = make_buf(e, 4096, 0);
		struct mr m = make_mr(e, pd, b, 0, 100, 0);
		struct ibv_srq_attr got;
		struct ibv_ah_attr av;

		EXPECT_RC(EBUSY, try_free(e, OP_PD_FREE, pd)); /* a region */
		OK(try_free(e, OP_MR_FREE, m.id));
		OK(try_srq(e, pd, 4, 1, &srq, &got));
		EXPECT_RC(EBUSY, try_free(e, OP_PD_FREE, pd)); /* a shared receive queue */
		struct qp_init in = plain(pd, cq);
		in.srq = srq;
		in.cap.max_recv_wr = in.cap.max_recv_sge = 0;
		OK(try_qp(e, &in, &qp, NULL));
		EXPECT_RC(EBUSY, try_free(e, OP_SRQ_FREE, srq));
		EXPECT_RC(EBUSY, try_free(e, OP_CQ_FREE, cq));
		EXPECT_RC(EBUSY, try_free(e, OP_CHANNEL_FREE, ch));
		EXPECT_RC(EBUSY, try_free(e, OP_PD_FREE, pd));
		OK(try_free(e, OP_QP_FREE, qp));
		OK(try_free(e, OP_SRQ_FREE, srq));
		OK(try_free(e, OP_CQ_FREE, cq));
		OK(try_free(e, OP_CHANNEL_FREE, ch));
		attr_ah(e, e, &av);
		OK(try_ah(e, pd, &av, &ah));
		EXPECT_RC(EBUSY, try_free(e, OP_PD_FREE, pd)); /* an address handle */
		OK(try_free(e, OP_AH_FREE, ah));
		OK(try_free(e, OP_PD_FREE, pd));
	}
}

static void regions(void)
{
	EACH(e) {
		enum { N = 64 };
		int pd = make_pd(e);
		struct buf b = make_buf(e, 64 << 10, 3);
		struct mr m[N], x;

		EXPECT_RC(EINVAL, try_mr(e, pd, b.addr, 100, IBV_ACCESS_REMOTE_WRITE, &x));
		EXPECT_RC(EINVAL, try_mr(e, pd, b.addr, 100, IBV_ACCESS_REMOTE_ATOMIC, &x));
		OK(try_mr(e, pd, b.addr, 100, IBV_ACCESS_REMOTE_READ, &x));
		OK(try_mr(e, pd, b.addr, 100, 0, &x));
		for (int i = 0; i < N; i++) {
			m[i] = make_mr(e, pd, b, i * 100, 1 + rnd_below(100), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
			for (int k = 0; k < i; k++)
				CHECK(m[i].lkey != m[k].lkey && m[i].rkey != m[k].rkey, "two regions have the key %08x", m[i].rkey);
		}
		for (int i = 0; i < N; i++)
			OK(try_free(e, OP_MR_FREE, m[i].id));
	}
}

static void cq_limits(void)
{
	EACH(e) {
		int cq, got;
		EXPECT_RC(EINVAL, try_cq(e, 0, NONE, 0, &cq, &got));
		EXPECT_RC(EINVAL, try_cq(e, -1, NONE, 0, &cq, &got));
		EXPECT_RC(EINVAL, try_cq(e, e->h.dev.max_cqe + 1, NONE, 0, &cq, &got));
		EXPECT_RC(EINVAL, try_cq(e, 8, NONE, 100000, &cq, &got));
		OK(try_cq(e, 1, NONE, 0, &cq, &got));
		CHECK(got >= 1, "granted %d", got);
		OK(try_cq(e, 1000, NONE, 0, &cq, &got));
		CHECK(got >= 1000, "granted %d", got);
	}
}

static void qp_limits(void)
{
	EACH(e) {
		int pd = make_pd(e), cq = make_cq(e, 64, NONE), qp[64];
		uint32_t n[64];
		struct qp_init in;
		struct ibv_device_attr *d = &e->h.dev;

		in = plain(pd, cq), in.cap.max_send_wr = d->max_qp_wr + 1;
		EXPECT_RC(EINVAL, try_qp(e, &in, qp, n));
		in = plain(pd, cq), in.cap.max_recv_wr = d->max_qp_wr + 1;
		EXPECT_RC(EINVAL, try_qp(e, &in, qp, n));
		in = plain(pd, cq), in.cap.max_send_sge = d->max_sge + 1;
		EXPECT_RC(EINVAL, try_qp(e, &in, qp, n));
		in = plain(pd, cq), in.cap.max_recv_sge = d->max_sge + 1;
		EXPECT_RC(EINVAL, try_qp(e, &in, qp, n));
		in = plain(pd, cq), in.cap.max_inline_data = 1 << 24;
		EXPECT_RC(EINVAL, try_qp(e, &in, qp, n));
		in = plain(pd, cq), in.type = 99;
		int rc = try_qp(e, &in, qp, n);
		CHECK(rc == EINVAL || rc == EOPNOTSUPP, "queue pair of type 99: %s", errname(rc));
		for (int i = 0; i < 64; i++) {
			in = plain(pd, cq);
			in.cap = (struct ibv_qp_cap){ 1 + rnd_below(40), 1 + rnd_below(40), 1 + rnd_below(4), 1 + rnd_below(4),
				rnd_below(65) };
			struct ibv_qp_cap want = in.cap;
			OK(try_qp(e, &in, &qp[i], &n[i]));
			CHECK(in.cap.max_send_wr >= want.max_send_wr && in.cap.max_recv_wr >= want.max_recv_wr &&
			      in.cap.max_send_sge >= want.max_send_sge &&
			      in.cap.max_recv_sge >= want.max_recv_sge && in.cap.max_inline_data >= want.max_inline_data,
			      "granted less than asked");
			CHECK(n[i] >= 2 && n[i] < 0xffffff, "queue pair number %06x", n[i]);
			for (int k = 0; k < i; k++)
				CHECK(n[i] != n[k], "two queue pairs have the number %06x", n[i]);
		}
	}
}

static void srq_limits(void)
{
	EACH(e) {
		int pd = make_pd(e), srq;
		struct ibv_srq_attr a;

		EXPECT_RC(EINVAL, try_srq(e, pd, e->h.dev.max_srq_wr + 1, 1, &srq, &a));
		EXPECT_RC(EINVAL, try_srq(e, pd, 8, e->h.dev.max_srq_sge + 1, &srq, &a));
		OK(try_srq(e, pd, 10, 3, &srq, &a));
		CHECK(a.max_wr >= 10 && a.max_sge >= 3, "granted %u requests of %u entries", a.max_wr, a.max_sge);
		struct ibv_srq_attr q = { 0 }, limit = { .srq_limit = 5 }, over = { .srq_limit = a.max_wr + 1 };
		OK(try_srq_query(e, srq, &q));
		CHECK(q.max_wr >= 10 && q.max_sge >= 3 && q.srq_limit == 0, "query: %u requests of %u entries, limit %u", q.max_wr,
		      q.max_sge, q.srq_limit);
		OK(try_srq_modify(e, srq, &limit, IBV_SRQ_LIMIT));
		OK(try_srq_query(e, srq, &q));
		CHECK(q.srq_limit == 5, "limit %u, want 5", q.srq_limit);
		if (!e->rxe) /* which compares with the power of two it rounded up to */
			EXPECT_RC(EINVAL, try_srq_modify(e, srq, &over, IBV_SRQ_LIMIT));
	}
}

/* A shared receive queue takes what it was granted, in order, and no more. */
static void srq_full(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .srq = { false, true }, .depth = 16, .room = 8192, .rcqe = 64 });
	struct ibv_srq_attr q;
	OK(try_srq_query(B, c.s[1].srq, &q));
	struct rwr r[MAX_WRS];
	CHECK(q.max_wr < MAX_WRS, "granted %u, asked 16", q.max_wr);
	for (unsigned i = 0; i <= q.max_wr; i++) {
		r[i] = rwr(&c);
		radd(&r[i], c.s[1].rxm, i * 8, 8);
	}
	int bad;
	EXPECT_RC(ENOMEM, try_post_srq(B, c.s[1].srq, r, q.max_wr + 1, &bad));
	CHECK(bad == (int)q.max_wr, "bad_wr is request %d, want %u", bad, q.max_wr);
	for (int i = 0; i < 16; i++) {
		struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
		uint64_t seed = rnd();
		fill(A, c.s[0].tx, 0, 8, seed);
		add(&w, c.s[0].txm, 0, 8);
		expect(B, c.s[1].rx, i * 8, 8, seed, 0);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, 8);
		want_recv(&c, 1, &r[i], &w, 8);
	}
	verify(B, c.s[1].rx, 0, "requests of a full shared receive queue");
	if (is_rxe(&c))
		return;
	struct rwr many = rwr(&c); /* too many entries */
	for (unsigned k = 0; k < q.max_sge + 1 && k < MAX_SGE; k++)
		radd(&many, c.s[1].rxm, 0, 1);
	if (q.max_sge < MAX_SGE)
		EXPECT_RC(EINVAL, try_post_srq(B, c.s[1].srq, &many, 1, &bad));
}

/* A full receive queue, then the same queue used up in order. */
static void rq_full(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .depth = 8, .room = 8192, .rcqe = 300 });
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	OK(try_query(B, c.s[1].qp, &a, &ia));
	int n = ia.cap.max_recv_wr, bad;
	CHECK(n >= 8 && n < MAX_WRS, "granted %d receives, asked 8", n);
	struct rwr r[MAX_WRS];
	for (int i = 0; i <= n; i++) {
		r[i] = rwr(&c);
		radd(&r[i], c.s[1].rxm, i * 8, 8);
	}
	EXPECT_RC(ENOMEM, try_post_recv(B, c.s[1].qp, r, n + 1, &bad));
	CHECK(bad == n, "bad_wr is request %d, want %d", bad, n);
	for (int i = 0; i < n; i++) {
		struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
		uint64_t seed = rnd();
		fill(A, c.s[0].tx, 0, 8, seed);
		add(&w, c.s[0].txm, 0, 8);
		expect(B, c.s[1].rx, i * 8, 8, seed, 0);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, 8);
		want_recv(&c, 1, &r[i], &w, 8);
	}
	verify(B, c.s[1].rx, 0, "requests of a full receive queue");
}

/* A full send queue: what was taken is delivered in order, what was refused is not. */
static void sq_full(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .depth = 8, .room = 64 << 10, .cqe = 300, .rcqe = 300 });
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	OK(try_query(A, c.s[0].qp, &a, &ia));
	int n = ia.cap.max_send_wr, bad, left;
	CHECK(n >= 8 && n < MAX_WRS, "granted %d sends, asked 8", n);
	struct swr w[MAX_WRS];
	uint64_t seed = rnd();
	fill(A, c.s[0].tx, 0, 4, seed); /* the device may read it as soon as it is posted */
	for (int i = 0; i <= n; i++) { /* nothing can leave: there is no receive */
		w[i] = swr(&c, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED);
		add(&w[i], c.s[0].txm, 0, 4);
	}
	EXPECT_RC(ENOMEM, try_post_send(A, c.s[0].qp, w, n + 1, &bad));
	CHECK(bad == n, "bad_wr is request %d, want %d", bad, n);
	expect(B, c.s[1].rx, 0, 4, seed, 0);
	for (left = 0; left < n; left++) {
		struct rwr r = rwr(&c);
		radd(&r, c.s[1].rxm, 0, 4);
		post_recv(&c, 1, &r);
		want_recv(&c, 1, &r, &w[left], 4);
		want_ok(&c, 0, &w[left], 4);
	}
	verify(B, c.s[1].rx, 0, "requests of a full send queue");
	want_none(A, c.s[0].scq, 20);
	ping(&c, 0);
}

/* A request that a post refuses does not take those before it along. */
static void post_invalid(void)
{
	struct conn c;
	int bad;

	connect_pair(&c, &(struct opt){ .sge = 2, .room = 8192, .inl = 16 });
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	OK(try_query(A, c.s[0].qp, &a, &ia));
	for (int k = 0; k < 3; k++) {
		struct rwr r = rwr(&c);
		struct swr w[3];
		uint64_t seed = rnd();
		for (int i = 0; i < 3; i++) {
			w[i] = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
			add(&w[i], c.s[0].txm, 0, 8);
		}
		if (k == 0) { /* too many entries */
			while (w[1].num_sge <= ia.cap.max_send_sge && w[1].num_sge < MAX_SGE)
				add(&w[1], c.s[0].txm, 0, 1);
			if (w[1].num_sge <= ia.cap.max_send_sge)
				continue;
		} else if (k == 1) { /* too much inline data */
			w[1].flags |= IBV_SEND_INLINE;
			w[1].sge[0].length = c.s[0].inl + 1;
			if (w[1].sge[0].length > 8192)
				continue;
		} else if (A->rxe) { /* takes any number and fails later */
			continue;
		} else { /* no such operation */
			w[1].opcode = 99;
		}
		fill(A, c.s[0].tx, 0, 8, seed);
		expect(B, c.s[1].rx, 0, 8, seed, 0);
		radd(&r, c.s[1].rxm, 0, 8);
		post_recv(&c, 1, &r);
		int rc = try_post_send(A, c.s[0].qp, w, 3, &bad);
		CHECK(rc == EINVAL || (k == 2 && rc == EOPNOTSUPP), "invalid request of kind %d: %s", k, errname(rc));
		CHECK(bad == 1, "kind %d: bad_wr is request %d, want 1", k, bad);
		want_ok(&c, 0, &w[0], 8);
		want_recv(&c, 1, &r, &w[0], 8);
		verify(B, c.s[1].rx, 0, "the request before the refused one");
		want_none(A, c.s[0].scq, 20);
	}
	struct rwr many = rwr(&c);
	while (many.num_sge <= ia.cap.max_recv_sge && many.num_sge < MAX_SGE)
		radd(&many, c.s[0].rxm, 0, 1);
	if (many.num_sge > ia.cap.max_recv_sge)
		EXPECT_RC(EINVAL, try_post_recv(A, c.s[0].qp, &many, 1, &bad));
	ping(&c, 0);
}

/* Operations that a type of queue pair does not have. */
static void post_opcode(void)
{
	static const struct { int type, op; } t[] = {
		{ IBV_QPT_UC, IBV_WR_RDMA_READ }, { IBV_QPT_UC, IBV_WR_ATOMIC_CMP_AND_SWP },
		{ IBV_QPT_UC, IBV_WR_ATOMIC_FETCH_AND_ADD },
		{ IBV_QPT_UD, IBV_WR_RDMA_WRITE }, { IBV_QPT_UD, IBV_WR_RDMA_WRITE_WITH_IMM }, { IBV_QPT_UD, IBV_WR_RDMA_READ },
		{ IBV_QPT_UD, IBV_WR_ATOMIC_FETCH_AND_ADD },
	};
	for (unsigned k = 0; k < sizeof t / sizeof *t; k++) {
		struct conn c;
		int bad;
		connect_pair(&c, &(struct opt){ .type = t[k].type, .room = 4096 });
		struct swr w = swr(&c, t[k].op, IBV_SEND_SIGNALED);
		add(&w, c.s[0].txm, 0, 8);
		w.raddr = c.s[1].rxm.addr & ~7ull;
		w.rkey = c.s[1].rxm.rkey;
		if (t[k].type == IBV_QPT_UD)
			w.ah = c.s[0].ah, w.rqpn = c.s[1].qpn, w.rqkey = qkey;
		int rc = try_post_send(A, c.s[0].qp, &w, 1, &bad);
		if (!rc) {
			struct ibv_wc wc = one(A, c.s[0].scq);
			CHECK(wc.status == IBV_WC_LOC_QP_OP_ERR || flushed_fault(A, IBV_WC_LOC_QP_OP_ERR, wc.status),
			      "opcode %d on %s: %s", t[k].op, type_name(t[k].type), ibv_wc_status_str(wc.status));
		} else {
			CHECK(rc == EINVAL || rc == EOPNOTSUPP, "opcode %d on %s: %s", t[k].op, type_name(t[k].type), errname(rc));
		}
		verify(B, c.s[1].rx, 20, "memory that an illegal operation named");
		destroy_qps(&c);
	}
}

static void handles(void)
{
	struct ibv_ah_attr a;
	int ah;
	EACH(e) {
		int pd = make_pd(e);
		attr_ah(e, e, &a);
		OK(try_ah(e, pd, &a, &ah));
		attr_ah(e, e, &a);
		a.port_num = e->h.dev.phys_port_cnt + 1;
		EXPECT_RC(EINVAL, try_ah(e, pd, &a, &ah));
		if (port_is_ib()) {
			attr_ah(e, e, &a);
			a.dlid = 0;
			EXPECT_RC(EINVAL, try_ah(e, pd, &a, &ah));
		}
		if (opt_lid)
			continue;
		attr_ah(e, e, &a);
		a.grh.sgid_index = 255;
		CHECK(try_ah(e, pd, &a, &ah), "an address handle with a GID index beyond the table");
		if (port_is_ib())
			continue;
		attr_ah(e, e, &a);
		a.is_global = 0;
		EXPECT_RC(EINVAL, try_ah(e, pd, &a, &ah));
	}
}

const struct test object_tests[] = {
	{ "obj.device", device, 0 },
	{ "obj.port", port, 0 },
	{ "obj.reopen", reopen, 0 },
	{ "obj.busy", busy, 0 },
	{ "obj.mr", regions, 0 },
	{ "obj.cq", cq_limits, 0 },
	{ "obj.qp", qp_limits, 0 },
	{ "obj.srq", srq_limits, 0 },
	{ "obj.ah", handles, 0 },
	{ "post.rq_full", rq_full, 0 },
	{ "post.sq_full", sq_full, 0 },
	{ "post.srq_full", srq_full, 0 },
	{ "post.invalid", post_invalid, 0 },
	{ "post.opcode", post_opcode, ASYNC },
	{ 0 },
};
