/* SPDX-License-Identifier: Apache-2.0 */
/* Memory windows, and what invalidates keys: what a key is good for, from when
 * and until when. */
#include "vc.h"

#include <errno.h>
#include <string.h>

enum {
	RD = IBV_ACCESS_REMOTE_READ,
	WR = IBV_ACCESS_REMOTE_WRITE,
	AT = IBV_ACCESS_REMOTE_ATOMIC,
	BINDABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND,
	ROOM = 16384,
};

/* A window of the second side of a pair, and the region it may be bound to. */
struct win {
	struct conn *c;
	struct side *s;
	struct mr m;
	int type, id;
	uint32_t rkey;
};

static struct win make_win(struct conn *c, int type, int access)
{
	struct win w = { .c = c, .s = &c->s[1], .type = type };
	int rc;

	if (w.s->e->rxe)
		skip("soft-RoCE does not keep peers within a window, and binds by rules of its own");
	w.m = make_mr(w.s->e, w.s->pd, w.s->rx, 0, w.s->rx.len, access);
	rc = try_mw(w.s->e, w.s->pd, type, &w.id, &w.rkey);
	CHECK(!rc, "ibv_alloc_mw, type %d: %s", type, errname(rc));
	return w;
}

static uint32_t next_key(uint32_t k)
{
	return (k & ~0xffu) | ((k + 1) & 0xff);
}

/* The request that binds a window to [off, off+len) of its region, with the next key. */
static struct swr bind_wr(struct win *w, uint64_t off, uint64_t len, int access)
{
	struct swr b = swr(w->c, IBV_WR_BIND_MW, IBV_SEND_SIGNALED);

	b.mw = w->id;
	b.mr = w->m.id;
	b.raddr = w->m.addr + off;
	b.length = len;
	b.access = access;
	b.rkey = w->rkey = next_key(w->rkey);
	return b;
}

/* Binds by whichever call the type has, and expects this status. */
static void bind_to(struct win *w, uint64_t off, uint64_t len, int access, enum ibv_wc_status st)
{
	struct swr b = bind_wr(w, off, len, access);

	if (w->type == 1)
		OK(try_bind(w->s->e, w->s->qp, w->id, w->m.id, b.raddr, len, access, b.wr_id, IBV_SEND_SIGNALED, &w->rkey));
	else
		post(w->c, 1, &b);
	if (st == IBV_WC_SUCCESS)
		want_ok(w->c, 1, &b, 0);
	else
		want_wc(w->s->e, w->s->scq, b.wr_id, st);
}

static void local_inv(struct win *w, uint32_t key, enum ibv_wc_status st)
{
	struct swr i = swr(w->c, IBV_WR_LOCAL_INV, IBV_SEND_SIGNALED);

	i.rkey = key;
	post(w->c, 1, &i);
	if (st == IBV_WC_SUCCESS)
		want_ok(w->c, 1, &i, 0);
	else
		want_wc(w->s->e, w->s->scq, i.wr_id, st);
}

/* A request of the first side for [off, off+len) of the region, by the window's key. */
static struct swr access_wr(struct win *w, enum ibv_wr_opcode op, uint64_t off, uint32_t len)
{
	struct swr r = swr(w->c, op, IBV_SEND_SIGNALED);

	add(&r, op == IBV_WR_RDMA_WRITE ? w->c->s[0].txm : w->c->s[0].rxm, 0, len);
	r.raddr = w->m.addr + off;
	r.rkey = w->rkey;
	return r;
}

static void again(struct conn *c)
{
	for (int st = IBV_QPS_RESET; st <= IBV_QPS_RTS; st++)
		for (int i = 0; i < 2; i++)
			to_state(c, i, st);
}

static void verify_both(struct win *w, const char *what)
{
	verify(w->c->s[0].e, w->c->s[0].rx, 0, what);
	/* A UC WRITE is complete before it has arrived. */
	verify(w->s->e, w->s->rx, w->c->o.type == IBV_QPT_UC ? wait_ms : 0, what);
}

