// SPDX-License-Identifier: Apache-2.0
/* Queue pairs: created, modified, queried, destroyed. */
#include "weft.h"

#define INLINE_MIN  256u    /* room every slot has for data copied when posted */
#define INLINE_MAX  1024u

#define OP(o) (1u << IBV_WR_##o)

static bool has(const struct weft_ctx *ctx, int cap)
{
	return ctx->ext >> cap & 1;
}

static uint32_t ops_of(struct weft_ctx *ctx, enum ibv_qp_type type)
{
	const uint32_t send = OP(SEND) | OP(SEND_WITH_IMM);
	const uint32_t write = OP(RDMA_WRITE) | OP(RDMA_WRITE_WITH_IMM);
	const uint32_t local = (has(ctx, WEFT_CAP_MEM_MGT) ? OP(LOCAL_INV) : 0) |
			       (has(ctx, WEFT_CAP_MW) ? OP(BIND_MW) : 0);

	switch (type) {
	case IBV_QPT_RC:
		return send | write | local | OP(RDMA_READ) |
		       (has(ctx, WEFT_CAP_MEM_MGT) ? OP(SEND_WITH_INV) : 0) |
		       (has(ctx, WEFT_CAP_ATOMIC_WRITE) ? OP(ATOMIC_WRITE) : 0) |
		       (has(ctx, WEFT_CAP_ATOMIC) ?
				OP(ATOMIC_CMP_AND_SWP) | OP(ATOMIC_FETCH_AND_ADD) : 0);
	case IBV_QPT_UC:
		return send | write | local;
	case IBV_QPT_UD:
		return send;
	default:
		return 0;
	}
}

