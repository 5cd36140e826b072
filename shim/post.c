// SPDX-License-Identifier: Apache-2.0
/* Work requests into rings: the classic calls and the ibv_wr_* ones. */
#include "weft.h"

/* Room for one more send element? The lock is held. */
static inline bool has_room(struct weft_ring *r, uint32_t head)
{
	if (likely(head - r->tail < r->num))
		return true;
	weft_ring_reap(r);
	return head - r->tail < r->num;
}

/* Where the bytes of an entry are in this process, or NULL where the entry
 * breaks a rule and the node shall say which. */
static inline const void *resolve(struct weft_ctx *ctx, struct weft_qp *q, const struct ibv_sge *s)
{
	struct weft_mr_hint *h = &q->hint[s->lkey >> 8 & (WEFT_HINTS - 1)];

	if (unlikely(h->lkey != s->lkey ||
		     h->gen != atomic_load_explicit(&ctx->mr_gen, memory_order_acquire)) &&
	    !weft_mr_lookup(ctx, s->lkey, h))
		return NULL;
	if (unlikely(h->pdn != q->qp.pd->handle || s->addr < h->start || s->length > h->len ||
		     s->addr - h->start > h->len - s->length))
		return NULL;
	return (const void *)(uintptr_t)(s->addr + h->delta);
}

/* Copies the payload behind the element header. total fits. */
static void copy_inline(struct weft_sq_hdr *e, const struct ibv_sge *sg, uint32_t n)
{
	uint8_t *to = (uint8_t *)e->sge;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(to, (const void *)(uintptr_t)sg[i].addr, sg[i].length);
		to += sg[i].length;
	}
}

/* The page that was last found readable in the same call, so that a list of requests
 * costs one system call for each page. */
typedef uintptr_t weft_page;
#define WEFT_PAGE ((uintptr_t)4096) /* the smallest that a page can be */
#define NO_PAGE   ((weft_page)1)

/*
 * Whether the n bytes at p can be read: memory may be unmapped or protected after its
 * registration, which ends a program that reads it. The kernel can tell without a signal:
 * rt_sigprocmask reads a word of the caller before it refuses an unknown operation, EFAULT
 * or EINVAL, and changes nothing. An aligned word lies in one page.
 */
static bool readable(const void *p, uint32_t n, weft_page *known)
{
	uintptr_t at = (uintptr_t)p & ~(uintptr_t)7, last = (uintptr_t)p + n - 1;
	int saved = errno;
	bool ok = true;

	for (; ok && at <= last; at = (at | (WEFT_PAGE - 1)) + 1) {
		if (at / WEFT_PAGE * WEFT_PAGE == *known)
			continue;
		errno = 0;
		syscall(SYS_rt_sigprocmask, -1, at, NULL, 8);
		ok = errno == EINVAL;
		if (ok)
			*known = at / WEFT_PAGE * WEFT_PAGE;
	}
	errno = saved;
	return ok;
}

/*
 * Payloads that fit are copied when posted: that is far cheaper than the node
 * reaching into this process. Not behind a fence, where the payload may be what
 * a READ still brings, not with a key the node would refuse, and not from memory that
 * cannot be read: the node completes that request as it does a large one.
 */
static bool copy_checked(struct weft_ctx *ctx, struct weft_qp *q, struct weft_sq_hdr *e,
			 const struct ibv_sge *sg, uint32_t n, weft_page *known)
{
	uint8_t *to = (uint8_t *)e->sge;
	uint32_t total = 0;

	for (uint32_t i = 0; i < n; i++) {
		const void *from;

		if (sg[i].length > q->max_inline - total)
			return false;
		if (!sg[i].length)
			continue;
		from = resolve(ctx, q, &sg[i]);
		if (!from || !readable(from, sg[i].length, known))
			return false;
		memcpy(to + total, from, sg[i].length);
		total += sg[i].length;
	}
	e->num_sge = total;
	e->send_flags |= WEFT_SEND_INLINE;
	return true;
}

