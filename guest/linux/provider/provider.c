// SPDX-License-Identifier: Apache-2.0
/* Registration with libibverbs, contexts and objects. */
#include "provider.h"

#include <stdlib.h>
#include <unistd.h>

/*
 * rdma-core 34 and 35 also have the private ABI 34, with another order of
 * operations. This symbol is not in them, so the dynamic linker refuses the
 * provider there.
 */
__attribute__((used)) static int (*const needs_rdma_core_36)(struct ibv_qp *, enum ibv_wr_opcode, uint32_t) =
	ibv_query_qp_data_in_order;

/* ---- answers of the kernel: its own part, then the module's ---- */

struct context_answer {
	struct ib_uverbs_get_context_resp core;
	struct vroce_context_resp module;
};

struct pd_answer {
	struct ib_uverbs_alloc_pd_resp core;
	struct vroce_pd_resp module;
};

struct ah_answer {
	struct ib_uverbs_create_ah_resp core;
	struct vroce_ah_resp module;
};

NO_PADDING(context_answer);
NO_PADDING(pd_answer);
NO_PADDING(ah_answer);

/* ---- device, port ---- */

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t attr_size)
{
	struct ib_uverbs_ex_query_device_resp resp;
	size_t resp_size = sizeof(resp);
	int error = ibv_cmd_query_device_any(context, input, attr, attr_size, &resp, &resp_size);

	if (!error)
		strcpy(attr->orig_attr.fw_ver, "1.0");
	return error;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	struct ibv_query_port cmd;

	return ibv_cmd_query_port(context, port, attr, &cmd, sizeof(cmd));
}

/* ---- protection domains ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct vroce_pd *pd = calloc(1, sizeof(*pd));
	struct pd_answer answer = {};
	struct ibv_alloc_pd cmd;
	int error;

	if (!pd)
		return fails(ENOMEM);
	error = ibv_cmd_alloc_pd(context, &pd->pd, &cmd, sizeof(cmd), &answer.core, sizeof(answer));
	if (error) {
		free(pd);
		return fails(error);
	}
	return &pd->pd;
}

static int dealloc_pd(struct ibv_pd *ibpd)
{
	struct vroce_pd *pd = to_pd(ibpd);
	int error;

	if (atomic_load(&pd->users))
		return EBUSY;
	if (pd->parent) {
		if (pd->td)
			pd->td->users--;
		pd->parent->users--;
		free(pd);
		return 0;
	}
	error = ibv_cmd_dealloc_pd(ibpd);
	if (!error)
		free(pd);
	return error;
}

static struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct vroce_td *td;

	if (attr->comp_mask)
		return fails(EINVAL);
	td = calloc(1, sizeof(*td));
	if (!td)
		return fails(ENOMEM);
	td->td.context = context;
	return &td->td;
}

static int dealloc_td(struct ibv_td *ibtd)
{
	struct vroce_td *td = container_of(ibtd, struct vroce_td, td);

	if (atomic_load(&td->users))
		return EBUSY;
	free(td);
	return 0;
}

static struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	struct vroce_pd *pd, *parent;

	if (!attr->pd)
		return fails(EINVAL);
	if (attr->comp_mask)
		return fails(EOPNOTSUPP);
	parent = to_pd(attr->pd);
	if (parent->parent)
		return fails(EINVAL);
	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return fails(ENOMEM);
	pd->pd.context = context;
	pd->pd.handle = parent->pd.handle;
	pd->parent = parent;
	parent->users++;
	if (attr->td) {
		pd->td = container_of(attr->td, struct vroce_td, td);
		pd->td->users++;
	}
	return &pd->pd;
}

/* ---- memory ---- */

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	struct verbs_mr *mr = calloc(1, sizeof(*mr));
	struct ib_uverbs_reg_mr_resp resp;
	struct ibv_reg_mr cmd;
	int error;

	if (!mr)
		return fails(ENOMEM);
	error = ibv_cmd_reg_mr(pd, addr, length, iova, access, mr, &cmd, sizeof(cmd), &resp, sizeof(resp));
	if (error) {
		free(mr);
		return fails(error);
	}
	return &mr->ibv_mr;
}

static int dereg_mr(struct verbs_mr *mr)
{
	int error = ibv_cmd_dereg_mr(mr);

	if (!error)
		free(mr);
	return error;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ib_uverbs_alloc_mw_resp resp;
	struct ibv_alloc_mw cmd;
	struct ibv_mw *mw;
	int error;

	if (!(to_context(pd->context)->extensions & VROCE_EXT_MW))
		return fails(EOPNOTSUPP);
	mw = calloc(1, sizeof(*mw));
	if (!mw)
		return fails(ENOMEM);
	error = ibv_cmd_alloc_mw(pd, type, mw, &cmd, sizeof(cmd), &resp, sizeof(resp));
	if (error) {
		free(mw);
		return fails(error);
	}
	return mw;
}

