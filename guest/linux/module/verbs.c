// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The RoCE half of a card as a device of the kernel's RDMA core: registration,
 * the port with its addresses, protection domains and address handles.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <net/addrconf.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>

#include "verbs.h"
#include "vroce_compat.h"

/* What the module uses of the extensions that a device may have. */
#define EXTENSIONS (HW_CAP_ATOMIC | HW_CAP_MEM_MGT | HW_CAP_SRQ | HW_CAP_ASYNC_EVQ | HW_CAP_ERRNO_ACK | \
		    HW_CAP_SG_WQE | HW_CAP_ARM_DOORBELL | HW_CAP_ATOMIC_WRITE | HW_CAP_MCAST | HW_CAP_PORT_ATTR)

/* IB_DEVICE_ATOMIC_WRITE, which early kernels do not have: programs may use it, the kernel does not. */
#define DEVICE_ATOMIC_WRITE BIT_ULL(40)

int vroce_destroy(struct vroce_verbs *verbs, u8 command, u32 handle)
{
	struct hw_handle req = { .handle = cpu_to_le32(handle) };
	int err = vroce_do(verbs, command, &req, false);

	if (!err || READ_ONCE(verbs->card->broken))
		return 0;
	if (err == -EBUSY || (err == -EINVAL && !verbs->card->errno_acks))
		return -EBUSY;
	vroce_break(verbs->card, "it refused to destroy an object");
	return 0;
}

struct ib_ucontext *vroce_context_of(struct ib_udata *udata)
{
	return &rdma_udata_to_drv_context(udata, struct vroce_context, ib)->ib;
}

/* ---- the device ---- */

static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib);
	struct hw_query_device *l = &verbs->limits;

	memset(attr, 0, sizeof(*attr));
	attr->sys_image_guid = ib->node_guid;
	attr->vendor_id = 0x1af4; /* virtio's */
	attr->vendor_part_id = verbs->card->vdev->id.device;
	attr->hw_ver = le32_to_cpu(l->hw_ver);
	attr->max_mr_size = le64_to_cpu(l->max_mr_size);
	attr->page_size_cap = le64_to_cpu(l->page_size_cap);
	attr->device_cap_flags = IB_DEVICE_RC_RNR_NAK_GEN;
	attr->max_qp = verbs->card->max_qps - 1;
	attr->max_qp_wr = le32_to_cpu(l->max_qp_wr);
	attr->max_send_sge = le32_to_cpu(l->max_send_sge);
	attr->max_recv_sge = le32_to_cpu(l->max_recv_sge);
	attr->max_sge_rd = le32_to_cpu(l->max_sge_rd);
	attr->max_cq = verbs->card->max_cqs;
	attr->max_cqe = le32_to_cpu(l->max_cqe);
	attr->max_mr = le32_to_cpu(l->max_mr);
	attr->max_pd = le32_to_cpu(l->max_pd);
	attr->max_qp_rd_atom = le32_to_cpu(l->max_qp_rd_atom);
	attr->max_qp_init_rd_atom = le32_to_cpu(l->max_qp_init_rd_atom);
	attr->max_res_rd_atom = attr->max_qp_rd_atom * attr->max_qp;
	attr->max_ah = le32_to_cpu(l->max_ah);
	attr->local_ca_ack_delay = l->local_ca_ack_delay;
	attr->max_pkeys = 1;
	attr->max_sgl_rd = attr->max_sge_rd;
	if (verbs->extensions & HW_CAP_ATOMIC)
		attr->atomic_cap = IB_ATOMIC_HCA;
	if (verbs->extensions & HW_CAP_ATOMIC_WRITE)
		attr->device_cap_flags |= DEVICE_ATOMIC_WRITE;
	if (verbs->extensions & HW_CAP_MEM_MGT) {
		attr->device_cap_flags |= IB_DEVICE_MEM_MGT_EXTENSIONS;
		attr->max_fast_reg_page_list_len = le32_to_cpu(l->max_fast_reg_pages);
	}
	if (verbs->extensions & HW_CAP_SRQ) {
		attr->max_srq = le32_to_cpu(l->max_srq);
		attr->max_srq_wr = le32_to_cpu(l->max_srq_wr);
		attr->max_srq_sge = le32_to_cpu(l->max_srq_sge);
	}
	if (verbs->extensions & HW_CAP_MCAST) {
		attr->max_mcast_grp = le32_to_cpu(l->max_mcast_grp);
		attr->max_mcast_qp_attach = le32_to_cpu(l->max_mcast_qp_attach);
		attr->max_total_mcast_qp_attach = le32_to_cpu(l->max_total_mcast_qp_attach);
	}
	return 0;
}

