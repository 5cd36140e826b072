/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of the preload library against a fake node: an ordinary libibverbs
 * program that preloads the library named by its first argument. */
#include "verbs_test.h"

struct ibv_context *ctx;
struct ibv_pd *pd;
struct ibv_mr *mr;
uint8_t *buf;

static void test_queries(void)
{
	struct ibv_device_attr_ex ex;
	struct ibv_port_attr port;
	struct ibv_gid_entry table[2], e;
	union ibv_gid gid;
	__be16 pkey;

	CHECK(!ibv_query_device_ex(ctx, NULL, &ex));
	CHECK(ex.orig_attr.phys_port_cnt == 1 && ex.orig_attr.max_qp == 62 && ex.orig_attr.max_cq == 15);
	CHECK(ex.orig_attr.atomic_cap == IBV_ATOMIC_HCA);
	CHECK(ex.orig_attr.node_guid == ibv_get_device_guid(ctx->device));
	CHECK(!ibv_query_port(ctx, 1, &port) && port.state == IBV_PORT_ACTIVE &&
	      port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len == 2 && port.flags == 1);
	CHECK(ibv_query_port(ctx, 2, &port) == EINVAL);
	CHECK(!ibv_query_gid(ctx, 1, 1, &gid) && gid.raw[12] == 10 && gid.raw[15] == 1);
	CHECK(ibv_query_gid(ctx, 1, 2, &gid) == -1);
	CHECK(!ibv_query_gid_ex(ctx, 1, 0, &e, 0) && e.gid_type == IBV_GID_TYPE_ROCE_V2 && e.ndev_ifindex == 1);
	CHECK(ibv_query_gid_table(ctx, table, 2, 0) == 2);
	CHECK(ibv_query_gid_table(ctx, table, 1, 0) == -EINVAL);
	CHECK(!ibv_query_pkey(ctx, 1, 0, &pkey) && pkey == 0xffff && ibv_get_pkey_index(ctx, 1, pkey) == 0);
	CHECK(ctx->async_fd >= 0 && ctx->num_comp_vectors >= 1);
	/* A truncating caller gets exactly its length. */
	memset(&ex, 0xa5, sizeof(ex));
	CHECK(!ibv_query_device_ex(ctx, NULL, &ex));
}

