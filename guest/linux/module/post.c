// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Work requests of the kernel. A program writes elements itself; its calls come
 * here only to ring a doorbell that it cannot map, without work requests.
 */
#include <linux/io.h>
#include <linux/virtio_config.h>

#include "verbs.h"

/* Rings the doorbell of a program's ring. The program asks for it, so the device's wish is not read. */
static int kick_for_program(struct vroce_queue *q)
{
	if (!q->ring)
		return -EINVAL;
	virtqueue_notify(q->ring->vq);
	return 0;
}

static bool is_full(struct vroce_queue *q)
{
	return atomic_read_acquire(&q->open) == q->count;
}

/* Makes the next element, which is filled, available as the request wr_id. */
static void add_request(struct vroce_verbs *verbs, struct vroce_queue *q, u64 wr_id)
{
	q->wr_ids[q->next] = wr_id;
	vroce_queue_add(verbs, q, q->next);
	q->next = (q->next + 1) % q->count;
	atomic_inc_return_release(&q->open);
}

/* Shows the device what was added since the position old. A broken card sees nothing: polls flush its requests. */
static void publish(struct vroce_verbs *verbs, struct vroce_queue *q, u16 old)
{
	if (q->ring->avail_idx == old)
		return;
	vroce_queue_publish(verbs, q, old);
	smp_mb(); /* pairs with vroce_break: either this sees the broken card, or its work sees the requests */
	if (READ_ONCE(verbs->card->broken))
		schedule_work(&verbs->card->broken_work);
}

static void fill_sges(struct hw_sge *to, const struct ib_sge *from, int count)
{
	int i;

	for (i = 0; i < count; i++) {
		to[i].addr = cpu_to_le64(from[i].addr);
		to[i].length = cpu_to_le32(from[i].length);
		to[i].lkey = cpu_to_le32(from[i].lkey);
	}
}

/* Copies the data of a request to place. Returns its octets, or -EINVAL if they are more than max. */
static int copy_inline(u8 *place, const struct ib_send_wr *wr, u32 max)
{
	u32 total = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		if (wr->sg_list[i].length > max - total)
			return -EINVAL;
		memcpy(place + total, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		total += wr->sg_list[i].length;
	}
	return total;
}

/* Where a send element of qp has its entries, its inline data, and their number. */
struct send_places {
	struct hw_sge *sge;
	u8 *inline_data;
	__le32 *count;
};

static struct send_places places_of(const struct vroce_qp *qp, void *element)
{
	struct hw_send_compact *compact = element;
	struct hw_send_full *full = element;

	if (qp->compact)
		return (struct send_places){ compact->sge, (u8 *)compact->sge, &compact->num_sge };
	return (struct send_places){ full->sge, full->inline_data, &full->num_sge };
}

/*
 * REG_MR. The list of pages is in memory of the region's own, which the only entry
 * names by the key of all memory.
 */
static void fill_reg(struct hw_send *head, struct send_places *p, const struct ib_reg_wr *wr, u32 dma_lkey)
{
	struct vroce_mr *mr = to_mr(wr->mr);

	head->wr.reg.mrn = cpu_to_le32(mr->mrn);
	head->wr.reg.key = cpu_to_le32(wr->key);
	head->wr.reg.access = cpu_to_le32(wr->access);
	head->wr.reg.npages = cpu_to_le32(mr->npages);
	head->wr.reg.iova = cpu_to_le64(wr->mr->iova);
	head->wr.reg.length = cpu_to_le64(wr->mr->length);
	p->sge[0].addr = cpu_to_le64(virt_to_phys(mr->pages));
	p->sge[0].length = cpu_to_le32(mr->npages * sizeof(*mr->pages));
	p->sge[0].lkey = cpu_to_le32(dma_lkey);
	*p->count = cpu_to_le32(1);
}

