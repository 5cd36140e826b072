/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that fail, for what the library prints of them (WEFT_EXPLAIN): run.sh compares it. The second argument is the
 * exit status. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdlib.h>

#include "check.h"
#include "fake_node.h"

int main(int argc, char **argv)
{
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
	init.send_cq = init.recv_cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	CHECK(pd && init.send_cq);
	CHECK(!ibv_reg_mr(pd, (void *)0x1000, 4096, IBV_ACCESS_ON_DEMAND));
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init.cap.max_send_wr = 4;
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	attr.ah_attr.port_num = 7;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_AV) == EINVAL && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, (void *)0x1000, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	exit(failures ? 9 : atoi(argv[2]));
}
