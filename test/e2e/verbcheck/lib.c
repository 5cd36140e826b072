/* SPDX-License-Identifier: Apache-2.0 */
/* What tests are written with: objects at ends, connected pairs, expectations. */
#define _GNU_SOURCE
#define VC_LIB
#include "vc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const uint32_t qkey = 0x1ee7c0de & 0x7fffffff;

const char *errname(int e)
{
	static char s[4][32];
	static int k;

	if (e == 0)
		return "success";
	const char *n = strerrorname_np(e);
	if (n)
		return n;
	k = (k + 1) & 3;
	snprintf(s[k], sizeof s[k], "error %d", e);
	return s[k];
}

static uint64_t rstate;

uint64_t rnd(void) /* splitmix64 */
{
	if (!rstate)
		rstate = opt_seed;
	uint64_t z = (rstate += 0x9e3779b97f4a7c15u);
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t rnd_below(uint64_t n) { return rnd() % n; }

static void must(struct end *e, struct msg *m, const char *what)
{
	if (m->rc)
		FAIL("%s at %s: %s", what, e->name, errname(m->rc));
}

/* ---- objects ---- */

int make_pd(struct end *e)
{
	struct msg m = { .op = OP_PD };
	call(e, &m, NULL, 0, NULL, 0);
	must(e, &m, "ibv_alloc_pd");
	return m.id;
}

int try_free(struct end *e, enum op op, int id)
{
	struct msg m = { .op = op, .id = id };
	return call(e, &m, NULL, 0, NULL, 0);
}

struct buf make_buf(struct end *e, uint64_t len, unsigned misalign)
{
	struct msg m = { .op = OP_BUF, .u = { len }, .i = { misalign } };
	call(e, &m, NULL, 0, NULL, 0);
	must(e, &m, "buffer");
	return (struct buf){ m.id, m.u[0], len };
}

void protect(struct end *e, struct buf b, uint64_t off, uint64_t len, int prot)
{
	struct msg m = { .op = OP_PROTECT, .u = { b.addr + off, len }, .i = { prot } };
	call(e, &m, NULL, 0, NULL, 0);
	must(e, &m, "mprotect");
}

struct buf make_big(struct end *e, uint64_t len)
{
	struct msg m = { .op = OP_BUF, .u = { len }, .i = { 0, 1 } };
	if (call(e, &m, NULL, 0, NULL, 0))
		skip("no memory for %llu MiB", (unsigned long long)len >> 20);
	return (struct buf){ m.id, m.u[0], len };
}

void unmap(struct end *e, struct buf b)
{
	struct msg m = { .op = OP_UNMAP, .id = b.id };
	call(e, &m, NULL, 0, NULL, 0);
	must(e, &m, "unmap");
}

void fill(struct end *e, struct buf b, uint64_t off, uint64_t len, uint64_t seed)
{
	struct msg m = { .op = OP_FILL, .id = b.id, .u = { off, len, seed } };
	CHECK(off + len <= b.len, "test bug: fill beyond the buffer");
	call(e, &m, NULL, 0, NULL, 0);
}

void expect(struct end *e, struct buf b, uint64_t off, uint64_t len, uint64_t seed, uint64_t seed_off)
{
	struct msg m = { .op = OP_EXPECT, .id = b.id, .u = { off, len, seed, seed_off } };
	CHECK(off + len <= b.len, "test bug: expectation beyond the buffer");
	if (len)
		call(e, &m, NULL, 0, NULL, 0);
}

void expect_bytes(struct end *e, struct buf b, uint64_t off, const void *p, size_t n)
{
	struct msg m = { .op = OP_EXPECT_BYTES, .id = b.id, .u = { off, n } };
	CHECK(off + n <= b.len, "test bug: expectation beyond the buffer");
	call(e, &m, p, n, NULL, 0);
}

void get_bytes(struct end *e, struct buf b, uint64_t off, void *p, size_t n)
{
	struct msg m = { .op = OP_GET, .id = b.id, .u = { off, n } };
	CHECK(off + n <= b.len, "test bug: read beyond the buffer");
	call(e, &m, NULL, 0, p, n);
}

/* verify compares the whole buffer and its guards with what is expected,
 * waiting up to ms for it to come true. */
void verify(struct end *e, struct buf b, int ms, const char *what)
{
	struct msg m = { .op = OP_VERIFY, .id = b.id, .i = { ms } };
	if (call(e, &m, NULL, 0, NULL, 0)) {
		int64_t at = m.u[0];
		bool guard = at < 0 || (uint64_t)at >= b.len;
		FAIL("%s: buffer at %s differs%s: byte %lld is %02x, want %02x; %llu bytes differ", what, e->name,
		     guard ? " OUTSIDE its bounds" : "", (long long)at, (unsigned)m.u[1], (unsigned)m.u[2],
		     (unsigned long long)m.u[3]);
	}
}

int try_mr(struct end *e, int pd, uint64_t addr, uint64_t len, int access, struct mr *out)
{
	struct msg m = { .op = OP_MR, .i = { pd, access }, .u = { addr, len } };
	if (!call(e, &m, NULL, 0, NULL, 0))
		*out = (struct mr){ m.id, m.u[2], m.u[3], access & IBV_ACCESS_ZERO_BASED ? 0 : addr, len };
	return m.rc;
}

struct mr make_mr(struct end *e, int pd, struct buf b, uint64_t off, uint64_t len, int access)
{
	struct mr r = { 0 };
	int rc = try_mr(e, pd, b.addr + off, len, access, &r);
	CHECK(!rc, "ibv_reg_mr of %llu bytes at %s: %s", (unsigned long long)len, e->name, errname(rc));
	return r;
}

int try_rereg(struct end *e, struct mr *r, int flags, int pd, uint64_t addr, uint64_t len, int access)
{
	struct msg m = { .op = OP_MR_REREG, .id = r->id, .i = { pd, flags, access }, .u = { addr, len } };
	call(e, &m, NULL, 0, NULL, 0);
	r->lkey = m.u[2], r->rkey = m.u[3];
	if (!m.rc && flags & IBV_REREG_MR_CHANGE_TRANSLATION)
		r->addr = addr, r->len = len;
	return m.rc;
}

int try_mw(struct end *e, int pd, int type, int *mw, uint32_t *rkey)
{
	struct msg m = { .op = OP_MW, .i = { pd, type } };
	call(e, &m, NULL, 0, NULL, 0);
	*mw = m.id;
	*rkey = m.u[0];
	return m.rc;
}

int try_bind(struct end *e, int qp, int mw, int mr, uint64_t addr, uint64_t len, int access, uint64_t wr_id, int flags,
	uint32_t *rkey)
{
	struct msg m = { .op = OP_MW_BIND, .id = mw, .i = { qp, mr, access, flags }, .u = { addr, len, wr_id } };
	call(e, &m, NULL, 0, NULL, 0);
	*rkey = m.u[0];
	return m.rc;
}

int make_channel(struct end *e)
{
	struct msg m = { .op = OP_CHANNEL };
	call(e, &m, NULL, 0, NULL, 0);
	must(e, &m, "ibv_create_comp_channel");
	return m.id;
}

int try_cq(struct end *e, int cqe, int channel, int vector, int *cq, int *got)
{
	struct msg m = { .op = OP_CQ, .i = { cqe, channel, vector } };
	call(e, &m, NULL, 0, NULL, 0);
	*cq = m.id;
	if (got)
		*got = m.i[0];
	return m.rc;
}

int make_cq(struct end *e, int cqe, int channel)
{
	int cq, got, rc = try_cq(e, cqe, channel, 0, &cq, &got);
	CHECK(!rc, "ibv_create_cq(%d) at %s: %s", cqe, e->name, errname(rc));
	CHECK(got >= cqe, "ibv_create_cq(%d) at %s gave only %d entries", cqe, e->name, got);
	return cq;
}

int try_resize(struct end *e, int cq, int cqe, int *got)
{
	struct msg m = { .op = OP_CQ_RESIZE, .id = cq, .i = { cqe } };
	call(e, &m, NULL, 0, NULL, 0);
	*got = m.i[0];
	return m.rc;
}

int try_arm(struct end *e, int cq, bool solicited)
{
	struct msg m = { .op = OP_ARM, .id = cq, .i = { solicited } };
	return call(e, &m, NULL, 0, NULL, 0);
}

int get_event(struct end *e, int channel, int ms)
{
	struct msg m = { .op = OP_EVENT, .i = { channel, ms } };
	call(e, &m, NULL, 0, NULL, 0);
	must(e, &m, "ibv_get_cq_event");
	return m.id;
}

/* poll_cq returns the completions it got: at least min unless ms ran out. With
 * min 0 it waits the whole of ms. */
int poll_cq(struct end *e, int cq, struct ibv_wc *wc, int min, int max, int ms)
{
	struct msg m = { .op = OP_POLL, .i = { cq, min, max, ms } };
	call(e, &m, NULL, 0, wc, max * sizeof *wc);
	must(e, &m, "ibv_poll_cq");
	return m.i[0];
}

int try_srq(struct end *e, int pd, int wr, int sge, int *srq, struct ibv_srq_attr *got)
{
	struct msg m = { .op = OP_SRQ, .i = { pd, wr, sge } };
	call(e, &m, NULL, 0, got, sizeof *got);
	*srq = m.id;
	return m.rc;
}

int try_srq_modify(struct end *e, int srq, struct ibv_srq_attr *a, int mask)
{
	struct msg m = { .op = OP_SRQ_MODIFY, .id = srq, .i = { mask } };
	return call(e, &m, a, sizeof *a, NULL, 0);
}

int try_srq_query(struct end *e, int srq, struct ibv_srq_attr *a)
{
	struct msg m = { .op = OP_SRQ_QUERY, .id = srq };
	return call(e, &m, NULL, 0, a, sizeof *a);
}

int try_qp(struct end *e, struct qp_init *in, int *qp, uint32_t *qpn)
{
	struct msg m = { .op = OP_QP };
	call(e, &m, in, sizeof *in, in, sizeof *in);
	*qp = m.id;
	if (qpn)
		*qpn = m.u[0];
	return m.rc;
}

int try_modify(struct end *e, int qp, struct ibv_qp_attr *a, int mask)
{
	struct msg m = { .op = OP_QP_MODIFY, .id = qp, .i = { mask } };
	return call(e, &m, a, sizeof *a, NULL, 0);
}

int try_query(struct end *e, int qp, struct ibv_qp_attr *a, struct ibv_qp_init_attr *ia)
{
	struct { struct ibv_qp_attr a; struct ibv_qp_init_attr ia; } both;
	struct msg m = { .op = OP_QP_QUERY, .id = qp };
	call(e, &m, NULL, 0, &both, sizeof both);
	*a = both.a;
	*ia = both.ia;
	return m.rc;
}

enum ibv_qp_state state(struct end *e, int qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	OK(try_query(e, qp, &a, &ia));
	return a.qp_state;
}

static const char *const state_names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

void wait_state(struct end *e, int qp, enum ibv_qp_state want)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	struct timespec start, now;
	bool there;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		OK(try_query(e, qp, &a, &ia));
		there = a.qp_state == want && (want != IBV_QPS_SQD || !a.sq_draining);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (!there && (now.tv_sec - start.tv_sec) * 1000 < wait_ms);
	CHECK(there, "queue pair at %s is in %s%s, want %s", e->name,
	      a.qp_state <= IBV_QPS_ERR ? state_names[a.qp_state] : "?", a.sq_draining ? ", draining" : "", state_names[want]);
}

