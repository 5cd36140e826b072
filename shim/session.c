// SPDX-License-Identifier: Apache-2.0
/*
 * The vhost-user session with the node, the control queue on it, and
 * the thread that notices when the node goes away. docs/notes/abi.md §2-§4.
 */
#include "weft.h"
#include "explain.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CTL_NUM      4u
#define CTL_SLOT     4096u
#define CTL_RESULT   2560u   /* offset of the answer in the slot */
#define CTL_SPINS    200     /* looks at the ring before sleeping */

#define NEED_FEATURES (1ull << WEFT_F_VERSION_1 | 1ull << WEFT_F_CTRL_VQ | 1ull << WEFT_F_ROCE)
#define NEED_PROTOCOL (1ull << WEFT_PF_REPLY_ACK | 1ull << WEFT_PF_CONFIG | \
		       1ull << WEFT_PF_CONFIGURE_MEM_SLOTS | 1ull << WEFT_PF_STATUS | \
		       1ull << WEFT_PF_WEFT)
#define NEED_EXT (1ull << WEFT_CAP_ERRNO_ACK | 1ull << WEFT_CAP_SG_WQE | 1ull << WEFT_CAP_VERBS | \
		  1ull << WEFT_CAP_ARM_DOORBELL | 1ull << WEFT_CAP_ASYNC_EVQ)
#define KNOWN_EXT (NEED_EXT | 1ull << WEFT_CAP_ATOMIC | 1ull << WEFT_CAP_SRQ | \
		   1ull << WEFT_CAP_MEM_MGT | 1ull << WEFT_CAP_MW | 1ull << WEFT_CAP_ATOMIC_WRITE | \
		   1ull << WEFT_CAP_SRQ_RESIZE)

static int send_all(int sock, const struct weft_vu_hdr *h, const void *payload, int fd)
{
	struct iovec iov[2] = {
		{ (void *)h, sizeof(*h) },
		{ (void *)payload, h->size },
	};
	union {
		struct cmsghdr hdr;
		char room[CMSG_SPACE(sizeof(int))];
	} ctl = { 0 };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = h->size ? 2 : 1 };
	size_t left = sizeof(*h) + h->size;

	if (fd >= 0) {
		m.msg_control = &ctl;
		m.msg_controllen = sizeof(ctl);
		ctl.hdr.cmsg_level = SOL_SOCKET;
		ctl.hdr.cmsg_type = SCM_RIGHTS;
		ctl.hdr.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&ctl.hdr), &fd, sizeof(int));
	}
	while (left) {
		ssize_t n = sendmsg(sock, &m, MSG_NOSIGNAL);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			return errno;
		}
		left -= (size_t)n;
		m.msg_control = NULL;
		m.msg_controllen = 0;
		while (n > 0) {
			size_t k = (size_t)n < m.msg_iov->iov_len ? (size_t)n : m.msg_iov->iov_len;

			m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + k;
			m.msg_iov->iov_len -= k;
			n -= (ssize_t)k;
			if (!m.msg_iov->iov_len) {
				m.msg_iov++;
				m.msg_iovlen--;
			}
		}
	}
	return 0;
}

static int recv_all(int sock, void *p, size_t n)
{
	while (n) {
		ssize_t k = recv(sock, p, n, 0);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return k ? errno : EIO;
		p = (char *)p + k;
		n -= (size_t)k;
	}
	return 0;
}

/* One message and, where replylen is not 0, its answer. ctl is held, or the
 * context is not yet known to anyone else. */
static int exchange(struct weft_ctx *ctx, uint32_t request, uint32_t flags, const void *payload,
		    uint32_t size, int fd, void *reply, uint32_t replylen)
{
	struct weft_vu_hdr h = { request, WEFT_VU_VERSION | flags, size };
	uint64_t code;
	int err;

	if (weft_dead(ctx) || !weft_fd_good(&ctx->sock))
		goto lost;
	err = send_all(ctx->sock.fd, &h, payload, fd);
	if (!err && replylen)
		err = recv_all(ctx->sock.fd, &h, sizeof(h));
	if (err)
		goto lost;
	if (!replylen)
		return 0;
	if (h.request != request || !(h.flags & WEFT_VU_REPLY))
		goto lost;
	if (h.size == replylen)
		return recv_all(ctx->sock.fd, reply, replylen) ? EIO : 0;
	if (h.size == sizeof(code)) {
		/* An errno where another answer was due. */
		if (recv_all(ctx->sock.fd, &code, sizeof(code)))
			goto lost;
		return code && code < 4096 ? (int)code : EPROTO;
	}
	if (h.size == 0)
		return EPROTO;
lost:
	weft_session_lost(ctx);
	return EIO;
}

