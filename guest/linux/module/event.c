// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Asynchronous events. With the extension ASYNC_EVQ a completion queue of the
 * module's own carries events in place of completions. Handlers of events may
 * sleep, so a work item delivers them.
 */
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "verbs.h"

#define EVENTS 64

struct vroce_events {
	struct vroce_verbs *verbs;
	u32 cqn;
	struct vroce_queue queue;
	struct work_struct work;
};

static void to_qp_handler(struct vroce_verbs *verbs, u32 number, enum ib_event_type type)
{
	struct ib_event event = { .device = &verbs->ib, .event = type };
	struct vroce_qp *qp;

	mutex_lock(&verbs->objects); /* the queue pair stays */
	qp = xa_load(&verbs->qps, number);
	if (qp && qp->ib.event_handler) {
		event.element.qp = &qp->ib;
		qp->ib.event_handler(&event, qp->ib.qp_context);
	}
	mutex_unlock(&verbs->objects);
}

static void to_cq_handler(struct vroce_verbs *verbs, u32 number)
{
	struct ib_event event = { .device = &verbs->ib, .event = IB_EVENT_CQ_ERR };
	struct vroce_cq *cq;

	mutex_lock(&verbs->objects);
	cq = number < verbs->card->max_cqs ? verbs->cqs[number] : NULL;
	if (cq && cq->ib.event_handler) {
		event.element.cq = &cq->ib;
		cq->ib.event_handler(&event, cq->ib.cq_context);
	}
	mutex_unlock(&verbs->objects);
}

static void to_srq_handler(struct vroce_verbs *verbs, u32 number, enum ib_event_type type)
{
	struct ib_event event = { .device = &verbs->ib, .event = type };
	struct vroce_srq *srq;

	mutex_lock(&verbs->objects);
	srq = xa_load(&verbs->srqs, number);
	if (srq && srq->ib.event_handler) {
		event.element.srq = &srq->ib;
		srq->ib.event_handler(&event, srq->ib.srq_context);
	}
	mutex_unlock(&verbs->objects);
}

static void deliver(struct vroce_verbs *verbs, u32 type, u32 object)
{
	struct ib_event event = { .device = &verbs->ib, .element.port_num = 1 };

	switch (type) {
	case HW_EVENT_CQ_ERR:
		return to_cq_handler(verbs, object);
	case HW_EVENT_QP_FATAL:
		return to_qp_handler(verbs, object, IB_EVENT_QP_FATAL);
	case HW_EVENT_QP_REQ_ERR:
		return to_qp_handler(verbs, object, IB_EVENT_QP_REQ_ERR);
	case HW_EVENT_QP_ACCESS_ERR:
		return to_qp_handler(verbs, object, IB_EVENT_QP_ACCESS_ERR);
	case HW_EVENT_COMM_EST:
		return to_qp_handler(verbs, object, IB_EVENT_COMM_EST);
	case HW_EVENT_SQ_DRAINED:
		return to_qp_handler(verbs, object, IB_EVENT_SQ_DRAINED);
	case HW_EVENT_LAST_WQE_REACHED:
		return to_qp_handler(verbs, object, IB_EVENT_QP_LAST_WQE_REACHED);
	case HW_EVENT_SRQ_ERR:
		return to_srq_handler(verbs, object, IB_EVENT_SRQ_ERR);
	case HW_EVENT_SRQ_LIMIT:
		return to_srq_handler(verbs, object, IB_EVENT_SRQ_LIMIT_REACHED);
	case HW_EVENT_DEVICE_FATAL:
		event.event = IB_EVENT_DEVICE_FATAL;
		return ib_dispatch_event(&event);
	default: /* the port's state follows the network interface; the rest means nothing to RoCE */
		return;
	}
}

static void work(struct work_struct *w)
{
	struct vroce_events *e = container_of(w, struct vroce_events, work);
	struct virtio_device *vdev = e->verbs->card->vdev;
	struct vroce_ring *ring = e->queue.ring;
	u16 used = virtio16_to_cpu(vdev, smp_load_acquire(&ring->vr.used->idx));
	u16 old = ring->avail_idx;

	if ((u16)(used - ring->last_used) > e->queue.count) {
		vroce_break(e->verbs->card, "it reported more events than it has buffers for");
		return;
	}
	while (ring->last_used != used) {
		u32 id = virtio32_to_cpu(vdev, ring->vr.used->ring[ring->last_used & (ring->vr.num - 1)].id);
		struct hw_event *event = vroce_element(&e->queue, id % e->queue.count);

		deliver(e->verbs, le32_to_cpu(event->type), le32_to_cpu(event->object));
		vroce_queue_add(e->verbs, &e->queue, id % e->queue.count);
		ring->last_used++;
	}
	if (ring->avail_idx != old)
		vroce_queue_publish(e->verbs, &e->queue, old);
}

void vroce_events_interrupt(struct vroce_verbs *verbs)
{
	struct vroce_events *e = verbs->events;
	struct vroce_ring *ring = e->queue.ring;

	if (virtio16_to_cpu(verbs->card->vdev, READ_ONCE(ring->vr.used->idx)) != READ_ONCE(ring->last_used))
		queue_work(system_wq, &e->work);
}

u32 vroce_events_cqn(const struct vroce_verbs *verbs)
{
	return verbs->events ? verbs->events->cqn : U32_MAX;
}

int vroce_events_start(struct vroce_verbs *verbs)
{
	struct hw_create_cq create = { .cqe = cpu_to_le32(EVENTS) };
	struct hw_set_evq set = {};
	struct vroce_events *e;
	int err, i;

	if (!(verbs->extensions & HW_CAP_ASYNC_EVQ))
		return 0;
	e = kzalloc(sizeof(*e), GFP_KERNEL);
	if (!e)
		return -ENOMEM;
	e->verbs = verbs;
	INIT_WORK(&e->work, work);
	err = vroce_create_numbered(verbs, &vroce_numbered_cq, &create, sizeof(create), &e->cqn);
	if (err)
		goto free;
	err = vroce_queue_init(verbs, &e->queue, &verbs->card->cq[e->cqn], EVENTS, 64, 0, true);
	if (err)
		goto destroy;
	for (i = 0; i < EVENTS; i++)
		vroce_queue_add(verbs, &e->queue, i);
	vroce_queue_publish(verbs, &e->queue, 0);
	set.cqn = cpu_to_le32(e->cqn);
	err = vroce_do(verbs, HW_SET_EVQ, &set, false);
	if (err)
		goto destroy;
	verbs->events = e;
	return 0;
destroy:
	vroce_destroy(verbs, HW_DESTROY_CQ, e->cqn);
	vroce_queue_free(verbs, &e->queue);
free:
	kfree(e);
	return err;
}

/* The module delivers no interrupt to verbs any more. */
void vroce_events_stop(struct vroce_verbs *verbs)
{
	struct vroce_events *e = verbs->events;

	if (!e)
		return;
	cancel_work_sync(&e->work);
	vroce_destroy(verbs, HW_DESTROY_CQ, e->cqn);
	vroce_queue_free(verbs, &e->queue);
	verbs->events = NULL;
	kfree(e);
}