/* Every byte of the window can be written and read, and with the key of a
 * window no byte more. */
static void works(struct win *w, uint64_t off, uint32_t len, int access)
{
	struct side *a = &w->c->s[0];
	uint64_t seed = rnd();
	struct swr r;

	if (access & WR) {
		r = access_wr(w, IBV_WR_RDMA_WRITE, off, len);
		fill(a->e, a->tx, 0, len, seed);
		expect(w->s->e, w->s->rx, off, len, seed, 0);
		post(w->c, 0, &r);
		want_ok(w->c, 0, &r, len);
		verify_both(w, "a WRITE through a window");
	}
	if (access & RD) {
		r = access_wr(w, IBV_WR_RDMA_READ, off, len);
		fill(w->s->e, w->s->rx, off, len, seed + 1);
		expect(a->e, a->rx, 0, len, seed + 1, off);
		post(w->c, 0, &r);
		want_ok(w->c, 0, &r, len);
		verify_both(w, "a READ through a window");
	}
}

/* Both ends of the pair end in ERR, and no byte has changed. */
static void refused(struct win *w, enum ibv_wr_opcode op, uint64_t off, uint32_t len)
{
	struct swr r = access_wr(w, op, off, len);

	post(w->c, 0, &r);
	want_wc(w->c->s[0].e, w->c->s[0].scq, r.wr_id, IBV_WC_REM_ACCESS_ERR);
	wait_state(w->c->s[0].e, w->c->s[0].qp, IBV_QPS_ERR);
	wait_state(w->s->e, w->s->qp, IBV_QPS_ERR);
	verify_both(w, "a request that a window does not allow");
	again(w->c);
}

static void stale(struct win *w, uint32_t key, uint64_t off)
{
	uint32_t now = w->rkey;

	w->rkey = key;
	refused(w, IBV_WR_RDMA_WRITE, off, 8);
	w->rkey = now;
}

static void bind_and_rebind(void)
{
	for (int type = 1; type <= 2; type++)
		for (int access = 0; access < 4; access++) {
			static const int rights[] = { RD, WR, RD | WR, RD | WR | AT | IBV_ACCESS_LOCAL_WRITE };
			int right = rights[access];
			struct conn c;
			connect_pair(&c, &(struct opt){ .room = ROOM });
			/* The region itself gives peers no right at all. */
			struct win w = make_win(&c, type, BINDABLE);
			uint32_t old = w.rkey;

			stale(&w, w.rkey, 0);
			stale(&w, w.m.rkey, 0);
			bind_to(&w, 100, 5000, right, IBV_WC_SUCCESS);
			works(&w, 100, 5000, right);
			works(&w, 5099, 1, right);
			stale(&w, old, 100);
			if (!(right & WR))
				refused(&w, IBV_WR_RDMA_WRITE, 100, 8);
			if (!(right & RD))
				refused(&w, IBV_WR_RDMA_READ, 100, 8);
			old = w.rkey;
			if (type == 2)
				local_inv(&w, w.rkey, IBV_WC_SUCCESS);
			bind_to(&w, 8000, 64, right, IBV_WC_SUCCESS);
			stale(&w, old, 100);
			stale(&w, w.rkey, 100);
			works(&w, 8000, 64, right);
			/* Windows of the other type do not mind. */
			struct win o = make_win(&c, 3 - type, BINDABLE);
			bind_to(&o, 0, 64, right, IBV_WC_SUCCESS);
			works(&o, 0, 64, right);
			works(&w, 8000, 64, right);
			OK(try_free(B, OP_MW_FREE, o.id));
			stale(&w, o.rkey, 0);
			works(&w, 8000, 64, right);
			destroy_qps(&c);
		}
}

