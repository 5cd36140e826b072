// SPDX-License-Identifier: Apache-2.0
/*
 * What this version does not do. Every public function that takes an object is
 * defined all the same: a call that reached the real library with an object of
 * this one would run through tables that are not there. The operations that
 * programs reach through the context stay NULL, which verbs.h tests for.
 */
#include "weft.h"

static void *none(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

static int no(void)
{
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

WEFT_PUBLIC struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
					     uint64_t iova, int fd, int access)
{
	WEFT_FORWARD(pd->context, NULL, ibv_reg_dmabuf_mr, pd, offset, length, iova, fd, access);
	return none();
}

WEFT_PUBLIC int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *attr,
					    uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
	WEFT_FORWARD(c, -1, ibv_resolve_eth_l2_from_gid, c, attr, mac, vid);
	no();
	return -1;
}

WEFT_PUBLIC int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	WEFT_FORWARD(qp->context, errno, ibv_set_ece, qp, ece);
	return no();
}

WEFT_PUBLIC int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	WEFT_FORWARD(qp->context, errno, ibv_query_ece, qp, ece);
	return no();
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
	return none();
}

WEFT_PUBLIC void ibv_unimport_dm(struct ibv_dm *dm)
{
	WEFT_FORWARD(dm->context, , ibv_unimport_dm, dm);
}
