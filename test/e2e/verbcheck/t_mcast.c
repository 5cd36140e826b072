/* SPDX-License-Identifier: Apache-2.0 */
/* Multicast groups: each attached queue pair receives one exact copy, the sender too. */
#include "vc.h"

#include <errno.h>
#include <string.h>

enum { PAIRS = 3, MEMBERS = 2 * PAIRS, SLOT = 16384 };

/* The LID of the group on an InfiniBand port: between functions the subnet
 * manager must have routed it, see -m. */
uint16_t opt_mlid;

static bool v4(void) { return !memcmp(A->h.gid.raw, "\0\0\0\0\0\0\0\0\0\0\377\377", 12); }

/* group returns the GID of group n. */
static union ibv_gid group(int n)
{
	union ibv_gid g = { .raw = { 0xff, 0x05, [12] = 'v', 'c', opt_seed & 0x7f, n } };

	if (port_is_ib())
		g = (union ibv_gid){ .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [12] = 'v', 'e', 'r', n } };
	else if (v4())
		g = (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 239, 86, opt_seed & 0x7f, n } };
	return g;
}

static uint16_t mlid(void) { return !port_is_ib() ? 0 : opt_mlid ? opt_mlid : 0xc0f0; }

/* able leaves the test where the ends cannot have a group. */
static void able(void)
{
	if (port_is_ib() && !opt_mlid && A->h.lid != B->h.lid)
		skip("the group must have been joined: see -m");
}

struct party {
	struct conn c[PAIRS];
	bool in[MEMBERS], buffer[MEMBERS];
	bool deaf[MEMBERS];     /* to what it sends itself */
	union ibv_gid g;
	int ah[MEMBERS];
};

static struct side *side(struct party *p, int i) { return &p->c[i / 2].s[i % 2]; }

static int attach(struct party *p, int i, bool yes)
{
	struct side *s = side(p, i);
	int rc = try_mcast(s->e, s->qp, yes, &p->g, mlid());

	if (!rc)
		p->in[i] = yes;
	return rc;
}

static void gather_but(struct party *p, unsigned deaf)
{
	*p = (struct party){ .g = group(1) };
	for (int i = 0; i < MEMBERS; i++)
		p->deaf[i] = deaf >> i & 1;
	for (int k = 0; k < PAIRS; k++) {
		struct opt o = { .type = IBV_QPT_UD, .room = SLOT };
		for (int i = 0; i < 2; i++)
			o.create_flags[i] = p->deaf[2 * k + i] ? IBV_QP_CREATE_BLOCK_SELF_MCAST_LB : 0;
		connect_pair(&p->c[k], &o);
	}
	for (int i = 0; i < MEMBERS; i++) {
		struct side *s = side(p, i);
		struct ibv_ah_attr a = { .is_global = 1, .port_num = s->e->h.port, .dlid = mlid(),
			.grh = { .dgid = p->g, .sgid_index = s->e->h.gid_index, .hop_limit = 5, .traffic_class = 0x10 } };
		OK(try_ah(s->e, s->pd, &a, &p->ah[i]));
		OK(attach(p, i, true));
		p->buffer[i] = true;
	}
}

static void gather(struct party *p) { gather_but(p, 0); }

/* disperse leaves the groups: a queue pair in one is not destroyed. */
static void disperse(struct party *p)
{
	for (int i = 0; i < MEMBERS; i++)
		if (p->in[i])
			OK(attach(p, i, false));
}

/* header checks the 40 bytes in front of what came from side s. */
static void header(struct party *p, int i, struct side *from)
{
	struct side *s = side(p, i);
	uint8_t h[40];

	get_bytes(s->e, s->rx, 0, h, 40);
	const uint8_t *src = v4() ? h + 32 : h + 8, *dst = v4() ? h + 36 : h + 24;
	int n = v4() ? 4 : 16;
	CHECK(!memcmp(src, from->e->h.gid.raw + 16 - n, n), "member %d: the header's source is not the sender's", i);
	CHECK(!memcmp(dst, p->g.raw + 16 - n, n), "member %d: the header's destination is not the group", i);
	CHECK(v4() ? h[20] == 0x45 : h[0] >> 4 == 6, "member %d: the header is of no IP version", i);
	expect_bytes(s->e, s->rx, 0, h, 40);
}

/* gets returns whether member i must get what member `from` sends. */
static bool gets(struct party *p, int i, int from, uint32_t key)
{
	return p->in[i] && key == qkey && !(i == from && p->deaf[i]);
}

