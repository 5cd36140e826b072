/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream: exchanges messages with other processes by reliable connections, all the time, and checks what they hold.
 * When its device fails it opens the device again and goes on.
 *
 *     stream DEVICE FILE SELF MEMBERS INTERVAL
 *
 * All processes map FILE, an array of struct member: process SELF writes its own element but for away, and finds the
 * queue pairs of the others in theirs. Each process has a connection with the members SELF+1, SELF-1, SELF+MEMBERS/2
 * and SELF-MEMBERS/2, and sends a message on each every INTERVAL milliseconds. The connections have the timeouts of
 * ibv_rc_pingpong.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 4, DEPTH = 8, SIZE = 3000, RECEIVES = SLOTS * DEPTH, SEND = 1 << 16, PATIENCE_MS = 20000 };

/* Read and written by the test as little-endian words of 64 bits: see rolling_test.go. A queue pair is its number and
 * above that the generation. */
struct member {
	_Atomic uint64_t away;             /* written by the test: its node is about to end; errors of others are right */
	_Atomic uint64_t lid;
	_Atomic uint64_t generation;       /* how often the device was opened */
	_Atomic uint64_t fatal;            /* IBV_EVENT_DEVICE_FATAL so far */
	_Atomic uint64_t qp[SLOTS];        /* 0: none */
	_Atomic uint64_t connected[SLOTS]; /* to which queue pair */
	_Atomic uint64_t sent[SLOTS];
	_Atomic uint64_t got[SLOTS];       /* with the right contents */
	_Atomic uint64_t wrong[SLOTS];
	_Atomic uint64_t broken[SLOTS];    /* connections to a member that was away or has another queue pair by now */
	_Atomic uint64_t errors[SLOTS];    /* all others */
};

