/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The RoCE half of a card as a device of the kernel's RDMA core: its objects, and
 * what the files of the verbs use of each other.
 */
#ifndef VROCE_VERBS_H
#define VROCE_VERBS_H

#include <linux/xarray.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#include "vroce.h"
#include "vroce_abi.h"
#include "vroce_hw.h"

struct vroce_cq;
struct vroce_events;

struct vroce_verbs {
	struct ib_device ib;
	struct vroce_card *card;
	struct net_device *netdev;
	u64 extensions;                  /* the enabled ones, as bits of device_cap_flags */
	struct hw_query_device limits;
	u32 gid_table_length;
	u32 max_message;
	struct mutex objects;            /* of making and destroying numbered objects, and of calling their handlers */
	struct xarray qps;               /* struct vroce_qp by number */
	struct xarray srqs;              /* struct vroce_srq by number */
	struct vroce_cq **cqs;           /* [card->max_cqs], by number; under card->verbs_lock */
	struct vroce_events *events;     /* NULL without ASYNC_EVQ */
	bool reported_broken;            /* IB_EVENT_DEVICE_FATAL is dispatched */
};

/*
 * Memory of elements, physically contiguous. A program may have it mapped longer
 * than its queue lives.
 */
struct vroce_elements {
	void *start;
	size_t length;
};

/* What a program maps, as one entry of the RDMA core's table. */
struct vroce_mapping {
	struct rdma_user_mmap_entry entry;
	phys_addr_t start;
	size_t length;
	bool doorbell;                   /* registers of the device, not memory */
	struct vroce_ring *ring;         /* the ring that is mapped, or NULL */
	struct vroce_elements elements;  /* freed with the mapping, or empty */
	struct vroce_card *card;
};

/* A ring with its elements, of a queue pair, a shared receive queue or a completion queue. */
struct vroce_queue {
	struct vroce_ring *ring;         /* NULL: the queue does not exist */
	struct vroce_elements elements;
	u8 *first;                       /* element 0 */
	u32 count;                       /* elements */
	u32 size;                        /* octets of each */
	/* Of the work requests of a queue pair of the kernel, which take the elements in order: */
	u64 *wr_ids;                     /* [count]: what the poster calls each; the device gets the element's number */
	u32 next;                        /* element of the next one; under lock */
	u32 oldest;                      /* element of the oldest one without a completion; under the lock of its CQ */
	atomic_t open;                   /* elements from oldest to next */
	spinlock_t lock;                 /* of posting to, or polling, a queue of the kernel */
	struct vroce_mapping *maps[3];   /* ring, elements, doorbell; of a program's queue */
};

struct vroce_pd {
	struct ib_pd ib;
	u32 pdn;
};

struct vroce_ah {
	struct ib_ah ib;
	u32 handle;
};

struct vroce_mr {
	struct ib_mr ib;
	u32 mrn;
	struct ib_umem *umem;            /* of a program's region */
	__le64 *pages;                   /* of a region that is registered by REG_MR */
	u32 max_pages;
	u32 npages;
};

struct vroce_cq {
	struct ib_cq ib;
	u32 cqn;
	struct vroce_queue queue;
	u32 *arm;                        /* the arm word, NULL: armed by commands */
	u32 *wanted;                     /* the owner waits for an event */
	u16 armed_at;                    /* used index when it was armed by a command */
};

struct vroce_srq {
	struct ib_srq ib;
	u32 srqn;
	struct vroce_queue queue;
	u32 max_sge;
	u16 *free;                       /* numbers of free elements; of a queue of the kernel */
	u32 free_count;
};

struct vroce_qp {
	struct ib_qp ib;
	u32 max_inline;
	u32 max_send_sge;
	u32 max_recv_sge;
	bool compact;                    /* the layout of send elements */
	bool signal_all;
	enum ib_qp_state state;
	struct vroce_queue send, recv;
};

