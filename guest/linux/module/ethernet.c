// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The Ethernet half of a card, as a virtio device of its own. The kernel's
 * virtio_net drives it as every other network device: with all its offloads,
 * queues and counters.
 *
 * The features of the card are final only when virtio_net has chosen those of its
 * half, and all virtqueues must exist before the card runs. So the card is set up
 * when virtio_net asks for its virtqueues, and reset when virtio_net resets its
 * device. The RDMA half lives in between.
 *
 * virtio_net gets the card's own receive and transmit queues. The control queue
 * serves both halves: virtio_net gets a ring in memory, whose commands are
 * executed when virtio_net kicks it.
 */
#include <linux/if_ether.h>
#include <linux/mutex.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <linux/wait_bit.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>

#include "vroce.h"
#include "vroce_compat.h"

#define SHADOW_ENTRIES   64
#define SHADOW_MAX_PARTS 32
#define SHADOW_MAX_BYTES (256 * 1024)

/* A feature of later versions of virtio-net. Its commands have class 6, which is also the class of RoCE commands. */
#define F_VQ_NOTF_COAL 52

/* The state of a card between two resets. */
enum state {
	STATE_RESET,   /* no virtqueues */
	STATE_SET_UP,  /* virtqueues, not running */
	STATE_RUNNING, /* DRIVER_OK */
};

struct vroce_ethernet {
	struct virtio_device vdev;      /* what virtio_net drives */
	struct vroce_card *card;
	u8 status;                      /* of vdev */
	enum state state;
	u32 pairs;                      /* receive and transmit queues of vdev */
	struct virtqueue **vqs;         /* all of the card */
	struct virtqueue *shadow;       /* the control queue that virtio_net sees */
	u16 shadow_avail;               /* next position of it to execute */

	spinlock_t netdev_lock;
	struct net_device *netdev;      /* virtio_net's, while it is registered */
	bool link_up;                   /* as last reported to the RDMA half */
	bool verbs_tried;               /* since DRIVER_OK; not again before the next */
	bool leaving;                   /* no RDMA half is added any more; under verbs_lock */
	struct mutex verbs_lock;        /* of adding and removing the RDMA half */
	struct work_struct verbs_work;
};

static const struct virtio_config_ops ethernet_ops;

/* How many Ethernet halves have memory. Its release is code of the module, which must stay until then. */
static atomic_t halves;

bool vroce_is_ethernet(const struct virtio_device *vdev)
{
	return vdev->config == &ethernet_ops;
}

static struct vroce_ethernet *to_ethernet(struct virtio_device *vdev)
{
	return container_of(vdev, struct vroce_ethernet, vdev);
}

/* ---- the RDMA half, which needs a running card and a network interface ---- */

/* Adds the RDMA half, or reports to it that the link came or went. */
static void add_verbs(struct vroce_ethernet *eth, struct net_device *netdev)
{
	struct vroce_card *card = eth->card;
	bool up = netif_running(netdev) && netif_carrier_ok(netdev) && !READ_ONCE(card->broken);
	int err;

	if (!card->verbs) {
		if (eth->verbs_tried)
			return;
		eth->verbs_tried = true;
		err = vroce_verbs_add(card, netdev);
		if (err)
			dev_err(&card->vdev->dev, "cannot make an RDMA device: error %d\n", err);
	} else if (up != eth->link_up) {
		vroce_verbs_link_changed(card, up);
	}
	eth->link_up = up;
}

static void update_verbs(struct work_struct *work)
{
	struct vroce_ethernet *eth = container_of(work, struct vroce_ethernet, verbs_work);
	struct vroce_card *card = eth->card;
	struct net_device *netdev;
	unsigned long flags;

	mutex_lock(&eth->verbs_lock);
	spin_lock_irqsave(&eth->netdev_lock, flags);
	netdev = READ_ONCE(eth->state) == STATE_RUNNING && !eth->leaving ? eth->netdev : NULL;
	if (netdev)
		dev_hold(netdev);
	spin_unlock_irqrestore(&eth->netdev_lock, flags);

	if (netdev) {
		add_verbs(eth, netdev);
		dev_put(netdev);
	} else {
		vroce_verbs_remove(card);
		eth->verbs_tried = false;
	}
	mutex_unlock(&eth->verbs_lock);
}