/* Sets opcode and operands. Returns a negative errno for what the device does not have. */
static int fill_operation(struct vroce_qp *qp, struct hw_send *head, const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_RDMA_WRITE_WITH_IMM:
		head->imm_data = (__force __le32)wr->ex.imm_data;
		fallthrough;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_READ:
		head->opcode = wr->opcode == IB_WR_RDMA_READ ? HW_OP_RDMA_READ :
			       wr->opcode == IB_WR_RDMA_WRITE ? HW_OP_RDMA_WRITE : HW_OP_RDMA_WRITE_IMM;
		head->wr.rdma.remote_addr = cpu_to_le64(rdma_wr(wr)->remote_addr);
		head->wr.rdma.rkey = cpu_to_le32(rdma_wr(wr)->rkey);
		return 0;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		head->opcode = wr->opcode == IB_WR_ATOMIC_CMP_AND_SWP ? HW_OP_ATOMIC_CMP_SWP : HW_OP_ATOMIC_FETCH_ADD;
		head->wr.atomic.remote_addr = cpu_to_le64(atomic_wr(wr)->remote_addr);
		head->wr.atomic.compare_add = cpu_to_le64(atomic_wr(wr)->compare_add);
		head->wr.atomic.swap = cpu_to_le64(atomic_wr(wr)->swap);
		head->wr.atomic.rkey = cpu_to_le32(atomic_wr(wr)->rkey);
		return 0;
	case IB_WR_SEND_WITH_INV:
		head->opcode = HW_OP_SEND_INV;
		head->imm_data = cpu_to_le32(wr->ex.invalidate_rkey);
		return 0;
	case IB_WR_LOCAL_INV:
		head->opcode = HW_OP_LOCAL_INV;
		head->imm_data = cpu_to_le32(wr->ex.invalidate_rkey);
		return 0;
	case IB_WR_REG_MR:
		head->opcode = HW_OP_REG_MR;
		return 0;
	case IB_WR_SEND_WITH_IMM:
		head->imm_data = (__force __le32)wr->ex.imm_data;
		fallthrough;
	case IB_WR_SEND:
		head->opcode = wr->opcode == IB_WR_SEND ? HW_OP_SEND : HW_OP_SEND_IMM;
		if (qp->ib.qp_type == IB_QPT_UD || qp->ib.qp_type == IB_QPT_GSI) {
			head->wr.ud.remote_qpn = cpu_to_le32(ud_wr(wr)->remote_qpn);
			head->wr.ud.remote_qkey = cpu_to_le32(ud_wr(wr)->remote_qkey);
			head->wr.ud.ah = cpu_to_le32(to_ah(ud_wr(wr)->ah)->handle);
		}
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

static int fill_send(struct vroce_qp *qp, void *element, const struct ib_send_wr *wr)
{
	struct hw_send *head = element;
	struct send_places p = places_of(qp, element);
	int n;

	if (wr->num_sge > qp->max_send_sge)
		return -EINVAL;
	memset(head, 0, sizeof(*head));
	n = fill_operation(qp, head, wr);
	if (n)
		return n;
	head->send_flags = (wr->send_flags & IB_SEND_FENCE ? HW_SEND_FENCE : 0) |
			   (wr->send_flags & IB_SEND_SIGNALED || qp->signal_all ? HW_SEND_SIGNALED : 0) |
			   (wr->send_flags & IB_SEND_SOLICITED ? HW_SEND_SOLICITED : 0);
	if (wr->opcode == IB_WR_REG_MR) {
		fill_reg(head, &p, reg_wr(wr), qp->ib.pd->local_dma_lkey);
	} else if (wr->send_flags & IB_SEND_INLINE && wr->num_sge) {
		n = copy_inline(p.inline_data, wr, qp->max_inline);
		if (n < 0)
			return n;
		head->send_flags |= HW_SEND_INLINE;
		*p.count = cpu_to_le32(n);
	} else {
		fill_sges(p.sge, wr->sg_list, wr->num_sge);
		*p.count = cpu_to_le32(wr->num_sge);
	}
	return 0;
}

int vroce_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_qp *qp = to_qp(ib);
	struct vroce_queue *q = &qp->send;
	unsigned long flags;
	int err = 0;
	u16 old;

	if (ib->uobject) {
		*bad = wr;
		return wr ? -EOPNOTSUPP : kick_for_program(q);
	}
	spin_lock_irqsave(&q->lock, flags);
	old = q->ring->avail_idx;
	for (; wr; wr = wr->next) {
		struct hw_send *element = vroce_element(q, q->next);

		err = is_full(q) ? -ENOMEM : fill_send(qp, element, wr);
		if (err) {
			*bad = wr;
			break;
		}
		element->wr_id = cpu_to_le64(VROCE_COOKIE_SEND | q->next);
		add_request(verbs, q, wr->wr_id);
	}
	publish(verbs, q, old);
	spin_unlock_irqrestore(&q->lock, flags);
	return err;
}

