// SPDX-License-Identifier: Apache-2.0
/* Completion queues, shared receive queues and queue pairs: their life, and their rings in memory. */
#include "provider.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- answers of the kernel: its own part, then the module's ---- */

struct cq_answer {
	struct ib_uverbs_create_cq_resp core;
	struct vroce_cq_resp module;
};

struct qp_answer {
	struct ib_uverbs_ex_create_qp_resp core;
	struct vroce_qp_resp module;
};

struct srq_answer {
	struct ib_uverbs_create_srq_resp core;
	struct vroce_srq_resp module;
};

NO_PADDING(cq_answer);
NO_PADDING(qp_answer);
NO_PADDING(srq_answer);

/* ---- mappings ---- */

static int map(struct ibv_context *context, struct vroce_mapping *mapping, uint64_t offset, size_t length, int access)
{
	void *base = mmap(NULL, length, access, MAP_SHARED, context->cmd_fd, (off_t)offset);

	if (base == MAP_FAILED)
		return errno;
	if (ibv_dontfork_range(base, length)) {
		munmap(base, length);
		return ENOMEM;
	}
	mapping->base = base;
	mapping->length = length;
	return 0;
}

static void unmap(struct vroce_mapping *mapping)
{
	if (!mapping->base)
		return;
	ibv_dofork_range(mapping->base, mapping->length);
	munmap(mapping->base, mapping->length);
	mapping->base = NULL;
}

static void unmap_ring(struct vroce_ring *ring)
{
	unmap(&ring->map_ring);
	unmap(&ring->map_elements);
	unmap(&ring->map_door);
}

static int map_ring(struct vroce_context *context, struct vroce_ring *ring, const struct vroce_ring_map *description,
		    bool in_order)
{
	struct ibv_context *ibv = &context->verbs.context;
	int error;

	if (description->ring_offset == VROCE_NO_MAP || description->elements_offset == VROCE_NO_MAP ||
	    !description->elements || description->elements > description->ring_size)
		return EINVAL;
	error = map(ibv, &ring->map_ring, description->ring_offset, description->ring_length, PROT_READ | PROT_WRITE);
	if (!error)
		error = map(ibv, &ring->map_elements, description->elements_offset, description->elements_length,
			    PROT_READ | PROT_WRITE);
	if (!error && description->door_offset != VROCE_NO_MAP)
		error = map(ibv, &ring->map_door, description->door_offset, context->page_size, PROT_WRITE);
	if (error) {
		unmap_ring(ring);
		return error;
	}
	vroce_ring_init(ring, description, context->event_idx, in_order);
	return 0;
}

/* A send or receive ring: the device never interrupts because of its elements. */
static int map_request_ring(struct vroce_context *context, struct vroce_ring *ring,
			    const struct vroce_ring_map *description, bool in_order)
{
	int error = map_ring(context, ring, description, in_order);

	if (!error)
		ring->avail->flags = context->event_idx ? 0 : VROCE_AVAIL_NO_INTERRUPT;
	return error;
}

static void init_lock(struct vroce_lock *lock, bool single)
{
	pthread_spin_init(&lock->spin, PTHREAD_PROCESS_PRIVATE);
	lock->single = single;
}

/* Queues of a domain of one thread need no locks. */
static bool single_thread(struct ibv_pd *pd)
{
	return to_pd(pd)->td;
}

/* ---- completion queues ---- */

