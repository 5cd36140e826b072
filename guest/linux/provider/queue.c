// SPDX-License-Identifier: Apache-2.0
/*
 * Rings, requests and completions. Nothing here allocates memory; the kernel is
 * asked only to ring a doorbell that is not mapped, and to arm a completion queue
 * that has no arm word.
 */
#include "provider.h"

bool vroce_one_processor;

/* ---- rings ---- */

void vroce_ring_init(struct vroce_ring *ring, const struct vroce_ring_map *map, bool event_idx, bool in_order)
{
	uint8_t *base = ring->map_ring.base;

	ring->elements = (uint8_t *)ring->map_elements.base + map->elements_at;
	ring->element_size = map->element_size;
	ring->count = map->elements;
	ring->mask = map->ring_size - 1;
	ring->event_idx = event_idx;
	ring->in_order = in_order;
	ring->queue = map->queue;
	ring->avail = (struct vroce_avail *)(base + map->avail_at);
	ring->used_ring = (struct vroce_used *)(base + map->used_at);
	ring->used_event = &ring->avail->ring[map->ring_size];
	ring->avail_event = (_Atomic uint16_t *)&ring->used_ring->ring[map->ring_size];
	if (ring->map_door.base)
		ring->door = (volatile uint16_t *)((uint8_t *)ring->map_door.base + map->door_at);

	ring->posted = atomic_load_explicit(&ring->avail->idx, memory_order_relaxed);
	ring->published = ring->posted;
	ring->used = atomic_load_explicit(&ring->used_ring->idx, memory_order_acquire);
	ring->taken = ring->used;
	ring->fresh = 0;
}

/* Keeps the device from interrupts for a send or receive ring. */
static void ring_keep_quiet(struct vroce_ring *ring)
{
	/*
	 * The device interrupts when used->idx passes used_event. It moves between
	 * used and posted, which are at most 2^15 apart.
	 */
	uint16_t distance = ring->quiet - ring->posted;

	if (distance < 0x4000 || distance > 0x7fff) {
		ring->quiet = ring->posted + 0x7fff;
		atomic_store_explicit(ring->used_event, ring->quiet, memory_order_relaxed);
	}
}

bool vroce_ring_publish(struct vroce_ring *ring)
{
	uint16_t old = ring->published, posted = ring->posted, event;

	if (old == posted)
		return false;
	if (ring->event_idx)
		ring_keep_quiet(ring);
	ring->published = posted;
	atomic_store_explicit(&ring->avail->idx, posted, memory_order_release);
	/* The device looks at avail->idx after it has written what is read now. */
	full_barrier();
	if (!ring->event_idx)
		return !(atomic_load_explicit(&ring->used_ring->flags, memory_order_relaxed) & VROCE_USED_NO_NOTIFY);
	event = atomic_load_explicit(ring->avail_event, memory_order_relaxed);
	return (uint16_t)(posted - event - 1) < (uint16_t)(posted - old);
}

/* The element at a position of the used ring. */
static uint32_t ring_used_id(const struct vroce_ring *ring, uint16_t position)
{
	uint32_t id = ring->used_ring->ring[position & ring->mask].id;

	return id < ring->count ? id : 0;
}

/* The element that is posted next. */
static uint32_t ring_number(const struct vroce_ring *ring)
{
	if (ring->in_order || ring->fresh < ring->count)
		return ring->fresh;
	return ring_used_id(ring, ring->taken);
}

void *vroce_ring_next(struct vroce_ring *ring)
{
	if ((uint16_t)(ring->posted - ring->used) >= ring->count) {
		ring->used = atomic_load_explicit(&ring->used_ring->idx, memory_order_acquire);
		if ((uint16_t)(ring->posted - ring->used) >= ring->count)
			return NULL;
	}
	return ring->elements + (size_t)ring_number(ring) * ring->element_size;
}

