/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlopen: a program that is not linked with libibverbs but loads it itself and
 * looks its functions up by version: all that NCCL does. Between two queue pairs of
 * its own it moves bytes by SEND, WRITE and READ, and checks each; what this
 * library cannot do it must say in the way from which NCCL takes that.
 *
 * usage: dlopen LIBRARY DEVICE GID-INDEX
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

enum { SIZE = 300001, SPINS = 200000000 };

static void fail(const char *fmt, ...)
{
	va_list ap;

	fputs("dlopen: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

static void *lib;

static void *find(const char *name, const char *version)
{
	void *fn = dlvsym(lib, name, version);

	if (!fn)
		fail("no %s@%s: %s", name, version, dlerror());
	/* A lookup without a version gets the same. */
	if (dlsym(lib, name) != fn)
		fail("%s@%s is not the default", name, version);
	return fn;
}

#define DECLARE(fn) static __typeof__(&fn) my_##fn
DECLARE(ibv_get_device_list);
DECLARE(ibv_free_device_list);
DECLARE(ibv_get_device_name);
DECLARE(ibv_open_device);
DECLARE(ibv_close_device);
DECLARE(ibv_query_device);
DECLARE(ibv_query_gid);
DECLARE(ibv_query_qp);
DECLARE(ibv_query_ece);
DECLARE(ibv_set_ece);
DECLARE(ibv_get_async_event);
DECLARE(ibv_ack_async_event);
DECLARE(ibv_reg_dmabuf_mr);
DECLARE(ibv_alloc_pd);
DECLARE(ibv_dealloc_pd);
DECLARE(ibv_reg_mr);
DECLARE(ibv_reg_mr_iova2);
DECLARE(ibv_dereg_mr);
DECLARE(ibv_create_cq);
DECLARE(ibv_destroy_cq);
DECLARE(ibv_create_qp);
DECLARE(ibv_modify_qp);
DECLARE(ibv_destroy_qp);
DECLARE(ibv_fork_init);
DECLARE(ibv_wc_status_str);
DECLARE(ibv_event_type_str);
#undef DECLARE
static int (*my_ibv_query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);

static void load(const char *name)
{
	lib = dlopen(name, RTLD_NOW);
	if (!lib)
		fail("%s", dlerror());
#define FIND(fn, version) my_##fn = find(#fn, version)
	FIND(ibv_get_device_list, "IBVERBS_1.1");
	FIND(ibv_free_device_list, "IBVERBS_1.1");
	FIND(ibv_get_device_name, "IBVERBS_1.1");
	FIND(ibv_open_device, "IBVERBS_1.1");
	FIND(ibv_close_device, "IBVERBS_1.1");
	FIND(ibv_query_device, "IBVERBS_1.1");
	FIND(ibv_query_port, "IBVERBS_1.1");
	FIND(ibv_query_gid, "IBVERBS_1.1");
	FIND(ibv_query_qp, "IBVERBS_1.1");
	FIND(ibv_query_ece, "IBVERBS_1.10");
	FIND(ibv_set_ece, "IBVERBS_1.10");
	FIND(ibv_get_async_event, "IBVERBS_1.1");
	FIND(ibv_ack_async_event, "IBVERBS_1.1");
	FIND(ibv_reg_dmabuf_mr, "IBVERBS_1.12");
	FIND(ibv_alloc_pd, "IBVERBS_1.1");
	FIND(ibv_dealloc_pd, "IBVERBS_1.1");
	FIND(ibv_reg_mr, "IBVERBS_1.1");
	FIND(ibv_reg_mr_iova2, "IBVERBS_1.8");
	FIND(ibv_dereg_mr, "IBVERBS_1.1");
	FIND(ibv_create_cq, "IBVERBS_1.1");
	FIND(ibv_destroy_cq, "IBVERBS_1.1");
	FIND(ibv_create_qp, "IBVERBS_1.1");
	FIND(ibv_modify_qp, "IBVERBS_1.1");
	FIND(ibv_destroy_qp, "IBVERBS_1.1");
	FIND(ibv_fork_init, "IBVERBS_1.1");
	FIND(ibv_wc_status_str, "IBVERBS_1.1");
	FIND(ibv_event_type_str, "IBVERBS_1.1");
#undef FIND
}

static struct ibv_cq *cq;

static struct ibv_qp *queue_pair(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	struct ibv_qp *qp = my_ibv_create_qp(pd, &init);

	if (!qp)
		fail("ibv_create_qp: %m");
	if (my_ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("to INIT: %m");
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t to, union ibv_gid *gid, int index, enum ibv_mtu mtu)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = to, .rq_psn = 77,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = (uint8_t)index,
			.hop_limit = 64 } } };

	if (my_ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("to RTR: %m");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 77, .timeout = 18, .retry_cnt = 7,
		.rnr_retry = 7, .max_rd_atomic = 1 };
	if (my_ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC))
		fail("to RTS: %m");
}

static void completions(int n)
{
	struct ibv_wc wc;

	for (long spin = 0; n > 0; spin++) {
		int k = ibv_poll_cq(cq, 1, &wc);

		if (k < 0 || spin > SPINS)
			fail("ibv_poll_cq: %d, %d completions missing", k, n);
		if (k && wc.status)
			fail("completion: %s", my_ibv_wc_status_str(wc.status));
		n -= k;
	}
}

/* What a caller takes for "not supported", and not for an error. */
static void unsupported(struct ibv_pd *pd, struct ibv_qp *qp)
{
	struct ibv_ece ece = { 0 };

	errno = 0;
	if (my_ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0) || errno != EOPNOTSUPP)
		fail("ibv_reg_dmabuf_mr: %m");
	if (my_ibv_query_ece(qp, &ece) != EOPNOTSUPP || my_ibv_set_ece(qp, &ece) != EOPNOTSUPP)
		fail("ibv_query_ece, ibv_set_ece: not EOPNOTSUPP");
}

