// SPDX-License-Identifier: Apache-2.0
/*
 * What this version does not do. Every public function that takes an object is
 * defined all the same: a call that reached the real library with an object of
 * this one would run through tables that are not there. The operations that
 * begin something, and that programs reach through the context, are functions
 * that explain themselves; the others stay NULL, which verbs.h tests for.
 */
#include "weft.h"

static void *none(struct ibv_context *c, const char *call)
{
	weft_explain_missing(c, call);
	errno = EOPNOTSUPP;
	return NULL;
}

static int no(struct ibv_context *c, const char *call)
{
	weft_explain_missing(c, call);
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a)
{
	(void)a;
	return none(c, "ibv_open_xrcd");
}

static struct ibv_qp *open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a)
{
	(void)a;
	return none(c, "ibv_open_qp");
}

static struct ibv_flow *create_flow(struct ibv_qp *qp, struct ibv_flow_attr *a)
{
	(void)a;
	return none(qp->context, "ibv_create_flow");
}

static struct ibv_flow_action *create_flow_action_esp(struct ibv_context *c,
						      struct ibv_flow_action_esp_attr *a)
{
	(void)a;
	return none(c, "ibv_create_flow_action_esp");
}

static struct ibv_wq *create_wq(struct ibv_context *c, struct ibv_wq_init_attr *a)
{
	(void)a;
	return none(c, "ibv_create_wq");
}

static struct ibv_rwq_ind_table *create_rwq_ind_table(struct ibv_context *c,
						      struct ibv_rwq_ind_table_init_attr *a)
{
	(void)a;
	return none(c, "ibv_create_rwq_ind_table");
}

static struct ibv_dm *alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *a)
{
	(void)a;
	return none(c, "ibv_alloc_dm");
}

static struct ibv_mr *alloc_null_mr(struct ibv_pd *pd)
{
	return none(pd->context, "ibv_alloc_null_mr");
}

static struct ibv_counters *create_counters(struct ibv_context *c, struct ibv_counters_init_attr *a)
{
	(void)a;
	return none(c, "ibv_create_counters");
}

static int advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
		     struct ibv_sge *sge, uint32_t n)
{
	(void)advice;
	(void)flags;
	(void)sge;
	(void)n;
	return no(pd->context, "ibv_advise_mr");
}

static int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *a)
{
	(void)a;
	return no(cq->context, "ibv_modify_cq");
}

void weft_missing_operations(struct verbs_context *v)
{
	v->open_xrcd = open_xrcd;
	v->open_qp = open_qp;
	v->ibv_create_flow = create_flow;
	v->create_flow_action_esp = create_flow_action_esp;
	v->create_wq = create_wq;
	v->create_rwq_ind_table = create_rwq_ind_table;
	v->alloc_dm = alloc_dm;
	v->alloc_null_mr = alloc_null_mr;
	v->create_counters = create_counters;
	v->advise_mr = advise_mr;
	v->modify_cq = modify_cq;
}

WEFT_PUBLIC struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
					     uint64_t iova, int fd, int access)
{
	WEFT_FORWARD(pd->context, NULL, ibv_reg_dmabuf_mr, pd, offset, length, iova, fd, access);
	return none(pd->context, "ibv_reg_dmabuf_mr");
}

WEFT_PUBLIC int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *attr,
					    uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
	WEFT_FORWARD(c, -1, ibv_resolve_eth_l2_from_gid, c, attr, mac, vid);
	no(c, "ibv_resolve_eth_l2_from_gid");
	return -1;
}

WEFT_PUBLIC int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	WEFT_FORWARD(qp->context, errno, ibv_set_ece, qp, ece);
	return no(qp->context, "ibv_set_ece");
}

WEFT_PUBLIC int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	WEFT_FORWARD(qp->context, errno, ibv_query_ece, qp, ece);
	return no(qp->context, "ibv_query_ece");
}

/* Not an error: data in memory may become visible in any order. */
WEFT_PUBLIC int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	WEFT_FORWARD(qp->context, 0, ibv_query_qp_data_in_order, qp, op, flags);
	return 0;
}

WEFT_PUBLIC struct ibv_dm *ibv_import_dm(struct ibv_context *c, uint32_t handle)
{
	WEFT_FORWARD(c, NULL, ibv_import_dm, c, handle);
	return none(c, "ibv_import_dm");
}

WEFT_PUBLIC void ibv_unimport_dm(struct ibv_dm *dm)
{
	WEFT_FORWARD(dm->context, , ibv_unimport_dm, dm);
}
