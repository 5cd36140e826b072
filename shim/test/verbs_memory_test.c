/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations of memory that the program itself may not access, and requests from
 * memory that it has unmapped or protected since. */
#include "verbs_test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define PAGE ((size_t)sysconf(_SC_PAGESIZE))
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define LW   IBV_ACCESS_LOCAL_WRITE
#define RR   IBV_ACCESS_REMOTE_READ

#define PROCMAP_QUERY_NUMBER 0xc0686611u

void before_6_11(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROCMAP_QUERY_NUMBER, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof(f) / sizeof(*f), f };

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p));
	errno = 0;
	CHECK(ioctl(0, PROCMAP_QUERY_NUMBER, 0) < 0 && errno == ENOTTY);
}

/* Registers memory and ends the region: 0, or the errno. */
static int reg(void *p, size_t n, int access)
{
	struct ibv_mr *m;

	errno = 77;
	m = ibv_reg_mr(pd, p, n, access);
	if (!m)
		return errno;
	CHECK(errno == 77);
	CHECK(!ibv_dereg_mr(m));
	return 0;
}

static uint8_t *map(size_t n, int prot)
{
	uint8_t *p = mmap(NULL, n, prot, ANON, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static size_t resident(void *p, size_t n)
{
	unsigned char in[64];
	size_t sum = 0;

	CHECK(!mincore(p, n, in));
	for (size_t i = 0; i < n / PAGE; i++)
		sum += in[i] & 1;
	return sum;
}

static void test_protection(void)
{
	static const int writes[] = { LW, LW | IBV_ACCESS_REMOTE_WRITE, LW | IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_MW_BIND,
				      LW | RR };
	size_t n = 16 * PAGE;
	uint8_t *rw = map(n, PROT_READ | PROT_WRITE), *ro = map(n, PROT_READ), *none = map(n, PROT_NONE);

	for (size_t i = 0; i < sizeof(writes) / sizeof(writes[0]); i++) {
		CHECK(reg(rw, n, writes[i]) == 0);
		CHECK(reg(ro, n, writes[i]) == EFAULT && reg(ro + 5, 1, writes[i]) == EFAULT);
		CHECK(reg(none, n, writes[i]) == EFAULT);
	}
	CHECK(reg(ro, n, 0) == 0 && reg(ro, n, RR) == 0);
	CHECK(reg(none, n, 0) == EFAULT && reg(none, n, RR) == EFAULT);
	CHECK(resident(rw, n) == 0); /* it was only looked at */

	/* The ends of a range: one byte of a page counts. */
	CHECK(!mprotect(rw + 8 * PAGE, PAGE, PROT_READ));
	CHECK(reg(rw, 8 * PAGE, LW) == 0 && reg(rw, 8 * PAGE + 1, LW) == EFAULT);
	CHECK(reg(rw + 9 * PAGE - 1, 2, LW) == EFAULT && reg(rw + 9 * PAGE, 7 * PAGE, LW) == 0);
	CHECK(reg(rw, n, RR) == 0);
	CHECK(!munmap(rw + 8 * PAGE, PAGE));
	CHECK(reg(rw, n, RR) == EFAULT && reg(rw + 8 * PAGE, 1, 0) == EFAULT && reg(rw, 8 * PAGE, LW) == 0);
	CHECK(reg((void *)UINTPTR_MAX, 16, LW) == EFAULT && reg((void *)16, 16, LW) == EFAULT);
	CHECK(!munmap(rw, n) && !munmap(ro, n) && !munmap(none, n));
}

/* A range of very many mappings, and one with many before it. */
static void test_many(void)
{
	size_t pages = 600;
	uint8_t *p = map((pages + 1) * PAGE, PROT_NONE);

	for (size_t i = 0; i < pages; i++)      /* each its own file, so that none merge */
		CHECK(mmap(p + i * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
		      MAP_FAILED);
	CHECK(reg(p, pages * PAGE, LW) == 0 && reg(p + (pages - 1) * PAGE, PAGE, LW) == 0);
	CHECK(reg(p, pages * PAGE + 1, LW) == EFAULT);
	CHECK(!mprotect(p + (pages / 2) * PAGE, PAGE, PROT_READ));
	CHECK(reg(p, pages * PAGE, LW) == EFAULT && reg(p, pages * PAGE, RR) == 0);
	CHECK(!munmap(p, (pages + 1) * PAGE));
}

/* Pages of a mapping behind the end of its file are no memory. */
static void test_file(void)
{
	char name[] = "/tmp/weft verbs_memory XXXXXX";
	int fd = mkstemp(name);
	uint8_t *p;

	CHECK(fd >= 0 && !ftruncate(fd, (off_t)(3 * PAGE + 1)));
	for (int shared = 0; shared < 2; shared++) {
		p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE, fd, (off_t)PAGE);
		CHECK(p != MAP_FAILED);
		CHECK(reg(p, 3 * PAGE, LW) == 0 && reg(p, 3 * PAGE + 1, LW) == EFAULT && reg(p, 3 * PAGE + 1, RR) == EFAULT);
		CHECK(reg(p + 6 * PAGE, PAGE, LW) == EFAULT && reg(p + 2 * PAGE, 1, LW) == 0);
		CHECK(!munmap(p, 8 * PAGE));
	}
	p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED && reg(p, PAGE, LW) == EFAULT && reg(p, PAGE, RR) == 0);
	CHECK(!munmap(p, PAGE) && !unlink(name) && !close(fd));
	/* Files without a name. */
	fd = memfd_create("verbs memory", 0);
	CHECK(fd >= 0 && !ftruncate(fd, (off_t)PAGE));
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED && reg(p, PAGE, LW) == 0);
	CHECK(!munmap(p, PAGE) && !close(fd));
}

