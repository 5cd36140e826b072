/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of one process that use verbs at the same time. */
#define _GNU_SOURCE
#include "vc.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 64 << 10, DEPTH = 64 };

struct shared {
	struct ibv_context *ctx;
	const struct hello *h;
	struct ibv_pd *pd;
	struct ibv_qp *one;           /* used by all threads */
	struct ibv_cq *one_cq;
	pthread_barrier_t barrier;
	int threads, iters;
	uint32_t *done;               /* completions of the shared queue pair, per thread */
};

struct worker {
	struct shared *s;
	int index;
	uint64_t rnd;
	uint8_t *src, *dst;
	struct ibv_mr *srcm, *dstm;
	char why[256];
};

static uint64_t next(struct worker *w)
{
	uint64_t z = (w->rnd += 0x9e3779b97f4a7c15u);
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	return z ^ z >> 31;
}

__attribute__((format(printf, 2, 3))) static int bad(struct worker *w, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	if (!w->why[0])
		vsnprintf(w->why, sizeof w->why, fmt, ap);
	va_end(ap);
	return -1;
}

static bool late(struct timespec *start)
{
	struct timespec n;
	clock_gettime(CLOCK_MONOTONIC, &n);
	return (n.tv_sec - start->tv_sec) * 1000 > wait_ms;
}

static struct ibv_qp *make_qp(struct shared *s, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2 } };
	return ibv_create_qp(s->pd, &a);
}

static int join(struct shared *s, struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = s->h->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	int rc = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (rc)
		return rc;
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = s->h->active_mtu, .dest_qp_num = peer, .rq_psn = 1,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .is_global = !opt_lid, .port_num = s->h->port, .dlid = s->h->lid,
			.grh = { .dgid = s->h->gid, .sgid_index = s->h->gid_index, .hop_limit = 64 } } };
	rc = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (rc)
		return rc;
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 4 };
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC);
}

static int wait_wc(struct worker *w, struct ibv_cq *cq, int n)
{
	struct ibv_wc wc;
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while (n) {
		int got = ibv_poll_cq(cq, 1, &wc);
		if (got < 0)
			return bad(w, "poll: %d", got);
		if (got && wc.status)
			return bad(w, "completion: %s", ibv_wc_status_str(wc.status));
		n -= got;
		if (!got) {
			if (late(&start))
				return bad(w, "no completion within %d ms", wait_ms);
			sched_yield();
		}
	}
	return 0;
}

/* own drives a pair of queue pairs that only this thread uses. */
static int own(struct worker *w)
{
	struct shared *s = w->s;
	struct ibv_cq *cq = ibv_create_cq(s->ctx, DEPTH, NULL, NULL, 0);
	struct ibv_qp *a = cq ? make_qp(s, cq) : NULL, *b = a ? make_qp(s, cq) : NULL;
	int rc = 0;

	if (!b || (rc = join(s, a, b->qp_num)) || (rc = join(s, b, a->qp_num)))
		return bad(w, "set-up: %s", strerror(rc ? rc : errno));
	for (int i = 0; i < s->iters && !rc; i++) {
		uint32_t len = next(w) % (ROOM / 2), at = next(w) % (ROOM / 2);
		uint64_t seed = next(w);
		int op = next(w) % 3;
		struct ibv_sge ls = { (uintptr_t)w->src + at, len, w->srcm->lkey }, rs = { (uintptr_t)w->dst + at, len,
			w->dstm->lkey };
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &ls, .num_sge = 1, .opcode = IBV_WR_SEND }, *bs;
		struct ibv_recv_wr rr = { .wr_id = i, .sg_list = &rs, .num_sge = 1 }, *br;

		pattern(w->src, ROOM, seed, 0);
		if (op == 0 && (rc = ibv_post_recv(b, &rr, &br)))
			return bad(w, "post_recv: %s", strerror(rc));
		if (op == 1) {
			wr.opcode = IBV_WR_RDMA_WRITE;
			wr.wr.rdma.remote_addr = rs.addr;
			wr.wr.rdma.rkey = w->dstm->rkey;
		} else if (op == 2) { /* fetch src into dst */
			wr.opcode = IBV_WR_RDMA_READ;
			wr.wr.rdma.remote_addr = ls.addr;
			wr.wr.rdma.rkey = w->srcm->rkey;
			wr.sg_list = &rs;
		}
		if ((rc = ibv_post_send(a, &wr, &bs)))
			return bad(w, "post_send: %s", strerror(rc));
		if ((rc = wait_wc(w, cq, op == 0 ? 2 : 1)))
			return rc;
		if (memcmp(w->src + at, w->dst + at, len))
			return bad(w, "operation %d of %u bytes: contents differ", op, len);
	}
	if ((rc = ibv_destroy_qp(a)) || (rc = ibv_destroy_qp(b)) || (rc = ibv_destroy_cq(cq)))
		return bad(w, "destroy: %s", strerror(rc));
	return 0;
}