static struct vroce_cq *create_queue(struct ibv_context *ibv, int cqe, struct ibv_comp_channel *channel, int vector,
				     bool single)
{
	struct vroce_context *context = to_context(ibv);
	struct vroce_cq *cq;
	struct cq_answer answer = {};
	struct ibv_create_cq cmd;
	uint8_t *elements;
	int error;

	if (cqe < 1)
		return fails(EINVAL);
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return fails(ENOMEM);
	error = ibv_cmd_create_cq(ibv, cqe, channel, vector, &cq->verbs.cq, &cmd, sizeof(cmd), &answer.core,
				  sizeof(answer));
	if (error)
		goto free_queue;
	error = map_ring(context, &cq->ring, &answer.module.ring, false);
	if (error)
		goto destroy;
	init_lock(&cq->lock, single);
	elements = cq->ring.map_elements.base;
	cq->next = cq->ring.used;
	if (answer.module.arm_at) {
		cq->arm_word = (_Atomic uint32_t *)(elements + answer.module.arm_at);
		cq->wanted = (_Atomic uint32_t *)(elements + answer.module.wanted_at);
	}
	return cq;

destroy:
	/* ibv_cmd_destroy_cq waits for events with these, which the library initializes later. */
	pthread_mutex_init(&cq->verbs.cq.mutex, NULL);
	pthread_cond_init(&cq->verbs.cq.cond, NULL);
	ibv_cmd_destroy_cq(&cq->verbs.cq);
free_queue:
	free(cq);
	return fails(error);
}

struct ibv_cq *vroce_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int vector)
{
	struct vroce_cq *cq = create_queue(context, cqe, channel, vector, false);

	return cq ? &cq->verbs.cq : NULL;
}

struct ibv_cq_ex *vroce_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct vroce_cq *cq;
	bool single = false;

	if (attr->comp_mask & ~(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) ||
	    attr->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS)
		return fails(EOPNOTSUPP);
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) {
		if (attr->flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
			return fails(EOPNOTSUPP);
		single = attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	}
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD && attr->parent_domain)
		single = single || single_thread(attr->parent_domain);
	if (attr->cqe > INT32_MAX)
		return fails(EINVAL);
	cq = create_queue(context, attr->cqe, attr->channel, attr->comp_vector, single);
	if (!cq)
		return NULL;
	vroce_set_poll_functions(cq);
	return &cq->verbs.cq_ex;
}

int vroce_destroy_cq(struct ibv_cq *ibcq)
{
	struct vroce_cq *cq = to_cq(ibcq);
	int error = ibv_cmd_destroy_cq(ibcq);

	if (error)
		return error;
	unmap_ring(&cq->ring);
	pthread_spin_destroy(&cq->lock.spin);
	free(cq);
	return 0;
}

/* ---- shared receive queues ---- */

/* Entries of a receive list for which an element has room. */
static uint32_t recv_room(const struct vroce_ring_map *ring)
{
	return (ring->element_size - sizeof(struct vroce_recv)) / sizeof(struct vroce_sge);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

struct ibv_srq *vroce_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct vroce_srq *srq = calloc(1, sizeof(*srq));
	struct srq_answer answer = {};
	struct ibv_create_srq cmd;
	int error;

	if (!srq)
		return fails(ENOMEM);
	error = ibv_cmd_create_srq(pd, &srq->srq, attr, &cmd, sizeof(cmd), &answer.core, sizeof(answer));
	if (error)
		goto free_queue;
	error = map_request_ring(to_context(pd->context), &srq->ring, &answer.module.ring, false);
	if (error)
		goto destroy;
	init_lock(&srq->lock, single_thread(pd));
	srq->max_sge = smaller(attr->attr.max_sge, recv_room(&answer.module.ring));
	return &srq->srq;

destroy:
	ibv_cmd_destroy_srq(&srq->srq);
free_queue:
	free(srq);
	return fails(error);
}

int vroce_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int attr_mask)
{
	struct ibv_modify_srq cmd;

	return ibv_cmd_modify_srq(srq, attr, attr_mask, &cmd, sizeof(cmd));
}

int vroce_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	struct ibv_query_srq cmd;

	return ibv_cmd_query_srq(srq, attr, &cmd, sizeof(cmd));
}

int vroce_destroy_srq(struct ibv_srq *ibsrq)
{
	struct vroce_srq *srq = to_srq(ibsrq);
	int error = ibv_cmd_destroy_srq(ibsrq);

	if (error)
		return error;
	unmap_ring(&srq->ring);
	pthread_spin_destroy(&srq->lock.spin);
	free(srq);
	return 0;
}

/* ---- queue pairs ---- */