/* Whether the payload of an operation may stand in the element. */
static inline bool carries(uint8_t opcode)
{
	return opcode <= WEFT_OP_SEND_IMM || opcode == WEFT_OP_SEND_INV ||
	       opcode == WEFT_OP_ATOMIC_WRITE;
}

/* The gather list of an element with a complete header. */
static inline void put_list(struct weft_ctx *ctx, struct weft_qp *q, struct weft_sq_hdr *e,
			    const struct ibv_sge *sg, uint32_t n, weft_page *known)
{
	_Static_assert(sizeof(struct ibv_sge) == sizeof(struct weft_sge) &&
		       offsetof(struct ibv_sge, length) == offsetof(struct weft_sge, length) &&
		       offsetof(struct ibv_sge, lkey) == offsetof(struct weft_sge, lkey),
		       "the same layout");
	if (n && carries(e->opcode) && !(e->send_flags & WEFT_SEND_FENCE) &&
	    copy_checked(ctx, q, e, sg, n, known))
		return;
	e->num_sge = n;
	memcpy(e->sge, sg, n * sizeof(*sg));
}

/* What an operation on keys has instead of data. Returns 0 or an errno. */
static int put_bind(struct weft_sq_hdr *e, uint32_t rkey, const struct ibv_mw_bind_info *b)
{
	/* No region is right for a window of type 1 that is taken off. */
	if (!b->mr && b->length)
		return EINVAL;
	e->bind.addr = b->addr;
	e->bind.length = b->length;
	e->bind.mr_lkey = b->mr ? b->mr->lkey : 0;
	e->bind.mw_rkey = rkey;
	e->bind.access = b->mw_access_flags & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE;
	e->bind.reserved = 0;
	return 0;
}

/* Fills one slot. Returns 0 or the errno of a request that cannot be. */
static inline int put_send(struct weft_ctx *ctx, struct weft_qp *q, struct weft_sq_hdr *e,
			   const struct ibv_send_wr *wr, weft_page *known)
{
	uint32_t n = (uint32_t)wr->num_sge;

	if (unlikely((uint32_t)wr->opcode > 31 || !(q->ops >> wr->opcode & 1) ||
		     n > q->max_send_sge || wr->send_flags & ~0xfu))
		return EINVAL;
	e->wr_id = wr->wr_id;
	e->opcode = (uint8_t)wr->opcode;
	e->send_flags = (uint8_t)(wr->send_flags & ~(unsigned)IBV_SEND_INLINE);
	memcpy(e->imm_data, &wr->imm_data, sizeof(e->imm_data));
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		e->rdma.remote_addr = wr->wr.rdma.remote_addr;
		e->rdma.rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		e->opcode = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? WEFT_OP_ATOMIC_CMP_SWP :
								      WEFT_OP_ATOMIC_FETCH_ADD;
		e->atomic.remote_addr = wr->wr.atomic.remote_addr;
		e->atomic.compare_add = wr->wr.atomic.compare_add;
		e->atomic.swap = wr->wr.atomic.swap;
		e->atomic.rkey = wr->wr.atomic.rkey;
		break;
	case IBV_WR_ATOMIC_WRITE:
		e->opcode = WEFT_OP_ATOMIC_WRITE;
		e->rdma.remote_addr = wr->wr.rdma.remote_addr;
		e->rdma.rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_SEND_WITH_INV:
		e->opcode = WEFT_OP_SEND_INV;
		break; /* the key stands where the immediate does, here as there */
	case IBV_WR_LOCAL_INV:
		e->opcode = WEFT_OP_LOCAL_INV;
		e->num_sge = 0;
		return 0;
	case IBV_WR_BIND_MW:
		e->opcode = WEFT_OP_BIND_MW;
		e->num_sge = 0;
		return put_bind(e, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
	default:
		if (q->qp.qp_type == IBV_QPT_UD) {
			if (unlikely(!wr->wr.ud.ah))
				return EINVAL;
			e->ud.remote_qpn = wr->wr.ud.remote_qpn;
			e->ud.remote_qkey = wr->wr.ud.remote_qkey;
			e->ud.ah = wr->wr.ud.ah->handle;
		}
	}
	if (wr->send_flags & IBV_SEND_INLINE) {
		uint64_t total = 0;

		if (unlikely(!carries(e->opcode)))
			return EINVAL;
		for (uint32_t i = 0; i < n; i++)
			total += wr->sg_list[i].length;
		if (unlikely(total > q->max_inline))
			return EINVAL;
		copy_inline(e, wr->sg_list, n);
		e->num_sge = (uint32_t)total;
		e->send_flags |= WEFT_SEND_INLINE;
		return 0;
	}
	put_list(ctx, q, e, wr->sg_list, n, known);
	return 0;
}

