/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of libweft-verbs.so: what a context, a ring and each verbs object
 * hold beyond what programs see, and what the parts of the library call of
 * each other. Locks, outermost first: the object's ibv mutex (events), a queue's
 * lock, the context's ctl (control commands and vhost-user messages), the
 * context's obj (number -> object tables, pending events), mr_lock, mem.lock.
 */
#ifndef WEFT_H
#define WEFT_H

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

#include "arena.h"
#include "explain.h"
#include "paths.h"
#include "weft_abi.h"

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

/* ---- util.c ---- */

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

/* ---- mem.c: memory the node can see ---- */

struct weft_extent;
struct weft_ctx;

struct weft_mem {
	struct weft_lock lock;
	struct weft_extent *free;  /* ascending addresses, never adjacent */
	struct weft_chunk *chunks;
	size_t next_size;          /* of the chunk to be made next */
};

/*
 * Returns n zeroed bytes, aligned to 64, that the node reaches at the same
 * address, or NULL with errno set. May send an ADD_MEM_REG, so ctl must not be
 * held.
 */
void *weft_shm_alloc(struct weft_ctx *ctx, size_t n);
void weft_shm_free(struct weft_ctx *ctx, void *p, size_t n);
/* Unmaps everything; nothing of it may be used afterwards. */
void weft_shm_destroy(struct weft_ctx *ctx);

/* ---- ring.c ---- */

/* A split ring with its slots, in one allocation of shared memory. Positions
 * run freely; position p is slot p & mask. */
struct weft_ring {
	struct weft_vring_desc *desc;
	struct weft_vring_avail *avail;
	struct weft_vring_used *used;
	uint8_t *slots;
	uint32_t slot_size;
	uint32_t num, mask;
	uint32_t index;       /* number on the door */
	uint32_t head;        /* elements made available (published or about to be) */
	uint32_t tail;        /* elements known to be used */
	size_t bytes;         /* of the allocation that starts at desc */
};

/* Lays out a ring of num (a power of two) slots with every descriptor and
 * avail entry filled in. Returns 0 or an errno. */
int weft_ring_init(struct weft_ctx *ctx, struct weft_ring *r, uint32_t num, uint32_t slot_size,
		   bool device_writes);
void weft_ring_free(struct weft_ctx *ctx, struct weft_ring *r);

/* Tells the node about r as ring number index; call is the descriptor to
 * notify through, or -1. Returns 0 or an errno. */
int weft_ring_set(struct weft_ctx *ctx, struct weft_ring *r, uint32_t index, int call,
		  uint64_t call_value);
/* Has the node go on in r where ring number index runs: a shared receive
 * queue's, without a notification. Returns 0 or an errno. */
int weft_ring_move(struct weft_ctx *ctx, struct weft_ring *r, uint32_t index);
int weft_ring_stop(struct weft_ctx *ctx, uint32_t index);

