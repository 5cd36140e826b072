// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Queue pairs. The number of a queue pair is the device's choice, and with it the
 * two rings.
 */
#include <linux/slab.h>
#include <rdma/ib_addr.h>

#include "verbs.h"

/* Returns the device's name of a type, or a negative errno. */
static int type_of(enum ib_qp_type type)
{
	switch (type) {
	case IB_QPT_GSI:
		return HW_QPT_GSI;
	case IB_QPT_RC:
		return HW_QPT_RC;
	case IB_QPT_UC:
		return HW_QPT_UC;
	case IB_QPT_UD:
		return HW_QPT_UD;
	default:
		return -EOPNOTSUPP;
	}
}

static int check_capacity(struct ib_device *device, const struct ib_qp_init_attr *attr, u32 max_inline)
{
	const struct ib_qp_cap *cap = &attr->cap;

	if (cap->max_send_wr > device->attrs.max_qp_wr || cap->max_recv_wr > device->attrs.max_qp_wr ||
	    cap->max_send_sge > device->attrs.max_send_sge || cap->max_recv_sge > device->attrs.max_recv_sge ||
	    cap->max_inline_data > max_inline)
		return -EINVAL;
	return 0;
}

/* The octets of a send element of qp. */
static u32 send_size(const struct vroce_qp *qp)
{
	u32 sges = qp->max_send_sge * sizeof(struct hw_sge);
	u32 size = qp->compact ? sizeof(struct hw_send_compact) + max(sges, qp->max_inline)
			       : sizeof(struct hw_send_full) + sges;

	return ALIGN(size, 64);
}

static int make_queue(struct vroce_verbs *verbs, struct vroce_queue *q, struct vroce_ring *ring, u32 count, u32 size,
		      bool for_kernel)
{
	int err = vroce_queue_init(verbs, q, ring, max(count, 1u), size, 0, false);

	return err || !for_kernel ? err : vroce_queue_for_kernel(q);
}

static int make_queues(struct vroce_verbs *verbs, struct vroce_qp *qp, const struct ib_qp_init_attr *attr,
		       bool for_kernel)
{
	u32 qpn = qp->ib.qp_num;
	u32 size = ALIGN(sizeof(struct hw_recv) + attr->cap.max_recv_sge * sizeof(struct hw_sge), 64);
	int err = make_queue(verbs, &qp->send, vroce_send_ring(verbs->card, qpn), attr->cap.max_send_wr, send_size(qp),
			     for_kernel);

	if (err || attr->srq)
		return err;
	return make_queue(verbs, &qp->recv, vroce_recv_ring(verbs->card, qpn), attr->cap.max_recv_wr, size, for_kernel);
}

static int answer_program(struct vroce_verbs *verbs, struct vroce_qp *qp, struct ib_udata *udata)
{
	struct ib_ucontext *context = vroce_context_of(udata);
	struct vroce_qp_resp resp = {
		.qpn = qp->ib.qp_num,
		.flags = (qp->compact ? VROCE_QP_COMPACT : 0) | (qp->recv.ring ? 0 : VROCE_QP_SRQ),
		.max_inline = qp->max_inline,
	};
	int err = vroce_queue_map(verbs, &qp->send, context, &resp.send);

	if (!err && qp->recv.ring)
		err = vroce_queue_map(verbs, &qp->recv, context, &resp.recv);
	return err ?: ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen));
}

static void free_queues(struct vroce_verbs *verbs, struct vroce_qp *qp)
{
	vroce_queue_free(verbs, &qp->send);
	vroce_queue_free(verbs, &qp->recv);
}

/* What the device can do at the creation of a queue pair. */
static u32 create_flags(const struct vroce_verbs *verbs, enum ib_qp_type type)
{
	return verbs->extensions & HW_CAP_MCAST && type == IB_QPT_UD ? IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK : 0;
}

