// SPDX-License-Identifier: Apache-2.0
/*
 * Verbs that rdma-core 45 to 65 added (nodes IBVERBS_1.15 to 1.18), which the
 * installed header may not declare. Buffers and the general registration work.
 * DMA handles, completion counters, the effective speed of a port and dma-bufs
 * of device memory return EOPNOTSUPP.
 *
 * The functions have names of their own in C and get the names of libibverbs from
 * the assembler, so that this file compiles with a header that declares them and
 * with one that does not. The structures repeat the layouts of libibverbs.
 */
#include "weft.h"

/* struct ibv_buf; its owner is found through pd->context. */
struct weft_buf {
	void *addr;
	size_t size;
	struct ibv_pd *pd;
	int dmabuf_fd;          /* -1: ordinary memory */
};

/* struct ibv_mr_init_attr; comp_mask states which members after it are valid. */
struct weft_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;     /* WEFT_REG_MR_ADDR … */
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct weft_buf *buf;
};

enum {
	WEFT_REG_MR_IOVA = 1 << 0,
	WEFT_REG_MR_ADDR = 1 << 1,
	WEFT_REG_MR_BUF  = 1 << 5,
};

_Static_assert(offsetof(struct weft_buf, pd) == 16, "ibv_buf");
_Static_assert(offsetof(struct weft_buf, dmabuf_fd) == 24, "ibv_buf");
_Static_assert(offsetof(struct weft_mr_init_attr, comp_mask) == 16, "ibv_mr_init_attr");
_Static_assert(offsetof(struct weft_mr_init_attr, buf) == 64, "ibv_mr_init_attr");

/* ibv_dmah, ibv_dm and ibv_comp_cntr begin with their context. */
struct weft_of_context {
	struct ibv_context *context;
};

