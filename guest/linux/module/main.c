// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * virtio_roce: the driver of virtio network cards with a RoCE half, by the
 * virtio-net RoCE RFC.
 *
 * The kernel's virtio_net accepts such a card, too, and leaves the RoCE half
 * alone. It is often loaded first, from the initramfs. So this module takes each
 * card over when it finds it, once: a card that an administrator binds to
 * virtio_net afterwards stays there. All other network devices are virtio_net's.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_net.h>

#include "vroce.h"

/* Features of later versions of virtio-net that share numbers with RoCE: a device that offers one means those. */
#define F_HASH_TUNNEL 51
#define F_NOTF_COAL   53
#define F_HOST_USO    56

/* The fields of the RoCE half in the configuration space. */
#define CONFIG_MAX_QPS 24
#define CONFIG_MAX_CQS 28
#define CONFIG_LENGTH  32
#define MAX_QUEUES     16384

/* What the status reads as if the device is gone. No device has this status. */
#define STATUS_GONE 0xff

static struct virtio_driver driver;

static bool is_gone(struct virtio_device *vdev)
{
	return vdev->config->get_status(vdev) == STATUS_GONE;
}

/* Makes all waiting and all later requests to the card fail. Returns false if requests fail already. */
static bool end_use(struct vroce_card *card)
{
	if (xchg(&card->broken, true))
		return false;
	virtio_break_device(card->vdev);
	vroce_control_break(card);
	vroce_ethernet_break(card);
	schedule_work(&card->broken_work);
	return true;
}

void vroce_break(struct vroce_card *card, const char *why)
{
	struct device *dev = &card->vdev->dev;

	if (end_use(card))
		dev_err(dev,
			"the card works no more: %s. fix: cd /sys/bus/virtio/drivers/%s && echo %s | tee unbind bind\n",
			why, driver.driver.name, dev_name(dev));
}

int vroce_reset(struct vroce_card *card)
{
	if (!is_gone(card->vdev)) {
		virtio_reset_device(card->vdev);
		return 0;
	}
	/* The core would wait until the status is 0, for ever. */
	virtio_synchronize_cbs(card->vdev);
	return -ENODEV;
}

static void report_broken(struct work_struct *work)
{
	vroce_verbs_broken(container_of(work, struct vroce_card, broken_work));
}

static u32 read_config(struct virtio_device *vdev, unsigned int offset)
{
	__le32 v;

	vdev->config->get(vdev, offset, &v, sizeof(v));
	return le32_to_cpu(v);
}

/* Reports whether vdev is a network device with a RoCE half that this module can drive. */
static bool is_card(struct virtio_device *vdev)
{
	u64 others = BIT_ULL(F_HASH_TUNNEL) | BIT_ULL(F_NOTF_COAL) | BIT_ULL(F_HOST_USO);
	u64 needed = BIT_ULL(VROCE_F_ROCE) | BIT_ULL(VIRTIO_NET_F_CTRL_VQ) | BIT_ULL(VIRTIO_F_VERSION_1);
	u64 offered;
	u32 qps, cqs;

	if (vdev->id.device != VIRTIO_ID_NET)
		return false;
	offered = vdev->config->get_features(vdev);
	if ((offered & needed) != needed || offered & others || vroce_config_length(vdev) < CONFIG_LENGTH)
		return false;
	if (offered & BIT_ULL(VIRTIO_F_ACCESS_PLATFORM)) {
		dev_notice(&vdev->dev,
			   "no RDMA: the card uses addresses of an IOMMU, which its RoCE half cannot. fix: iommu_platform=off\n");
		return false;
	}
	qps = read_config(vdev, CONFIG_MAX_QPS);
	cqs = read_config(vdev, CONFIG_MAX_CQS);
	return qps >= 1 && qps <= MAX_QUEUES && cqs >= 1 && cqs <= MAX_QUEUES;
}

