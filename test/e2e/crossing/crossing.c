/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crossing: sends datagrams from every P_Key of a port to every P_Key of every other, all the time, by LID and to a
 * multicast group, and frames by an interface of a virtual Ethernet switch to all stations, and counts which arrive.
 * What may arrive is for the reader of the counts to decide.
 *
 *     crossing DEVICE FILE SELF MGID INTERFACE
 *
 * All processes map FILE, an array of struct node: process SELF writes its own element, and finds the queue pairs of
 * the others in theirs. A process ends when its device fails. The interface may go and return.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { NODES = 4, KEYS = 5, DEPTH = 512, SLOT = 128, ROUND_US = 40000, QKEY = 0x0b1b, MULTICAST = 0xff,
	MAGIC = 0x57454654, ETHERTYPE = 0x88b5 /* IEEE 802, local experimental */ };

/* Read by the test as little-endian words of 64 bits: see crossing_test.go. */
struct node {
	_Atomic uint64_t beat;                          /* rounds of sends */
	_Atomic uint64_t lid;                           /* 0: not ready */
	_Atomic uint64_t mlid;                          /* written by the test: of the group, 0: none */
	_Atomic uint64_t pkey[KEYS];                    /* as the port has them now */
	_Atomic uint64_t qpn[KEYS];                     /* 0: none */
	_Atomic uint64_t sent[KEYS];
	_Atomic uint64_t got[NODES][KEYS][KEYS];        /* from this node's index to this index of SELF */
	_Atomic uint64_t got_group[NODES][KEYS][KEYS];  /* the same, of copies of multicasts */
	_Atomic uint64_t sent_frames;
	_Atomic uint64_t got_frames[NODES];             /* from this node's interface to that of SELF */
};

struct message { uint32_t magic, from, index, to; };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *scq, *rcq;
static struct ibv_qp *qp[KEYS];
static struct ibv_mr *mr;
static uint8_t *buf;
static struct node *nodes, *me;
static int self, out[KEYS];
static int ether = -1;
static unsigned interface; /* of ether */

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "crossing: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void receive(int k, uint64_t slot)
{
	struct ibv_sge s = { .addr = (uintptr_t)buf + slot * SLOT, .length = SLOT, .lkey = mr->lkey };
	struct ibv_recv_wr w = { .wr_id = slot, .sg_list = &s, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp[k], &w, &bad))
		die("post a receive");
}

/* make gives the index of the P_Key table a queue pair. An index without a key is refused or of no use: both are
 * right, and it probes all the same. */
static void make(int k)
{
	struct ibv_qp_init_attr in = { .send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .pkey_index = k, .port_num = 1, .qkey = QKEY };
	if (!(qp[k] = ibv_create_qp(pd, &in)))
		die("create a queue pair");
	if (ibv_modify_qp(qp[k], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)) {
		ibv_destroy_qp(qp[k]);
		qp[k] = NULL;
		return;
	}
	for (int i = 0; i < DEPTH; i++)
		receive(k, k * DEPTH + i);
	a.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp[k], &a, IBV_QP_STATE))
		die("modify to RTR");
	a.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp[k], &a, IBV_QP_STATE | IBV_QP_SQ_PSN))
		die("modify to RTS");
	me->qpn[k] = qp[k]->qp_num;
}

static struct ibv_ah *address(uint16_t lid, const union ibv_gid *group)
{
	static struct { uint16_t lid; struct ibv_ah *ah; } known[16];
	static int n;
	struct ibv_ah_attr a = { .dlid = lid, .port_num = 1, .is_global = !!group };
	for (int i = 0; i < n; i++)
		if (known[i].lid == lid)
			return known[i].ah;
	if (group)
		a.grh.dgid = *group;
	struct ibv_ah *h = ibv_create_ah(pd, &a);
	if (h && n < 16) {
		known[n].lid = lid;
		known[n++].ah = h;
	}
	return h;
}

static void transmit(int k, struct ibv_ah *h, uint32_t qpn, uint32_t to)
{
	if (!h || out[k] >= DEPTH)
		return;
	struct message m = { MAGIC, self, k, to };
	struct ibv_sge s = { .addr = (uintptr_t)&m, .length = sizeof m };
	struct ibv_send_wr w = { .wr_id = k, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE, .wr.ud = { .ah = h, .remote_qpn = qpn, .remote_qkey = QKEY } }, *bad;
	if (!ibv_post_send(qp[k], &w, &bad)) {
		out[k]++;
		me->sent[k]++;
	}
}

static void arrive(const struct ibv_wc *w)
{
	struct message m;
	int k = w->wr_id / DEPTH;
	memcpy(&m, buf + w->wr_id * SLOT + 40, sizeof m);
	if (w->byte_len == 40 + sizeof m && m.magic == MAGIC && m.from < NODES && m.index < KEYS) {
		if (m.to == MULTICAST)
			me->got_group[m.from][m.index][k]++;
		else
			me->got[m.from][m.index][k]++;
	}
	receive(k, w->wr_id);
}