static void test_rc(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 100, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 16), *b = new_qp(IBV_QPT_RC, cq, NULL, 16);
	uint32_t inl = fake_inline_elements, lst = fake_list_elements;
	struct ibv_wc wc[8];

	CHECK(cq && cq->cqe >= 100);
	CHECK(a->qp_num >> 14 == 5 && a->qp_num != b->qp_num);
	CHECK(post(a, IBV_WR_SEND, buf, 8, NULL, 0) == EINVAL);
	CHECK(recv_one(a, 0, buf, 8) == EINVAL);
	ready(a, b->qp_num);
	ready(b, a->qp_num);

	/* Copied when posted, by request or because it is small. */
	memcpy(buf, "hello, node", 11);
	CHECK(!recv_one(b, 99, buf + 4096, 64));
	CHECK(!post(a, IBV_WR_SEND_WITH_IMM, buf, 11, NULL, 0));
	CHECK(await(cq, wc, 2) == 2);
	for (int i = 0; i < 2; i++) {
		bool rx = wc[i].opcode == IBV_WC_RECV;

		CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].qp_num == (rx ? b : a)->qp_num);
		CHECK(wc[i].wr_id == (rx ? 99u : 7u));
		if (rx)
			CHECK(wc[i].byte_len == 11 && wc[i].wc_flags == IBV_WC_WITH_IMM &&
			      wc[i].imm_data == htonl(0x01020304));
	}
	CHECK(!memcmp(buf + 4096, "hello, node", 11));
	CHECK(fake_inline_elements == inl + 1);

	/* Large: by reference. Behind a fence: by reference. */
	for (int i = 0; i < 8192; i++)
		buf[i] = (uint8_t)(i * 7);
	CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8192, buf + 65536, 0) && await(cq, wc, 1) == 1);
	CHECK(wc[0].opcode == IBV_WC_RDMA_WRITE && !memcmp(buf, buf + 65536, 8192));
	CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 100000, IBV_SEND_FENCE) && await(cq, wc, 1) == 1);
	CHECK(fake_list_elements == lst + 2);
	CHECK(!post(a, IBV_WR_RDMA_READ, buf + 100000, 512, buf + 65536, 0) && await(cq, wc, 1) == 1);
	CHECK(wc[0].opcode == IBV_WC_RDMA_READ && wc[0].byte_len == 512 && !memcmp(buf, buf + 100000, 512));

	/* A key that is not right is for the node to refuse. */
	struct ibv_sge sg = { (uintptr_t)buf, 8, mr->lkey + 1 };
	struct ibv_send_wr wr = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	CHECK(!recv_one(b, 1, buf, 8) && !ibv_post_send(a, &wr, &bad) && await(cq, wc, 1) == 1);
	CHECK(wc[0].status == IBV_WC_LOC_PROT_ERR);
	sg.lkey = mr->lkey;
	sg.addr = (uintptr_t)buf + BUF - 4;
	CHECK(!ibv_post_send(a, &wr, &bad) && await(cq, wc, 1) == 1 && wc[0].status == IBV_WC_LOC_PROT_ERR);

	/* Refusals name the request; those before it stay. */
	sg = (struct ibv_sge){ (uintptr_t)buf, 8, mr->lkey };
	struct ibv_send_wr w2 = { .wr_id = 2, .sg_list = &sg, .num_sge = 5, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_send_wr w1 = { .wr_id = 1, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .next = &w2, .send_flags = IBV_SEND_SIGNALED };
	w1.wr.rdma.remote_addr = (uintptr_t)buf + 512;
	CHECK(ibv_post_send(a, &w1, &bad) == EINVAL && bad == &w2);
	CHECK(await(cq, wc, 1) == 1 && wc[0].wr_id == 1);
	w2.num_sge = 1;
	w2.opcode = IBV_WR_LOCAL_INV;
	CHECK(ibv_post_send(a, &w2, &bad) == EINVAL && bad == &w2);
	fake_hold = true;
	int n = 0;
	while (!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0))
		n++;
	CHECK(n == 16 && post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0) == ENOMEM);
	fake_hold = false;
	CHECK(!recv_one(b, 5, buf, 8)); /* rings the bell again */
	CHECK(await(cq, wc, 8) == 8 && await(cq, wc, 8) == 8);

	/* Atomics. */
	uint64_t *word = (uint64_t *)(buf + 2048), *res = (uint64_t *)(buf + 3000 - 3000 % 8);
	struct ibv_sge asg = { (uintptr_t)res, 8, mr->lkey };
	struct ibv_send_wr at = { .sg_list = &asg, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				  .send_flags = IBV_SEND_SIGNALED };
	*word = 40;
	at.wr.atomic.remote_addr = (uintptr_t)word;
	at.wr.atomic.compare_add = 2;
	at.wr.atomic.rkey = mr->rkey;
	CHECK(!ibv_post_send(a, &at, &bad) && await(cq, wc, 1) == 1);
	CHECK(wc[0].opcode == IBV_WC_FETCH_ADD && *word == 42 && *res == 40);
	at.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	at.wr.atomic.compare_add = 42;
	at.wr.atomic.swap = 1;
	CHECK(!ibv_post_send(a, &at, &bad) && await(cq, wc, 1) == 1);
	CHECK(wc[0].opcode == IBV_WC_COMP_SWAP && *word == 1 && *res == 42);

	/* Flush. */
	move(b, IBV_QPS_ERR, 0);
	CHECK(!recv_one(b, 55, buf, 8));
	CHECK(await(cq, wc, 1) == 1 && wc[0].status == IBV_WC_WR_FLUSH_ERR);
	/* A reset takes back the completions of this queue pair, of no other. */
	CHECK(!recv_one(b, 56, buf, 8) && !post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0));
	usleep(20000);
	CHECK(!recv_one(b, 57, buf, 8));
	move(b, IBV_QPS_RESET, 0);
	CHECK(await(cq, wc, 1) == 1 && wc[0].qp_num == a->qp_num && ibv_poll_cq(cq, 1, wc) == 0);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq));
}