static void limits(void)
{
	for (int type = 1; type <= 2; type++) {
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = ROOM });
		struct win w = make_win(&c, type, BINDABLE);
		uint64_t at = aligned(c.s[1].rx);

		bind_to(&w, at, 1024, RD | WR, IBV_WC_SUCCESS);
		for (int op = 0; op < 2; op++) {
			enum ibv_wr_opcode o = op ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
			refused(&w, o, at - 1, 8);
			refused(&w, o, at + 1017, 8);
			refused(&w, o, at, 1025);
			refused(&w, o, at + 5000, 1);
			refused(&w, o, 0, 1);
		}
		/* No right to atomics. */
		struct swr r = access_wr(&w, IBV_WR_ATOMIC_FETCH_AND_ADD, at, 8);
		post(&c, 0, &r);
		want_wc(A, c.s[0].scq, r.wr_id, IBV_WC_REM_ACCESS_ERR);
		verify_both(&w, "an atomic that a window does not allow");
		again(&c);
		works(&w, at, 1024, RD | WR);
		destroy_qps(&c);
	}
}

/* Atomics by a window that allows them. */
static void atomics(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = ROOM });
	struct win w = make_win(&c, 2, BINDABLE);
	uint64_t at = aligned(c.s[1].rx), old, sum;

	bind_to(&w, at, 8, AT, IBV_WC_SUCCESS);
	get_bytes(B, c.s[1].rx, at, &old, 8);
	struct swr r = access_wr(&w, IBV_WR_ATOMIC_FETCH_AND_ADD, at, 8);
	r.cmp_add = 0x1234567;
	sum = old + r.cmp_add;
	expect_bytes(A, c.s[0].rx, 0, &old, 8);
	expect_bytes(B, c.s[1].rx, at, &sum, 8);
	post(&c, 0, &r);
	want_ok(&c, 0, &r, 8);
	verify_both(&w, "an atomic through a window");
	refused(&w, IBV_WR_RDMA_WRITE, at, 8);
}

/* What must not be bound is not, the pair fails, and what was stays. */
static void bind_refused(void)
{
	for (int type = 1; type <= 2; type++) {
		struct conn c, other;
		connect_pair(&c, &(struct opt){ .room = ROOM });
		connect_pair(&other, &(struct opt){ .room = ROOM });
		struct win w = make_win(&c, type, BINDABLE);
		struct win v;
		uint64_t len = w.m.len;

		/* That window and region are of one domain the library sees for type 1. */
		for (int k = 0; k < (type == 1 ? 5 : 7); k++) {
			v = w;
			switch (k) {
			case 0: bind_to(&v, 1, len, WR, IBV_WC_MW_BIND_ERR); break;
			case 1: bind_to(&v, (uint64_t)-1, 8, WR, IBV_WC_MW_BIND_ERR); break;
			case 2: bind_to(&v, 8, (uint64_t)-8, WR, IBV_WC_MW_BIND_ERR); break;
			case 3: /* a region that may not have windows */
				v.m = make_mr(B, c.s[1].pd, c.s[1].rx, 0, len, IBV_ACCESS_LOCAL_WRITE | WR);
				bind_to(&v, 0, 8, WR, IBV_WC_MW_BIND_ERR);
				break;
			case 4: /* that cannot be written */
				v.m = make_mr(B, c.s[1].pd, c.s[1].rx, 0, len, IBV_ACCESS_MW_BIND);
				bind_to(&v, 0, 8, WR, IBV_WC_MW_BIND_ERR);
				break;
			case 5: /* of another domain */
				v.m = make_mr(B, other.s[1].pd, c.s[1].rx, 0, len, BINDABLE);
				bind_to(&v, 0, 8, RD, IBV_WC_MW_BIND_ERR);
				break;
			case 6: /* a window of another domain */
				OK(try_mw(B, other.s[1].pd, type, &v.id, &v.rkey));
				bind_to(&v, 0, 8, RD, IBV_WC_MW_BIND_ERR);
				break;
			}
			wait_state(B, c.s[1].qp, IBV_QPS_ERR);
			again(&c);
			stale(&w, v.rkey, 0);
		}
		bind_to(&w, 0, len, WR, IBV_WC_SUCCESS);
		works(&w, 0, len, WR);
		if (type == 2) { /* it is bound */
			v = w;
			bind_to(&v, 8, 8, WR, IBV_WC_MW_BIND_ERR);
			again(&c);
			works(&w, 0, len, WR);
		}
		destroy_qps(&c);
	}
	struct conn c;
	int id, rc;
	uint32_t k;
	connect_pair(&c, &(struct opt){ .room = ROOM });
	rc = try_mw(B, c.s[1].pd, 3, &id, &k);
	CHECK(rc == EINVAL, "ibv_alloc_mw, type 3: %s", errname(rc));
	struct win w = make_win(&c, 2, BINDABLE); /* for requests alone */
	rc = try_bind(B, c.s[1].qp, w.id, w.m.id, w.m.addr, 8, WR, 1, 0, &k);
	CHECK(rc == EINVAL, "ibv_bind_mw, type 2: %s", errname(rc));
	bind_to(&w, 0, 0, WR, IBV_WC_MW_BIND_ERR); /* to nothing */
}

