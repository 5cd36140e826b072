// SPDX-License-Identifier: Apache-2.0
/* Completion queues: created, resized, destroyed, armed, polled both ways. */
#include "weft.h"

#include <sched.h>
#include <time.h>

#define CQ_SLOT 64u
#define NO_QP   UINT32_MAX   /* queue pair numbers have 24 bits */

/* Polls in a row that may find nothing before the processor is offered to
 * other threads, which may produce something. */
#define EMPTY_SPINS 16u

static const uint8_t statuses[16] = {
	[WEFT_WC_SUCCESS] = IBV_WC_SUCCESS,
	[WEFT_WC_LOC_LEN_ERR] = IBV_WC_LOC_LEN_ERR,
	[WEFT_WC_LOC_QP_OP_ERR] = IBV_WC_LOC_QP_OP_ERR,
	[WEFT_WC_LOC_PROT_ERR] = IBV_WC_LOC_PROT_ERR,
	[WEFT_WC_WR_FLUSH_ERR] = IBV_WC_WR_FLUSH_ERR,
	[WEFT_WC_BAD_RESP_ERR] = IBV_WC_BAD_RESP_ERR,
	[WEFT_WC_LOC_ACCESS_ERR] = IBV_WC_LOC_ACCESS_ERR,
	[WEFT_WC_REM_INV_REQ_ERR] = IBV_WC_REM_INV_REQ_ERR,
	[WEFT_WC_REM_ACCESS_ERR] = IBV_WC_REM_ACCESS_ERR,
	[WEFT_WC_REM_OP_ERR] = IBV_WC_REM_OP_ERR,
	[WEFT_WC_RETRY_EXC_ERR] = IBV_WC_RETRY_EXC_ERR,
	[WEFT_WC_RNR_RETRY_EXC_ERR] = IBV_WC_RNR_RETRY_EXC_ERR,
	[WEFT_WC_REM_ABORT_ERR] = IBV_WC_REM_ABORT_ERR,
	[WEFT_WC_FATAL_ERR] = IBV_WC_FATAL_ERR,
	[WEFT_WC_RESP_TIMEOUT_ERR] = IBV_WC_RESP_TIMEOUT_ERR,
	[WEFT_WC_GENERAL_ERR] = IBV_WC_GENERAL_ERR,
};

static inline enum ibv_wc_status status_of(const struct weft_cqe *e)
{
	if (unlikely(e->status >= 16))
		return e->status == WEFT_WC_MW_BIND_ERR ? IBV_WC_MW_BIND_ERR : IBV_WC_GENERAL_ERR;
	return statuses[e->status];
}

static inline enum ibv_wc_opcode opcode_of(const struct weft_cqe *e)
{
	switch (e->opcode) {
	case WEFT_WC_OP_RDMA_WRITE:
		return IBV_WC_RDMA_WRITE;
	case WEFT_WC_OP_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case WEFT_WC_OP_RECV:
		return IBV_WC_RECV;
	case WEFT_WC_OP_RECV_RDMA_WITH_IMM:
		return IBV_WC_RECV_RDMA_WITH_IMM;
	case WEFT_WC_OP_CMP_SWP:
		return IBV_WC_COMP_SWAP;
	case WEFT_WC_OP_FETCH_ADD:
		return IBV_WC_FETCH_ADD;
	case WEFT_WC_OP_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	case WEFT_WC_OP_BIND_MW:
		return IBV_WC_BIND_MW;
	case WEFT_WC_OP_ATOMIC_WRITE:
		return IBV_WC_ATOMIC_WRITE;
	default:
		return IBV_WC_SEND;
	}
}

static inline unsigned int flags_of(const struct weft_cqe *e)
{
	return (e->wc_flags & WEFT_WC_FLAG_GRH ? IBV_WC_GRH : 0) |
	       (e->wc_flags & WEFT_WC_FLAG_WITH_IMM ? IBV_WC_WITH_IMM : 0) |
	       (e->wc_flags & WEFT_WC_FLAG_WITH_INV ? IBV_WC_WITH_INV : 0);
}