/* Declares a public function that C calls fn and the linker calls name. */
#define NEWER(type, fn, name, ...)                        \
	WEFT_PUBLIC type fn(__VA_ARGS__) __asm__(#name);  \
	WEFT_PUBLIC type fn(__VA_ARGS__)

static int unsupported(struct ibv_context *c, const char *call)
{
	weft_explain_missing(c, call);
	return weft_ret(EOPNOTSUPP);
}

static void *unsupported_object(struct ibv_context *c, const char *call)
{
	weft_explain_missing(c, call);
	errno = EOPNOTSUPP;
	return NULL;
}

/* ---- buffers and the general registration ---- */

NEWER(void *, weft_alloc_buf, ibv_alloc_buf, struct ibv_pd *pd, size_t size, struct weft_buf **buf)
{
	struct weft_buf *b;
	int err;

	WEFT_FORWARD_AS(pd->context, NULL, weft_alloc_buf, "ibv_alloc_buf", pd, size, buf);
	b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	err = posix_memalign(&b->addr, (size_t)sysconf(_SC_PAGESIZE), size);
	if (err) {
		free(b);
		errno = err;
		return NULL;
	}
	b->size = size;
	b->pd = pd;
	b->dmabuf_fd = -1;
	*buf = b;
	return b->addr;
}

NEWER(void, weft_free_buf, ibv_free_buf, struct weft_buf *buf)
{
	WEFT_FORWARD_AS(buf->pd->context, , weft_free_buf, "ibv_free_buf", buf);
	free(buf->addr);
	free(buf);
}

NEWER(int, weft_export_buf_dmabuf_fd, ibv_export_buf_dmabuf_fd, struct weft_buf *buf)
{
	WEFT_FORWARD_AS(buf->pd->context, -1, weft_export_buf_dmabuf_fd, "ibv_export_buf_dmabuf_fd",
			buf);
	errno = ENODATA;        /* no dma-buf is behind the buffer */
	return -1;
}

static bool within(const struct weft_buf *b, const void *addr, size_t length)
{
	uintptr_t base = (uintptr_t)b->addr, at = (uintptr_t)addr;

	return at >= base && length <= b->size && at - base <= b->size - length;
}

NEWER(struct ibv_mr *, weft_reg_mr_ex, ibv_reg_mr_ex, struct ibv_pd *pd, struct weft_mr_init_attr *a)
{
	const uint64_t known = WEFT_REG_MR_IOVA | WEFT_REG_MR_ADDR | WEFT_REG_MR_BUF;
	uint64_t iova;

	WEFT_FORWARD_AS(pd->context, NULL, weft_reg_mr_ex, "ibv_reg_mr_ex", pd, a);
	if (a->comp_mask & ~known || !(a->comp_mask & WEFT_REG_MR_ADDR))
		return unsupported_object(pd->context, "ibv_reg_mr_ex");
	if (a->comp_mask & WEFT_REG_MR_BUF &&
	    (a->buf->pd != pd || !within(a->buf, a->addr, a->length))) {
		errno = EINVAL;
		return NULL;
	}
	iova = a->comp_mask & WEFT_REG_MR_IOVA ? a->iova : (uintptr_t)a->addr;
	return ibv_reg_mr_iova2(pd, a->addr, a->length, iova, (unsigned int)a->access);
}

NEWER(struct ibv_mr *, weft_reg_buf_mr, ibv_reg_buf_mr, struct ibv_pd *pd, struct weft_buf *buf,
      void *addr, size_t length, int access)
{
	struct weft_mr_init_attr a = {
		.length = length,
		.access = access,
		.comp_mask = WEFT_REG_MR_ADDR | WEFT_REG_MR_BUF,
		.addr = addr,
		.buf = buf,
	};

	WEFT_FORWARD_AS(pd->context, NULL, weft_reg_buf_mr, "ibv_reg_buf_mr", pd, buf, addr, length,
			access);
	return weft_reg_mr_ex(pd, &a);
}

/* ---- what returns EOPNOTSUPP ---- */

NEWER(void *, weft_alloc_dmah, ibv_alloc_dmah, struct ibv_context *c, void *attr)
{
	WEFT_FORWARD_AS(c, NULL, weft_alloc_dmah, "ibv_alloc_dmah", c, attr);
	return unsupported_object(c, "ibv_alloc_dmah");
}

NEWER(int, weft_dealloc_dmah, ibv_dealloc_dmah, struct weft_of_context *dmah)
{
	WEFT_FORWARD_AS(dmah->context, errno, weft_dealloc_dmah, "ibv_dealloc_dmah", dmah);
	return unsupported(dmah->context, "ibv_dealloc_dmah");
}

NEWER(int, weft_query_port_speed, ibv_query_port_speed, struct ibv_context *c, uint32_t port,
      uint64_t *speed)
{
	WEFT_FORWARD_AS(c, errno, weft_query_port_speed, "ibv_query_port_speed", c, port, speed);
	return unsupported(c, "ibv_query_port_speed");
}

NEWER(int, weft_dm_export_dmabuf_fd, ibv_dm_export_dmabuf_fd, struct weft_of_context *dm)
{
	WEFT_FORWARD_AS(dm->context, -1, weft_dm_export_dmabuf_fd, "ibv_dm_export_dmabuf_fd", dm);
	unsupported(dm->context, "ibv_dm_export_dmabuf_fd");
	return -1;
}

NEWER(int, weft_query_comp_cntr_caps, _ibv_query_comp_cntr_caps, struct ibv_context *c, void *caps,
      size_t size)
{
	WEFT_FORWARD_AS(c, errno, weft_query_comp_cntr_caps, "_ibv_query_comp_cntr_caps", c, caps,
			size);
	memset(caps, 0, size);
	return unsupported(c, "ibv_query_comp_cntr_caps");
}

NEWER(void *, weft_create_comp_cntr, ibv_create_comp_cntr, struct ibv_context *c, void *attr)
{
	WEFT_FORWARD_AS(c, NULL, weft_create_comp_cntr, "ibv_create_comp_cntr", c, attr);
	return unsupported_object(c, "ibv_create_comp_cntr");
}

NEWER(int, weft_qp_attach_comp_cntr, ibv_qp_attach_comp_cntr, struct ibv_qp *qp, void *counter,
      void *attr)
{
	WEFT_FORWARD_AS(qp->context, errno, weft_qp_attach_comp_cntr, "ibv_qp_attach_comp_cntr", qp,
			counter, attr);
	return unsupported(qp->context, "ibv_qp_attach_comp_cntr");
}

NEWER(int, weft_destroy_comp_cntr, ibv_destroy_comp_cntr, struct weft_of_context *counter)
{
	WEFT_FORWARD_AS(counter->context, errno, weft_destroy_comp_cntr, "ibv_destroy_comp_cntr",
			counter);
	return unsupported(counter->context, "ibv_destroy_comp_cntr");
}

#define CHANGE_COUNTER(fn, name)                                                \
	NEWER(int, fn, name, struct weft_of_context *counter, uint64_t value)   \
	{                                                                       \
		WEFT_FORWARD_AS(counter->context, errno, fn, #name, counter, value); \
		return unsupported(counter->context, #name);                                           \
	}

CHANGE_COUNTER(weft_set_comp_cntr, ibv_set_comp_cntr)
CHANGE_COUNTER(weft_set_err_comp_cntr, ibv_set_err_comp_cntr)
CHANGE_COUNTER(weft_inc_comp_cntr, ibv_inc_comp_cntr)
CHANGE_COUNTER(weft_inc_err_comp_cntr, ibv_inc_err_comp_cntr)

#define READ_COUNTER(fn, name)                                                  \
	NEWER(int, fn, name, struct weft_of_context *counter, uint64_t *value)  \
	{                                                                       \
		WEFT_FORWARD_AS(counter->context, errno, fn, #name, counter, value); \
		return unsupported(counter->context, #name);                                           \
	}

READ_COUNTER(weft_read_comp_cntr, ibv_read_comp_cntr)
READ_COUNTER(weft_read_err_comp_cntr, ibv_read_err_comp_cntr)
