/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the fake node, and what they share: fake_rings.c has rings and
 * completion queues, fake_qp.c executes posted requests, fake_commands.c the
 * commands of the control queue, and fake_node.c has the session and its thread.
 */
#ifndef FAKE_PARTS_H
#define FAKE_PARTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../weft_abi.h"
#include "fake_node.h"

#define SESSION  5u
#define QPS      64u
#define CQS      16u
#define RINGS    (3 + CQS + 2 * QPS)
#define BACKLOG  4096u

#define need(x)                                                             \
	do {                                                                \
		if (!(x)) {                                                 \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);    \
			abort();                                            \
		}                                                           \
	} while (0)

struct ring {
	bool on;
	uint32_t num;
	struct weft_vring_desc *desc;
	struct weft_vring_avail *avail;
	struct weft_vring_used *used;
	int call;
	uint64_t call_value;
	uint16_t avail_at, used_at;
	/* A receive element that was taken and waits for a message; of another
	 * memory than the ring's where that has moved since. */
	bool ahead, moved;
	uint16_t ahead_id;
	uint8_t ahead_copy[512];
};

struct cq {
	bool on;
	uint32_t *arm;
	struct weft_cqe *backlog;
	uint32_t n;
};

extern struct fake {
	int listener, sock, kick;
	struct weft_doorbell *db;
	uint32_t nbits;
	struct ring ring[RINGS];
	struct cq cq[CQS];
	struct {
		uint64_t base, size;
	} mem[64];
	int nmem;
	bool errno_ack;
	uint32_t evq;
	struct {
		bool on;
		uint32_t send_cq, recv_cq, srqn1, peer, num_sge;
		uint8_t state, type;
	} qp[QPS];
	bool srq[QPS];
	uint32_t srq_wr[QPS], srq_limit[QPS];
	struct {
		bool on;
		uint64_t va, len, iova;
		uint32_t access;
	} mr[64];
	uint64_t probe_word;
} fake;

/* Events to be raised, and the mutex that guards them; dry: they found no buffer
 * and wait for a doorbell. */
extern pthread_mutex_t fake_event_mu;
extern struct weft_event fake_pending;
extern _Atomic uint32_t fake_have_pending;
extern _Atomic bool fake_dry;

/* Whether a range lies in registered memory. */
bool fake_inside(uint64_t addr, uint64_t len);

/* Rings and completion queues: the caller is the thread of the node. */
bool fake_available(struct ring *r);
void *fake_pop(struct ring *r, uint16_t *id, uint32_t *len);
void fake_push(struct ring *r, uint16_t id, uint32_t len);
void fake_call(struct ring *r);
void fake_flush(uint32_t cqn);
void fake_complete(uint32_t cqn, const struct weft_cqe *e, bool solicited);
/* Continues in now where r runs: what was taken is used at once. */
void fake_move(struct ring *r, struct ring *now);

/* Executes posted requests and raises events; false where nothing was to do. */
bool fake_work(void);
/* Executes one command of the control queue; false where there is none. */
bool fake_commands(void);

#endif
