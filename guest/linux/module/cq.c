// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Completion queues. Elements are buffers of completions: all are available to the
 * device from the start, and each is made available again after it was read.
 *
 * Before the elements lie two words for events. The owner sets the arm word and
 * then `wanted`; the device clears the arm word when it publishes a completion
 * that qualifies, and notifies. The module delivers an event if the arm word is
 * clear and `wanted` set. A device without arm words is armed by a command.
 */
#include <linux/virtio_config.h>

#include "verbs.h"
#include "vroce_compat.h"

#define ARM_AT    64
#define WANTED_AT 128
#define HEAD      256
#define CQE_SIZE  64 /* a completion, in a cache line of its own */

/* In hw_cqe.status: the queue pair of this completion is gone. */
#define FORGOTTEN 0xff

static u16 used_index(struct vroce_verbs *verbs, struct vroce_cq *cq)
{
	return virtio16_to_cpu(verbs->card->vdev, smp_load_acquire(&cq->queue.ring->vr.used->idx));
}

static int set_arm_area(struct vroce_verbs *verbs, struct vroce_cq *cq, void *head)
{
	struct hw_set_arm_area req = {
		.cqn = cpu_to_le32(cq->cqn),
		.gpa = cpu_to_le64(virt_to_phys(head + ARM_AT)),
	};

	cq->wanted = head + WANTED_AT;
	if (!(verbs->extensions & HW_CAP_ARM_DOORBELL))
		return 0;
	cq->arm = head + ARM_AT;
	return vroce_do(verbs, HW_SET_ARM_AREA, &req, false);
}

static void make_available(struct vroce_verbs *verbs, struct vroce_cq *cq)
{
	u32 i;

	for (i = 0; i < cq->queue.count; i++)
		vroce_queue_add(verbs, &cq->queue, i);
	vroce_queue_publish(verbs, &cq->queue, 0);
}

static int answer_program(struct vroce_verbs *verbs, struct vroce_cq *cq, struct ib_udata *udata)
{
	struct vroce_cq_resp resp = {
		.cqn = cq->cqn,
		.arm_at = cq->arm ? ARM_AT : 0,
		.wanted_at = WANTED_AT,
	};
	int err = vroce_queue_map(verbs, &cq->queue, vroce_context_of(udata), &resp.ring);

	return err ?: ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen));
}

static void list_cq(struct vroce_verbs *verbs, u32 cqn, struct vroce_cq *cq)
{
	unsigned long flags;

	spin_lock_irqsave(&verbs->card->verbs_lock, flags);
	verbs->cqs[cqn] = cq;
	spin_unlock_irqrestore(&verbs->card->verbs_lock, flags);
}

int vroce_create_cq(struct ib_cq *ib, int entries, struct ib_udata *udata)
{
	struct hw_create_cq req = { .cqe = cpu_to_le32(entries) };
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_cq *cq = to_cq(ib);
	int err;

	if (entries < 1 || entries > ib->device->attrs.max_cqe)
		return -EINVAL;
	mutex_lock(&verbs->objects);
	err = vroce_create_numbered(verbs, &vroce_numbered_cq, &req, sizeof(req), &cq->cqn);
	if (err)
		goto unlock;
	err = vroce_queue_init(verbs, &cq->queue, &verbs->card->cq[cq->cqn], entries, CQE_SIZE, HEAD, true);
	if (err)
		goto destroy;
	err = set_arm_area(verbs, cq, cq->queue.elements.start);
	if (err)
		goto destroy;
	ib->cqe = entries;
	make_available(verbs, cq);
	if (udata) {
		err = answer_program(verbs, cq, udata);
		if (err)
			goto destroy;
	}
	list_cq(verbs, cq->cqn, cq);
	goto unlock;
destroy:
	vroce_destroy(verbs, HW_DESTROY_CQ, cq->cqn);
	vroce_queue_free(verbs, &cq->queue);
unlock:
	mutex_unlock(&verbs->objects);
	return err;
}

