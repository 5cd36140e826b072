/* SPDX-License-Identifier: Apache-2.0 */
/* The executor of an end: real verbs calls on tables of objects. */
#define _GNU_SOURCE
#include "vc.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct xbuf {
	uint8_t *map, *shadow;  /* shadow: what map must look like; NULL for big buffers */
	uint64_t map_len, off, len;
};

struct exec {
	const char *dev;
	int port, gid_index;
	struct ibv_context *ctx;
	struct hello h;
	struct ibv_pd *pd[MAX_OBJ];
	struct ibv_mr *mr[MAX_OBJ];
	struct ibv_mw *mw[MAX_OBJ];
	struct ibv_comp_channel *ch[MAX_OBJ];
	struct ibv_cq *cq[MAX_OBJ];
	struct ibv_srq *srq[MAX_OBJ];
	struct ibv_qp *qp[MAX_OBJ];
	struct ibv_ah *ah[MAX_OBJ];
	struct xbuf buf[MAX_OBJ];
	int ip[2];              /* sockets of IPv4 and IPv6 that are in IP groups; 0: none */
};

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int slot(void **table)
{
	for (int i = 0; i < MAX_OBJ; i++)
		if (!table[i])
			return i;
	fprintf(stderr, "verbcheck: too many objects\n");
	exit(2);
}

/* look returns the object, or NULL for NONE; a bad index is a bug of a test. */
static void *look(void **table, int i)
{
	if (i == NONE)
		return NULL;
	if (i < 0 || i >= MAX_OBJ || !table[i]) {
		fprintf(stderr, "verbcheck: no object %d\n", i);
		exit(2);
	}
	return table[i];
}
#define T(x, kind) ((void **)(x)->kind)
#define GET(kind, i) look(T(x, kind), i)

/* keep stores the result of a creating call in a free slot. */
static void keep(struct msg *m, void **table, void *obj)
{
	if (!obj) {
		m->rc = errno ? errno : EIO;
		m->id = NONE;
		return;
	}
	m->id = slot(table);
	table[m->id] = obj;
}

static int freed(void **table, int i, int rc)
{
	if (rc == 0)
		table[i] = NULL;
	return rc < 0 ? errno : rc;
}

static int open_ctx(struct exec *x)
{
	int n, rc = ENODEV;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list)
		return errno;
	for (int i = 0; i < n; i++) {
		if (x->dev && strcmp(ibv_get_device_name(list[i]), x->dev))
			continue;
		x->dev = strdup(ibv_get_device_name(list[i]));
		x->ctx = ibv_open_device(list[i]);
		rc = x->ctx ? 0 : errno;
		break;
	}
	ibv_free_device_list(list);
	if (!rc && fcntl(x->ctx->async_fd, F_SETFL, fcntl(x->ctx->async_fd, F_GETFL) | O_NONBLOCK))
		rc = errno;
	return rc;
}

const char *exec_device(struct exec *x) { return x->dev; }

/* exec_open opens the device (NULL: the first) and picks its GID: index, or if
 * that is NONE the first that is not link-local, IPv6 or IPv4 as asked. */
struct exec *exec_open(const char *dev, int port, int gid_index, bool v6)
{
	struct exec *x = calloc(1, sizeof *x);
	struct ibv_port_attr pa;