int vroce_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	u32 max_inline = verbs->extensions ? le32_to_cpu(verbs->limits.max_inline) : HW_INLINE;
	struct vroce_qp *qp = to_qp(ib);
	int type = type_of(attr->qp_type), err;
	struct hw_create_qp req;

	if (type < 0 || attr->create_flags & ~create_flags(verbs, attr->qp_type))
		return -EOPNOTSUPP;
	qp->compact = verbs->extensions & HW_CAP_SG_WQE;
	if (!qp->compact)
		max_inline = HW_INLINE;
	err = check_capacity(ib->device, attr, max_inline);
	if (err)
		return err;
	if (!udata && verbs->extensions & HW_CAP_MEM_MGT && !attr->cap.max_send_sge)
		attr->cap.max_send_sge = 1; /* the list of pages of REG_MR */
	qp->max_send_sge = attr->cap.max_send_sge;
	qp->max_recv_sge = attr->cap.max_recv_sge;
	qp->max_inline = attr->cap.max_inline_data;
	qp->signal_all = attr->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->state = IB_QPS_RESET;
	req = (struct hw_create_qp){
		.pdn = cpu_to_le32(to_pd(ib->pd)->pdn),
		.qp_type = type,
		.sq_sig_all = qp->signal_all,
		.send_cqn = cpu_to_le32(to_cq(attr->send_cq)->cqn),
		.recv_cqn = cpu_to_le32(to_cq(attr->recv_cq)->cqn),
		.cap = {
			.max_send_wr = cpu_to_le32(attr->cap.max_send_wr),
			.max_recv_wr = cpu_to_le32(attr->srq ? 0 : attr->cap.max_recv_wr),
			.max_send_sge = cpu_to_le32(attr->cap.max_send_sge),
			.max_recv_sge = cpu_to_le32(attr->srq ? 0 : attr->cap.max_recv_sge),
			.max_inline_data = cpu_to_le32(attr->cap.max_inline_data),
		},
		.srqn1 = cpu_to_le32(attr->srq ? to_srq(attr->srq)->srqn + 1 : 0),
		.qp_flags = cpu_to_le32((qp->compact ? HW_QP_SG_WQE : 0) |
					(attr->create_flags ? HW_QP_BLOCK_SELF_MCAST : 0)),
	};
	mutex_lock(&verbs->objects);
	err = vroce_create_numbered(verbs, &vroce_numbered_qp, &req, sizeof(req), &ib->qp_num);
	if (err)
		goto unlock;
	err = make_queues(verbs, qp, attr, !udata);
	if (!err && udata)
		err = answer_program(verbs, qp, udata);
	if (!err)
		err = xa_err(xa_store(&verbs->qps, ib->qp_num, qp, GFP_KERNEL));
	if (err) {
		vroce_destroy(verbs, HW_DESTROY_QP, ib->qp_num);
		free_queues(verbs, qp);
	}
unlock:
	mutex_unlock(&verbs->objects);
	return err;
}

void vroce_fill_ah(struct hw_ah_attr *hw, const struct rdma_ah_attr *attr)
{
	const struct ib_global_route *grh = rdma_ah_read_grh(attr);

	memset(hw, 0, sizeof(*hw));
	memcpy(hw->dgid, grh->dgid.raw, sizeof(hw->dgid));
	hw->flow_label = cpu_to_le32(grh->flow_label);
	hw->sgid_index = grh->sgid_index;
	hw->hop_limit = grh->hop_limit;
	hw->traffic_class = grh->traffic_class;
	memcpy(hw->dmac, attr->roce.dmac, ETH_ALEN);
}