void vroce_ring_post(struct vroce_ring *ring)
{
	atomic_store_explicit(&ring->avail->ring[ring->posted & ring->mask], ring_number(ring), memory_order_relaxed);
	ring->posted++;
	if (ring->fresh < ring->count)
		ring->fresh++;
	else
		ring->taken++;
	if (ring->in_order && ring->fresh == ring->count)
		ring->fresh = 0;
}

static void ring_door(struct vroce_ring *ring)
{
	/* The write goes to a page of the device: all earlier writes come first. */
	full_barrier();
	*ring->door = ring->queue;
}

void vroce_ring_send_door(struct vroce_qp *qp)
{
	struct ibv_send_wr *bad;

	if (qp->send.door)
		ring_door(&qp->send);
	else
		ibv_cmd_post_send(&qp->qp, NULL, &bad);
}

/* ---- requests ---- */

struct opcode {
	uint8_t number;      /* of the device */
	bool has_inline;
	uint64_t extension;  /* that must be enabled, or 0 */
};

enum { WR_COUNT = VROCE_WR_ATOMIC_WRITE + 1 };

static const struct opcode opcodes[WR_COUNT] = {
	[IBV_WR_RDMA_WRITE] = { VROCE_OP_RDMA_WRITE, true, 0 },
	[IBV_WR_RDMA_WRITE_WITH_IMM] = { VROCE_OP_RDMA_WRITE_IMM, true, 0 },
	[IBV_WR_SEND] = { VROCE_OP_SEND, true, 0 },
	[IBV_WR_SEND_WITH_IMM] = { VROCE_OP_SEND_IMM, true, 0 },
	[IBV_WR_RDMA_READ] = { VROCE_OP_RDMA_READ, false, 0 },
	[IBV_WR_ATOMIC_CMP_AND_SWP] = { VROCE_OP_ATOMIC_CMP_SWP, false, VROCE_EXT_ATOMIC },
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = { VROCE_OP_ATOMIC_FETCH_ADD, false, VROCE_EXT_ATOMIC },
	[IBV_WR_LOCAL_INV] = { VROCE_OP_LOCAL_INV, false, VROCE_EXT_MEM_MGT },
	[IBV_WR_BIND_MW] = { VROCE_OP_BIND_MW, false, VROCE_EXT_MW },
	[IBV_WR_SEND_WITH_INV] = { VROCE_OP_SEND_INV, true, VROCE_EXT_MEM_MGT },
	[VROCE_WR_ATOMIC_WRITE] = { VROCE_OP_ATOMIC_WRITE, true, VROCE_EXT_ATOMIC_WRITE },
};

uint32_t vroce_opcodes(enum ibv_qp_type type, uint64_t extensions)
{
	const uint32_t sends = 1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM;
	const uint32_t uc = sends | 1 << IBV_WR_RDMA_WRITE | 1 << IBV_WR_RDMA_WRITE_WITH_IMM | 1 << IBV_WR_LOCAL_INV |
			    1 << IBV_WR_BIND_MW;
	const uint32_t rc = uc | 1 << IBV_WR_RDMA_READ | 1 << IBV_WR_ATOMIC_CMP_AND_SWP |
			    1 << IBV_WR_ATOMIC_FETCH_AND_ADD | 1 << IBV_WR_SEND_WITH_INV | 1 << VROCE_WR_ATOMIC_WRITE;
	uint32_t set = type == IBV_QPT_RC ? rc : type == IBV_QPT_UC ? uc : type == IBV_QPT_UD ? sends : 0;

	for (unsigned int i = 0; i < WR_COUNT; i++)
		if (opcodes[i].extension & ~extensions)
			set &= ~(1U << i);
	return set;
}

uint8_t vroce_device_opcode(unsigned int opcode)
{
	return opcodes[opcode].number;
}

/* Copies a list. Its entries differ from ibv_sge in nothing but the names. */
static void fill_list(struct vroce_sge *to, const struct ibv_sge *from, uint32_t count)
{
	static_assert(sizeof(*to) == sizeof(*from), "sge");
	static_assert(offsetof(struct vroce_sge, lkey) == offsetof(struct ibv_sge, lkey), "sge");
	for (uint32_t i = 0; i < count; i++)
		to[i] = (struct vroce_sge){ from[i].addr, from[i].length, from[i].lkey };
}

