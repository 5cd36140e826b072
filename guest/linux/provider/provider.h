/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the provider "vroce" for libibverbs.
 *
 *   provider.c  registration, contexts, objects without rings
 *   create.c    queues: their life, and their rings in memory
 *   queue.c     rings, requests, completions: works without the kernel
 *   extended.c  the same by the functions of ibv_qp_ex and ibv_cq_ex
 *
 * Layouts of elements and completions are those of docs/notes/virtio-roce.md.
 */
#ifndef VROCE_PROVIDER_H
#define VROCE_PROVIDER_H

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "private_abi.h"
#include "../module/vroce_abi.h"

static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "rings and elements are little-endian");

#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

/*
 * The machine has one processor. If QEMU emulates such a machine, locked
 * instructions do not order writes and reads as seen from the device.
 */
extern bool vroce_one_processor;

/* Orders all earlier writes before all later reads, as seen from the device. */
static inline void full_barrier(void)
{
#if defined(__x86_64__) || defined(__i386__)
	if (vroce_one_processor)
		__asm__ __volatile__("mfence" ::: "memory");
#endif
	/* A locked instruction on x86, which is several times faster. */
	atomic_thread_fence(memory_order_seq_cst);
}

/* ---- what the device reads and writes ---- */

enum {
	VROCE_OP_RDMA_WRITE = 0,
	VROCE_OP_RDMA_WRITE_IMM = 1,
	VROCE_OP_SEND = 2,
	VROCE_OP_SEND_IMM = 3,
	VROCE_OP_RDMA_READ = 4,
	VROCE_OP_ATOMIC_CMP_SWP = 0x40,
	VROCE_OP_ATOMIC_FETCH_ADD = 0x41,
	VROCE_OP_SEND_INV = 0x42,
	VROCE_OP_LOCAL_INV = 0x43,
	VROCE_OP_BIND_MW = 0x45,
	VROCE_OP_ATOMIC_WRITE = 0x47,
};

/* IBV_WR_ATOMIC_WRITE and IBV_QP_EX_WITH_ATOMIC_WRITE, which early headers do not have. */
enum { VROCE_WR_ATOMIC_WRITE = 15, VROCE_QP_EX_WITH_ATOMIC_WRITE = 1 << 12 };
enum { VROCE_SEND_FLAGS = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE };

enum {
	VROCE_WC_GRH = 1,
	VROCE_WC_WITH_IMM = 2,
	VROCE_WC_WITH_INV = 0x100,
};

/* Bits of vroce_context_resp.extensions. */
#define VROCE_EXT_ATOMIC (1ULL << 40)
#define VROCE_EXT_MEM_MGT (1ULL << 41)
#define VROCE_EXT_MW (1ULL << 42)
#define VROCE_EXT_ATOMIC_WRITE (1ULL << 57)

struct vroce_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

/* The first 48 octets of a send element, in both layouts. */
struct vroce_send {
	uint64_t wr_id;
	uint8_t opcode;
	uint8_t flags;
	uint16_t padding;
	uint32_t imm_data; /* network byte order, or a key, little-endian */
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
			uint32_t reserved[5];
		} rdma;
		struct {
			uint32_t remote_qpn;
			uint32_t remote_qkey;
			uint32_t ah;
			uint32_t reserved[5];
		} ud;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
			uint32_t reserved;
		} atomic;
		struct {
			uint64_t addr;
			uint64_t length;
			uint32_t mr_lkey;
			uint32_t mw_rkey;
			uint32_t access;
			uint32_t reserved;
		} bind;
		uint64_t words[4];
	};
};

/* Follows vroce_send: at once in the compact layout, after inline data in the other. */
struct vroce_send_list {
	uint32_t num_sge; /* or the length of inline data */
	uint32_t reserved[3];
	struct vroce_sge sge[];
};

enum {
	VROCE_SEND_COMPACT_LIST = 48, /* inline data at 64 */
	VROCE_SEND_INLINE = 48,       /* of the layout that is not compact */
	VROCE_SEND_INLINE_MAX = 512,
	VROCE_SEND_LIST = 560,
};

struct vroce_recv {
	uint64_t wr_id;
	uint32_t num_sge;
	uint32_t reserved[3];
	struct vroce_sge sge[];
};

