/* SPDX-License-Identifier: Apache-2.0 */
/* Data: every operation, every byte, every boundary. */
#include "vc.h"

#include <stdio.h>
#include <string.h>

#define RC IBV_QPT_RC
#define UC IBV_QPT_UC
#define UD IBV_QPT_UD

static bool is_send(int op) { return op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM; }
static bool takes_recv(int op) { return is_send(op) || op == IBV_WR_RDMA_WRITE_WITH_IMM; }

/* place computes what [dst segments] hold after a message gathered from [src
 * segments] of a buffer filled with the seed. */
static void place(struct end *e, struct buf dst, const struct seg *d, int nd, const struct seg *s, int ns,
	uint64_t seed)
{
	uint64_t so = 0, dd = 0;
	int i = 0, k = 0;

	while (i < ns && k < nd) {
		uint64_t n = s[i].len - so;
		if (n > d[k].len - dd)
			n = d[k].len - dd;
		expect(e, dst, d[k].off + dd, n, seed, s[i].off + so);
		so += n, dd += n;
		if (so == s[i].len)
			i++, so = 0;
		if (dd == d[k].len)
			k++, dd = 0;
	}
}

static uint32_t total(const struct seg *s, int n)
{
	uint32_t t = 0;
	while (n--)
		t += s[n].len;
	return t;
}

static uint16_t ip_sum(const uint8_t *p)
{
	uint32_t s = 0;
	for (int i = 0; i < 20; i += 2)
		s += p[i] << 8 | p[i + 1];
	s = (s & 0xffff) + (s >> 16);
	return (s & 0xffff) + (s >> 16);
}

/* check_grh checks the 40 bytes before a datagram of n bytes of payload. */
static void check_grh(struct conn *c, int from, const uint8_t *g, uint32_t n)
{
	const union ibv_gid *src = &c->s[from].e->h.gid, *dst = &c->s[!from].e->h.gid;
	static const uint8_t mapped[12] = { [10] = 0xff, 0xff };

	if (opt_lid)
		return; /* undefined */
	if (port_is_ib()) {
		CHECK(g[0] >> 4 == 6 && g[6] == 0x1b, "GRH: version %d, next header %02x", g[0] >> 4, g[6]);
		CHECK(!memcmp(g + 8, src, 16) && !memcmp(g + 24, dst, 16), "GRH: wrong GIDs");
	} else if (!memcmp(src, mapped, 12)) {
		const uint8_t *ip = g + 20;
		unsigned len = ip[2] << 8 | ip[3];
		CHECK(ip[0] == 0x45, "bytes 20-39 of the GRH area: first is %02x, want an IPv4 header", ip[0]);
		/* Soft-RoCE hands a packet to itself before the checksum is made. */
		CHECK(ip_sum(ip) == 0xffff || (c->s[from].e->rxe && !memcmp(src, dst, 16)),
		      "IPv4 header in the GRH area: bad checksum (sum %04x)", ip_sum(ip));
		CHECK(ip[9] == 17 && ip[8] == 64, "IPv4 header in the GRH area: protocol %d, TTL %d, want 17, 64", ip[9], ip[8]);
		CHECK(!memcmp(ip + 12, src->raw + 12, 4) && !memcmp(ip + 16, dst->raw + 12, 4),
		      "IPv4 header in the GRH area: wrong addresses");
		/* UDP 8, BTH 12, DETH 8, perhaps immediate data 4, padded payload, ICRC 4 */
		unsigned pad = (n + 3) & ~3u;
		CHECK(len == 20 + 32 + pad || len == 20 + 36 + pad, "IPv4 header in the GRH area: length %u for %u bytes of payload",
		      len, n);
	} else {
		CHECK(g[0] >> 4 == 6 && g[6] == 17 && g[7] == 64,
		      "IPv6 header in the GRH area: version %d, next header %d, hop limit %d", g[0] >> 4, g[6], g[7]);
		CHECK(!memcmp(g + 8, src, 16) && !memcmp(g + 24, dst, 16), "IPv6 header in the GRH area: wrong addresses");
	}
}

/* transfer runs one operation between side i's segments l and the other
 * side's segments r and checks everything there is to see. For a READ the
 * data flows from r to l. A one-sided operation uses r[0] only. */
