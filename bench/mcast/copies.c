/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies: copies of multicast packets per second to queue pairs of virtual
 * functions, made by the adapter, and made by software: there one queue pair
 * receives what comes for the group, and its program sends every packet on to
 * each member. It posts what it received at a time in one chain with one
 * completion: packet by packet, or sorted by member, which is what this adapter
 * likes best and what a program would have to know.
 *
 * Three processes, forked before they open a device, do the same in all:
 * a sender, the relay of the software way, and one that has the members, each
 * with a device, a queue pair and a completion queue of its own. One that finds
 * nothing to do naps. Every copy is counted and its number and length checked;
 * the sender stays so far behind the slowest member that none is lost. CPU time
 * is that of each process while it measured.
 *
 * usage: copies NODE-PID SIZE PACKETS SENDER RELAY GROUP MLID RELAY-GROUP MLID MEMBER…
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMBERS = 64, GRH = 40, LARGEST = 4096, DEPTH = 1024, WINDOW = 900, BATCH = 32, SENDS = 8192, QKEY = 0x11111111,
	ROUNDS = 5 };
enum { ADAPTER, SOFTWARE, SORTED, WAYS, IDLE = WAYS, QUIT };
enum { SENDER, RELAY, RECEIVER, NODE, PROCESSES };
static int size, slot_size; /* of payloads, and of receive buffers, which lie side by side */

/* What the processes tell each other; every number has one writer. */
static struct shared {
	_Atomic int way, ready;
	_Atomic long limit; /* packets to be sent since the start */
	_Atomic long got[MEMBERS];
	_Atomic long relayed; /* packets of which the relay has its memory back */
	struct { uint32_t qpn; uint16_t lid; } at[MEMBERS];
	int members;
} *sh;

static const char *role = "copies";
static pid_t pids[PROCESSES];

static void die(const char *what, ...)
{
	va_list a;

	fprintf(stderr, "copies: %s: ", role);
	va_start(a, what);
	vfprintf(stderr, what, a);
	va_end(a);
	fprintf(stderr, errno ? ": %s\n" : "\n", strerror(errno));
	exit(1);
}

static double clock_of(clockid_t c)
{
	struct timespec t;

	if (clock_gettime(c, &t))
		die("clock_gettime");
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double cpu(pid_t p)
{
	clockid_t c;

	if ((errno = clock_getcpuclockid(p, &c)))
		die("clock of process %d", p);
	return clock_of(c);
}

static void nap(void) { nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL); }

/* A queue pair on a device of its own, with DEPTH slots of memory. */
struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *scq, *rcq;
	struct ibv_qp *qp;
	char *buf;
	uint16_t lid;
};

static void open_end(struct end *e, const char *device, int sends, int receives)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device))
			e->ctx = ibv_open_device(list[i]);
	if (!e->ctx || ibv_query_port(e->ctx, 1, &port))
		die("open %s", device);
	if (port.state != IBV_PORT_ACTIVE || port.active_mtu != IBV_MTU_4096)
		die("%s is not active with an MTU of %d", device, LARGEST);
	ibv_free_device_list(list);
	e->lid = port.lid;
	e->pd = ibv_alloc_pd(e->ctx);
	e->buf = aligned_alloc(4096, (size_t)DEPTH * slot_size);
	memset(e->buf, 0, (size_t)DEPTH * slot_size);
	if (!(e->mr = ibv_reg_mr(e->pd, e->buf, (size_t)DEPTH * slot_size, IBV_ACCESS_LOCAL_WRITE)))
		die("ibv_reg_mr");
	e->scq = ibv_create_cq(e->ctx, 1024, NULL, NULL, 0);
	e->rcq = ibv_create_cq(e->ctx, 1024, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .send_cq = e->scq, .recv_cq = e->rcq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr m = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	if (!(e->qp = ibv_create_qp(e->pd, &a)))
		die("ibv_create_qp");
	if ((errno = ibv_modify_qp(e->qp, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)))
		die("INIT");
	m.qp_state = IBV_QPS_RTR;
	if ((errno = ibv_modify_qp(e->qp, &m, IBV_QP_STATE)))
		die("RTR");
	m.qp_state = IBV_QPS_RTS;
	if ((errno = ibv_modify_qp(e->qp, &m, IBV_QP_STATE | IBV_QP_SQ_PSN)))
		die("RTS");
}

