/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of libweft-verbs.so. The headers, each on top of the one before:
 * base.h (locks, descriptors, log), ring.h (shared memory and rings), context.h
 * (the session of an open device), objects.h (verbs objects); beside them arena.h,
 * paths.h and explain.h. This one includes all and declares what the files of verbs
 * call of each other.
 *
 * Locks, outermost first: the object's ibv mutex (events), a queue's lock, the
 * context's numbers, the context's ctl (control commands and vhost-user messages),
 * the context's obj (number -> object tables, pending events), mr_lock, mem.lock.
 */
#ifndef WEFT_H
#define WEFT_H

#include "objects.h"

#include "arena.h"
#include "explain.h"
#include "paths.h"

/* ---- events.c ---- */

/* Writes the completion event of cq into its channel; the caller took the arm
 * word back. */
void weft_raise(struct weft_cq *cq);
int weft_events_open(struct weft_ctx *ctx);
void weft_events_close(struct weft_ctx *ctx);
/* Drops events that name obj and were not delivered yet. */
void weft_async_purge(struct weft_ctx *ctx, const void *obj);
void weft_channel_purge(struct weft_cq *cq);
void weft_events_fatal(struct weft_ctx *ctx);
/* Waits until *completed reaches *delivered (objects being destroyed). */
void weft_await_acks(struct weft_ctx *ctx, pthread_mutex_t *m, pthread_cond_t *c,
		     const uint32_t *completed, const uint32_t *delivered);

/* ---- operations.c ---- */

/* Fills the tables through which programs and libibverbs reach the operations of
 * a context. */
void weft_operations(struct weft_ctx *ctx);
void weft_missing_operations(struct verbs_context *v);

/* ---- device.c, query.c, domain.c, mr.c, cq.c, qp.c, post.c, srq.c ---- */

extern struct weft_lock weft_contexts_lock;
extern struct weft_ctx *weft_contexts;

/* Network order. */
__be64 weft_device_guid(const struct ibv_device *d);
__be64 weft_device_image_guid(const struct ibv_device *d);
int weft_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t len);
int weft_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in,
			 struct ibv_device_attr_ex *attr, size_t len);
int weft_query_rt_values(struct ibv_context *c, struct ibv_values_ex *v);
int weft_gid(struct weft_ctx *ctx, uint32_t index, struct weft_res_query_gid *out);
struct ibv_cq_ex *weft_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
int weft_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_td *weft_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr);
int weft_dealloc_td(struct ibv_td *td);
struct ibv_pd *weft_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr);
bool weft_is_parent_domain(const struct ibv_pd *pd);
/* Runs a destroy command; a node that is gone holds nothing any more. */
int weft_destroy(struct weft_ctx *ctx, uint8_t cmd, const void *in, size_t n);
struct ibv_mw *weft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int weft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int weft_dealloc_mw(struct ibv_mw *mw);
/* Drops the completions of a queue pair that was reset. */
void weft_cq_forget(struct ibv_cq *cq, uint32_t qp_num);
struct ibv_qp *weft_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
/* The most inline data of a request that a queue pair of a device may have, in bytes. */
uint32_t weft_inline_limit(const struct weft_res_query_device *d);
int weft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int weft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void weft_qp_ex_ops(struct weft_qp *q, uint64_t send_ops);
struct ibv_srq *weft_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
int weft_get_srq_num(struct ibv_srq *srq, uint32_t *num);
int weft_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *a);
int weft_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* Returns err, positive or zero, with errno set to it, as verbs do. */
static inline int weft_ret(int err)
{
	if (err)
		errno = err;
	return err;
}

#endif