int vroce_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_cq *cq = to_cq(ib);
	int err;

	mutex_lock(&verbs->objects);
	list_cq(verbs, cq->cqn, NULL);
	err = vroce_destroy(verbs, HW_DESTROY_CQ, cq->cqn);
	if (err)
		list_cq(verbs, cq->cqn, cq);
	else
		vroce_queue_free(verbs, &cq->queue);
	mutex_unlock(&verbs->objects);
	return err;
}

/* ---- events ---- */

/*
 * Takes the event of cq if it is due. The lock makes one of it and of arm_by_word,
 * so that an interrupt between the two words does not miss the event.
 */
static bool take_event(struct vroce_verbs *verbs, struct vroce_cq *cq)
{
	unsigned long flags;
	bool due;

	spin_lock_irqsave(&cq->queue.lock, flags);
	if (cq->arm)
		due = !READ_ONCE(*cq->arm);
	else
		due = used_index(verbs, cq) != READ_ONCE(cq->armed_at);
	due = due && xchg(cq->wanted, 0);
	spin_unlock_irqrestore(&cq->queue.lock, flags);
	return due;
}

void vroce_cq_check(struct vroce_verbs *verbs, struct vroce_cq *cq)
{
	if (take_event(verbs, cq) && cq->ib.comp_handler)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}

static int arm_by_command(struct vroce_verbs *verbs, struct vroce_cq *cq, u32 what)
{
	struct hw_req_notify_cq req = { .cqn = cpu_to_le32(cq->cqn), .flags = cpu_to_le32(what) };

	WRITE_ONCE(cq->armed_at, used_index(verbs, cq));
	smp_store_mb(*cq->wanted, 1);
	return vroce_do(verbs, HW_REQ_NOTIFY_CQ, &req, true);
}

static void arm_by_word(struct vroce_cq *cq, u32 what)
{
	unsigned long flags;

	spin_lock_irqsave(&cq->queue.lock, flags);
	if (what == HW_ARM_NEXT)
		xchg(cq->arm, HW_ARM_NEXT);
	else
		cmpxchg(cq->arm, 0, HW_ARM_SOLICITED);
	WRITE_ONCE(*cq->wanted, 1);
	mb(); /* as in vroce_ring_kick */
	spin_unlock_irqrestore(&cq->queue.lock, flags);
}

/* Delivers the event that became due while a program armed its queue by the words itself. */
static void check_for_program(struct vroce_verbs *verbs, struct vroce_cq *cq)
{
	unsigned long flags;

	spin_lock_irqsave(&verbs->card->verbs_lock, flags);
	vroce_cq_check(verbs, cq);
	spin_unlock_irqrestore(&verbs->card->verbs_lock, flags);
}

int vroce_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	u32 what = (flags & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED ? HW_ARM_SOLICITED : HW_ARM_NEXT;
	struct vroce_cq *cq = to_cq(ib);
	int err = 0;

	if (!cq->arm)
		err = arm_by_command(verbs, cq, what);
	else if (ib->uobject)
		check_for_program(verbs, cq);
	else
		arm_by_word(cq, what);
	if (err || !(flags & IB_CQ_REPORT_MISSED_EVENTS) || ib->uobject)
		return err;
	return used_index(verbs, cq) != READ_ONCE(cq->queue.ring->last_used);
}

/* ---- polling, for queues of the kernel ---- */

static enum ib_wc_status status_of(u8 status)
{
	static const u8 map[] = {
		[0] = IB_WC_SUCCESS, [1] = IB_WC_LOC_LEN_ERR, [2] = IB_WC_LOC_QP_OP_ERR, [3] = IB_WC_LOC_PROT_ERR,
		[4] = IB_WC_WR_FLUSH_ERR, [5] = IB_WC_BAD_RESP_ERR, [6] = IB_WC_LOC_ACCESS_ERR,
		[7] = IB_WC_REM_INV_REQ_ERR, [8] = IB_WC_REM_ACCESS_ERR, [9] = IB_WC_REM_OP_ERR,
		[10] = IB_WC_RETRY_EXC_ERR, [11] = IB_WC_RNR_RETRY_EXC_ERR, [12] = IB_WC_REM_ABORT_ERR,
		[13] = IB_WC_FATAL_ERR, [14] = IB_WC_RESP_TIMEOUT_ERR, [15] = IB_WC_GENERAL_ERR,
	};

