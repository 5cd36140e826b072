// SPDX-License-Identifier: Apache-2.0
/* Shared receive queues. Their elements are used in any order, so the slots
 * that are free are kept in a list. */
#include "weft.h"

static struct weft_srq *to_weft_srq(struct ibv_srq *s)
{
	return weft_container(s, struct weft_srq, srq);
}

/* How many slots the ring of a queue for max_wr requests has, and how many
 * requests it is said to hold: the device's limit need not be a power of two. */
static uint32_t ring_num(uint32_t max_wr)
{
	return weft_pow2(max_wr < 4 ? 4 : max_wr);
}

static uint32_t granted(const struct weft_ctx *ctx, uint32_t max_wr)
{
	uint32_t num = ring_num(max_wr);

	return num < ctx->attr.max_srq_wr ? num : ctx->attr.max_srq_wr;
}

/* A ring and the list of its free slots, which is not filled. */
static int new_ring(struct weft_ctx *ctx, struct weft_ring *r, uint32_t max_wr, uint32_t max_sge,
		    uint16_t **list)
{
	uint32_t slot = (uint32_t)((sizeof(struct weft_rq_hdr) + 16 * max_sge + 63) & ~63ul);
	int err;

	*list = malloc(ring_num(max_wr) * sizeof(**list));
	if (!*list)
		return ENOMEM;
	err = weft_ring_init(ctx, r, ring_num(max_wr), slot, false);
	if (err)
		free(*list);
	return err;
}

/* Lists the slots of a ring that nothing is available in beyond its tail, from
 * where position p is slot p & mask. The first to be taken comes last. */
static uint32_t list_free(const struct weft_ring *r, uint16_t *list)
{
	uint32_t n = 0;

	for (uint32_t p = r->tail + r->num; p != r->head; p--)
		list[n++] = (uint16_t)((p - 1) & r->mask);
	return n;
}

WEFT_PUBLIC struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct weft_cmd_create_srq in = { .pdn = pd->handle };
	struct weft_cmd_destroy_srq rm;
	struct weft_res_create_srq made;
	struct weft_ctx *ctx;
	struct weft_srq *s;
	int err;

	WEFT_FORWARD(pd->context, NULL, ibv_create_srq, pd, attr);
	ctx = weft_ctx(pd->context);
	if (!(ctx->ext & 1ull << WEFT_CAP_SRQ)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!attr->attr.max_wr || attr->attr.max_wr > ctx->attr.max_srq_wr ||
	    attr->attr.max_sge > ctx->attr.max_srq_sge) {
		weft_explain(pd->context, "ibv_create_srq", EINVAL,
			     "stay within the limits; ibv_devinfo -v shows them",
			     "%u requests of 1 to %u, %u entries each of at most %u", attr->attr.max_wr,
			     ctx->attr.max_srq_wr, attr->attr.max_sge, ctx->attr.max_srq_sge);
		errno = EINVAL;
		return NULL;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->max_wr = granted(ctx, attr->attr.max_wr);
	s->max_sge = attr->attr.max_sge;
	err = new_ring(ctx, &s->rq, attr->attr.max_wr, s->max_sge, &s->free);
	if (err) {
		free(s);
		errno = err;
		return NULL;
	}
	s->nfree = list_free(&s->rq, s->free);
	in.max_wr = s->max_wr;
	in.max_sge = s->max_sge;
	in.limit = attr->attr.srq_limit;
	weft_lock(&ctx->numbers);
	err = weft_command(ctx, WEFT_CMD_CREATE_SRQ, &in, sizeof(in), &made, sizeof(made));
	if (err) {
		weft_unlock(&ctx->numbers);
		goto fail;
	}
	s->srqn = made.srqn;
	if (made.srqn >= ctx->max_qps)
		err = EPROTO;
	else
		err = weft_ring_set(ctx, &s->rq, made.ring_index, -1, 0);
	if (err) {
		rm.srqn = made.srqn;
		weft_command(ctx, WEFT_CMD_DESTROY_SRQ, &rm, sizeof(rm), NULL, 0);
	}
	weft_unlock(&ctx->numbers);
	if (err)
		goto fail;
	s->srq.context = pd->context;
	s->srq.srq_context = attr->srq_context;
	s->srq.pd = pd;
	s->srq.handle = made.srqn;
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	weft_lock(&ctx->obj);
	ctx->srqs[made.srqn] = s;
	weft_unlock(&ctx->obj);
	attr->attr.max_wr = s->max_wr;
	return &s->srq;
fail:
	weft_ring_free(ctx, &s->rq);
	free(s->free);
	free(s);
	weft_explain(pd->context, "ibv_create_srq", err, NULL, NULL);
	errno = err;
	return NULL;
}