static uint32_t at_least(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static uint32_t at_most(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

uint32_t weft_inline_limit(const struct weft_res_query_device *d)
{
	return d->max_inline ? at_most(d->max_inline, INLINE_MAX) : INLINE_MIN;
}

/* What is granted for what is asked: rings of a power of two, whole cache
 * lines for slots. Returns 0 or an errno. */
static int grant(struct weft_ctx *ctx, struct ibv_qp_init_attr_ex *a, struct weft_qp *q)
{
	const struct weft_res_query_device *d = &ctx->attr;
	uint32_t inline_limit = weft_inline_limit(d);
	struct ibv_qp_cap *c = &a->cap;
	uint32_t body, sq, rq;
	int err;

	if (c->max_send_wr > d->max_qp_wr || c->max_send_sge > d->max_send_sge ||
	    c->max_inline_data > inline_limit)
		return EINVAL;
	if (!a->srq && (c->max_recv_wr > d->max_qp_wr || c->max_recv_sge > d->max_recv_sge))
		return EINVAL;
	sq = weft_pow2(at_least(c->max_send_wr, 4));
	body = at_least(16 * c->max_send_sge, at_least(c->max_inline_data,
						       at_most(INLINE_MIN, inline_limit)));
	body = (body + 63) & ~63u;
	if ((err = weft_ring_init(ctx, &q->sq, sq, sizeof(struct weft_sq_hdr) + body, false)))
		return err;
	c->max_send_wr = at_most(sq, d->max_qp_wr);
	c->max_inline_data = at_most(body, inline_limit);
	if (a->srq) {
		c->max_recv_wr = c->max_recv_sge = 0;
	} else {
		rq = weft_pow2(at_least(c->max_recv_wr, 4));
		body = (sizeof(struct weft_rq_hdr) + 16 * c->max_recv_sge + 63) & ~63u;
		if ((err = weft_ring_init(ctx, &q->rq, rq, body, false)))
			return err;
		c->max_recv_wr = at_most(rq, d->max_qp_wr);
	}
	q->cap = *c;
	q->max_inline = c->max_inline_data;
	q->max_send_sge = c->max_send_sge;
	q->max_recv_sge = c->max_recv_sge;
	return 0;
}

static int create(struct weft_ctx *ctx, struct ibv_qp_init_attr_ex *a, struct weft_qp *q)
{
	struct weft_cmd_create_qp in = {
		.pdn = a->pd->handle,
		.qp_type = (uint8_t)a->qp_type,
		.sq_sig_all = a->sq_sig_all != 0,
		.send_cqn = a->send_cq->handle,
		.recv_cqn = a->recv_cq->handle,
		.cap = {
			.max_send_wr = a->cap.max_send_wr,
			.max_recv_wr = a->cap.max_recv_wr,
			.max_send_sge = a->cap.max_send_sge,
			.max_recv_sge = a->cap.max_recv_sge,
			.max_inline_data = a->cap.max_inline_data,
		},
		.srqn1 = a->srq ? weft_container(a->srq, struct weft_srq, srq)->srqn + 1 : 0,
		.qp_flags = WEFT_QP_SG_WQE,
	};
	struct weft_res_create_qp_ex made;
	struct weft_cmd_destroy_qp rm;
	uint32_t base = 3 + ctx->max_cqs;
	int err;

	if (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS &&
	    a->create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)
		in.qp_flags |= WEFT_QP_BLOCK_SELF_MCAST;
	weft_lock(&ctx->numbers);
	err = weft_command(ctx, WEFT_CMD_CREATE_QP, &in, sizeof(in), &made, sizeof(made));
	if (!err && made.qpn >= ctx->max_qps)
		err = EPROTO;
	if (err)
		goto out;
	q->slot = made.qpn;
	q->qp.handle = made.qpn;
	q->qp.qp_num = made.wire_qpn;
	if ((err = weft_ring_set(ctx, &q->sq, base + 2 * made.qpn, -1, 0)) ||
	    (!a->srq && (err = weft_ring_set(ctx, &q->rq, base + 2 * made.qpn + 1, -1, 0)))) {
		rm.qpn = made.qpn;
		weft_command(ctx, WEFT_CMD_DESTROY_QP, &rm, sizeof(rm), NULL, 0);
		/* One of them may be set; stopping the other is refused. */
		weft_ring_stop(ctx, base + 2 * made.qpn);
		weft_ring_stop(ctx, base + 2 * made.qpn + 1);
	}
out:
	weft_unlock(&ctx->numbers);
	return err;
}

static struct weft_qp *create_qp(struct ibv_qp_init_attr_ex *a)
{
	struct weft_ctx *ctx = weft_ctx(a->pd->context);
	struct weft_qp *q;
	int err = 0;

	if (!ops_of(ctx, a->qp_type))
		err = EOPNOTSUPP;
	else if (!a->send_cq || !a->recv_cq)
		err = EINVAL;
	else if (weft_dead(ctx))
		err = EIO;
	if (err) {
		weft_explain_create_qp(a->pd->context, a, err);
		errno = err;
		return NULL;
	}
	q = calloc(1, sizeof(*q));
	if (!q)
		return NULL;
	if ((err = grant(ctx, a, q)) || (err = create(ctx, a, q))) {
		weft_ring_free(ctx, &q->sq);
		weft_ring_free(ctx, &q->rq);
		free(q);
		weft_explain_create_qp(a->pd->context, a, err);
		errno = err;
		return NULL;
	}
	q->ops = ops_of(ctx, a->qp_type);
	q->sq_sig_all = a->sq_sig_all != 0;
	q->qp.context = a->pd->context;
	q->qp.qp_context = a->qp_context;
	q->qp.pd = a->pd;
	q->qp.send_cq = a->send_cq;
	q->qp.recv_cq = a->recv_cq;
	q->qp.srq = a->srq;
	q->qp.state = IBV_QPS_RESET;
	q->qp.qp_type = a->qp_type;
	pthread_mutex_init(&q->qp.mutex, NULL);
	pthread_cond_init(&q->qp.cond, NULL);
	weft_lock(&ctx->obj);
	ctx->qps[q->slot] = q;
	weft_unlock(&ctx->obj);
	return q;
}

WEFT_PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex a;
	struct weft_qp *q;

	WEFT_FORWARD(pd->context, NULL, ibv_create_qp, pd, attr);
	memset(&a, 0, sizeof(a));
	memcpy(&a, attr, sizeof(*attr)); /* the same fields come first */
	a.pd = pd;
	q = create_qp(&a);
	if (!q)
		return NULL;
	attr->cap = a.cap;
	return &q->qp;
}

struct ibv_qp *weft_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	const uint32_t have = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
			      IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	uint64_t ops = a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? a->send_ops_flags : 0;
	uint64_t may = ops_of(weft_ctx(c), a->qp_type);
	struct weft_qp *q;

	/* The bits of send_ops_flags up to SEND with invalidate are those of the opcodes. */
	may = (may & (OP(SEND_WITH_INV) * 2 - 1)) |
	      (may & OP(ATOMIC_WRITE) ? IBV_QP_EX_WITH_ATOMIC_WRITE : 0);
	if (a->comp_mask & ~have || ops & ~may ||
	    (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS &&
	     a->create_flags & ~(uint32_t)IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)) {
		weft_explain_create_qp(c, a, EOPNOTSUPP);
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd) {
		errno = EINVAL;
		return NULL;
	}
	q = create_qp(a);
	if (!q)
		return NULL;
	if (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		weft_qp_ex_ops(q, ops);
	return &q->qp;
}

_Static_assert(IBV_QP_EX_WITH_RDMA_WRITE == OP(RDMA_WRITE) &&
	       IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM == OP(RDMA_WRITE_WITH_IMM) &&
	       IBV_QP_EX_WITH_SEND == OP(SEND) &&
	       IBV_QP_EX_WITH_SEND_WITH_IMM == OP(SEND_WITH_IMM) &&
	       IBV_QP_EX_WITH_RDMA_READ == OP(RDMA_READ) &&
	       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP == OP(ATOMIC_CMP_AND_SWP) &&
	       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD == OP(ATOMIC_FETCH_AND_ADD) &&
	       IBV_QP_EX_WITH_LOCAL_INV == OP(LOCAL_INV) &&
	       IBV_QP_EX_WITH_BIND_MW == OP(BIND_MW) &&
	       IBV_QP_EX_WITH_SEND_WITH_INV == OP(SEND_WITH_INV),
	       "send operation bits are opcode bits");

WEFT_PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct weft_qp *q = to_weft_qp(qp);

	WEFT_FORWARD(qp->context, NULL, ibv_qp_to_qp_ex, qp);
	return q->has_ex ? &q->ex : NULL;
}