static int query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	struct vroce_verbs *verbs = to_verbs(ib);
	struct net_device *netdev = verbs->netdev;
	bool up = netif_running(netdev) && netif_carrier_ok(netdev) && !READ_ONCE(verbs->card->broken);

	attr->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = iboe_get_mtu(READ_ONCE(netdev->mtu));
	attr->gid_tbl_len = verbs->gid_table_length;
	attr->ip_gids = 1;
	attr->port_cap_flags = IB_PORT_CM_SUP;
	attr->max_msg_sz = verbs->max_message;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 1;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_QDR;
	return 0;
}

static int get_port_immutable(struct ib_device *ib, u32 port, struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	immutable->gid_tbl_len = to_verbs(ib)->gid_table_length;
	immutable->pkey_tbl_len = 1;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *ib, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

static int add_gid(const struct ib_gid_attr *attr, void **context)
{
	struct hw_add_gid req = { .index = cpu_to_le16(attr->index) };

	memcpy(req.gid, attr->gid.raw, sizeof(req.gid));
	return vroce_do(to_verbs(attr->device), HW_ADD_GID, &req, false);
}

static int del_gid(const struct ib_gid_attr *attr, void **context)
{
	struct hw_del_gid req = { .index = cpu_to_le16(attr->index) };
	struct vroce_verbs *verbs = to_verbs(attr->device);
	int err = vroce_do(verbs, HW_DEL_GID, &req, false);

	return READ_ONCE(verbs->card->broken) ? 0 : err;
}

static int alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(context->device);
	struct vroce_context_resp resp = {
		.extensions = verbs->extensions,
		.flags = verbs->card->event_idx ? VROCE_CONTEXT_EVENT_IDX : 0,
		.max_inline = verbs->extensions & HW_CAP_SG_WQE ? le32_to_cpu(verbs->limits.max_inline) : HW_INLINE,
		.max_send_sge = le32_to_cpu(verbs->limits.max_send_sge),
		.max_recv_sge = le32_to_cpu(verbs->limits.max_recv_sge),
	};

	return ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen));
}

static void dealloc_ucontext(struct ib_ucontext *context) {}

/* The core takes all mappings from the programs. */
static void disassociate_ucontext(struct ib_ucontext *context) {}

static int alloc_pd(struct ib_pd *ib, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_pd_resp resp = {};
	struct hw_handle res;
	int err = vroce_command(verbs->card, HW_CREATE_PD, NULL, 0, NULL, 0, &res, sizeof(res), false);

	if (err)
		return err;
	to_pd(ib)->pdn = le32_to_cpu(res.handle);
	if (!udata)
		return 0;
	resp.pdn = to_pd(ib)->pdn;
	err = ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen));
	if (err)
		vroce_destroy(verbs, HW_DESTROY_PD, to_pd(ib)->pdn);
	return err;
}

static int dealloc_pd(struct ib_pd *ib, struct ib_udata *udata)
{
	return vroce_destroy(to_verbs(ib->device), HW_DESTROY_PD, to_pd(ib)->pdn);
}

static int destroy_ah(struct ib_ah *ib, u32 flags)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct hw_destroy_ah req = {
		.pdn = cpu_to_le32(to_pd(ib->pd)->pdn),
		.ah = cpu_to_le32(to_ah(ib)->handle),
	};
	int err = vroce_do(verbs, HW_DESTROY_AH, &req, !(flags & RDMA_DESTROY_AH_SLEEPABLE));

	if (err)
		vroce_break(verbs->card, "it refused to destroy an address handle");
	return 0;
}

static int create_ah(struct ib_ah *ib, struct rdma_ah_init_attr *attr, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct hw_create_ah req = { .pdn = cpu_to_le32(to_pd(ib->pd)->pdn) };
	struct vroce_ah_resp resp = {};
	struct hw_handle res;
	int err;

	vroce_fill_ah(&req.ah_attr, attr->ah_attr);
	err = vroce_command(verbs->card, HW_CREATE_AH, &req, sizeof(req), NULL, 0, &res, sizeof(res),
			    !(attr->flags & RDMA_CREATE_AH_SLEEPABLE));
	if (err)
		return err;
	to_ah(ib)->handle = le32_to_cpu(res.handle);
	if (!udata)
		return 0;
	resp.ah = to_ah(ib)->handle;
	err = ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen));
	if (err)
		destroy_ah(ib, RDMA_DESTROY_AH_SLEEPABLE);
	return err;
}