/* give posts the slots of a list as receive requests, in one chain. */
static void give(struct end *e, const struct ibv_wc *wc, int n)
{
	struct ibv_recv_wr w[DEPTH], *bad;
	struct ibv_sge s[DEPTH];

	for (int i = 0; i < n; i++) {
		int slot = wc ? (int)wc[i].wr_id : i;
		s[i] = (struct ibv_sge){ (uintptr_t)e->buf + (size_t)slot * slot_size, slot_size, e->mr->lkey };
		w[i] = (struct ibv_recv_wr){ .wr_id = slot, .sg_list = &s[i], .num_sge = 1, .next = i + 1 < n ? &w[i + 1] : NULL };
	}
	if (n && (errno = ibv_post_recv(e->qp, w, &bad)))
		die("ibv_post_recv");
}

static int poll_cq(struct ibv_cq *cq, struct ibv_wc *wc, int n)
{
	int got = ibv_poll_cq(cq, n, wc);

	for (int i = 0; i < got; i++)
		if (wc[i].status)
			die("a completion has the status %s", ibv_wc_status_str(wc[i].status));
	return got;
}

static struct ibv_ah *make_ah(struct end *e, uint16_t lid, union ibv_gid *gid)
{
	struct ibv_ah_attr a = { .dlid = lid, .port_num = 1, .is_global = gid != NULL };
	struct ibv_ah *h;

	if (gid)
		a.grh = (struct ibv_global_route){ .dgid = *gid, .hop_limit = 1 };
	if (!(h = ibv_create_ah(e->pd, &a)))
		die("ibv_create_ah");
	return h;
}

/* ready notes that a process has done its part of the preparation. */
static void ready(void) { atomic_fetch_add(&sh->ready, 1); }

/* receive is the process that has the members. */
static void receive(char **devices, int n, union ibv_gid *gid, uint16_t mlid)
{
	static struct end e[MEMBERS];
	static long got[MEMBERS];
	struct ibv_wc wc[64];
	int way, last = IDLE;

	for (int i = 0; i < n; i++) {
		open_end(&e[i], devices[i], 1, DEPTH);
		give(&e[i], NULL, DEPTH);
		sh->at[i].qpn = e[i].qp->qp_num, sh->at[i].lid = e[i].lid;
	}
	ready();
	while ((way = atomic_load(&sh->way)) != QUIT) {
		int found = 0;

		if (way != last && (way == ADAPTER || last == ADAPTER)) {
			for (int i = 0; i < n; i++)
				if ((errno = way == ADAPTER ? ibv_attach_mcast(e[i].qp, gid, mlid) : ibv_detach_mcast(e[i].qp, gid, mlid)))
					die("attach or detach");
		}
		if (way != last)
			ready();
		last = way;
		for (int i = 0; i < n; i++) {
			int c = poll_cq(e[i].rcq, wc, 64);

			for (int k = 0; k < c; k++) {
				char *p = e[i].buf + (size_t)wc[k].wr_id * slot_size + GRH;
				if (*(long *)p != got[i] + k || wc[k].byte_len != (uint32_t)(GRH + size) || p[size - 1] != (char)(got[i] + k))
					die("member %d: packet %ld, not %ld, of %u bytes", i, *(long *)p, got[i] + k, wc[k].byte_len);
			}
			give(&e[i], wc, c);
			if (c) {
				found += c;
				atomic_store_explicit(&sh->got[i], got[i] += c, memory_order_release);
			}
		}
		if (found < 64)
			nap();
	}
}