static void test_small_cq(void)
{
	/* More completions than the ring has slots: the node keeps them and needs
	 * a bell to go on. */
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 64);
	struct ibv_wc wc[64];
	int n = 0;

	ready(a, a->qp_num);
	for (int i = 0; i < 40; i++)
		CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0));
	while (n < 20) {
		CHECK(await(cq, wc, 1) == 1);
		n++;
	}
	/* Resizing keeps what waits. */
	CHECK(!ibv_resize_cq(cq, 64) && cq->cqe >= 64);
	CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0));
	CHECK(await(cq, wc, 21) == 21);
	CHECK(ibv_poll_cq(cq, 1, wc) == 0);
	CHECK(ibv_resize_cq(cq, 100000) == EINVAL);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_cq(cq));
}

static bool readable(int fd, int ms)
{
	struct pollfd p = { fd, POLLIN, 0 };

	return poll(&p, 1, ms) == 1;
}

static void test_events(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, (void *)0x77, ch, 0), *ev;
	struct ibv_cq *other = ibv_create_cq(ctx, 16, NULL, ch, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 16);
	struct ibv_wc wc[4];
	void *cookie;

	ready(a, a->qp_num);
	CHECK(ibv_destroy_comp_channel(ch) == EBUSY);
	CHECK(fcntl(ch->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(ch, &ev, &cookie) == -1 && errno == EAGAIN);

	/* Armed, then a completion. */
	CHECK(!ibv_req_notify_cq(cq, 0) && !readable(ch->fd, 0));
	CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0));
	CHECK(readable(ch->fd, 2000) && !ibv_get_cq_event(ch, &ev, &cookie) && ev == cq && cookie == (void *)0x77);
	CHECK(!readable(ch->fd, 0));
	/* The event has told of the completion that waits: arming is quiet. */
	CHECK(!ibv_req_notify_cq(cq, 0) && !readable(ch->fd, 0));
	CHECK(await(cq, wc, 1) == 1 && !readable(ch->fd, 0));
	/* The next fires; one that comes before the arming fires with it. */
	CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0));
	CHECK(readable(ch->fd, 2000) && !ibv_get_cq_event(ch, &ev, &cookie));
	CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0) && !readable(ch->fd, 100));
	CHECK(!ibv_req_notify_cq(cq, 0) && readable(ch->fd, 0) && !ibv_get_cq_event(ch, &ev, &cookie));
	/* Both have been told of. A poll that leaves one of them fires. */
	CHECK(!ibv_req_notify_cq(cq, 0) && !readable(ch->fd, 0));
	CHECK(ibv_poll_cq(cq, 1, wc) == 1 && readable(ch->fd, 0) && !ibv_get_cq_event(ch, &ev, &cookie));
	CHECK(ibv_poll_cq(cq, 1, wc) == 1 && !readable(ch->fd, 0));
	ibv_ack_cq_events(cq, 4);
	/* Solicited only: an unsolicited one does not fire, next overrides. */
	CHECK(!ibv_req_notify_cq(cq, 1) && !post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0));
	CHECK(await(cq, wc, 1) == 1 && !readable(ch->fd, 0));
	CHECK(!ibv_req_notify_cq(cq, 0) && !ibv_req_notify_cq(cq, 1));
	CHECK(!post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0) && readable(ch->fd, 2000));
	CHECK(await(cq, wc, 1) == 1);
	/* The record of a CQ that goes away goes too; that of another stays. */
	CHECK(!ibv_destroy_qp(a));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(ibv_get_cq_event(ch, &ev, &cookie) == -1 && errno == EAGAIN);
	CHECK(!ibv_destroy_cq(other) && !ibv_destroy_comp_channel(ch));
}

static void *acker(void *cq)
{
	usleep(20000);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void test_ack_wait(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0), *ev;
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 16);
	void *cookie;
	pthread_t t;

	ready(a, a->qp_num);
	CHECK(!ibv_req_notify_cq(cq, 0) && !post(a, IBV_WR_RDMA_WRITE, buf, 8, buf + 512, 0));
	CHECK(!ibv_get_cq_event(ch, &ev, &cookie));
	CHECK(!ibv_destroy_qp(a));
	CHECK(!pthread_create(&t, NULL, acker, cq));
	CHECK(!ibv_destroy_cq(cq));
	pthread_join(t, NULL);
	CHECK(!ibv_destroy_comp_channel(ch));
}