/* To no bytes: a window of type 1 is taken off. */
static void unbind(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = ROOM });
	struct win w = make_win(&c, 1, BINDABLE);
	uint32_t old;

	bind_to(&w, 0, 100, WR, IBV_WC_SUCCESS);
	works(&w, 0, 100, WR);
	EXPECT_RC(EBUSY, try_free(B, OP_MR_FREE, w.m.id));
	EXPECT_RC(EBUSY, try_rereg(B, &w.m, IBV_REREG_MR_CHANGE_ACCESS, NONE, 0, 0, IBV_ACCESS_LOCAL_WRITE));
	works(&w, 0, 100, WR);
	old = w.rkey;
	struct mr region = w.m;
	w.m = (struct mr){ .id = NONE };
	bind_to(&w, 0, 0, 0, IBV_WC_SUCCESS);
	w.m = region;
	stale(&w, old, 0);
	stale(&w, w.rkey, 0);
	OK(try_free(B, OP_MR_FREE, w.m.id));
}

static void type2_is_the_pairs(void)
{
	struct conn c, d;
	connect_pair(&c, &(struct opt){ .room = ROOM });
	struct win w = make_win(&c, 2, BINDABLE);
	connect_pair(&d, &(struct opt){ .room = ROOM });
	/* Another pair of the window's own domain. */
	struct qp_init in = { .type = IBV_QPT_RC, .pd = c.s[1].pd, .scq = d.s[1].scq, .rcq = d.s[1].rcq, .srq = NONE,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 4, .max_recv_sge = 4 } };
	destroy_qps(&d);
	OK(try_qp(B, &in, &d.s[1].qp, &d.s[1].qpn));
	struct qp_init client = in;
	client.pd = d.s[0].pd, client.scq = d.s[0].scq, client.rcq = d.s[0].rcq;
	OK(try_qp(A, &client, &d.s[0].qp, &d.s[0].qpn));
	d.s[1].pd = c.s[1].pd;
	d.s[1].rx = c.s[1].rx;
	for (int st = IBV_QPS_INIT; st <= IBV_QPS_RTS; st++)
		for (int i = 0; i < 2; i++)
			to_state(&d, i, st);
	struct win v = w;
	v.c = &d;
	v.s = &d.s[1];

	bind_to(&w, 0, 512, RD | WR, IBV_WC_SUCCESS);
	v.rkey = w.rkey;
	works(&w, 0, 512, RD | WR);
	refused(&v, IBV_WR_RDMA_WRITE, 0, 8);
	refused(&v, IBV_WR_RDMA_READ, 0, 8);
	local_inv(&v, v.rkey, IBV_WC_MW_BIND_ERR);
	again(&d);
	works(&w, 0, 512, RD | WR);
	/* One of type 1 is for all of them. */
	struct win o = make_win(&c, 1, BINDABLE);
	bind_to(&o, 0, 512, WR, IBV_WC_SUCCESS);
	works(&o, 0, 512, WR);
	o.c = &d;
	o.s = &d.s[1];
	works(&o, 0, 512, WR);
	/* With its queue pair it is gone. */
	destroy_qps(&c);
	refused(&v, IBV_WR_RDMA_WRITE, 0, 8);
	OK(try_free(B, OP_MR_FREE, w.m.id));
	v.m.id = NONE;
	bind_to(&v, 0, 0, WR, IBV_WC_MW_BIND_ERR);
}

