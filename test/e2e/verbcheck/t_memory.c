/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program may not access, at its registration or later. */
#include "vc.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		    IBV_ACCESS_REMOTE_ATOMIC)
#define PAGE 4096
#define RW   (PROT_READ | PROT_WRITE)

static void want_mr(struct end *e, int pd, struct buf b, uint64_t off, uint64_t len, int access, int want,
	const char *what)
{
	struct mr m;
	int rc = try_mr(e, pd, b.addr + off, len, access, &m);

	CHECK(rc == want, "%s at %s, %llu bytes from %llu, access %#x: %s, want %s", what, e->name, (unsigned long long)len,
	      (unsigned long long)off, access, errname(rc), errname(want));
	if (!rc)
		OK(try_free(e, OP_MR_FREE, m.id));
}

/* A registration gives no right that the program does not have itself. */
static void registration(void)
{
	static const int writes[] = { IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, ALL_ACCESS, IBV_ACCESS_MW_BIND };

	for (int i = 0; i < 2; i++) {
		struct end *e = i ? B : A;
		int pd = make_pd(e);
		struct buf b = make_buf(e, 4 * PAGE, 0);

		for (unsigned k = 0; k < sizeof writes / sizeof *writes; k++) {
			if (writes[k] & IBV_ACCESS_MW_BIND && e->rxe)
				continue; /* has no windows of this kind in every version */
			protect(e, b, 0, 4 * PAGE, RW);
			want_mr(e, pd, b, 0, 4 * PAGE, writes[k], 0, "writable memory");
			protect(e, b, 2 * PAGE, PAGE, PROT_READ);
			want_mr(e, pd, b, 0, 4 * PAGE, writes[k], EFAULT, "memory with a read-only page");
			want_mr(e, pd, b, 2 * PAGE, 1, writes[k], EFAULT, "a byte of a read-only page");
			want_mr(e, pd, b, PAGE, PAGE + 1, writes[k], EFAULT, "memory that ends in a read-only page");
			want_mr(e, pd, b, 0, 2 * PAGE, writes[k], 0, "memory before a read-only page");
			protect(e, b, 2 * PAGE, PAGE, PROT_NONE);
			want_mr(e, pd, b, 0, 4 * PAGE, writes[k], EFAULT, "memory with a PROT_NONE page");
		}
		if (!e->rxe) /* kernels before 6.2 force their way into it */
			for (int k = 0; k < 2; k++)
				want_mr(e, pd, b, 0, 4 * PAGE, k ? IBV_ACCESS_REMOTE_READ : 0, EFAULT, "memory with a PROT_NONE page");
		protect(e, b, 0, 4 * PAGE, PROT_READ);
		for (int k = 0; k < 2; k++)
			want_mr(e, pd, b, 0, 4 * PAGE, k ? IBV_ACCESS_REMOTE_READ : 0, 0, "read-only memory");
		if (!e->rxe) { /* rereg is EOPNOTSUPP there */
			struct mr m = make_mr(e, pd, b, 0, 4 * PAGE, IBV_ACCESS_REMOTE_READ);
			int rc = try_rereg(e, &m, IBV_REREG_MR_CHANGE_ACCESS, NONE, 0, 0, ALL_ACCESS);

			CHECK(rc == EFAULT, "more rights on read-only memory at %s: %s", e->name, errname(rc));
			OK(try_free(e, OP_MR_FREE, m.id));
		}
		unmap(e, b);
		want_mr(e, pd, b, 0, PAGE, 0, EFAULT, "unmapped memory");
	}
}

static const uint32_t lengths[] = { 1, 64, 5000, 60000 };
static const int ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };

/* request makes a request of A between its tx and the rx of B, with the receive it needs. */
static struct swr request(struct conn *c, int op, uint32_t len, struct rwr *r)
{
	struct swr w = swr(c, op, IBV_SEND_SIGNALED);

	add(&w, c->s[0].txm, 0, len);
	target(&w, c, 0, c->s[1].rxm, 0);
	*r = rwr(c);
	radd(r, c->s[1].rxm, 0, len);
	if (op == IBV_WR_SEND)
		post_recv(c, 1, r);
	return w;
}

/* Pages are pinned: what the program does to their protection later changes nothing for requests of any size. */
static void protected_later(void)
{
	for (int prot = 0; prot < 2; prot++)
		for (unsigned k = 0; k < 3; k++)
			for (unsigned n = 0; n < 4; n++) {
				struct conn c;
				struct rwr r;
				connect_pair(&c, &(struct opt){ .room = 65536 });
				struct side *a = &c.s[0], *b = &c.s[1], *from = ops[k] == IBV_WR_RDMA_READ ? b : a;
				struct side *to = from == a ? b : a;
				struct buf src = from == a ? a->tx : b->rx, dst = to == a ? a->tx : b->rx;
				uint64_t seed = rnd();

				fill(from->e, src, 0, lengths[n], seed);
				expect(to->e, dst, 0, lengths[n], seed, 0);
				struct swr w = request(&c, ops[k], lengths[n], &r);
				protect(a->e, a->tx, 0, a->tx.len, prot ? PROT_READ : PROT_NONE);
				protect(b->e, b->rx, 0, b->rx.len, prot ? PROT_READ : PROT_NONE);
				post(&c, 0, &w);
				want_ok(&c, 0, &w, lengths[n]);
				if (ops[k] == IBV_WR_SEND)
					want_recv(&c, 1, &r, &w, lengths[n]);
				protect(a->e, a->tx, 0, a->tx.len, RW);
				protect(b->e, b->rx, 0, b->rx.len, RW);
				verify(to->e, dst, 0, "memory that was protected");
				destroy_qps(&c);
			}
}

/* Memory that is gone ends a request with the error of its side, whatever its size. Soft-RoCE has pinned it. */
static void unmapped_later(void)
{
	for (int side = 0; side < 2; side++)
		for (unsigned k = 0; k < 3; k++)
			for (unsigned n = 0; n < 4; n++) {
				struct conn c;
				struct rwr r;
				connect_pair(&c, &(struct opt){ .room = 65536 });
				struct side *s = &c.s[side];
				struct swr w = request(&c, ops[k], lengths[n], &r);

				unmap(s->e, side ? s->rx : s->tx);
				if (s->e->rxe) {
					post(&c, 0, &w);
					want_ok(&c, 0, &w, lengths[n]);
				} else if (!side) {
					fails(&c, &w, IBV_WC_LOC_PROT_ERR);
				} else {
					fails(&c, &w, IBV_WC_REM_OP_ERR);
					if (ops[k] == IBV_WR_SEND)
						want_wc(B, s->rcq, r.wr_id, IBV_WC_LOC_PROT_ERR);
					else
						want_async(B, IBV_EVENT_QP_FATAL, s->qp);
				}
				destroy_qps(&c);
			}
}

const struct test memory_tests[] = {
	{ "mr.protection", registration, 0 },
	{ "mr.protected_later", protected_later, 0 },
	{ "mr.unmapped_later", unmapped_later, ASYNC },
	{ 0 },
};