static int dealloc_mw(struct ibv_mw *mw)
{
	int error = ibv_cmd_dealloc_mw(mw);

	if (!error)
		free(mw);
	return error;
}

/* ---- address handles ---- */

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct vroce_ah *ah = calloc(1, sizeof(*ah));
	struct ah_answer answer = {};
	int error;

	if (!ah)
		return fails(ENOMEM);
	error = ibv_cmd_create_ah(pd, &ah->ah, attr, &answer.core, sizeof(answer));
	if (error) {
		free(ah);
		return fails(error);
	}
	ah->number = answer.module.ah;
	return &ah->ah;
}

static int destroy_ah(struct ibv_ah *ah)
{
	int error = ibv_cmd_destroy_ah(ah);

	if (!error)
		free(to_ah(ah));
	return error;
}

/* ---- contexts, registration ---- */

static void free_context(struct ibv_context *ibv)
{
	struct vroce_context *context = to_context(ibv);

	verbs_uninit_context(&context->verbs);
	pthread_mutex_destroy(&context->numbers);
	free(context);
}

static const struct verbs_context_ops operations = {
	.alloc_mw = alloc_mw,
	.alloc_parent_domain = alloc_parent_domain,
	.alloc_pd = alloc_pd,
	.alloc_td = alloc_td,
	.attach_mcast = ibv_cmd_attach_mcast,
	.bind_mw = vroce_bind_mw,
	.create_ah = create_ah,
	.create_cq = vroce_create_cq,
	.create_cq_ex = vroce_create_cq_ex,
	.create_qp = vroce_create_qp,
	.create_qp_ex = vroce_create_qp_ex,
	.create_srq = vroce_create_srq,
	.dealloc_mw = dealloc_mw,
	.dealloc_pd = dealloc_pd,
	.dealloc_td = dealloc_td,
	.dereg_mr = dereg_mr,
	.destroy_ah = destroy_ah,
	.destroy_cq = vroce_destroy_cq,
	.destroy_qp = vroce_destroy_qp,
	.destroy_srq = vroce_destroy_srq,
	.detach_mcast = ibv_cmd_detach_mcast,
	.free_context = free_context,
	.modify_qp = vroce_modify_qp,
	.modify_srq = vroce_modify_srq,
	.poll_cq = vroce_poll_cq,
	.post_recv = vroce_post_recv,
	.post_send = vroce_post_send,
	.post_srq_recv = vroce_post_srq_recv,
	.query_device_ex = query_device_ex,
	.query_port = query_port,
	.query_qp = vroce_query_qp,
	.query_srq = vroce_query_srq,
	.reg_mr = reg_mr,
	.req_notify_cq = vroce_req_notify_cq,
};

static struct verbs_context *alloc_context(struct ibv_device *device, int cmd_fd, void *private_data)
{
	struct vroce_context *context;
	struct context_answer answer = {};
	struct ibv_get_context cmd;

	(void)private_data;
	context = _verbs_init_and_alloc_context(device, cmd_fd, sizeof(*context),
						(struct verbs_context *)offsetof(struct vroce_context, verbs),
						VERBS_DRIVER_UNKNOWN);
	if (!context)
		return NULL;
	if (ibv_cmd_get_context(&context->verbs, &cmd, sizeof(cmd), &answer.core, sizeof(answer))) {
		verbs_uninit_context(&context->verbs);
		free(context);
		return NULL;
	}
	context->extensions = answer.module.extensions;
	context->event_idx = answer.module.flags & VROCE_CONTEXT_EVENT_IDX;
	context->page_size = sysconf(_SC_PAGESIZE);
	pthread_mutex_init(&context->numbers, NULL);
	verbs_set_ops(&context->verbs, &operations);
	return &context->verbs;
}

static struct verbs_device *alloc_device(struct verbs_sysfs_dev *sysfs_dev)
{
	(void)sysfs_dev;
	return calloc(1, sizeof(struct verbs_device));
}

static void uninit_device(struct verbs_device *device)
{
	free(device);
}

/* Network devices of virtio. Only the module virtio_roce makes an RDMA device of one. */
static const struct verbs_match_ent matches[] = {
	{ .u.modalias = "virtio:d00000001v*", .kind = VERBS_MATCH_MODALIAS },
	{ .kind = VERBS_MATCH_SENTINEL },
};

static const struct verbs_device_ops device_operations = {
	.name = "vroce",
	.match_min_abi_version = VROCE_ABI_VERSION,
	.match_max_abi_version = VROCE_ABI_VERSION,
	.match_table = matches,
	.alloc_device = alloc_device,
	.uninit_device = uninit_device,
	.alloc_context = alloc_context,
};

static __attribute__((constructor)) void register_driver(void)
{
	vroce_one_processor = sysconf(_SC_NPROCESSORS_CONF) == 1;
	verbs_register_driver_34(&device_operations);
}
