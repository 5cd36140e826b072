// SPDX-License-Identifier: Apache-2.0
/* What a context reports about its device, port, GIDs and P_Keys. */
#include "weft.h"

#include <endian.h>
#include <stdio.h>
#include <time.h>

#define VENDOR_ID      0x1af4   /* virtio's; none that a program treats specially */
#define VENDOR_PART_ID 0x1041   /* virtio-net */

static void device_attr(struct weft_ctx *ctx, struct ibv_device_attr *a)
{
	const struct weft_res_query_device *r = &ctx->attr;

	memset(a, 0, sizeof(*a));
	snprintf(a->fw_ver, sizeof(a->fw_ver), "%u.%u", WEFT_ABI_VERSION, r->hw_ver);
	a->node_guid = weft_device_guid(ctx->vctx.context.device);
	a->sys_image_guid = weft_device_image_guid(ctx->vctx.context.device);
	a->max_mr_size = r->max_mr_size;
	a->page_size_cap = r->page_size_cap;
	a->vendor_id = VENDOR_ID;
	a->vendor_part_id = VENDOR_PART_ID;
	a->hw_ver = r->hw_ver;
	/* Queue pairs 0 and 1 are not for programs, and one CQ carries events. */
	a->max_qp = ctx->max_qps > 2 ? (int)ctx->max_qps - 2 : 0;
	a->max_cq = (int)ctx->max_cqs - 1;
	a->max_qp_wr = (int)r->max_qp_wr;
	a->max_sge = (int)(r->max_send_sge < r->max_recv_sge ? r->max_send_sge : r->max_recv_sge);
	a->max_sge_rd = (int)r->max_sge_rd;
	a->max_cqe = (int)r->max_cqe;
	a->max_mr = (int)r->max_mr;
	a->max_pd = (int)r->max_pd;
	a->max_qp_rd_atom = (int)r->max_qp_rd_atom;
	a->max_qp_init_rd_atom = (int)r->max_qp_init_rd_atom;
	a->max_res_rd_atom = a->max_qp_rd_atom * a->max_qp;
	a->max_ah = (int)r->max_ah;
	a->device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
			      IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_BAD_PKEY_CNTR |
			      IBV_DEVICE_BAD_QKEY_CNTR;
	if (r->device_cap_flags & 1ull << WEFT_CAP_RC_RNR_NAK_GEN)
		a->device_cap_flags |= IBV_DEVICE_RC_RNR_NAK_GEN;
	if (ctx->ext & 1ull << WEFT_CAP_SRQ) {
		a->max_srq = (int)r->max_srq;
		a->max_srq_wr = (int)r->max_srq_wr;
		a->max_srq_sge = (int)r->max_srq_sge;
	}
	if (ctx->ext & 1ull << WEFT_CAP_SRQ_RESIZE)
		a->device_cap_flags |= IBV_DEVICE_SRQ_RESIZE;
	if (ctx->ext & 1ull << WEFT_CAP_ATOMIC)
		a->atomic_cap = r->atomic_cap == 2 ? IBV_ATOMIC_GLOB :
				r->atomic_cap == 1 ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
	if (ctx->ext & 1ull << WEFT_CAP_MW) {
		a->max_mw = (int)r->max_mw;
		a->device_cap_flags |= IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	}
	if (ctx->ext & 1ull << WEFT_CAP_MEM_MGT)
		a->device_cap_flags |= IBV_DEVICE_MEM_MGT_EXTENSIONS;
	a->max_pkeys = (uint16_t)r->max_pkeys;
	a->max_mcast_grp = (int)r->max_mcast_grp;
	a->max_mcast_qp_attach = (int)r->max_mcast_qp_attach;
	a->max_total_mcast_qp_attach = (int)r->max_total_mcast_qp_attach;
	a->local_ca_ack_delay = r->local_ca_ack_delay;
	a->phys_port_cnt = 1;
}

WEFT_PUBLIC int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *attr)
{
	WEFT_FORWARD(c, errno, ibv_query_device, c, attr);
	device_attr(weft_ctx(c), attr);
	return 0;
}

