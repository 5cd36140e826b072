// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Shared receive queues. A shared receive queue has a number of the queue pairs,
 * and uses the receive ring of that number.
 */
#include <linux/slab.h>

#include "verbs.h"

static int answer_program(struct vroce_verbs *verbs, struct vroce_srq *srq, struct ib_udata *udata)
{
	struct vroce_srq_resp resp = { .srqn = srq->srqn };
	int err = vroce_queue_map(verbs, &srq->queue, vroce_context_of(udata), &resp.ring);

	return err ?: ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen));
}

/* Makes the list of free elements, which the kernel takes in any order. */
static int make_free_list(struct vroce_srq *srq)
{
	u32 i;

	srq->free = kvcalloc(srq->queue.count, sizeof(*srq->free), GFP_KERNEL);
	if (!srq->free)
		return -ENOMEM;
	for (i = 0; i < srq->queue.count; i++)
		srq->free[i] = srq->queue.count - 1 - i;
	srq->free_count = srq->queue.count;
	return 0;
}

int vroce_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *attr, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_srq *srq = to_srq(ib);
	struct hw_create_srq req = {
		.pdn = cpu_to_le32(to_pd(ib->pd)->pdn),
		.max_wr = cpu_to_le32(attr->attr.max_wr),
		.max_sge = cpu_to_le32(attr->attr.max_sge),
		.limit = cpu_to_le32(attr->attr.srq_limit),
	};
	u32 size = ALIGN(sizeof(struct hw_recv) + attr->attr.max_sge * sizeof(struct hw_sge), 64);
	int err;

	if (attr->srq_type != IB_SRQT_BASIC || !(verbs->extensions & HW_CAP_SRQ))
		return -EOPNOTSUPP;
	if (!attr->attr.max_wr || attr->attr.max_wr > ib->device->attrs.max_srq_wr ||
	    attr->attr.max_sge > ib->device->attrs.max_srq_sge)
		return -EINVAL;
	mutex_lock(&verbs->objects);
	err = vroce_create_numbered(verbs, &vroce_numbered_srq, &req, sizeof(req), &srq->srqn);
	if (err)
		goto unlock;
	err = vroce_queue_init(verbs, &srq->queue, vroce_recv_ring(verbs->card, srq->srqn), attr->attr.max_wr, size, 0,
			       false);
	if (err)
		goto destroy;
	srq->max_sge = attr->attr.max_sge;
	err = udata ? answer_program(verbs, srq, udata) : make_free_list(srq);
	if (err)
		goto destroy;
	err = xa_err(xa_store(&verbs->srqs, srq->srqn, srq, GFP_KERNEL));
	if (err)
		goto destroy;
	goto unlock;
destroy:
	vroce_destroy(verbs, HW_DESTROY_SRQ, srq->srqn);
	vroce_queue_free(verbs, &srq->queue);
	kvfree(srq->free);
unlock:
	mutex_unlock(&verbs->objects);
	return err;
}

int vroce_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	struct hw_modify_srq req = {
		.srqn = cpu_to_le32(to_srq(ib)->srqn),
		.mask = cpu_to_le32(HW_SRQ_LIMIT),
		.limit = cpu_to_le32(attr->srq_limit),
	};

	if (mask & IB_SRQ_MAX_WR)
		return -EOPNOTSUPP;
	return mask & IB_SRQ_LIMIT ? vroce_do(to_verbs(ib->device), HW_MODIFY_SRQ, &req, false) : 0;
}

int vroce_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr)
{
	struct hw_handle req = { .handle = cpu_to_le32(to_srq(ib)->srqn) };
	struct hw_query_srq_result res;
	int err = vroce_call(to_verbs(ib->device), HW_QUERY_SRQ, &req, &res);

	if (err)
		return err;
	attr->max_wr = le32_to_cpu(res.max_wr);
	attr->max_sge = le32_to_cpu(res.max_sge);
	attr->srq_limit = le32_to_cpu(res.limit);
	return 0;
}

int vroce_destroy_srq(struct ib_srq *ib, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_srq *srq = to_srq(ib);
	int err;

	mutex_lock(&verbs->objects);
	err = vroce_destroy(verbs, HW_DESTROY_SRQ, srq->srqn);
	if (!err) {
		xa_erase(&verbs->srqs, srq->srqn);
		vroce_queue_free(verbs, &srq->queue);
		kvfree(srq->free);
	}
	mutex_unlock(&verbs->objects);
	return err;
}
