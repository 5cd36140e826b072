// SPDX-License-Identifier: Apache-2.0
/*
 * Events. A completion channel is a pipe; its records are CQ generation and
 * number; asynchronous events come through a ring, with a pipe that holds one
 * record for each so that it is readable exactly while events wait.
 */
#include "weft.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define EVQ_NUM  256u
#define EVQ_SLOT 64u

/* Records of the asynchronous pipe. */
enum { TOKEN_RING = 1, TOKEN_FATAL = 2 };

/* The record of a channel after its node has ended. It stays in the pipe. */
#define CHANNEL_FATAL 0ull

/* The node opens its end of a pipe anew, so that the flags are its own; one that
 * runs as another user needs the permission. No other user gains one: the way to
 * the pipe is a descriptor, or this process's /proc/self/fd. */
static void let_node_open(int fd)
{
	fcntl(fd, F_SETFL, O_NONBLOCK);
	fchmod(fd, 0622);
}

/* An event taken out of the ring and not yet delivered. */
struct weft_async {
	struct weft_async *next;
	void *obj;               /* the QP, CQ or SRQ, or NULL */
	uint32_t *delivered;     /* its count, or NULL */
	struct ibv_async_event ev;
};

/* ---- asynchronous events ---- */

static struct weft_async *decode(struct weft_ctx *ctx, const struct weft_event *e)
{
	static const struct {
		uint8_t verbs;
		char kind;       /* cq, qp, srq, port, device */
	} map[] = {
		[WEFT_EVENT_CQ_ERR] = { IBV_EVENT_CQ_ERR, 'c' },
		[WEFT_EVENT_QP_FATAL] = { IBV_EVENT_QP_FATAL, 'q' },
		[WEFT_EVENT_QP_REQ_ERR] = { IBV_EVENT_QP_REQ_ERR, 'q' },
		[WEFT_EVENT_QP_ACCESS_ERR] = { IBV_EVENT_QP_ACCESS_ERR, 'q' },
		[WEFT_EVENT_COMM_EST] = { IBV_EVENT_COMM_EST, 'q' },
		[WEFT_EVENT_SQ_DRAINED] = { IBV_EVENT_SQ_DRAINED, 'q' },
		[WEFT_EVENT_LAST_WQE_REACHED] = { IBV_EVENT_QP_LAST_WQE_REACHED, 'q' },
		[WEFT_EVENT_SRQ_ERR] = { IBV_EVENT_SRQ_ERR, 's' },
		[WEFT_EVENT_SRQ_LIMIT] = { IBV_EVENT_SRQ_LIMIT_REACHED, 's' },
		[WEFT_EVENT_PORT_ACTIVE] = { IBV_EVENT_PORT_ACTIVE, 'p' },
		[WEFT_EVENT_PORT_DOWN] = { IBV_EVENT_PORT_ERR, 'p' },
		[WEFT_EVENT_GID_CHANGE] = { IBV_EVENT_GID_CHANGE, 'p' },
		[WEFT_EVENT_DEVICE_FATAL] = { IBV_EVENT_DEVICE_FATAL, 'd' },
		[WEFT_EVENT_LID_CHANGE] = { IBV_EVENT_LID_CHANGE, 'p' },
		[WEFT_EVENT_PKEY_CHANGE] = { IBV_EVENT_PKEY_CHANGE, 'p' },
		[WEFT_EVENT_SM_CHANGE] = { IBV_EVENT_SM_CHANGE, 'p' },
		[WEFT_EVENT_CLIENT_REREGISTER] = { IBV_EVENT_CLIENT_REREGISTER, 'p' },
	};
	struct weft_async *a;
	struct weft_srq *s;
	struct weft_qp *q;
	struct weft_cq *c;

	if (e->type >= sizeof(map) / sizeof(map[0]) || !map[e->type].kind)
		return NULL;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->ev.event_type = map[e->type].verbs;
	switch (map[e->type].kind) {
	case 'c':
		c = e->object < ctx->max_cqs ? ctx->cqs[e->object] : NULL;
		if (!c)
			goto gone;
		a->obj = a->ev.element.cq = &c->cq;
		a->delivered = &c->async_delivered;
		break;
	case 'q':
		q = (e->object & 0x3fff) < ctx->max_qps ? ctx->qps[e->object & 0x3fff] : NULL;
		if (!q || q->qp.qp_num != e->object)
			goto gone;
		a->obj = a->ev.element.qp = &q->qp;
		a->delivered = &q->async_delivered;
		break;
	case 's':
		s = e->object < ctx->max_qps ? ctx->srqs[e->object] : NULL;
		if (!s)
			goto gone;
		a->obj = a->ev.element.srq = &s->srq;
		a->delivered = &s->async_delivered;
		break;
	case 'p':
		a->ev.element.port_num = (int)e->object;
		break;
	}
	return a;
gone:
	free(a);
	return NULL;
}