	x->dev = dev;
	x->port = port;
	int rc = open_ctx(x);
	if (rc) {
		fprintf(stderr, "verbcheck: open %s: %s. fix: see ibv_devices\n", dev ? dev : "a device", strerror(rc));
		return NULL;
	}
	if ((rc = ibv_query_port(x->ctx, port, &pa)) || (rc = ibv_query_device(x->ctx, &x->h.dev))) {
		fprintf(stderr, "verbcheck: query %s: %s\n", x->dev, strerror(rc));
		return NULL;
	}
	if (gid_index == NONE && pa.link_layer == IBV_LINK_LAYER_INFINIBAND)
		gid_index = 0;
	if (opt_lid && (pa.link_layer != IBV_LINK_LAYER_INFINIBAND || !pa.lid)) {
		fprintf(stderr, "verbcheck: %s has no LID. fix: give -d DEV with an active InfiniBand port\n", x->dev);
		return NULL;
	}
	for (int i = 0; gid_index == NONE && i < pa.gid_tbl_len; i++) {
		static const uint8_t mapped[12] = { [10] = 0xff, 0xff };
		union ibv_gid g;
		if (ibv_query_gid(x->ctx, port, i, &g) || !(g.global.interface_id | g.global.subnet_prefix))
			continue;
		bool v4 = !memcmp(g.raw, mapped, 12), ll = g.raw[0] == 0xfe && (g.raw[1] & 0xc0) == 0x80;
		if (!ll && v4 != v6)
			gid_index = i;
	}
	if (gid_index == NONE || (rc = ibv_query_gid(x->ctx, port, gid_index, &x->h.gid))) {
		fprintf(stderr, "verbcheck: %s has no such GID. fix: give -g INDEX, see ibv_devinfo -v\n", x->dev);
		return NULL;
	}
	x->gid_index = gid_index;
	x->h.magic = HELLO_MAGIC;
	x->h.vendor_id = x->h.dev.vendor_id;
	x->h.part_id = x->h.dev.vendor_part_id;
	x->h.active_mtu = pa.active_mtu;
	x->h.link_layer = pa.link_layer;
	x->h.max_msg_sz = pa.max_msg_sz;
	x->h.lid = pa.lid;
	x->h.port = port;
	x->h.gid_index = gid_index;
	return x;
}

static int free_kind(struct exec *x, enum op op, int i)
{
	switch (op) {
	case OP_PD_FREE: return freed(T(x, pd), i, ibv_dealloc_pd(GET(pd, i)));
	case OP_MW_FREE: return freed(T(x, mw), i, ibv_dealloc_mw(GET(mw, i)));
	case OP_MR_FREE: return freed(T(x, mr), i, ibv_dereg_mr(GET(mr, i)));
	case OP_CHANNEL_FREE: return freed(T(x, ch), i, ibv_destroy_comp_channel(GET(ch, i)));
	case OP_CQ_FREE: return freed(T(x, cq), i, ibv_destroy_cq(GET(cq, i)));
	case OP_SRQ_FREE: return freed(T(x, srq), i, ibv_destroy_srq(GET(srq, i)));
	case OP_QP_FREE: return freed(T(x, qp), i, ibv_destroy_qp(GET(qp, i)));
	case OP_AH_FREE: return freed(T(x, ah), i, ibv_destroy_ah(GET(ah, i)));
	default: return EINVAL;
	}
}

/* reset destroys all objects, users before what they use. Answers: rc, the
 * first failure; id, the call; u[0], a bit for each asynchronous event that
 * was not fetched. */
static void reset(struct exec *x, struct msg *m)
{
	static const enum op order[] = { OP_AH_FREE, OP_QP_FREE, OP_SRQ_FREE, OP_CQ_FREE, OP_CHANNEL_FREE, OP_MW_FREE,
		OP_MR_FREE, OP_PD_FREE };
	void **tables[] = { T(x, ah), T(x, qp), T(x, srq), T(x, cq), T(x, ch), T(x, mw), T(x, mr), T(x, pd) };
	struct ibv_async_event ev;

	while (!ibv_get_async_event(x->ctx, &ev)) {
		m->u[0] |= 1ull << ev.event_type;
		ibv_ack_async_event(&ev);
	}
	for (unsigned k = 0; k < sizeof order / sizeof *order; k++)
		for (int i = 0; i < MAX_OBJ; i++) {
			if (!tables[k][i])
				continue;
			int rc = free_kind(x, order[k], i);
			if (rc && !m->rc)
				m->rc = rc, m->id = order[k];
			tables[k][i] = NULL;
		}
	for (int i = 0; i < MAX_OBJ; i++) {
		if (x->buf[i].map)
			munmap(x->buf[i].map, x->buf[i].map_len);
		free(x->buf[i].shadow);
		x->buf[i] = (struct xbuf){ 0 };
	}
	for (int v6 = 0; v6 < 2; v6++) {
		if (x->ip[v6])
			close(x->ip[v6]);
		x->ip[v6] = 0;
	}
}