int try_ah(struct end *e, int pd, struct ibv_ah_attr *a, int *ah)
{
	struct msg m = { .op = OP_AH, .i = { pd } };
	call(e, &m, a, sizeof *a, NULL, 0);
	*ah = m.id;
	return m.rc;
}

int try_mcast(struct end *e, int qp, bool attach, const union ibv_gid *g, uint16_t lid)
{
	struct msg m = { .op = OP_MCAST, .id = qp, .i = { attach, lid } };
	return call(e, &m, g, sizeof *g, NULL, 0);
}

int try_post_send(struct end *e, int qp, struct swr *w, int n, int *bad)
{
	struct msg m = { .op = OP_POST_SEND, .i = { qp, n } };
	call(e, &m, w, n * sizeof *w, NULL, 0);
	if (bad)
		*bad = m.i[2];
	return m.rc;
}

static int post_list(enum op op, struct end *e, int q, struct rwr *w, int n, int *bad)
{
	struct msg m = { .op = op, .i = { q, n } };
	call(e, &m, w, n * sizeof *w, NULL, 0);
	if (bad)
		*bad = m.i[2];
	return m.rc;
}

int try_post_recv(struct end *e, int qp, struct rwr *w, int n, int *bad)
{
	return post_list(OP_POST_RECV, e, qp, w, n, bad);
}