static int netdev_event(struct notifier_block *nb, unsigned long event, void *info)
{
	struct net_device *netdev = netdev_notifier_info_to_dev(info);
	struct vroce_ethernet *eth;
	unsigned long flags;

	if (!netdev->dev.parent || !is_virtio_device(netdev->dev.parent) ||
	    !vroce_is_ethernet(dev_to_virtio(netdev->dev.parent)))
		return NOTIFY_DONE;
	eth = to_ethernet(dev_to_virtio(netdev->dev.parent));
	switch (event) {
	case NETDEV_REGISTER:
	case NETDEV_UNREGISTER:
		spin_lock_irqsave(&eth->netdev_lock, flags);
		eth->netdev = event == NETDEV_REGISTER ? netdev : NULL;
		spin_unlock_irqrestore(&eth->netdev_lock, flags);
		fallthrough;
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		queue_work(system_long_wq, &eth->verbs_work);
	}
	return NOTIFY_DONE;
}

static struct notifier_block netdev_notifier = { .notifier_call = netdev_event };

int vroce_ethernet_module_init(void)
{
	return register_netdevice_notifier(&netdev_notifier);
}

void vroce_ethernet_module_exit(void)
{
	unregister_netdevice_notifier(&netdev_notifier);
	wait_var_event(&halves, !atomic_read(&halves));
}

/* ---- the control queue that virtio_net sees ---- */

/*
 * Collects the parts of a chain, those that the device reads and then those that
 * it writes. virtio_net has made the chain, so its addresses are memory of the
 * kernel. Returns false if the chain is not a command.
 */
static bool parse_chain(struct vroce_ethernet *eth, const struct vring *vr, u16 head,
			struct iov_part *parts, unsigned int *outs, unsigned int *ins)
{
	struct virtio_device *vdev = &eth->vdev;
	const struct vring_desc *table = vr->desc;
	unsigned int size = vr->num, i = head, steps = 0;
	size_t total = 0;

	*outs = 0;
	*ins = 0;
	for (;;) {
		u16 flags;

		if (i >= size || steps++ >= SHADOW_MAX_PARTS)
			return false;
		flags = virtio16_to_cpu(vdev, table[i].flags);
		if (flags & VRING_DESC_F_INDIRECT) {
			if (table != vr->desc)
				return false;
			size = virtio32_to_cpu(vdev, table[i].len) / sizeof(*table);
			table = phys_to_virt(virtio64_to_cpu(vdev, table[i].addr));
			i = 0;
			continue;
		}
		if (!(flags & VRING_DESC_F_WRITE) && *ins)
			return false;
		parts[*outs + *ins].start = phys_to_virt(virtio64_to_cpu(vdev, table[i].addr));
		parts[*outs + *ins].length = virtio32_to_cpu(vdev, table[i].len);
		total += parts[*outs + *ins].length;
		if (flags & VRING_DESC_F_WRITE)
			(*ins)++;
		else
			(*outs)++;
		if (!(flags & VRING_DESC_F_NEXT))
			break;
		i = virtio16_to_cpu(vdev, table[i].next);
	}
	return *outs && *ins && total <= SHADOW_MAX_BYTES;
}

/*
 * Executes what virtio_net has put into the shadow of the control queue. virtio_net spins until it is done, or has
 * a callback.
 */
static bool shadow_notify(struct virtqueue *vq)
{
	struct vroce_ethernet *eth = to_ethernet(vq->vdev);
	struct virtio_device *vdev = &eth->vdev;
	const struct vring *vr = virtqueue_get_vring(vq);
	struct iov_part parts[SHADOW_MAX_PARTS];
	unsigned int outs, ins;
	u16 used = virtio16_to_cpu(vdev, vr->used->idx);
	u32 written;

	while (eth->shadow_avail != virtio16_to_cpu(vdev, smp_load_acquire(&vr->avail->idx))) {
		u16 head = virtio16_to_cpu(vdev, vr->avail->ring[eth->shadow_avail % vr->num]);
		struct vring_used_elem *elem = &vr->used->ring[used % vr->num];

		written = 0;
		if (parse_chain(eth, vr, head, parts, &outs, &ins)) {
			written = vroce_control_forward(eth->card, parts, outs, parts + outs, ins);
			if (!written) {
				*(u8 *)parts[outs].start = VIRTIO_NET_ERR;
				written = 1;
			}
		}
		elem->id = cpu_to_virtio32(vdev, head);
		elem->len = cpu_to_virtio32(vdev, written);
		smp_store_release(&vr->used->idx, cpu_to_virtio16(vdev, ++used));
		eth->shadow_avail++;
		vring_avail_event(vr) = cpu_to_virtio16(vdev, eth->shadow_avail); /* kick at the next command, too */
		smp_mb();
	}
	if (vq->callback)
		vring_interrupt(0, vq);
	return true;
}

