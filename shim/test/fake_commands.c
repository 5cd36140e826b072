/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_parts.h"

#include <alloca.h>
#include <errno.h>
#include <string.h>

/* How many requests wait in a shared receive queue. */
static uint32_t waiting(uint32_t srq)
{
	struct ring *r = &fake.ring[4 + CQS + 2 * srq];

	return (uint16_t)(__atomic_load_n(&r->avail->idx, __ATOMIC_ACQUIRE) - r->avail_at);
}

static uint8_t control(uint8_t cmd, const uint8_t *in, uint32_t inlen, uint8_t *out, uint32_t outlen)
{
#define IN(type) (*(const struct type *)(const void *)memcpy(alloca(sizeof(struct type)), in, sizeof(struct type)))
#define NEED_IN(type) need(inlen == sizeof(struct type))
#define RESULT(...)                                                      \
	do {                                                             \
		__typeof__(__VA_ARGS__) r_ = __VA_ARGS__;                \
		need(outlen >= sizeof(r_));                              \
		memcpy(out, &r_, sizeof(r_));                            \
		return 0;                                                \
	} while (0)
	switch (cmd) {
	case WEFT_CMD_QUERY_DEVICE:
		RESULT((struct weft_res_query_device){
			.device_cap_flags = 1 | 1ull << WEFT_CAP_ATOMIC | 1ull << WEFT_CAP_SRQ |
				1ull << WEFT_CAP_ASYNC_EVQ | 1ull << WEFT_CAP_ERRNO_ACK |
				1ull << WEFT_CAP_SG_WQE | 1ull << WEFT_CAP_ARM_DOORBELL |
				1ull << WEFT_CAP_VERBS | 1ull << WEFT_CAP_SRQ_RESIZE,
			.max_mr_size = ~0ull, .page_size_cap = 0x1000, .max_qp_wr = 1024,
			.max_send_sge = 16, .max_recv_sge = 16, .max_sge_rd = 16, .max_cqe = 4096,
			.max_mr = 64, .max_pd = 64, .max_qp_rd_atom = 16,
			.max_qp_init_rd_atom = 16, .max_ah = 64, .max_srq = 8,
			.max_srq_wr = 1024, .max_srq_sge = 16, .atomic_cap = 1, .max_inline = 1024,
		});
	case WEFT_CMD_EXT_ENABLE:
		NEED_IN(weft_cmd_ext_enable);
		fake.errno_ack = true;
		RESULT((struct weft_cmd_ext_enable){ IN(weft_cmd_ext_enable).mask });
	case WEFT_CMD_CREATE_CQ:
		NEED_IN(weft_cmd_create_cq);
		for (uint32_t c = 0; c < CQS; c++) {
			if (fake.cq[c].on)
				continue;
			fake.cq[c] = (struct cq){ .on = true, .backlog = calloc(BACKLOG, sizeof(struct weft_cqe)) };
			RESULT((struct weft_res_create_cq){ c });
		}
		return ENOSPC;
	case WEFT_CMD_DESTROY_CQ: {
		uint32_t c = IN(weft_cmd_destroy_cq).cqn;

		for (uint32_t q = 0; q < QPS; q++)
			if (fake.qp[q].on && (fake.qp[q].send_cq == c || fake.qp[q].recv_cq == c))
				return EBUSY;
		fake.cq[c].on = false;
		free(fake.cq[c].backlog);
		return 0;
	}
	case WEFT_CMD_RESIZE_CQ:
		return 0;
	case WEFT_CMD_SET_EVQ:
		fake.evq = IN(weft_cmd_set_evq).cqn;
		return 0;
	case WEFT_CMD_SET_ARM_AREA:
		need(fake_inside(IN(weft_cmd_set_arm_area).gpa, 4));
		fake.cq[IN(weft_cmd_set_arm_area).cqn].arm = (void *)(uintptr_t)IN(weft_cmd_set_arm_area).gpa;
		return 0;
	case WEFT_CMD_CREATE_PD:
		RESULT((struct weft_res_create_pd){ 1 });
	case WEFT_CMD_REG_MR_VA:
		for (uint32_t i = 0; i < 64; i++) {
			struct weft_cmd_reg_mr_va m = IN(weft_cmd_reg_mr_va);

			if (fake.mr[i].on)
				continue;
			need(!(m.access & ~0x3fu));
			fake.mr[i].on = true;
			fake.mr[i].va = m.va;
			fake.mr[i].len = m.length;
			fake.mr[i].iova = m.iova;
			fake.mr[i].access = m.access;
			RESULT((struct weft_mr_result){ i + 1, 100 + i, 100 + i });
		}
		return ENOSPC;
	case WEFT_CMD_DEREG_MR:
		fake.mr[IN(weft_cmd_dereg_mr).mrn - 1].on = false;
		return 0;
	case WEFT_CMD_CREATE_QP: {
		struct weft_cmd_create_qp m = IN(weft_cmd_create_qp);

		NEED_IN(weft_cmd_create_qp);
		need(m.qp_flags == WEFT_QP_SG_WQE);
		for (uint32_t q = 2; q < QPS; q++) {
			if (fake.qp[q].on || fake.srq[q])
				continue;
			fake.qp[q].on = true;
			fake.qp[q].state = 0;
			fake.qp[q].type = m.qp_type;
			fake.qp[q].send_cq = m.send_cqn;
			fake.qp[q].recv_cq = m.recv_cqn;
			fake.qp[q].srqn1 = m.srqn1;
			RESULT((struct weft_res_create_qp_ex){ q, SESSION << 14 | q });
		}
		return ENOSPC;
	}
	case WEFT_CMD_MODIFY_QP_EX: {
		struct weft_qp_attr_ex m = IN(weft_qp_attr_ex);

		NEED_IN(weft_qp_attr_ex);
		if (m.attr_mask & 1 << 7 && !m.is_global)
			return EINVAL;
		if (m.attr_mask & 1 << 20)
			fake.qp[m.qpn].peer = m.dest_qp_num & 0x3fff;
		if (m.attr_mask & 1)
			fake.qp[m.qpn].state = m.qp_state;
		return 0;
	}
	case WEFT_CMD_QUERY_QP_EX:
		RESULT((struct weft_qp_attr_ex){ .qp_state = fake.qp[IN(weft_cmd_query_qp_ex).qpn].state });
	case WEFT_CMD_DESTROY_QP:
		fake.qp[IN(weft_cmd_destroy_qp).qpn].on = false;
		return 0;
	case WEFT_CMD_CREATE_SRQ:
		NEED_IN(weft_cmd_create_srq);
		for (uint32_t q = 2; q < QPS; q++) {
			if (fake.qp[q].on || fake.srq[q])
				continue;
			fake.srq[q] = true;
			fake.srq_wr[q] = IN(weft_cmd_create_srq).max_wr;
			fake.srq_limit[q] = IN(weft_cmd_create_srq).limit;
			RESULT((struct weft_res_create_srq){ q, 4 + CQS + 2 * q });
		}
		return ENOSPC;
	case WEFT_CMD_MODIFY_SRQ: {
		struct weft_cmd_modify_srq m = IN(weft_cmd_modify_srq);
		uint32_t wr = m.mask & WEFT_SRQ_MAX_WR ? m.max_wr : fake.srq_wr[m.srqn];
		uint32_t limit = m.mask & WEFT_SRQ_LIMIT ? m.limit : fake.srq_limit[m.srqn];

		NEED_IN(weft_cmd_modify_srq);
		need(fake.srq[m.srqn] && m.mask && !(m.mask & ~3u));
		if (limit > wr || (m.mask & WEFT_SRQ_MAX_WR && wr < waiting(m.srqn)))
			return EINVAL;
		fake.srq_wr[m.srqn] = wr;
		fake.srq_limit[m.srqn] = limit;
		return 0;
	}
	case WEFT_CMD_QUERY_SRQ: {
		uint32_t q = IN(weft_cmd_query_srq).srqn;

		need(fake.srq[q]);
		RESULT((struct weft_res_query_srq){ fake.srq_wr[q], 16, fake.srq_limit[q], waiting(q) });
	}
	case WEFT_CMD_DESTROY_SRQ:
		fake.srq[IN(weft_cmd_destroy_srq).srqn] = false;
		return 0;
	case WEFT_CMD_CREATE_AH:
		NEED_IN(weft_cmd_create_ah);
		if (IN(weft_cmd_create_ah).ah_attr.flags & WEFT_AH_NO_GRH)
			return EINVAL;
		RESULT((struct weft_res_create_ah){ 1 });
	case WEFT_CMD_QUERY_PORT_EX:
		RESULT((struct weft_res_query_port_ex){ .state = 4, .max_mtu = 5, .active_mtu = 3,
			.phys_state = 5, .link_layer = 2, .gid_tbl_len = 2, .pkey_tbl_len = 1,
			.max_msg_sz = 1u << 31, .flags = 1 });
	case WEFT_CMD_QUERY_GID: {
		struct weft_res_query_gid g = { .type = 2, .valid = 1, .ifindex = 1 };

		if (IN(weft_cmd_query_gid).index > 1)
			return EINVAL;
		memcpy(g.gid, IN(weft_cmd_query_gid).index ? "\0\0\0\0\0\0\0\0\0\0\377\377\12\0\0\1" :
			"\376\200\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 16);
		RESULT(g);
	}
	case WEFT_CMD_QUERY_PKEY:
		RESULT((struct weft_res_query_pkey){ .pkey = 0xffff });
	case WEFT_CMD_DESTROY_PD:
	case WEFT_CMD_DESTROY_AH:
		return 0;
	}
	return EOPNOTSUPP;
}

bool fake_commands(void)
{
	struct ring *r = &fake.ring[2];
	struct weft_vring_desc *d;
	uint8_t *req, *res, in[4096];
	uint16_t id;

	if (!fake_available(r))
		return false;
	req = fake_pop(r, &id, NULL);
	d = &r->desc[id];
	need(d->flags == WEFT_VRING_DESC_NEXT && d->len >= 2 && d->len <= sizeof(in));
	memcpy(in, req, d->len);
	need(in[0] == WEFT_CLASS_ROCE);
	need(r->desc[d->next].flags == WEFT_VRING_DESC_WRITE && r->desc[d->next].len >= 1);
	res = (void *)(uintptr_t)r->desc[d->next].addr;
	need(fake_inside(r->desc[d->next].addr, r->desc[d->next].len));
	res[0] = control(in[1], in + 2, d->len - 2, res + 1, r->desc[d->next].len - 1);
	fake_push(r, id, r->desc[d->next].len);
	fake_call(r);
	return true;
}