/* Returns false where there is no room. A pipe that is gone needs no record. */
static bool put_record(const struct weft_fd *f, uint64_t record)
{
	int saved = errno;
	bool full = weft_fd_good(f) && weft_sys_write(f->fd, &record, sizeof(record)) < 0 &&
		    errno == EAGAIN;

	errno = saved;
	return !full;
}

/* Takes a record out of a pipe; false where there is none. Kernels before 6.4
 * cannot read a pipe without risk of waiting behind another reader: there the
 * answer is always false. */
static bool take_record(const struct weft_fd *f, uint64_t *record)
{
	struct iovec iov = { record, sizeof(*record) };
	int saved = errno;
	bool got = weft_fd_good(f) &&
		   preadv2(f->fd, &iov, 1, -1, RWF_NOWAIT) == (ssize_t)sizeof(*record);

	errno = saved;
	return got;
}

/* Takes the record of an event that is dropped out of the pipe: a program that
 * finds the pipe readable must not wait in ibv_get_async_event. */
static void drop_token(struct weft_ctx *ctx)
{
	bool fatal = false;
	uint64_t token;

	while (take_record(&ctx->async_rd, &token) && token == TOKEN_FATAL)
		fatal = true;
	if (fatal)
		put_record(&ctx->async_wr, TOKEN_FATAL);
}

/*
 * Moves events from the ring to the list, naming objects while they still are
 * what the node meant. obj is held. True: the caller must ring the bell of
 * the event ring once obj is free: the node had run out of buffers.
 */
static bool pull(struct weft_ctx *ctx)
{
	struct weft_ring *r = &ctx->evq;
	uint16_t before = (uint16_t)r->head;

	if (atomic_load(&ctx->dead) == WEFT_FORKED || !r->num)
		return false;
	while (weft_used_idx(r) != (uint16_t)r->tail) {
		struct weft_event e;
		struct weft_async *a;

		memcpy(&e, weft_slot(r, r->tail), sizeof(e));
		r->tail++;
		r->head++;
		a = decode(ctx, &e);
		if (a) {
			*ctx->async_tail = a;
			ctx->async_tail = &a->next;
		} else {
			drop_token(ctx);
		}
	}
	if ((uint16_t)r->head == before)
		return false;
	weft_ring_publish(r);
	atomic_thread_fence(memory_order_seq_cst);
	return weft_used_idx(r) == before;
}

void weft_async_purge(struct weft_ctx *ctx, const void *obj)
{
	bool dry;

	weft_lock(&ctx->obj);
	dry = pull(ctx);
	for (struct weft_async **at = &ctx->async_head, *a; (a = *at);) {
		if (a->obj != obj) {
			at = &a->next;
			continue;
		}
		*at = a->next;
		if (!*at)
			ctx->async_tail = at;
		free(a);
		drop_token(ctx);
	}
	weft_unlock(&ctx->obj);
	if (dry)
		weft_ring_bell(ctx, ctx->evq.index);
}

WEFT_PUBLIC int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *event)
{
	struct weft_ctx *ctx;

	WEFT_FORWARD(c, -1, ibv_get_async_event, c, event);
	ctx = weft_ctx(c);
	for (;;) {
		struct weft_async *a;
		uint64_t token;
		bool dry;

		if (atomic_load(&ctx->dead) == WEFT_FORKED) {
			errno = EIO;
			return -1;
		}
		if (!weft_fd_good(&ctx->async_rd)) {
			errno = EBADF;
			return -1;
		}
		if (weft_sys_read(ctx->async_rd.fd, &token, sizeof(token)) != sizeof(token))
			return -1;
		if (token == TOKEN_FATAL) {
			*event = (struct ibv_async_event){ .event_type = IBV_EVENT_DEVICE_FATAL };
			return 0;
		}
		weft_lock(&ctx->obj);
		dry = pull(ctx);
		a = ctx->async_head;
		if (a) {
			ctx->async_head = a->next;
			if (!a->next)
				ctx->async_tail = &ctx->async_head;
			if (a->delivered)
				++*a->delivered;
			*event = a->ev;
		}
		weft_unlock(&ctx->obj);
		if (dry)
			weft_ring_bell(ctx, ctx->evq.index);
		if (a) {
			free(a);
			return 0;
		}
		/* Its object was destroyed in the meantime. */
	}
}

