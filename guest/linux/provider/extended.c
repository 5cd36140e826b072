// SPDX-License-Identifier: Apache-2.0
/* The functions that ibv_qp_ex has for requests, and ibv_cq_ex for completions. */
#include "provider.h"

/* ---- requests ---- */

static struct vroce_send_list *send_list(struct vroce_qp *qp, struct vroce_send *element)
{
	return (struct vroce_send_list *)((uint8_t *)element + qp->list_at);
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct vroce_qp *qp = to_qp_ex(ex);

	vroce_lock(&qp->send_lock);
	qp->error = 0;
	qp->element = NULL;
	qp->start_posted = qp->send.posted;
	qp->start_fresh = qp->send.fresh;
}

/* Forgets what was posted since wr_start. A send ring is used in order. */
static void take_back(struct vroce_qp *qp)
{
	qp->send.posted = qp->start_posted;
	qp->send.fresh = qp->start_fresh;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct vroce_qp *qp = to_qp_ex(ex);
	int error = qp->error;
	bool door = false;

	if (error)
		take_back(qp);
	else
		door = vroce_ring_publish(&qp->send);
	vroce_unlock(&qp->send_lock);
	if (door)
		vroce_ring_send_door(qp);
	return error;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	struct vroce_qp *qp = to_qp_ex(ex);

	take_back(qp);
	vroce_unlock(&qp->send_lock);
}

/*
 * Begins a request. Returns NULL and remembers the error if it is not possible;
 * the functions that complete the request then do nothing.
 */
static struct vroce_send *begin(struct vroce_qp *qp, unsigned int opcode)
{
	struct vroce_send_list *list;
	struct vroce_send *element;

	qp->element = NULL;
	if (qp->error)
		return NULL;
	if (!(qp->opcodes >> opcode & 1) || qp->ex.wr_flags & ~(VROCE_SEND_FLAGS & ~IBV_SEND_INLINE)) {
		qp->error = EINVAL;
		return NULL;
	}
	element = vroce_ring_next(&qp->send);
	if (!element) {
		qp->error = ENOMEM;
		return NULL;
	}
	vroce_ring_post(&qp->send);
	element->wr_id = qp->ex.wr_id;
	element->opcode = vroce_device_opcode(opcode);
	element->flags = qp->ex.wr_flags;
	element->padding = 0;
	element->imm_data = 0;
	memset(element->words, 0, sizeof(element->words));
	list = send_list(qp, element);
	list->num_sge = 0;
	memset(list->reserved, 0, sizeof(list->reserved));
	qp->element = element;
	return element;
}

static void begin_rdma(struct vroce_qp *qp, unsigned int opcode, uint32_t rkey, uint64_t remote_addr, uint32_t imm_data)
{
	struct vroce_send *element = begin(qp, opcode);

	if (!element)
		return;
	element->rdma.remote_addr = remote_addr;
	element->rdma.rkey = rkey;
	element->imm_data = imm_data;
}

static void begin_send(struct vroce_qp *qp, unsigned int opcode, uint32_t imm_data)
{
	struct vroce_send *element = begin(qp, opcode);

	if (element)
		element->imm_data = imm_data;
}