int try_post_srq(struct end *e, int srq, struct rwr *w, int n, int *bad)
{
	return post_list(OP_POST_SRQ, e, srq, w, n, bad);
}

int get_async(struct end *e, int ms, int *element)
{
	struct msg m = { .op = OP_ASYNC, .i = { ms } };
	call(e, &m, NULL, 0, NULL, 0);
	must(e, &m, "ibv_get_async_event");
	if (element)
		*element = m.i[0];
	return m.id;
}

/* comes_async takes the next event, which must be this one; what may come at
 * any time is passed over unless wanted. Returns whether one came within ms. */
bool comes_async(struct end *e, int type, int element, int ms)
{
	int got, el;

	do
		got = get_async(e, ms, &el);
	while (got != type && (got == IBV_EVENT_COMM_EST || got == IBV_EVENT_PORT_ACTIVE || got == IBV_EVENT_GID_CHANGE));
	CHECK(got == NONE || (got == type && el == element), "asynchronous event at %s: %s of object %d, want %s of %d",
	      e->name, ibv_event_type_str(got), el, ibv_event_type_str(type), element);
	return got != NONE;
}

void want_async(struct end *e, int type, int element)
{
	CHECK(comes_async(e, type, element, wait_ms), "no asynchronous event at %s, want %s", e->name,
	      ibv_event_type_str(type));
}