/* ---- modify and query ---- */

static void ah_to_abi(const struct ibv_ah_attr *a, struct weft_qp_attr_ex *out)
{
	memcpy(out->ah_attr.dgid, a->grh.dgid.raw, sizeof(out->ah_attr.dgid));
	out->ah_attr.flow_label = a->grh.flow_label;
	out->ah_attr.sgid_index = a->grh.sgid_index;
	out->ah_attr.hop_limit = a->grh.hop_limit;
	out->ah_attr.traffic_class = a->grh.traffic_class;
	out->is_global = a->is_global;
	out->sl = a->sl;
	out->src_path_bits = a->src_path_bits;
	out->dlid = a->dlid;
	out->static_rate = a->static_rate;
}

WEFT_PUBLIC int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	struct weft_qp_attr_ex in = { .qpn = qp->handle, .attr_mask = (uint32_t)mask };
	struct weft_ctx *ctx;
	int err;

	WEFT_FORWARD(qp->context, errno, ibv_modify_qp, qp, a, mask);
	ctx = weft_ctx(qp->context);
	/* One port, which the ABI's address vector need not name. */
	if (mask & IBV_QP_AV && a->ah_attr.port_num != 1) {
		weft_explain_modify_qp(qp, a, mask, EINVAL);
		return weft_ret(EINVAL);
	}
	in.qp_state = (uint8_t)a->qp_state;
	in.cur_qp_state = (uint8_t)a->cur_qp_state;
	in.path_mtu = (uint8_t)a->path_mtu;
	in.path_mig_state = (uint8_t)a->path_mig_state;
	in.qkey = a->qkey;
	in.rq_psn = a->rq_psn;
	in.sq_psn = a->sq_psn;
	in.dest_qp_num = a->dest_qp_num;
	in.access = a->qp_access_flags;
	in.pkey_index = a->pkey_index;
	in.en_sqd_async_notify = a->en_sqd_async_notify;
	in.max_rd_atomic = a->max_rd_atomic;
	in.max_dest_rd_atomic = a->max_dest_rd_atomic;
	in.min_rnr_timer = a->min_rnr_timer;
	in.port = a->port_num;
	in.timeout = a->timeout;
	in.retry_cnt = a->retry_cnt;
	in.rnr_retry = a->rnr_retry;
	in.rate_limit = a->rate_limit;
	if (mask & IBV_QP_CAP)
		in.cap = (struct weft_qp_cap){
			a->cap.max_send_wr, a->cap.max_recv_wr, a->cap.max_send_sge,
			a->cap.max_recv_sge, a->cap.max_inline_data, 0,
		};
	if (mask & IBV_QP_AV)
		ah_to_abi(&a->ah_attr, &in);
	err = weft_command(ctx, WEFT_CMD_MODIFY_QP_EX, &in, sizeof(in), NULL, 0);
	if (err)
		weft_explain_modify_qp(qp, a, mask, err);
	if (!err && mask & IBV_QP_STATE)
		__atomic_store_n(&qp->state, a->qp_state, __ATOMIC_RELEASE);
	if (!err && mask & IBV_QP_STATE && a->qp_state == IBV_QPS_RESET) {
		/* Its number lives on: what is left of its former life would be
		 * taken for the new one's. */
		weft_cq_forget(qp->send_cq, qp->qp_num);
		if (qp->recv_cq != qp->send_cq)
			weft_cq_forget(qp->recv_cq, qp->qp_num);
	}
	return weft_ret(err);
}