#define TO(type, field) \
	static inline struct vroce_##type *to_##type(struct ib_##type *x) \
	{ return container_of(x, struct vroce_##type, ib); }
TO(pd, ib)
TO(ah, ib)
TO(mr, ib)
TO(cq, ib)
TO(srq, ib)
TO(qp, ib)
#undef TO

static inline struct vroce_verbs *to_verbs(struct ib_device *ib)
{
	return container_of(ib, struct vroce_verbs, ib);
}

struct vroce_context {
	struct ib_ucontext ib;
};

/* A command with a request and a result of fixed sizes. Process context. */
#define vroce_call(verbs, command, request, result) \
	vroce_command((verbs)->card, command, request, sizeof(*(request)), NULL, 0, result, sizeof(*(result)), false)
/* A command without a result. */
#define vroce_do(verbs, command, request, atomic) \
	vroce_command((verbs)->card, command, request, sizeof(*(request)), NULL, 0, NULL, 0, atomic)

/* The program that a command comes from. udata is not NULL. */
struct ib_ucontext *vroce_context_of(struct ib_udata *udata);
/*
 * A command that destroys an object. Returns -EBUSY if the object is in use, else 0: a
 * device that refuses is broken, and the reset of a broken card destroys everything.
 */
int vroce_destroy(struct vroce_verbs *verbs, u8 command, u32 handle);

/* ---- queue.c ---- */

/*
 * Makes count elements of size octets behind head octets, and a descriptor for each
 * entry of the ring. to_driver: the device writes the elements. Returns 0 or a
 * negative errno.
 */
int vroce_queue_init(struct vroce_verbs *verbs, struct vroce_queue *q, struct vroce_ring *ring, u32 count, u32 size,
		     u32 head, bool to_driver);
/* Describes the queue to the program of context, which may map it then. */
int vroce_queue_map(struct vroce_verbs *verbs, struct vroce_queue *q, struct ib_ucontext *context,
		    struct vroce_ring_map *map);
/* Lets a queue of the kernel hold work requests. Returns 0 or -ENOMEM. */
int vroce_queue_for_kernel(struct vroce_queue *q);
/* Frees the queue. The device has destroyed its object. A mapping of a program keeps the memory. */
void vroce_queue_free(struct vroce_verbs *verbs, struct vroce_queue *q);
/* Makes element number available; q->lock is held. vroce_queue_publish follows. */
void vroce_queue_add(struct vroce_verbs *verbs, struct vroce_queue *q, u16 element);
/* Shows the device all that was added since the position old, and rings the doorbell if that is wanted. */
void vroce_queue_publish(struct vroce_verbs *verbs, struct vroce_queue *q, u16 old);

static inline void *vroce_element(const struct vroce_queue *q, u32 number)
{
	return q->first + (size_t)number * q->size;
}

/* A kind of object that has the rings of a number, which the device chooses. */
struct vroce_numbered {
	u8 create, destroy;              /* commands; the result of create begins with the number */
	size_t res_size;
	const char *beyond;              /* the fault of a number outside the limits */
	bool (*valid)(const struct vroce_card *card, u32 number);
	bool (*mapped)(struct vroce_card *card, u32 number);
};

extern const struct vroce_numbered vroce_numbered_cq, vroce_numbered_qp, vroce_numbered_srq;

/*
 * Creates an object of the device. A program may still have a ring of the number
 * that the device chose mapped; such numbers are given back, and others tried.
 * verbs->objects is held, if the device is registered.
 */
int vroce_create_numbered(struct vroce_verbs *verbs, const struct vroce_numbered *kind, const void *req,
			  size_t req_size, u32 *number);
int vroce_mmap(struct ib_ucontext *context, struct vm_area_struct *vma);
void vroce_mmap_free(struct rdma_user_mmap_entry *entry);

/* Memory that a device may still write, because it did not answer; freed after its reset. */
void vroce_orphan_elements(struct vroce_card *card, struct vroce_elements *elements);
void vroce_orphan_umem(struct vroce_card *card, struct ib_umem *umem);
void vroce_free_orphans(struct vroce_card *card);

/* ---- cq.c ---- */

int vroce_create_cq(struct ib_cq *ib, int entries, struct ib_udata *udata);
int vroce_destroy_cq(struct ib_cq *ib, struct ib_udata *udata);
int vroce_poll_cq(struct ib_cq *ib, int count, struct ib_wc *wc);
int vroce_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags);
/*
 * Has polls of the queue leave out completions that a queue pair has by now. When it
 * returns, no poll uses a queue pair that was taken out of verbs->qps before.
 */
void vroce_cq_forget(struct vroce_cq *cq, u32 qpn);
/* Calls the completion handler if an event is due. card->verbs_lock is held. */
void vroce_cq_check(struct vroce_verbs *verbs, struct vroce_cq *cq);

/*
 * The wr_id that the device gets for a work request of a queue pair of the kernel:
 * one of these, and the number of the element. Neither is the start of a kernel's
 * address.
 */
#define VROCE_COOKIE_SEND (0x5eedULL << 48)
#define VROCE_COOKIE_RECV (0x5eeeULL << 48)
#define VROCE_COOKIE_KIND (0xffffULL << 48)

/* ---- qp.c, srq.c, post.c ---- */

int vroce_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *attr, struct ib_udata *udata);
int vroce_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int vroce_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init);
int vroce_destroy_qp(struct ib_qp *ib, struct ib_udata *udata);
int vroce_attach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid);
int vroce_detach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid);
void vroce_fill_ah(struct hw_ah_attr *hw, const struct rdma_ah_attr *attr);
int vroce_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *attr, struct ib_udata *udata);
int vroce_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask, struct ib_udata *udata);
int vroce_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr);
int vroce_destroy_srq(struct ib_srq *ib, struct ib_udata *udata);
int vroce_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int vroce_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
int vroce_post_srq_recv(struct ib_srq *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);

/* ---- mr.c ---- */

struct ib_mr *vroce_get_dma_mr(struct ib_pd *pd, int access);
struct ib_mr *vroce_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 address, int access,
				struct ib_udata *udata);
struct ib_mr *vroce_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_sg);
int vroce_map_mr_sg(struct ib_mr *mr, struct scatterlist *sg, int count, unsigned int *offset);
int vroce_dereg_mr(struct ib_mr *mr, struct ib_udata *udata);

/* ---- event.c ---- */

int vroce_events_start(struct vroce_verbs *verbs);
void vroce_events_stop(struct vroce_verbs *verbs);
void vroce_events_interrupt(struct vroce_verbs *verbs);
u32 vroce_events_cqn(const struct vroce_verbs *verbs);

#endif