/* ---- connected pairs ---- */

const char *type_name(int type)
{
	return type == IBV_QPT_RC ? "RC" : type == IBV_QPT_UC ? "UC" : "UD";
}

bool port_is_ib(void) { return A->h.link_layer == IBV_LINK_LAYER_INFINIBAND; }
bool is_rxe(const struct conn *c) { return c->s[0].e->rxe || c->s[1].e->rxe; }

bool flushed_fault(const struct end *e, enum ibv_wc_status want, enum ibv_wc_status got)
{
	return e->rxe && (want == IBV_WC_LOC_QP_OP_ERR || want == IBV_WC_LOC_PROT_ERR) && got == IBV_WC_WR_FLUSH_ERR;
}

bool refused_resize_kills(const struct end *e) { return e->h.vendor_id == RXE_VENDOR; }

uint64_t room(const struct conn *c) { return c->o.room; }
uint64_t aligned(struct buf b) { return (8 - b.addr % 8) % 8 + 64; }

void attr_ah(struct end *from, struct end *to, struct ibv_ah_attr *a)
{
	*a = (struct ibv_ah_attr){ .is_global = !opt_lid, .port_num = from->h.port, .dlid = to->h.lid };
	if (!opt_lid) {
		a->grh.dgid = to->h.gid;
		a->grh.sgid_index = from->h.gid_index;
		a->grh.hop_limit = 64;
	}
}