/* ---- the set-up of the card ---- */

/* Negotiates the card's features: what virtio_net has chosen for its half, and RoCE. */
static int negotiate(struct vroce_ethernet *eth)
{
	struct virtio_device *card = eth->card->vdev;
	int err;

	err = vroce_reset(eth->card);
	if (err)
		return err;
	virtio_add_status(card, VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER);
	vroce_set_features(card, vroce_features(&eth->vdev) | BIT_ULL(VROCE_F_ROCE));
	err = card->config->finalize_features(card);
	if (err)
		return err;
	virtio_add_status(card, VIRTIO_CONFIG_S_FEATURES_OK);
	if (!(card->config->get_status(card) & VIRTIO_CONFIG_S_FEATURES_OK)) {
		dev_err(&card->dev, "the card refuses the features %llx with RoCE\n", vroce_features(&eth->vdev));
		return -ENODEV;
	}
	return 0;
}

/* Gives the first count virtqueues of the card to another device, which lists them from then on. */
static void move_queues(struct vroce_ethernet *eth, struct virtio_device *from, struct virtio_device *to)
{
	u32 i;

	for (i = 0; i < 2 * eth->pairs; i++) {
		spin_lock(&from->vqs_list_lock);
		list_del(&eth->vqs[i]->list);
		spin_unlock(&from->vqs_list_lock);
		eth->vqs[i]->vdev = to;
		spin_lock(&to->vqs_list_lock);
		list_add_tail(&eth->vqs[i]->list, &to->vqs);
		spin_unlock(&to->vqs_list_lock);
	}
}

/* Describes the virtqueues of the RDMA half. */
static void describe_rdma(struct vroce_card *card, struct vroce_queue_info *info)
{
	u32 i;

	for (i = 0; i < card->max_cqs; i++)
		info[i] = (struct vroce_queue_info){ .name = "complete", .callback = vroce_ring_cq_interrupt };
	info += card->max_cqs;
	for (i = 0; i < card->max_qps; i++) {
		info[2 * i] = (struct vroce_queue_info){ .name = "send" };
		info[2 * i + 1] = (struct vroce_queue_info){ .name = "recv" };
	}
	info[0].callback = vroce_ring_any_interrupt;
}

static u32 queue_pairs(struct vroce_ethernet *eth)
{
	u64 multiqueue = BIT_ULL(VIRTIO_NET_F_MQ) | BIT_ULL(VIRTIO_NET_F_RSS);
	u16 pairs = 1;

	if (vroce_features(&eth->vdev) & multiqueue)
		virtio_cread(eth->card->vdev, struct virtio_net_config, max_virtqueue_pairs, &pairs);
	return pairs;
}

/* Makes all virtqueues of the card. info describes those of virtio_net; the control queue is the last of them. */
static int set_up(struct vroce_ethernet *eth, const struct vroce_queue_info *info, struct virtqueue **vqs,
		  struct irq_affinity *affinity)
{
	struct vroce_card *card = eth->card;
	u32 control = 2 * eth->pairs, total = control + 1 + card->max_cqs + 2 * card->max_qps;
	struct vroce_queue_info *all;
	int err;

	all = kvcalloc(total, sizeof(*all), GFP_KERNEL);
	eth->vqs = kvcalloc(total, sizeof(*eth->vqs), GFP_KERNEL);
	err = -ENOMEM;
	if (!all || !eth->vqs)
		goto free;
	memcpy(all, info, control * sizeof(*all));
	all[control] = (struct vroce_queue_info){ .name = "control", .callback = vroce_control_interrupt };
	describe_rdma(card, all + control + 1);
	card->first_cq_queue = control + 1;
	card->event_idx = vroce_features(&eth->vdev) & BIT_ULL(VIRTIO_RING_F_EVENT_IDX);
	card->broken = false;

