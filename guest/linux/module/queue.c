// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Queues: a ring with elements. The descriptors of a ring are written once, here,
 * and name elements only. A program that owns the queue never sees them, so
 * whatever it puts into its available ring, the device reads and writes nothing
 * but the elements of this queue.
 *
 * The device chooses the number of a queue pair, and with it the rings. A program
 * may still have a ring mapped after its queue pair is gone. vroce_ring.mapped
 * counts such mappings; a ring with one is given to no other queue.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "verbs.h"

static void free_elements(struct vroce_card *card, struct vroce_elements *elements)
{
	if (!elements->start)
		return;
	if (card && READ_ONCE(card->broken))
		vroce_orphan_elements(card, elements);
	else
		free_pages_exact(elements->start, elements->length);
	elements->start = NULL;
}

int vroce_queue_init(struct vroce_verbs *verbs, struct vroce_queue *q, struct vroce_ring *ring, u32 count, u32 size,
		     u32 head, bool to_driver)
{
	struct virtio_device *vdev = verbs->card->vdev;
	u16 flags = to_driver ? VRING_DESC_F_WRITE : 0;
	u32 i;

	if (!count || count > ring->vr.num)
		return -EINVAL;
	q->elements.length = PAGE_ALIGN(head + (size_t)count * size);
	q->elements.start = alloc_pages_exact(q->elements.length, GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN);
	if (!q->elements.start)
		return -ENOMEM;
	q->ring = ring;
	q->first = q->elements.start + head;
	q->count = count;
	q->size = size;
	q->next = 0;
	q->oldest = 0;
	atomic_set(&q->open, 0);
	spin_lock_init(&q->lock);
	vroce_ring_reset(verbs->card, ring);
	for (i = 0; i < ring->vr.num; i++) {
		struct vring_desc *d = &ring->vr.desc[i];

		d->addr = cpu_to_virtio64(vdev, virt_to_phys(vroce_element(q, i % count)));
		d->len = cpu_to_virtio32(vdev, size);
		d->flags = cpu_to_virtio16(vdev, flags);
	}
	return 0;
}

int vroce_queue_for_kernel(struct vroce_queue *q)
{
	q->wr_ids = kvcalloc(q->count, sizeof(*q->wr_ids), GFP_KERNEL);
	return q->wr_ids ? 0 : -ENOMEM;
}

/* ---- numbers, which the device chooses ---- */

static bool valid_cq(const struct vroce_card *card, u32 number)
{
	return number < card->max_cqs;
}

static bool mapped_cq(struct vroce_card *card, u32 number)
{
	return atomic_read(&card->cq[number].mapped);
}

static bool valid_qp(const struct vroce_card *card, u32 number)
{
	return number >= 1 && number < card->max_qps;
}

static bool mapped_qp(struct vroce_card *card, u32 number)
{
	return atomic_read(&vroce_send_ring(card, number)->mapped) || atomic_read(&vroce_recv_ring(card, number)->mapped);
}

const struct vroce_numbered vroce_numbered_cq = {
	.create = HW_CREATE_CQ, .destroy = HW_DESTROY_CQ, .res_size = sizeof(struct hw_handle),
	.beyond = "it made a completion queue beyond its limit", .valid = valid_cq, .mapped = mapped_cq,
};

const struct vroce_numbered vroce_numbered_qp = {
	.create = HW_CREATE_QP, .destroy = HW_DESTROY_QP, .res_size = sizeof(struct hw_handle),
	.beyond = "it made a queue pair beyond its limit", .valid = valid_qp, .mapped = mapped_qp,
};

const struct vroce_numbered vroce_numbered_srq = {
	.create = HW_CREATE_SRQ, .destroy = HW_DESTROY_SRQ, .res_size = sizeof(struct hw_create_srq_result),
	.beyond = "it made a queue pair beyond its limit", .valid = valid_qp, .mapped = mapped_qp,
};