void attr_init(struct conn *c, int i, struct ibv_qp_attr *a, int *mask)
{
	int acc = c->o.access[i];
	*a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = c->s[i].e->h.port, .qkey = qkey,
		.qp_access_flags = acc == NONE ? 0 : acc ? acc : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
			(c->o.type == IBV_QPT_RC ? IBV_ACCESS_REMOTE_ATOMIC : 0) };
	if (c->o.type == IBV_QPT_UC)
		a->qp_access_flags &= ~(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	*mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (c->o.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
}

void attr_rtr(struct conn *c, int i, struct ibv_qp_attr *a, int *mask)
{
	struct side *peer = &c->s[!i];
	*a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = c->o.mtu, .dest_qp_num = peer->qpn,
		.rq_psn = peer->psn, .max_dest_rd_atomic = c->o.rd, .min_rnr_timer = c->o.min_rnr };
	*mask = IBV_QP_STATE;
	if (c->o.type == IBV_QPT_UD)
		return;
	attr_ah(c->s[i].e, peer->e, &a->ah_attr);
	*mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (c->o.type == IBV_QPT_RC)
		*mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

void attr_rts(struct conn *c, int i, struct ibv_qp_attr *a, int *mask)
{
	*a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = c->s[i].psn, .timeout = c->o.timeout,
		.retry_cnt = c->o.retry, .rnr_retry = c->o.rnr, .max_rd_atomic = c->o.rd };
	*mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (c->o.type == IBV_QPT_RC)
		*mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

/* to_state makes the one step to s with all that the step requires. */
void to_state(struct conn *c, int i, enum ibv_qp_state s)
{
	struct ibv_qp_attr a = { .qp_state = s };
	int mask = IBV_QP_STATE;

	if (s == IBV_QPS_INIT)
		attr_init(c, i, &a, &mask);
	else if (s == IBV_QPS_RTR)
		attr_rtr(c, i, &a, &mask);
	else if (s == IBV_QPS_RTS)
		attr_rts(c, i, &a, &mask);
	int rc = try_modify(c->s[i].e, c->s[i].qp, &a, mask);
	CHECK(!rc, "%s queue pair at %s to %s: %s", type_name(c->o.type), c->s[i].e->name, state_names[s], errname(rc));
}

/* connect_pair makes two queue pairs with queues, buffers and regions of their
 * own and connects them. */
void connect_pair(struct conn *c, const struct opt *want)
{
	struct opt *o = &c->o;

	*c = (struct conn){ .o = *want, .next_id = rnd() };
#define DEFAULT(f, v) do { if (!o->f) o->f = (v); } while (0)
	DEFAULT(type, IBV_QPT_RC);
	DEFAULT(depth, 64);
	DEFAULT(sge, 4);
	DEFAULT(cqe, o->depth * 2);
	DEFAULT(rcqe, o->depth * 2);
	DEFAULT(rd, 4);
	DEFAULT(timeout, opt_timeout);
	DEFAULT(retry, 7);
	DEFAULT(rnr, 7);
	DEFAULT(min_rnr, 1);
	DEFAULT(end[0], A);
	DEFAULT(end[1], B);
	int port_mtu = o->end[0]->h.active_mtu < o->end[1]->h.active_mtu ? o->end[0]->h.active_mtu : o->end[1]->h.active_mtu;
	DEFAULT(mtu, port_mtu);
	DEFAULT(room, 2 << 20);
	DEFAULT(until, IBV_QPS_RTS);
	c->mtu = 128 << (o->type == IBV_QPT_UD ? port_mtu : o->mtu);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	for (int i = 0; i < 2; i++) {
		struct side *s = &c->s[i];
		struct end *e = s->e = o->end[i];
		s->psn = o->psn[i] ? o->psn[i] & 0xffffff : 0xffff00 + rnd_below(0x100);
		s->pd = make_pd(e);
		s->sch = o->channels ? make_channel(e) : NONE;
		s->rch = o->channels ? make_channel(e) : NONE;
		s->scq = make_cq(e, o->cqe, s->sch);
		s->rcq = make_cq(e, o->rcqe, s->rch);
		s->srq = s->ah = NONE;
		if (o->srq[i]) {
			struct ibv_srq_attr got;
			int rc = try_srq(e, s->pd, o->depth, o->sge, &s->srq, &got);
			CHECK(!rc, "ibv_create_srq at %s: %s", e->name, errname(rc));
		}
		struct qp_init in = { .type = o->type, .pd = s->pd, .scq = s->scq, .rcq = s->rcq, .srq = s->srq,
			.sig_all = o->sig_all, .create_flags = o->create_flags[i], .send_ops = o->send_ops,
			.cap = { .max_send_wr = o->depth, .max_recv_wr = o->srq[i] ? 0 : o->depth, .max_send_sge = o->sge,
				.max_recv_sge = o->srq[i] ? 0 : o->sge, .max_inline_data = o->inl } };
		int rc = try_qp(e, &in, &s->qp, &s->qpn);
		CHECK(!rc, "ibv_create_qp(%s) at %s: %s", type_name(o->type), e->name, errname(rc));
		CHECK(in.cap.max_inline_data >= (unsigned)o->inl, "inline data granted at %s: %u, asked %d", e->name,
		      in.cap.max_inline_data, o->inl);
		s->inl = in.cap.max_inline_data;
		s->tx = make_buf(e, o->room, rnd_below(64));
		s->rx = make_buf(e, o->room, rnd_below(64));
		s->txm = make_mr(e, s->pd, s->tx, 0, o->room, access);
		s->rxm = make_mr(e, s->pd, s->rx, 0, o->room, access);
	}
	for (int st = IBV_QPS_INIT; o->until != NONE && st <= o->until; st++)
		for (int i = 0; i < 2; i++)
			to_state(c, i, st);
	for (int i = 0; o->type == IBV_QPT_UD && i < 2; i++) {
		struct ibv_ah_attr a;
		attr_ah(c->s[i].e, c->s[!i].e, &a);
		int rc = try_ah(c->s[i].e, c->s[i].pd, &a, &c->s[i].ah);
		CHECK(!rc, "ibv_create_ah at %s: %s", c->s[i].e->name, errname(rc));
	}
}

void destroy_qps(struct conn *c)
{
	for (int i = 0; i < 2; i++)
		OK(try_free(c->s[i].e, OP_QP_FREE, c->s[i].qp));
}

/* ---- requests ---- */

struct swr swr(struct conn *c, enum ibv_wr_opcode op, int flags)
{
	return (struct swr){ .wr_id = c->next_id++, .opcode = op, .flags = flags, .ah = NONE, .mw = NONE, .mr = NONE,
		.imm = rnd() };
}

void add(struct swr *w, struct mr m, uint64_t off, uint32_t len)
{
	CHECK(w->num_sge < MAX_SGE, "test bug: too many entries");
	w->sge[w->num_sge++] = (struct ibv_sge){ .addr = m.addr + off, .length = len, .lkey = m.lkey };
}

struct rwr rwr(struct conn *c) { return (struct rwr){ .wr_id = c->next_id++ }; }

void radd(struct rwr *w, struct mr m, uint64_t off, uint32_t len)
{
	CHECK(w->num_sge < MAX_SGE, "test bug: too many entries");
	w->sge[w->num_sge++] = (struct ibv_sge){ .addr = m.addr + off, .length = len, .lkey = m.lkey };
}

/* target fills in where a request of side `from` goes: the other queue pair of a
 * UD pair, or memory there. */
void target(struct swr *w, struct conn *c, int from, struct mr remote, uint64_t off)
{
	if (c->o.type == IBV_QPT_UD) {
		w->ah = c->s[from].ah;
		w->rqpn = c->s[!from].qpn;
		w->rqkey = qkey;
	} else {
		w->raddr = remote.addr + off;
		w->rkey = remote.rkey;
	}
}

void post(struct conn *c, int i, struct swr *w)
{
	int rc = try_post_send(c->s[i].e, c->s[i].qp, w, 1, NULL);
	CHECK(!rc, "ibv_post_send at %s: %s", c->s[i].e->name, errname(rc));
}

void post_recv(struct conn *c, int i, struct rwr *w)
{
	struct side *s = &c->s[i];
	int rc = s->srq == NONE ? try_post_recv(s->e, s->qp, w, 1, NULL) : try_post_srq(s->e, s->srq, w, 1, NULL);
	CHECK(!rc, "%s at %s: %s", s->srq == NONE ? "ibv_post_recv" : "ibv_post_srq_recv", s->e->name, errname(rc));
}

struct ibv_wc one(struct end *e, int cq)
{
	struct ibv_wc wc;
	CHECK(poll_cq(e, cq, &wc, 1, 1, wait_ms) == 1, "no completion at %s within %d ms", e->name, wait_ms);
	return wc;
}

void want_wc(struct end *e, int cq, uint64_t wr_id, enum ibv_wc_status st)
{
	struct ibv_wc wc = one(e, cq);
	CHECK(wc.status == st && wc.wr_id == wr_id, "completion at %s: %s of request %llx, want %s of %llx", e->name,
	      ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id, ibv_wc_status_str(st), (unsigned long long)wr_id);
}

void want_none(struct end *e, int cq, int ms)
{
	struct ibv_wc wc;
	if (poll_cq(e, cq, &wc, 0, 1, ms))
		FAIL("unexpected completion at %s: %s, opcode %d, request %llx", e->name, ibv_wc_status_str(wc.status), wc.opcode,
		     (unsigned long long)wc.wr_id);
}

static int wc_opcode(int op)
{
	switch (op) {
	case IBV_WR_RDMA_WRITE: case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
	case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
	case IBV_WR_BIND_MW: return IBV_WC_BIND_MW;
	case IBV_WR_ATOMIC_WRITE: return IBV_WC_ATOMIC_WRITE;
	}
	return IBV_WC_SEND;
}

/* want_ok takes the sender's completion of w and checks every field that verbs
 * defines for it. */
void want_ok(struct conn *c, int i, const struct swr *w, uint32_t len)
{
	struct side *s = &c->s[i];
	struct ibv_wc wc = one(s->e, s->scq);

	CHECK(wc.status == IBV_WC_SUCCESS, "send completion at %s: %s (vendor %x), request %llx", s->e->name,
	      ibv_wc_status_str(wc.status), wc.vendor_err, (unsigned long long)wc.wr_id);
	CHECK(wc.wr_id == w->wr_id, "send completion at %s: request %llx, want %llx", s->e->name, (unsigned long long)wc.wr_id,
	      (unsigned long long)w->wr_id);
	CHECK(wc.opcode == (unsigned)wc_opcode(w->opcode), "send completion at %s: opcode %d, want %d", s->e->name, wc.opcode,
	      wc_opcode(w->opcode));
	CHECK(wc.qp_num == s->qpn, "send completion at %s: qp_num %06x, want %06x", s->e->name, wc.qp_num, s->qpn);
	if (wc.opcode == IBV_WC_RDMA_READ || wc.opcode == IBV_WC_COMP_SWAP || wc.opcode == IBV_WC_FETCH_ADD)
		CHECK(wc.byte_len == len, "completion of opcode %d at %s: byte_len %u, want %u", wc.opcode, s->e->name, wc.byte_len,
		      len);
}

/* want_recv takes the completion of receive w at side i and checks every field. */
struct ibv_wc want_recv(struct conn *c, int i, const struct rwr *w, const struct swr *from, uint32_t len)
{
	struct side *s = &c->s[i];
	struct ibv_wc wc = one(s->e, s->rcq);
	bool imm = from->opcode == IBV_WR_SEND_WITH_IMM || from->opcode == IBV_WR_RDMA_WRITE_WITH_IMM,
		ud = c->o.type == IBV_QPT_UD;
	unsigned op = from->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;

	CHECK(wc.status == IBV_WC_SUCCESS, "receive completion at %s: %s (vendor %x)", s->e->name,
	      ibv_wc_status_str(wc.status), wc.vendor_err);
	CHECK(wc.wr_id == w->wr_id, "receive completion at %s: request %llx, want %llx", s->e->name,
	      (unsigned long long)wc.wr_id, (unsigned long long)w->wr_id);
	CHECK(wc.opcode == op, "receive completion at %s: opcode %d, want %d", s->e->name, wc.opcode, op);
	CHECK(wc.qp_num == s->qpn, "receive completion at %s: qp_num %06x, want %06x", s->e->name, wc.qp_num, s->qpn);
	len += ud ? 40 : 0;
	CHECK(wc.byte_len == len, "receive completion at %s: byte_len %u, want %u", s->e->name, wc.byte_len, len);
	CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM) == !imm, "receive completion at %s: flags %x, immediate %ssent", s->e->name,
	      wc.wc_flags, imm ? "" : "not ");
	CHECK(!(wc.wc_flags & IBV_WC_WITH_INV) == (from->opcode != IBV_WR_SEND_WITH_INV), "receive completion at %s: flags %x",
	      s->e->name, wc.wc_flags);
	if (wc.wc_flags & IBV_WC_WITH_INV)
		CHECK(wc.invalidated_rkey == from->rkey, "invalidated at %s: %08x, want %08x", s->e->name, wc.invalidated_rkey,
		      from->rkey);
	if (imm)
		CHECK(wc.imm_data == from->imm, "immediate data at %s: %08x, want %08x", s->e->name, be32toh(wc.imm_data),
		      be32toh(from->imm));
	if (ud) {
		CHECK(!(wc.wc_flags & IBV_WC_GRH) == opt_lid, "UD completion at %s with%s the GRH flag", s->e->name,
		      opt_lid ? "" : "out");
		CHECK(wc.src_qp == c->s[!i].qpn, "UD completion at %s: src_qp %06x, want %06x", s->e->name, wc.src_qp, c->s[!i].qpn);
		if (port_is_ib()) {
			CHECK(wc.slid == c->s[!i].e->h.lid && wc.sl == 0 && wc.dlid_path_bits == 0,
			      "UD completion at %s: slid %u, want %u; sl %u, path bits %u",
			      s->e->name, wc.slid, c->s[!i].e->h.lid, wc.sl, wc.dlid_path_bits);
		} else if (!s->e->rxe) { /* what the 40 bytes hold; UCX believes it */
			bool v4 = !memcmp(s->e->h.gid.raw, "\0\0\0\0\0\0\0\0\0\0\377\377", 12);

			CHECK(wc.sl == (v4 ? 2 : 1), "UD completion at %s: sl %u over IPv%d", s->e->name, wc.sl, v4 ? 4 : 6);
		}
		CHECK(wc.pkey_index == 0, "UD completion at %s: pkey_index %u", s->e->name, wc.pkey_index);
	}
	return wc;
}