/* A queue pair that fails raises an event. */
static void event(struct ibv_context *c, struct ibv_qp *qp, struct ibv_qp *peer, struct ibv_mr *mr)
{
	struct ibv_sge s = { (uintptr_t)mr->addr, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { 0, 0 } }, *bad;
	struct ibv_async_event e;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	struct ibv_wc wc;
	int n;

	if (ibv_post_send(qp, &wr, &bad))
		fail("ibv_post_send: %m");
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	if (n < 0 || wc.status != IBV_WC_REM_ACCESS_ERR)
		fail("a WRITE that the peer forbids: %d, %s", n, my_ibv_wc_status_str(wc.status));
	if (my_ibv_get_async_event(c, &e) || e.event_type != IBV_EVENT_QP_ACCESS_ERR || e.element.qp != peer)
		fail("event: %d, %s", (int)e.event_type, my_ibv_event_type_str(e.event_type));
	my_ibv_ack_async_event(&e);
	if (my_ibv_query_qp(qp, &a, IBV_QP_STATE, &init) || a.qp_state != IBV_QPS_ERR)
		fail("ibv_query_qp: state %d", a.qp_state);
}

int main(int argc, char **argv)
{
	static uint8_t from[SIZE], to[SIZE];
	static const struct { enum ibv_wr_opcode op; int done; } ways[] = {
		{ IBV_WR_SEND, 2 }, { IBV_WR_RDMA_WRITE, 1 }, { IBV_WR_RDMA_READ, 1 } };
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_context *c = NULL;
	struct ibv_device **list;
	struct ibv_qp *a, *b;
	struct ibv_mr *fm, *tm;
	struct ibv_pd *pd;
	union ibv_gid gid;
	int n, index;

	if (argc != 4) {
		fputs("usage: dlopen LIBRARY DEVICE GID-INDEX\n", stderr);
		return 2;
	}
	load(argv[1]);
	index = atoi(argv[3]);
	if (my_ibv_fork_init())
		fail("ibv_fork_init: %m");
	list = my_ibv_get_device_list(&n);
	for (int i = 0; list && i < n; i++)
		if (!strcmp(my_ibv_get_device_name(list[i]), argv[2]))
			c = my_ibv_open_device(list[i]);
	if (!c)
		fail("cannot open %s among %d devices: %m", argv[2], n);
	my_ibv_free_device_list(list);
	if (my_ibv_query_device(c, &attr) || my_ibv_query_port(c, 1, &port) || my_ibv_query_gid(c, 1, index, &gid))
		fail("query: %m");
	if (strcmp(my_ibv_event_type_str(IBV_EVENT_PORT_ACTIVE), "port active"))
		fail("ibv_event_type_str: %s", my_ibv_event_type_str(IBV_EVENT_PORT_ACTIVE));
	pd = my_ibv_alloc_pd(c);
	cq = my_ibv_create_cq(c, 64, NULL, NULL, 0);
	if (!pd || !cq)
		fail("ibv_alloc_pd, ibv_create_cq: %m");
	fm = my_ibv_reg_mr(pd, from, SIZE, IBV_ACCESS_LOCAL_WRITE);
	tm = my_ibv_reg_mr_iova2(pd, to, SIZE, (uintptr_t)to, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ);
	if (!fm || !tm)
		fail("ibv_reg_mr: %m");
	a = queue_pair(pd);
	b = queue_pair(pd);
	connect_to(a, b->qp_num, &gid, index, port.active_mtu);
	connect_to(b, a->qp_num, &gid, index, port.active_mtu);

	for (unsigned w = 0; w < sizeof ways / sizeof *ways; w++) {
		struct ibv_sge s = { (uintptr_t)from, SIZE, fm->lkey }, r = { (uintptr_t)to, SIZE, tm->lkey };
		struct ibv_send_wr wr = { .sg_list = &s, .num_sge = 1, .opcode = ways[w].op, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)to, tm->rkey } }, *bad;
		struct ibv_recv_wr rr = { .sg_list = &r, .num_sge = 1 }, *rbad;
		uint8_t *source = ways[w].op == IBV_WR_RDMA_READ ? to : from, *sink = source == to ? from : to;

		for (size_t i = 0; i < SIZE; i++)
			source[i] = (uint8_t)(i * 2654435761u >> 13 ^ w * 91);
		memset(sink, 0xa5, SIZE);
		if (ways[w].op == IBV_WR_SEND && ibv_post_recv(b, &rr, &rbad))
			fail("ibv_post_recv: %m");
		if (ibv_post_send(a, &wr, &bad))
			fail("ibv_post_send: %m");
		completions(ways[w].done);
		for (size_t i = 0; i < SIZE; i++)
			if (sink[i] != (uint8_t)(i * 2654435761u >> 13 ^ w * 91))
				fail("operation %u: byte %zu is 0x%02x", ways[w].op, i, sink[i]);
	}
	unsupported(pd, a);
	event(c, a, b, fm);
	if (my_ibv_destroy_qp(a) || my_ibv_destroy_qp(b) || my_ibv_dereg_mr(fm) || my_ibv_dereg_mr(tm) ||
	    my_ibv_destroy_cq(cq) || my_ibv_dealloc_pd(pd) || my_ibv_close_device(c))
		fail("cannot destroy: %m");
	printf("dlopen: ok: %s\n", argv[1]);
	return 0;
}