	if (status == 0x40)
		return IB_WC_MW_BIND_ERR;
	return status < ARRAY_SIZE(map) ? map[status] : IB_WC_GENERAL_ERR;
}

static enum ib_wc_opcode opcode_of(u8 opcode)
{
	switch (opcode) {
	case HW_WC_OP_RDMA_WRITE:
		return IB_WC_RDMA_WRITE;
	case HW_WC_OP_RDMA_READ:
		return IB_WC_RDMA_READ;
	case HW_WC_OP_RECV:
		return IB_WC_RECV;
	case HW_WC_OP_RECV_IMM:
		return IB_WC_RECV_RDMA_WITH_IMM;
	case HW_WC_OP_CMP_SWP:
		return IB_WC_COMP_SWAP;
	case HW_WC_OP_FETCH_ADD:
		return IB_WC_FETCH_ADD;
	case HW_WC_OP_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	case HW_WC_OP_REG_MR:
		return IB_WC_REG_MR;
	default:
		return IB_WC_SEND;
	}
}

/*
 * Ends the work request of q that has the element number, and all before it, which
 * have no completion. Returns false if there is no such request.
 */
static bool complete_request(struct vroce_queue *q, u32 number, u64 *wr_id)
{
	u32 offset;

	if (!q->wr_ids || number >= q->count)
		return false;
	offset = (number + q->count - q->oldest) % q->count;
	if (offset >= atomic_read_acquire(&q->open))
		return false;
	*wr_id = q->wr_ids[number];
	q->oldest = (number + 1) % q->count;
	atomic_sub_return_release(offset + 1, &q->open);
	return true;
}

/*
 * Finds the poster's name of the request that a completion in cq is of. Only a
 * shared receive queue gives its posters' names to the device, because its elements
 * are posted again before their completions are polled.
 */
static bool find_request(struct vroce_cq *cq, struct vroce_qp *qp, u64 cookie, u64 *wr_id)
{
	switch (cookie & VROCE_COOKIE_KIND) {
	case VROCE_COOKIE_SEND:
		return &cq->ib == qp->ib.send_cq && complete_request(&qp->send, (u32)cookie, wr_id);
	case VROCE_COOKIE_RECV:
		return &cq->ib == qp->ib.recv_cq && complete_request(&qp->recv, (u32)cookie, wr_id);
	default:
		*wr_id = cookie;
		return &cq->ib == qp->ib.recv_cq && qp->ib.srq && !qp->ib.srq->uobject;
	}
}

/* Translates a completion. Returns false if it is of no request, or of a queue pair that is gone. */
static bool translate(struct vroce_verbs *verbs, struct vroce_cq *cq, const struct hw_cqe *cqe, struct ib_wc *wc)
{
	struct vroce_qp *qp = xa_load(&verbs->qps, le32_to_cpu(cqe->qp_num));
	u32 flags = le32_to_cpu(cqe->wc_flags);

	memset(wc, 0, sizeof(*wc));
	if (!qp || cqe->status == FORGOTTEN || !find_request(cq, qp, le64_to_cpu(cqe->wr_id), &wc->wr_id))
		return false;
	wc->status = status_of(cqe->status);
	wc->opcode = opcode_of(cqe->opcode);
	wc->vendor_err = le32_to_cpu(cqe->vendor_err);
	wc->byte_len = le32_to_cpu(cqe->byte_len);
	wc->qp = &qp->ib;
	wc->src_qp = le32_to_cpu(cqe->src_qp);
	wc->port_num = 1;
	if (flags & HW_WC_GRH)
		wc->wc_flags |= IB_WC_GRH;
	if (flags & HW_WC_WITH_IMM) {
		wc->wc_flags |= IB_WC_WITH_IMM;
		wc->ex.imm_data = (__force __be32)cqe->imm_data;
	} else if (flags & HW_WC_WITH_INV) {
		wc->wc_flags |= IB_WC_WITH_INVALIDATE;
		wc->ex.invalidate_rkey = le32_to_cpu(cqe->imm_data);
	}
	return true;
}

