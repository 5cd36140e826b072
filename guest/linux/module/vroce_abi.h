/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause */
/*
 * What the module virtio_roce and its libibverbs provider say to each other, in
 * the driver's part of uverbs commands.
 *
 * A program runs the rings of its queues itself. The module fills the descriptor
 * table of a ring once: descriptor i is element i of the ring's elements, of
 * element_size octets. Programs never see descriptor tables, so the device
 * writes nothing but completions, to the elements of the completion queue. What
 * a program maps is described by struct vroce_ring_map.
 */
#ifndef VROCE_ABI_H
#define VROCE_ABI_H

#include <linux/types.h>

/* The version of everything in this file. */
#define VROCE_ABI_VERSION 1

/* An offset that cannot be mapped. */
#define VROCE_NO_MAP (~0ULL)

/*
 * One ring. Offsets are arguments of mmap on the uverbs descriptor; positions
 * are octets from the start of the mapping. The rings are split rings of virtio
 * 1.2, section 2.7; entry e of the available ring names an element by its
 * number.
 */
struct vroce_ring_map {
	__aligned_u64 ring_offset;     /* available and used ring; read and write */
	__aligned_u64 elements_offset; /* elements; read and write */
	__aligned_u64 door_offset;     /* the page with the doorbell; write only.
					* VROCE_NO_MAP: ring it by a post_send (of a
					* send queue), post_recv or post_srq_recv
					* without work requests */
	__u32 ring_length;             /* octets to map, a multiple of the page size */
	__u32 elements_length;         /* octets to map, a multiple of the page size */
	__u32 ring_size;               /* entries of the ring, a power of two */
	__u32 elements;                /* usable elements, from number 0 on; at most ring_size */
	__u32 element_size;            /* octets from one element to the next */
	__u32 elements_at;             /* position of element 0 */
	__u32 avail_at;                /* position of the available ring */
	__u32 used_at;                 /* position of the used ring */
	__u32 door_at;                 /* position of the doorbell: a write of the u16 `queue` rings it */
	__u32 queue;                   /* number of the virtqueue */
};

/* Bits of vroce_context_resp.flags. */
#define VROCE_CONTEXT_EVENT_IDX 1 /* VIRTIO_F_EVENT_IDX: rings have avail_event and used_event */

struct vroce_context_resp {
	__aligned_u64 extensions; /* bits of device_cap_flags that EXT_ENABLE has enabled */
	__u32 flags;
	__u32 max_inline;         /* octets */
	__u32 max_send_sge;
	__u32 max_recv_sge;
};

struct vroce_pd_resp {
	__u32 pdn;
	__u32 reserved;
};

/*
 * The elements of a completion queue are buffers of completions. The module has
 * made all of them available. The program returns each one that it has read,
 * without a doorbell.
 *
 * arm_at is the position, in the elements' mapping, of the arm word, or 0 if the
 * device has none; the queue is then armed by ibv_cmd_req_notify_cq. To arm: set
 * the arm word (1 solicited over 0 only, 2 next over both), then set the u32 at
 * wanted_at to 1, then a full barrier, then read the arm word: if it is 0
 * already, call ibv_cmd_req_notify_cq, which delivers the event if it is due.
 * The module delivers an event when it finds the arm word 0 and `wanted` 1, and
 * sets `wanted` to 0.
 */
struct vroce_cq_resp {
	struct vroce_ring_map ring;
	__u32 cqn;
	__u32 arm_at;
	__u32 wanted_at;
	__u32 reserved;
};

/* Bits of vroce_qp_resp.flags. */
#define VROCE_QP_COMPACT 1 /* send elements have the layout sq_hdr (SG_WQE), else sq_req */
#define VROCE_QP_SRQ     2 /* there is no receive ring of the queue pair */

struct vroce_qp_resp {
	struct vroce_ring_map send;
	struct vroce_ring_map recv;
	__u32 qpn;
	__u32 flags;
	__u32 max_inline; /* octets, as created */
	__u32 reserved;
};

struct vroce_srq_resp {
	struct vroce_ring_map ring; /* the device may use elements in any order */
	__u32 srqn;
	__u32 reserved;
};

struct vroce_ah_resp {
	__u32 ah;
	__u32 reserved;
};

#endif