static void drain(void)
{
	struct ibv_wc w[64];
	int n;
	while ((n = ibv_poll_cq(rcq, 64, w)) > 0)
		for (int i = 0; i < n; i++) {
			if (w[i].status != IBV_WC_SUCCESS)
				die(ibv_wc_status_str(w[i].status));
			arrive(&w[i]);
		}
	if (n < 0)
		die("poll");
	while ((n = ibv_poll_cq(scq, 64, w)) > 0)
		for (int i = 0; i < n; i++) {
			if (w[i].status != IBV_WC_SUCCESS && w[i].status != IBV_WC_WR_FLUSH_ERR)
				die(ibv_wc_status_str(w[i].status));
			out[w[i].wr_id]--;
		}
	if (n < 0)
		die("poll");
}

/* reopen follows an interface that was made anew. */
static void reopen(const char *name)
{
	unsigned i = if_nametoindex(name);
	struct sockaddr_ll a = { .sll_family = AF_PACKET, .sll_protocol = htons(ETHERTYPE), .sll_ifindex = i };
	if (i == interface)
		return;
	if (ether >= 0)
		close(ether);
	ether = -1;
	if (!(interface = i))
		return;
	ether = socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETHERTYPE));
	if (ether < 0 || bind(ether, (struct sockaddr *)&a, sizeof a)) {
		close(ether);
		ether = -1;
		interface = 0; /* it has gone again */
	}
}

/* frames sends one frame to all stations and counts those that have arrived. */
static void frames(void)
{
	struct message m = { MAGIC, self, 0, 0 };
	struct sockaddr_ll a = { .sll_family = AF_PACKET, .sll_protocol = htons(ETHERTYPE), .sll_ifindex = interface,
		.sll_halen = 6, .sll_addr = { 255, 255, 255, 255, 255, 255 } };
	if (ether < 0)
		return;
	if (sendto(ether, &m, sizeof m, 0, (struct sockaddr *)&a, sizeof a) == sizeof m)
		me->sent_frames++;
	while (recv(ether, &m, sizeof m, 0) == sizeof m)
		if (m.magic == MAGIC && m.from < NODES)
			me->got_frames[m.from]++;
}

static void probe(const union ibv_gid *group)
{
	uint16_t mlid = nodes[0].mlid;
	for (int k = 0; k < KEYS; k++) {
		if (!qp[k])
			continue;
		for (int n = 0; n < NODES; n++)
			for (int j = 0; n != self && nodes[n].lid && j < KEYS; j++)
				if (nodes[n].qpn[j])
					transmit(k, address(nodes[n].lid, NULL), nodes[n].qpn[j], j);
		if (mlid)
			transmit(k, address(mlid, group), 0xffffff, MULTICAST);
	}
}

int main(int argc, char **argv)
{
	if (argc != 6 || (self = atoi(argv[3])) < 0 || self >= NODES)
		return fputs("usage: crossing DEVICE FILE SELF MGID INTERFACE\n", stderr), 2;
	int fd = open(argv[2], O_RDWR | O_CLOEXEC);
	if (fd < 0 || (nodes = mmap(NULL, NODES * sizeof *nodes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
		die(argv[2]);
	me = &nodes[self];
	me->lid = 0;
	for (int k = 0; k < KEYS; k++)
		me->qpn[k] = 0;
	union ibv_gid group;
	if (inet_pton(AF_INET6, argv[4], &group) != 1)
		die(argv[4]);
	struct ibv_device **list = ibv_get_device_list(NULL);
	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			ctx = ibv_open_device(list[i]);
	if (!ctx)
		die(argv[1]);
	buf = aligned_alloc(4096, (size_t)KEYS * DEPTH * SLOT);
	if (!(pd = ibv_alloc_pd(ctx)) || !(scq = ibv_create_cq(ctx, KEYS * DEPTH, NULL, NULL, 0)) ||
	    !(rcq = ibv_create_cq(ctx, KEYS * DEPTH, NULL, NULL, 0)) ||
	    !(mr = ibv_reg_mr(pd, buf, (size_t)KEYS * DEPTH * SLOT, IBV_ACCESS_LOCAL_WRITE)))
		die("create objects");
	struct ibv_port_attr p;
	do {
		if (ibv_query_port(ctx, 1, &p))
			die("query the port");
		usleep(20000);
	} while (p.state != IBV_PORT_ACTIVE || !p.lid);
	for (int k = 0; k < KEYS; k++)
		make(k);
	me->lid = p.lid;
	puts("crossing: ready");
	fflush(stdout);
	uint16_t attached = 0;
	for (;;) {
		if (nodes[0].mlid && attached != nodes[0].mlid) {
			attached = nodes[0].mlid;
			for (int k = 0; k < KEYS; k++)
				if (qp[k])
					ibv_attach_mcast(qp[k], &group, attached);
		}
		if (ibv_query_port(ctx, 1, &p))
			die("query the port");
		if (p.lid)
			me->lid = p.lid;
		for (int k = 0; k < KEYS; k++) {
			__be16 key = 0;
			me->pkey[k] = ibv_query_pkey(ctx, 1, k, &key) ? 0 : ntohs(key);
		}
		probe(&group);
		reopen(argv[5]);
		frames();
		me->beat++;
		for (int i = 0; i < 8; i++) {
			drain();
			usleep(ROUND_US / 8);
		}
	}
}