static struct member *members, *me;
static unsigned self, count;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp[SLOTS];
static bool busy[SLOTS]; /* a message is on its way */
static uint8_t buf[RECEIVES + SLOTS][SIZE];

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "stream: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* report prints a line with the time of day. */
__attribute__((format(printf, 1, 2))) static void report(const char *format, ...)
{
	struct timespec t;
	char at[16];
	va_list args;
	clock_gettime(CLOCK_REALTIME, &t);
	strftime(at, sizeof at, "%H:%M:%S", gmtime(&t.tv_sec));
	printf("stream: %s.%03ld: ", at, t.tv_nsec / 1000000);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

/* other is the member at the other end, which has the connection in its slot s^1. */
static struct member *other(int s)
{
	unsigned step = s < 2 ? 1 : count / 2;
	return &members[(self + (s & 1 ? count - step : step)) % count];
}

/* fill writes message n of a member's slot. */
static void fill(uint8_t *b, unsigned from, int s, uint64_t n)
{
	uint64_t x = n * 0x9e3779b97f4a7c15u + from * 64 + s;
	memcpy(b, &n, sizeof n);
	for (int i = sizeof n; i < SIZE; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		b[i] = x >> 56;
	}
}

/* lost waits for the event that the device failed, after a call has failed. */
static void lost(const char *what)
{
	struct pollfd p = { .fd = ctx->async_fd, .events = POLLIN };
	int was = errno;
	while (poll(&p, 1, PATIENCE_MS) > 0) {
		struct ibv_async_event e;
		if (ibv_get_async_event(ctx, &e))
			die("ibv_get_async_event");
		ibv_ack_async_event(&e);
		if (e.event_type == IBV_EVENT_DEVICE_FATAL)
			return;
	}
	errno = was;
	die(what);
}

static bool receive(int i)
{
	struct ibv_sge s = { .addr = (uintptr_t)buf[i], .length = SIZE, .lkey = mr->lkey };
	struct ibv_recv_wr w = { .wr_id = i, .sg_list = &s, .num_sge = 1 }, *bad;
	return !ibv_post_recv(qp[i / DEPTH], &w, &bad);
}

/* make gives a slot a new queue pair that can receive, and publishes it. */
static bool make(int s)
{
	struct ibv_qp_init_attr in = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if (!(qp[s] = ibv_create_qp(pd, &in)) ||
	    ibv_modify_qp(qp[s], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return false;
	for (int i = 0; i < DEPTH; i++)
		if (!receive(s * DEPTH + i))
			return false;
	busy[s] = false;
	me->connected[s] = 0;
	me->qp[s] = me->generation << 32 | qp[s]->qp_num;
	return true;
}

static bool unmake(int s)
{
	me->qp[s] = me->connected[s] = 0;
	return !ibv_destroy_qp(qp[s]);
}

static bool join(int s, uint64_t to, uint64_t lid)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = (uint32_t)to,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .dlid = lid, .port_num = 1 } };
	if (ibv_modify_qp(qp[s], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return false;
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	if (ibv_modify_qp(qp[s], &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	    IBV_QP_MAX_QP_RD_ATOMIC))
		return false;
	me->connected[s] = to;
	return true;
}

static bool transmit(int s)
{
	uint8_t *b = buf[RECEIVES + s];
	struct ibv_sge g = { .addr = (uintptr_t)b, .length = SIZE, .lkey = mr->lkey };
	struct ibv_send_wr w = { .wr_id = SEND | s, .sg_list = &g, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	fill(b, self, s, me->sent[s]);
	busy[s] = true;
	return !ibv_post_send(qp[s], &w, &bad);
}

/* failed gives a connection up. Where the member at the other end is there, and has the same queue pair, that is an
 * error. */
static bool failed(int s, enum ibv_wc_status why)
{
	struct member *m = other(s);
	if (m->away || m->qp[s ^ 1] != me->connected[s]) {
		me->broken[s]++;
	} else if (!me->away) {
		me->errors[s]++;
		report("member %u to member %ld, slot %d, message %lu: %s", self, (long)(m - members), s,
			(unsigned long)me->sent[s], ibv_wc_status_str(why));
	}
	return unmake(s) && make(s);
}

static bool complete(const struct ibv_wc *w)
{
	static uint8_t want[SIZE];
	int s = w->wr_id & SEND ? w->wr_id & ~SEND : w->wr_id / DEPTH;
	if (!qp[s] || w->qp_num != qp[s]->qp_num)
		return true; /* of one before */
	if (w->status == IBV_WC_WR_FLUSH_ERR && !(w->wr_id & SEND))
		return true; /* the end of what failed, or comes with it */
	if (w->status != IBV_WC_SUCCESS)
		return failed(s, w->status);
	if (w->wr_id & SEND) {
		busy[s] = false;
		me->sent[s]++;
		return true;
	}
	uint64_t n;
	memcpy(&n, buf[w->wr_id], sizeof n);
	fill(want, other(s) - members, s ^ 1, n);
	if (w->byte_len == SIZE && !memcmp(want, buf[w->wr_id], SIZE))
		me->got[s]++;
	else
		me->wrong[s]++;
	return receive(w->wr_id);
}

static bool drain(void)
{
	struct ibv_wc w[16];
	int n;
	while ((n = ibv_poll_cq(cq, 16, w)) > 0)
		for (int i = 0; i < n; i++)
			if (!complete(&w[i]))
				return false;
	return n == 0;
}

/* step follows the other end of a slot, and sends where that is due. */
static bool step(int s, bool due)
{
	struct member *m = other(s);
	uint64_t to = m->qp[s ^ 1], lid = m->lid;
	if (me->connected[s] && to && to != me->connected[s]) {
		me->broken[s]++;
		return unmake(s) && make(s);
	}
	if (!me->connected[s])
		return !to || !lid || join(s, to, lid);
	return !due || busy[s] || m->connected[s ^ 1] != me->qp[s] || transmit(s);
}

/* open_device opens the device and makes the connections, once the port is active. */
static bool open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr p;
	ctx = NULL;
	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	if (!ctx)
		return false;
	me->generation++;
	fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
	if (!(pd = ibv_alloc_pd(ctx)) || !(channel = ibv_create_comp_channel(ctx)) ||
	    !(cq = ibv_create_cq(ctx, 2 * RECEIVES, NULL, channel, 0)) ||
	    !(mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE)))
		die("create objects");
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	for (;;) {
		if (ibv_query_port(ctx, 1, &p))
			die("query the port");
		if (p.state == IBV_PORT_ACTIVE && p.lid)
			break;
		usleep(20000);
	}
	for (int s = 0; s < SLOTS; s++)
		if (!make(s))
			die("create a queue pair");
	me->lid = p.lid;
	return true;
}

static void close_device(void)
{
	me->lid = 0;
	for (int s = 0; s < SLOTS; s++)
		unmake(s);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_destroy_comp_channel(channel);
	ibv_dealloc_pd(pd);
	ibv_close_device(ctx);
	memset(qp, 0, sizeof qp);
}

/* exchange works until the device fails, and returns what failed with it. */
static const char *exchange(int interval)
{
	int64_t next = 0;
	for (;;) {
		struct pollfd p[] = { { .fd = channel->fd, .events = POLLIN }, { .fd = ctx->async_fd, .events = POLLIN } };
		int64_t now = now_ms();
		bool due = now >= next;
		struct ibv_cq *which;
		void *cookie;
		if (due)
			next = now + interval;
		for (int s = 0; s < SLOTS; s++)
			if (!step(s, due))
				return "follow a connection";
		if (ibv_req_notify_cq(cq, 0) || !drain())
			return "drain the completion queue";
		poll(p, 2, next > now ? next - now : 0);
		if (p[0].revents && !ibv_get_cq_event(channel, &which, &cookie))
			ibv_ack_cq_events(which, 1);
		if (p[1].revents) {
			struct ibv_async_event e;
			if (ibv_get_async_event(ctx, &e))
				continue;
			ibv_ack_async_event(&e);
			if (e.event_type == IBV_EVENT_DEVICE_FATAL)
				return NULL;
		}
	}
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "usage: stream DEVICE FILE SELF MEMBERS INTERVAL\n");
		return 2;
	}
	self = atoi(argv[3]);
	count = atoi(argv[4]);
	int fd = open(argv[2], O_RDWR);
	if (fd < 0 || (members = mmap(NULL, count * sizeof *members, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
		die(argv[2]);
	me = &members[self];
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!open_device(argv[1]))
		die(argv[1]);
	for (;;) {
		const char *what = exchange(atoi(argv[5]));
		if (what)
			lost(what);
		me->fatal++;
		report("the device failed%s%s", what ? ": " : "", what ? what : "");
		close_device();
		int64_t began = now_ms();
		while (!open_device(argv[1])) {
			if (now_ms() - began > PATIENCE_MS)
				die("open the device again");
			usleep(50000);
		}
		report("opened the device again after %d ms", (int)(now_ms() - began));
	}
}