static void test_async(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 16), *b = new_qp(IBV_QPT_RC, cq, NULL, 16);
	struct ibv_async_event e;

	CHECK(!readable(ctx->async_fd, 0));
	fake_event(WEFT_EVENT_COMM_EST, b->qp_num);
	CHECK(readable(ctx->async_fd, 2000));
	/* Its object is destroyed undelivered: dropped, and no thread is woken. */
	CHECK(!ibv_destroy_qp(b));
	CHECK(!readable(ctx->async_fd, 0));
	fake_event(WEFT_EVENT_QP_FATAL, a->qp_num);
	CHECK(!ibv_get_async_event(ctx, &e) && e.event_type == IBV_EVENT_QP_FATAL && e.element.qp == a);
	ibv_ack_async_event(&e);
	fake_event(WEFT_EVENT_PORT_DOWN, 1);
	CHECK(!ibv_get_async_event(ctx, &e) && e.event_type == IBV_EVENT_PORT_ERR && e.element.port_num == 1);
	ibv_ack_async_event(&e);
	fake_event(WEFT_EVENT_CQ_ERR, cq->handle);
	CHECK(!ibv_get_async_event(ctx, &e) && e.event_type == IBV_EVENT_CQ_ERR && e.element.cq == cq);
	ibv_ack_async_event(&e);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_cq(cq));
	/* More than the ring has buffers for. */
	fake_events(WEFT_EVENT_PORT_ACTIVE, 1, 600);
	for (int i = 0; i < 600; i++) {
		CHECK(readable(ctx->async_fd, 2000));
		CHECK(!ibv_get_async_event(ctx, &e) && e.event_type == IBV_EVENT_PORT_ACTIVE);
		ibv_ack_async_event(&e);
	}
	CHECK(!readable(ctx->async_fd, 0));
}

/* Sends a message into a shared queue and returns which request took it. */
static uint64_t took(struct ibv_qp *a, struct ibv_cq *cq)
{
	struct ibv_wc wc[2] = { 0 };

	CHECK(!post(a, IBV_WR_SEND, buf, 8, NULL, 0) && await(cq, wc, 2) == 2);
	return wc[0].opcode == IBV_WC_RECV ? wc[0].wr_id : wc[1].wr_id;
}

static void test_srq(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, srq, 8);
	struct ibv_sge sg = { (uintptr_t)buf + 4096, 64, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sg, .num_sge = 1 }, *bad;
	uint64_t sum = 0;

	CHECK(srq && sa.attr.max_wr == 8);
	ready(a, a->qp_num);
	fake_swap = true;
	for (uint64_t id = 0; id < 8; id++) {
		wr.wr_id = id;
		CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	}
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == ENOMEM && bad == &wr);
	/* Slots come back in another order, and each identity exactly once. */
	for (uint64_t id = 8; id < 200; id++) {
		sum += took(a, cq);
		wr.wr_id = id;
		CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	}
	for (int i = 0; i < 8; i++)
		sum += took(a, cq);
	CHECK(sum == 199 * 200 / 2);
	fake_swap = false;
	wr.num_sge = 2;
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == EINVAL);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
}

struct refill {
	struct ibv_srq *srq;
	uint64_t next;
	_Atomic bool go;
};

/* Posts as long as it may, whatever the queue's size just is. */
static void *refill(void *arg)
{
	struct refill *p = arg;
	struct ibv_sge sg = { (uintptr_t)buf + 4096, 64, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sg, .num_sge = 1 }, *bad;

	while (p->go) {
		wr.wr_id = p->next;
		if (!ibv_post_srq_recv(p->srq, &wr, &bad))
			p->next++;
	}
	return NULL;
}

