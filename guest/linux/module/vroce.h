/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The parts of the module virtio_roce, and what each may use of the others.
 *
 *   main.c      the virtio driver: binding, taking over from virtio_net, giving back
 *   ethernet.c  the Ethernet half as a virtio device of its own, which virtio_net drives
 *   control.c   the control queue, which both halves share
 *   ring.c      the rings of RDMA queues and their doorbells
 *   verbs.c …   the RoCE half as a device of the kernel's RDMA core
 */
#ifndef VROCE_H
#define VROCE_H

#include <linux/netdevice.h>
#include <linux/virtio.h>
#include <linux/virtio_ring.h>
#include <linux/workqueue.h>

struct scatterlist;
struct vroce_control;
struct vroce_ethernet;
struct vroce_orphan;
struct vroce_verbs;

/* The feature bit of a card with a RoCE half, VIRTIO_NET_F_ROCE. */
#define VROCE_F_ROCE 55

/*
 * A ring of an RDMA queue. The virtio core has made its memory and given the
 * device its addresses; from then on only the owner of the queue, in the kernel or in
 * a program, uses it. Positions run freely modulo 2^16.
 */
struct vroce_ring {
	struct virtqueue *vq;
	struct vring vr;        /* desc, avail, used; vr.num entries */
	u16 queue;              /* number of the virtqueue */
	bool interrupts;        /* the driver has a callback for it */
	bool mappable;          /* the descriptor table has no page in common with the rest */
	phys_addr_t door;       /* where the doorbell is, 0 if it cannot be mapped */
	atomic_t mapped;        /* mappings of programs, perhaps of a queue that is gone */
	u16 avail_idx;          /* next position to make available (kernel's queues only) */
	u16 last_used;          /* next position to look at (kernel's queues only) */
};

/*
 * struct vroce_card - one virtio network device with a RoCE half
 *
 * Lives from probe to remove of the driver. The rings exist from the find_vqs of
 * the Ethernet half's driver to its del_vqs; verbs is not NULL only between its
 * DRIVER_OK and its reset.
 */
struct vroce_card {
	struct virtio_device *vdev;
	u32 max_qps;            /* queue pairs with rings: numbers 0 to max_qps - 1 */
	u32 max_cqs;            /* rings of completion queues */
	u32 first_cq_queue;     /* number of the virtqueue of completion queue 0 */
	struct vroce_ring *rings; /* all of them, in the order of their numbers */
	struct vroce_ring *cq;  /* [max_cqs] */
	struct vroce_ring *qp;  /* [2 * max_qps]: send and receive ring of each */
	struct delayed_work ring_guard;
	bool event_idx;         /* VIRTIO_RING_F_EVENT_IDX is negotiated */
	bool errno_acks;        /* ERRNO_ACK is enabled; set by verbs.c */
	bool broken;            /* the device works no more; until its reset */
	struct vroce_ethernet *ethernet;
	struct vroce_control *control;
	struct vroce_verbs *verbs;
	struct vroce_verbs *dead_verbs; /* of a broken card, until its reset */
	struct vroce_orphan *orphans;   /* memory that a broken card may still write */
	spinlock_t verbs_lock;  /* of verbs, its completion queues, and orphans; interrupts are off */
	struct work_struct config_work;
	struct work_struct broken_work; /* reports the broken card to the RDMA half */
};

static inline struct vroce_ring *vroce_send_ring(struct vroce_card *card, u32 qpn)
{
	return &card->qp[2 * qpn];
}

static inline struct vroce_ring *vroce_recv_ring(struct vroce_card *card, u32 qpn)
{
	return &card->qp[2 * qpn + 1];
}

/* ---- main.c ---- */

/* Reports in the log why the card is of no use, once, and lets all that waits for it fail. Any context. */
void vroce_break(struct vroce_card *card, const char *why);
/* Resets the card, after which no callback of its rings runs. Returns -ENODEV if it was pulled out. Process context. */
int vroce_reset(struct vroce_card *card);

