/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that fail, for what the library prints of them (WEFT_EXPLAIN): run.sh compares it. The second argument is the
 * exit status; with a third, "missing", only verbs that Weft does not have are called, and with "killed" the node ends
 * after them. With "limit" the program ends once a limit has refused a queue pair, with "probed" once it has made a
 * smaller one. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fake_node.h"

static void missing(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_xrcd_init_attr xrcd = { .fd = -1, .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };
	struct ibv_modify_cq_attr moderate = { .attr_mask = 0 };
	struct ibv_qp_init_attr raw = { .qp_type = IBV_QPT_RAW_PACKET };
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);

	CHECK(!ibv_open_xrcd(ctx, &xrcd) && errno == EOPNOTSUPP);
	CHECK(!ibv_alloc_dm(ctx, &dm) && errno == EOPNOTSUPP);
	CHECK(!ibv_alloc_null_mr(pd) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 64, 0, 3, 0) && errno == EOPNOTSUPP);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == EOPNOTSUPP);
	raw.send_cq = raw.recv_cq = cq;
	CHECK(!ibv_create_qp(pd, &raw) && errno == EOPNOTSUPP);
	CHECK(cq && ibv_modify_cq(cq, &moderate) == EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	struct ibv_port_attr port;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1u << 20, 4, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .ah_attr = { .port_num = 1 } };
	struct ibv_device **list;
	struct ibv_context *ctx;
	struct ibv_qp *qp;
	struct ibv_pd *pd;

	if (argc < 3)
		return 2;
	fake_exec(argv, argv[1]);
	unsetenv("LD_PRELOAD");
	fake_start();
	list = ibv_get_device_list(NULL);
	ctx = ibv_open_device(list[0]);
	pd = ibv_alloc_pd(ctx);
	missing(ctx, pd);
	if (argc > 3 && strcmp(argv[3], "killed") == 0) {
		fake_kill();
		while (ibv_query_port(ctx, 1, &port) == 0)
			usleep(1000);
	}
	if (argc > 3 && (strcmp(argv[3], "missing") == 0 || strcmp(argv[3], "killed") == 0))
		exit(failures ? 9 : atoi(argv[2]));
	init.send_cq = init.recv_cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	CHECK(pd && init.send_cq);
	CHECK(!ibv_reg_mr(pd, (void *)0x1000, 4096, IBV_ACCESS_ON_DEMAND));
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	if (argc > 3 && strcmp(argv[3], "limit") == 0)
		exit(failures ? 9 : atoi(argv[2]));
	init.cap.max_send_wr = 4;
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	if (argc > 3)
		exit(failures ? 9 : atoi(argv[2]));
	attr.ah_attr.port_num = 7;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_AV) == EINVAL && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, (void *)0x1000, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	exit(failures ? 9 : atoi(argv[2]));
}
