/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every part of the library uses: the layouts of libibverbs that it relies on,
 * locks of one word, system calls, descriptors, the log.
 */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <infiniband/verbs.h>

/* verbs.h hides the functions of these names behind macros. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define WEFT_PUBLIC __attribute__((visibility("default")))

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define weft_container(ptr, type, member) \
	((type *)(void *)((char *)(ptr) - offsetof(type, member)))

/* The data path reads these layouts through the pointers of programs built
 * against other versions of the header, so a change must not go unseen. */
#define WEFT_OP_OFF(op) \
	((long)offsetof(struct verbs_context, op) - (long)offsetof(struct verbs_context, context))
_Static_assert(sizeof(void *) == 8, "64-bit targets only");
_Static_assert(sizeof(struct verbs_context) >= 648, "verbs_context");
_Static_assert(sizeof(struct ibv_context) == 328, "ibv_context");
_Static_assert(sizeof(struct ibv_device) == 664, "ibv_device");
_Static_assert(sizeof(struct ibv_wc) == 48, "ibv_wc");
_Static_assert(sizeof(struct ibv_send_wr) == 128, "ibv_send_wr");
_Static_assert(sizeof(struct ibv_cq) == 128, "ibv_cq");
_Static_assert(sizeof(struct ibv_qp) == 160, "ibv_qp");
_Static_assert(sizeof(struct ibv_srq) == 128, "ibv_srq");
_Static_assert(sizeof(struct ibv_mr) == 48, "ibv_mr");
_Static_assert(offsetof(struct ibv_context, ops.poll_cq) == 96, "poll_cq");
_Static_assert(offsetof(struct ibv_context, ops.req_notify_cq) == 104, "req_notify_cq");
_Static_assert(offsetof(struct ibv_context, ops.post_srq_recv) == 168, "post_srq_recv");
_Static_assert(offsetof(struct ibv_context, ops.post_send) == 208, "post_send");
_Static_assert(offsetof(struct ibv_context, ops.post_recv) == 216, "post_recv");
_Static_assert(offsetof(struct ibv_context, cmd_fd) == 264, "cmd_fd");
_Static_assert(offsetof(struct ibv_context, async_fd) == 268, "async_fd");
_Static_assert(offsetof(struct ibv_context, abi_compat) == 320, "abi_compat");
_Static_assert(WEFT_OP_OFF(query_port) == -320, "query_port");
_Static_assert(WEFT_OP_OFF(create_cq_ex) == -120, "create_cq_ex");
_Static_assert(WEFT_OP_OFF(priv) == -112, "priv");
_Static_assert(WEFT_OP_OFF(query_device_ex) == -104, "query_device_ex");
_Static_assert(WEFT_OP_OFF(create_qp_ex) == -56, "create_qp_ex");
_Static_assert(WEFT_OP_OFF(create_srq_ex) == -40, "create_srq_ex");
_Static_assert(WEFT_OP_OFF(sz) == -8, "sz");
_Static_assert(offsetof(struct ibv_cq_ex, start_poll) == 144, "ibv_cq_ex");
_Static_assert(offsetof(struct ibv_qp_ex, wr_start) == 320, "ibv_qp_ex");


/* A mutex of one word: uncontended it costs two atomic operations, contended
 * it spins briefly and then sleeps in the kernel. 0 free, 1 held, 2 waited for. */
struct weft_lock {
	_Atomic uint32_t word;
};

void weft_lock_slow(struct weft_lock *l);
void weft_unlock_slow(struct weft_lock *l);

static inline void weft_lock(struct weft_lock *l)
{
	uint32_t free = 0;

	if (unlikely(!atomic_compare_exchange_strong_explicit(&l->word, &free, 1,
							      memory_order_acquire,
							      memory_order_relaxed)))
		weft_lock_slow(l);
}

static inline void weft_unlock(struct weft_lock *l)
{
	if (unlikely(atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2))
		weft_unlock_slow(l);
}

static inline void weft_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* System calls by number: open, read, write and close of the C library are
 * interposed by this very library. They return -1 with errno set. */
static inline long weft_sys_write(int fd, const void *p, size_t n)
{
	return syscall(SYS_write, fd, p, n);
}

static inline long weft_sys_read(int fd, void *p, size_t n)
{
	return syscall(SYS_read, fd, p, n);
}

static inline void weft_sys_close(int fd)
{
	int saved = errno;

	syscall(SYS_close, fd);
	errno = saved;
}

/*
 * A program may close all descriptors, those of this library included, and open
 * others under the same numbers. So what a descriptor is gets remembered, and
 * nothing is written to, read from or closed that is no longer it.
 */
struct weft_fd {
	int fd;
	uint64_t ino;
};

#define WEFT_NO_FD ((struct weft_fd){ -1, 0 })

struct weft_fd weft_fd_of(int fd);
bool weft_fd_good(const struct weft_fd *f);
void weft_fd_close(struct weft_fd *f);

/* Whether the user trusts the process at the other end of a socket with what
 * only a node may have. */
struct ucred;
bool weft_trusted(const struct ucred *node);

/* Prints one line to standard error when WEFT_DEBUG=1. */
void weft_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The function of this name in the libibverbs behind this one, or NULL. */
void *weft_next(const char *name);

#endif