static int fill_send(struct vroce_qp *qp, struct vroce_send *element, const struct ibv_send_wr *wr)
{
	struct vroce_send_list *list = (struct vroce_send_list *)((uint8_t *)element + qp->list_at);
	uint32_t count = wr->num_sge;

	if ((unsigned int)wr->opcode >= WR_COUNT || !(qp->opcodes >> wr->opcode & 1) || wr->send_flags & ~VROCE_SEND_FLAGS)
		return EINVAL;

	element->wr_id = wr->wr_id;
	element->opcode = opcodes[wr->opcode].number;
	element->flags = wr->send_flags;
	element->padding = 0;
	element->imm_data = 0;
	memset(element->words, 0, sizeof(element->words));
	if (qp->datagram) {
		if (!wr->wr.ud.ah)
			return EINVAL;
		element->ud.remote_qpn = wr->wr.ud.remote_qpn;
		element->ud.remote_qkey = wr->wr.ud.remote_qkey;
		element->ud.ah = to_ah(wr->wr.ud.ah)->number;
	}
	switch ((unsigned int)wr->opcode) {
	case IBV_WR_SEND:
		break;
	case IBV_WR_SEND_WITH_IMM:
		element->imm_data = wr->imm_data;
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		element->imm_data = wr->imm_data;
		/* fall through */
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
	case VROCE_WR_ATOMIC_WRITE:
		element->rdma.remote_addr = wr->wr.rdma.remote_addr;
		element->rdma.rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		element->atomic.swap = wr->wr.atomic.swap;
		/* fall through */
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		element->atomic.remote_addr = wr->wr.atomic.remote_addr;
		element->atomic.compare_add = wr->wr.atomic.compare_add;
		element->atomic.rkey = wr->wr.atomic.rkey;
		break;
	case IBV_WR_LOCAL_INV:
		count = 0;
		/* fall through */
	case IBV_WR_SEND_WITH_INV:
		element->imm_data = wr->invalidate_rkey;
		break;
	case IBV_WR_BIND_MW:
		if (!wr->bind_mw.bind_info.mr && wr->bind_mw.bind_info.length)
			return EINVAL;
		element->bind.addr = wr->bind_mw.bind_info.addr;
		element->bind.length = wr->bind_mw.bind_info.length;
		element->bind.mr_lkey = wr->bind_mw.bind_info.mr ? wr->bind_mw.bind_info.mr->lkey : 0;
		element->bind.mw_rkey = wr->bind_mw.rkey;
		element->bind.access = wr->bind_mw.bind_info.mw_access_flags;
		count = 0;
		break;
	}

	if (count > qp->max_send_sge)
		return EINVAL;
	memset(list->reserved, 0, sizeof(list->reserved));
	if (wr->send_flags & IBV_SEND_INLINE) {
		uint8_t *to = (uint8_t *)element + qp->inline_at;
		uint32_t length = 0;

		if (!opcodes[wr->opcode].has_inline)
			return EINVAL;
		for (uint32_t i = 0; i < count; i++) {
			if (wr->sg_list[i].length > qp->max_inline - length)
				return EINVAL;
			memcpy(to + length, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
			length += wr->sg_list[i].length;
		}
		list->num_sge = length;
		return 0;
	}
	list->num_sge = count;
	fill_list(list->sge, wr->sg_list, count);
	return 0;
}

int vroce_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct vroce_qp *qp = to_qp(ibqp);
	int error = 0;
	bool door;

	vroce_lock(&qp->send_lock);
	for (; wr; wr = wr->next) {
		struct vroce_send *element = vroce_ring_next(&qp->send);

		error = element ? fill_send(qp, element, wr) : ENOMEM;
		if (error) {
			*bad_wr = wr;
			break;
		}
		vroce_ring_post(&qp->send);
	}
	door = vroce_ring_publish(&qp->send);
	vroce_unlock(&qp->send_lock);
	if (door)
		vroce_ring_send_door(qp);
	return error;
}

