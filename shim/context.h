/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open device: one vhost-user session with the node, its control queue, its
 * doorbells, and the tables of its objects.
 */
#ifndef WEFT_CONTEXT_H
#define WEFT_CONTEXT_H

#include "ring.h"

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

	struct weft_lock maps_lock;
	struct weft_fd maps;           /* /proc/self/maps */
	bool maps_text;                /* PROCMAP_QUERY does not work on it */
	uint64_t nameless[16];         /* files that were mapped and have no name */

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
int weft_session_open(struct weft_ctx *ctx, const char *path);
/* Ends the session. The watcher thread has ended when it returns. */
void weft_session_close(struct weft_ctx *ctx);
/* Closes the descriptors of the session that the program has not closed. */
void weft_session_drop(struct weft_ctx *ctx);
/* Marks a context lost, once, and raises DEVICE_FATAL. */
void weft_session_lost(struct weft_ctx *ctx);

/* Sends one vhost-user request and waits for the u64 that answers it. Returns
 * 0 or an errno. Takes ctl. */
int weft_session_request(struct weft_ctx *ctx, uint32_t request, const void *payload, uint32_t size,
		      int fd);

/*
 * Executes one control command. Returns 0 or the errno the node answered, EIO
 * where it is gone. out gets exactly outlen bytes on success, zero-filled where
 * the node had less to say.
 */
int weft_command(struct weft_ctx *ctx, uint8_t cmd, const void *in, size_t inlen, void *out,
		 size_t outlen);

/* The same; calls meanwhile(arg) once the node has the command, while it executes it. The lock of commands is held
 * then. meanwhile is not called if the command cannot be sent. */
int weft_command_beside(struct weft_ctx *ctx, uint8_t cmd, const void *in, size_t inlen, void *out, size_t outlen,
			void (*meanwhile)(void *arg), void *arg);

/* Announces arena chunks made since the last call. Returns 0 or an errno. */
int weft_announce_arena(struct weft_ctx *ctx);

/* Whether the program itself may access memory as a registration has to. */
enum weft_reach {
	WEFT_REACHED,
	WEFT_UNMAPPED,     /* not all of it is mapped */
	WEFT_UNREADABLE,   /* part of it is not readable */
	WEFT_READ_ONLY,    /* part of it is not writable, and write was set */
	WEFT_PAST_FILE,    /* part of it lies behind the end of the file that is mapped */
	WEFT_UNKNOWN,      /* /proc/self/maps cannot be read */
};

/* Opens the list of mappings, while the program can: it may chroot later. */
void weft_reach_open(struct weft_ctx *ctx);
/* Looks at n bytes of the program. sized: no file behind them is too short. Touches no page, keeps errno. */
enum weft_reach weft_reach(struct weft_ctx *ctx, const void *p, size_t n, bool write, bool sized);

void weft_kick(struct weft_ctx *ctx);

/* Notifies the node that ring index has new elements (ABI §3, doorbell area). */
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

#endif