int weft_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *a)
{
	struct weft_qp_attr_ex in = { .qpn = qp->handle, .attr_mask = IBV_QP_RATE_LIMIT };

	/* Bursts are as long as the node finds good. */
	if (a->comp_mask)
		return weft_ret(EINVAL);
	in.rate_limit = a->rate_limit;
	return weft_ret(weft_command(weft_ctx(qp->context), WEFT_CMD_MODIFY_QP_EX, &in, sizeof(in),
				     NULL, 0));
}

WEFT_PUBLIC int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask,
			     struct ibv_qp_init_attr *init)
{
	struct weft_cmd_query_qp_ex in = { .qpn = qp->handle };
	struct weft_qp *q = to_weft_qp(qp);
	struct weft_qp_attr_ex r;
	int err;

	WEFT_FORWARD(qp->context, errno, ibv_query_qp, qp, a, mask, init);
	(void)mask; /* a lower bound: more fields may be filled in */
	err = weft_command(weft_ctx(qp->context), WEFT_CMD_QUERY_QP_EX, &in, sizeof(in), &r,
			   sizeof(r));
	if (err)
		return weft_ret(err);
	memset(a, 0, sizeof(*a));
	a->qp_state = r.qp_state;
	a->cur_qp_state = r.qp_state;
	a->path_mtu = r.path_mtu;
	a->path_mig_state = r.path_mig_state;
	a->qkey = r.qkey;
	a->rq_psn = r.rq_psn;
	a->sq_psn = r.sq_psn;
	a->dest_qp_num = r.dest_qp_num;
	a->qp_access_flags = r.access;
	a->cap = q->cap;
	memcpy(a->ah_attr.grh.dgid.raw, r.ah_attr.dgid, sizeof(r.ah_attr.dgid));
	a->ah_attr.grh.flow_label = r.ah_attr.flow_label;
	a->ah_attr.grh.sgid_index = r.ah_attr.sgid_index;
	a->ah_attr.grh.hop_limit = r.ah_attr.hop_limit;
	a->ah_attr.grh.traffic_class = r.ah_attr.traffic_class;
	a->ah_attr.is_global = r.is_global;
	a->ah_attr.sl = r.sl;
	a->ah_attr.src_path_bits = r.src_path_bits;
	a->ah_attr.dlid = r.dlid;
	a->ah_attr.static_rate = r.static_rate;
	a->ah_attr.port_num = r.port;
	a->pkey_index = r.pkey_index;
	a->en_sqd_async_notify = r.en_sqd_async_notify;
	a->sq_draining = r.sq_draining;
	a->max_rd_atomic = r.max_rd_atomic;
	a->max_dest_rd_atomic = r.max_dest_rd_atomic;
	a->min_rnr_timer = r.min_rnr_timer;
	a->port_num = r.port;
	a->timeout = r.timeout;
	a->retry_cnt = r.retry_cnt;
	a->rnr_retry = r.rnr_retry;
	a->rate_limit = r.rate_limit;
	__atomic_store_n(&qp->state, a->qp_state, __ATOMIC_RELEASE);
	if (init)
		*init = (struct ibv_qp_init_attr){
			.qp_context = qp->qp_context,
			.send_cq = qp->send_cq,
			.recv_cq = qp->recv_cq,
			.srq = qp->srq,
			.cap = q->cap,
			.qp_type = qp->qp_type,
			.sq_sig_all = q->sq_sig_all,
		};
	return 0;
}