/* common posts to the queue pair that all threads share and polls the common
 * completion queue for all. */
static int common(struct worker *w)
{
	struct shared *s = w->s;
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 0; i < s->iters; i++) {
		uint32_t len = next(w) % 4096;
		struct ibv_sge sge = { (uintptr_t)w->src, len, w->srcm->lkey };
		struct ibv_send_wr wr = { .wr_id = w->index, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = { .remote_addr = (uintptr_t)w->dst, .rkey = w->dstm->rkey } }, *bs;

		pattern(w->src, len, next(w), 0);
		int rc;
		while ((rc = ibv_post_send(s->one, &wr, &bs)) == ENOMEM && !late(&start))
			sched_yield();
		if (rc)
			return bad(w, "shared post_send: %s", strerror(rc));
		while (__atomic_load_n(&s->done[w->index], __ATOMIC_ACQUIRE) <= (uint32_t)i) {
			struct ibv_wc wc;
			int got = ibv_poll_cq(s->one_cq, 1, &wc);
			if (got < 0 || (got && (wc.status || wc.wr_id >= (uint64_t)s->threads)))
				return bad(w, "shared completion: %s", got < 0 ? "error" : ibv_wc_status_str(wc.status));
			if (got)
				__atomic_add_fetch(&s->done[wc.wr_id], 1, __ATOMIC_ACQ_REL);
			else if (late(&start))
				return bad(w, "no shared completion within %d ms", wait_ms);
			else
				sched_yield();
		}
		if (memcmp(w->src, w->dst, len))
			return bad(w, "shared WRITE of %u bytes: contents differ", len);
	}
	return 0;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct shared *s = w->s;

	w->src = malloc(ROOM);
	w->dst = malloc(ROOM);
	memset(w->dst, 0, ROOM);
	pattern(w->src, ROOM, 1, 0);
	int acc = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	w->srcm = ibv_reg_mr(s->pd, w->src, ROOM, acc);
	w->dstm = ibv_reg_mr(s->pd, w->dst, ROOM, acc);
	bool ok = w->srcm && w->dstm;
	if (!ok)
		bad(w, "ibv_reg_mr: %s", strerror(errno));
	pthread_barrier_wait(&s->barrier);
	ok = ok && !own(w);
	pthread_barrier_wait(&s->barrier);
	if (ok)
		common(w);
	pthread_barrier_wait(&s->barrier);
	if (w->srcm)
		ibv_dereg_mr(w->srcm);
	if (w->dstm)
		ibv_dereg_mr(w->dstm);
	free(w->src);
	free(w->dst);
	return NULL;
}

/* stress runs threads workers and answers 0, or 1 and the first fault in why. */
int stress(struct ibv_context *ctx, const struct hello *h, int threads, int iters, uint64_t seed, char *why, size_t n)
{
	struct shared s = { .ctx = ctx, .h = h, .threads = threads, .iters = iters };
	struct worker *w = calloc(threads, sizeof *w);
	pthread_t *t = calloc(threads, sizeof *t);
	struct ibv_qp *peer = NULL;
	int rc = 0;

	why[0] = 0;
	s.done = calloc(threads, sizeof *s.done);
	s.pd = ibv_alloc_pd(ctx);
	s.one_cq = s.pd ? ibv_create_cq(ctx, DEPTH * 2, NULL, NULL, 0) : NULL;
	s.one = s.one_cq ? make_qp(&s, s.one_cq) : NULL;
	peer = s.one ? make_qp(&s, s.one_cq) : NULL;
	if (!peer || join(&s, s.one, peer->qp_num) || join(&s, peer, s.one->qp_num)) {
		snprintf(why, n, "set-up: %s", strerror(errno));
		return 1;
	}
	pthread_barrier_init(&s.barrier, NULL, threads);
	for (int i = 0; i < threads; i++) {
		w[i] = (struct worker){ .s = &s, .index = i, .rnd = seed + i };
		pthread_create(&t[i], NULL, work, &w[i]);
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(t[i], NULL);
		if (w[i].why[0] && !rc) {
			rc = 1;
			snprintf(why, n, "thread %d: %s", i, w[i].why);
		}
	}
	if ((ibv_destroy_qp(s.one) || ibv_destroy_qp(peer) || ibv_destroy_cq(s.one_cq) || ibv_dealloc_pd(s.pd)) && !rc) {
		rc = 1;
		snprintf(why, n, "destroy: %s", strerror(errno));
	}
	pthread_barrier_destroy(&s.barrier);
	free(s.done);
	free(w);
	free(t);
	return rc;
}