static int get_u64(struct weft_ctx *ctx, uint32_t request, uint64_t *v)
{
	return exchange(ctx, request, 0, NULL, 0, -1, v, sizeof(*v));
}

int weft_session_request(struct weft_ctx *ctx, uint32_t request, const void *payload, uint32_t size,
		      int fd)
{
	uint64_t code = 0;
	int err;

	if (weft_dead(ctx))
		return EIO;
	weft_lock(&ctx->ctl);
	err = exchange(ctx, request, WEFT_VU_NEED_REPLY, payload, size, fd, &code, sizeof(code));
	weft_unlock(&ctx->ctl);
	if (!err && code)
		err = code < 4096 ? (int)code : EPROTO;
	if (err)
		weft_log("request %#x: %s", request, strerror(err));
	return err;
}

static int set_u64(struct weft_ctx *ctx, uint32_t request, uint64_t v)
{
	return weft_session_request(ctx, request, &v, sizeof(v), -1);
}

/* ---- the control queue ---- */

static bool answered(struct weft_ctx *ctx)
{
	return weft_used_idx(&ctx->ctlq) == (uint16_t)ctx->ctlq.head;
}

/* Waits for the answer: a few looks, letting the node run, then asleep until
 * it calls or hangs up. */
static int await_answer(struct weft_ctx *ctx)
{
	uint64_t n;

	for (int i = 0; i < CTL_SPINS; i++) {
		if (answered(ctx))
			return 0;
		sched_yield();
	}
	while (!answered(ctx)) {
		struct pollfd p[2] = {
			{ .fd = ctx->call.fd, .events = POLLIN },
			{ .fd = ctx->sock.fd, .events = POLLRDHUP },
		};

		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return EIO;
		if (p[0].revents & POLLIN)
			weft_sys_read(ctx->call.fd, &n, sizeof(n));
		if ((p[1].revents || (p[0].revents & ~POLLIN)) && !answered(ctx)) {
			weft_session_lost(ctx);
			return EIO;
		}
	}
	return 0;
}

static bool makes_object(uint8_t cmd)
{
	return cmd == WEFT_CMD_CREATE_PD || cmd == WEFT_CMD_CREATE_CQ || cmd == WEFT_CMD_CREATE_QP ||
	       cmd == WEFT_CMD_CREATE_SRQ || cmd == WEFT_CMD_REG_MR_VA;
}

int weft_command_beside(struct weft_ctx *ctx, uint8_t cmd, const void *in, size_t inlen, void *out, size_t outlen,
			void (*meanwhile)(void *arg), void *arg)
{
	struct weft_ring *r = &ctx->ctlq;
	int saved = errno, err;
	uint8_t *req, *res;

	if (weft_dead(ctx) || 2 + inlen > CTL_RESULT || 1 + outlen > CTL_SLOT - CTL_RESULT)
		return EIO;
	if (!weft_fd_good(&ctx->sock) || !weft_fd_good(&ctx->call)) {
		weft_session_lost(ctx);
		return EIO;
	}
	weft_lock(&ctx->ctl);
	req = weft_slot(r, 0);
	res = req + CTL_RESULT;
	req[0] = WEFT_CLASS_ROCE;
	req[1] = cmd;
	if (inlen)
		memcpy(req + 2, in, inlen);
	memset(res, 0, 1 + outlen);
	res[0] = WEFT_ACK_ERR;
	r->desc[0].len = (uint32_t)(2 + inlen);
	r->desc[1].len = (uint32_t)(1 + outlen);
	r->head++;
	weft_ring_publish(r);
	weft_ring_bell(ctx, r->index);
	if (meanwhile)
		meanwhile(arg);
	err = await_answer(ctx);
	if (!err && res[0] != WEFT_ACK_OK)
		err = ctx->ext & 1ull << WEFT_CAP_ERRNO_ACK ? res[0] : EIO;
	if (!err && outlen)
		memcpy(out, res + 1, outlen);
	weft_unlock(&ctx->ctl);
	if (err)
		weft_log("command %u: %s", cmd, strerror(err));
	else if (makes_object(cmd))
		weft_explain_made();
	errno = saved;
	return err;
}