int weft_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in,
			 struct ibv_device_attr_ex *attr, size_t len)
{
	struct ibv_device_attr_ex a;

	if ((in && in->comp_mask) || len < sizeof(a.orig_attr))
		return EINVAL;
	memset(&a, 0, sizeof(a));
	device_attr(weft_ctx(c), &a.orig_attr);
	/* Timestamps are nanoseconds of the monotonic clock when the completion
	 * is read. */
	a.completion_timestamp_mask = ~0ull;
	a.hca_core_clock = 1000000; /* kHz */
	a.device_cap_flags_ex = a.orig_attr.device_cap_flags;
	a.phys_port_cnt_ex = 1;
	a.packet_pacing_caps.qp_rate_limit_min = 1;
	a.packet_pacing_caps.qp_rate_limit_max = UINT32_MAX;
	a.packet_pacing_caps.supported_qpts = 1u << IBV_QPT_RC | 1u << IBV_QPT_UC | 1u << IBV_QPT_UD;
	memset(attr, 0, len);
	memcpy(attr, &a, len < sizeof(a) ? len : sizeof(a));
	return 0;
}

int weft_query_rt_values(struct ibv_context *c, struct ibv_values_ex *v)
{
	(void)c;
	if (v->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EOPNOTSUPP;
	if (v->comp_mask & IBV_VALUES_MASK_RAW_CLOCK)
		clock_gettime(CLOCK_MONOTONIC, &v->raw_clock);
	return 0;
}

int weft_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t len)
{
	struct weft_cmd_query_port_ex in = { .port = port };
	struct weft_res_query_port_ex r;
	struct ibv_port_attr a;
	int err;

	if (port != 1)
		return EINVAL;
	err = weft_command(weft_ctx(c), WEFT_CMD_QUERY_PORT_EX, &in, sizeof(in), &r, sizeof(r));
	if (err)
		return weft_ret(err);
	memset(&a, 0, sizeof(a));
	a.state = r.state;
	a.max_mtu = r.max_mtu;
	a.active_mtu = r.active_mtu;
	a.gid_tbl_len = r.gid_tbl_len;
	a.port_cap_flags = r.port_cap_flags;
	a.max_msg_sz = r.max_msg_sz;
	a.bad_pkey_cntr = r.bad_pkey_cntr;
	a.qkey_viol_cntr = r.qkey_viol_cntr;
	a.pkey_tbl_len = r.pkey_tbl_len;
	a.lid = r.lid;
	a.sm_lid = r.sm_lid;
	a.lmc = r.lmc;
	a.max_vl_num = 1;
	a.sm_sl = r.sm_sl;
	a.subnet_timeout = r.subnet_timeout;
	a.init_type_reply = r.init_type;
	a.active_width = r.active_width;
	a.active_speed = r.active_speed;
	a.phys_state = r.phys_state;
	a.link_layer = r.link_layer;
	a.flags = r.flags;
	memset(attr, 0, len);
	memcpy(attr, &a, len < sizeof(a) ? len : sizeof(a));
	return 0;
}