static void transfer(struct conn *c, int i, int op, const struct seg *l, int nl, const struct seg *r, int nr, int flags)
{
	struct side *me = &c->s[i], *peer = &c->s[!i];
	bool read = op == IBV_WR_RDMA_READ, ud = c->o.type == UD;
	uint32_t len = total(l, nl);
	uint64_t seed = rnd();
	struct swr w = swr(c, op, IBV_SEND_SIGNALED | flags);
	struct rwr rv = rwr(c);

	if (read) {
		fill(peer->e, peer->tx, r[0].off, len, seed);
		struct seg from = { r[0].off, len };
		place(me->e, me->rx, l, nl, &from, 1, seed);
	} else {
		for (int k = 0; k < nl; k++)
			fill(me->e, me->tx, l[k].off, l[k].len, seed);
		if (is_send(op)) {
			place(peer->e, peer->rx, r, nr, l, nl, seed);
		} else {
			struct seg to = { r[0].off, len };
			place(peer->e, peer->rx, &to, 1, l, nl, seed);
		}
	}
	if (takes_recv(op)) {
		if (ud) /* the header area, at the end of the buffer */
			radd(&rv, peer->rxm, c->o.room - 40, 40);
		for (int k = 0; is_send(op) && k < nr; k++)
			radd(&rv, peer->rxm, r[k].off, r[k].len);
		post_recv(c, !i, &rv);
	}
	for (int k = 0; k < nl; k++)
		add(&w, read ? me->rxm : me->txm, l[k].off, l[k].len);
	target(&w, c, i, read ? peer->txm : peer->rxm, r[0].off);
	if (flags & IBV_SEND_INLINE) {
		w.scribble = 1;
		for (unsigned k = 0; k < w.num_sge; k++)
			w.sge[k].lkey = 0xdead0000 + k; /* inline payload needs no key */
	}
	post(c, i, &w);
	want_ok(c, i, &w, len);
	if (takes_recv(op))
		want_recv(c, !i, &rv, &w, len);
	if (ud) {
		uint8_t grh[40];
		get_bytes(peer->e, peer->rx, c->o.room - 40, grh, 40);
		check_grh(c, i, grh, len);
		expect_bytes(peer->e, peer->rx, c->o.room - 40, grh, 40);
	}
	char what[64];
	snprintf(what, sizeof what, "%s opcode %d, %u bytes", type_name(c->o.type), op, len);
	/* A UC WRITE is complete before it has arrived. */
	bool quiet = c->o.type == UC && op == IBV_WR_RDMA_WRITE;
	verify(peer->e, read ? peer->tx : peer->rx, quiet ? wait_ms : 0, what);
	verify(me->e, read ? me->rx : me->tx, 0, what);
}

static void all_sizes(int type, int op, bool srq)
{
	struct conn c;
	uint64_t sz[64];

	connect_pair(&c, &(struct opt){ .type = type, .srq = { srq, srq } });
	int n = sizes(&c, sz);
	for (int k = 0; k < n; k++)
		for (int dir = 0; dir < 2; dir++) {
			struct seg l = { rnd_below(100), sz[k] }, r = { rnd_below(100), sz[k] };
			if (is_send(op) && k % 2)
				r.len += type == UD && sz[k] + 7 > (uint64_t)c.mtu ? 0 : 7; /* room to spare must stay untouched */
			transfer(&c, dir, op, &l, 1, &r, 1, 0);
		}
}

#define SIZES(name, type, op, srq) static void name(void) { all_sizes(type, op, srq); }
SIZES(rc_send, RC, IBV_WR_SEND, false)
SIZES(rc_send_imm, RC, IBV_WR_SEND_WITH_IMM, false)
SIZES(rc_send_srq, RC, IBV_WR_SEND, true)
SIZES(rc_send_imm_srq, RC, IBV_WR_SEND_WITH_IMM, true)
SIZES(rc_write, RC, IBV_WR_RDMA_WRITE, false)
SIZES(rc_write_imm, RC, IBV_WR_RDMA_WRITE_WITH_IMM, false)
SIZES(rc_write_imm_srq, RC, IBV_WR_RDMA_WRITE_WITH_IMM, true)
SIZES(rc_read, RC, IBV_WR_RDMA_READ, false)
SIZES(uc_send, UC, IBV_WR_SEND, false)
SIZES(uc_send_imm, UC, IBV_WR_SEND_WITH_IMM, false)
SIZES(uc_send_srq, UC, IBV_WR_SEND_WITH_IMM, true)
SIZES(uc_write, UC, IBV_WR_RDMA_WRITE, false)
SIZES(uc_write_imm, UC, IBV_WR_RDMA_WRITE_WITH_IMM, false)
SIZES(uc_write_imm_srq, UC, IBV_WR_RDMA_WRITE_WITH_IMM, true)
SIZES(ud_send, UD, IBV_WR_SEND, false)
SIZES(ud_send_imm, UD, IBV_WR_SEND_WITH_IMM, false)
SIZES(ud_send_srq, UD, IBV_WR_SEND_WITH_IMM, true)