static struct xbuf *xbuf(struct exec *x, int i)
{
	if (i < 0 || i >= MAX_OBJ || !x->buf[i].map) {
		fprintf(stderr, "verbcheck: no buffer %d\n", i);
		exit(2);
	}
	return &x->buf[i];
}

/* A buffer stands between guards in memory of its own; the shadow covers the
 * guards too. */
static void new_buf(struct exec *x, struct msg *m)
{
	uint64_t len = m->u[0], off = GUARD + m->i[0];
	bool big = m->i[1];

	m->id = 0;
	while (m->id < MAX_OBJ - 1 && x->buf[m->id].map)
		m->id++;
	struct xbuf *b = &x->buf[m->id];
	b->len = len;
	b->off = off;
	b->map_len = (len + off + GUARD + 4095) & ~4095ull;
	b->map = mmap(NULL, b->map_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (b->map == MAP_FAILED || (!big && !(b->shadow = malloc(b->map_len)))) {
		b->map = NULL;
		m->rc = ENOMEM;
		return;
	}
	uint64_t seed = 0x6775617264 + m->id;
	if (big) {
		pattern(b->map, off, seed, 0);
		pattern(b->map + off + len, b->map_len - off - len, seed, off + len);
	} else {
		pattern(b->map, b->map_len, seed, 0);
		memcpy(b->shadow, b->map, b->map_len);
	}
	m->u[0] = (uintptr_t)b->map + off;
}

/* protect_pages gives all pages of a range a protection. */
static void protect_pages(struct msg *m)
{
	uint64_t from = m->u[0] & ~4095ull;

	if (mprotect((void *)(uintptr_t)from, m->u[0] + m->u[1] - from, m->i[0]))
		m->rc = errno;
}

static bool same(struct xbuf *b, uint64_t *at)
{
	if (!memcmp(b->map, b->shadow, b->map_len))
		return true;
	for (*at = 0; b->map[*at] == b->shadow[*at]; ++*at)
		;
	return false;
}

/* verify waits up to i[0] ms for the buffer to look as expected; for a
 * difference u[0] has the offset, u[1] and u[2] the byte found and wanted,
 * u[3] how many bytes differ. */
static void verify_buf(struct exec *x, struct msg *m)
{
	struct xbuf *b = xbuf(x, m->id);
	uint64_t at, end = now_ms() + m->i[0];
	bool eq;

	while (!(eq = same(b, &at)) && now_ms() < end)
		usleep(200);
	if (eq)
		return;
	m->rc = EILSEQ;
	m->u[0] = at - b->off;
	m->u[1] = b->map[at];
	m->u[2] = b->shadow[at];
	m->u[3] = 0;
	for (uint64_t i = at; i < b->map_len; i++)
		m->u[3] += b->map[i] != b->shadow[i];
}

/* cmp compares a big buffer: [u[0], u[0]+u[1]) with the pattern of seed u[2]
 * from u[3], everything with i[0] set its guards. */
static void cmp_big(struct exec *x, struct msg *m)
{
	struct xbuf *b = xbuf(x, m->id);
	uint64_t seed = 0x6775617264 + m->id, from = m->u[0] + b->off, left = m->u[1], soff = m->u[3];
	static uint8_t want[1 << 16];

	for (; left; from += sizeof want, soff += sizeof want) {
		uint64_t n = left < sizeof want ? left : sizeof want;
		pattern(want, n, m->u[2], soff);
		if (memcmp(b->map + from, want, n)) {
			m->rc = EILSEQ;
			m->u[0] = from - b->off;
			return;
		}
		left -= n;
	}
	for (int g = 0; m->i[0] && g < 2; g++) {
		uint64_t at = g ? b->off + b->len : b->off - GUARD;
		pattern(want, GUARD, seed, at);
		if (memcmp(b->map + at, want, GUARD)) {
			m->rc = EILSEQ;
			m->u[0] = at - b->off;
			return;
		}
	}
}

/* The same by the calls of the extended queue pair, all or nothing. */
static int post_ex(struct exec *x, struct ibv_qp_ex *q, struct swr *w, int n)
{
	ibv_wr_start(q);
	for (int i = 0; i < n; i++) {
		struct swr *s = &w[i];

		q->wr_id = s->wr_id;
		q->wr_flags = s->flags & ~IBV_SEND_INLINE;
		switch (s->opcode) {
		case IBV_WR_SEND: ibv_wr_send(q); break;
		case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(q, s->imm); break;
		case IBV_WR_SEND_WITH_INV: ibv_wr_send_inv(q, s->rkey); break;
		case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(q, s->rkey, s->raddr); break;
		case IBV_WR_RDMA_READ: ibv_wr_rdma_read(q, s->rkey, s->raddr); break;
		case IBV_WR_LOCAL_INV: ibv_wr_local_inv(q, s->rkey); continue;
		case IBV_WR_ATOMIC_WRITE: ibv_wr_atomic_write(q, s->rkey, s->raddr, (void *)(uintptr_t)s->sge[0].addr); continue;
		case IBV_WR_BIND_MW: {
			struct ibv_mw_bind_info b = { .mr = GET(mr, s->mr), .addr = s->raddr, .length = s->length,
				.mw_access_flags = s->access };
			ibv_wr_bind_mw(q, GET(mw, s->mw), s->rkey, &b);
			continue;
		}
		default:
			fprintf(stderr, "verbcheck: no ibv_wr_ for opcode %u\n", s->opcode);
			exit(2);
		}
		ibv_wr_set_sge_list(q, s->num_sge, s->sge);
	}
	return ibv_wr_complete(q);
}

static void post_send_list(struct exec *x, struct msg *m, struct swr *w)
{
	int n = m->i[1];
	struct ibv_send_wr *wr = calloc(n, sizeof *wr), *bad = NULL;
	struct ibv_sge *sge = calloc(n, sizeof *sge * MAX_SGE);

	for (int i = 0; i < n; i++) {
		struct swr *s = &w[i];
		memcpy(sge + i * MAX_SGE, s->sge, sizeof s->sge);
		wr[i].wr_id = s->wr_id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = sge + i * MAX_SGE;
		wr[i].num_sge = s->num_sge;
		wr[i].opcode = s->opcode;
		wr[i].send_flags = s->flags;
		wr[i].imm_data = s->imm;
		if (s->ah != NONE) {
			wr[i].wr.ud.ah = GET(ah, s->ah);
			wr[i].wr.ud.remote_qpn = s->rqpn;
			wr[i].wr.ud.remote_qkey = s->rqkey;
		} else if (s->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || s->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr[i].wr.atomic.remote_addr = s->raddr;
			wr[i].wr.atomic.rkey = s->rkey;
			wr[i].wr.atomic.compare_add = s->cmp_add;
			wr[i].wr.atomic.swap = s->swap;
		} else if (s->opcode == IBV_WR_BIND_MW) {
			wr[i].bind_mw.mw = GET(mw, s->mw);
			wr[i].bind_mw.rkey = s->rkey;
			wr[i].bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = GET(mr, s->mr), .addr = s->raddr, .length = s->length,
				.mw_access_flags = s->access };
		} else if (s->opcode == IBV_WR_SEND_WITH_INV || s->opcode == IBV_WR_LOCAL_INV) {
			wr[i].invalidate_rkey = s->rkey;
		} else {
			wr[i].wr.rdma.remote_addr = s->raddr;
			wr[i].wr.rdma.rkey = s->rkey;
		}
	}
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(GET(qp, m->i[0]));
	m->rc = q ? post_ex(x, q, w, n) : ibv_post_send(GET(qp, m->i[0]), wr, &bad);
	m->i[2] = m->rc && bad ? (int)(bad - wr) : m->rc ? 0 : n;
	/* Requests, entries and inline payload belong to the caller again. */
	memset(wr, 0xa5, n * sizeof *wr);
	memset(sge, 0xa5, n * sizeof *sge * MAX_SGE);
	for (int i = 0; i < n; i++)
		for (unsigned k = 0; w[i].scribble && k < w[i].num_sge; k++) {
			memset((void *)(uintptr_t)w[i].sge[k].addr, 0xee, w[i].sge[k].length);
			for (int j = 0; j < MAX_OBJ; j++) {
				struct xbuf *b = &x->buf[j];
				uint64_t d = w[i].sge[k].addr - (uintptr_t)b->map;
				if (b->shadow && d < b->map_len)
					memset(b->shadow + d, 0xee, w[i].sge[k].length);
			}
		}
	free(wr);
	free(sge);
}

