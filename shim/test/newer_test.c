/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs newer than the header that the library is built with: those of rdma-core
 * up to 65, and those of a libibverbs that does not exist yet
 * (later_libibverbs.c). The layouts are repeated here, not taken from a header.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "check.h"
#include "fake_node.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;

void *ibv_make_later_object(struct ibv_context *c);
int ibv_do_something_later(struct ibv_context *c, int value);

/* The slots of verbs_context in rdma-core 65 that come before query_port, and the
 * test with which inline functions of its header decide whether one is there. */
struct slots65 {
	void *free_buf, *alloc_buf, *dm_export_dmabuf_fd, *reg_mr_ex, *dealloc_dmah, *alloc_dmah;
	void *slots[39];
	size_t sz;
	struct ibv_context context;
};

_Static_assert(offsetof(struct slots65, context) == 0x170, "verbs_context of rdma-core 65");

#define HAS_SLOT(c, slot)                                                                        \
	({                                                                                       \
		const struct slots65 *x = (const void *)((const char *)(c) - offsetof(struct slots65, context)); \
		x->sz >= sizeof(*x) - offsetof(struct slots65, slot) && x->slot;                 \
	})

struct mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	void *buf;
};

enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_DMAH = 16, MASK_BUF = 32 };

/* What begins with its context: an ibv_dmah, an ibv_dm, an ibv_comp_cntr. */
struct object {
	struct ibv_context *context;
	uint32_t handle;
};

#define FUNCTION(type, name, ...) type (*name)(__VA_ARGS__) = dlsym(RTLD_DEFAULT, "ibv_" #name)

static void test_later_version(void)
{
	errno = 0;
	CHECK(!ibv_make_later_object(ctx) && errno == EOPNOTSUPP);
	CHECK(ibv_do_something_later(ctx, 7) == EOPNOTSUPP);
}

static void test_slots(void)
{
	CHECK(!HAS_SLOT(ctx, free_buf) && !HAS_SLOT(ctx, alloc_buf) && !HAS_SLOT(ctx, reg_mr_ex));
	CHECK(!HAS_SLOT(ctx, alloc_dmah) && !HAS_SLOT(ctx, dealloc_dmah));
	CHECK(!HAS_SLOT(ctx, dm_export_dmabuf_fd));
	CHECK(HAS_SLOT(ctx, slots[0])); /* query_port */
}

static void test_unsupported(void)
{
	int (*caps)(struct ibv_context *, void *, size_t) = dlsym(RTLD_DEFAULT, "_ibv_query_comp_cntr_caps");
	static const char *const with_value[] = {
		"ibv_set_comp_cntr", "ibv_set_err_comp_cntr", "ibv_inc_comp_cntr", "ibv_inc_err_comp_cntr",
		"ibv_read_comp_cntr", "ibv_read_err_comp_cntr",
	};
	FUNCTION(void *, alloc_dmah, struct ibv_context *, void *);
	FUNCTION(int, dealloc_dmah, struct object *);
	FUNCTION(int, query_port_speed, struct ibv_context *, uint32_t, uint64_t *);
	FUNCTION(int, dm_export_dmabuf_fd, struct object *);
	FUNCTION(void *, create_comp_cntr, struct ibv_context *, void *);
	FUNCTION(int, destroy_comp_cntr, struct object *);
	FUNCTION(int, qp_attach_comp_cntr, struct ibv_qp *, void *, void *);
	struct object of_context = { ctx, 1 };
	struct ibv_qp qp = { .context = ctx };
	uint64_t value[8] = { 1, 1, 1 };

	CHECK(alloc_dmah && dealloc_dmah && query_port_speed && dm_export_dmabuf_fd && caps);
	CHECK(create_comp_cntr && destroy_comp_cntr && qp_attach_comp_cntr);
	if (failures)
		return;
	errno = 0;
	CHECK(!alloc_dmah(ctx, value) && errno == EOPNOTSUPP);
	CHECK(dealloc_dmah(&of_context) == EOPNOTSUPP);
	CHECK(query_port_speed(ctx, 1, value) == EOPNOTSUPP);
	errno = 0;
	CHECK(dm_export_dmabuf_fd(&of_context) == -1 && errno == EOPNOTSUPP);
	CHECK(caps(ctx, value, 16) == EOPNOTSUPP && !value[0] && !value[1] && value[2] == 1);
	errno = 0;
	CHECK(!create_comp_cntr(ctx, value) && errno == EOPNOTSUPP);
	CHECK(destroy_comp_cntr(&of_context) == EOPNOTSUPP);
	CHECK(qp_attach_comp_cntr(&qp, &of_context, value) == EOPNOTSUPP);
	for (size_t i = 0; i < sizeof(with_value) / sizeof(with_value[0]); i++) {
		int (*fn)(struct object *, void *) = dlsym(RTLD_DEFAULT, with_value[i]);

		CHECK(fn && fn(&of_context, value) == EOPNOTSUPP);
	}
}