/* Every path MTU up to the port's, at its own boundaries. */
static void mtus(int type)
{
	int port = A->h.active_mtu < B->h.active_mtu ? A->h.active_mtu : B->h.active_mtu;
	static const int ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ };

	for (int mtu = IBV_MTU_256; mtu <= port; mtu++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .type = type, .mtu = mtu, .room = 64 << 10 });
		for (int k = 0; k < (type == RC ? 3 : 2); k++)
			for (int m = 1; m <= 5; m += 2)
				for (int d = -1; d <= 1; d++) {
					struct seg l = { 3, m * c.mtu + d }, r = { 5, m * c.mtu + d };
					transfer(&c, k & 1, ops[k], &l, 1, &r, 1, 0);
				}
		destroy_qps(&c);
	}
}
static void rc_mtu(void) { mtus(RC); }
static void uc_mtu(void) { mtus(UC); }

/* split cuts len bytes into n entries at random, some of them empty, laid out
 * in shuffled order with gaps. */
static int split(struct seg *s, int n, uint32_t len)
{
	uint32_t left = len;
	uint64_t off = rnd_below(32);
	for (int i = 0; i < n; i++) {
		uint32_t k = i == n - 1 ? left : rnd_below(3) == 0 ? 0 : rnd_below(left + 1);
		s[i].len = k;
		left -= k;
	}
	for (int i = 0; i < n; i++) { /* positions: odd ones first */
		int k = i * 2 + 1 < n ? i * 2 + 1 : (i - n / 2) * 2;
		s[k].off = off;
		off += s[k].len + rnd_below(13);
	}
	return n;
}

static void entries(int type, int op)
{
	struct conn c;
	uint32_t lens[] = { 0, 1, 7, 64, 100, 1000, 1024, 4096, 10007, 65536 };

	connect_pair(&c, &(struct opt){ .type = type, .sge = 9, .room = 256 << 10 });
	for (unsigned k = 0; k < sizeof lens / sizeof *lens; k++) {
		uint32_t len = lens[k];
		if (type == UD && len > (uint32_t)c.mtu)
			len = c.mtu - k;
		for (int n = 1; n <= 8; n += 1 + k % 3) {
			struct seg l[8], r[8];
			split(l, n, len);
			int nr = is_send(op) ? split(r, 1 + rnd_below(8), len) : split(r, 1, len);
			transfer(&c, n & 1, op, l, n, r, nr, 0);
		}
	}
}
#define ENTRIES(name, type, op) static void name(void) { entries(type, op); }
ENTRIES(rc_send_sge, RC, IBV_WR_SEND)
ENTRIES(rc_write_sge, RC, IBV_WR_RDMA_WRITE)
ENTRIES(rc_write_imm_sge, RC, IBV_WR_RDMA_WRITE_WITH_IMM)
ENTRIES(rc_read_sge, RC, IBV_WR_RDMA_READ)
ENTRIES(uc_send_sge, UC, IBV_WR_SEND_WITH_IMM)
ENTRIES(uc_write_sge, UC, IBV_WR_RDMA_WRITE)
ENTRIES(ud_send_sge, UD, IBV_WR_SEND)

static void inl(int type, int op)
{
	struct conn c;

	connect_pair(&c, &(struct opt){ .type = type, .inl = 128, .room = 64 << 10 });
	uint32_t max = c.s[0].inl < c.s[1].inl ? c.s[0].inl : c.s[1].inl, step = max > 300 ? 61 : 17;
	if (type == UD && max > (uint32_t)c.mtu)
		max = c.mtu;
	for (uint32_t n = 0; n <= max; n = n < 20 ? n + 1 : n < max && n + step > max ? max : n + step) {
		struct seg l[3], r[2];
		int nl = split(l, 1 + n % 3, n);
		int nr = is_send(op) ? split(r, 1 + n % 2, n) : split(r, 1, n);
		transfer(&c, n & 1, op, l, nl, r, nr, IBV_SEND_INLINE);
	}
}
static void rc_inline_send(void) { inl(RC, IBV_WR_SEND); }
static void rc_inline_write(void) { inl(RC, IBV_WR_RDMA_WRITE); }
static void rc_inline_write_imm(void) { inl(RC, IBV_WR_RDMA_WRITE_WITH_IMM); }
static void uc_inline(void) { inl(UC, IBV_WR_SEND_WITH_IMM); }
static void ud_inline(void) { inl(UD, IBV_WR_SEND_WITH_IMM); }