static inline bool may_send(const struct ibv_qp *qp)
{
	return (int)__atomic_load_n(&qp->state, __ATOMIC_RELAXED) >= IBV_QPS_RTS;
}

int weft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct weft_qp *q = to_weft_qp(qp);
	struct weft_ctx *ctx = weft_ctx(qp->context);
	struct weft_ring *r = &q->sq;
	weft_page known = NO_PAGE;
	int err = 0;

	if (unlikely(weft_dead(ctx) || !may_send(qp))) {
		*bad = wr;
		return weft_dead(ctx) ? EIO : EINVAL;
	}
	weft_lock(&q->sq_lock);
	for (; wr; wr = wr->next) {
		if (unlikely(!has_room(r, r->head)))
			err = ENOMEM;
		else
			err = put_send(ctx, q, (struct weft_sq_hdr *)(void *)weft_slot(r, r->head), wr, &known);
		if (unlikely(err)) {
			*bad = wr;
			break;
		}
		r->head++;
	}
	if (likely((uint16_t)r->head != r->avail->idx)) {
		weft_ring_publish(r);
		weft_ring_bell(ctx, r->index);
	}
	weft_unlock(&q->sq_lock);
	return err;
}

int weft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct weft_qp *q = to_weft_qp(qp);
	struct weft_ctx *ctx = weft_ctx(qp->context);
	struct weft_ring *r = &q->rq;
	int err = 0;

	if (unlikely(weft_dead(ctx) || qp->srq ||
		     __atomic_load_n(&qp->state, __ATOMIC_RELAXED) == IBV_QPS_RESET)) {
		*bad = wr;
		return weft_dead(ctx) ? EIO : EINVAL;
	}
	weft_lock(&q->rq_lock);
	for (; wr; wr = wr->next) {
		struct weft_rq_hdr *e;

		if (unlikely((uint32_t)wr->num_sge > q->max_recv_sge))
			err = EINVAL;
		else if (unlikely(!has_room(r, r->head)))
			err = ENOMEM;
		if (unlikely(err)) {
			*bad = wr;
			break;
		}
		e = (struct weft_rq_hdr *)(void *)weft_slot(r, r->head);
		e->wr_id = wr->wr_id;
		e->num_sge = (uint32_t)wr->num_sge;
		memcpy(e->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*wr->sg_list));
		r->head++;
	}
	if (likely((uint16_t)r->head != r->avail->idx)) {
		weft_ring_publish(r);
		weft_ring_bell(ctx, r->index);
	}
	weft_unlock(&q->rq_lock);
	return err;
}

/* ---- ibv_wr_* ---- */

/* From wr_start to wr_complete or wr_abort the lock is held. Elements grow
 * from r->head, which moves only when all were good. */

static struct weft_qp *of_ex(struct ibv_qp_ex *x)
{
	return weft_container(x, struct weft_qp, ex);
}

/* The element being built: the last one begun, or scratch space after an error. */
static struct weft_sq_hdr *current(struct weft_qp *q)
{
	return (struct weft_sq_hdr *)(void *)weft_slot(&q->sq, q->ex_head - 1);
}

static void wr_start(struct ibv_qp_ex *x)
{
	struct weft_qp *q = of_ex(x);

	weft_lock(&q->sq_lock);
	q->ex_head = q->sq.head;
	q->ex_err = weft_dead(weft_ctx(q->qp.context)) ? EIO : may_send(&q->qp) ? 0 : EINVAL;
}