static inline void translate(struct ibv_wc *wc, const struct weft_cqe *e)
{
	wc->wr_id = e->wr_id;
	wc->status = status_of(e);
	wc->opcode = opcode_of(e);
	wc->vendor_err = e->vendor_err;
	wc->byte_len = e->byte_len;
	memcpy(&wc->imm_data, &e->imm_data, sizeof(wc->imm_data));
	wc->qp_num = e->qp_num;
	wc->src_qp = e->src_qp;
	wc->wc_flags = flags_of(e);
	wc->pkey_index = e->pkey_index;
	wc->slid = e->slid;
	wc->sl = e->sl;
	wc->dlid_path_bits = e->dlid_path_bits;
}

/* How many completions wait, those kept over a resize included. */
static inline uint32_t waiting(const struct weft_cq *cq)
{
	return __atomic_load_n(&cq->carry_n, __ATOMIC_RELAXED) -
	       __atomic_load_n(&cq->carry_at, __ATOMIC_RELAXED) +
	       (uint16_t)(weft_used_idx(&cq->ring) -
			  (uint16_t)__atomic_load_n(&cq->ring.tail, __ATOMIC_RELAXED));
}

/* The completion at position i of those waiting. */
static inline const struct weft_cqe *at(const struct weft_cq *cq, uint32_t i)
{
	uint32_t kept = cq->carry_n - cq->carry_at;

	if (unlikely(i < kept))
		return &cq->carry[cq->carry_at + i];
	return (const struct weft_cqe *)(void *)weft_slot(&cq->ring, cq->ring.tail + i - kept);
}

/*
 * Gives n slots back. The node, when it ran out of slots, keeps completions
 * and looks again when its bell rings: it ran out if it has used everything
 * that was available before this call.
 */
static inline void release(struct weft_ctx *ctx, struct weft_ring *r, uint32_t n)
{
	uint16_t before = (uint16_t)r->head;

	__atomic_store_n(&r->tail, r->tail + n, __ATOMIC_RELAXED);
	r->head += n;
	weft_ring_publish(r);
	atomic_thread_fence(memory_order_seq_cst);
	if (unlikely(__atomic_load_n(&r->used->idx, __ATOMIC_RELAXED) == before))
		weft_ring_bell(ctx, r->index);
}

/* Raises the event, unless the node has. The lock is held. */
static void fire(struct weft_cq *cq)
{
	if (__atomic_exchange_n(cq->arm, WEFT_ARM_NONE, __ATOMIC_SEQ_CST))
		weft_raise(cq);
	cq->told = cq->taken + waiting(cq);
	cq->armed = cq->owed = false;
}

/* Takes the first n of what waits. The lock is held. */
static inline void consume(struct weft_ctx *ctx, struct weft_cq *cq, uint32_t n)
{
	uint32_t kept = cq->carry_n - cq->carry_at;

	cq->taken += n;
	if (unlikely(kept)) {
		uint32_t k = n < kept ? n : kept;

		__atomic_store_n(&cq->carry_at, cq->carry_at + k, __ATOMIC_RELAXED);
		n -= k;
	}
	if (n)
		release(ctx, &cq->ring, n);
	if (unlikely(cq->owed)) {
		cq->owed = false;
		if (waiting(cq))
			fire(cq);
	}
}

/* Called without locks after a poll that found nothing. */
static int found_nothing(struct weft_ctx *ctx, struct weft_cq *cq)
{
	uint32_t n = __atomic_load_n(&cq->empty, __ATOMIC_RELAXED) + 1;

	__atomic_store_n(&cq->empty, n, __ATOMIC_RELAXED);
	if (n > EMPTY_SPINS)
		sched_yield();
	return weft_dead(ctx) ? -EIO : 0;
}