/* No entries at all; and a WRITE of nothing, with a key and an address that are not to be checked. */
static void rc_empty(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ 0 });
	for (int k = 0; k < 4; k++) {
		struct rwr r = rwr(&c);
		struct swr w = swr(&c, k & 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, IBV_SEND_SIGNALED);
		post_recv(&c, k >> 1, &r);
		post(&c, !(k >> 1), &w);
		want_ok(&c, !(k >> 1), &w, 0);
		want_recv(&c, k >> 1, &r, &w, 0);
	}
	for (int k = 0; k < 3; k++) {
		static const int ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ };
		struct rwr r = rwr(&c);
		struct swr w = swr(&c, ops[k], IBV_SEND_SIGNALED);
		w.raddr = 0xdeadbeef00000001;
		w.rkey = 0x12345678;
		if (k == 1)
			post_recv(&c, 1, &r);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, 0);
		if (k == 1)
			want_recv(&c, 1, &r, &w, 0);
	}
}

/* Regions that begin and end exactly at the message: nothing is rounded. */
static void rc_exact_regions(void)
{
	struct conn c;
	static const int ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	int acc = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	connect_pair(&c, &(struct opt){ .room = 128 << 10 });
	for (int k = 0; k < 12; k++) {
		uint32_t len = 1 + rnd_below(k < 6 ? 64 : 60000);
		struct side *a = &c.s[0], *b = &c.s[1];
		struct mr olds[4] = { a->txm, a->rxm, b->txm, b->rxm };
		uint64_t lo = 1 + rnd_below(4000), ro = 1 + rnd_below(4000);
		a->txm = make_mr(a->e, a->pd, a->tx, lo, len, acc);
		a->rxm = make_mr(a->e, a->pd, a->rx, lo, len, acc);
		b->txm = make_mr(b->e, b->pd, b->tx, ro, len, acc);
		b->rxm = make_mr(b->e, b->pd, b->rx, ro, len, acc);
		struct mr *m[4] = { &a->txm, &a->rxm, &b->txm, &b->rxm };
		for (int j = 0; j < 4; j++) /* offsets below count from the buffer's start */
			m[j]->addr -= j < 2 ? lo : ro;
		struct seg l = { lo, len }, r = { ro, len };
		transfer(&c, 0, ops[k % 3], &l, 1, &r, 1, 0);
		for (int j = 0; j < 4; j++) {
			OK(try_free(j < 2 ? a->e : b->e, OP_MR_FREE, m[j]->id));
			*m[j] = olds[j];
		}
	}
}

/* Many requests at once, of several kinds and sizes, some unsignalled: order
 * of completions, contents of every message. */