/* Words of vroce_qp.library that every version of the library knows as ibv_qp_ex. */
enum { KNOWN_WORDS = (offsetof(struct ibv_qp_ex, wr_abort) + sizeof(void *)) / 8 };

/*
 * Finds the comp_mask that the library has behind its ibv_qp_ex. The length of
 * ibv_qp_ex depends on the version: ibv_cmd_create_qp_ex2 sets this comp_mask to 0. All
 * words behind the known ones were set to ~0 before. Clears these words and
 * returns the number of the word, or 0 if it is none of them.
 */
static unsigned int find_comp_mask(struct vroce_qp *qp)
{
	const unsigned int words = sizeof(qp->library) / 8;
	unsigned int found = 0;

	for (unsigned int i = KNOWN_WORDS; i < words && !found; i++)
		if (!(uint32_t)qp->library[i])
			found = i;
	memset(&qp->library[KNOWN_WORDS], 0, 8 * (words - KNOWN_WORDS));
	return found;
}

static void take_send_layout(struct vroce_qp *qp, const struct ibv_qp_cap *cap, const struct vroce_qp_resp *resp)
{
	bool compact = resp->flags & VROCE_QP_COMPACT;
	uint32_t element = resp->send.element_size;

	qp->list_at = compact ? VROCE_SEND_COMPACT_LIST : VROCE_SEND_LIST;
	qp->inline_at = compact ? VROCE_SEND_COMPACT_LIST + sizeof(struct vroce_send_list) : VROCE_SEND_INLINE;
	qp->max_send_sge = smaller(cap->max_send_sge, (element - qp->list_at - sizeof(struct vroce_send_list)) /
							      sizeof(struct vroce_sge));
	qp->max_inline = smaller(resp->max_inline, compact ? element - qp->inline_at : VROCE_SEND_INLINE_MAX);
}

static int map_queue_pair(struct vroce_context *context, struct vroce_qp *qp, const struct ibv_qp_cap *cap,
			  const struct vroce_qp_resp *resp)
{
	int error = map_request_ring(context, &qp->send, &resp->send, true);

	if (error)
		return error;
	take_send_layout(qp, cap, resp);
	if (resp->flags & VROCE_QP_SRQ)
		return 0;
	error = map_request_ring(context, &qp->recv, &resp->recv, true);
	if (error)
		unmap_ring(&qp->send);
	else
		qp->max_recv_sge = smaller(cap->max_recv_sge, recv_room(&resp->recv));
	return error;
}

/* Flags of send_ops_flags for the opcodes of a queue pair. */
static uint64_t send_operations(uint32_t opcodes)
{
	static const struct {
		uint8_t opcode;
		uint64_t flag;
	} table[] = {
		{ IBV_WR_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE },
		{ IBV_WR_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM },
		{ IBV_WR_SEND, IBV_QP_EX_WITH_SEND },
		{ IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM },
		{ IBV_WR_RDMA_READ, IBV_QP_EX_WITH_RDMA_READ },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD },
		{ IBV_WR_LOCAL_INV, IBV_QP_EX_WITH_LOCAL_INV },
		{ IBV_WR_BIND_MW, IBV_QP_EX_WITH_BIND_MW },
		{ IBV_WR_SEND_WITH_INV, IBV_QP_EX_WITH_SEND_WITH_INV },
		{ VROCE_WR_ATOMIC_WRITE, VROCE_QP_EX_WITH_ATOMIC_WRITE },
	};
	uint64_t flags = 0;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (opcodes >> table[i].opcode & 1)
			flags |= table[i].flag;
	return flags;
}