	err = vroce_find_vqs(card->vdev, total, eth->vqs, all, affinity);
	if (err) {
		dev_err(&card->vdev->dev, "cannot make the %u virtqueues of the card: error %d\n", total, err);
		goto free;
	}
	err = vroce_rings_start(card, eth->vqs + control + 1);
	if (err)
		goto del;
	eth->shadow_avail = 0;
	eth->shadow = vring_create_virtqueue(control, SHADOW_ENTRIES, SMP_CACHE_BYTES, &eth->vdev, true, true, false,
					     shadow_notify, info[control].callback, info[control].name);
	err = -ENOMEM;
	if (!eth->shadow)
		goto stop;
	move_queues(eth, card->vdev, &eth->vdev);
	memcpy(vqs, eth->vqs, control * sizeof(*vqs));
	vqs[control] = eth->shadow;
	vroce_control_start(card, eth->vqs[control]);
	WRITE_ONCE(eth->state, STATE_SET_UP);
	kvfree(all);
	return 0;
stop:
	vroce_rings_stop(card);
del:
	card->vdev->config->del_vqs(card->vdev);
	vroce_rings_free(card);
free:
	kvfree(all);
	kvfree(eth->vqs);
	eth->vqs = NULL;
	return err;
}

static int ethernet_find(struct virtio_device *vdev, unsigned int count, struct virtqueue **vqs,
			 const struct vroce_queue_info *info, struct irq_affinity *affinity)
{
	struct vroce_ethernet *eth = to_ethernet(vdev);
	int err;

	if (!(vroce_features(vdev) & BIT_ULL(VIRTIO_NET_F_CTRL_VQ))) {
		dev_err(&vdev->dev, "RoCE needs a driver that uses the control queue\n");
		return -EINVAL;
	}
	eth->pairs = queue_pairs(eth);
	if (count != 2 * eth->pairs + 1) {
		dev_err(&vdev->dev, "the driver wants %u queues of a card with %u pairs\n", count, eth->pairs);
		return -EINVAL;
	}
	err = negotiate(eth);
	if (!err)
		err = set_up(eth, info, vqs, affinity);
	return err;
}

static void ethernet_del_vqs(struct virtio_device *vdev)
{
	struct vroce_ethernet *eth = to_ethernet(vdev);

	if (!eth->vqs)
		return;
	move_queues(eth, vdev, eth->card->vdev);
	vring_del_virtqueue(eth->shadow);
	eth->shadow = NULL;
	eth->card->vdev->config->del_vqs(eth->card->vdev);
	vroce_rings_free(eth->card);
	kvfree(eth->vqs);
	eth->vqs = NULL;
}

static void ethernet_reset(struct virtio_device *vdev)
{
	struct vroce_ethernet *eth = to_ethernet(vdev);
	struct vroce_card *card = eth->card;

	eth->status = 0;
	if (READ_ONCE(eth->state) == STATE_RESET)
		return;
	mutex_lock(&eth->verbs_lock);
	WRITE_ONCE(eth->state, STATE_RESET);
	vroce_verbs_remove(card);
	eth->verbs_tried = false;
	mutex_unlock(&eth->verbs_lock);
	vroce_reset(card);
	vroce_verbs_after_reset(card);
	vroce_control_stop(card);
	vroce_rings_stop(card);
}

/* ---- the other operations of the device that virtio_net drives ---- */

static void ethernet_get(struct virtio_device *vdev, unsigned int offset, void *buf, unsigned int len)
{
	struct virtio_device *card = to_ethernet(vdev)->card->vdev;

	card->config->get(card, offset, buf, len);
}

static void ethernet_set(struct virtio_device *vdev, unsigned int offset, const void *buf, unsigned int len)
{
	struct virtio_device *card = to_ethernet(vdev)->card->vdev;

	card->config->set(card, offset, buf, len);
}

static u32 ethernet_generation(struct virtio_device *vdev)
{
	struct virtio_device *card = to_ethernet(vdev)->card->vdev;

	return card->config->generation ? card->config->generation(card) : 0;
}

static u8 ethernet_get_status(struct virtio_device *vdev)
{
	return to_ethernet(vdev)->status;
}

static void ethernet_set_status(struct virtio_device *vdev, u8 status)
{
	struct vroce_ethernet *eth = to_ethernet(vdev);

	eth->status = status;
	if (!(status & VIRTIO_CONFIG_S_DRIVER_OK) || READ_ONCE(eth->state) != STATE_SET_UP)
		return;
	virtio_device_ready(eth->card->vdev);
	WRITE_ONCE(eth->state, STATE_RUNNING);
	queue_work(system_long_wq, &eth->verbs_work);
}