static void pipeline(int type, bool srq)
{
	struct conn c;
	enum { N = 48, SLOT = 16 << 10 };
	struct swr w[N];
	struct rwr r[N];
	uint64_t seed[N];
	uint32_t len[N];
	struct ibv_wc wc[N];

	connect_pair(&c, &(struct opt){ .type = type, .srq = { srq, srq }, .room = N * SLOT, .rd = 16 });
	for (int round = 0; round < 4; round++) {
		int dir = round & 1, nr = 0, ns = 0;
		struct side *me = &c.s[dir], *peer = &c.s[!dir];
		uint32_t hdr = type == UD ? 40 : 0;
		for (int k = 0; k < N; k++) {
			int op = type == UD ? IBV_WR_SEND + rnd_below(2) : type == UC ? rnd_below(4) : rnd_below(5);
			seed[k] = rnd();
			uint32_t max = type == UD ? c.mtu : SLOT / 2 - 64; /* the other half of a slot is for one-sided data */
			len[k] = rnd_below(3) ? rnd_below(max + 1) : rnd_below(64);
			w[k] = swr(&c, op, k % 4 == 3 || k == N - 1 ? IBV_SEND_SIGNALED : 0);
			bool read = op == IBV_WR_RDMA_READ;
			struct end *from = read ? peer->e : me->e, *to = read ? me->e : peer->e;
			fill(from, read ? peer->tx : me->tx, k * SLOT, len[k], seed[k]);
			if (is_send(op))
				expect(to, peer->rx, nr * SLOT + hdr, len[k], seed[k], k * SLOT);
			else
				expect(to, read ? me->rx : peer->rx, k * SLOT + SLOT / 2, len[k], seed[k], k * SLOT);
			add(&w[k], read ? me->rxm : me->txm, k * SLOT + (read ? SLOT / 2 : 0), len[k]);
			target(&w[k], &c, dir, read ? peer->txm : peer->rxm, k * SLOT + (read ? 0 : SLOT / 2));
			if (takes_recv(op)) {
				r[nr] = rwr(&c);
				if (is_send(op))
					radd(&r[nr], peer->rxm, nr * SLOT, hdr + len[k]);
				nr++;
			}
		}
		int rc = nr == 0 ? 0 :
			 peer->srq == NONE ? try_post_recv(peer->e, peer->qp, r, nr, NULL) :
					     try_post_srq(peer->e, peer->srq, r, nr, NULL);
		CHECK(!rc, "posting %d receives: %s", nr, errname(rc));
		for (int k = 0; k < N; k++)
			ns += !!(w[k].flags & IBV_SEND_SIGNALED);
		OK(try_post_send(me->e, me->qp, w, N, NULL));
		int got = poll_cq(me->e, me->scq, wc, ns, N, wait_ms);
		CHECK(got == ns, "%d send completions, want %d", got, ns);
		for (int k = 0, j = 0; k < N; k++) {
			if (!(w[k].flags & IBV_SEND_SIGNALED))
				continue;
			CHECK(wc[j].status == IBV_WC_SUCCESS && wc[j].wr_id == w[k].wr_id, "send completion %d: %s of %llx, want %llx", j,
			      ibv_wc_status_str(wc[j].status), (unsigned long long)wc[j].wr_id, (unsigned long long)w[k].wr_id);
			j++;
		}
		for (int k = 0, j = 0; k < N; k++)
			if (takes_recv(w[k].opcode))
				want_recv(&c, !dir, &r[j++], &w[k], len[k]);
		want_none(me->e, me->scq, 0);
		want_none(peer->e, peer->rcq, 0);
		for (int k = 0; hdr && k < nr; k++) {
			uint8_t grh[40];
			get_bytes(peer->e, peer->rx, k * SLOT, grh, 40);
			expect_bytes(peer->e, peer->rx, k * SLOT, grh, 40);
		}
		verify(peer->e, peer->rx, type == UC ? wait_ms : 0, "pipelined messages");
		verify(me->e, me->rx, 0, "pipelined reads");
		verify(me->e, me->tx, 0, "pipelined sources");
	}
}
static void rc_pipeline(void) { pipeline(RC, false); }
static void rc_pipeline_srq(void) { pipeline(RC, true); }
static void uc_pipeline(void) { pipeline(UC, false); }
static void ud_pipeline(void) { pipeline(UD, false); }

/* Both directions at once. */
static void rc_bidirectional(void)
{
	struct conn c;
	enum { N = 32, LEN = 20000 };
	uint64_t seed[2] = { rnd(), rnd() };
	struct swr w[2][N];

	connect_pair(&c, &(struct opt){ .room = N * LEN });
	for (int i = 0; i < 2; i++) {
		fill(c.s[i].e, c.s[i].tx, 0, N * LEN, seed[i]);
		expect(c.s[!i].e, c.s[!i].rx, 0, N * LEN, seed[i], 0);
		for (int k = 0; k < N; k++) {
			w[i][k] = swr(&c, IBV_WR_RDMA_WRITE, k == N - 1 ? IBV_SEND_SIGNALED : 0);
			add(&w[i][k], c.s[i].txm, k * LEN, LEN);
			target(&w[i][k], &c, i, c.s[!i].rxm, k * LEN);
		}
	}
	for (int i = 0; i < 2; i++)
		OK(try_post_send(c.s[i].e, c.s[i].qp, w[i], N, NULL));
	for (int i = 0; i < 2; i++)
		want_ok(&c, i, &w[i][N - 1], LEN);
	for (int i = 0; i < 2; i++)
		verify(c.s[i].e, c.s[i].rx, 0, "both directions");
}

/* When a SEND has arrived, the WRITEs before it have too. */
static void rc_write_then_send(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = 64 << 10 });
	for (int k = 0; k < 40; k++) {
		uint64_t seed = rnd();
		uint32_t len = 1 + rnd_below(30000);
		struct rwr r = rwr(&c);
		struct swr w[2] = { swr(&c, IBV_WR_RDMA_WRITE, 0), swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED) };
		fill(c.s[0].e, c.s[0].tx, 0, len, seed);
		expect(c.s[1].e, c.s[1].rx, 9, len, seed, 0);
		post_recv(&c, 1, &r);
		add(&w[0], c.s[0].txm, 0, len);
		target(&w[0], &c, 0, c.s[1].rxm, 9);
		OK(try_post_send(c.s[0].e, c.s[0].qp, w, 2, NULL));
		want_recv(&c, 1, &r, &w[1], 0);
		verify(c.s[1].e, c.s[1].rx, 0, "data of the WRITE when the SEND has arrived");
		want_ok(&c, 0, &w[1], 0);
	}
}

