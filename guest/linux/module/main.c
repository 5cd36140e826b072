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

void vroce_break(struct vroce_card *card, const char *why)
{
	if (xchg(&card->broken, true))
		return;
	dev_err(&card->vdev->dev,
		"the card works no more: %s. fix: unload and load virtio_roce, or restart the machine\n", why);
	virtio_break_device(card->vdev);
	vroce_ethernet_break(card);
	schedule_work(&card->broken_work);
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

	vroce_ethernet_remove(card);
	cancel_work_sync(&card->config_work);
	cancel_work_sync(&card->broken_work);
	virtio_reset_device(vdev);
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

struct takeover {
	struct work_struct work;
	struct device *dev;
};

static struct workqueue_struct *takeovers;

static void take_over(struct work_struct *work)
{
	struct takeover *t = container_of(work, struct takeover, work);

	if (t->dev->driver != &driver.driver && is_card(dev_to_virtio(t->dev))) {
		device_release_driver(t->dev);
		if (device_driver_attach(&driver.driver, t->dev))
			dev_err(t->dev, "cannot take the card over. fix: echo %s >/sys/bus/virtio/drivers/%s/bind\n",
				dev_name(t->dev), driver.driver.name);
	}
	put_device(t->dev);
	kfree(t);
}

static int take_over_later(struct device *dev, void *unused)
{
	struct takeover *t;

	if (dev_to_virtio(dev)->id.device != VIRTIO_ID_NET)
		return 0;
	t = kzalloc(sizeof(*t), GFP_KERNEL);
	if (!t)
		return -ENOMEM;
	INIT_WORK(&t->work, take_over);
	t->dev = get_device(dev);
	queue_work(takeovers, &t->work);
	return 0;
}

static int bus_event(struct notifier_block *nb, unsigned long event, void *dev)
{
	if (event == BUS_NOTIFY_ADD_DEVICE)
		take_over_later(dev, NULL);
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
	bus_for_each_dev((struct bus_type *)bus, NULL, NULL, take_over_later);
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