struct ibv_qp *vroce_create_qp_ex(struct ibv_context *ibv, struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	struct vroce_context *context = to_context(ibv);
	bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	struct qp_answer answer = {};
	struct ibv_create_qp_ex cmd;
	struct vroce_qp *qp;
	unsigned int comp_mask;
	uint32_t opcodes = vroce_opcodes(attr->qp_type, context->extensions);
	bool single;
	int error;

	if (attr->comp_mask & ~known || !opcodes)
		return fails(EOPNOTSUPP);
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd || !attr->send_cq || !attr->recv_cq)
		return fails(EINVAL);
	if (extended && attr->send_ops_flags & ~send_operations(opcodes))
		return fails(EOPNOTSUPP);
	if (extended && attr->send_ops_flags & VROCE_QP_EX_WITH_ATOMIC_WRITE && attr->cap.max_inline_data < 8)
		attr->cap.max_inline_data = 8; /* ibv_wr_atomic_write takes a value */
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return fails(ENOMEM);
	memset(&qp->library[KNOWN_WORDS], 0xff, sizeof(qp->library) - 8 * KNOWN_WORDS);

	pthread_mutex_lock(&context->numbers);
	error = ibv_cmd_create_qp_ex2(ibv, (struct verbs_qp *)qp, attr, &cmd, sizeof(cmd), &answer.core,
				      sizeof(answer));
	pthread_mutex_unlock(&context->numbers);
	if (error)
		goto free_queue;
	comp_mask = find_comp_mask(qp);
	error = map_queue_pair(context, qp, &attr->cap, &answer.module);
	if (error)
		goto destroy;
	error = EOPNOTSUPP;
	if (extended && !comp_mask)
		goto unmap;

	single = single_thread(attr->pd);
	init_lock(&qp->send_lock, single);
	init_lock(&qp->recv_lock, single);
	qp->datagram = attr->qp_type == IBV_QPT_UD;
	qp->opcodes = opcodes;
	attr->cap.max_inline_data = qp->max_inline;
	if (extended) {
		vroce_set_wr_functions(qp, comp_mask - KNOWN_WORDS);
		qp->library[comp_mask] = VERBS_QP_EX;
	}
	return &qp->qp;

unmap:
	unmap_ring(&qp->send);
	unmap_ring(&qp->recv);
destroy:
	ibv_cmd_destroy_qp(&qp->qp);
free_queue:
	free(qp);
	return fails(error);
}

struct ibv_qp *vroce_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex extended = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_qp *qp = vroce_create_qp_ex(pd->context, &extended);

	if (qp)
		attr->cap = extended.cap;
	return qp;
}

int vroce_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init)
{
	struct ibv_query_qp cmd;
	int error = ibv_cmd_query_qp(qp, attr, attr_mask, init, &cmd, sizeof(cmd));

	if (!error)
		init->cap.max_inline_data = attr->cap.max_inline_data = to_qp(qp)->max_inline;
	return error;
}

static void forget_completions(struct ibv_qp *qp)
{
	vroce_cq_forget(to_cq(qp->send_cq), qp->qp_num);
	if (qp->recv_cq != qp->send_cq)
		vroce_cq_forget(to_cq(qp->recv_cq), qp->qp_num);
}

int vroce_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
{
	int error;

	if (attr_mask & IBV_QP_RATE_LIMIT) {
		struct ib_uverbs_ex_modify_qp_resp resp;
		struct ibv_modify_qp_ex cmd = {};

		error = ibv_cmd_modify_qp_ex(qp, attr, attr_mask, &cmd, sizeof(cmd), &resp, sizeof(resp));
	} else {
		struct ibv_modify_qp cmd = {};

		error = ibv_cmd_modify_qp(qp, attr, attr_mask, &cmd, sizeof(cmd));
	}
	if (!error && attr_mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET)
		forget_completions(qp);
	return error;
}

int vroce_destroy_qp(struct ibv_qp *ibqp)
{
	struct vroce_context *context = to_context(ibqp->context);
	struct vroce_qp *qp = to_qp(ibqp);
	int error;

	pthread_mutex_lock(&context->numbers);
	error = ibv_cmd_destroy_qp(ibqp);
	if (!error)
		forget_completions(ibqp);
	pthread_mutex_unlock(&context->numbers);
	if (error)
		return error;
	unmap_ring(&qp->send);
	unmap_ring(&qp->recv);
	pthread_spin_destroy(&qp->send_lock.spin);
	pthread_spin_destroy(&qp->recv_lock.spin);
	free(qp);
	return 0;
}