/* A fenced SEND carries what the READ before it has fetched. */
static void rc_fence(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = 64 << 10 });
	for (int k = 0; k < 40; k++) {
		uint64_t seed = rnd();
		uint32_t len = 8 + rnd_below(30000);
		struct rwr r = rwr(&c);
		struct swr w[2] = { swr(&c, IBV_WR_RDMA_READ, 0), swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_FENCE) };
		fill(c.s[1].e, c.s[1].tx, 0, len, seed);
		expect(c.s[0].e, c.s[0].rx, 0, len, seed, 0);
		expect(c.s[1].e, c.s[1].rx, 17, len, seed, 0);
		radd(&r, c.s[1].rxm, 17, len);
		post_recv(&c, 1, &r);
		add(&w[0], c.s[0].rxm, 0, len);
		target(&w[0], &c, 0, c.s[1].txm, 0);
		add(&w[1], c.s[0].rxm, 0, len);
		OK(try_post_send(c.s[0].e, c.s[0].qp, w, 2, NULL));
		want_ok(&c, 0, &w[1], len);
		want_recv(&c, 1, &r, &w[1], len);
		verify(c.s[1].e, c.s[1].rx, 0, "fenced SEND of fetched data");
		verify(c.s[0].e, c.s[0].rx, 0, "READ before the fence");
	}
}

/* A READ returns what memory held before the request posted behind it, without a fence. */
static void rc_read_then(int op)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = 128 << 10 });
	for (int k = 0; k < 60; k++) {
		uint64_t old = rnd(), new = rnd();
		uint32_t len = k & 1 ? 8 + rnd_below(64) : 8 + rnd_below(100000);
		struct rwr r = rwr(&c);
		struct swr w[2] = { swr(&c, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED), swr(&c, op, IBV_SEND_SIGNALED) };
		fill(c.s[1].e, c.s[1].tx, 0, len, old);
		fill(c.s[0].e, c.s[0].tx, 0, len, new);
		expect(c.s[0].e, c.s[0].rx, 0, len, old, 0);
		expect(c.s[1].e, c.s[1].tx, 0, len, new, 0);
		radd(&r, c.s[1].txm, 0, len);
		add(&w[0], c.s[0].rxm, 0, len);
		target(&w[0], &c, 0, c.s[1].txm, 0);
		add(&w[1], c.s[0].txm, 0, len);
		if (is_send(op))
			post_recv(&c, 1, &r);
		else
			target(&w[1], &c, 0, c.s[1].txm, 0);
		OK(try_post_send(c.s[0].e, c.s[0].qp, w, 2, NULL));
		want_ok(&c, 0, &w[0], len);
		want_ok(&c, 0, &w[1], len);
		if (is_send(op))
			want_recv(&c, 1, &r, &w[1], len);
		verify(c.s[0].e, c.s[0].rx, 0, "READ with a later request behind it");
		verify(c.s[1].e, c.s[1].tx, 0, "memory that was read, then changed");
	}
}
static void rc_read_then_write(void) { rc_read_then(IBV_WR_RDMA_WRITE); }
static void rc_read_then_send(void) { rc_read_then(IBV_WR_SEND); }

/* Many READs posted, few allowed at once. */
static void read_depth(int rd)
{
	struct conn c;
	enum { N = 64, SLOT = 8192 };
	struct swr w[N];
	uint64_t seed = rnd();

	connect_pair(&c, &(struct opt){ .rd = rd, .room = N * SLOT, .sig_all = true });
	fill(c.s[1].e, c.s[1].tx, 0, N * SLOT, seed);
	for (int k = 0; k < N; k++) {
		uint32_t len = rnd_below(SLOT + 1);
		w[k] = swr(&c, IBV_WR_RDMA_READ, 0);
		add(&w[k], c.s[0].rxm, k * SLOT, len);
		target(&w[k], &c, 0, c.s[1].txm, (N - 1 - k) * SLOT);
		expect(c.s[0].e, c.s[0].rx, k * SLOT, len, seed, (N - 1 - k) * SLOT);
	}
	OK(try_post_send(c.s[0].e, c.s[0].qp, w, N, NULL));
	for (int k = 0; k < N; k++)
		want_ok(&c, 0, &w[k], w[k].sge[0].length);
	verify(c.s[0].e, c.s[0].rx, 0, "READs in flight");
	verify(c.s[1].e, c.s[1].tx, 0, "READ source");
}
static void rc_read_depth1(void) { read_depth(1); }
static void rc_read_depth16(void) { read_depth(16); }

