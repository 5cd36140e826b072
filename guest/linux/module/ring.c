// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The rings of RDMA queues. The virtio core makes them and gives the device their
 * addresses; afterwards the owner of a queue runs its rings, not the core.
 *
 * The core calls the callback of a ring at an interrupt if the device's used
 * index differs from the core's own, which stays 0 here. So it misses the
 * interrupt at which the used index of a completion queue is 0. Two things cover
 * that. If all rings share an interrupt, the callback of the transmit ring of
 * queue pair 0, which the device never uses, is called at each interrupt, because
 * its used index is made 1. If each ring has an interrupt of its own, a work item
 * looks every 100 ms.
 */
#include <linux/io.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>
#include <linux/virtio_pci.h>

#include "vroce.h"

#define GUARD_INTERVAL (HZ / 10)

/* Calls the RDMA half for the completion queues whose callbacks the core does not call. */
static void cover_missed(struct vroce_card *card)
{
	u32 i;

	for (i = 0; i < card->max_cqs; i++)
		if (!READ_ONCE(card->cq[i].vr.used->idx))
			vroce_verbs_interrupt(card, i);
}

/* The callback of the transmit ring of queue pair 0, at each interrupt of the card if all rings share one. */
void vroce_ring_any_interrupt(struct virtqueue *vq)
{
	cover_missed(vq->vdev->priv);
}

/* The callback of a completion queue's ring. */
void vroce_ring_cq_interrupt(struct virtqueue *vq)
{
	struct vroce_card *card = vq->vdev->priv;

	vroce_verbs_interrupt(card, vq->index - card->first_cq_queue);
}

static void cover_periodically(struct work_struct *work)
{
	struct vroce_card *card = container_of(work, struct vroce_card, ring_guard.work);
	unsigned long flags;

	local_irq_save(flags);
	cover_missed(card);
	local_irq_restore(flags);
	schedule_delayed_work(&card->ring_guard, GUARD_INTERVAL);
}

/* Returns the position of a virtio capability in the configuration space of a PCI device, or 0. */
static int find_capability(struct pci_dev *pdev, u8 type)
{
	int at;
	u8 got;

	for (at = pci_find_capability(pdev, PCI_CAP_ID_VNDR); at > 0;
	     at = pci_find_next_capability(pdev, at, PCI_CAP_ID_VNDR)) {
		pci_read_config_byte(pdev, at + offsetof(struct virtio_pci_cap, cfg_type), &got);
		if (got == type)
			return at;
	}
	return 0;
}

/* Reads the region that a capability names. Returns false if it lies outside its BAR. */
static bool read_region(struct pci_dev *pdev, int at, struct vroce_region *region)
{
	u32 offset, length;
	u8 bar;

	pci_read_config_byte(pdev, at + offsetof(struct virtio_pci_cap, bar), &bar);
	pci_read_config_dword(pdev, at + offsetof(struct virtio_pci_cap, offset), &offset);
	pci_read_config_dword(pdev, at + offsetof(struct virtio_pci_cap, length), &length);
	if (bar >= PCI_STD_NUM_BARS || !(pci_resource_flags(pdev, bar) & IORESOURCE_MEM) ||
	    (u64)offset + length > pci_resource_len(pdev, bar))
		return false;
	region->start = pci_resource_start(pdev, bar) + offset;
	region->length = length;
	return true;
}

/* The octets of configuration space that a device has, or the most a field may need if only the transport knows. */
u32 vroce_config_length(struct virtio_device *vdev)
{
	struct vroce_region region;
	int at;

	if (!vdev->dev.parent || !dev_is_pci(vdev->dev.parent))
		return U32_MAX;
	at = find_capability(to_pci_dev(vdev->dev.parent), VIRTIO_PCI_CAP_DEVICE_CFG);
	if (!at || !read_region(to_pci_dev(vdev->dev.parent), at, &region))
		return 0;
	return region.length;
}

/* The registers of a PCI device that tell the doorbell and the interrupt of a ring. */
struct registers {
	u8 __iomem *common;
	struct vroce_region doors;
	u32 multiplier;
};

static bool map_registers(struct vroce_card *card, struct registers *r)
{
	struct device *parent = card->vdev->dev.parent;
	struct vroce_region common;
	struct pci_dev *pdev;
	int at, common_at;

	if (!parent || !dev_is_pci(parent))
		return false;
	pdev = to_pci_dev(parent);
	at = find_capability(pdev, VIRTIO_PCI_CAP_NOTIFY_CFG);
	common_at = find_capability(pdev, VIRTIO_PCI_CAP_COMMON_CFG);
	if (!at || !common_at || !read_region(pdev, at, &r->doors) || !read_region(pdev, common_at, &common) ||
	    common.length < sizeof(struct virtio_pci_common_cfg))
		return false;
	pci_read_config_dword(pdev, at + sizeof(struct virtio_pci_cap), &r->multiplier);
	r->common = ioremap(common.start, common.length);
	return r->common;
}

static u16 read_register(struct registers *r, struct vroce_ring *ring, size_t offset)
{
	iowrite16(ring->queue, r->common + offsetof(struct virtio_pci_common_cfg, queue_select));
	return ioread16(r->common + offset);
}