static void post_recv_list(struct exec *x, struct msg *m, struct rwr *w, bool srq)
{
	int n = m->i[1];
	struct ibv_recv_wr *wr = calloc(n, sizeof *wr), *bad = NULL;
	struct ibv_sge *sge = calloc(n, sizeof *sge * MAX_SGE);

	for (int i = 0; i < n; i++) {
		memcpy(sge + i * MAX_SGE, w[i].sge, sizeof w[i].sge);
		wr[i] = (struct ibv_recv_wr){ .wr_id = w[i].wr_id, .next = i + 1 < n ? &wr[i + 1] : NULL,
			.sg_list = sge + i * MAX_SGE, .num_sge = w[i].num_sge };
	}
	m->rc = srq ? ibv_post_srq_recv(GET(srq, m->i[0]), wr, &bad) : ibv_post_recv(GET(qp, m->i[0]), wr, &bad);
	m->i[2] = m->rc && bad ? (int)(bad - wr) : n;
	memset(wr, 0xa5, n * sizeof *wr);
	memset(sge, 0xa5, n * sizeof *sge * MAX_SGE);
	free(wr);
	free(sge);
}

/* poll waits until there are i[1] completions, at most i[2], up to i[3] ms. */
static void poll_list(struct exec *x, struct msg *m, struct ibv_wc *wc)
{
	struct ibv_cq *cq = GET(cq, m->i[0]);
	int min = m->i[1], max = m->i[2], n = 0;
	uint64_t end = now_ms() + m->i[3];

	for (;;) {
		int got = n < max ? ibv_poll_cq(cq, max - n, wc + n) : 0;
		if (got < 0) {
			m->rc = EIO;
			break;
		}
		n += got;
		if (n >= min && (min || m->i[3] == 0))
			break;
		if (n >= max || now_ms() >= end)
			break;
		if (!got)
			sched_yield();
	}
	m->i[0] = n;
	m->len = n * sizeof *wc;
}

