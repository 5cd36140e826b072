// SPDX-License-Identifier: Apache-2.0
// Calls verbs that rdma-core 65 has and 44 has not, on the first device, built
// with the header of the former. Prints "newer: ok" if each one answers as it should.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>

static int failed;

#define CHECK(cond)                                                                       \
	do {                                                                              \
		if (!(cond)) {                                                            \
			printf("line %d: %s: not so (errno %d)\n", __LINE__, #cond, errno); \
			failed = 1;                                                       \
		}                                                                         \
	} while (0)

// Whether a call fails with EOPNOTSUPP, told by errno.
#define UNSUPPORTED(call) (errno = 0, (call) && errno == EOPNOTSUPP)

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = c ? ibv_alloc_pd(c) : NULL;
	struct ibv_mr_init_attr region = { .length = 4096, .access = IBV_ACCESS_LOCAL_WRITE };
	struct ibv_comp_cntr_init_attr counter = { 0 };
	struct ibv_alloc_dm_attr memory = { .length = 4096 };
	struct ibv_dmah_init_attr handle = { 0 };
	struct ibv_comp_cntr_caps caps;
	struct ibv_port_attr port;
	struct ibv_buf *buf;
	struct ibv_mr *mr;
	uint64_t speed;
	void *mem;

	CHECK(pd);
	if (!pd)
		return 1;
	CHECK(UNSUPPORTED(!ibv_alloc_dmah(c, &handle)));
	CHECK(UNSUPPORTED(!ibv_create_comp_cntr(c, &counter)));
	CHECK(UNSUPPORTED(!ibv_alloc_dm(c, &memory)));
	CHECK(UNSUPPORTED(!ibv_alloc_null_mr(pd)));
	CHECK(ibv_query_comp_cntr_caps(c, &caps) == EOPNOTSUPP);
	CHECK(ibv_query_port_speed(c, 1, &speed) == EOPNOTSUPP);
	CHECK(!ibv_query_port(c, 1, &port) && port.active_speed && !port.active_speed_ex);
	mem = ibv_alloc_buf(pd, 4096, &buf);
	CHECK(mem);
	mr = ibv_reg_buf_mr(pd, buf, mem, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && !ibv_dereg_mr(mr));
	region.comp_mask = IBV_REG_MR_MASK_ADDR;
	region.addr = mem;
	mr = ibv_reg_mr_ex(pd, &region);
	CHECK(mr && !ibv_dereg_mr(mr));
	ibv_free_buf(buf);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(c));
	if (!failed)
		puts("newer: ok");
	return failed;
}