/*
 * The features of the card without those of its RoCE half. RDMA queues are split rings with doorbells of 16 bits,
 * so virtio_net, which chooses for all rings, gets no other feature of rings than these.
 */
static u64 ethernet_get_features(struct virtio_device *vdev)
{
	const u64 transport = GENMASK_ULL(49, 24);
	const u64 known = BIT_ULL(VIRTIO_RING_F_INDIRECT_DESC) | BIT_ULL(VIRTIO_RING_F_EVENT_IDX) |
			  BIT_ULL(VIRTIO_F_VERSION_1) | BIT_ULL(VIRTIO_F_ORDER_PLATFORM);
	const u64 roce = BIT_ULL(VROCE_F_ROCE) | BIT_ULL(F_VQ_NOTF_COAL);
	struct virtio_device *card = to_ethernet(vdev)->card->vdev;

	return card->config->get_features(card) & ~(transport & ~known) & ~roce;
}

static int ethernet_finalize_features(struct virtio_device *vdev)
{
	vring_transport_features(vdev);
	return 0;
}

static const char *ethernet_bus_name(struct virtio_device *vdev)
{
	return virtio_bus_name(to_ethernet(vdev)->card->vdev);
}

static void ethernet_synchronize_cbs(struct virtio_device *vdev)
{
	virtio_synchronize_cbs(to_ethernet(vdev)->card->vdev);
}

VROCE_DEFINE_FIND_VQS(ethernet_find_vqs, ethernet_find)

static const struct virtio_config_ops ethernet_ops = {
	.get = ethernet_get,
	.set = ethernet_set,
	.generation = ethernet_generation,
	.get_status = ethernet_get_status,
	.set_status = ethernet_set_status,
	.reset = ethernet_reset,
	.find_vqs = ethernet_find_vqs,
	.del_vqs = ethernet_del_vqs,
	.synchronize_cbs = ethernet_synchronize_cbs,
	.get_features = ethernet_get_features,
	.finalize_features = ethernet_finalize_features,
	.bus_name = ethernet_bus_name,
};

static void ethernet_release(struct device *dev)
{
	kfree(to_ethernet(dev_to_virtio(dev)));
	if (atomic_dec_and_test(&halves))
		wake_up_var(&halves);
}

int vroce_ethernet_add(struct vroce_card *card)
{
	struct vroce_ethernet *eth = kzalloc(sizeof(*eth), GFP_KERNEL);
	int err;

	if (!eth)
		return -ENOMEM;
	eth->card = card;
	eth->vdev.dev.parent = &card->vdev->dev;
	eth->vdev.dev.release = ethernet_release;
	eth->vdev.id = card->vdev->id;
	eth->vdev.config = &ethernet_ops;
	spin_lock_init(&eth->netdev_lock);
	mutex_init(&eth->verbs_lock);
	INIT_WORK(&eth->verbs_work, update_verbs);
	card->ethernet = eth;
	atomic_inc(&halves);
	err = register_virtio_device(&eth->vdev);
	if (err) {
		card->ethernet = NULL;
		put_device(&eth->vdev.dev);
	}
	return err;
}

void vroce_ethernet_remove(struct vroce_card *card)
{
	struct vroce_ethernet *eth = card->ethernet;

	/* First, while the network interface is up: users of the RDMA half end their connections in order. */
	mutex_lock(&eth->verbs_lock);
	eth->leaving = true;
	vroce_verbs_remove(card);
	mutex_unlock(&eth->verbs_lock);
	get_device(&eth->vdev.dev);
	unregister_virtio_device(&eth->vdev); /* virtio_net resets it */
	cancel_work_sync(&eth->verbs_work);
	card->ethernet = NULL;
	put_device(&eth->vdev.dev);
}

void vroce_ethernet_break(struct vroce_card *card)
{
	if (card->ethernet)
		virtio_break_device(&card->ethernet->vdev);
}

void vroce_ethernet_config_changed(struct vroce_card *card)
{
	if (card->ethernet)
		virtio_config_changed(&card->ethernet->vdev);
}

#ifdef CONFIG_PM_SLEEP
int vroce_ethernet_freeze(struct vroce_card *card)
{
	return virtio_device_freeze(&card->ethernet->vdev);
}

int vroce_ethernet_restore(struct vroce_card *card)
{
	return virtio_device_restore(&card->ethernet->vdev);
}
#endif