static inline uint32_t weft_pow2(uint32_t n)
{
	return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

static inline uint8_t *weft_slot(const struct weft_ring *r, uint32_t pos)
{
	return r->slots + (size_t)(pos & r->mask) * r->slot_size;
}

static inline uint16_t weft_used_idx(const struct weft_ring *r)
{
	return __atomic_load_n(&r->used->idx, __ATOMIC_ACQUIRE);
}

/* Takes in what the node has used since; no more than was made available. */
static inline void weft_ring_reap(struct weft_ring *r)
{
	uint16_t used = weft_used_idx(r);
	uint16_t n = (uint16_t)(used - (uint16_t)r->tail);

	if (likely(n <= r->head - r->tail))
		r->tail += n;
}

static inline void weft_ring_publish(struct weft_ring *r)
{
	__atomic_store_n(&r->avail->idx, (uint16_t)r->head, __ATOMIC_RELEASE);
}

/* ---- door.c ---- */

/* Why a context no longer works. */
enum { WEFT_ALIVE, WEFT_LOST /* node or socket gone */, WEFT_FORKED /* of the parent */ };

struct weft_ctx {
	struct weft_ctx *next;         /* list of all contexts, for fork */
	_Atomic int dead;              /* WEFT_ALIVE … */
	bool closing, watched, leaked;
	struct weft_fd sock, kick, call;
	pthread_t watcher;
	struct weft_mem mem;
	struct weft_lock ctl;
	struct weft_ring ctlq;
	/* Held from the command that makes or destroys an object with rings until
	 * these are set or stopped: the number of an object that is gone may be the
	 * next one's at once, and its rings go by that number. Taken before ctl. */
	struct weft_lock numbers;
	uint32_t max_qps, max_cqs;     /* L and M of the config space */
	uint64_t ext;                  /* extensions in force */
	struct weft_res_query_device attr; /* answer of QUERY_DEVICE */
	struct weft_doorbell *db;
	uint32_t db_block;             /* words of bits per summary bit */

	struct weft_lock arena_lock;
	uint64_t arena_gen;            /* starts out as none the arena has */
	size_t arena_done;             /* chunks announced */

	struct weft_lock obj;
	struct weft_qp **qps;          /* by ring slot */
	struct weft_srq **srqs;        /* by number, which is a ring slot too */
	struct weft_cq **cqs;
	struct weft_channel *channels;
	struct weft_pd *pds;
	uint32_t imports;              /* of the context, by this process; the list's lock guards it */
	uint32_t cq_gen;

	struct weft_lock mr_lock;
	struct weft_mr **mr_hash;      /* by lkey */
	uint32_t mr_hash_mask, mr_count;
	_Atomic uint32_t mr_gen;       /* changes when a key stops meaning what it did */

	struct weft_fd async_rd, async_wr; /* the ends of async_fd */
	bool fatal_reported;
	uint32_t evq_cqn;
	struct weft_ring evq;
	struct weft_async *async_head, **async_tail;

	void *priv[64];                /* zeroes behind verbs_context.priv */
	struct verbs_context vctx;     /* last: programs may know it shorter, not longer */
};

static inline struct weft_ctx *weft_ctx(struct ibv_context *c)
{
	return weft_container(c, struct weft_ctx, vctx.context);
}

int weft_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);

/* Whether a context was opened by this library. */
static inline bool weft_ours(const struct ibv_context *c)
{
	return c->ops.poll_cq == weft_poll_cq;
}

/* Hands the call on to the libibverbs behind this one when the context is one
 * of its own (a machine may have real devices as well). */
#define WEFT_FORWARD(ctx, none, fn, ...) WEFT_FORWARD_AS(ctx, none, fn, #fn, __VA_ARGS__)

/* The same for a function that has another name in C. */
#define WEFT_FORWARD_AS(ctx, none, fn, name, ...)                       \
	do {                                                            \
		if (unlikely(!weft_ours(ctx))) {                        \
			__typeof__(&fn) real_ = weft_next(name);        \
			if (!real_) {                                   \
				errno = ENOSYS;                         \
				return none;                            \
			}                                               \
			return real_(__VA_ARGS__);                      \
		}                                                       \
	} while (0)

static inline bool weft_dead(const struct weft_ctx *ctx)
{
	return unlikely(atomic_load_explicit(&ctx->dead, memory_order_relaxed) != WEFT_ALIVE);
}

/* Opens the session of §2 of the ABI. Returns 0 or an errno; on failure
 * everything is released. */
int weft_door_open(struct weft_ctx *ctx, const char *path);
/* Ends the session. The watcher thread has ended when it returns. */
void weft_door_close(struct weft_ctx *ctx);
/* Closes the descriptors of the session that the program has not closed. */
void weft_door_drop(struct weft_ctx *ctx);
/* Marks a context lost, once, and raises DEVICE_FATAL. */
void weft_door_lost(struct weft_ctx *ctx);

/* Sends one vhost-user request and waits for the u64 that answers it. Returns
 * 0 or an errno. Takes ctl. */
int weft_door_request(struct weft_ctx *ctx, uint32_t request, const void *payload, uint32_t size,
		      int fd);