static void invalidate_local(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = ROOM });
	struct win w = make_win(&c, 2, BINDABLE | WR), one_ = make_win(&c, 1, BINDABLE);

	for (int k = 0; k < 3; k++) {
		bind_to(&w, 10, 3000, RD | WR, IBV_WC_SUCCESS);
		works(&w, 10, 3000, RD | WR);
		local_inv(&w, w.rkey, IBV_WC_SUCCESS);
		refused(&w, IBV_WR_RDMA_WRITE, 10, 8);
		refused(&w, IBV_WR_RDMA_READ, 10, 8);
	}
	local_inv(&w, w.rkey, IBV_WC_MW_BIND_ERR);
	again(&c);
	/* What has to be ended otherwise. */
	bind_to(&one_, 0, 100, WR, IBV_WC_SUCCESS);
	local_inv(&w, one_.rkey, IBV_WC_MW_BIND_ERR);
	again(&c);
	works(&one_, 0, 100, WR);
	local_inv(&w, w.m.rkey, IBV_WC_MW_BIND_ERR);
	again(&c);
	w.rkey = w.m.rkey;
	works(&w, 0, 100, WR);
	/* Nothing outlives it: it waits for the READ before it, and releases its data. */
	struct win r = make_win(&c, 2, BINDABLE);
	bind_to(&r, 0, 100, WR, IBV_WC_SUCCESS);
	struct swr list[2] = { swr(&c, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED), swr(&c, IBV_WR_LOCAL_INV, IBV_SEND_SIGNALED) };
	uint64_t seed = rnd();
	fill(A, c.s[0].tx, 0, 9000, seed);
	add(&list[0], c.s[1].rxm, 200, 9000);
	target(&list[0], &c, 1, c.s[0].txm, 0);
	list[1].rkey = r.rkey;
	expect(B, c.s[1].rx, 200, 9000, seed, 0);
	OK(try_post_send(B, c.s[1].qp, list, 2, NULL));
	want_ok(&c, 1, &list[0], 9000);
	want_ok(&c, 1, &list[1], 0);
	verify(B, c.s[1].rx, 0, "a READ before an invalidation");
	refused(&r, IBV_WR_RDMA_WRITE, 0, 8);
}

/* The message, what came before it, and the end of the key: all by the time of
 * the completion. */
static void invalidate_remote(void)
{
	for (int k = 0; k < 4; k++) {
		static const uint32_t sizes_[] = { 0, 1, 4096, 9001 };
		uint32_t len = sizes_[k];
		struct conn c;
		connect_pair(&c, &(struct opt){ .room = 4 * ROOM });
		struct win w = make_win(&c, 2, BINDABLE);
		struct swr list[2];
		struct rwr r = rwr(&c);
		uint64_t seed = rnd();

		bind_to(&w, 0, 20000, WR, IBV_WC_SUCCESS);
		fill(A, c.s[0].tx, 0, 20000, seed);
		expect(B, c.s[1].rx, 0, 20000, seed, 0);
		expect(B, c.s[1].rx, 30000, len, seed, 0);
		radd(&r, c.s[1].rxm, 30000, 10000);
		post_recv(&c, 1, &r);
		list[0] = access_wr(&w, IBV_WR_RDMA_WRITE, 0, 20000);
		list[1] = swr(&c, IBV_WR_SEND_WITH_INV, IBV_SEND_SIGNALED | (k & 1 ? IBV_SEND_SOLICITED : 0));
		list[1].rkey = w.rkey;
		if (len)
			add(&list[1], c.s[0].txm, 0, len);
		OK(try_post_send(A, c.s[0].qp, list, 2, NULL));
		want_recv(&c, 1, &r, &list[1], len);
		verify(B, c.s[1].rx, 0, "what came before and with an invalidation");
		want_ok(&c, 0, &list[0], 20000);
		want_ok(&c, 0, &list[1], len);
		refused(&w, IBV_WR_RDMA_WRITE, 0, 8);
		bind_to(&w, 0, 100, WR, IBV_WC_SUCCESS);
		works(&w, 0, 100, WR);
		destroy_qps(&c);
	}
}