static void config_changed_later(struct work_struct *work)
{
	struct vroce_card *card = container_of(work, struct vroce_card, config_work);

	if (card->vdev->config->get_status(card->vdev) & VIRTIO_CONFIG_S_NEEDS_RESET)
		vroce_break(card, "the device needs a reset");
}

static int probe(struct virtio_device *vdev)
{
	struct vroce_card *card;
	int err;

	if (!is_card(vdev))
		return -ENODEV;
	card = kzalloc(sizeof(*card), GFP_KERNEL);
	if (!card)
		return -ENOMEM;
	card->vdev = vdev;
	card->max_qps = read_config(vdev, CONFIG_MAX_QPS);
	card->max_cqs = read_config(vdev, CONFIG_MAX_CQS);
	spin_lock_init(&card->verbs_lock);
	vroce_rings_init(card);
	INIT_WORK(&card->config_work, config_changed_later);
	INIT_WORK(&card->broken_work, report_broken);
	vdev->priv = card;
	err = vroce_control_init(card);
	if (err)
		goto free;
	err = vroce_ethernet_add(card);
	if (err)
		goto free_control;
	return 0;
free_control:
	kfree(card->control);
free:
	vdev->priv = NULL;
	kfree(card);
	return err;
}

static void remove(struct virtio_device *vdev)
{
	struct vroce_card *card = vdev->priv;

	cancel_work_sync(&card->config_work);
	if (is_gone(vdev))
		end_use(card);
	vroce_ethernet_remove(card);
	cancel_work_sync(&card->broken_work);
	vroce_reset(card);
	vdev->priv = NULL;
	kfree(card->control);
	kfree(card);
}

static void config_changed(struct virtio_device *vdev)
{
	struct vroce_card *card = vdev->priv;

	vroce_ethernet_config_changed(card);
	schedule_work(&card->config_work);
}

#ifdef CONFIG_PM_SLEEP
static int freeze(struct virtio_device *vdev)
{
	return vroce_ethernet_freeze(vdev->priv);
}

static int restore(struct virtio_device *vdev)
{
	return vroce_ethernet_restore(vdev->priv);
}
#endif

static const struct virtio_device_id id_table[] = {
	{ VIRTIO_ID_NET, VIRTIO_DEV_ANY_ID },
	{ 0 },
};

static const unsigned int feature_table[] = { VIRTIO_NET_F_CTRL_VQ, VROCE_F_ROCE };

static struct virtio_driver driver = {
	.driver.name = KBUILD_MODNAME,
	.driver.owner = THIS_MODULE,
	.id_table = id_table,
	.feature_table = feature_table,
	.feature_table_size = ARRAY_SIZE(feature_table),
	.probe = probe,
	.remove = remove,
	.config_changed = config_changed,
#ifdef CONFIG_PM_SLEEP
	.freeze = freeze,
	.restore = restore,
#endif
};

/* ---- taking over and giving back ---- */

/* A network device that may be taken over, by a work item when it has a driver. */
struct candidate {
	struct list_head list;
	struct work_struct work;
	struct device *dev;
};

static struct workqueue_struct *takeovers;
static LIST_HEAD(candidates);
static DEFINE_MUTEX(candidates_lock); /* held to read registers of a candidate, which exist while it is listed */

static void take_over(struct work_struct *work)
{
	struct candidate *c = container_of(work, struct candidate, work);
	struct device *dev = c->dev;
	bool wanted;

	mutex_lock(&candidates_lock);
	wanted = !list_empty(&c->list) && dev->driver != &driver.driver && is_card(dev_to_virtio(dev));
	list_del(&c->list);
	mutex_unlock(&candidates_lock);
	if (wanted) {
		device_release_driver(dev);
		if (device_driver_attach(&driver.driver, dev) && dev->driver != &driver.driver)
			dev_err(dev, "cannot take the card over. fix: echo %s >/sys/bus/virtio/drivers/%s/bind\n",
				dev_name(dev), driver.driver.name);
	}
	put_device(dev);
	kfree(c);
}

