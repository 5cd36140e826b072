/* SPDX-License-Identifier: Apache-2.0 */
/*
 * latency: that of a unicast datagram between two queue pairs, alone and right
 * behind multicast packets of which hundreds of copies are to be made, by turns
 * in one run.
 *
 * usage: latency DEVICE GID-INDEX
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MEMBERS = 64, SIZE = 256, SLOT = SIZE + 40, SLOTS = 8192, PINGS = 2000, ROUNDS = 10, QKEY = 0x11111111,
	BURST = 8 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_srq *srq;
static struct ibv_cq *scq, *mcq, *pcq;
static struct ibv_qp *member[MEMBERS], *sender, *pong;
static struct ibv_ah *to_group, *to_self;
static union ibv_gid gid, group = { .raw = { [10] = 0xff, 0xff, 239, 86, 1, 1 } };
static char *buf;
static long received; /* copies */

static void die(const char *what)
{
	fprintf(stderr, "latency: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static struct ibv_qp *make_qp(struct ibv_cq *recv, struct ibv_srq *s)
{
	struct ibv_qp_init_attr a = { .send_cq = scq, .recv_cq = recv, .srq = s, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 8192, .max_recv_wr = s ? 0 : 512, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *q = ibv_create_qp(pd, &a);
	struct ibv_qp_attr m = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	if (!q)
		die("ibv_create_qp");
	if ((errno = ibv_modify_qp(q, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)))
		die("INIT");
	m.qp_state = IBV_QPS_RTR;
	if ((errno = ibv_modify_qp(q, &m, IBV_QP_STATE)))
		die("RTR");
	m.qp_state = IBV_QPS_RTS;
	if ((errno = ibv_modify_qp(q, &m, IBV_QP_STATE | IBV_QP_SQ_PSN)))
		die("RTS");
	return q;
}

static struct ibv_cq *make_cq(int n)
{
	struct ibv_cq *c = ibv_create_cq(ctx, n, NULL, NULL, 0);
	if (!c)
		die("ibv_create_cq");
	return c;
}

static struct ibv_ah *make_ah(union ibv_gid *dgid, int index)
{
	struct ibv_ah_attr a = { .is_global = 1, .port_num = 1, .grh = { .dgid = *dgid, .sgid_index = index,
		.hop_limit = 1 } };
	struct ibv_ah *h = ibv_create_ah(pd, &a);
	if (!h)
		die("ibv_create_ah");
	return h;
}

static void give(struct ibv_qp *q, int slot)
{
	struct ibv_sge s = { (uintptr_t)buf + (size_t)slot * SLOT, SLOT, mr->lkey };
	struct ibv_recv_wr w = { .wr_id = slot, .sg_list = &s, .num_sge = 1 }, *bad;

	if ((errno = q ? ibv_post_recv(q, &w, &bad) : ibv_post_srq_recv(srq, &w, &bad)))
		die("post a receive");
}

/* send posts one datagram with the bytes behind the receive slots. */
static void send_one(struct ibv_qp *q, struct ibv_ah *ah, uint32_t qpn)
{
	struct ibv_sge s = { (uintptr_t)buf + (size_t)SLOTS * SLOT + 40, SIZE, mr->lkey };
	struct ibv_send_wr *bad, w = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

	w.wr.ud.ah = ah, w.wr.ud.remote_qpn = qpn, w.wr.ud.remote_qkey = QKEY;
	if ((errno = ibv_post_send(q, &w, &bad)))
		die("ibv_post_send");
}

static int drain(struct ibv_cq *cq, struct ibv_wc *wc, int n)
{
	int got = ibv_poll_cq(cq, n, wc);

	for (int i = 0; i < got; i++)
		if (wc[i].status) {
			fprintf(stderr, "latency: %s\n", ibv_wc_status_str(wc[i].status));
			exit(1);
		}
	return got;
}

/* collect takes the copies that have come, and sent completions. */
static void collect(void)
{
	struct ibv_wc wc[64];
	int n;

	while ((n = drain(mcq, wc, 64)) > 0) {
		received += n;
		for (int i = 0; i < n; i++)
			give(NULL, wc[i].wr_id);
	}
	while (drain(scq, wc, 64) == 64)
		;
}

/* await collects until so many copies have come in all. */
static void await(long copies)
{
	double start = now();

	while (received < copies) {
		collect();
		if (now() - start > 10) {
			fprintf(stderr, "latency: %ld of %ld copies came\n", received, copies);
			exit(1);
		}
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* pings measures a round of them; with flood each follows multicast packets of which copies wait to be made. */
static void pings(double *t, int flood)
{
	struct ibv_wc wc;
	long want = received;

	for (int i = 0; i < PINGS; i++) {
		if (flood) {
			if (want - received < BURST * MEMBERS) {
				for (int k = 0; k < BURST; k++)
					send_one(sender, to_group, 0xffffff);
				want += BURST * MEMBERS;
			}
			collect();
		}
		double start = now();
		send_one(sender, to_self, pong->qp_num);
		while (!drain(pcq, &wc, 1))
			;
		t[i] = (now() - start) * 1e6;
		give(pong, SLOTS + 1);
		drain(scq, &wc, 1);
	}
	await(want);
}

/* report prints percentiles and returns p50 and p99. */
static void report(const char *what, double *t, double *p)
{
	int n = PINGS * ROUNDS;

	qsort(t, n, sizeof *t, by_value);
	printf("%-44s %8.2f %8.2f %8.2f\n", what, t[n / 2], t[n * 9 / 10], t[n * 99 / 100]);
	p[0] = t[n / 2], p[1] = t[n * 99 / 100];
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	int index = argc == 3 ? atoi(argv[2]) : -1;

	for (int i = 0; argc == 3 && list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			ctx = ibv_open_device(list[i]);
	if (!ctx || ibv_query_gid(ctx, 1, index, &gid)) {
		fprintf(stderr, "usage: latency DEVICE GID-INDEX (of an IPv4 address)\n");
		return 2;
	}
	pd = ibv_alloc_pd(ctx);
	buf = aligned_alloc(4096, (size_t)(SLOTS + 2) * SLOT / 4096 * 4096 + 4096);
	mr = ibv_reg_mr(pd, buf, (size_t)(SLOTS + 2) * SLOT, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("ibv_reg_mr");
	scq = make_cq(8192), mcq = make_cq(16384), pcq = make_cq(64);
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = SLOTS, .max_sge = 1 } };
	if (!(srq = ibv_create_srq(pd, &sa)))
		die("ibv_create_srq");
	for (int i = 0; i < SLOTS; i++)
		give(NULL, i);
	sender = make_qp(pcq, NULL), pong = make_qp(pcq, NULL);
	to_group = make_ah(&group, index), to_self = make_ah(&gid, index);
	for (int i = 0; i < MEMBERS; i++)
		member[i] = make_qp(mcq, srq);
	give(pong, SLOTS + 1);

	printf("%-44s %8s %8s %8s\n", "unicast datagram of 256 bytes, one way, us", "p50", "p90", "p99");
	for (int i = 0; i < MEMBERS; i++)
		if ((errno = ibv_attach_mcast(member[i], &group, 0)))
			die("ibv_attach_mcast");
	static double t[2][ROUNDS][PINGS];
	pings(t[0][0], 0);
	for (int i = 0; i < ROUNDS; i++) /* in turns: the machine may do other things at times */
		for (int k = 0; k < 2; k++)
			pings(t[k][i], k);
	double alone[2], beside[2];
	report("alone", t[0][0], alone);
	report("behind up to 1024 copies", t[1][0], beside);
	printf("%-44s %8.2f %8s %8.2f\n", "times that alone", beside[0] / alone[0], "", beside[1] / alone[1]);
	return 0;
}