int weft_poll_cq(struct ibv_cq *c, int max, struct ibv_wc *wc)
{
	struct weft_cq *cq = to_weft_cq(c);
	struct weft_ctx *ctx = weft_ctx(c->context);
	uint32_t n;

	if (unlikely(atomic_load_explicit(&ctx->dead, memory_order_relaxed) == WEFT_FORKED))
		return -EIO;
	/* Only the owner of the lock moves the tail, so a glance without it may
	 * miss a completion but sees nothing that is not there. */
	if (max <= 0 || !waiting(cq))
		return found_nothing(ctx, cq);
	weft_lock(&cq->lock);
	n = waiting(cq);
	if (n > (uint32_t)max)
		n = (uint32_t)max;
	for (uint32_t i = 0; i < n; i++)
		translate(&wc[i], at(cq, i));
	consume(ctx, cq, n);
	weft_unlock(&cq->lock);
	__atomic_store_n(&cq->empty, 0, __ATOMIC_RELAXED);
	return (int)n;
}

/*
 * Arms. A completion that no event has told of fires at once, or a program
 * that arms, then sleeps would sleep on it. One that the latest event has told
 * of does not: perftest's latency tests arm between the event and the poll,
 * poll once per event, and would fall behind by one with every event too many.
 * But if the program then polls and leaves some of them, it fires, or those
 * that poll a few per event would sleep on the rest.
 *
 * What qualifies for a solicited-only arming is not knowable from the
 * completions, so there anything counts.
 */
int weft_req_notify_cq(struct ibv_cq *c, int solicited_only)
{
	struct weft_cq *cq = to_weft_cq(c);
	uint32_t want = solicited_only ? WEFT_ARM_SOLICITED : WEFT_ARM_NEXT, now, n;
	bool mine;

	if (weft_dead(weft_ctx(c->context)))
		return EIO;
	if (!c->channel)
		return 0;
	/* Between start_poll and end_poll this thread holds the lock already. */
	mine = __atomic_load_n(&cq->poller, __ATOMIC_RELAXED) == pthread_self();
	if (!mine)
		weft_lock(&cq->lock);
	now = __atomic_load_n(cq->arm, __ATOMIC_RELAXED);
	if (now == WEFT_ARM_NONE && cq->armed) {
		/* The node fired, for the first completion after the arming or
		 * a later one. */
		cq->told = cq->armed_at + 1;
		cq->armed = false;
	}
	while (now < want &&
	       !__atomic_compare_exchange_n(cq->arm, &now, want, false, __ATOMIC_SEQ_CST,
					    __ATOMIC_RELAXED))
		;
	/* Publish, then look: a completion that came before the node could see
	 * the word would otherwise wake no thread. */
	atomic_thread_fence(memory_order_seq_cst);
	n = waiting(cq);
	if (n && (int32_t)(cq->taken + n - cq->told) > 0) {
		fire(cq);
	} else {
		if (!cq->armed)
			cq->armed_at = cq->taken + n;
		cq->armed = true;
		cq->owed = n;
	}
	if (!mine)
		weft_unlock(&cq->lock);
	return 0;
}

/* ---- the extended poll ---- */

static void load(struct weft_cq *cq)
{
	struct timespec ts;

	cq->cur = at(cq, cq->ex_pos);
	cq->ex.wr_id = cq->cur->wr_id;
	cq->ex.status = status_of(cq->cur);
	if (cq->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
		clock_gettime(CLOCK_MONOTONIC, &ts);
		cq->ts = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	}
	if (cq->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
		clock_gettime(CLOCK_REALTIME, &ts);
		cq->wallclock = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	}
}

