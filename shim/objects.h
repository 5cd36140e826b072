/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs objects as the library holds them, around the structures that programs see.
 */
#ifndef WEFT_OBJECTS_H
#define WEFT_OBJECTS_H

#include "context.h"

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

/* Whether the program may access memory as a region with these rights has to. */
enum weft_reach weft_mr_reach(struct weft_ctx *ctx, const void *addr, size_t len, unsigned int access);

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

#endif