/* A queue gets another size with requests in it, one of them taken already. */
static void test_srq_resize(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, srq, 8);
	struct ibv_sge sg = { (uintptr_t)buf + 4096, 64, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sg, .num_sge = 1 }, *bad;
	struct ibv_srq_attr at, q;
	struct ibv_device_attr d;
	uint64_t posted = 0, taken = 0;
	/* To be resized to, and how many requests are then left for the next step. */
	static const struct { uint32_t size, leave; } step[] = {
		{ 8, 5 }, { 32, 12 }, { 16, 14 }, { 14, 4 }, { 4, 0 }, { 1024, 24 }, { 25, 2 },
		{ 2, 0 }, { 64, 0 },
	};

	CHECK(!ibv_query_device(ctx, &d) && d.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	CHECK(srq);
	ready(a, a->qp_num);
	for (int ahead = 0; ahead < 2; ahead++) {
		fake_ahead = ahead;
		for (size_t s = 0; s < sizeof(step) / sizeof(*step); s++) {
			at = (struct ibv_srq_attr){ .max_wr = step[s].size };
			CHECK(!ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR));
			CHECK(!ibv_query_srq(srq, &q) && q.max_wr >= step[s].size && q.srq_limit == 0);
			for (wr.wr_id = posted; !ibv_post_srq_recv(srq, &wr, &bad); wr.wr_id++)
				;
			posted = wr.wr_id;
			CHECK(posted - taken >= q.max_wr && posted - taken <= q.max_wr + (uint32_t)ahead);
			/* Below what waits, of nothing, beyond all. */
			at.max_wr = (uint32_t)(posted - taken) - 1 - (uint32_t)ahead;
			CHECK(ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR) == EINVAL);
			at.max_wr = 0;
			CHECK(ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR) == EINVAL);
			at.max_wr = 1025;
			CHECK(ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR) == EINVAL);
			for (; posted - taken > step[s].leave; taken++)
				CHECK(took(a, cq) == taken);
		}
	}
	fake_ahead = false;
	/* The limit stays, may change along, and never is above the size. */
	at = (struct ibv_srq_attr){ .max_wr = 16, .srq_limit = 12 };
	CHECK(!ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	at = (struct ibv_srq_attr){ .max_wr = 64, .srq_limit = 1 };
	CHECK(!ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR));
	CHECK(!ibv_query_srq(srq, &q) && q.max_wr == 64 && q.srq_limit == 12);
	at.max_wr = 9;
	CHECK(ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR) == EINVAL);
	at.srq_limit = 10;
	CHECK(ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == EINVAL);
	CHECK(!ibv_query_srq(srq, &q) && q.max_wr == 64 && q.srq_limit == 12);
	at.srq_limit = 65;
	CHECK(ibv_modify_srq(srq, &at, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_modify_srq(srq, &at, 4) == EINVAL && !ibv_modify_srq(srq, &at, 0));

	/* Others post meanwhile: nothing is lost, doubled or overtaken. */
	struct refill p = { .srq = srq, .next = posted, .go = true };
	pthread_t t;

	at.srq_limit = 0;
	CHECK(!ibv_modify_srq(srq, &at, IBV_SRQ_LIMIT));
	CHECK(!pthread_create(&t, NULL, refill, &p));
	for (int i = 0; i < 2000; i++) {
		int err;

		fake_ahead = i & 1;
		at.max_wr = 1 + (uint32_t)(i * 37) % 200;
		err = ibv_modify_srq(srq, &at, IBV_SRQ_MAX_WR);
		CHECK(!err || err == EINVAL);
		CHECK(took(a, cq) == taken++);
	}
	p.go = false;
	pthread_join(t, NULL);
	while (taken != p.next)
		CHECK(took(a, cq) == taken++);
	fake_ahead = false;
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
}