/* spread has member `from` send n bytes, which each member must receive. */
static void spread(struct party *p, int from, uint32_t n, uint32_t key)
{
	struct side *f = side(p, from);
	struct conn *c = &p->c[from / 2];
	struct swr w = swr(c, n & 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, IBV_SEND_SIGNALED);
	struct rwr r[MEMBERS];
	uint64_t seed = rnd();

	for (int i = 0; i < MEMBERS; i++) {
		struct side *s = side(p, i);
		if (!p->buffer[i])
			continue;
		r[i] = rwr(&p->c[i / 2]);
		radd(&r[i], s->rxm, 0, 40 + n);
		OK(try_post_recv(s->e, s->qp, &r[i], 1, NULL));
	}
	fill(f->e, f->tx, 0, n, seed);
	add(&w, f->txm, 0, n);
	w.ah = p->ah[from], w.rqpn = 0xffffff, w.rqkey = key;
	post(c, from % 2, &w);
	want_ok(c, from % 2, &w, n);
	for (int i = 0; i < MEMBERS; i++) {
		struct side *s = side(p, i);
		if (!p->buffer[i] || !gets(p, i, from, key))
			continue;
		struct ibv_wc wc = one(s->e, s->rcq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == r[i].wr_id,
		      "member %d: %s, opcode %d, request %llx", i,
		      ibv_wc_status_str(wc.status), wc.opcode, (unsigned long long)wc.wr_id);
		CHECK(wc.byte_len == n + 40, "member %d: byte_len %u, want %u", i, wc.byte_len, n + 40);
		CHECK(wc.src_qp == f->qpn && wc.qp_num == s->qpn, "member %d: qp_num %06x from %06x, want %06x from %06x", i,
		      wc.qp_num, wc.src_qp, s->qpn, f->qpn);
		CHECK(wc.wc_flags & IBV_WC_GRH, "member %d: no GRH flag", i);
		CHECK(!(n & 1) == !(wc.wc_flags & IBV_WC_WITH_IMM) && (!(n & 1) || wc.imm_data == w.imm), "member %d: immediate data",
		      i);
		if (port_is_ib())
			CHECK(wc.slid == f->e->h.lid && !wc.dlid_path_bits, "member %d: slid %u, want %u", i, wc.slid, f->e->h.lid);
		header(p, i, f);
		expect(s->e, s->rx, 40, n, seed, 0);
	}
	for (int i = 0; i < MEMBERS; i++) {
		struct side *s = side(p, i);
		verify(s->e, s->rx, 0, gets(p, i, from, key) ? "a member's copy" : "the buffer of one who gets none");
		if (i < 2 || !p->buffer[i] || !gets(p, i, from, key)) /* for the others time has passed */
			want_none(s->e, s->rcq, i < 2 || key != qkey ? 20 : 0);
	}
	/* A member that was left out has its receive still: the next message would use it. */
	for (int i = 0; i < MEMBERS; i++) {
		struct side *s = side(p, i);
		struct ibv_qp_attr e = { .qp_state = IBV_QPS_ERR };
		if (!p->buffer[i] || gets(p, i, from, key))
			continue;
		OK(try_modify(s->e, s->qp, &e, IBV_QP_STATE));
		want_wc(s->e, s->rcq, r[i].wr_id, IBV_WC_WR_FLUSH_ERR);
		e.qp_state = IBV_QPS_RESET;
		OK(try_modify(s->e, s->qp, &e, IBV_QP_STATE));
		for (int st = IBV_QPS_INIT; st <= IBV_QPS_RTS; st++)
			to_state(&p->c[i / 2], i % 2, st);
	}
}

static void copies(void)
{
	struct party p;

	able();
	gather(&p);
	uint32_t mtu = p.c[0].mtu, n[] = { 0, 1, 100, 1001, mtu - 1, mtu };
	for (unsigned k = 0; k < sizeof n / sizeof *n; k++)
		spread(&p, k % MEMBERS, n[k], qkey);
	disperse(&p);
}

static void members(void)
{
	struct party p;

	able();
	gather(&p);
	p.buffer[3] = false; /* costs the others nothing */
	spread(&p, 0, 64, qkey);
	spread(&p, 1, 65, qkey);
	OK(attach(&p, 4, false));
	OK(attach(&p, 5, false));
	spread(&p, 0, 66, qkey);
	spread(&p, 4, 67, qkey); /* to send one need not be a member */
	OK(attach(&p, 5, true));
	OK(attach(&p, 5, true)); /* again: one membership, one copy */
	spread(&p, 1, 68, qkey);
	disperse(&p);
	spread(&p, 0, 69, qkey);
}