static void test_rereg(void)
{
	uint8_t *rw = map(4 * PAGE, PROT_READ | PROT_WRITE), *ro = map(4 * PAGE, PROT_READ);
	struct ibv_mr *m = ibv_reg_mr(pd, rw, 4 * PAGE, LW);
	uint32_t key;

	CHECK(m);
	key = m->lkey;
	errno = 0;
	CHECK(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, ro, PAGE, 0) == IBV_REREG_MR_ERR_INPUT &&
	      errno == EFAULT && m->lkey == key && m->addr == rw);
	CHECK(!ibv_dereg_mr(m));
	m = ibv_reg_mr(pd, ro, 4 * PAGE, RR);
	CHECK(m);
	errno = 0;
	CHECK(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LW) == IBV_REREG_MR_ERR_INPUT && errno == EFAULT);
	CHECK(!ibv_dereg_mr(m));
	CHECK(!munmap(rw, 4 * PAGE) && !munmap(ro, 4 * PAGE));
}

static _Atomic bool stop;

static void *churn(void *arg)
{
	uint8_t *beside = arg;

	/* Mappings that merge with their neighbours, and split them, again and again. */
	while (!stop) {
		CHECK(mmap(beside, PAGE, PROT_READ | PROT_WRITE, ANON | MAP_FIXED, -1, 0) == beside);
		CHECK(!mprotect(beside, PAGE, PROT_READ));
		/* No hole is left, in which another thread's memory may be placed. */
		CHECK(mmap(beside, PAGE, PROT_NONE, ANON | MAP_FIXED, -1, 0) == beside);
	}
	return NULL;
}

/* What other threads map and unmap beside a range does not hide it. */
static void test_concurrent(void)
{
	uint8_t *p = map(12 * PAGE, PROT_READ | PROT_WRITE);
	pthread_t t[2];

	stop = false;
	CHECK(!pthread_create(&t[0], NULL, churn, p) && !pthread_create(&t[1], NULL, churn, p + 11 * PAGE));
	for (int i = 0; i < 300; i++)
		CHECK(reg(p + PAGE, 10 * PAGE, LW) == 0);
	stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	CHECK(!munmap(p, 12 * PAGE));
}