/* What a peer may not end. The message is refused with it. */
static void invalidate_remote_refused(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = ROOM });
	struct win free_ = make_win(&c, 2, BINDABLE), one_ = make_win(&c, 1, BINDABLE), w = make_win(&c, 2, BINDABLE | WR);

	bind_to(&one_, 0, 100, WR, IBV_WC_SUCCESS);
	bind_to(&w, 0, 100, WR, IBV_WC_SUCCESS);
	uint32_t keys[] = { free_.rkey, one_.rkey, w.m.rkey, w.rkey ^ 1, 0, w.rkey ^ 0x100 };
	for (unsigned k = 0; k < sizeof keys / sizeof *keys; k++) {
		struct swr s = swr(&c, IBV_WR_SEND_WITH_INV, IBV_SEND_SIGNALED);
		struct rwr r = rwr(&c);
		radd(&r, c.s[1].rxm, 200, 100);
		post_recv(&c, 1, &r);
		s.rkey = keys[k];
		post(&c, 0, &s);
		want_wc(A, c.s[0].scq, s.wr_id, IBV_WC_REM_ACCESS_ERR);
		want_wc(B, c.s[1].rcq, r.wr_id, IBV_WC_LOC_ACCESS_ERR);
		wait_state(B, c.s[1].qp, IBV_QPS_ERR);
		again(&c);
		works(&one_, 0, 100, WR);
		works(&w, 0, 100, WR);
	}
}

/* A key that is told in the very next message is good when that arrives. */
static void order(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = ROOM });
	struct win w = make_win(&c, 2, BINDABLE);

	for (int k = 0; k < 20; k++) {
		struct swr list[3] = { swr(&c, IBV_WR_LOCAL_INV, 0), bind_wr(&w, 64 * k, 64, WR),
			swr(&c, IBV_WR_SEND, IBV_SEND_SIGNALED) };
		struct rwr r = rwr(&c);
		int first = k == 0; /* nothing to invalidate yet */

		list[0].rkey = w.rkey - 1;
		list[0].rkey = (w.rkey & ~0xffu) | ((w.rkey - 1) & 0xff);
		post_recv(&c, 0, &r);
		OK(try_post_send(B, c.s[1].qp, list + first, 3 - first, NULL));
		want_recv(&c, 0, &r, &list[2], 0);
		works(&w, 64 * k, 64, WR);
		want_ok(&c, 1, &list[1], 0);
		want_ok(&c, 1, &list[2], 0);
	}
}

/* Their addresses count from their start. */
static void zero_based(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = ROOM });
	struct win w = make_win(&c, 2, BINDABLE);

	bind_to(&w, 1000, 256, WR | IBV_ACCESS_ZERO_BASED, IBV_WC_SUCCESS);
	uint64_t addr = w.m.addr, seed = rnd();
	struct swr r = access_wr(&w, IBV_WR_RDMA_WRITE, 0, 200);
	r.raddr = 56;
	fill(A, c.s[0].tx, 0, 200, seed);
	expect(B, c.s[1].rx, 1056, 200, seed, 0);
	post(&c, 0, &r);
	want_ok(&c, 0, &r, 200);
	verify_both(&w, "a window that counts from zero");
	w.m.addr = 0;
	refused(&w, IBV_WR_RDMA_WRITE, 57, 200);
	refused(&w, IBV_WR_RDMA_WRITE, addr + 1000, 8);
}

