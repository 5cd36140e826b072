/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of a session: a fork, a node that is gone, descriptors that the program closed. */
#include "verbs_test.h"

void test_fork(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0), *ev;
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 8);
	struct ibv_async_event e;
	struct ibv_wc wc;
	void *cookie;
	int status;
	pid_t pid;

	ready(a, a->qp_num);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		/* Everything of the parent answers with an error and goes quietly. */
		failures = 0;
		CHECK(post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0) == EIO);
		CHECK(recv_one(a, 0, buf, 8) == EIO && ibv_poll_cq(cq, 1, &wc) < 0 && ibv_req_notify_cq(cq, 0) == EIO);
		CHECK(!ibv_reg_mr(pd, buf, 64, 0) && errno == EIO);
		CHECK(ibv_get_cq_event(ch, &ev, &cookie) == -1 && ibv_get_async_event(ctx, &e) == -1);
		CHECK(!ibv_destroy_qp(a) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch));
		CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
		_exit(failures);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0) && await(cq, &wc, 1) == 1);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch));
}

static void *waiter(void *ch)
{
	struct ibv_cq *ev;
	void *cookie;

	CHECK(ibv_get_cq_event(ch, &ev, &cookie) == -1 && errno == EIO);
	return NULL;
}

void test_lost(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 8);
	struct ibv_async_event e;
	struct ibv_wc wc;
	pthread_t t;

	ready(a, a->qp_num);
	CHECK(!pthread_create(&t, NULL, waiter, ch));
	usleep(5000);
	fake_kill();
	CHECK(!ibv_get_async_event(ctx, &e) && e.event_type == IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&e);
	pthread_join(t, NULL);
	CHECK(post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0) == EIO);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	CHECK(!ibv_alloc_pd(ctx) && errno == EIO);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
}

/* A program that closes all descriptors and goes on: errors, no hang, and not a
 * byte into the files it opens under the same numbers. */
void test_closed(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0), *ev;
	char name[] = "/tmp/weft-closed-XXXXXX";
	struct ibv_async_event e;
	struct ibv_wc wc;
	uint64_t record;
	void *cookie;
	int file;

	for (int i = 3; i < 256; i++)
		if (!fake_owns(i))
			close(i);
	file = mkstemp(name);
	unlink(name);
	/* Half of the numbers are now of the very kind that some were before. */
	for (int fd; (fd = eventfd(0, EFD_NONBLOCK)) >= 0 && fd < 64 && (fd = dup(file)) < 64;)
		;
	usleep(50000); /* the node sleeps: only a descriptor could wake it */
	CHECK(!ibv_alloc_pd(ctx) && errno == EIO);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0 && ibv_req_notify_cq(cq, 0) == EIO);
	CHECK(ibv_get_cq_event(ch, &ev, &cookie) == -1 && ibv_get_async_event(ctx, &e) == -1);
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	CHECK(lseek(file, 0, SEEK_END) == 0);
	for (int i = 3; i < 64; i++)
		CHECK(fcntl(i, F_GETFD) >= 0 && (fake_owns(i) || read(i, &record, 8) <= 0));
	free(buf);
}