/* Two queue pairs of one context; and a queue pair connected with itself. */
static void rc_same_end(void)
{
	static const int ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ };
	for (int i = 0; i < 2; i++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .end = { i ? B : A, i ? B : A }, .room = 256 << 10 });
		for (int k = 0; k < 12; k++) {
			struct seg l = { k, 1 + rnd_below(100000) }, r = { 77, l.len };
			transfer(&c, k & 1, ops[k % 3], &l, 1, &r, 1, 0);
		}
	}
}

static void rc_self(void)
{
	struct conn c;
	struct ibv_qp_attr a;
	int mask;

	connect_pair(&c, &(struct opt){ .until = IBV_QPS_INIT, .room = 64 << 10 });
	struct side *s = &c.s[0];
	attr_rtr(&c, 0, &a, &mask);
	a.dest_qp_num = s->qpn;
	a.rq_psn = s->psn;
	a.ah_attr.grh.dgid = s->e->h.gid;
	a.ah_attr.dlid = s->e->h.lid;
	OK(try_modify(s->e, s->qp, &a, mask));
	to_state(&c, 0, IBV_QPS_RTS);
	for (int k = 0; k < 10; k++) {
		uint64_t seed = rnd();
		uint32_t len = rnd_below(60000);
		struct rwr r = rwr(&c);
		struct swr w = swr(&c, k & 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, IBV_SEND_SIGNALED);
		fill(s->e, s->tx, 0, len, seed);
		expect(s->e, s->rx, 1, len, seed, 0);
		radd(&r, s->rxm, 1, len);
		post_recv(&c, 0, &r);
		add(&w, s->txm, 0, len);
		post(&c, 0, &w);
		want_ok(&c, 0, &w, len);
		want_recv(&c, 0, &r, &w, len);
		verify(s->e, s->rx, 0, "queue pair connected with itself");
	}
}

/* ---- UD ---- */

/* Answering by an address handle made from the completion. */
static void ud_ah_from_wc(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .type = UD, .room = 64 << 10 });
	struct rwr r = rwr(&c);
	struct swr w = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
	radd(&r, c.s[1].rxm, 0, 4096);
	post_recv(&c, 1, &r);
	fill(c.s[0].e, c.s[0].tx, 0, 10, 1);
	add(&w, c.s[0].txm, 0, 10);
	target(&w, &c, 0, c.s[1].rxm, 0);
	post(&c, 0, &w);
	want_ok(&c, 0, &w, 10);
	struct ibv_wc wc = want_recv(&c, 1, &r, &w, 10);
	struct msg m = { .op = OP_AH_FROM_WC, .i = { c.s[1].pd }, .u = { c.s[1].rx.addr } };
	int rc = call(B, &m, &wc, sizeof wc, NULL, 0);
	CHECK(!rc, "ibv_create_ah_from_wc: %s", errname(rc));
	struct rwr r2 = rwr(&c);
	struct swr w2 = swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED);
	uint8_t grh[40];
	radd(&r2, c.s[0].rxm, 0, 140);
	post_recv(&c, 0, &r2);
	fill(B, c.s[1].tx, 0, 100, 2);
	add(&w2, c.s[1].txm, 0, 100);
	w2.ah = m.id;
	w2.rqpn = wc.src_qp;
	w2.rqkey = qkey;
	post(&c, 1, &w2);
	want_ok(&c, 1, &w2, 100);
	want_recv(&c, 0, &r2, &w2, 100);
	get_bytes(A, c.s[0].rx, 0, grh, 40);
	check_grh(&c, 1, grh, 100);
	expect_bytes(A, c.s[0].rx, 0, grh, 40);
	expect(A, c.s[0].rx, 40, 100, 2, 0);
	verify(A, c.s[0].rx, 0, "answer to the sender of a datagram");
}

