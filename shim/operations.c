// SPDX-License-Identifier: Apache-2.0
/*
 * The operations of a context: those of this library, and for all others an
 * answer of EOPNOTSUPP, in whatever version of libibverbs a program runs.
 *
 * Programs find an operation in one of three ways:
 *  - inline functions of verbs.h call the slots of ibv_context.ops, a fixed
 *    layout, or those of verbs_context, which grows towards lower addresses:
 *    a slot exists if verbs_context.sz covers its distance from the end, and an
 *    inline function sets EOPNOTSUPP where it does not or where it is NULL;
 *  - public functions that this library defines;
 *  - public functions that it does not define, because they are newer: these are
 *    the real library's, and call through a table behind verbs_context.priv
 *    without a test for NULL. The order of that table changes with every
 *    version, so only the real library can fill it.
 */
#include "weft.h"

/* Larger than a verbs_context of any version: 696 bytes in rdma-core 65. */
#define TEMPLATE_SIZE 8192

/* The device of the template: the real library counts references somewhere
 * behind struct ibv_device. */
static struct {
	struct ibv_device dev;
	uint8_t zero[2048];
} template_device;

static void *real_table; /* never freed */

/* Has the real library make a context without a device. The table of that
 * context holds its own functions that return EOPNOTSUPP, each with the right type. The table
 * is read-only from then on, so all contexts share it. */
static void make_real_table(void)
{
	void *(*make)(struct ibv_device *, int, size_t, struct verbs_context *, uint32_t) =
		weft_next("_verbs_init_and_alloc_context");
	const size_t last = TEMPLATE_SIZE - sizeof(struct ibv_context);
	int saved = errno;
	uint8_t *template;

	template = make ? make(&template_device.dev, -1, TEMPLATE_SIZE, NULL, 0) : NULL;
	for (size_t at = 0; template && at <= last; at += sizeof(void *)) {
		struct ibv_context *c = (void *)(template + at);
		struct verbs_context *v;

		/* The first word that is the device begins the ibv_context; the size
		 * before it confirms that. */
		if (c->device != &template_device.dev)
			continue;
		v = weft_container(c, struct verbs_context, context);
		if (c->abi_compat == __VERBS_ABI_IS_EXTENDED && v->sz == at + sizeof(*c))
			real_table = (void *)v->priv;
		break;
	}
	free(template); /* the table is an allocation of its own */
	errno = saved;
	if (!real_table)
		weft_log("no table of libibverbs: verbs newer than rdma-core 65 would crash");
}

void weft_operations(struct weft_ctx *ctx)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct verbs_context *v = &ctx->vctx;

	pthread_once(&once, make_real_table);
	v->sz = sizeof(*v);
	v->priv = real_table ? real_table : (void *)ctx->priv;
	weft_missing_operations(v);
	v->query_port = weft_query_port;
	v->query_device_ex = weft_query_device_ex;
	v->query_rt_values = weft_query_rt_values;
	v->alloc_td = weft_alloc_td;
	v->dealloc_td = weft_dealloc_td;
	v->alloc_parent_domain = weft_alloc_parent_domain;
	v->create_cq_ex = weft_create_cq_ex;
	v->create_qp_ex = weft_create_qp_ex;
	v->create_srq_ex = weft_create_srq_ex;
	v->get_srq_num = weft_get_srq_num;
	v->modify_qp_rate_limit = weft_modify_qp_rate_limit;
	v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	v->context.ops._compat_query_device = ibv_query_device;
	v->context.ops._compat_query_port = ibv_query_port;
	v->context.ops.alloc_mw = weft_alloc_mw;
	v->context.ops.bind_mw = weft_bind_mw;
	v->context.ops.dealloc_mw = weft_dealloc_mw;
	v->context.ops.poll_cq = weft_poll_cq;
	v->context.ops.req_notify_cq = weft_req_notify_cq;
	v->context.ops.post_send = weft_post_send;
	v->context.ops.post_recv = weft_post_recv;
	v->context.ops.post_srq_recv = weft_post_srq_recv;
}