int vroce_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags,
		.bind_mw = {
			.mw = mw,
			.rkey = ibv_inc_rkey(mw->rkey),
			.bind_info = bind->bind_info,
		},
	};
	int error;

	if (bind->bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED)
		return EINVAL;
	error = vroce_post_send(qp, &wr, &bad);
	if (!error)
		mw->rkey = wr.bind_mw.rkey;
	return error;
}

/* Returns an errno; *door is whether the doorbell must be rung. */
static int post_receives(struct vroce_ring *ring, uint32_t max_sge, struct ibv_recv_wr *wr,
			 struct ibv_recv_wr **bad_wr, bool *door)
{
	int error = 0;

	for (; wr; wr = wr->next) {
		struct vroce_recv *element = vroce_ring_next(ring);

		if (!element)
			error = ENOMEM;
		else if ((uint32_t)wr->num_sge > max_sge)
			error = EINVAL;
		if (error) {
			*bad_wr = wr;
			break;
		}
		element->wr_id = wr->wr_id;
		element->num_sge = wr->num_sge;
		memset(element->reserved, 0, sizeof(element->reserved));
		fill_list(element->sge, wr->sg_list, wr->num_sge);
		vroce_ring_post(ring);
	}
	*door = vroce_ring_publish(ring);
	return error;
}

int vroce_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct vroce_qp *qp = to_qp(ibqp);
	struct ibv_recv_wr *bad;
	int error;
	bool door;

	if (ibqp->srq) {
		*bad_wr = wr;
		return EINVAL;
	}
	vroce_lock(&qp->recv_lock);
	error = post_receives(&qp->recv, qp->max_recv_sge, wr, bad_wr, &door);
	vroce_unlock(&qp->recv_lock);
	if (door && qp->recv.door)
		ring_door(&qp->recv);
	else if (door)
		ibv_cmd_post_recv(ibqp, NULL, &bad);
	return error;
}

int vroce_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct vroce_srq *srq = to_srq(ibsrq);
	struct ibv_recv_wr *bad;
	int error;
	bool door;

	vroce_lock(&srq->lock);
	error = post_receives(&srq->ring, srq->max_sge, wr, bad_wr, &door);
	vroce_unlock(&srq->lock);
	if (door && srq->ring.door)
		ring_door(&srq->ring);
	else if (door)
		ibv_cmd_post_srq_recv(ibsrq, NULL, &bad);
	return error;
}

/* ---- completions ---- */

enum ibv_wc_status vroce_wc_status(uint8_t status)
{
	static const uint8_t table[] = {
		IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR,
		IBV_WC_WR_FLUSH_ERR, IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR,
		IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
		IBV_WC_REM_ABORT_ERR, IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR,
	};

	if (status < sizeof(table))
		return table[status];
	return status == 0x40 ? IBV_WC_MW_BIND_ERR : IBV_WC_GENERAL_ERR;
}

enum ibv_wc_opcode vroce_wc_opcode(uint8_t opcode)
{
	switch (opcode) {
	case 1:
		return IBV_WC_RDMA_WRITE;
	case 2:
		return IBV_WC_RDMA_READ;
	case 3:
		return IBV_WC_RECV;
	case 4:
		return IBV_WC_RECV_RDMA_WITH_IMM;
	case 0x40:
		return IBV_WC_COMP_SWAP;
	case 0x41:
		return IBV_WC_FETCH_ADD;
	case 0x42:
		return IBV_WC_LOCAL_INV;
	case 0x44:
		return IBV_WC_BIND_MW;
	case 0x47:
		return 9; /* IBV_WC_ATOMIC_WRITE, which early headers do not have */
	default:
		return IBV_WC_SEND;
	}
}

unsigned int vroce_wc_flags(uint32_t flags)
{
	return (flags & VROCE_WC_GRH ? IBV_WC_GRH : 0) | (flags & VROCE_WC_WITH_IMM ? IBV_WC_WITH_IMM : 0) |
	       (flags & VROCE_WC_WITH_INV ? IBV_WC_WITH_INV : 0);
}