int vroce_create_numbered(struct vroce_verbs *verbs, const struct vroce_numbered *kind, const void *req,
			  size_t req_size, u32 *number)
{
	struct vroce_card *card = verbs->card;
	u32 limit = max(card->max_cqs, card->max_qps), count = 0, *taken = NULL;
	__le32 res[2];
	int err;

	for (;;) {
		err = vroce_command(card, kind->create, req, req_size, NULL, 0, res, kind->res_size, false);
		if (err)
			break;
		*number = le32_to_cpu(res[0]);
		if (!kind->valid(card, *number)) {
			vroce_break(card, kind->beyond);
			err = -EIO;
			break;
		}
		if (!kind->mapped(card, *number))
			break;
		if (!taken)
			taken = kcalloc(limit, sizeof(*taken), GFP_KERNEL);
		if (!taken || count == limit) {
			vroce_destroy(verbs, kind->destroy, *number);
			err = -ENOMEM;
			break;
		}
		taken[count++] = *number;
	}
	while (count)
		vroce_destroy(verbs, kind->destroy, taken[--count]);
	kfree(taken);
	return err;
}

/* ---- mappings ---- */

static struct vroce_mapping *add_mapping(struct vroce_verbs *verbs, struct ib_ucontext *context, phys_addr_t start,
					 size_t length, u64 *offset)
{
	struct vroce_mapping *m = kzalloc(sizeof(*m), GFP_KERNEL);
	int err;

	if (!m)
		return ERR_PTR(-ENOMEM);
	m->card = verbs->card;
	m->start = start;
	m->length = length;
	err = rdma_user_mmap_entry_insert(context, &m->entry, length);
	if (err) {
		kfree(m);
		return ERR_PTR(err);
	}
	*offset = rdma_user_mmap_get_offset(&m->entry);
	return m;
}

int vroce_queue_map(struct vroce_verbs *verbs, struct vroce_queue *q, struct ib_ucontext *context,
		    struct vroce_ring_map *map)
{
	struct vroce_ring *ring = q->ring;
	void *start = ring->vr.avail;
	size_t length = PAGE_ALIGN((void *)&ring->vr.used->ring[ring->vr.num] + sizeof(u16) - start);
	struct vroce_mapping *m;

	if (!ring->mappable)
		return -EOPNOTSUPP;
	m = add_mapping(verbs, context, virt_to_phys(start), length, &map->ring_offset);
	if (IS_ERR(m))
		return PTR_ERR(m);
	m->ring = ring;
	atomic_inc(&ring->mapped);
	q->maps[0] = m;
	m = add_mapping(verbs, context, virt_to_phys(q->elements.start), q->elements.length, &map->elements_offset);
	if (IS_ERR(m))
		return PTR_ERR(m);
	m->elements = q->elements;
	q->elements.start = NULL; /* the mapping's from now on */
	q->maps[1] = m;
	map->door_offset = VROCE_NO_MAP;
	if (ring->door) {
		m = add_mapping(verbs, context, ring->door & PAGE_MASK, PAGE_SIZE, &map->door_offset);
		if (IS_ERR(m))
			return PTR_ERR(m);
		m->doorbell = true;
		q->maps[2] = m;
	}
	map->ring_length = length;
	map->elements_length = q->maps[1]->length;
	map->ring_size = ring->vr.num;
	map->elements = q->count;
	map->element_size = q->size;
	map->elements_at = q->first - (u8 *)q->maps[1]->elements.start;
	map->avail_at = 0;
	map->used_at = (void *)ring->vr.used - start;
	map->door_at = ring->door & ~PAGE_MASK;
	map->queue = ring->queue;
	return 0;
}