/* ping sends 100 bytes that must arrive: the pair still works. */
void ping(struct conn *c, int from)
{
	struct side *s = &c->s[from], *d = &c->s[!from];
	uint64_t seed = rnd();
	uint32_t hdr = c->o.type == IBV_QPT_UD ? 40 : 0, n = 100;
	struct rwr r = rwr(c);
	struct swr w = swr(c, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED);
	uint8_t grh[40];

	fill(s->e, s->tx, 0, n, seed);
	radd(&r, d->rxm, 0, hdr + n);
	post_recv(c, !from, &r);
	add(&w, s->txm, 0, n);
	target(&w, c, from, d->rxm, 0);
	post(c, from, &w);
	want_ok(c, from, &w, n);
	want_recv(c, !from, &r, &w, n);
	if (hdr) {
		get_bytes(d->e, d->rx, 0, grh, 40);
		expect_bytes(d->e, d->rx, 0, grh, 40);
	}
	expect(d->e, d->rx, hdr, n, seed, 0);
	verify(d->e, d->rx, 0, "a message afterwards");
}

/* sizes lists the message sizes around every boundary. */
int sizes(struct conn *c, uint64_t *out)
{
	uint64_t m = c->mtu, all[] = { 0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 63, 64, 65, 255, 256, 257, 511, 512, 513, m - 1, m,
		m + 1, 2 * m - 1, 2 * m,
		2 * m + 1, 3 * m, 4095, 4096, 4097, 16 * m + 5, 65535, 65536, 65537, 131072, (1 << 20) + 3 };
	uint64_t max = c->o.type == IBV_QPT_UD ? m : c->o.room;
	int n = 0;

	if (c->o.type == IBV_QPT_UC && is_rxe(c) && A->fd != B->fd && max > 65537)
		max = 65537; /* more than the queue of a slow guest's card holds at once would be lost */
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		bool seen = all[i] > max;
		for (int k = 0; k < n; k++)
			seen |= out[k] == all[i];
		if (!seen)
			out[n++] = all[i];
	}
	return n;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	return x ^ x >> 32;
}

/* Byte i of the pattern of a seed depends on all bits of both, so that data
 * at a wrong place, or of an earlier message, is seen. */
void pattern(void *p, uint64_t len, uint64_t seed, uint64_t off)
{
	uint8_t *d = p;
	while (len) {
		uint64_t w = mix(seed * 0x9e3779b97f4a7c15u + (off >> 3));
		unsigned at = off & 7, n = 8 - at;
		if (n > len)
			n = len;
		if (n == 8)
			memcpy(d, &w, 8);
		else
			memcpy(d, (uint8_t *)&w + at, n);
		d += n, off += n, len -= n;
	}
}