static struct vroce_cqe *cq_completion(struct vroce_cq *cq, uint16_t position)
{
	return (struct vroce_cqe *)(cq->ring.elements + (size_t)ring_used_id(&cq->ring, position) * cq->ring.element_size);
}

void vroce_cq_return(struct vroce_cq *cq)
{
	struct vroce_ring *ring = &cq->ring;

	atomic_store_explicit(&ring->avail->ring[ring->posted & ring->mask], ring_used_id(ring, cq->next),
			      memory_order_relaxed);
	ring->posted++;
	cq->next++;
}

struct vroce_cqe *vroce_cq_next(struct vroce_cq *cq)
{
	struct vroce_ring *ring = &cq->ring;

	for (;;) {
		struct vroce_cqe *cqe;

		if (cq->next == ring->used) {
			ring->used = atomic_load_explicit(&ring->used_ring->idx, memory_order_acquire);
			if (cq->next == ring->used)
				return NULL;
		}
		cqe = cq_completion(cq, cq->next);
		if (cqe->qp_num)
			return cqe;
		vroce_cq_return(cq);
	}
}

void vroce_cq_publish(struct vroce_cq *cq)
{
	struct vroce_ring *ring = &cq->ring;

	if (ring->published == ring->posted)
		return;
	ring->published = ring->posted;
	/* The device needs no doorbell: it looks when it has a completion to write. */
	atomic_store_explicit(&ring->avail->idx, ring->posted, memory_order_release);
}

int vroce_poll_cq(struct ibv_cq *ibcq, int num_entries, struct ibv_wc *wc)
{
	struct vroce_cq *cq = to_cq(ibcq);
	int count = 0;

	vroce_lock(&cq->lock);
	while (count < num_entries) {
		const struct vroce_cqe *cqe = vroce_cq_next(cq);

		if (!cqe)
			break;
		wc[count++] = (struct ibv_wc){
			.wr_id = cqe->wr_id,
			.status = vroce_wc_status(cqe->status),
			.opcode = vroce_wc_opcode(cqe->opcode),
			.vendor_err = cqe->vendor_err,
			.byte_len = cqe->byte_len,
			.imm_data = cqe->imm_data,
			.qp_num = cqe->qp_num,
			.src_qp = cqe->src_qp,
			.wc_flags = vroce_wc_flags(cqe->flags),
			.pkey_index = cqe->pkey_index,
			.slid = cqe->slid,
			.sl = cqe->sl,
			.dlid_path_bits = cqe->dlid_path_bits,
		};
		vroce_cq_return(cq);
	}
	vroce_cq_publish(cq);
	vroce_unlock(&cq->lock);
	return count;
}

int vroce_req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct vroce_cq *cq = to_cq(ibcq);
	uint32_t none = 0;

	if (!cq->arm_word)
		return ibv_cmd_req_notify_cq(ibcq, solicited_only);
	if (solicited_only)
		atomic_compare_exchange_strong(cq->arm_word, &none, 1);
	else
		atomic_store(cq->arm_word, 2);
	atomic_store(cq->wanted, 1);
	full_barrier();
	if (atomic_load(cq->arm_word))
		return 0;
	/*
	 * The device has notified the ring already, perhaps before the kernel could
	 * see that an event is wanted.
	 */
	return ibv_cmd_req_notify_cq(ibcq, solicited_only);
}

void vroce_cq_forget(struct vroce_cq *cq, uint32_t qp_num)
{
	uint16_t end;

	vroce_lock(&cq->lock);
	end = atomic_load_explicit(&cq->ring.used_ring->idx, memory_order_acquire);
	for (uint16_t i = cq->next; i != end; i++) {
		struct vroce_cqe *cqe = cq_completion(cq, i);

		if (cqe->qp_num == qp_num)
			cqe->qp_num = 0;
	}
	vroce_unlock(&cq->lock);
}