/* Closes the library's list of mappings; returns whether one was open. */
static bool close_maps(void)
{
	char link[64], to[64];
	bool found = false;

	for (int fd = 3; fd < 256; fd++) {
		ssize_t n;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, to, sizeof(to));
		if (n > 5 && !memcmp(to + n - 5, "/maps", 5))
			found = !close(fd);
	}
	return found;
}

/* A program that closes all descriptors, or leaves /proc behind. */
static void test_no_list(void)
{
	char dir[] = "/tmp/weft_verbs_memory_XXXXXX";
	uint8_t *p = map(PAGE, PROT_READ | PROT_WRITE);
	int root = open("/", O_RDONLY | O_DIRECTORY), kept;

	CHECK(close_maps() && reg(p, PAGE, LW) == 0); /* it is opened anew */
	CHECK(mkdtemp(dir) && root >= 0);
	if (!chroot(dir)) {
		CHECK(reg(p, PAGE, LW) == 0); /* it was open before */
		kept = fchdir(root) || chroot(".");
		CHECK(!kept && close_maps() && !chroot(dir));
		CHECK(reg(p, PAGE, LW) == EPERM && reg(p, PAGE, 0) == EPERM);
		CHECK(!fchdir(root) && !chroot("."));
		CHECK(reg(p, PAGE, LW) == 0);
	} else {
		CHECK(geteuid());
	}
	CHECK(!rmdir(dir) && !close(root) && !munmap(p, PAGE));
}

/* Small requests from memory that has gone since are the node's to refuse: it takes them when the memory is back. */
static void test_gone(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(IBV_QPT_RC, cq, NULL, 16);
	uint8_t *p = map(4 * PAGE, PROT_READ | PROT_WRITE);
	struct ibv_mr *mine = ibv_reg_mr(pd, p, 4 * PAGE, LW), *shared = mr;
	struct ibv_wc wc[4];

	CHECK(mine);
	ready(a, a->qp_num);
	for (int k = 0; k < 3; k++) {
		uint32_t inl = fake_inline_elements, lst = fake_list_elements;
		/* The whole payload; the second half; the first half. */
		uint8_t *at = k == 0 ? p + PAGE + 100 : k == 1 ? p + PAGE - 32 : p + 2 * PAGE - 32;

		mr = mine;
		fake_hold = true;
		errno = 77;
		CHECK(!mprotect(p + PAGE, PAGE, PROT_NONE));
		CHECK(!post(a, IBV_WR_RDMA_WRITE, at, 64, p, 0) && errno == 77);
		CHECK(!munmap(p + PAGE, PAGE));
		CHECK(!post(a, IBV_WR_RDMA_WRITE, at, 64, p, 0));
		CHECK(mmap(p + PAGE, PAGE, PROT_READ, ANON | MAP_FIXED, -1, 0) == p + PAGE);
		CHECK(!post(a, IBV_WR_RDMA_WRITE, at, 64, p, 0)); /* readable is enough */
		fake_hold = false;
		CHECK(!post(a, IBV_WR_RDMA_WRITE, p, 64, p + 3 * PAGE, 0));
		CHECK(await(cq, wc, 4) == 4);
		for (int i = 0; i < 4; i++)
			CHECK(wc[i].status == IBV_WC_SUCCESS);
		CHECK(fake_list_elements == lst + 2 && fake_inline_elements == inl + 2);
	}
	mr = shared;
	CHECK(!ibv_dereg_mr(mine) && !munmap(p, 4 * PAGE));
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_cq(cq));
}

void test_memory(void)
{
	test_protection();
	test_many();
	test_file();
	test_rereg();
	test_concurrent();
	test_no_list();
	test_gone();
}