static void cq_event(struct exec *x, struct msg *m)
{
	struct ibv_comp_channel *ch = GET(ch, m->i[0]);
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *cookie;

	m->id = NONE;
	if (poll(&p, 1, m->i[1]) != 1)
		return;
	if (ibv_get_cq_event(ch, &cq, &cookie)) {
		m->rc = errno;
		return;
	}
	ibv_ack_cq_events(cq, 1);
	m->id = (int)(intptr_t)cookie;
	if (cq != x->cq[m->id])
		m->rc = EBADMSG;
}

/* async answers the event type in id and the object's index (or port) in i[0]. */
static void async_event(struct exec *x, struct msg *m)
{
	struct pollfd p = { .fd = x->ctx->async_fd, .events = POLLIN };
	struct ibv_async_event ev;

	m->id = NONE;
	if (poll(&p, 1, m->i[0]) != 1)
		return;
	if (ibv_get_async_event(x->ctx, &ev)) {
		m->rc = errno == EAGAIN ? 0 : errno;
		return;
	}
	m->id = ev.event_type;
	switch (ev.event_type) {
	case IBV_EVENT_CQ_ERR:
		m->i[0] = (int)(intptr_t)ev.element.cq->cq_context;
		break;
	case IBV_EVENT_QP_FATAL: case IBV_EVENT_QP_REQ_ERR: case IBV_EVENT_QP_ACCESS_ERR: case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED: case IBV_EVENT_PATH_MIG: case IBV_EVENT_PATH_MIG_ERR: case IBV_EVENT_QP_LAST_WQE_REACHED:
		m->i[0] = (int)(intptr_t)ev.element.qp->qp_context;
		break;
	case IBV_EVENT_SRQ_ERR: case IBV_EVENT_SRQ_LIMIT_REACHED:
		m->i[0] = (int)(intptr_t)ev.element.srq->srq_context;
		break;
	default:
		m->i[0] = ev.element.port_num;
	}
	ibv_ack_async_event(&ev);
}