void vroce_queue_free(struct vroce_verbs *verbs, struct vroce_queue *q)
{
	unsigned int i;

	if (!q->ring)
		return;
	if (!READ_ONCE(verbs->card->broken))
		vroce_ring_reset(verbs->card, q->ring);
	for (i = 0; i < ARRAY_SIZE(q->maps); i++)
		if (q->maps[i])
			rdma_user_mmap_entry_remove(&q->maps[i]->entry);
	free_elements(verbs->card, &q->elements);
	kvfree(q->wr_ids);
	q->wr_ids = NULL;
	q->ring = NULL;
}

/* Called by the RDMA core when neither a queue nor a program has the mapping any more. */
void vroce_mmap_free(struct rdma_user_mmap_entry *entry)
{
	struct vroce_mapping *m = container_of(entry, struct vroce_mapping, entry);

	if (m->ring) {
		/* The program may have written the ring after its queue was gone; the next owner gets it empty. */
		if (!READ_ONCE(m->card->broken))
			vroce_ring_reset(m->card, m->ring);
		atomic_fetch_dec_release(&m->ring->mapped);
	}
	free_elements(m->card, &m->elements);
	kfree(m);
}

int vroce_mmap(struct ib_ucontext *context, struct vm_area_struct *vma)
{
	struct rdma_user_mmap_entry *entry = rdma_user_mmap_entry_get(context, vma);
	struct vroce_mapping *m;
	pgprot_t prot;
	int err;

	if (!entry)
		return -EINVAL;
	m = container_of(entry, struct vroce_mapping, entry);
	prot = m->doorbell ? pgprot_noncached(vma->vm_page_prot) : vma->vm_page_prot;
	err = rdma_user_mmap_io(context, vma, PHYS_PFN(m->start), m->length, prot, entry);
	rdma_user_mmap_entry_put(entry);
	return err;
}

void vroce_queue_add(struct vroce_verbs *verbs, struct vroce_queue *q, u16 element)
{
	struct vroce_ring *ring = q->ring;

	ring->vr.avail->ring[ring->avail_idx & (ring->vr.num - 1)] = cpu_to_virtio16(verbs->card->vdev, element);
	ring->avail_idx++;
}

void vroce_queue_publish(struct vroce_verbs *verbs, struct vroce_queue *q, u16 old)
{
	struct virtio_device *vdev = verbs->card->vdev;
	struct vroce_ring *ring = q->ring;

	if (verbs->card->event_idx && !ring->interrupts) /* beyond all that the device can use before the next time */
		vring_used_event(&ring->vr) = cpu_to_virtio16(vdev, ring->avail_idx + 0x4000);
	smp_store_release(&ring->vr.avail->idx, cpu_to_virtio16(vdev, ring->avail_idx));
	vroce_ring_kick(verbs->card, ring, old);
}

/* ---- memory of a device that does not answer ---- */

struct vroce_orphan {
	struct vroce_orphan *next;
	struct vroce_elements elements;
	struct ib_umem *umem;
};

static void add_orphan(struct vroce_card *card, struct vroce_elements *elements, struct ib_umem *umem)
{
	struct vroce_orphan *o = kzalloc(sizeof(*o), GFP_KERNEL);
	unsigned long flags;

	if (!o)
		return; /* leaked: better than memory that the device writes and others use */
	if (elements)
		o->elements = *elements;
	o->umem = umem;
	spin_lock_irqsave(&card->verbs_lock, flags);
	o->next = card->orphans;
	card->orphans = o;
	spin_unlock_irqrestore(&card->verbs_lock, flags);
}

void vroce_orphan_elements(struct vroce_card *card, struct vroce_elements *elements)
{
	add_orphan(card, elements, NULL);
}

void vroce_orphan_umem(struct vroce_card *card, struct ib_umem *umem)
{
	add_orphan(card, NULL, umem);
}

void vroce_free_orphans(struct vroce_card *card)
{
	struct vroce_orphan *o;

	while ((o = card->orphans)) {
		card->orphans = o->next;
		if (o->elements.start)
			free_pages_exact(o->elements.start, o->elements.length);
		if (o->umem)
			ib_umem_release(o->umem);
		kfree(o);
	}
}