static u32 mask_of(int mask)
{
	static const struct {
		int verbs;
		u32 hw;
	} map[] = {
		{ IB_QP_STATE, HW_ATTR_STATE },
		{ IB_QP_CUR_STATE, HW_ATTR_CUR_STATE },
		{ IB_QP_ACCESS_FLAGS, HW_ATTR_ACCESS_FLAGS },
		{ IB_QP_QKEY, HW_ATTR_QKEY },
		{ IB_QP_AV, HW_ATTR_AV },
		{ IB_QP_PATH_MTU, HW_ATTR_PATH_MTU },
		{ IB_QP_TIMEOUT, HW_ATTR_TIMEOUT },
		{ IB_QP_RETRY_CNT, HW_ATTR_RETRY_CNT },
		{ IB_QP_RNR_RETRY, HW_ATTR_RNR_RETRY },
		{ IB_QP_RQ_PSN, HW_ATTR_RQ_PSN },
		{ IB_QP_MAX_QP_RD_ATOMIC, HW_ATTR_MAX_QP_RD_ATOMIC },
		{ IB_QP_MIN_RNR_TIMER, HW_ATTR_MIN_RNR_TIMER },
		{ IB_QP_SQ_PSN, HW_ATTR_SQ_PSN },
		{ IB_QP_MAX_DEST_RD_ATOMIC, HW_ATTR_MAX_DEST_RD_ATOMIC },
		{ IB_QP_DEST_QPN, HW_ATTR_DEST_QPN },
		{ IB_QP_RATE_LIMIT, HW_ATTR_RATE_LIMIT },
	};
	unsigned int i;
	u32 hw = 0;

	for (i = 0; i < ARRAY_SIZE(map); i++)
		if (mask & map[i].verbs)
			hw |= map[i].hw;
	return hw;
}

static void forget_completions(struct ib_qp *ib)
{
	vroce_cq_forget(to_cq(ib->send_cq), ib->qp_num);
	if (ib->recv_cq != ib->send_cq)
		vroce_cq_forget(to_cq(ib->recv_cq), ib->qp_num);
}

/* The device has returned all elements without completions. */
static void after_reset(struct ib_qp *ib)
{
	struct vroce_queue *queues[] = { &to_qp(ib)->send, &to_qp(ib)->recv };
	unsigned int i;

	forget_completions(ib);
	for (i = 0; i < ARRAY_SIZE(queues); i++) {
		queues[i]->oldest = queues[i]->next;
		atomic_set(&queues[i]->open, 0);
	}
}

int vroce_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	enum ib_qp_state from = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : to_qp(ib)->state;
	enum ib_qp_state to = mask & IB_QP_STATE ? attr->qp_state : from;
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct hw_modify_qp req = { .qpn = cpu_to_le32(ib->qp_num), .attr_mask = cpu_to_le32(mask_of(mask)) };
	struct vroce_qp *qp = to_qp(ib);
	int err;

	if (mask & ~(IB_QP_ATTR_STANDARD_BITS | IB_QP_RATE_LIMIT) || mask & (IB_QP_ALT_PATH | IB_QP_PATH_MIG_STATE) ||
	    !ib_modify_qp_is_ok(from, to, ib->qp_type, mask & ~IB_QP_RATE_LIMIT))
		return -EINVAL;
	if (mask & IB_QP_EN_SQD_ASYNC_NOTIFY && attr->en_sqd_async_notify)
		return -EOPNOTSUPP;
	if ((mask & IB_QP_PORT && attr->port_num != 1) || (mask & IB_QP_PKEY_INDEX && attr->pkey_index))
		return -EINVAL;
	req.qp_state = to;
	req.cur_qp_state = attr->cur_qp_state;
	req.path_mtu = attr->path_mtu;
	req.max_rd_atomic = attr->max_rd_atomic;
	req.max_dest_rd_atomic = attr->max_dest_rd_atomic;
	req.min_rnr_timer = attr->min_rnr_timer;
	req.timeout = attr->timeout;
	req.retry_cnt = attr->retry_cnt;
	req.rnr_retry = attr->rnr_retry;
	req.qkey = cpu_to_le32(attr->qkey);
	req.rq_psn = cpu_to_le32(attr->rq_psn);
	req.sq_psn = cpu_to_le32(attr->sq_psn);
	req.dest_qp_num = cpu_to_le32(attr->dest_qp_num);
	req.qp_access_flags = cpu_to_le32(attr->qp_access_flags &
					  (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ |
					   IB_ACCESS_REMOTE_ATOMIC));
	req.rate_limit = cpu_to_le32(attr->rate_limit);
	if (mask & IB_QP_AV)
		vroce_fill_ah(&req.ah_attr, &attr->ah_attr);
	err = vroce_do(verbs, HW_MODIFY_QP, &req, false);
	if (READ_ONCE(verbs->card->broken) && to == IB_QPS_ERR)
		err = 0; /* it sends nothing more */
	if (!err && mask & IB_QP_STATE) {
		WRITE_ONCE(qp->state, to);
		if (to == IB_QPS_RESET)
			after_reset(ib);
	}
	return err;
}