/* Takes up to count completions from the ring. q->lock is held. */
static int poll_ring(struct vroce_verbs *verbs, struct vroce_cq *cq, int count, struct ib_wc *wc)
{
	struct vroce_queue *q = &cq->queue;
	struct vroce_ring *ring = q->ring;
	u16 old = ring->avail_idx, used = used_index(verbs, cq);
	int n = 0;

	if ((u16)(used - ring->last_used) > q->count) {
		vroce_break(verbs->card, "it used more buffers than a completion queue has");
		return 0;
	}
	while (n < count && ring->last_used != used) {
		u32 id = virtio32_to_cpu(verbs->card->vdev,
					 ring->vr.used->ring[ring->last_used & (ring->vr.num - 1)].id);

		if (id >= q->count) {
			vroce_break(verbs->card, "it used a buffer that a completion queue does not have");
			break;
		}
		if (translate(verbs, cq, vroce_element(q, id), &wc[n]))
			n++;
		vroce_queue_add(verbs, q, id);
		ring->last_used++;
	}
	if (ring->avail_idx != old)
		smp_store_release(&ring->vr.avail->idx, cpu_to_virtio16(verbs->card->vdev, ring->avail_idx));
	return n;
}

/* Flushes up to count requests of one queue of qp. */
static int flush_queue(struct vroce_qp *qp, struct vroce_queue *q, int count, struct ib_wc *wc)
{
	int n = 0;

	if (!q->wr_ids)
		return 0;
	while (n < count && complete_request(q, q->oldest, &wc[n].wr_id)) {
		u64 wr_id = wc[n].wr_id;

		wc[n++] = (struct ib_wc){ .wr_id = wr_id, .status = IB_WC_WR_FLUSH_ERR, .qp = &qp->ib, .port_num = 1 };
	}
	return n;
}

/*
 * Completes requests in place of a broken card, so that those who wait for them go
 * on. q->lock is held, and keeps the queue pairs, see vroce_cq_forget.
 */
static int flush(struct vroce_verbs *verbs, struct vroce_cq *cq, int count, struct ib_wc *wc)
{
	struct vroce_qp *qp;
	unsigned long number;
	int n = 0;

	xa_for_each(&verbs->qps, number, qp) {
		if (qp->ib.send_cq == &cq->ib)
			n += flush_queue(qp, &qp->send, count - n, wc + n);
		if (qp->ib.recv_cq == &cq->ib)
			n += flush_queue(qp, &qp->recv, count - n, wc + n);
	}
	return n;
}

int vroce_poll_cq(struct ib_cq *ib, int count, struct ib_wc *wc)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_cq *cq = to_cq(ib);
	unsigned long flags;
	int n;

	if (ib->uobject)
		return -EOPNOTSUPP; /* a program polls its rings itself */
	spin_lock_irqsave(&cq->queue.lock, flags);
	n = poll_ring(verbs, cq, count, wc);
	if (n < count && READ_ONCE(verbs->card->broken))
		n += flush(verbs, cq, count - n, wc + n);
	spin_unlock_irqrestore(&cq->queue.lock, flags);
	return n;
}

void vroce_cq_forget(struct vroce_cq *cq, u32 qpn)
{
	struct vroce_verbs *verbs = to_verbs(cq->ib.device);
	struct vroce_queue *q = &cq->queue;
	struct vroce_ring *ring = q->ring;
	unsigned long flags;
	u16 at, used;

	if (cq->ib.uobject)
		return; /* the program's provider does that */
	spin_lock_irqsave(&q->lock, flags);
	used = used_index(verbs, cq);
	for (at = ring->last_used; at != used && (u16)(at - ring->last_used) < q->count; at++) {
		u32 id = virtio32_to_cpu(verbs->card->vdev, ring->vr.used->ring[at & (ring->vr.num - 1)].id);
		struct hw_cqe *cqe = vroce_element(q, id % q->count);

		if (le32_to_cpu(cqe->qp_num) == qpn)
			cqe->status = FORGOTTEN;
	}
	spin_unlock_irqrestore(&q->lock, flags);
}