static int start_poll(struct ibv_cq_ex *c, struct ibv_poll_cq_attr *attr)
{
	struct weft_cq *cq = weft_container(c, struct weft_cq, ex);
	struct weft_ctx *ctx = weft_ctx(c->context);

	if (attr && attr->comp_mask)
		return EINVAL;
	if (atomic_load_explicit(&ctx->dead, memory_order_relaxed) == WEFT_FORKED)
		return EIO;
	if (!waiting(cq))
		return found_nothing(ctx, cq) ? EIO : ENOENT;
	weft_lock(&cq->lock);
	if (!waiting(cq)) {
		weft_unlock(&cq->lock);
		return ENOENT;
	}
	__atomic_store_n(&cq->empty, 0, __ATOMIC_RELAXED);
	cq->ex_pos = 0;
	__atomic_store_n(&cq->poller, pthread_self(), __ATOMIC_RELAXED);
	load(cq);
	return 0;
}

static int next_poll(struct ibv_cq_ex *c)
{
	struct weft_cq *cq = weft_container(c, struct weft_cq, ex);

	if (cq->ex_pos + 1 >= waiting(cq))
		return ENOENT;
	cq->ex_pos++;
	load(cq);
	return 0;
}

static void end_poll(struct ibv_cq_ex *c)
{
	struct weft_cq *cq = weft_container(c, struct weft_cq, ex);

	consume(weft_ctx(c->context), cq, cq->ex_pos + 1);
	cq->cur = NULL;
	__atomic_store_n(&cq->poller, 0, __ATOMIC_RELAXED);
	weft_unlock(&cq->lock);
}

#define READER(type, name, expr)                                                        \
	static type read_##name(struct ibv_cq_ex *c)                                    \
	{                                                                               \
		const struct weft_cqe *e = weft_container(c, struct weft_cq, ex)->cur;  \
									                \
		return expr;                                                            \
	}
READER(enum ibv_wc_opcode, opcode, opcode_of(e))
READER(uint32_t, vendor_err, e->vendor_err)
READER(uint32_t, byte_len, e->byte_len)
READER(uint32_t, qp_num, e->qp_num)
READER(uint32_t, src_qp, e->src_qp)
READER(unsigned int, wc_flags, flags_of(e))
READER(uint32_t, slid, e->slid)
READER(uint8_t, sl, e->sl)
READER(uint8_t, dlid_path_bits, e->dlid_path_bits)

static __be32 read_imm_data(struct ibv_cq_ex *c)
{
	__be32 imm;

	memcpy(&imm, &weft_container(c, struct weft_cq, ex)->cur->imm_data, sizeof(imm));
	return imm;
}

static uint64_t read_ts(struct ibv_cq_ex *c)
{
	return weft_container(c, struct weft_cq, ex)->ts;
}

static uint64_t read_wallclock(struct ibv_cq_ex *c)
{
	return weft_container(c, struct weft_cq, ex)->wallclock;
}