static void test_registration(void)
{
	FUNCTION(void *, alloc_buf, struct ibv_pd *, size_t, void **);
	FUNCTION(void, free_buf, void *);
	FUNCTION(int, export_buf_dmabuf_fd, void *);
	FUNCTION(struct ibv_mr *, reg_mr_ex, struct ibv_pd *, struct mr_init_attr *);
	FUNCTION(struct ibv_mr *, reg_buf_mr, struct ibv_pd *, void *, void *, size_t, int);
	struct mr_init_attr a = { .length = 4096, .access = IBV_ACCESS_LOCAL_WRITE };
	struct ibv_mr *mr;
	void *buf;
	char *mem;

	CHECK(alloc_buf && free_buf && export_buf_dmabuf_fd && reg_mr_ex && reg_buf_mr);
	if (failures)
		return;
	mem = alloc_buf(pd, 8192, &buf);
	CHECK(mem && !((uintptr_t)mem & 4095));
	mr = reg_buf_mr(pd, buf, mem + 4096, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && mr->addr == mem + 4096 && mr->length == 4096);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!reg_buf_mr(pd, buf, mem + 4096, 4097, 0) && errno == EINVAL);
	CHECK(!reg_buf_mr(pd, buf, mem - 1, 16, 0) && errno == EINVAL);
	CHECK(export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);

	a.comp_mask = MASK_ADDR | MASK_IOVA;
	a.addr = mem;
	a.iova = 0x10000;
	mr = reg_mr_ex(pd, &a);
	CHECK(mr && mr->addr == mem && mr->length == 4096 && mr->context == ctx && mr->pd == pd);
	CHECK(!ibv_dereg_mr(mr));
	a.comp_mask = MASK_FD;
	CHECK(!reg_mr_ex(pd, &a) && errno == EOPNOTSUPP);
	a.comp_mask = MASK_ADDR | MASK_DMAH;
	CHECK(!reg_mr_ex(pd, &a) && errno == EOPNOTSUPP);
	a.comp_mask = MASK_ADDR | 1ull << 40;
	CHECK(!reg_mr_ex(pd, &a) && errno == EOPNOTSUPP);
	free_buf(buf);
}

/* A range is refused where the program has nothing mapped, at once. */
static void test_unmapped(void)
{
	const size_t page = 4096;
	char *mem = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	errno = 0;
	CHECK(!ibv_reg_mr(pd, (void *)0x100000000000, (size_t)1 << 40, IBV_ACCESS_LOCAL_WRITE));
	CHECK(errno == EFAULT);
	CHECK(!munmap(mem + 4 * page, page));
	errno = 0;
	CHECK(!ibv_reg_mr(pd, mem + 1, 7 * page, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, mem, 4 * page + 1, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	mr = ibv_reg_mr(pd, mem + 1, 4 * page - 1, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem, 5 * page, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(!ibv_dereg_mr(mr));
	mr = ibv_reg_mr(pd, mem + 5 * page + 5, 0, 0);
	CHECK(mr && !ibv_dereg_mr(mr));
	munmap(mem, 8 * page);
}

int main(int argc, char **argv)
{
	struct ibv_device **list;

	if (argc < 2)
		return 2;
	fake_exec(argv, argv[1]);
	unsetenv("LD_PRELOAD");
	fake_start();
	list = ibv_get_device_list(NULL);
	ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	CHECK(pd);
	if (!pd)
		return finish("newer verbs");
	ibv_free_device_list(list);
	test_slots();
	test_unsupported();
	test_registration();
	test_unmapped();
	test_later_version();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return finish("newer verbs");
}