/* ip_join has the host join the IP group of a GID, until the end is reset. A queue
 * pair of soft-RoCE that is attached gets what reaches its host, and sees to nothing
 * else. Where the connection manager joins, that is its part. */
static int ip_join(struct exec *x, const union ibv_gid *g)
{
	struct group_req r = { 0 };
	struct sockaddr_in *in = (void *)&r.gr_group;
	struct sockaddr_in6 *in6 = (void *)&r.gr_group;
	bool v6 = g->raw[0] == 0xff;
	char path[128], dev[IF_NAMESIZE] = "";

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%d/gid_attrs/ndevs/%d", x->dev, x->port, x->gid_index);
	FILE *f = fopen(path, "r");
	if (!f)
		return errno;
	int n = fscanf(f, "%15s", dev);
	fclose(f);
	r.gr_interface = n == 1 ? if_nametoindex(dev) : 0;
	if (!r.gr_interface)
		return ENODEV;
	if (v6) {
		in6->sin6_family = AF_INET6;
		memcpy(&in6->sin6_addr, g->raw, 16);
	} else {
		in->sin_family = AF_INET;
		memcpy(&in->sin_addr, g->raw + 12, 4);
	}
	if (!x->ip[v6]) {
		int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return errno;
		x->ip[v6] = fd;
	}
	if (setsockopt(x->ip[v6], v6 ? IPPROTO_IPV6 : IPPROTO_IP, MCAST_JOIN_GROUP, &r, sizeof r) && errno != EADDRINUSE)
		return errno;
	return 0;
}

/* group attaches a queue pair to a group or detaches it. */
static int group(struct exec *x, struct ibv_qp *qp, bool in, const union ibv_gid *g, uint16_t lid)
{
	if (!in)
		return ibv_detach_mcast(qp, g, lid);
	int rc = ibv_attach_mcast(qp, g, lid);
	return rc || x->h.vendor_id != RXE_VENDOR ? rc : ip_join(x, g);
}