struct vroce_cqe {
	uint64_t wr_id;
	uint8_t status;
	uint8_t opcode;
	uint16_t padding;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data;
	uint32_t qp_num; /* 0 if the queue pair was destroyed: no queue pair has number 0 */
	uint32_t src_qp;
	uint32_t flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
	uint8_t reserved[6];
};

static_assert(sizeof(struct vroce_send) == 48, "send element");
static_assert(sizeof(struct vroce_recv) == 24, "receive element");
static_assert(sizeof(struct vroce_cqe) == 48, "completion");

/* Parts of a split ring of virtio 1.2, section 2.7. */
struct vroce_avail {
	uint16_t flags;
	_Atomic uint16_t idx;
	_Atomic uint16_t ring[]; /* behind the entries: used_event */
};

struct vroce_used {
	_Atomic uint16_t flags;
	_Atomic uint16_t idx;
	struct {
		uint32_t id;
		uint32_t len;
	} ring[]; /* behind the entries: avail_event */
};

enum {
	VROCE_AVAIL_NO_INTERRUPT = 1,
	VROCE_USED_NO_NOTIFY = 1,
};

/* ---- rings ---- */

struct vroce_mapping {
	void *base;
	size_t length;
};

/*
 * The driver's side of a ring. Positions run freely modulo 2^16. All members but
 * the mappings are guarded by the lock of the queue.
 */
struct vroce_ring {
	uint8_t *elements;
	uint32_t element_size;
	uint32_t count;        /* elements; at most the entries of the ring */
	uint16_t mask;         /* entries - 1 */
	bool event_idx;
	bool in_order;         /* the device uses elements in the order of the ring */
	uint16_t queue;        /* number that rings the doorbell */
	uint16_t posted;       /* next position to make available */
	uint16_t published;    /* value of avail->idx */
	uint16_t used;         /* value of used->idx when it was last read */
	uint16_t quiet;        /* value of used_event: a position that the device does not reach */
	uint16_t taken;        /* next position of the used ring to take an element from */
	uint32_t fresh;        /* elements that were posted at least once, or the next in order */
	struct vroce_avail *avail;
	struct vroce_used *used_ring;
	_Atomic uint16_t *used_event;
	_Atomic uint16_t *avail_event;
	volatile uint16_t *door; /* NULL: by a command */
	struct vroce_mapping map_ring, map_elements, map_door;
};

/* Initializes all of ring but the mappings, from their addresses. */
void vroce_ring_init(struct vroce_ring *ring, const struct vroce_ring_map *map, bool event_idx, bool in_order);
/* Makes posted elements available. Returns true if the doorbell must be rung. */
bool vroce_ring_publish(struct vroce_ring *ring);
/* The memory for the next element, or NULL if all are in use. */
void *vroce_ring_next(struct vroce_ring *ring);
/* Posts the element that vroce_ring_next has returned last. */
void vroce_ring_post(struct vroce_ring *ring);

/* ---- objects ---- */

struct vroce_context {
	struct verbs_context verbs;
	uint64_t extensions;
	uint32_t page_size;
	bool event_idx;
	/*
	 * Held while the kernel destroys a queue pair and its completions are taken
	 * off, and while one is created: a new queue pair may have the old number.
	 */
	pthread_mutex_t numbers;
};

/* A lock that does nothing for queues of a single thread. */
struct vroce_lock {
	pthread_spinlock_t spin;
	bool single;
};

static inline void vroce_lock(struct vroce_lock *lock)
{
	if (!lock->single)
		pthread_spin_lock(&lock->spin);
}

static inline void vroce_unlock(struct vroce_lock *lock)
{
	if (!lock->single)
		pthread_spin_unlock(&lock->spin);
}

struct vroce_td {
	struct ibv_td td;
	_Atomic unsigned int users;
};

struct vroce_pd {
	struct ibv_pd pd;
	struct vroce_pd *parent; /* not NULL: this is a parent domain of it */
	struct vroce_td *td;     /* not NULL: one thread uses the objects of this domain */
	_Atomic unsigned int users;
};

struct vroce_cq {
	struct verbs_cq verbs;
	struct vroce_lock lock;
	struct vroce_ring ring;
	uint16_t next;                /* next position of the used ring to look at */
	struct vroce_cqe *current;    /* of start_poll and next_poll */
	_Atomic uint32_t *arm_word;   /* NULL: arm by a command */
	_Atomic uint32_t *wanted;
};