/* Returns where the doorbell of a ring is, or 0 if its page has more than doorbells, and programs must not map it. */
static phys_addr_t find_door(struct registers *r, struct vroce_ring *ring)
{
	phys_addr_t door = r->doors.start + (u64)r->multiplier *
			   read_register(r, ring, offsetof(struct virtio_pci_common_cfg, queue_notify_off));
	phys_addr_t page = door & PAGE_MASK;

	return page >= r->doors.start && page + PAGE_SIZE <= r->doors.start + r->doors.length ? door : 0;
}

static u16 read_vector(struct registers *r, struct vroce_ring *ring)
{
	return read_register(r, ring, offsetof(struct virtio_pci_common_cfg, queue_msix_vector));
}

/* Reads where the doorbells are, which only the PCI transport tells. Returns whether all rings share an interrupt. */
static bool read_registers(struct vroce_card *card)
{
	u32 count = card->max_cqs + 2 * card->max_qps, i;
	struct registers r;
	bool shared;

	if (!map_registers(card, &r))
		return true;
	for (i = 0; i < count; i++)
		card->rings[i].door = find_door(&r, &card->rings[i]);
	shared = read_vector(&r, &card->cq[0]) == read_vector(&r, vroce_send_ring(card, 0));
	iounmap(r.common);
	return shared;
}

static void init_ring(struct vroce_ring *ring, struct virtqueue *vq)
{
	ring->vq = vq;
	ring->vr = *virtqueue_get_vring(vq);
	ring->queue = vq->index;
	ring->interrupts = vq->callback;
	ring->mappable = IS_ALIGNED(ring->vr.num * sizeof(struct vring_desc), PAGE_SIZE) &&
			 PAGE_ALIGNED(ring->vr.desc) &&
			 (void *)ring->vr.avail == (void *)(ring->vr.desc + ring->vr.num);
}

/* Takes the virtqueues of the RDMA queues, in the order of their numbers. The device does not run yet. */
int vroce_rings_start(struct vroce_card *card, struct virtqueue **vqs)
{
	u32 count = card->max_cqs + 2 * card->max_qps, i;
	struct vroce_ring *rings = kvcalloc(count, sizeof(*rings), GFP_KERNEL);

	if (!rings)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		init_ring(&rings[i], vqs[i]);
	card->rings = rings;
	card->cq = rings;
	card->qp = rings + card->max_cqs;
	for (i = 0; i < count; i++)
		vroce_ring_reset(card, &rings[i]);
	WRITE_ONCE(vroce_send_ring(card, 0)->vr.used->idx, cpu_to_virtio16(card->vdev, 1));

	if (!read_registers(card))
		schedule_delayed_work(&card->ring_guard, GUARD_INTERVAL);
	return 0;
}

/* Ends the periodic look at the rings. */
void vroce_rings_stop(struct vroce_card *card)
{
	cancel_delayed_work_sync(&card->ring_guard);
}

/* Forgets the rings. No callback of them runs any more. */
void vroce_rings_free(struct vroce_card *card)
{
	kvfree(card->rings);
	card->rings = NULL;
	card->cq = NULL;
	card->qp = NULL;
}

void vroce_rings_init(struct vroce_card *card)
{
	INIT_DELAYED_WORK(&card->ring_guard, cover_periodically);
}

void vroce_ring_reset(struct vroce_card *card, struct vroce_ring *ring)
{
	struct virtio_device *vdev = card->vdev;
	bool quiet = !ring->interrupts;

	memset(ring->vr.desc, 0, ring->vr.num * sizeof(*ring->vr.desc));
	ring->vr.avail->flags = cpu_to_virtio16(vdev, quiet ? VRING_AVAIL_F_NO_INTERRUPT : 0);
	ring->vr.avail->idx = 0;
	ring->vr.used->flags = 0;
	ring->vr.used->idx = 0;
	if (card->event_idx) {
		/* Far from any index for half of the way round; the owner of a quiet ring moves it along. */
		vring_used_event(&ring->vr) = cpu_to_virtio16(vdev, quiet ? 0x8000 : 0);
		vring_avail_event(&ring->vr) = 0;
	}
	ring->avail_idx = 0;
	ring->last_used = 0;
}

void vroce_ring_kick(struct vroce_card *card, struct vroce_ring *ring, u16 old)
{
	struct virtio_device *vdev = card->vdev;
	bool wanted;

	/*
	 * The index is published before the device's wish is read. smp_mb is a locked
	 * instruction, and orders nothing if QEMU emulates a machine of one processor.
	 */
	mb();
	if (card->event_idx)
		wanted = vring_need_event(virtio16_to_cpu(vdev, READ_ONCE(vring_avail_event(&ring->vr))),
					  ring->avail_idx, old);
	else
		wanted = !(READ_ONCE(ring->vr.used->flags) & cpu_to_virtio16(vdev, VRING_USED_F_NO_NOTIFY));
	if (wanted)
		virtqueue_notify(ring->vq);
}