static int wr_complete(struct ibv_qp_ex *x)
{
	struct weft_qp *q = of_ex(x);
	int err = q->ex_err;

	if (!err && q->ex_head != q->sq.head) {
		q->sq.head = q->ex_head;
		weft_ring_publish(&q->sq);
		weft_ring_bell(weft_ctx(q->qp.context), q->sq.index);
	}
	weft_unlock(&q->sq_lock);
	return err;
}

static void wr_abort(struct ibv_qp_ex *x)
{
	weft_unlock(&of_ex(x)->sq_lock);
}

static struct weft_sq_hdr *begin(struct ibv_qp_ex *x, uint8_t opcode)
{
	struct weft_qp *q = of_ex(x);
	struct weft_sq_hdr *e;

	if (q->ex_err)
		return NULL;
	if (!has_room(&q->sq, q->ex_head) || x->wr_flags & ~0xfu) {
		q->ex_err = x->wr_flags & ~0xfu ? EINVAL : ENOMEM;
		return NULL;
	}
	q->ex_head++;
	e = current(q);
	e->wr_id = x->wr_id;
	e->opcode = opcode;
	e->send_flags = (uint8_t)(x->wr_flags & ~(unsigned)IBV_SEND_INLINE);
	e->num_sge = 0;
	return e;
}

static void wr_send(struct ibv_qp_ex *x)
{
	begin(x, WEFT_OP_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *x, __be32 imm)
{
	struct weft_sq_hdr *e = begin(x, WEFT_OP_SEND_IMM);

	if (e)
		memcpy(e->imm_data, &imm, sizeof(imm));
}

static struct weft_sq_hdr *begin_rdma(struct ibv_qp_ex *x, uint8_t opcode, uint32_t rkey,
				      uint64_t addr)
{
	struct weft_sq_hdr *e = begin(x, opcode);

	if (e) {
		e->rdma.remote_addr = addr;
		e->rdma.rkey = rkey;
	}
	return e;
}

static void wr_rdma_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr)
{
	begin_rdma(x, WEFT_OP_RDMA_WRITE, rkey, addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct weft_sq_hdr *e = begin_rdma(x, WEFT_OP_RDMA_WRITE_IMM, rkey, addr);

	if (e)
		memcpy(e->imm_data, &imm, sizeof(imm));
}

static void wr_rdma_read(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr)
{
	begin_rdma(x, WEFT_OP_RDMA_READ, rkey, addr);
}

static void begin_atomic(struct ibv_qp_ex *x, uint8_t opcode, uint32_t rkey, uint64_t addr,
			 uint64_t compare_add, uint64_t swap)
{
	struct weft_sq_hdr *e = begin(x, opcode);

	if (e) {
		e->atomic.remote_addr = addr;
		e->atomic.compare_add = compare_add;
		e->atomic.swap = swap;
		e->atomic.rkey = rkey;
	}
}

static void wr_cmp_swp(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, uint64_t compare,
		       uint64_t swap)
{
	begin_atomic(x, WEFT_OP_ATOMIC_CMP_SWP, rkey, addr, compare, swap);
}

static void wr_fetch_add(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, uint64_t add)
{
	begin_atomic(x, WEFT_OP_ATOMIC_FETCH_ADD, rkey, addr, add, 0);
}

static void wr_atomic_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, const void *word)
{
	struct weft_sq_hdr *e = begin_rdma(x, WEFT_OP_ATOMIC_WRITE, rkey, addr);

	if (!e)
		return;
	memcpy(e->sge, word, 8);
	e->num_sge = 8;
	e->send_flags |= WEFT_SEND_INLINE;
}

static void wr_send_inv(struct ibv_qp_ex *x, uint32_t rkey)
{
	struct weft_sq_hdr *e = begin(x, WEFT_OP_SEND_INV);

	if (e)
		memcpy(e->imm_data, &rkey, sizeof(rkey));
}

static void wr_local_inv(struct ibv_qp_ex *x, uint32_t rkey)
{
	struct weft_sq_hdr *e = begin(x, WEFT_OP_LOCAL_INV);

	if (e)
		memcpy(e->imm_data, &rkey, sizeof(rkey));
}