static void services(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .type = IBV_QPT_UC, .room = ROOM });
	struct win w = make_win(&c, 2, BINDABLE), one_ = make_win(&c, 1, BINDABLE);

	bind_to(&w, 0, 100, WR, IBV_WC_SUCCESS);
	works(&w, 0, 100, WR);
	bind_to(&one_, 0, 100, WR, IBV_WC_SUCCESS);
	works(&one_, 0, 100, WR);
	local_inv(&w, w.rkey, IBV_WC_SUCCESS);
	struct swr r = access_wr(&w, IBV_WR_RDMA_WRITE, 0, 100);
	post(&c, 0, &r);
	want_ok(&c, 0, &r, 100); /* unreliable: no error for what was dropped */
	ping(&c, 0);
	verify(B, c.s[1].rx, 0, "a WRITE by a key that has ended");
	struct swr s = swr(&c, IBV_WR_SEND_WITH_INV, IBV_SEND_SIGNALED);
	s.rkey = w.rkey;
	if (!A->rxe) /* posts it */
		EXPECT_RC(EINVAL, try_post_send(A, c.s[0].qp, &s, 1, NULL));

	struct conn d;
	connect_pair(&d, &(struct opt){ .type = IBV_QPT_UD, .room = ROOM });
	struct win v = make_win(&d, 2, BINDABLE);
	struct swr b = bind_wr(&v, 0, 100, WR);
	EXPECT_RC(EINVAL, try_post_send(B, d.s[1].qp, &b, 1, NULL));
	b.opcode = IBV_WR_LOCAL_INV;
	EXPECT_RC(EINVAL, try_post_send(B, d.s[1].qp, &b, 1, NULL));
	ping(&d, 0);
}

/* All of it by the calls of the extended queue pair. */
static void extended(void)
{
	struct conn c;
	connect_pair(&c, &(struct opt){ .room = ROOM, .send_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
		IBV_QP_EX_WITH_SEND_WITH_INV |
		IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW });
	struct win w = make_win(&c, 2, BINDABLE);

	bind_to(&w, 10, 1000, RD | WR, IBV_WC_SUCCESS);
	works(&w, 10, 1000, RD | WR);
	local_inv(&w, w.rkey, IBV_WC_SUCCESS);
	refused(&w, IBV_WR_RDMA_WRITE, 10, 8);
	bind_to(&w, 10, 1000, RD | WR, IBV_WC_SUCCESS);
	struct swr s = swr(&c, IBV_WR_SEND_WITH_INV, IBV_SEND_SIGNALED);
	struct rwr r = rwr(&c);
	uint64_t seed = rnd();
	fill(A, c.s[0].tx, 0, 300, seed);
	expect(B, c.s[1].rx, 2000, 300, seed, 0);
	radd(&r, c.s[1].rxm, 2000, 300);
	post_recv(&c, 1, &r);
	add(&s, c.s[0].txm, 0, 300);
	s.rkey = w.rkey;
	post(&c, 0, &s);
	want_ok(&c, 0, &s, 300);
	want_recv(&c, 1, &r, &s, 300);
	verify(B, c.s[1].rx, 0, "a message with an invalidation");
	refused(&w, IBV_WR_RDMA_READ, 10, 8);
	ping(&c, 0);
	ping(&c, 1);
}

const struct test window_tests[] = {
	{ "mw.bind", bind_and_rebind, ASYNC },
	{ "mw.limits", limits, ASYNC },
	{ "mw.atomic", atomics, ASYNC },
	{ "mw.refused", bind_refused, ASYNC },
	{ "mw.unbind", unbind, ASYNC },
	{ "mw.type2", type2_is_the_pairs, ASYNC },
	{ "mw.invalidate.local", invalidate_local, ASYNC },
	{ "mw.invalidate.remote", invalidate_remote, ASYNC },
	{ "mw.invalidate.refused", invalidate_remote_refused, ASYNC },
	{ "mw.order", order, 0 },
	{ "mw.zero_based", zero_based, ASYNC },
	{ "mw.services", services, 0 },
	{ "mw.extended", extended, ASYNC },
	{ 0 },
};