struct ibv_srq *weft_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a)
{
	/* A basic queue does not come this way (verbs.h), unless with more. */
	if (a->comp_mask & ~(uint32_t)(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) ||
	    (a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && a->srq_type != IBV_SRQT_BASIC)) {
		weft_explain(c, "ibv_create_srq_ex", EOPNOTSUPP, "use a basic shared receive queue",
			     "Weft has neither XRC nor tag matching");
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !a->pd) {
		errno = EINVAL;
		return NULL;
	}
	/* The plain attributes come first in the extended ones. */
	return ibv_create_srq(a->pd, (struct ibv_srq_init_attr *)a);
}

int weft_get_srq_num(struct ibv_srq *srq, uint32_t *num)
{
	*num = to_weft_srq(srq)->srqn;
	return 0;
}

static int modify(struct weft_ctx *ctx, struct weft_srq *s, uint32_t mask, uint32_t max_wr,
		  uint32_t limit)
{
	struct weft_cmd_modify_srq in = { s->srqn, mask, max_wr, limit };

	return weft_command(ctx, WEFT_CMD_MODIFY_SRQ, &in, sizeof(in), NULL, 0);
}

/*
 * Makes in now what waits in the queue's ring, at the same positions, and what
 * the node has taken and not used as far as known: it uses that at once. Where
 * not all of that finds room, the node has taken what is left out, or refuses.
 * The lock is held.
 */
static void carry_over(struct weft_srq *s, struct weft_ring *now)
{
	const struct weft_ring *r = &s->rq;
	uint32_t n = r->head - r->tail;

	if (n > now->num)
		n = now->num;
	now->head = r->head;
	now->tail = r->head - n;
	for (uint32_t p = now->tail; p != now->head; p++)
		memcpy(weft_slot(now, p), weft_slot(r, r->avail->ring[p & r->mask]), r->slot_size);
	now->used->idx = (uint16_t)now->tail;
	weft_ring_publish(now);
}

/*
 * Changes the capacity, and the limit if it is in the mask. The node decides
 * whether what waits fits, then goes on in the new ring in one step: a message
 * that arrives meanwhile finds a request as ever.
 */
static int resize(struct weft_ctx *ctx, struct weft_srq *s, const struct ibv_srq_attr *a,
		  uint32_t mask)
{
	struct weft_cmd_query_srq query = { s->srqn };
	struct weft_res_query_srq was;
	struct weft_ring now, old;
	uint16_t *list;
	int err;

	if (!(ctx->ext & 1ull << WEFT_CAP_SRQ_RESIZE))
		return EOPNOTSUPP;
	if (!a->max_wr || a->max_wr > ctx->attr.max_srq_wr)
		return EINVAL;
	err = new_ring(ctx, &now, a->max_wr, s->max_sge, &list);
	if (err)
		return err;
	weft_lock(&s->lock);
	/* What the program asked for decides, not what it is granted. */
	err = weft_command(ctx, WEFT_CMD_QUERY_SRQ, &query, sizeof(query), &was, sizeof(was));
	if (!err && (was.outstanding > a->max_wr ||
		     (mask & WEFT_SRQ_LIMIT ? a->srq_limit : was.limit) > a->max_wr))
		err = EINVAL;
	if (!err)
		err = modify(ctx, s, mask, granted(ctx, a->max_wr), a->srq_limit);
	if (err) {
		old = now;
		goto out;
	}
	carry_over(s, &now);
	err = weft_ring_move(ctx, &now, s->rq.index);
	if (err) {
		modify(ctx, s, mask, was.max_wr, was.limit);
		old = now;
		goto out;
	}
	old = s->rq;
	s->rq = now;
	s->max_wr = granted(ctx, a->max_wr);
	free(s->free);
	s->free = list;
	s->nfree = list_free(&s->rq, list);
	list = NULL;
out:
	weft_unlock(&s->lock);
	weft_ring_free(ctx, &old);
	free(list);
	return err;
}