static void wrong_qkey(void)
{
	struct party p;

	able();
	gather(&p);
	spread(&p, 0, 100, qkey ^ 4);
	spread(&p, 1, 101, qkey);
	disperse(&p);
}

/* A queue pair that blocks its own messages receives those of others. */
static void self(void)
{
	struct party p;
	unsigned deaf = (A->rxe ? 0 : 1 << 0) | (B->rxe ? 0 : 1 << 3);

	able();
	if (!deaf)
		skip("soft-RoCE has no such flag");
	gather_but(&p, deaf);
	for (int i = 0; i < MEMBERS; i++)
		spread(&p, i, 70 + i, qkey);
	disperse(&p);
	/* It is for datagrams, and for creation. */
	struct side *s = side(&p, A->rxe);
	struct qp_init in = { .type = IBV_QPT_RC, .pd = s->pd, .scq = s->scq, .rcq = s->rcq, .srq = NONE,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB };
	int qp;
	EXPECT_RC(EINVAL, try_qp(s->e, &in, &qp, NULL));
	in.type = IBV_QPT_UD, in.create_flags |= IBV_QP_CREATE_SCATTER_FCS;
	EXPECT_RC(EOPNOTSUPP, try_qp(s->e, &in, &qp, NULL));
}

/* A burst: each copy in order, none twice, none lost that a buffer waits for. */
static void burst(void)
{
	struct party p;
	enum { N = 48, LEN = 200 };
	struct rwr r[MEMBERS][N];
	uint64_t seed = rnd();

	able();
	gather(&p);
	struct side *f = side(&p, 0);
	for (int i = 0; i < MEMBERS; i++) {
		struct side *s = side(&p, i);
		for (int k = 0; k < N; k++) {
			r[i][k] = rwr(&p.c[i / 2]);
			radd(&r[i][k], s->rxm, k * 256, 40 + LEN);
			OK(try_post_recv(s->e, s->qp, &r[i][k], 1, NULL));
		}
	}
	fill(f->e, f->tx, 0, N + LEN, seed);
	for (int k = 0; k < N; k++) {
		struct swr w = swr(&p.c[0], IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED);
		add(&w, f->txm, k, LEN);
		w.ah = p.ah[0], w.rqpn = 0xffffff, w.rqkey = qkey, w.imm = k;
		OK(try_post_send(f->e, f->qp, &w, 1, NULL));
	}
	for (int i = 0; i < MEMBERS; i++) {
		struct side *s = side(&p, i);
		for (int k = 0; k < N; k++) {
			struct ibv_wc wc = one(s->e, s->rcq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == r[i][k].wr_id && wc.imm_data == (uint32_t)k,
			      "member %d: %s, number %u, want %d", i, ibv_wc_status_str(wc.status), wc.imm_data, k);
			uint8_t grh[40];
			get_bytes(s->e, s->rx, k * 256, grh, 40);
			expect_bytes(s->e, s->rx, k * 256, grh, 40);
			expect(s->e, s->rx, k * 256 + 40, LEN, seed, k);
		}
		verify(s->e, s->rx, 0, "copies of a burst");
		want_none(s->e, s->rcq, 0);
	}
	disperse(&p);
}

static void errors(void)
{
	struct conn c, rc;
	union ibv_gid g = group(2), uni = A->h.gid;

	able();
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UD, .room = 4096 });
	connect_pair(&rc, &(struct opt){ .room = 4096 });
	EXPECT_RC(EINVAL, try_mcast(A, c.s[0].qp, true, &uni, mlid()));
	EXPECT_RC(EINVAL, try_mcast(A, c.s[0].qp, false, &g, mlid()));
	EXPECT_RC(EINVAL, try_mcast(A, rc.s[0].qp, true, &g, mlid()));
	if (port_is_ib())
		EXPECT_RC(EINVAL, try_mcast(A, c.s[0].qp, true, &g, 1));
	OK(try_mcast(A, c.s[0].qp, true, &g, mlid()));
	EXPECT_RC(EBUSY, try_free(A, OP_QP_FREE, c.s[0].qp));
	OK(try_mcast(A, c.s[0].qp, false, &g, mlid()));
	EXPECT_RC(EINVAL, try_mcast(A, c.s[0].qp, false, &g, mlid()));
	ping(&c, 0);
}

const struct test mcast_tests[] = {
	{ "mcast.copies", copies, 0 },
	{ "mcast.members", members, 0 },
	{ "mcast.qkey", wrong_qkey, 0 },
	{ "mcast.self", self, 0 },
	{ "mcast.burst", burst, 0 },
	{ "mcast.errors", errors, 0 },
	{ 0 },
};