VROCE_DEFINE_REG_USER_MR(reg_user_mr, vroce_reg_user_mr)
VROCE_DEFINE_CREATE_CQ(create_cq, vroce_create_cq)

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = VROCE_ABI_VERSION,
	.query_device = query_device,
	.query_port = query_port,
	.get_port_immutable = get_port_immutable,
	.get_link_layer = get_link_layer,
	.query_pkey = query_pkey,
	.add_gid = add_gid,
	.del_gid = del_gid,
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = dealloc_ucontext,
	.disassociate_ucontext = disassociate_ucontext,
	.mmap = vroce_mmap,
	.mmap_free = vroce_mmap_free,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.create_ah = create_ah,
	.create_user_ah = create_ah,
	.destroy_ah = destroy_ah,
	.get_dma_mr = vroce_get_dma_mr,
	.reg_user_mr = reg_user_mr,
	.alloc_mr = vroce_alloc_mr,
	.map_mr_sg = vroce_map_mr_sg,
	.dereg_mr = vroce_dereg_mr,
	.create_cq = create_cq,
	.destroy_cq = vroce_destroy_cq,
	.poll_cq = vroce_poll_cq,
	.req_notify_cq = vroce_req_notify_cq,
	.create_qp = vroce_create_qp,
	.modify_qp = vroce_modify_qp,
	.query_qp = vroce_query_qp,
	.destroy_qp = vroce_destroy_qp,
	.post_send = vroce_post_send,
	.post_recv = vroce_post_recv,
	INIT_RDMA_OBJ_SIZE(ib_ah, vroce_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, vroce_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, vroce_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, vroce_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, vroce_context, ib),
};

static const struct ib_device_ops srq_ops = {
	.create_srq = vroce_create_srq,
	.modify_srq = vroce_modify_srq,
	.query_srq = vroce_query_srq,
	.destroy_srq = vroce_destroy_srq,
	.post_srq_recv = vroce_post_srq_recv,
	INIT_RDMA_OBJ_SIZE(ib_srq, vroce_srq, ib),
};

static const struct ib_device_ops mcast_ops = {
	.attach_mcast = vroce_attach_mcast,
	.detach_mcast = vroce_detach_mcast,
};

/* ---- registration ---- */

/* Enables the extensions that the device has and the module uses, and reads the limits. */
static int read_limits(struct vroce_verbs *verbs)
{
	struct vroce_card *card = verbs->card;
	struct hw_ext_enable ext, enabled;
	struct hw_query_port port;
	u64 offered;
	int err;

	card->errno_acks = false;
	err = vroce_command(card, HW_QUERY_DEVICE, NULL, 0, NULL, 0, &verbs->limits, sizeof(verbs->limits), false);
	if (err)
		return err;
	offered = le64_to_cpu(verbs->limits.device_cap_flags) & EXTENSIONS;
	if (offered) {
		ext.mask = cpu_to_le64(offered);
		err = vroce_call(verbs, HW_EXT_ENABLE, &ext, &enabled);
		if (err)
			return err;
		verbs->extensions = le64_to_cpu(enabled.mask) & offered;
		card->errno_acks = verbs->extensions & HW_CAP_ERRNO_ACK;
		err = vroce_command(card, HW_QUERY_DEVICE, NULL, 0, NULL, 0, &verbs->limits, sizeof(verbs->limits),
				    false);
		if (err)
			return err;
	}
	err = vroce_command(card, HW_QUERY_PORT, NULL, 0, NULL, 0, &port, sizeof(port), false);
	if (err)
		return err;
	verbs->gid_table_length = min(le32_to_cpu(port.gid_tbl_len), 4096u);
	verbs->max_message = le32_to_cpu(port.max_msg_sz);
	return verbs->gid_table_length ? 0 : -EINVAL;
}

/* The device uses physical addresses: it cannot work where other addresses are needed. */
static bool addresses_differ(struct vroce_card *card)
{
	struct device *parent = card->vdev->dev.parent;

	if (card->vdev->config->get_features(card->vdev) & BIT_ULL(VIRTIO_F_ACCESS_PLATFORM))
		return true;
	return parent && device_iommu_mapped(parent) && vroce_iommu_translates(parent);
}

static struct vroce_verbs *new_verbs(struct vroce_card *card, struct net_device *netdev)
{
	struct vroce_verbs *verbs = ib_alloc_device(vroce_verbs, ib);

	if (!verbs)
		return NULL;
	verbs->card = card;
	verbs->netdev = netdev;
	/* Calls of programs that the RDMA core refuses unless a driver allows them: doorbells and arming. */
	verbs->ib.uverbs_cmd_mask |= BIT_ULL(IB_USER_VERBS_CMD_POST_SEND) | BIT_ULL(IB_USER_VERBS_CMD_POST_RECV) |
				     BIT_ULL(IB_USER_VERBS_CMD_POST_SRQ_RECV) |
				     BIT_ULL(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ);
	mutex_init(&verbs->objects);
	xa_init(&verbs->qps);
	xa_init(&verbs->srqs);
	verbs->cqs = kvcalloc(card->max_cqs, sizeof(*verbs->cqs), GFP_KERNEL);
	if (!verbs->cqs) {
		ib_dealloc_device(&verbs->ib);
		return NULL;
	}
	return verbs;
}