/* relay is the software that copies: one queue pair gets all packets. */
static void relay(const char *device, union ibv_gid *gid, uint16_t mlid)
{
	static struct ibv_send_wr w[BATCH * MEMBERS + 1];
	static struct ibv_sge s[BATCH];
	static struct ibv_wc held[DEPTH]; /* in order of arrival: what is being sent on */
	static int sizes_of[DEPTH];
	struct ibv_wc wc[BATCH];
	struct ibv_send_wr *bad;
	struct ibv_ah *ah[MEMBERS];
	struct end e = { 0 };
	long in = 0, out = 0, batches = 0, done = 0;
	int way, n = sh->members;

	open_end(&e, device, SENDS, DEPTH);
	give(&e, NULL, DEPTH);
	for (int k = 0; k < n; k++)
		ah[k] = make_ah(&e, sh->at[k].lid, NULL);
	if ((errno = ibv_attach_mcast(e.qp, gid, mlid)))
		die("ibv_attach_mcast");
	ready();
	while ((way = atomic_load(&sh->way)) != QUIT) {
		int most = SENDS / n - (int)(in - out), c = poll_cq(e.rcq, wc, most < BATCH ? (most > 0 ? most : 0) : BATCH), d = 0;

		for (int i = 0; i < c; i++) {
			held[(in + i) % DEPTH] = wc[i];
			s[i] = (struct ibv_sge){ (uintptr_t)e.buf + (size_t)wc[i].wr_id * slot_size + GRH, wc[i].byte_len - GRH,
				e.mr->lkey };
			for (int k = 0; k < n; k++) {
				struct ibv_send_wr *x = way == SORTED ? &w[k * c + i] : &w[i * n + k];
				*x = (struct ibv_send_wr){ .next = x + 1, .sg_list = &s[i], .num_sge = 1, .opcode = IBV_WR_SEND };
				x->wr.ud.ah = ah[k], x->wr.ud.remote_qpn = sh->at[k].qpn, x->wr.ud.remote_qkey = QKEY;
			}
		}
		if (c > 0) {
			w[c * n - 1].next = NULL;
			w[c * n - 1].send_flags = IBV_SEND_SIGNALED;
			sizes_of[batches++ % DEPTH] = c;
			in += c;
			if ((errno = ibv_post_send(e.qp, w, &bad)))
				die("ibv_post_send");
		}
		struct ibv_wc sent[BATCH];
		d = poll_cq(e.scq, sent, BATCH);
		for (int i = 0; i < d; i++) {
			int back = sizes_of[done++ % DEPTH], first = out % DEPTH, part = back < DEPTH - first ? back : DEPTH - first;
			give(&e, held + first, part);
			give(&e, held, back - part);
			atomic_store_explicit(&sh->relayed, out += back, memory_order_release);
		}
		if (c == 0 && d == 0)
			nap();
	}
	ibv_detach_mcast(e.qp, gid, mlid);
}

/* send is the process that sends to the group of the way at hand. */
static void send_packets(const char *device, union ibv_gid *gid, const uint16_t *mlid)
{
	static struct ibv_send_wr w[BATCH];
	static struct ibv_sge s[BATCH];
	struct ibv_send_wr *bad;
	struct ibv_wc wc[BATCH];
	struct ibv_ah *ah[2];
	struct end e = { 0 };
	long sent = 0, done = 0, to_relay = 0;
	int way;

	open_end(&e, device, DEPTH, 1);
	for (int i = 0; i < 2; i++)
		ah[i] = make_ah(&e, mlid[i], &gid[i]);
	ready();
	while ((way = atomic_load(&sh->way)) != QUIT) {
		long least = sent, limit = atomic_load(&sh->limit);

		for (int i = 0; i < sh->members; i++) {
			long g = atomic_load_explicit(&sh->got[i], memory_order_acquire);
			if (g < least)
				least = g;
		}
		long n = least + WINDOW - sent, relays = atomic_load_explicit(&sh->relayed, memory_order_acquire) + WINDOW - to_relay;
		if (way != ADAPTER && n > relays)
			n = relays;
		if (n > limit - sent)
			n = limit - sent;
		if (n > BATCH)
			n = BATCH;
		if (n > DEPTH - (sent - done))
			n = DEPTH - (sent - done);
		for (int c; (c = poll_cq(e.scq, wc, BATCH)) > 0;)
			for (int i = 0; i < c; i++)
				done = wc[i].wr_id;
		if (n <= 0 || (n < BATCH && n < limit - sent)) {
			nap();
			continue;
		}
		for (int i = 0; i < n; i++) {
			char *p = e.buf + (size_t)((sent + i) % DEPTH) * slot_size;
			*(long *)p = sent + i, p[size - 1] = (char)(sent + i);
			s[i] = (struct ibv_sge){ (uintptr_t)p, size, e.mr->lkey };
			w[i] = (struct ibv_send_wr){ .wr_id = sent + n, .next = i + 1 < n ? &w[i + 1] : NULL, .sg_list = &s[i], .num_sge = 1,
				.opcode = IBV_WR_SEND, .send_flags = i + 1 == n ? IBV_SEND_SIGNALED : 0 };
			w[i].wr.ud.ah = ah[way != ADAPTER], w[i].wr.ud.remote_qpn = 0xffffff, w[i].wr.ud.remote_qkey = QKEY;
		}
		if ((errno = ibv_post_send(e.qp, w, &bad)))
			die("ibv_post_send");
		sent += n;
		to_relay += way != ADAPTER ? n : 0;
	}
}

static void await_ready(int n)
{
	while (atomic_load(&sh->ready) < n) {
		nap();
		if (waitpid(-1, NULL, WNOHANG) > 0)
			die("a process has ended");
	}
	atomic_store(&sh->ready, 0);
}