/*
 * Executes one control command. Returns 0 or the errno the node answered, EIO
 * where it is gone. out gets exactly outlen bytes on success, zero-filled where
 * the node had less to say.
 */
int weft_command(struct weft_ctx *ctx, uint8_t cmd, const void *in, size_t inlen, void *out,
		 size_t outlen);

/* Announces arena chunks made since the last call. Returns 0 or an errno. */
int weft_announce_arena(struct weft_ctx *ctx);

void weft_kick(struct weft_ctx *ctx);

/* Tells the node that ring index has new elements (ABI §3, doorbell area). */
static inline void weft_ring_bell(struct weft_ctx *ctx, uint32_t index)
{
	uint32_t w = index / 64;
	struct weft_doorbell *db = ctx->db;
	uint64_t bit = 1ull << (index & 63), sbit = 1ull << (w / ctx->db_block);

	atomic_thread_fence(memory_order_seq_cst);
	if (!(__atomic_load_n(&db->bits[w], __ATOMIC_RELAXED) & bit))
		__atomic_fetch_or(&db->bits[w], bit, __ATOMIC_SEQ_CST);
	if (!(__atomic_load_n(&db->summary, __ATOMIC_RELAXED) & sbit))
		__atomic_fetch_or(&db->summary, sbit, __ATOMIC_SEQ_CST);
	atomic_thread_fence(memory_order_seq_cst);
	if (__atomic_load_n(&db->sleeping, __ATOMIC_RELAXED))
		weft_kick(ctx);
}

/* ---- objects ---- */

/* A protection domain; or with a base a parent domain, which goes by its number;
 * or one that was imported, another handle on a domain of the context. */
struct weft_pd {
	struct ibv_pd pd;
	struct weft_pd *next;    /* of those that were allocated */
	struct weft_pd *base;
	struct weft_td *td;
	uint32_t users;          /* parent domains */
	bool imported;
};

struct weft_td {
	struct ibv_td td;
	uint32_t users;
};

struct weft_ah {
	struct ibv_ah ah;
};

struct weft_mr {
	struct ibv_mr mr;
	struct weft_mr *next;    /* in mr_hash */
	uint64_t iova;           /* address of the first byte in work requests */
	uint32_t access;
	bool imported;           /* not in mr_hash */
};

/* What a send queue remembers of a region it has sent from. */
struct weft_mr_hint {
	uint32_t lkey;
	uint32_t gen;            /* of mr_gen, plus one so that zero is no hint */
	uint64_t start, len;
	uint64_t delta;          /* process address − work request address */
	uint32_t pdn;
};

bool weft_mr_lookup(struct weft_ctx *ctx, uint32_t lkey, struct weft_mr_hint *out);

struct weft_mw {
	struct ibv_mw mw;
};

struct weft_channel {
	struct ibv_comp_channel ch;
	struct weft_channel *next;
	struct weft_fd rd, wr;   /* ch.fd and its write end, which is non-blocking */
	struct weft_lock lock;   /* one drain or write-back at a time */
	_Atomic bool stalled;    /* some CQ could not write its event */
};

struct weft_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
		uint8_t room[384];   /* newer headers know longer ones */
	};
	struct weft_lock lock;
	struct weft_ring ring;
	uint32_t empty;          /* polls in a row that found nothing */
	uint32_t *arm;           /* in shared memory */
	/* Counts of completions since creation: taken; told of by an event (at
	 * least); there when last armed. */
	uint32_t taken, told, armed_at;
	bool armed;              /* and not known to have fired */
	bool owed;               /* armed over completions told of before */
	_Atomic bool stalled;    /* owes its channel an event */
	uint32_t gen;
	uint32_t comp_delivered, async_delivered;
	struct weft_cqe *carry;  /* taken over from before a resize */
	uint32_t carry_at, carry_n;
	/* start_poll … end_poll */
	const struct weft_cqe *cur;
	pthread_t poller;        /* the thread between them, or 0 */
	uint32_t ex_pos;
	uint64_t ts, wallclock;
	uint64_t wc_flags;
};

#define WEFT_HINTS 4