static void free_verbs(struct vroce_verbs *verbs)
{
	kvfree(verbs->cqs);
	xa_destroy(&verbs->qps);
	xa_destroy(&verbs->srqs);
	ib_dealloc_device(&verbs->ib);
}

static void set_verbs(struct vroce_card *card, struct vroce_verbs *verbs)
{
	unsigned long flags;

	spin_lock_irqsave(&card->verbs_lock, flags);
	card->verbs = verbs;
	spin_unlock_irqrestore(&card->verbs_lock, flags);
}

static int register_device(struct vroce_verbs *verbs)
{
	struct vroce_card *card = verbs->card;
	struct ib_device *ib = &verbs->ib;
	int err;

	ib->node_type = RDMA_NODE_IB_CA;
	ib->phys_port_cnt = 1;
	ib->num_comp_vectors = 1;
	ib->dev.parent = &card->vdev->dev;
	strscpy(ib->node_desc, "virtio RoCE", sizeof(ib->node_desc));
	addrconf_addr_eui48((u8 *)&ib->node_guid, verbs->netdev->dev_addr);
	ib_set_device_ops(ib, &ops);
	if (verbs->extensions & HW_CAP_SRQ)
		ib_set_device_ops(ib, &srq_ops);
	if (verbs->extensions & HW_CAP_MCAST)
		ib_set_device_ops(ib, &mcast_ops);
	err = ib_device_set_netdev(ib, verbs->netdev, 1);
	if (err)
		return err;
	return ib_register_device(ib, "vroce%d", card->vdev->dev.parent);
}

int vroce_verbs_add(struct vroce_card *card, struct net_device *netdev)
{
	struct vroce_verbs *verbs;
	int err;

	if (addresses_differ(card)) {
		dev_err(&card->vdev->dev,
			"no RDMA: the device uses physical addresses, which an IOMMU of the machine translates\n");
		return -EOPNOTSUPP;
	}
	verbs = new_verbs(card, netdev);
	if (!verbs)
		return -ENOMEM;
	err = read_limits(verbs);
	if (err)
		goto free;
	err = vroce_events_start(verbs);
	if (err)
		goto free;
	set_verbs(card, verbs);
	err = register_device(verbs);
	if (err)
		goto stop;
	return 0;
stop:
	set_verbs(card, NULL);
	vroce_events_stop(verbs);
free:
	free_verbs(verbs);
	return err;
}

void vroce_verbs_remove(struct vroce_card *card)
{
	struct vroce_verbs *verbs = card->verbs;

	if (!verbs)
		return;
	ib_unregister_device(&verbs->ib);
	set_verbs(card, NULL);
	vroce_events_stop(verbs);
	if (card->orphans)
		card->dead_verbs = verbs; /* orphans refer to it */
	else
		free_verbs(verbs);
}

void vroce_verbs_after_reset(struct vroce_card *card)
{
	vroce_free_orphans(card);
	if (card->dead_verbs)
		free_verbs(card->dead_verbs);
	card->dead_verbs = NULL;
}

void vroce_verbs_interrupt(struct vroce_card *card, u32 number)
{
	struct vroce_verbs *verbs;
	unsigned long flags;

	spin_lock_irqsave(&card->verbs_lock, flags);
	verbs = card->verbs;
	if (verbs && number == vroce_events_cqn(verbs))
		vroce_events_interrupt(verbs);
	else if (verbs && verbs->cqs[number])
		vroce_cq_check(verbs, verbs->cqs[number]);
	spin_unlock_irqrestore(&card->verbs_lock, flags);
}

void vroce_verbs_broken(struct vroce_card *card)
{
	struct ib_event event = { .event = IB_EVENT_DEVICE_FATAL, .element.port_num = 1 };
	struct vroce_verbs *verbs;
	unsigned long flags;
	u32 i;

	spin_lock_irqsave(&card->verbs_lock, flags);
	verbs = card->verbs;
	for (i = 0; verbs && i < card->max_cqs; i++)
		if (verbs->cqs[i] && verbs->cqs[i]->ib.comp_handler)
			verbs->cqs[i]->ib.comp_handler(&verbs->cqs[i]->ib, verbs->cqs[i]->ib.cq_context);
	if (verbs && !verbs->reported_broken) {
		verbs->reported_broken = true;
		event.device = &verbs->ib;
		ib_dispatch_event(&event);
	}
	spin_unlock_irqrestore(&card->verbs_lock, flags);
}

void vroce_verbs_link_changed(struct vroce_card *card, bool up)
{
	struct ib_event event = { .event = up ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR, .element.port_num = 1 };

	if (!card->verbs)
		return;
	event.device = &card->verbs->ib;
	ib_dispatch_event(&event);
}