static void begin_atomic(struct vroce_qp *qp, unsigned int opcode, uint32_t rkey, uint64_t remote_addr,
			 uint64_t compare_add, uint64_t swap)
{
	struct vroce_send *element = begin(qp, opcode);

	if (!element)
		return;
	element->atomic.remote_addr = remote_addr;
	element->atomic.compare_add = compare_add;
	element->atomic.swap = swap;
	element->atomic.rkey = rkey;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, uint64_t compare,
			      uint64_t swap)
{
	begin_atomic(to_qp_ex(ex), IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, uint64_t add)
{
	begin_atomic(to_qp_ex(ex), IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, add, 0);
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct vroce_qp *qp = to_qp_ex(ex);
	struct vroce_send *element;

	(void)mw; /* rkey has the window's index */
	if (!info->mr && info->length && !qp->error)
		qp->error = EINVAL;
	element = begin(qp, IBV_WR_BIND_MW);
	if (!element)
		return;
	element->bind.addr = info->addr;
	element->bind.length = info->length;
	element->bind.mr_lkey = info->mr ? info->mr->lkey : 0;
	element->bind.mw_rkey = rkey;
	element->bind.access = info->mw_access_flags;
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t invalidate_rkey)
{
	begin_send(to_qp_ex(ex), IBV_WR_LOCAL_INV, invalidate_rkey);
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
	begin_rdma(to_qp_ex(ex), IBV_WR_RDMA_READ, rkey, remote_addr, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
	begin_rdma(to_qp_ex(ex), IBV_WR_RDMA_WRITE, rkey, remote_addr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, __be32 imm_data)
{
	begin_rdma(to_qp_ex(ex), IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr, imm_data);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin_send(to_qp_ex(ex), IBV_WR_SEND, 0);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm_data)
{
	begin_send(to_qp_ex(ex), IBV_WR_SEND_WITH_IMM, imm_data);
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t invalidate_rkey)
{
	begin_send(to_qp_ex(ex), IBV_WR_SEND_WITH_INV, invalidate_rkey);
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t remote_qkey)
{
	struct vroce_qp *qp = to_qp_ex(ex);

	if (!qp->element)
		return;
	qp->element->ud.remote_qpn = remote_qpn;
	qp->element->ud.remote_qkey = remote_qkey;
	qp->element->ud.ah = to_ah(ah)->number;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t num_sge, const struct ibv_sge *sg_list)
{
	struct vroce_qp *qp = to_qp_ex(ex);
	struct vroce_send_list *list;

	if (!qp->element)
		return;
	if (num_sge > qp->max_send_sge) {
		qp->error = EINVAL;
		return;
	}
	list = send_list(qp, qp->element);
	list->num_sge = num_sge;
	for (size_t i = 0; i < num_sge; i++)
		list->sge[i] = (struct vroce_sge){ sg_list[i].addr, sg_list[i].length, sg_list[i].lkey };
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	const struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };

	wr_set_sge_list(ex, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_data_buf *buffers)
{
	struct vroce_qp *qp = to_qp_ex(ex);
	uint32_t length = 0;
	uint8_t *to;

	if (!qp->element)
		return;
	to = (uint8_t *)qp->element + qp->inline_at;
	for (size_t i = 0; i < count; i++) {
		if (buffers[i].length > qp->max_inline - length) {
			qp->error = EINVAL;
			return;
		}
		memcpy(to + length, buffers[i].addr, buffers[i].length);
		length += buffers[i].length;
	}
	qp->element->flags |= IBV_SEND_INLINE;
	send_list(qp, qp->element)->num_sge = length;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	const struct ibv_data_buf buffer = { .addr = addr, .length = length };

	wr_set_inline_data_list(ex, 1, &buffer);
}

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, const void *value)
{
	struct ibv_data_buf buffer = { .addr = (void *)value, .length = 8 };

	begin_rdma(to_qp_ex(ex), VROCE_WR_ATOMIC_WRITE, rkey, remote_addr, 0);
	wr_set_inline_data_list(ex, 1, &buffer);
}

void vroce_set_wr_functions(struct vroce_qp *qp, unsigned int slots)
{
	struct ibv_qp_ex *ex = &qp->ex;

	ex->comp_mask = 0;
	ex->wr_id = 0;
	ex->wr_flags = 0;
	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_bind_mw = wr_bind_mw;
	ex->wr_local_inv = wr_local_inv;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_send = wr_send;
	ex->wr_send_imm = wr_send_imm;
	ex->wr_send_inv = wr_send_inv;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	/* The first slot that headers of rdma-core 39 do not have is wr_atomic_write. */
	if (slots) {
		void (*function)(struct ibv_qp_ex *, uint32_t, uint64_t, const void *) = wr_atomic_write;

		memcpy(&ex->wr_abort + 1, &function, sizeof(function));
	}
}

/* ---- completions ---- */

static void show(struct vroce_cq *cq, struct vroce_cqe *cqe)
{
	cq->current = cqe;
	cq->verbs.cq_ex.wr_id = cqe->wr_id;
	cq->verbs.cq_ex.status = vroce_wc_status(cqe->status);
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct vroce_cq *cq = to_cq_ex(ex);
	struct vroce_cqe *cqe;

	if (attr->comp_mask)
		return EINVAL;
	vroce_lock(&cq->lock);
	cqe = vroce_cq_next(cq);
	if (!cqe) {
		vroce_cq_publish(cq);
		vroce_unlock(&cq->lock);
		return ENOENT;
	}
	show(cq, cqe);
	return 0;
}

static int next_poll(struct ibv_cq_ex *ex)
{
	struct vroce_cq *cq = to_cq_ex(ex);
	struct vroce_cqe *cqe;

	if (cq->current)
		vroce_cq_return(cq);
	cq->current = NULL;
	cqe = vroce_cq_next(cq);
	if (!cqe)
		return ENOENT;
	show(cq, cqe);
	return 0;
}

static void end_poll(struct ibv_cq_ex *ex)
{
	struct vroce_cq *cq = to_cq_ex(ex);

	if (cq->current)
		vroce_cq_return(cq);
	cq->current = NULL;
	vroce_cq_publish(cq);
	vroce_unlock(&cq->lock);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return vroce_wc_opcode(to_cq_ex(ex)->current->opcode);
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
	return to_cq_ex(ex)->current->vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return to_cq_ex(ex)->current->byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
	return to_cq_ex(ex)->current->imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return to_cq_ex(ex)->current->qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
	return to_cq_ex(ex)->current->src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
	return vroce_wc_flags(to_cq_ex(ex)->current->flags);
}

static uint32_t read_slid(struct ibv_cq_ex *ex)
{
	return to_cq_ex(ex)->current->slid;
}

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
	return to_cq_ex(ex)->current->sl;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex)
{
	return to_cq_ex(ex)->current->dlid_path_bits;
}

void vroce_set_poll_functions(struct vroce_cq *cq)
{
	struct ibv_cq_ex *ex = &cq->verbs.cq_ex;

	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_dlid_path_bits;
}