/* exec_do executes m and leaves the answer in it and in the payload. */
void exec_do(struct exec *x, struct msg *m, void *payload)
{
	struct xbuf *b;

	m->rc = 0;
	m->len = 0;
	errno = 0;
	switch (m->op) {
	case OP_HELLO:
		memcpy(payload, &x->h, m->len = sizeof x->h);
		break;
	case OP_BYE:
		break;
	case OP_RESET:
		reset(x, m);
		break;
	case OP_REOPEN:
		m->rc = ibv_close_device(x->ctx);
		if (!m->rc)
			m->rc = open_ctx(x);
		break;
	case OP_QUERY_DEVICE:
		m->rc = ibv_query_device(x->ctx, payload);
		m->len = sizeof(struct ibv_device_attr);
		break;
	case OP_QUERY_PORT:
		m->rc = ibv_query_port(x->ctx, m->i[0], (struct ibv_port_attr *)payload);
		m->len = sizeof(struct ibv_port_attr);
		break;
	case OP_QUERY_GID:
		m->rc = ibv_query_gid(x->ctx, x->port, m->i[0], payload) ? (errno ? errno : EIO) : 0;
		m->len = sizeof(union ibv_gid);
		break;
	case OP_QUERY_PKEY: {
		__be16 k = 0;
		m->rc = ibv_query_pkey(x->ctx, x->port, m->i[0], &k) ? (errno ? errno : EIO) : 0;
		m->i[0] = be16toh(k);
		break;
	}
	case OP_PD:
		keep(m, T(x, pd), ibv_alloc_pd(x->ctx));
		break;
	case OP_PD_FREE: case OP_MW_FREE: case OP_MR_FREE: case OP_CHANNEL_FREE:
	case OP_CQ_FREE: case OP_SRQ_FREE: case OP_QP_FREE: case OP_AH_FREE:
		m->rc = free_kind(x, m->op, m->id);
		break;
	case OP_BUF:
		new_buf(x, m);
		break;
	case OP_PROTECT:
		protect_pages(m);
		break;
	case OP_UNMAP:
		b = xbuf(x, m->id);
		m->rc = munmap(b->map, b->map_len) ? errno : 0;
		b->map = NULL;
		break;
	case OP_FILL:
		b = xbuf(x, m->id);
		pattern(b->map + b->off + m->u[0], m->u[1], m->u[2], m->u[0]);
		if (b->shadow)
			memcpy(b->shadow + b->off + m->u[0], b->map + b->off + m->u[0], m->u[1]);
		break;
	case OP_EXPECT:
		b = xbuf(x, m->id);
		pattern(b->shadow + b->off + m->u[0], m->u[1], m->u[2], m->u[3]);
		break;
	case OP_EXPECT_BYTES: /* with i[0] also the memory itself is set */
		b = xbuf(x, m->id);
		memcpy(b->shadow + b->off + m->u[0], payload, m->u[1]);
		if (m->i[0])
			memcpy(b->map + b->off + m->u[0], payload, m->u[1]);
		break;
	case OP_GET:
		b = xbuf(x, m->id);
		memcpy(payload, b->map + b->off + m->u[0], m->u[1]);
		m->len = m->u[1];
		break;
	case OP_VERIFY:
		verify_buf(x, m);
		break;
	case OP_CMP:
		cmp_big(x, m);
		break;
	case OP_MR: {
		unsigned access = m->i[1];
		struct ibv_mr *mr = ibv_reg_mr(GET(pd, m->i[0]), (void *)(uintptr_t)m->u[0], m->u[1], access);
		keep(m, T(x, mr), mr);
		if (mr)
			m->u[2] = mr->lkey, m->u[3] = mr->rkey;
		break;
	}
	case OP_MR_REREG: {
		struct ibv_mr *mr = GET(mr, m->id);
		m->rc = ibv_rereg_mr(mr, m->i[1], GET(pd, m->i[0]), (void *)(uintptr_t)m->u[0], m->u[1], m->i[2]);
		if (m->rc < 0)
			m->rc = errno ? errno : EIO;
		m->u[2] = mr->lkey, m->u[3] = mr->rkey;
		break;
	}
	case OP_MW: {
		struct ibv_mw *mw = ibv_alloc_mw(GET(pd, m->i[0]), m->i[1]);
		keep(m, T(x, mw), mw);
		m->u[0] = mw ? mw->rkey : 0;
		break;
	}
	case OP_MW_BIND: {
		struct ibv_mw *mw = GET(mw, m->id);
		struct ibv_mw_bind bind = { .wr_id = m->u[2], .send_flags = m->i[3], .bind_info = { .mr = GET(mr, m->i[1]),
			.addr = m->u[0], .length = m->u[1], .mw_access_flags = m->i[2] } };
		m->rc = ibv_bind_mw(GET(qp, m->i[0]), mw, &bind);
		m->u[0] = mw->rkey;
		break;
	}
	case OP_CHANNEL:
		keep(m, T(x, ch), ibv_create_comp_channel(x->ctx));
		break;
	case OP_CQ: {
		int id = slot(T(x, cq));
		struct ibv_cq *cq = ibv_create_cq(x->ctx, m->i[0], (void *)(intptr_t)id, GET(ch, m->i[1]), m->i[2]);
		keep(m, T(x, cq), cq);
		m->i[0] = cq ? cq->cqe : 0;
		break;
	}
	case OP_CQ_RESIZE:
		m->rc = ibv_resize_cq(GET(cq, m->id), m->i[0]);
		if (m->rc < 0)
			m->rc = errno ? errno : EIO;
		m->i[0] = x->cq[m->id]->cqe;
		break;
	case OP_ARM:
		m->rc = ibv_req_notify_cq(GET(cq, m->id), m->i[0]);
		break;
	case OP_EVENT:
		cq_event(x, m);
		break;
	case OP_POLL:
		poll_list(x, m, payload);
		break;
	case OP_SRQ: {
		struct ibv_srq_init_attr a = { .srq_context = (void *)(intptr_t)slot(T(x, srq)),
			.attr = { .max_wr = m->i[1], .max_sge = m->i[2] } };
		keep(m, T(x, srq), ibv_create_srq(GET(pd, m->i[0]), &a));
		memcpy(payload, &a.attr, m->len = sizeof a.attr);
		break;
	}
	case OP_SRQ_MODIFY:
		m->rc = ibv_modify_srq(GET(srq, m->id), payload, m->i[0]);
		break;
	case OP_SRQ_QUERY:
		m->rc = ibv_query_srq(GET(srq, m->id), payload);
		m->len = sizeof(struct ibv_srq_attr);
		break;
	case OP_QP: {
		struct qp_init in;
		memcpy(&in, payload, sizeof in);
		struct ibv_qp_init_attr a = { .qp_context = (void *)(intptr_t)slot(T(x, qp)), .send_cq = GET(cq, in.scq),
			.recv_cq = GET(cq, in.rcq), .srq = GET(srq, in.srq), .cap = in.cap, .qp_type = in.type, .sq_sig_all = in.sig_all };
		struct ibv_qp_init_attr_ex ex = { .qp_context = a.qp_context, .send_cq = a.send_cq, .recv_cq = a.recv_cq,
			.srq = a.srq, .cap = a.cap,
			.qp_type = a.qp_type, .sq_sig_all = a.sq_sig_all, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
			.pd = GET(pd, in.pd), .create_flags = in.create_flags, .send_ops_flags = in.send_ops };
		bool extended = in.create_flags || in.send_ops;
		if (in.send_ops)
			ex.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		struct ibv_qp *qp = extended ? ibv_create_qp_ex(x->ctx, &ex) : ibv_create_qp(ex.pd, &a);
		if (extended)
			a.cap = ex.cap;
		keep(m, T(x, qp), qp);
		m->u[0] = qp ? qp->qp_num : 0;
		in.cap = a.cap;
		memcpy(payload, &in, m->len = sizeof in);
		break;
	}
	case OP_QP_MODIFY:
		m->rc = ibv_modify_qp(GET(qp, m->id), payload, m->i[0]);
		if (m->rc < 0)
			m->rc = errno ? errno : EIO;
		break;
	case OP_QP_QUERY: {
		struct ibv_qp_attr *a = payload;
		struct ibv_qp_init_attr *ia = (void *)(a + 1);
		m->rc = ibv_query_qp(GET(qp, m->id), a, 0x1fffff, ia);
		m->len = sizeof *a + sizeof *ia;
		break;
	}
	case OP_AH:
		keep(m, T(x, ah), ibv_create_ah(GET(pd, m->i[0]), payload));
		break;
	case OP_AH_FROM_WC: {
		struct ibv_wc wc;
		memcpy(&wc, payload, sizeof wc);
		keep(m, T(x, ah), ibv_create_ah_from_wc(GET(pd, m->i[0]), &wc, (void *)(uintptr_t)m->u[0], x->port));
		break;
	}
	case OP_MCAST:
		m->rc = group(x, GET(qp, m->id), m->i[0], payload, m->i[1]);
		break;
	case OP_POST_SEND:
		post_send_list(x, m, payload);
		break;
	case OP_POST_RECV:
		post_recv_list(x, m, payload, false);
		break;
	case OP_POST_SRQ:
		post_recv_list(x, m, payload, true);
		break;
	case OP_ASYNC:
		async_event(x, m);
		break;
	case OP_STRESS:
		m->rc = stress(x->ctx, &x->h, m->i[0], m->i[1], m->u[0], payload, 256);
		m->len = 256;
		break;
	default:
		fprintf(stderr, "verbcheck: unknown request %u: both ends must be the same version\n", m->op);
		exit(2);
	}
}

void exec_close(struct exec *x)
{
	struct msg m = { .op = OP_RESET };
	exec_do(x, &m, NULL);
	ibv_close_device(x->ctx);
	free(x);
}