/* Programs of old headers pass the structure as it was before it grew. */
WEFT_PUBLIC int ibv_query_port(struct ibv_context *c, uint8_t port,
			       struct _compat_ibv_port_attr *attr)
{
	WEFT_FORWARD(c, errno, ibv_query_port, c, port, attr);
	return weft_query_port(c, port, (struct ibv_port_attr *)attr,
			       offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* ---- GIDs ---- */

int weft_gid(struct weft_ctx *ctx, uint32_t index, struct weft_res_query_gid *out)
{
	struct weft_cmd_query_gid in = { .index = index };

	return weft_command(ctx, WEFT_CMD_QUERY_GID, &in, sizeof(in), out, sizeof(*out));
}

WEFT_PUBLIC int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index,
				  struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	struct weft_res_query_gid g;
	struct ibv_gid_entry e;
	int err;

	WEFT_FORWARD(c, errno, _ibv_query_gid_ex, c, port, index, entry, flags, size);
	if (flags)
		return weft_ret(EOPNOTSUPP);
	if (port != 1)
		return weft_ret(EINVAL);
	err = weft_gid(weft_ctx(c), index, &g);
	weft_explain_gid(c, index, !err && g.valid ? &g : NULL);
	if (err)
		return weft_ret(err);
	if (!g.valid)
		return weft_ret(ENODATA);
	memset(&e, 0, sizeof(e));
	memcpy(e.gid.raw, g.gid, sizeof(g.gid));
	e.gid_index = index;
	e.port_num = port;
	e.gid_type = g.type;
	e.ndev_ifindex = g.ifindex;
	memset(entry, 0, size);
	memcpy(entry, &e, size < sizeof(e) ? size : sizeof(e));
	return 0;
}

WEFT_PUBLIC ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *entries,
					 size_t max, uint32_t flags, size_t size)
{
	struct ibv_port_attr port;
	size_t n = 0;
	int err;

	WEFT_FORWARD(c, -errno, _ibv_query_gid_table, c, entries, max, flags, size);
	if (flags)
		return -EOPNOTSUPP;
	err = weft_query_port(c, 1, &port, sizeof(port));
	if (err)
		return -err;
	for (uint32_t i = 0; i < (uint32_t)port.gid_tbl_len; i++) {
		struct ibv_gid_entry e;

		err = _ibv_query_gid_ex(c, 1, i, &e, 0, sizeof(e));
		if (err == ENODATA)
			continue;
		if (err)
			return -err;
		if (n == max)
			return -EINVAL;
		memset((char *)entries + n * size, 0, size);
		memcpy((char *)entries + n * size, &e, size < sizeof(e) ? size : sizeof(e));
		n++;
	}
	return (ssize_t)n;
}

/* An empty entry is the zero GID here, as it always was. */
WEFT_PUBLIC int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry e;
	int err;

	WEFT_FORWARD(c, -1, ibv_query_gid, c, port, index, gid);
	if (index < 0) {
		errno = EINVAL;
		return -1;
	}
	err = _ibv_query_gid_ex(c, port, (uint32_t)index, &e, 0, sizeof(e));
	if (err == ENODATA) {
		memset(gid, 0, sizeof(*gid));
		return 0;
	}
	if (err)
		return -1;
	*gid = e.gid;
	return 0;
}

/* For ibv_devinfo and other providers: 0 is RoCE v1 or InfiniBand, 1 RoCE v2. */
WEFT_PUBLIC int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index,
				   int *type);

WEFT_PUBLIC int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index,
				   int *type)
{
	struct weft_res_query_gid g;
	int err;

	WEFT_FORWARD(c, -1, ibv_query_gid_type, c, port, index, type);
	err = port == 1 ? weft_gid(weft_ctx(c), index, &g) : EINVAL;
	if (err) {
		errno = err;
		return -1;
	}
	*type = g.valid && g.type == WEFT_GID_TYPE_ROCE_V2;
	return 0;
}

/* ---- P_Keys ---- */

WEFT_PUBLIC int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
	struct weft_cmd_query_pkey in = { .index = (uint32_t)index };
	struct weft_res_query_pkey r;
	int err;

	WEFT_FORWARD(c, -1, ibv_query_pkey, c, port, index, pkey);
	err = port == 1 && index >= 0 ? weft_command(weft_ctx(c), WEFT_CMD_QUERY_PKEY, &in,
						     sizeof(in), &r, sizeof(r)) : EINVAL;
	if (err) {
		errno = err;
		return -1;
	}
	*pkey = htobe16(r.pkey);
	return 0;
}

WEFT_PUBLIC int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
	struct ibv_port_attr a;

	WEFT_FORWARD(c, -1, ibv_get_pkey_index, c, port, pkey);
	if (weft_query_port(c, port, &a, sizeof(a)))
		return -1;
	for (int i = 0; i < a.pkey_tbl_len; i++) {
		__be16 have;

		if (!ibv_query_pkey(c, port, i, &have) && have == pkey)
			return i;
	}
	errno = ENOENT;
	return -1;
}