static bool may_be_card(struct device *dev)
{
	struct virtio_device *vdev = dev_to_virtio(dev);

	return vdev->id.device == VIRTIO_ID_NET && !vroce_is_ethernet(vdev);
}

static int add_candidate(struct device *dev, void *unused)
{
	struct candidate *c;

	if (!may_be_card(dev))
		return 0;
	c = kzalloc(sizeof(*c), GFP_KERNEL);
	if (!c)
		return -ENOMEM;
	INIT_WORK(&c->work, take_over);
	c->dev = get_device(dev);
	mutex_lock(&candidates_lock);
	list_add(&c->list, &candidates);
	if (dev->driver)
		queue_work(takeovers, &c->work);
	mutex_unlock(&candidates_lock);
	return 0;
}

/* Takes a device over if it is a candidate. dev is NULL for all candidates; they are only dropped if they go away. */
static void decide(struct device *dev, bool goes_away)
{
	struct candidate *c, *next;

	mutex_lock(&candidates_lock);
	list_for_each_entry_safe(c, next, &candidates, list) {
		if (dev && c->dev != dev)
			continue;
		if (goes_away)
			list_del_init(&c->list);
		queue_work(takeovers, &c->work);
	}
	mutex_unlock(&candidates_lock);
}

static int bus_event(struct notifier_block *nb, unsigned long event, void *dev)
{
	if (!may_be_card(dev))
		return NOTIFY_DONE;
	switch (event) {
	case BUS_NOTIFY_ADD_DEVICE:
		add_candidate(dev, NULL);
		break;
	case BUS_NOTIFY_BOUND_DRIVER:
		decide(dev, false);
		break;
	case BUS_NOTIFY_DEL_DEVICE:
		decide(dev, true);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block bus_notifier = { .notifier_call = bus_event };

/* The cards that the module drives, at its end. */
struct held {
	struct held *next;
	struct device *dev;
};

static int hold(struct device *dev, void *list)
{
	struct held **first = list, *h = kzalloc(sizeof(*h), GFP_KERNEL);

	if (!h)
		return 0; /* the card then needs a bind by hand */
	h->dev = get_device(dev);
	h->next = *first;
	*first = h;
	return 0;
}

static int __init virtio_roce_init(void)
{
	const struct bus_type *bus;
	int err;

	takeovers = alloc_ordered_workqueue("virtio_roce", 0);
	if (!takeovers)
		return -ENOMEM;
	err = vroce_ethernet_module_init();
	if (err)
		goto destroy;
	err = register_virtio_driver(&driver);
	if (err)
		goto exit_ethernet;
	bus = driver.driver.bus;
	err = bus_register_notifier((struct bus_type *)bus, &bus_notifier);
	if (err)
		goto unregister;
	bus_for_each_dev((struct bus_type *)bus, NULL, NULL, add_candidate);
	flush_workqueue(takeovers);
	return 0;
unregister:
	unregister_virtio_driver(&driver);
exit_ethernet:
	vroce_ethernet_module_exit();
destroy:
	destroy_workqueue(takeovers);
	return err;
}

static void __exit virtio_roce_exit(void)
{
	struct held *cards = NULL, *h;

	bus_unregister_notifier((struct bus_type *)driver.driver.bus, &bus_notifier);
	decide(NULL, true);
	destroy_workqueue(takeovers);
	if (driver_for_each_device(&driver.driver, NULL, &cards, hold))
		pr_err("cannot list the cards to give back\n");
	unregister_virtio_driver(&driver);
	vroce_ethernet_module_exit();
	while ((h = cards)) {
		cards = h->next;
		if (device_attach(h->dev) < 0)
			dev_err(h->dev, "cannot give the card back to virtio_net\n");
		put_device(h->dev);
		kfree(h);
	}
}

module_init(virtio_roce_init);
module_exit(virtio_roce_exit);

MODULE_DEVICE_TABLE(virtio, id_table);
MODULE_DESCRIPTION("RDMA for virtio network cards with a RoCE half");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_SOFTDEP("pre: virtio_net");