static void test_ex(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq_init_attr_ex ca = { .cqe = 16, .channel = ch, .wc_flags = IBV_WC_STANDARD_FLAGS |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &ca);
	struct ibv_qp_init_attr_ex qa = { .qp_type = IBV_QPT_RC, .pd = pd, .cap = { 8, 8, 2, 2, 32 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE };
	struct ibv_poll_cq_attr pa = { 0 };
	struct ibv_qp *qp;
	struct ibv_qp_ex *x = NULL;

	CHECK(cq);
	qa.send_cq = qa.recv_cq = ibv_cq_ex_to_cq(cq);
	qp = ibv_create_qp_ex(ctx, &qa);
	CHECK(qp && (x = ibv_qp_to_qp_ex(qp)) && x->wr_send && !x->wr_rdma_read);
	ready(qp, qp->qp_num);
	CHECK(!recv_one(qp, 31, buf + 4096, 64));

	ibv_wr_start(x);
	x->wr_id = 21;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(x, mr->rkey, (uintptr_t)buf + 9000);
	ibv_wr_set_sge(x, mr->lkey, (uintptr_t)buf, 2000);
	x->wr_id = 22;
	ibv_wr_send(x);
	ibv_wr_set_inline_data(x, "abcdef", 6);
	CHECK(!ibv_wr_complete(x));
	int n = 0;
	for (int i = 0; i < 2000000 && n < 3; i++) {
		int err = ibv_start_poll(cq, &pa);

		if (err) {
			CHECK(err == ENOENT);
			usleep(1);
			continue;
		}
		for (; !err; err = ibv_next_poll(cq), n++) {
			CHECK(cq->status == IBV_WC_SUCCESS);
			CHECK(ibv_wc_read_completion_ts(cq) > 0 && ibv_wc_read_qp_num(cq) == qp->qp_num);
			if (ibv_wc_read_opcode(cq) == IBV_WC_RECV)
				CHECK(cq->wr_id == 31 && ibv_wc_read_byte_len(cq) == 6);
			else
				CHECK(cq->wr_id == (ibv_wc_read_opcode(cq) == IBV_WC_SEND ? 22u : 21u));
		}
		CHECK(err == ENOENT);
		/* Arming in the middle of a poll is legal and must not wait for it. */
		CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
		ibv_end_poll(cq);
	}
	CHECK(n == 3 && !memcmp(buf + 4096, "abcdef", 6) && !memcmp(buf, buf + 9000, 2000));

	/* Nothing of a failed or aborted batch is posted. */
	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_set_inline_data(x, buf, 5000);
	CHECK(ibv_wr_complete(x) == EINVAL);
	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_abort(x);
	usleep(2000);
	CHECK(ibv_start_poll(cq, &pa) == ENOENT);
	qa.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE;
	CHECK(!ibv_create_qp_ex(ctx, &qa) && errno == EOPNOTSUPP);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_destroy_comp_channel(ch));
}

static void test_ud(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_UD, cq, NULL, 8);
	struct ibv_ah_attr aa = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &aa);
	struct ibv_sge sg = { (uintptr_t)buf, 100, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc[2];
	struct ibv_grh grh;
	/* 10.0.0.2 to 10.0.0.1, with a valid checksum. */
	static const uint8_t ip[20] = { 0x45, 8, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x26, 0xa7, 10, 0, 0, 2, 10, 0, 0, 1 };

	CHECK(ah);
	ready(a, 0);
	CHECK(ibv_post_send(a, &wr, &bad) == EINVAL); /* without an address handle */
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = a->qp_num;
	CHECK(!recv_one(a, 3, buf + 4096, 256) && !ibv_post_send(a, &wr, &bad) && await(cq, wc, 2) == 2);
	for (int i = 0; i < 2; i++)
		if (wc[i].opcode == IBV_WC_RECV)
			CHECK(wc[i].byte_len == 140 && wc[i].src_qp == a->qp_num && wc[i].wc_flags == IBV_WC_GRH && wc[i].sl == 2);
	CHECK(!memcmp(buf, buf + 4096 + 40, 100));

	memset(&grh, 0, sizeof(grh));
	memcpy((uint8_t *)&grh + 20, ip, 20);
	wc[0] = (struct ibv_wc){ .wc_flags = IBV_WC_GRH };
	CHECK(!ibv_init_ah_from_wc(ctx, 1, wc, &grh, &aa));
	CHECK(aa.is_global && aa.grh.sgid_index == 1 && aa.grh.traffic_class == 8 && aa.grh.dgid.raw[10] == 0xff &&
	      aa.grh.dgid.raw[12] == 10 && aa.grh.dgid.raw[15] == 2);
	aa.is_global = 0;
	CHECK(!ibv_create_ah(pd, &aa) && errno == EINVAL);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(a) && !ibv_destroy_cq(cq));
}