static void ex_ops(struct weft_cq *cq, uint64_t flags)
{
	cq->wc_flags = flags;
	cq->ex.start_poll = start_poll;
	cq->ex.next_poll = next_poll;
	cq->ex.end_poll = end_poll;
	cq->ex.read_opcode = read_opcode;
	cq->ex.read_vendor_err = read_vendor_err;
	cq->ex.read_wc_flags = read_wc_flags;
	if (flags & IBV_WC_EX_WITH_BYTE_LEN)
		cq->ex.read_byte_len = read_byte_len;
	if (flags & IBV_WC_EX_WITH_IMM)
		cq->ex.read_imm_data = read_imm_data;
	if (flags & IBV_WC_EX_WITH_QP_NUM)
		cq->ex.read_qp_num = read_qp_num;
	if (flags & IBV_WC_EX_WITH_SRC_QP)
		cq->ex.read_src_qp = read_src_qp;
	if (flags & IBV_WC_EX_WITH_SLID)
		cq->ex.read_slid = read_slid;
	if (flags & IBV_WC_EX_WITH_SL)
		cq->ex.read_sl = read_sl;
	if (flags & IBV_WC_EX_WITH_DLID_PATH_BITS)
		cq->ex.read_dlid_path_bits = read_dlid_path_bits;
	if (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		cq->ex.read_completion_ts = read_ts;
	if (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		cq->ex.read_completion_wallclock_ns = read_wallclock;
}

/* ---- life ---- */

/* The ring of a CQ of this depth. Deeper ones than a ring can be rely on the
 * node, which keeps what does not fit. */
static uint32_t ring_num(uint32_t cqe)
{
	uint32_t n = weft_pow2(cqe);

	return n < 4 ? 4 : n > WEFT_MAX_RING_NUM ? WEFT_MAX_RING_NUM : n;
}

static int new_ring(struct weft_ctx *ctx, struct weft_ring *r, uint32_t cqe)
{
	int err = weft_ring_init(ctx, r, ring_num(cqe), CQ_SLOT, true);

	if (err)
		return err;
	r->head = r->num;
	weft_ring_publish(r);
	return 0;
}

static int set_ring(struct weft_ctx *ctx, struct weft_cq *cq, struct weft_ring *r)
{
	struct ibv_comp_channel *c = cq->cq.channel;
	int call = c ? weft_container(c, struct weft_channel, ch)->wr.fd : -1;

	return weft_ring_set(ctx, r, 3 + cq->cq.handle, call,
			     (uint64_t)cq->gen << 32 | cq->cq.handle);
}

static int arm_area(struct weft_ctx *ctx, struct weft_cq *cq)
{
	struct weft_cmd_set_arm_area m = { .cqn = cq->cq.handle };

	cq->arm = weft_shm_alloc(ctx, 64);
	if (!cq->arm)
		return errno;
	m.gpa = (uintptr_t)cq->arm;
	return weft_command(ctx, WEFT_CMD_SET_ARM_AREA, &m, sizeof(m), NULL, 0);
}

static struct weft_cq *create_cq(struct ibv_context *c, uint32_t cqe, void *cq_context,
				 struct ibv_comp_channel *channel, uint32_t vector)
{
	struct weft_ctx *ctx = weft_ctx(c);
	struct weft_cmd_create_cq mk = { .cqe = cqe };
	struct weft_cmd_destroy_cq rm;
	struct weft_res_create_cq made;
	struct weft_cq *cq;
	int err;

	if (!cqe || cqe > ctx->attr.max_cqe || vector >= (uint32_t)c->num_comp_vectors) {
		weft_explain(c, "ibv_create_cq", EINVAL, "stay within the limits; ibv_devinfo -v shows them",
			     "%u entries of 1 to %u, completion vector %u of 0 to %d", cqe,
			     ctx->attr.max_cqe, vector, c->num_comp_vectors - 1);
		errno = EINVAL;
		return NULL;
	}
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return NULL;
	if (cqe < WEFT_MAX_RING_NUM)
		mk.cqe = ring_num(cqe) < ctx->attr.max_cqe ? ring_num(cqe) : ctx->attr.max_cqe;
	if ((err = new_ring(ctx, &cq->ring, cqe)))
		goto free_cq;
	weft_lock(&ctx->numbers);
	if ((err = weft_command(ctx, WEFT_CMD_CREATE_CQ, &mk, sizeof(mk), &made, sizeof(made))))
		goto unlock;
	if (made.cqn >= ctx->max_cqs) {
		err = EPROTO;
		goto unlock;
	}
	cq->cq.context = c;
	cq->cq.channel = channel;
	cq->cq.cq_context = cq_context;
	cq->cq.handle = made.cqn;
	cq->cq.cqe = (int)mk.cqe;
	pthread_mutex_init(&cq->cq.mutex, NULL);
	pthread_cond_init(&cq->cq.cond, NULL);
	do
		cq->gen = __atomic_add_fetch(&ctx->cq_gen, 1, __ATOMIC_RELAXED);
	while (!cq->gen);
	if ((err = set_ring(ctx, cq, &cq->ring)) || (channel && (err = arm_area(ctx, cq))))
		goto destroy;
	weft_unlock(&ctx->numbers);
	weft_lock(&ctx->obj);
	ctx->cqs[made.cqn] = cq;
	if (channel)
		channel->refcnt++;
	weft_unlock(&ctx->obj);
	return cq;
destroy:
	rm.cqn = made.cqn;
	weft_command(ctx, WEFT_CMD_DESTROY_CQ, &rm, sizeof(rm), NULL, 0);
	weft_ring_stop(ctx, 3 + made.cqn);
	weft_shm_free(ctx, cq->arm, 64);
unlock:
	weft_unlock(&ctx->numbers);
	weft_ring_free(ctx, &cq->ring);
free_cq:
	free(cq);
	weft_explain(c, "ibv_create_cq", err, NULL, NULL);
	errno = err;
	return NULL;
}

WEFT_PUBLIC struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *cq_context,
					 struct ibv_comp_channel *channel, int comp_vector)
{
	struct weft_cq *cq;

	WEFT_FORWARD(c, NULL, ibv_create_cq, c, cqe, cq_context, channel, comp_vector);
	if (cqe < 1 || comp_vector < 0) {
		errno = EINVAL;
		return NULL;
	}
	cq = create_cq(c, (uint32_t)cqe, cq_context, channel, (uint32_t)comp_vector);
	return cq ? &cq->cq : NULL;
}

struct ibv_cq_ex *weft_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a)
{
	const uint64_t have = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	const uint32_t masks = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
	struct weft_cq *cq;