static void ack(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *completed, uint32_t n)
{
	pthread_mutex_lock(m);
	*completed += n;
	pthread_cond_signal(c);
	pthread_mutex_unlock(m);
}

WEFT_PUBLIC void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct ibv_qp *qp = event->element.qp;
	struct ibv_cq *cq = event->element.cq;
	struct ibv_srq *srq = event->element.srq;

	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		WEFT_FORWARD(cq->context, , ibv_ack_async_event, event);
		ack(&cq->mutex, &cq->cond, &cq->async_events_completed, 1);
		return;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		WEFT_FORWARD(qp->context, , ibv_ack_async_event, event);
		ack(&qp->mutex, &qp->cond, &qp->events_completed, 1);
		return;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		WEFT_FORWARD(srq->context, , ibv_ack_async_event, event);
		ack(&srq->mutex, &srq->cond, &srq->events_completed, 1);
		return;
	default:
		return; /* of the port or the device: no destroy waits for it */
	}
}

void weft_await_acks(struct weft_ctx *ctx, pthread_mutex_t *m, pthread_cond_t *c,
		     const uint32_t *completed, const uint32_t *delivered)
{
	if (atomic_load(&ctx->dead) == WEFT_FORKED)
		return;
	pthread_mutex_lock(m);
	while (*completed != *delivered)
		pthread_cond_wait(c, m);
	pthread_mutex_unlock(m);
}

int weft_events_open(struct weft_ctx *ctx)
{
	struct weft_cmd_create_cq mk = { .cqe = EVQ_NUM };
	struct weft_res_create_cq made;
	struct weft_cmd_set_evq set = { 0 };
	int fd[2], err;

	ctx->async_tail = &ctx->async_head;
	if (pipe2(fd, O_CLOEXEC))
		return errno;
	ctx->vctx.context.async_fd = fd[0];
	ctx->async_rd = weft_fd_of(fd[0]);
	ctx->async_wr = weft_fd_of(fd[1]);
	let_node_open(fd[1]);
	if ((err = weft_command(ctx, WEFT_CMD_CREATE_CQ, &mk, sizeof(mk), &made, sizeof(made))) ||
	    (err = weft_ring_init(ctx, &ctx->evq, EVQ_NUM, EVQ_SLOT, true)))
		return err;
	ctx->evq.head = EVQ_NUM;
	weft_ring_publish(&ctx->evq);
	set.cqn = made.cqn;
	if ((err = weft_ring_set(ctx, &ctx->evq, 3 + made.cqn, fd[1], TOKEN_RING)))
		return err;
	return weft_command(ctx, WEFT_CMD_SET_EVQ, &set, sizeof(set), NULL, 0);
}

void weft_events_close(struct weft_ctx *ctx)
{
	struct weft_async *a;

	while ((a = ctx->async_head)) {
		ctx->async_head = a->next;
		free(a);
	}
	if (atomic_load(&ctx->dead) == WEFT_FORKED)
		return; /* closed when the child was born */
	weft_fd_close(&ctx->async_rd);
	weft_fd_close(&ctx->async_wr);
}

void weft_events_fatal(struct weft_ctx *ctx)
{
	weft_lock(&ctx->obj);
	put_record(&ctx->async_wr, TOKEN_FATAL);
	for (struct weft_channel *ch = ctx->channels; ch; ch = ch->next)
		put_record(&ch->wr, CHANNEL_FATAL);
	weft_unlock(&ctx->obj);
}

/* ---- completion channels ---- */

WEFT_PUBLIC struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct weft_channel *ch;
	struct weft_ctx *ctx;
	int fd[2];

	WEFT_FORWARD(c, NULL, ibv_create_comp_channel, c);
	ctx = weft_ctx(c);
	if (weft_dead(ctx)) {
		errno = EIO;
		return NULL;
	}
	ch = calloc(1, sizeof(*ch));
	if (!ch)
		return NULL;
	if (pipe2(fd, O_CLOEXEC)) {
		free(ch);
		return NULL;
	}
	let_node_open(fd[1]);
	ch->ch.context = c;
	ch->ch.fd = fd[0];
	ch->rd = weft_fd_of(fd[0]);
	ch->wr = weft_fd_of(fd[1]);
	weft_lock(&ctx->obj);
	ch->next = ctx->channels;
	ctx->channels = ch;
	if (weft_dead(ctx))
		put_record(&ch->wr, CHANNEL_FATAL);
	weft_unlock(&ctx->obj);
	return &ch->ch;
}

