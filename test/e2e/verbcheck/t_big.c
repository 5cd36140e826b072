/* SPDX-License-Identifier: Apache-2.0 */
/* Much at once: threads, and messages up to the longest that there are. */
#include "vc.h"

static void big(int op, uint64_t len)
{
	struct conn c;
	int acc = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	uint64_t seed = rnd(), max = A->h.max_msg_sz < B->h.max_msg_sz ? A->h.max_msg_sz : B->h.max_msg_sz;

	if (len > max)
		skip("%llu bytes: the port takes %llu", (unsigned long long)len, (unsigned long long)max);
	connect_pair(&c, &(struct opt){ .room = 4096 });
	bool read = op == IBV_WR_RDMA_READ;
	struct end *from = read ? B : A, *to = read ? A : B;
	struct buf src = make_big(from, len), dst = make_big(to, len);
	struct mr sm = make_mr(from, c.s[read].pd, src, 0, len, acc), dm = make_mr(to, c.s[!read].pd, dst, 0, len, acc);
	struct swr w = swr(&c, op, IBV_SEND_SIGNALED);
	struct rwr r = rwr(&c);
	int save = wait_ms;

	fill(from, src, 0, len, seed);
	if (op == IBV_WR_SEND) {
		radd(&r, dm, 0, len);
		post_recv(&c, 1, &r);
	}
	add(&w, read ? dm : sm, 0, len);
	target(&w, &c, 0, read ? sm : dm, 0);
	wait_ms = 300000;
	post(&c, 0, &w);
	want_ok(&c, 0, &w, len);
	wait_ms = save;
	if (op == IBV_WR_SEND)
		want_recv(&c, 1, &r, &w, len);
	struct msg m = { .op = OP_CMP, .id = dst.id, .u = { 0, len, seed, 0 }, .i = { 1 } };
	if (call(to, &m, NULL, 0, NULL, 0))
		FAIL("%llu bytes, opcode %d: differs near byte %lld", (unsigned long long)len, op, (long long)m.u[0]);
}
static void big_send_8m(void) { big(IBV_WR_SEND, 8 << 20); }
static void big_write_8m(void) { big(IBV_WR_RDMA_WRITE, (8 << 20) - 1); }
static void big_read_8m(void) { big(IBV_WR_RDMA_READ, (8 << 20) - 3); }
static void big_send_256m(void) { big(IBV_WR_SEND, (256 << 20) + 1); }
static void big_write_2g(void) { big(IBV_WR_RDMA_WRITE, 1ull << 31); }
static void big_read_2g(void) { big(IBV_WR_RDMA_READ, (1ull << 31) - 1); }
static void big_send_2g(void) { big(IBV_WR_SEND, 1ull << 31); }

/* Threads: several queue pairs used at once, and one used by several. */
static void run_stress(struct end *e)
{
	char why[256];
	struct msg m = { .op = OP_STRESS, .i = { 4, 200 }, .u = { rnd() } };
	if (call(e, &m, NULL, 0, why, sizeof why))
		FAIL("threads at %s: %s", e->name, why);
}
static void threads(void)
{
	run_stress(A);
	if (B->fd != NONE)
		run_stress(B);
}

const struct test big_tests[] = {
	{ "threads", threads, 0 },
	{ "rc.send.8M", big_send_8m, 0 },
	{ "rc.write.8M", big_write_8m, 0 },
	{ "rc.read.8M", big_read_8m, 0 },
	{ "rc.send.256M", big_send_256m, BIG },
	{ "rc.send.2G", big_send_2g, BIG },
	{ "rc.write.2G", big_write_2g, BIG },
	{ "rc.read.2G", big_read_2g, BIG },
	{ 0 },
};