static void test_mr(void)
{
	struct ibv_mr *m = ibv_reg_mr_iova2(pd, buf, 4096, 0x1000, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 8);
	struct ibv_sge sg = { 0x1000 + 16, 32, m ? m->lkey : 0 };
	struct ibv_send_wr wr = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED },
		*bad;
	uint32_t lst = fake_list_elements;
	struct ibv_wc wc;

	CHECK(m);
	ready(a, a->qp_num);
	wr.wr.rdma.remote_addr = (uintptr_t)buf + 8192;
	for (int i = 0; i < 48; i++)
		buf[i] = (uint8_t)(200 + i);
	CHECK(!ibv_post_send(a, &wr, &bad) && await(cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(buf + 16, buf + 8192, 32) && fake_list_elements == lst);
	/* A key that was taken back is no longer known, not even to the queue
	 * that has just used it. */
	CHECK(!ibv_dereg_mr(m));
	CHECK(!ibv_post_send(a, &wr, &bad) && await(cq, &wc, 1) == 1 && wc.status == IBV_WC_LOC_PROT_ERR);
	CHECK(fake_list_elements == lst + 1);
	CHECK(!ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_cq(cq));
}

struct load {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	uint8_t *at;
};

static void *sender(void *arg)
{
	struct load *l = arg;
	struct ibv_wc wc;

	for (int i = 0; i < 2000; i++) {
		while (post(l->qp, IBV_WR_RDMA_WRITE, l->at, 64, l->at + 128, 0) == ENOMEM)
			usleep(1);
		CHECK(await(l->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	}
	return NULL;
}

static void test_threads(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 8);
	struct load l[3];
	pthread_t t[3];

	ready(a, a->qp_num);
	for (int i = 0; i < 3; i++) {
		l[i] = (struct load){ a, cq, buf + 16384 + i * 4096 };
		CHECK(!pthread_create(&t[i], NULL, sender, &l[i]));
	}
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_cq(cq));
}

static void *maker(void *arg)
{
	struct ibv_srq_init_attr at = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);

	(void)arg;
	CHECK(cq);
	for (int i = 0; i < 500; i++) {
		struct ibv_cq *c = ibv_create_cq(ctx, 4, NULL, NULL, 0);
		struct ibv_srq *s = ibv_create_srq(pd, &at);
		struct ibv_qp *q = new_qp(IBV_QPT_RC, cq, NULL, 4);

		CHECK(c && s && q);
		CHECK(!ibv_destroy_qp(q) && !ibv_destroy_srq(s) && !ibv_destroy_cq(c));
	}
	CHECK(!ibv_destroy_cq(cq));
	return NULL;
}

/* The node uses numbers of what was destroyed at once: its rings must be gone
 * before another thread's object gets them. */
static void test_numbers(void)
{
	pthread_t t[4];

	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, maker, NULL));
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

int main(int argc, char **argv)
{
	struct ibv_device **list, **again;
	int n;

	if (argc < 2)
		return 2;
	fake_exec(argv, argv[1]);
	unsetenv("LD_PRELOAD");
	fake_start();
	list = ibv_get_device_list(&n);
	again = ibv_get_device_list(NULL);
	CHECK(list && n == 1 && list[0] && !list[1] && again[0] == list[0]);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "weft0") && ntohl((uint32_t)ibv_get_device_guid(list[0])) == 0x020000ff);
	CHECK(*(void **)((char *)list[0] + sizeof(struct ibv_device)) == NULL);
	ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	if (!ctx)
		return finish("verbs");
	ibv_free_device_list(list);
	ibv_free_device_list(again);
	pd = ibv_alloc_pd(ctx);
	buf = calloc(1, BUF);
	mr = ibv_reg_mr(pd, buf, BUF, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(pd && mr);
	if (argc > 2 && !strcmp(argv[2], "closed")) {
		test_closed();
		return finish("verbs, descriptors closed");
	}
	if (argc > 2) {
		before_6_11();
		test_memory();
		return finish("verbs, mappings read as text");
	}
	test_queries();
	test_rc();
	test_small_cq();
	test_events();
	test_ack_wait();
	test_async();
	test_srq();
	test_srq_resize();
	test_ex();
	test_ud();
	test_mr();
	test_memory();
	test_threads();
	test_numbers();
	test_fork();
	test_lost();
	CHECK(!ibv_close_device(ctx));
	free(buf);
	return finish("verbs");
}