WEFT_PUBLIC int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct weft_cmd_destroy_qp rm = { .qpn = qp->handle };
	struct weft_qp *q = to_weft_qp(qp);
	struct weft_ctx *ctx;
	int err;

	WEFT_FORWARD(qp->context, errno, ibv_destroy_qp, qp);
	ctx = weft_ctx(qp->context);
	if (!weft_dead(ctx)) {
		weft_lock(&ctx->numbers);
		err = weft_command(ctx, WEFT_CMD_DESTROY_QP, &rm, sizeof(rm), NULL, 0);
		if (!err) {
			weft_ring_stop(ctx, q->sq.index);
			if (!qp->srq)
				weft_ring_stop(ctx, q->rq.index);
		}
		weft_unlock(&ctx->numbers);
		if (err && !weft_dead(ctx))
			return weft_ret(err);
	}
	weft_lock(&ctx->obj);
	if (ctx->qps[q->slot] == q)
		ctx->qps[q->slot] = NULL;
	weft_unlock(&ctx->obj);
	weft_async_purge(ctx, qp);
	weft_await_acks(ctx, &qp->mutex, &qp->cond, &qp->events_completed, &q->async_delivered);
	weft_ring_free(ctx, &q->sq);
	weft_ring_free(ctx, &q->rq);
	free(q);
	return 0;
}

/* ---- multicast groups ---- */

static int membership(struct ibv_qp *qp, uint8_t cmd, const union ibv_gid *gid, uint16_t lid)
{
	struct weft_cmd_attach_mcast in = { .qpn = qp->handle, .mlid = lid };
	int err;

	memcpy(in.gid, gid->raw, sizeof(in.gid));
	err = weft_command(weft_ctx(qp->context), cmd, &in, sizeof(in), NULL, 0);
	if (err)
		weft_explain(qp->context, cmd == WEFT_CMD_ATTACH_MCAST ? "ibv_attach_mcast" : "ibv_detach_mcast",
			     err, NULL, NULL);
	return weft_ret(err);
}

WEFT_PUBLIC int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	WEFT_FORWARD(qp->context, errno, ibv_attach_mcast, qp, gid, lid);
	return membership(qp, WEFT_CMD_ATTACH_MCAST, gid, lid);
}

WEFT_PUBLIC int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	WEFT_FORWARD(qp->context, errno, ibv_detach_mcast, qp, gid, lid);
	return membership(qp, WEFT_CMD_DETACH_MCAST, gid, lid);
}