static void wr_bind_mw(struct ibv_qp_ex *x, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *b)
{
	struct weft_sq_hdr *e = begin(x, WEFT_OP_BIND_MW);
	int err;

	(void)mw; /* the key names it */
	if (e && (err = put_bind(e, rkey, b)))
		of_ex(x)->ex_err = err;
}

/* Whether the setters may touch the current element. */
static bool building(struct weft_qp *q)
{
	if (!q->ex_err && q->ex_head == q->sq.head)
		q->ex_err = EINVAL;
	return !q->ex_err;
}

static void wr_set_ud_addr(struct ibv_qp_ex *x, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct weft_qp *q = of_ex(x);

	if (!building(q))
		return;
	current(q)->ud.remote_qpn = qpn;
	current(q)->ud.remote_qkey = qkey;
	current(q)->ud.ah = ah->handle;
}

static void wr_set_sge_list(struct ibv_qp_ex *x, size_t n, const struct ibv_sge *sg)
{
	struct weft_qp *q = of_ex(x);
	weft_page known = NO_PAGE;

	if (!building(q))
		return;
	if (n > q->max_send_sge)
		q->ex_err = EINVAL;
	else
		put_list(weft_ctx(q->qp.context), q, current(q), sg, (uint32_t)n, &known);
}

static void wr_set_sge(struct ibv_qp_ex *x, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sg = { addr, length, lkey };

	wr_set_sge_list(x, 1, &sg);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *x, size_t n, const struct ibv_data_buf *b)
{
	struct weft_qp *q = of_ex(x);
	struct weft_sq_hdr *e;
	uint32_t total = 0;

	if (!building(q))
		return;
	e = current(q);
	if (!carries(e->opcode)) {
		q->ex_err = EINVAL;
		return;
	}
	for (size_t i = 0; i < n; i++) {
		if (b[i].length > q->max_inline - total) {
			q->ex_err = EINVAL;
			return;
		}
		memcpy((uint8_t *)e->sge + total, b[i].addr, b[i].length);
		total += (uint32_t)b[i].length;
	}
	e->num_sge = total;
	e->send_flags |= WEFT_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *x, void *addr, size_t length)
{
	struct ibv_data_buf b = { addr, length };

	wr_set_inline_data_list(x, 1, &b);
}

void weft_qp_ex_ops(struct weft_qp *q, uint64_t ops)
{
	struct ibv_qp_ex *x = &q->ex;

	q->has_ex = true;
	x->wr_start = wr_start;
	x->wr_complete = wr_complete;
	x->wr_abort = wr_abort;
	x->wr_set_sge = wr_set_sge;
	x->wr_set_sge_list = wr_set_sge_list;
	x->wr_set_inline_data = wr_set_inline_data;
	x->wr_set_inline_data_list = wr_set_inline_data_list;
	if (q->qp.qp_type == IBV_QPT_UD)
		x->wr_set_ud_addr = wr_set_ud_addr;
	if (ops & IBV_QP_EX_WITH_SEND)
		x->wr_send = wr_send;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_IMM)
		x->wr_send_imm = wr_send_imm;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE)
		x->wr_rdma_write = wr_rdma_write;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		x->wr_rdma_write_imm = wr_rdma_write_imm;
	if (ops & IBV_QP_EX_WITH_RDMA_READ)
		x->wr_rdma_read = wr_rdma_read;
	if (ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		x->wr_atomic_cmp_swp = wr_cmp_swp;
	if (ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		x->wr_atomic_fetch_add = wr_fetch_add;
	if (ops & IBV_QP_EX_WITH_ATOMIC_WRITE)
		x->wr_atomic_write = wr_atomic_write;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_INV)
		x->wr_send_inv = wr_send_inv;
	if (ops & IBV_QP_EX_WITH_LOCAL_INV)
		x->wr_local_inv = wr_local_inv;
	if (ops & IBV_QP_EX_WITH_BIND_MW)
		x->wr_bind_mw = wr_bind_mw;
}