	if (a->comp_mask & ~masks || a->wc_flags & ~have ||
	    (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS &&
	     a->flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED)) {
		weft_explain(c, "ibv_create_cq_ex", EOPNOTSUPP, "leave them out",
			     "Weft does not have all of wc_flags 0x%llx, flags 0x%x and comp_mask 0x%x",
			     (unsigned long long)a->wc_flags, a->flags, a->comp_mask);
		errno = EOPNOTSUPP;
		return NULL;
	}
	/* A domain may be stated if it is a parent domain (verbs). */
	if (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD &&
	    (!a->parent_domain || a->parent_domain->context != c ||
	     !weft_is_parent_domain(a->parent_domain))) {
		errno = EINVAL;
		return NULL;
	}
	cq = create_cq(c, a->cqe, a->cq_context, a->channel, a->comp_vector);
	if (!cq)
		return NULL;
	ex_ops(cq, a->wc_flags);
	return &cq->ex;
}

/* Moves the first n completions that wait to room, where they outlive the
 * ring, but for those of queue pair drop. The lock is held. */
static void keep(struct weft_cq *cq, struct weft_cqe *room, uint32_t n, uint32_t drop)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; i++)
		if (at(cq, i)->qp_num != drop)
			room[kept++] = *at(cq, i);
	free(cq->carry);
	cq->carry = room;
	__atomic_store_n(&cq->carry_at, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&cq->carry_n, kept, __ATOMIC_RELAXED);
}

void weft_cq_forget(struct ibv_cq *c, uint32_t qp_num)
{
	struct weft_cq *cq = to_weft_cq(c);
	uint32_t n, from_ring;
	struct weft_cqe *room;
	bool any = false;

	weft_lock(&cq->lock);
	n = waiting(cq);
	for (uint32_t i = 0; i < n && !any; i++)
		any = at(cq, i)->qp_num == qp_num;
	room = any ? malloc(n * sizeof(*room)) : NULL;
	if (room) {
		from_ring = n - (cq->carry_n - cq->carry_at);
		keep(cq, room, n, qp_num);
		release(weft_ctx(c->context), &cq->ring, from_ring);
		/* Fewer wait than events have told of: the next count again. */
		cq->told = cq->taken;
	}
	weft_unlock(&cq->lock);
}