/* One datagram socket, several destinations. */
static void ud_many(void)
{
	enum { Q = 5 };
	struct conn c[Q];
	uint64_t seed[Q];
	for (int q = 0; q < Q; q++)
		connect_pair(&c[q], &(struct opt){ .type = UD, .room = 8192 });
	for (int round = 0; round < 3; round++) {
		struct swr w[Q];
		struct rwr r[Q];
		for (int q = 0; q < Q; q++) {
			seed[q] = rnd();
			fill(A, c[0].s[0].tx, q * 300, 200 + q, seed[q]);
			r[q] = rwr(&c[q]);
			radd(&r[q], c[q].s[1].rxm, 0, 40 + 200 + q);
			post_recv(&c[q], 1, &r[q]);
			w[q] = swr(&c[0], IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED);
			add(&w[q], c[0].s[0].txm, q * 300, 200 + q);
			w[q].ah = c[0].s[0].ah;
			w[q].rqpn = c[q].s[1].qpn;
			w[q].rqkey = qkey;
		}
		OK(try_post_send(A, c[0].s[0].qp, w, Q, NULL));
		for (int q = 0; q < Q; q++) {
			uint8_t grh[40];
			want_ok(&c[0], 0, &w[q], 200 + q);
			uint32_t own = c[q].s[0].qpn;
			c[q].s[0].qpn = c[0].s[0].qpn; /* the sender they all see */
			want_recv(&c[q], 1, &r[q], &w[q], 200 + q);
			c[q].s[0].qpn = own;
			get_bytes(B, c[q].s[1].rx, 0, grh, 40);
			check_grh(&c[0], 0, grh, 200 + q);
			expect_bytes(B, c[q].s[1].rx, 0, grh, 40);
			expect(B, c[q].s[1].rx, 40, 200 + q, seed[q], q * 300);
			verify(B, c[q].s[1].rx, 0, "datagram to one of many");
		}
	}
}

const struct test data_tests[] = {
	{ "rc.send.sizes", rc_send, 0 },
	{ "rc.send_imm.sizes", rc_send_imm, 0 },
	{ "rc.write.sizes", rc_write, 0 },
	{ "rc.write_imm.sizes", rc_write_imm, 0 },
	{ "rc.read.sizes", rc_read, 0 },
	{ "rc.srq.send.sizes", rc_send_srq, 0 },
	{ "rc.srq.send_imm.sizes", rc_send_imm_srq, 0 },
	{ "rc.srq.write_imm.sizes", rc_write_imm_srq, 0 },
	{ "uc.send.sizes", uc_send, 0 },
	{ "uc.send_imm.sizes", uc_send_imm, 0 },
	{ "uc.write.sizes", uc_write, 0 },
	{ "uc.write_imm.sizes", uc_write_imm, 0 },
	{ "uc.srq.send_imm.sizes", uc_send_srq, 0 },
	{ "uc.srq.write_imm.sizes", uc_write_imm_srq, 0 },
	{ "ud.send.sizes", ud_send, 0 },
	{ "ud.send_imm.sizes", ud_send_imm, 0 },
	{ "ud.srq.send_imm.sizes", ud_send_srq, 0 },
	{ "rc.mtu", rc_mtu, 0 },
	{ "uc.mtu", uc_mtu, 0 },
	{ "rc.send.sge", rc_send_sge, 0 },
	{ "rc.write.sge", rc_write_sge, 0 },
	{ "rc.write_imm.sge", rc_write_imm_sge, 0 },
	{ "rc.read.sge", rc_read_sge, 0 },
	{ "uc.send_imm.sge", uc_send_sge, 0 },
	{ "uc.write.sge", uc_write_sge, 0 },
	{ "ud.send.sge", ud_send_sge, 0 },
	{ "rc.send.inline", rc_inline_send, 0 },
	{ "rc.write.inline", rc_inline_write, 0 },
	{ "rc.write_imm.inline", rc_inline_write_imm, 0 },
	{ "uc.send_imm.inline", uc_inline, 0 },
	{ "ud.send_imm.inline", ud_inline, 0 },
	{ "rc.empty", rc_empty, 0 },
	{ "rc.exact_regions", rc_exact_regions, 0 },
	{ "rc.pipeline", rc_pipeline, 0 },
	{ "rc.srq.pipeline", rc_pipeline_srq, 0 },
	{ "uc.pipeline", uc_pipeline, 0 },
	{ "ud.pipeline", ud_pipeline, 0 },
	{ "rc.bidirectional", rc_bidirectional, 0 },
	{ "rc.write_then_send", rc_write_then_send, 0 },
	{ "rc.fence", rc_fence, 0 },
	{ "rc.read_then_write", rc_read_then_write, 0 },
	{ "rc.read_then_send", rc_read_then_send, 0 },
	{ "rc.read.depth1", rc_read_depth1, 0 },
	{ "rc.read.depth16", rc_read_depth16, 0 },
	{ "rc.same_end", rc_same_end, 0 },
	{ "rc.self", rc_self, 0 },
	{ "ud.ah_from_wc", ud_ah_from_wc, 0 },
	{ "ud.many", ud_many, 0 },
	{ 0 },
};
