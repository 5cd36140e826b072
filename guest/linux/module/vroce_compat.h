/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What differs between the kernels that the module is built for, 6.1 and later.
 */
#ifndef VROCE_COMPAT_H
#define VROCE_COMPAT_H

#include <linux/iommu.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#if __has_include(<rdma/iter.h>) /* ib_umem.h had its contents once, also in early releases of 6.1 */
#include <rdma/iter.h>
#endif
#include <rdma/ib_umem.h>
#include <rdma/uverbs_ioctl.h>

/* How virtio_find_vqs gets its queues: since 6.11 by one structure for each. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)

#define vroce_queue_info virtqueue_info

static inline int vroce_find_vqs(struct virtio_device *vdev, unsigned int count, struct virtqueue **vqs,
				 struct vroce_queue_info *info, struct irq_affinity *affinity)
{
	return virtio_find_vqs(vdev, count, vqs, info, affinity);
}

/* Defines the operation op, which calls find. */
#define VROCE_DEFINE_FIND_VQS(op, find) \
	static int op(struct virtio_device *vdev, unsigned int count, struct virtqueue *vqs[], \
			struct virtqueue_info info[], struct irq_affinity *affinity) \
	{ \
		return find(vdev, count, vqs, info, affinity); \
	}

#else

struct vroce_queue_info {
	const char *name;
	vq_callback_t *callback;
	bool ctx;
};

static inline int vroce_find_vqs(struct virtio_device *vdev, unsigned int count, struct virtqueue **vqs,
				 const struct vroce_queue_info *info, struct irq_affinity *affinity)
{
	vq_callback_t **callbacks = kvcalloc(count, sizeof(*callbacks), GFP_KERNEL);
	const char **names = kvcalloc(count, sizeof(*names), GFP_KERNEL);
	bool *ctx = kvcalloc(count, sizeof(*ctx), GFP_KERNEL);
	int err = -ENOMEM;
	unsigned int i;

	if (callbacks && names && ctx) {
		for (i = 0; i < count; i++) {
			callbacks[i] = info[i].callback;
			names[i] = info[i].name;
			ctx[i] = info[i].ctx;
		}
		err = virtio_find_vqs_ctx(vdev, count, vqs, callbacks, names, ctx, affinity);
	}
	kvfree(callbacks);
	kvfree(names);
	kvfree(ctx);
	return err;
}

#define VROCE_DEFINE_FIND_VQS(op, find) \
	static int op(struct virtio_device *vdev, unsigned int count, struct virtqueue *vqs[], \
			vq_callback_t *callbacks[], const char * const names[], const bool *ctx, \
			struct irq_affinity *affinity) \
	{ \
		struct vroce_queue_info *info = kvcalloc(count, sizeof(*info), GFP_KERNEL); \
		unsigned int i; \
		int err; \
		if (!info) \
			return -ENOMEM; \
		for (i = 0; i < count; i++) { \
			info[i].callback = callbacks[i]; \
			info[i].name = names[i]; \
			info[i].ctx = ctx && ctx[i]; \
		} \
		err = find(vdev, count, vqs, info, affinity); \
		kvfree(info); \
		return err; \
	}

#endif

static inline u64 vroce_features(const struct virtio_device *vdev)
{
	return vdev->features;
}

static inline void vroce_set_features(struct virtio_device *vdev, u64 features)
{
	vdev->features = features;
}

/* Since 6.11 create_cq gets the attributes of the call in place of the driver's part of them. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
#define VROCE_DEFINE_CREATE_CQ(op, create) \
	static int op(struct ib_cq *cq, const struct ib_cq_init_attr *attr, struct uverbs_attr_bundle *attrs) \
	{ \
		return attr->flags ? -EOPNOTSUPP : create(cq, attr->cqe, attrs ? &attrs->driver_udata : NULL); \
	}
#else
#define VROCE_DEFINE_CREATE_CQ(op, create) \
	static int op(struct ib_cq *cq, const struct ib_cq_init_attr *attr, struct ib_udata *udata) \
	{ \
		return attr->flags ? -EOPNOTSUPP : create(cq, attr->cqe, udata); \
	}
#endif

/* Since 6.17 a region may be registered with a handle of DMA hints, which the device does not have. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
#define VROCE_DEFINE_REG_USER_MR(op, reg) \
	static struct ib_mr *op(struct ib_pd *pd, u64 start, u64 length, u64 address, int access, \
				struct ib_dmah *dmah, struct ib_udata *udata) \
	{ \
		return dmah ? ERR_PTR(-EOPNOTSUPP) : reg(pd, start, length, address, access, udata); \
	}
#else
#define VROCE_DEFINE_REG_USER_MR(op, reg) \
	static struct ib_mr *op(struct ib_pd *pd, u64 start, u64 length, u64 address, int access, \
				struct ib_udata *udata) \
	{ \
		return reg(pd, start, length, address, access, udata); \
	}
#endif

/* Kernels after 7.0 may describe the pages of a program by more than an address; Kbuild looks. */
#ifdef VROCE_UMEM_GET_VA
#define ib_umem_get ib_umem_get_va
#endif

/* Reports whether the addresses of a device behind an IOMMU differ from physical ones. */
static inline bool vroce_iommu_translates(struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	return domain && domain->type != IOMMU_DOMAIN_IDENTITY;
}

#endif
