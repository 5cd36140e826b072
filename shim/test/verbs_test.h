/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the verbs share: the device, memory, and queue pairs that are ready. */
#ifndef VERBS_TEST_H
#define VERBS_TEST_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../weft_abi.h"
#include "check.h"
#include "fake_node.h"

extern struct ibv_context *ctx;
extern struct ibv_pd *pd;
extern struct ibv_mr *mr;
extern uint8_t *buf;

#define BUF (256 << 10)

/* Polls until n completions came or some seconds passed. */
static inline int await(struct ibv_cq *cq, struct ibv_wc *wc, int n)
{
	time_t end = time(NULL) + 3;
	int got = 0;

	while (got < n && time(NULL) < end) {
		int k = ibv_poll_cq(cq, n - got, wc + got);

		if (k < 0)
			return k;
		got += k;
	}
	return got;
}

static inline struct ibv_qp *new_qp(enum ibv_qp_type type, struct ibv_cq *cq, struct ibv_srq *srq, int depth)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type,
				      .cap = { depth, srq ? 0 : depth, 4, 4, 64 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);

	CHECK(qp);
	CHECK(a.cap.max_send_wr >= (uint32_t)depth && a.cap.max_inline_data >= 64);
	return qp;
}

static inline void move(struct ibv_qp *qp, enum ibv_qp_state to, uint32_t peer)
{
	struct ibv_qp_attr a = { .qp_state = to, .dest_qp_num = peer, .port_num = 1,
				 .ah_attr = { .is_global = 1, .port_num = 1 } };

	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | (to == IBV_QPS_RTR ? IBV_QP_DEST_QPN | IBV_QP_AV : 0)));
	CHECK(qp->state == to);
}

static inline void ready(struct ibv_qp *qp, uint32_t peer)
{
	move(qp, IBV_QPS_INIT, 0);
	move(qp, IBV_QPS_RTR, peer);
	move(qp, IBV_QPS_RTS, 0);
}

static inline int post(struct ibv_qp *qp, enum ibv_wr_opcode op, uint8_t *from, uint32_t len, uint8_t *to, int flags)
{
	struct ibv_sge sg = { (uintptr_t)from, len, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sg, .num_sge = 1, .opcode = op,
				  .send_flags = IBV_SEND_SIGNALED | flags, .imm_data = htonl(0x01020304) }, *bad = NULL;
	int err;

	wr.wr.rdma.remote_addr = (uintptr_t)to;
	wr.wr.rdma.rkey = mr->rkey;
	err = ibv_post_send(qp, &wr, &bad);
	CHECK(!err == !bad);
	return err;
}

static inline int recv_one(struct ibv_qp *qp, uint64_t id, uint8_t *to, uint32_t len)
{
	struct ibv_sge sg = { (uintptr_t)to, len, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

/* verbs_memory_test.c */
void test_memory(void);
/* Hides the ioctl of Linux 6.11 that looks mappings up. */
void before_6_11(void);

/* verbs_end_test.c */
void test_fork(void);
void test_lost(void);
void test_closed(void);

#endif