WEFT_PUBLIC int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask)
{
	struct weft_srq *s = to_weft_srq(srq);
	struct weft_ctx *ctx;

	WEFT_FORWARD(srq->context, errno, ibv_modify_srq, srq, a, mask);
	ctx = weft_ctx(srq->context);
	if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return weft_ret(EINVAL);
	if (!mask)
		return 0;
	if (mask & IBV_SRQ_MAX_WR)
		return weft_ret(resize(ctx, s, a, WEFT_SRQ_MAX_WR |
				       (mask & IBV_SRQ_LIMIT ? WEFT_SRQ_LIMIT : 0)));
	return weft_ret(modify(ctx, s, WEFT_SRQ_LIMIT, 0, a->srq_limit));
}

WEFT_PUBLIC int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *a)
{
	struct weft_cmd_query_srq in = { .srqn = srq->handle };
	struct weft_res_query_srq r;
	int err;

	WEFT_FORWARD(srq->context, errno, ibv_query_srq, srq, a);
	err = weft_command(weft_ctx(srq->context), WEFT_CMD_QUERY_SRQ, &in, sizeof(in), &r,
			   sizeof(r));
	if (err)
		return weft_ret(err);
	a->max_wr = r.max_wr;
	a->max_sge = r.max_sge;
	a->srq_limit = r.limit;
	return 0;
}

WEFT_PUBLIC int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct weft_cmd_destroy_srq rm = { .srqn = srq->handle };
	struct weft_srq *s = to_weft_srq(srq);
	struct weft_ctx *ctx;
	int err;

	WEFT_FORWARD(srq->context, errno, ibv_destroy_srq, srq);
	ctx = weft_ctx(srq->context);
	if (!weft_dead(ctx)) {
		weft_lock(&ctx->numbers);
		err = weft_command(ctx, WEFT_CMD_DESTROY_SRQ, &rm, sizeof(rm), NULL, 0);
		if (!err)
			weft_ring_stop(ctx, s->rq.index);
		weft_unlock(&ctx->numbers);
		if (err && !weft_dead(ctx))
			return weft_ret(err);
	}
	weft_lock(&ctx->obj);
	if (ctx->srqs[s->srqn] == s)
		ctx->srqs[s->srqn] = NULL;
	weft_unlock(&ctx->obj);
	weft_async_purge(ctx, srq);
	weft_await_acks(ctx, &srq->mutex, &srq->cond, &srq->events_completed, &s->async_delivered);
	weft_ring_free(ctx, &s->rq);
	free(s->free);
	free(s);
	return 0;
}

/* Takes back the slots of elements the node is done with. The lock is held. */
static void reap(struct weft_srq *s)
{
	struct weft_ring *r = &s->rq;
	uint32_t from = r->tail;

	weft_ring_reap(r);
	for (; from != r->tail; from++)
		s->free[s->nfree++] = (uint16_t)(r->used->ring[from & r->mask].id & r->mask);
}

int weft_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct weft_srq *s = to_weft_srq(srq);
	struct weft_ctx *ctx = weft_ctx(srq->context);
	struct weft_ring *r = &s->rq;
	int err = 0;

	if (unlikely(weft_dead(ctx))) {
		*bad = wr;
		return EIO;
	}
	weft_lock(&s->lock);
	for (; wr; wr = wr->next) {
		struct weft_rq_hdr *e;
		uint16_t slot;

		if (!s->nfree)
			reap(s);
		if (unlikely((uint32_t)wr->num_sge > s->max_sge))
			err = EINVAL;
		else if (unlikely(!s->nfree))
			err = ENOMEM;
		if (unlikely(err)) {
			*bad = wr;
			break;
		}
		slot = s->free[--s->nfree];
		e = (struct weft_rq_hdr *)(void *)weft_slot(r, slot);
		e->wr_id = wr->wr_id;
		e->num_sge = (uint32_t)wr->num_sge;
		memcpy(e->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*wr->sg_list));
		r->avail->ring[r->head & r->mask] = slot;
		r->head++;
	}
	if (likely((uint16_t)r->head != r->avail->idx)) {
		weft_ring_publish(r);
		weft_ring_bell(ctx, r->index);
	}
	weft_unlock(&s->lock);
	return err;
}