int weft_command(struct weft_ctx *ctx, uint8_t cmd, const void *in, size_t inlen, void *out,
		 size_t outlen)
{
	return weft_command_beside(ctx, cmd, in, inlen, out, outlen, NULL, NULL);
}

static int control_queue(struct weft_ctx *ctx)
{
	struct weft_ring *r = &ctx->ctlq;
	int err = weft_ring_init(ctx, r, CTL_NUM, CTL_SLOT, false);

	if (err)
		return err;
	/* Every command is the same chain: request, then answer. */
	r->desc[0].flags = WEFT_VRING_DESC_NEXT;
	r->desc[0].next = 1;
	r->desc[1].addr = r->desc[0].addr + CTL_RESULT;
	r->desc[1].flags = WEFT_VRING_DESC_WRITE;
	for (uint32_t i = 0; i < CTL_NUM; i++)
		r->avail->ring[i] = 0;
	return weft_ring_set(ctx, r, 2, ctx->call.fd, 1);
}

/* ---- session ---- */

static int connect_to(struct weft_ctx *ctx, const char *path, struct ucred *cred)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	socklen_t len = sizeof(*cred);

	if (strlen(path) >= sizeof(sa.sun_path))
		return ENAMETOOLONG;
	strcpy(sa.sun_path, path);
	ctx->sock = weft_fd_of(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	if (ctx->sock.fd < 0)
		return errno;
	while (connect(ctx->sock.fd, (struct sockaddr *)&sa, sizeof(sa)))
		if (errno != EINTR)
			return errno;
	if (getsockopt(ctx->sock.fd, SOL_SOCKET, SO_PEERCRED, cred, &len))
		return errno;
	if (!weft_trusted(cred)) {
		weft_log("%s: the node runs as uid %u, which this program does not trust. "
			 "fix: set WEFT_TRUST_UID=%u", path, cred->uid, cred->uid);
		return EPERM;
	}
	return 0;
}

static int negotiate(struct weft_ctx *ctx)
{
	struct weft_hello hello = { .abi = WEFT_ABI_VERSION, .pid = (uint32_t)getpid() };
	struct weft_hello_reply welcome;
	struct {
		struct weft_vu_config h;
		struct weft_config c;
	} conf = { .h = { 0, sizeof(struct weft_config), 0 } };
	uint64_t v;
	int err;

	_Static_assert(sizeof(conf) == 44, "no padding between head and bytes");
	err = exchange(ctx, WEFT_VU_HELLO, WEFT_VU_NEED_REPLY, &hello, sizeof(hello), -1, &welcome,
		       sizeof(welcome));
	if (err || welcome.abi != WEFT_ABI_VERSION) {
		weft_log("the node refused a session of ABI version %u: %s. fix: weft status",
			 WEFT_ABI_VERSION, strerror(err));
		return err ? err : EPROTO;
	}

	if ((err = get_u64(ctx, WEFT_VU_GET_FEATURES, &v)))
		return err;
	if ((v & (NEED_FEATURES | 1ull << WEFT_F_PROTOCOL_FEATURES)) !=
	    (NEED_FEATURES | 1ull << WEFT_F_PROTOCOL_FEATURES))
		return EPROTO;
	if ((err = get_u64(ctx, WEFT_VU_GET_PROTOCOL_FEATURES, &v)))
		return err;
	if ((v & NEED_PROTOCOL) != NEED_PROTOCOL)
		return EPROTO;
	v = NEED_PROTOCOL;
	/* Not acknowledged: REPLY_ACK is what this very message turns on. */
	if ((err = exchange(ctx, WEFT_VU_SET_PROTOCOL_FEATURES, 0, &v, sizeof(v), -1, NULL, 0)))
		return err;
	if ((err = weft_session_request(ctx, WEFT_VU_SET_OWNER, NULL, 0, -1)) ||
	    (err = set_u64(ctx, WEFT_VU_SET_STATUS, WEFT_STATUS_ACKNOWLEDGE)) ||
	    (err = set_u64(ctx, WEFT_VU_SET_STATUS, WEFT_STATUS_ACKNOWLEDGE | WEFT_STATUS_DRIVER)))
		return err;
	if ((err = exchange(ctx, WEFT_VU_GET_CONFIG, 0, &conf, sizeof(conf), -1, &conf,
			    sizeof(conf))))
		return err;
	ctx->max_qps = conf.c.max_rdma_qps;
	ctx->max_cqs = conf.c.max_rdma_cqs;
	if (!ctx->max_qps || ctx->max_qps > WEFT_MAX_OBJECT_RINGS || !ctx->max_cqs ||
	    ctx->max_cqs > WEFT_MAX_OBJECT_RINGS)
		return EPROTO;
	if ((err = set_u64(ctx, WEFT_VU_SET_FEATURES, NEED_FEATURES)) ||
	    (err = set_u64(ctx, WEFT_VU_SET_STATUS, WEFT_STATUS_ACKNOWLEDGE | WEFT_STATUS_DRIVER |
						    WEFT_STATUS_FEATURES_OK)) ||
	    (err = get_u64(ctx, WEFT_VU_GET_STATUS, &v)))
		return err;
	return v & WEFT_STATUS_FEATURES_OK ? 0 : EPROTO;
}