static int start(int who, const char *name)
{
	if ((pids[who] = fork()) < 0)
		die("fork");
	if (!pids[who]) {
		role = name;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	}
	return pids[who] == 0;
}

struct result { double wall, cpu[PROCESSES]; };

/* measure lets so many packets go to all members and waits for the last copy. */
static struct result measure(int way, long packets)
{
	struct result r;
	long until = atomic_load(&sh->limit) + packets, n = sh->members;

	errno = 0;
	atomic_store(&sh->way, way);
	await_ready(1); /* the members have attached */
	for (int i = 0; i < PROCESSES; i++)
		r.cpu[i] = -cpu(pids[i]);
	r.wall = -clock_of(CLOCK_MONOTONIC);
	atomic_store(&sh->limit, until);
	for (long i = 0; i < n;) {
		if (atomic_load(&sh->got[i]) == until) {
			i++;
			continue;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
		if (waitpid(-1, NULL, WNOHANG) > 0)
			die("a process has ended");
		if (r.wall + clock_of(CLOCK_MONOTONIC) > 30)
			die("member %ld got %ld of %ld packets", i, atomic_load(&sh->got[i]), until);
	}
	r.wall += clock_of(CLOCK_MONOTONIC);
	for (int i = 0; i < PROCESSES; i++)
		r.cpu[i] += cpu(pids[i]);
	atomic_store(&sh->way, IDLE);
	await_ready(1);
	r.wall *= 1e9 / (packets * n);
	for (int i = 0; i < PROCESSES; i++)
		r.cpu[i] *= 1e9 / (packets * n);
	return r;
}

static int by_wall(const void *a, const void *b)
{
	double x = ((const struct result *)a)->wall, y = ((const struct result *)b)->wall;
	return (x > y) - (x < y);
}

/* print shows the median round, and how much longer it took than that of the adapter. */
static void print(const char *what, struct result *r, const struct result *adapter)
{
	double all = 0;

	qsort(r, ROUNDS, sizeof *r, by_wall);
	r += ROUNDS / 2, adapter += ROUNDS / 2;
	for (int i = 0; i < PROCESSES; i++)
		all += r->cpu[i];
	printf("%5d  %-9s %11.0f %6.2f %9.0f %8.0f %8.0f %8.0f %8.0f\n", size, what, 1e9 / r->wall, r->wall / adapter->wall,
		all, r->cpu[NODE], r->cpu[RELAY], r->cpu[RECEIVER], r->cpu[SENDER]);
}

int main(int argc, char **argv)
{
	union ibv_gid gid[2];
	uint16_t mlid[2];
	long packets;

	if (argc < 11 || inet_pton(AF_INET6, argv[6], &gid[0]) != 1 || inet_pton(AF_INET6, argv[8], &gid[1]) != 1 ||
	    (size = atoi(argv[2])) < 16 || size > LARGEST || (packets = atol(argv[3])) < 1) {
		fprintf(stderr, "usage: copies NODE-PID SIZE PACKETS SENDER RELAY GROUP MLID RELAY-GROUP MLID MEMBER…\n");
		return 2;
	}
	mlid[0] = strtol(argv[7], NULL, 0), mlid[1] = strtol(argv[9], NULL, 0);
	slot_size = GRH + size;
	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sh->members = argc - 10;
	atomic_store(&sh->way, IDLE); /* before any process reads it */
	prctl(PR_SET_TIMERSLACK, 1000);
	pids[NODE] = atoi(argv[1]);
	if (start(RECEIVER, "receiver")) {
		receive(argv + 10, sh->members, &gid[0], mlid[0]);
		return 0;
	}
	await_ready(1);
	if (start(RELAY, "relay")) {
		relay(argv[5], &gid[1], mlid[1]);
		return 0;
	}
	if (start(SENDER, "sender")) {
		send_packets(argv[4], gid, mlid);
		return 0;
	}
	await_ready(2);
	static const char *const names[WAYS] = { "adapter", "software", "sorted" };
	static struct result r[WAYS][ROUNDS];
	for (int i = 0; i < ROUNDS; i++) /* in turns: the machine may do other things at times */
		for (int w = 0; w < WAYS; w++)
			r[w][i] = measure(w, w == ADAPTER ? packets : packets / 3);
	for (int w = 0; w < WAYS; w++)
		print(names[w], r[w], r[ADAPTER]);
	fflush(stdout);
	atomic_store(&sh->way, QUIT);
	while (wait(NULL) > 0)
		;
	return 0;
}