struct vroce_srq {
	struct ibv_srq srq;
	struct vroce_lock lock;
	struct vroce_ring ring;
	uint32_t max_sge;
};

struct vroce_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex ex;
		uint64_t library[(sizeof(struct ibv_qp_ex) + 256) / 8];
	};
	struct vroce_lock send_lock, recv_lock;
	struct vroce_ring send, recv;
	uint32_t opcodes;        /* bit n: the queue pair has opcode n of ibv_wr_opcode */
	uint32_t max_send_sge, max_recv_sge, max_inline;
	uint32_t list_at;        /* position of num_sge in a send element */
	uint32_t inline_at;      /* position of inline data in a send element */
	bool datagram;
	/* The batch between wr_start and wr_complete. */
	int error;
	struct vroce_send *element; /* NULL if the last request was refused */
	uint16_t start_posted;
	uint32_t start_fresh;
};

struct vroce_ah {
	struct ibv_ah ah;
	uint32_t number;
};

static inline struct vroce_context *to_context(struct ibv_context *context)
{
	return container_of(context, struct vroce_context, verbs.context);
}

static inline struct vroce_pd *to_pd(struct ibv_pd *pd)
{
	return container_of(pd, struct vroce_pd, pd);
}

static inline struct vroce_cq *to_cq(struct ibv_cq *cq)
{
	return container_of(cq, struct vroce_cq, verbs.cq);
}

static inline struct vroce_cq *to_cq_ex(struct ibv_cq_ex *cq)
{
	return container_of(cq, struct vroce_cq, verbs.cq_ex);
}

static inline struct vroce_srq *to_srq(struct ibv_srq *srq)
{
	return container_of(srq, struct vroce_srq, srq);
}

static inline struct vroce_qp *to_qp(struct ibv_qp *qp)
{
	return container_of(qp, struct vroce_qp, qp);
}

static inline struct vroce_qp *to_qp_ex(struct ibv_qp_ex *qp)
{
	return container_of(qp, struct vroce_qp, ex);
}

static inline struct vroce_ah *to_ah(struct ibv_ah *ah)
{
	return container_of(ah, struct vroce_ah, ah);
}

/* For functions that return NULL: sets errno. */
static inline void *fails(int error)
{
	errno = error;
	return NULL;
}

/* An answer of the kernel is its own part, then the module's. */
#define NO_PADDING(type) static_assert(offsetof(struct type, module) == sizeof(((struct type *)0)->core), #type)

/* ---- create.c: operations of verbs ---- */

struct ibv_cq *vroce_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int vector);
struct ibv_cq_ex *vroce_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int vroce_destroy_cq(struct ibv_cq *cq);
struct ibv_srq *vroce_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int vroce_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int attr_mask);
int vroce_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int vroce_destroy_srq(struct ibv_srq *srq);
struct ibv_qp *vroce_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *vroce_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
int vroce_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init);
int vroce_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
int vroce_destroy_qp(struct ibv_qp *qp);

/* ---- queue.c ---- */

int vroce_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int vroce_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int vroce_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int vroce_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int vroce_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
int vroce_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* Takes completions of the queue pair qp_num off the queue. */
void vroce_cq_forget(struct vroce_cq *cq, uint32_t qp_num);
/* The bits of vroce_qp.opcodes for a type of queue pair. */
uint32_t vroce_opcodes(enum ibv_qp_type type, uint64_t extensions);
/* Rings the doorbell of the send ring, without its lock. */
void vroce_ring_send_door(struct vroce_qp *qp);
/* The next completion that belongs to a queue pair, or NULL. The lock is held. */
struct vroce_cqe *vroce_cq_next(struct vroce_cq *cq);
/* Returns the buffer of the completion that vroce_cq_next has returned last. */
void vroce_cq_return(struct vroce_cq *cq);
/* Makes returned buffers available. */
void vroce_cq_publish(struct vroce_cq *cq);
enum ibv_wc_status vroce_wc_status(uint8_t status);
enum ibv_wc_opcode vroce_wc_opcode(uint8_t opcode);
unsigned int vroce_wc_flags(uint32_t flags);
uint8_t vroce_device_opcode(unsigned int opcode);

/* ---- extended.c ---- */

/* Gives the queue pair the ibv_wr functions. slots are those behind wr_abort. */
void vroce_set_wr_functions(struct vroce_qp *qp, unsigned int slots);
void vroce_set_poll_functions(struct vroce_cq *cq);

#endif