int vroce_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init)
{
	struct hw_query_qp req = { .qpn = cpu_to_le32(ib->qp_num) };
	struct vroce_qp *qp = to_qp(ib);
	struct hw_query_qp_result res;
	int err = vroce_call(to_verbs(ib->device), HW_QUERY_QP, &req, &res);

	if (err)
		return err;
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = res.qp_state;
	attr->cur_qp_state = res.qp_state;
	attr->path_mtu = res.path_mtu;
	attr->path_mig_state = IB_MIG_MIGRATED;
	attr->qkey = le32_to_cpu(res.qkey);
	attr->rq_psn = le32_to_cpu(res.rq_psn);
	attr->sq_psn = le32_to_cpu(res.sq_psn);
	attr->dest_qp_num = le32_to_cpu(res.dest_qp_num);
	attr->qp_access_flags = le32_to_cpu(res.qp_access_flags);
	attr->sq_draining = res.sq_draining;
	attr->max_rd_atomic = res.max_rd_atomic;
	attr->max_dest_rd_atomic = res.max_dest_rd_atomic;
	attr->min_rnr_timer = res.min_rnr_timer;
	attr->port_num = 1;
	attr->timeout = res.timeout;
	attr->retry_cnt = res.retry_cnt;
	attr->rnr_retry = res.rnr_retry;
	attr->rate_limit = le32_to_cpu(res.rate_limit);
	attr->cap.max_send_wr = qp->send.count;
	attr->cap.max_recv_wr = qp->recv.ring ? qp->recv.count : 0;
	attr->cap.max_send_sge = qp->max_send_sge;
	attr->cap.max_recv_sge = qp->max_recv_sge;
	attr->cap.max_inline_data = qp->max_inline;
	attr->ah_attr.type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_grh(&attr->ah_attr, NULL, le32_to_cpu(res.ah_attr.flow_label), res.ah_attr.sgid_index,
			res.ah_attr.hop_limit, res.ah_attr.traffic_class);
	rdma_ah_set_dgid_raw(&attr->ah_attr, res.ah_attr.dgid);
	rdma_ah_set_port_num(&attr->ah_attr, 1);
	memcpy(attr->ah_attr.roce.dmac, res.ah_attr.dmac, ETH_ALEN);
	init->qp_context = ib->qp_context;
	init->send_cq = ib->send_cq;
	init->recv_cq = ib->recv_cq;
	init->srq = ib->srq;
	init->cap = attr->cap;
	init->sq_sig_type = qp->signal_all ? IB_SIGNAL_ALL_WR : IB_SIGNAL_REQ_WR;
	init->qp_type = ib->qp_type;
	return 0;
}

int vroce_destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_qp *qp = to_qp(ib);
	int err;

	mutex_lock(&verbs->objects);
	err = vroce_destroy(verbs, HW_DESTROY_QP, ib->qp_num);
	if (!err) {
		xa_erase(&verbs->qps, ib->qp_num);
		forget_completions(ib);
		free_queues(verbs, qp);
	}
	mutex_unlock(&verbs->objects);
	return err;
}

static int multicast(struct ib_qp *ib, u8 command, const union ib_gid *gid)
{
	struct hw_attach_mcast req = { .qpn = cpu_to_le32(ib->qp_num) };
	struct vroce_verbs *verbs = to_verbs(ib->device);

	if (!(verbs->extensions & HW_CAP_MCAST))
		return -EOPNOTSUPP;
	memcpy(req.gid, gid->raw, sizeof(req.gid));
	return vroce_do(verbs, command, &req, false);
}

int vroce_attach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	return multicast(ib, HW_ATTACH_MCAST, gid);
}

int vroce_detach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	return multicast(ib, HW_DETACH_MCAST, gid);
}