WEFT_PUBLIC int ibv_resize_cq(struct ibv_cq *c, int cqe)
{
	struct weft_cq *cq = to_weft_cq(c);
	struct weft_cmd_resize_cq m;
	struct weft_ring old, now;
	struct weft_cqe *room;
	struct weft_ctx *ctx;
	int err;

	WEFT_FORWARD(c->context, errno, ibv_resize_cq, c, cqe);
	ctx = weft_ctx(c->context);
	if (weft_dead(ctx))
		return weft_ret(EIO);
	if (cqe < 1 || (uint32_t)cqe > ctx->attr.max_cqe)
		return weft_ret(EINVAL);
	if ((err = new_ring(ctx, &now, (uint32_t)cqe)))
		return weft_ret(err);
	m = (struct weft_cmd_resize_cq){ c->handle, (uint32_t)cqe };
	if (cqe < (int)WEFT_MAX_RING_NUM)
		m.cqe = now.num < ctx->attr.max_cqe ? now.num : ctx->attr.max_cqe;
	/* A program that has posted what is done at once finds it completed, unless there is much of it: the
	 * node answers a command before it turns to what was posted, and the next one after that. */
	for (int i = 0; i < 2 && cqe < c->cqe; i++) {
		struct ibv_port_attr port;

		if ((err = weft_query_port(c->context, 1, &port, sizeof(port)))) {
			weft_ring_free(ctx, &now);
			return weft_ret(err);
		}
	}
	weft_lock(&cq->lock);
	/* Taken beforehand: once the ring is stopped nothing may fail here. */
	room = malloc((cq->carry_n + (size_t)cq->ring.num) * sizeof(*room));
	if (!room) {
		err = ENOMEM;
		goto out;
	}
	if (waiting(cq) > (uint32_t)cqe)
		err = EINVAL;
	else
		err = weft_ring_stop(ctx, cq->ring.index);
	if (err) {
		free(room);
		goto out;
	}
	keep(cq, room, waiting(cq), NO_QP);
	old = cq->ring;
	cq->ring = now;
	now = old;
	if ((err = set_ring(ctx, cq, &cq->ring)))
		goto out;
	err = weft_command(ctx, WEFT_CMD_RESIZE_CQ, &m, sizeof(m), NULL, 0);
	if (!err)
		c->cqe = (int)m.cqe;
out:
	weft_unlock(&cq->lock);
	weft_ring_free(ctx, &now);
	return weft_ret(err);
}

WEFT_PUBLIC int ibv_destroy_cq(struct ibv_cq *c)
{
	struct weft_cq *cq = to_weft_cq(c);
	struct weft_cmd_destroy_cq rm = { .cqn = c->handle };
	struct weft_ctx *ctx;
	int err;

	WEFT_FORWARD(c->context, errno, ibv_destroy_cq, c);
	ctx = weft_ctx(c->context);
	if (!weft_dead(ctx)) {
		weft_lock(&ctx->numbers);
		err = weft_command(ctx, WEFT_CMD_DESTROY_CQ, &rm, sizeof(rm), NULL, 0);
		if (!err)
			weft_ring_stop(ctx, 3 + c->handle);
		weft_unlock(&ctx->numbers);
		if (err && !weft_dead(ctx))
			return weft_ret(err);
	}
	weft_lock(&ctx->obj);
	if (ctx->cqs[c->handle] == cq)
		ctx->cqs[c->handle] = NULL;
	weft_unlock(&ctx->obj);
	weft_async_purge(ctx, c);
	if (c->channel && atomic_load(&ctx->dead) != WEFT_FORKED)
		weft_channel_purge(cq);
	weft_await_acks(ctx, &c->mutex, &c->cond, &c->comp_events_completed, &cq->comp_delivered);
	weft_await_acks(ctx, &c->mutex, &c->cond, &c->async_events_completed,
			&cq->async_delivered);
	if (c->channel) {
		weft_lock(&ctx->obj);
		c->channel->refcnt--;
		weft_unlock(&ctx->obj);
	}
	weft_ring_free(ctx, &cq->ring);
	weft_shm_free(ctx, cq->arm, 64);
	free(cq->carry);
	free(cq);
	return 0;
}