struct weft_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex ex;
		uint8_t room[448];
	};
	struct weft_lock sq_lock, rq_lock;
	struct weft_ring sq, rq;
	uint32_t slot;           /* ring slot; qp.handle is the same */
	uint32_t max_inline, max_send_sge, max_recv_sge;
	uint32_t ops;            /* 1 << wr opcode for those allowed */
	bool sq_sig_all, has_ex;
	uint32_t async_delivered;
	struct ibv_qp_cap cap;
	struct weft_mr_hint hint[WEFT_HINTS];
	/* wr_start … wr_complete */
	uint32_t ex_head;
	int ex_err;
};

struct weft_srq {
	struct ibv_srq srq;
	struct weft_lock lock;
	struct weft_ring rq;
	uint32_t srqn, max_sge, max_wr;
	uint16_t *free;          /* slots not with the node */
	uint32_t nfree;
	uint32_t async_delivered;
};

static inline struct weft_cq *to_weft_cq(struct ibv_cq *c)
{
	return weft_container(c, struct weft_cq, cq);
}

static inline struct weft_qp *to_weft_qp(struct ibv_qp *q)
{
	return weft_container(q, struct weft_qp, qp);
}

/* ---- events.c ---- */

/* Writes the completion event of cq into its channel; the caller took the arm
 * word back. */
void weft_raise(struct weft_cq *cq);
int weft_events_open(struct weft_ctx *ctx);
void weft_events_close(struct weft_ctx *ctx);
/* Drops events that name obj and were not delivered yet. */
void weft_async_purge(struct weft_ctx *ctx, const void *obj);
void weft_channel_purge(struct weft_cq *cq);
void weft_events_fatal(struct weft_ctx *ctx);
/* Waits until *completed reaches *delivered (objects being destroyed). */
void weft_await_acks(struct weft_ctx *ctx, pthread_mutex_t *m, pthread_cond_t *c,
		     const uint32_t *completed, const uint32_t *delivered);

/* ---- operations.c ---- */

/* Fills the tables through which programs and libibverbs reach the operations of
 * a context. */
void weft_operations(struct weft_ctx *ctx);

/* ---- device.c, query.c, domain.c, mr.c, cq.c, qp.c, post.c, srq.c ---- */

extern struct weft_lock weft_contexts_lock;
extern struct weft_ctx *weft_contexts;

/* Network order. */
__be64 weft_device_guid(const struct ibv_device *d);
__be64 weft_device_image_guid(const struct ibv_device *d);
int weft_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t len);
int weft_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in,
			 struct ibv_device_attr_ex *attr, size_t len);
int weft_query_rt_values(struct ibv_context *c, struct ibv_values_ex *v);
int weft_gid(struct weft_ctx *ctx, uint32_t index, struct weft_res_query_gid *out);
struct ibv_cq_ex *weft_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
int weft_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_td *weft_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr);
int weft_dealloc_td(struct ibv_td *td);
struct ibv_pd *weft_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr);
bool weft_is_parent_domain(const struct ibv_pd *pd);
/* Runs a destroy command; a node that is gone holds nothing any more. */
int weft_destroy(struct weft_ctx *ctx, uint8_t cmd, const void *in, size_t n);
struct ibv_mw *weft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int weft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int weft_dealloc_mw(struct ibv_mw *mw);
/* Drops the completions of a queue pair that was reset. */
void weft_cq_forget(struct ibv_cq *cq, uint32_t qp_num);
struct ibv_qp *weft_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
/* The most inline data of a request that a queue pair of a device may have, in bytes. */
uint32_t weft_inline_limit(const struct weft_res_query_device *d);
int weft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int weft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void weft_qp_ex_ops(struct weft_qp *q, uint64_t send_ops);
struct ibv_srq *weft_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
int weft_get_srq_num(struct ibv_srq *srq, uint32_t *num);
int weft_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *a);
int weft_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* Returns err, positive or zero, with errno set to it, as verbs do. */
static inline int weft_ret(int err)
{
	if (err)
		errno = err;
	return err;
}

#endif