static int doorbell_area(struct weft_ctx *ctx)
{
	uint32_t nbits = (3 + ctx->max_cqs + 2 * ctx->max_qps + 63) & ~63u;
	struct weft_set_doorbell m = { .nbits = nbits };

	ctx->db = weft_shm_alloc(ctx, sizeof(*ctx->db) + nbits / 8);
	if (!ctx->db)
		return errno;
	ctx->db_block = (nbits / 64 + 63) / 64;
	m.gpa = (uintptr_t)ctx->db;
	ctx->kick = weft_fd_of(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (ctx->kick.fd < 0)
		return errno;
	ctx->call = weft_fd_of(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (ctx->call.fd < 0)
		return errno;
	return weft_session_request(ctx, WEFT_VU_SET_DOORBELL, &m, sizeof(m), ctx->kick.fd);
}

/* Registers this process's memory, unless the user chose the arena only. A
 * process that may not open its own memory goes on: registrations then answer
 * EPERM, which names the reason where it matters. */
static int process_memory(struct weft_ctx *ctx, const struct ucred *node)
{
	static const uint64_t word = 0x7765667470726f62; /* in the data of this library */
	struct weft_proc_mem m = { (uintptr_t)&word, word };
	int fd, err;

	if (weft_arena_mode() == WEFT_ARENA_ONLY)
		return 0;
	fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/mem", O_RDWR | O_CLOEXEC, 0);
	if (fd < 0) {
		weft_log("/proc/self/mem: %s: only arena memory can be registered", strerror(errno));
		return 0;
	}
	prctl(PR_SET_PTRACER, (unsigned long)node->pid, 0, 0, 0);
	err = weft_session_request(ctx, WEFT_VU_PROC_MEM, &m, sizeof(m), fd);
	weft_sys_close(fd);
	if (err == EPERM || err == EACCES)
		return 0;
	return err;
}

static void *watch(void *arg)
{
	struct weft_ctx *ctx = arg;

	for (;;) {
		struct pollfd p = { .fd = ctx->sock.fd, .events = POLLRDHUP };

		if (poll(&p, 1, -1) < 0) {
			if (errno == EINTR)
				continue;
			break;
		}
		if (p.revents)
			break;
	}
	if (!__atomic_load_n(&ctx->closing, __ATOMIC_ACQUIRE))
		weft_session_lost(ctx);
	return NULL;
}

static int start_watcher(struct weft_ctx *ctx)
{
	sigset_t all, old;
	pthread_attr_t a;
	int err;

	sigfillset(&all);
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 128 << 10);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&ctx->watcher, &a, watch, ctx);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&a);
	ctx->watched = !err;
	return err;
}