WEFT_PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *c)
{
	struct weft_channel *ch = weft_container(c, struct weft_channel, ch);
	struct weft_ctx *ctx;

	WEFT_FORWARD(c->context, errno, ibv_destroy_comp_channel, c);
	ctx = weft_ctx(c->context);
	weft_lock(&ctx->obj);
	if (ch->ch.refcnt) {
		weft_unlock(&ctx->obj);
		return weft_ret(EBUSY);
	}
	for (struct weft_channel **at = &ctx->channels; *at; at = &(*at)->next) {
		if (*at == ch) {
			*at = ch->next;
			break;
		}
	}
	weft_unlock(&ctx->obj);
	if (atomic_load(&ctx->dead) != WEFT_FORKED) {
		weft_fd_close(&ch->rd);
		weft_fd_close(&ch->wr);
	}
	free(ch);
	return 0;
}

static uint64_t cookie(const struct weft_cq *cq)
{
	return (uint64_t)cq->gen << 32 | cq->cq.handle;
}

void weft_raise(struct weft_cq *cq)
{
	struct weft_channel *ch = weft_container(cq->cq.channel, struct weft_channel, ch);

	if (!put_record(&ch->wr, cookie(cq))) {
		atomic_store(&cq->stalled, true);
		atomic_store(&ch->stalled, true);
	}
}

/* The pipe has room again: writes what found none. */
static void unstall(struct weft_ctx *ctx, struct weft_channel *ch)
{
	if (!atomic_exchange(&ch->stalled, false))
		return;
	weft_lock(&ctx->obj);
	for (uint32_t i = 0; i < ctx->max_cqs; i++) {
		struct weft_cq *cq = ctx->cqs[i];

		if (cq && cq->cq.channel == &ch->ch && atomic_exchange(&cq->stalled, false))
			weft_raise(cq);
	}
	weft_unlock(&ctx->obj);
}

WEFT_PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **cq, void **cq_context)
{
	struct weft_channel *ch = weft_container(c, struct weft_channel, ch);
	struct weft_ctx *ctx;

	WEFT_FORWARD(c->context, -1, ibv_get_cq_event, c, cq, cq_context);
	ctx = weft_ctx(c->context);
	for (;;) {
		struct weft_cq *q = NULL;
		uint64_t record;

		if (atomic_load(&ctx->dead) == WEFT_FORKED) {
			errno = EIO;
			return -1;
		}
		if (!weft_fd_good(&ch->rd)) {
			errno = EBADF;
			return -1;
		}
		if (weft_sys_read(ch->rd.fd, &record, sizeof(record)) != sizeof(record))
			return -1;
		if (record == CHANNEL_FATAL) {
			put_record(&ch->wr, CHANNEL_FATAL);
			errno = EIO;
			return -1;
		}
		unstall(ctx, ch);
		weft_lock(&ctx->obj);
		if ((uint32_t)record < ctx->max_cqs)
			q = ctx->cqs[(uint32_t)record];
		if (q && cookie(q) == record) {
			q->comp_delivered++;
			*cq = &q->cq;
			*cq_context = q->cq.cq_context;
		} else {
			q = NULL; /* destroyed since */
		}
		weft_unlock(&ctx->obj);
		if (q)
			return 0;
	}
}

WEFT_PUBLIC void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	WEFT_FORWARD(cq->context, , ibv_ack_cq_events, cq, n);
	ack(&cq->mutex, &cq->cond, &cq->comp_events_completed, n);
}

/* Takes the records of a CQ that is gone out of its channel, so that no thread is
 * woken for nothing. Where that cannot be (take_record) they go when read. */
void weft_channel_purge(struct weft_cq *cq)
{
	struct weft_channel *ch = weft_container(cq->cq.channel, struct weft_channel, ch);
	uint64_t record, gone = cookie(cq);
	int bytes = 0;

	weft_lock(&ch->lock);
	if (!weft_fd_good(&ch->rd) || ioctl(ch->rd.fd, FIONREAD, &bytes))
		bytes = 0;
	for (; bytes >= (int)sizeof(record); bytes -= (int)sizeof(record)) {
		if (!take_record(&ch->rd, &record))
			break;
		if (record != gone)
			put_record(&ch->wr, record);
	}
	weft_unlock(&ch->lock);
}