/* ---- control.c ---- */

/*
 * Executes a command of class 6. request is request_length octets behind class
 * and command; list, which may be NULL, is list_count further entries of
 * device-readable data. On success the device wrote result_length octets to
 * result. Any context if atomic is true (it spins then), else process context.
 *
 * Returns 0; the errno of the refusal, negative (-EINVAL if the device has no
 * ERRNO_ACK); -EIO if the device is broken or answered what it must not;
 * -ETIMEDOUT if it did not answer, after which it is broken.
 */
int vroce_command(struct vroce_card *card, u8 command, const void *request, size_t request_length,
		  struct scatterlist *list, unsigned int list_count,
		  void *result, size_t result_length, bool atomic);

/* A part of a command's chain, in memory of the kernel. */
struct iov_part {
	void *start;
	u32 length;
};

int vroce_control_init(struct vroce_card *card);
void vroce_control_start(struct vroce_card *card, struct virtqueue *vq);
void vroce_control_stop(struct vroce_card *card);
void vroce_control_break(struct vroce_card *card);
void vroce_control_interrupt(struct virtqueue *vq);
u32 vroce_control_forward(struct vroce_card *card, struct iov_part *out, unsigned int outs,
			  struct iov_part *in, unsigned int ins);

/* ---- ring.c ---- */

/* Empties a ring whose queue the device has destroyed, or not created yet: indices 0, descriptors 0. */
void vroce_ring_reset(struct vroce_card *card, struct vroce_ring *ring);
/* Rings the doorbell if the device wants it. old is avail_idx before the new entries. Any context. */
void vroce_ring_kick(struct vroce_card *card, struct vroce_ring *ring, u16 old);

/* A part of the memory of a PCI device. */
struct vroce_region {
	phys_addr_t start;
	u32 length;
};

void vroce_rings_init(struct vroce_card *card);
int vroce_rings_start(struct vroce_card *card, struct virtqueue **vqs);
void vroce_rings_stop(struct vroce_card *card);
void vroce_rings_free(struct vroce_card *card);
void vroce_ring_any_interrupt(struct virtqueue *vq);
void vroce_ring_cq_interrupt(struct virtqueue *vq);
u32 vroce_config_length(struct virtio_device *vdev);

/* ---- ethernet.c ---- */

int vroce_ethernet_module_init(void);
void vroce_ethernet_module_exit(void);
/* Reports whether vdev is the Ethernet half of a card. */
bool vroce_is_ethernet(const struct virtio_device *vdev);
int vroce_ethernet_add(struct vroce_card *card);
void vroce_ethernet_remove(struct vroce_card *card);
void vroce_ethernet_break(struct vroce_card *card);
void vroce_ethernet_config_changed(struct vroce_card *card);
int vroce_ethernet_freeze(struct vroce_card *card);
int vroce_ethernet_restore(struct vroce_card *card);

/* ---- verbs.c ---- */

/* Registers the RDMA device beside netdev. Process context, the card runs (DRIVER_OK). */
int vroce_verbs_add(struct vroce_card *card, struct net_device *netdev);
/*
 * Unregisters the RDMA device and returns when no object of it is left. Process
 * context, without the RTNL lock. Does nothing if card->verbs is NULL. The device
 * may be broken.
 */
void vroce_verbs_remove(struct vroce_card *card);
/* The ring of completion queue number cq may have new completions. Hard interrupt context, or interrupts are off. */
void vroce_verbs_interrupt(struct vroce_card *card, u32 cq);
/*
 * The card is broken: calls the handlers of all completion queues, whose polls flush
 * the requests, and dispatches an event. Process context.
 */
void vroce_verbs_broken(struct vroce_card *card);
/* The card is reset, and writes to no memory any more. */
void vroce_verbs_after_reset(struct vroce_card *card);
/* The network interface's carrier came or went. Process context. */
void vroce_verbs_link_changed(struct vroce_card *card, bool up);

#endif