int weft_session_open(struct weft_ctx *ctx, const char *path)
{
	struct ucred node;
	uint64_t mask;
	int err;

	ctx->sock = ctx->kick = ctx->call = ctx->maps = WEFT_NO_FD;
	weft_reach_open(ctx);
	if ((err = connect_to(ctx, path, &node)) || (err = negotiate(ctx)) ||
	    (err = doorbell_area(ctx)) || (err = process_memory(ctx, &node)) ||
	    (err = control_queue(ctx)) ||
	    (err = set_u64(ctx, WEFT_VU_SET_STATUS,
			   WEFT_STATUS_ACKNOWLEDGE | WEFT_STATUS_DRIVER | WEFT_STATUS_FEATURES_OK |
				   WEFT_STATUS_DRIVER_OK)) ||
	    (err = weft_command(ctx, WEFT_CMD_QUERY_DEVICE, NULL, 0, &ctx->attr, sizeof(ctx->attr))))
		goto fail;
	mask = ctx->attr.device_cap_flags & KNOWN_EXT;
	if ((err = weft_command(ctx, WEFT_CMD_EXT_ENABLE, &mask, sizeof(mask), &mask, sizeof(mask))))
		goto fail;
	ctx->ext = mask;
	if ((mask & NEED_EXT) != NEED_EXT) {
		err = EPROTO;
		goto fail;
	}
	err = start_watcher(ctx);
	if (!err)
		return 0;
fail:
	weft_log("%s: %s", path, strerror(err));
	weft_session_close(ctx);
	return err;
}

void weft_session_drop(struct weft_ctx *ctx)
{
	/* All eventfds are one inode: the node recognises ours by the socket. */
	if (!weft_fd_good(&ctx->sock))
		ctx->kick = ctx->call = WEFT_NO_FD;
	weft_fd_close(&ctx->sock);
	weft_fd_close(&ctx->kick);
	weft_fd_close(&ctx->call);
	weft_fd_close(&ctx->maps);
}

void weft_session_close(struct weft_ctx *ctx)
{
	if (atomic_load(&ctx->dead) != WEFT_FORKED) {
		__atomic_store_n(&ctx->closing, true, __ATOMIC_RELEASE);
		if (weft_fd_good(&ctx->sock)) {
			shutdown(ctx->sock.fd, SHUT_RDWR);
			if (ctx->watched)
				pthread_join(ctx->watcher, NULL);
		} else if (ctx->watched) {
			/* The program closed the socket, so nothing can wake the
			 * thread: it keeps what it needs until the process ends. */
			ctx->leaked = true;
		}
		weft_session_drop(ctx);
	}
	atomic_store(&ctx->dead, WEFT_FORKED == atomic_load(&ctx->dead) ? WEFT_FORKED : WEFT_LOST);
	weft_shm_destroy(ctx);
}

void weft_session_lost(struct weft_ctx *ctx)
{
	int alive = WEFT_ALIVE;

	if (!atomic_compare_exchange_strong(&ctx->dead, &alive, WEFT_LOST))
		return;
	weft_log("the node went away");
	weft_explain_lost();
	weft_events_fatal(ctx);
}

void weft_kick(struct weft_ctx *ctx)
{
	uint64_t one = 1;
	int saved = errno;

	/* As in weft_session_drop. */
	if (weft_fd_good(&ctx->sock) && weft_fd_good(&ctx->kick))
		weft_sys_write(ctx->kick.fd, &one, sizeof(one));
	else
		weft_session_lost(ctx);
	errno = saved;
}

int weft_announce_arena(struct weft_ctx *ctx)
{
	struct weft_arena_chunk c[8];
	int err = 0;

	for (;;) {
		uint64_t gen = weft_arena_generation();
		size_t n, i;

		if (gen == __atomic_load_n(&ctx->arena_gen, __ATOMIC_ACQUIRE))
			return 0;
		weft_lock(&ctx->arena_lock);
		n = weft_arena_chunks(ctx->arena_done, c, 8);
		for (i = 0; i < n; i++) {
			struct weft_vu_mem_reg reg = {
				.gpa = (uintptr_t)c[i].base,
				.user_addr = (uintptr_t)c[i].base,
				.size = c[i].len,
			};

			if (c[i].fd >= 0)
				err = weft_session_request(ctx, WEFT_VU_ADD_MEM_REG, &reg, sizeof(reg),
							c[i].fd);
			if (err)
				break;
			ctx->arena_done++;
		}
		if (!err && n < 8)
			__atomic_store_n(&ctx->arena_gen, gen, __ATOMIC_RELEASE);
		weft_unlock(&ctx->arena_lock);
		if (err)
			return err;
	}
}