static void fill_recv(struct hw_recv *e, const struct ib_recv_wr *wr, u64 wr_id)
{
	e->wr_id = cpu_to_le64(wr_id);
	e->num_sge = cpu_to_le32(wr->num_sge);
	memset(e->reserved, 0, sizeof(e->reserved));
	fill_sges(e->sge, wr->sg_list, wr->num_sge);
}

int vroce_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_qp *qp = to_qp(ib);
	struct vroce_queue *q = &qp->recv;
	unsigned long flags;
	int err = 0;
	u16 old;

	if (ib->uobject || !q->ring) {
		*bad = wr;
		return wr ? -EOPNOTSUPP : kick_for_program(q);
	}
	spin_lock_irqsave(&q->lock, flags);
	old = q->ring->avail_idx;
	for (; wr; wr = wr->next) {
		err = is_full(q) ? -ENOMEM : wr->num_sge > qp->max_recv_sge ? -EINVAL : 0;
		if (err) {
			*bad = wr;
			break;
		}
		fill_recv(vroce_element(q, q->next), wr, VROCE_COOKIE_RECV | q->next);
		add_request(verbs, q, wr->wr_id);
	}
	publish(verbs, q, old);
	spin_unlock_irqrestore(&q->lock, flags);
	return err;
}

/* Takes in the elements that the device has used, in any order. */
static int reap_srq(struct vroce_verbs *verbs, struct vroce_srq *srq)
{
	struct vroce_queue *q = &srq->queue;
	struct vroce_ring *ring = q->ring;
	u16 used = virtio16_to_cpu(verbs->card->vdev, smp_load_acquire(&ring->vr.used->idx));

	while (ring->last_used != used) {
		u32 id = virtio32_to_cpu(verbs->card->vdev,
					 ring->vr.used->ring[ring->last_used & (ring->vr.num - 1)].id);

		if (id >= q->count || srq->free_count == q->count) {
			vroce_break(verbs->card, "it used an element that a shared receive queue does not have");
			return -EIO;
		}
		srq->free[srq->free_count++] = id;
		ring->last_used++;
	}
	return 0;
}

/* Reports whether the device would take wr_id for one of a queue pair's own requests. */
static bool names_other_queue(u64 wr_id)
{
	return (wr_id & VROCE_COOKIE_KIND) == VROCE_COOKIE_SEND || (wr_id & VROCE_COOKIE_KIND) == VROCE_COOKIE_RECV;
}

int vroce_post_srq_recv(struct ib_srq *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_srq *srq = to_srq(ib);
	struct vroce_queue *q = &srq->queue;
	unsigned long flags;
	int err;
	u16 old;

	if (ib->uobject) {
		*bad = wr;
		return wr ? -EOPNOTSUPP : kick_for_program(q);
	}
	spin_lock_irqsave(&q->lock, flags);
	old = q->ring->avail_idx;
	err = reap_srq(verbs, srq);
	for (; wr; wr = wr->next) {
		u16 element;

		if (!err && !srq->free_count)
			err = -ENOMEM;
		if (!err && (wr->num_sge > srq->max_sge || names_other_queue(wr->wr_id)))
			err = -EINVAL;
		if (err) {
			*bad = wr;
			break;
		}
		element = srq->free[--srq->free_count];
		fill_recv(vroce_element(q, element), wr, wr->wr_id);
		vroce_queue_add(verbs, q, element);
	}
	publish(verbs, q, old);
	spin_unlock_irqrestore(&q->lock, flags);
	return err;
}
