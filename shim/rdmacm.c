// SPDX-License-Identifier: Apache-2.0
/*
 * The connection manager's device, /dev/infiniband/rdma_cm (docs/notes/rdmacm.md).
 * What open returns is a connection to the node, by which nothing comes but a
 * notice when there are events: poll, select and epoll are the kernel's own, and
 * so is the end of the channel, whichever process closes its last descriptor. Commands, which
 * programs write, go by one more connection of the process, under the token that the
 * node gave at open.
 *
 * Commands carry addresses of the program's memory: where an answer goes, where an
 * option is. They are followed here, and the node sees zeroes.
 */
#undef _FORTIFY_SOURCE
#include "base.h"
#include "paths.h"
#include "weft_abi.h"
#include "device.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* --- open channels --------------------------------------------------------- */

#define PAGE  64u
#define PAGES 1024u /* descriptors above PAGE * PAGES cannot be channels */

/* A program closes channels unseen and may have another file under the same
 * number: the inode differs. */
struct channel {
	_Atomic uint64_t ino; /* 0: none; stored last */
	uint8_t token[16];
};

_Atomic int weft_cm_channels; /* entries in use, stale ones included */
static struct channel *_Atomic pages[PAGES];
static struct weft_lock channels_lock; /* guards changes of an entry */

static struct channel *entry(int fd)
{
	struct channel *p;

	if (fd < 0 || (unsigned)fd >= PAGE * PAGES)
		return NULL;
	p = atomic_load_explicit(&pages[(unsigned)fd / PAGE], memory_order_acquire);
	return p ? &p[(unsigned)fd % PAGE] : NULL;
}

/* Copies the token of the channel behind a descriptor. */
static bool channel_of(int fd, uint8_t token[16])
{
	struct channel *c = entry(fd);
	uint64_t ino = c ? atomic_load_explicit(&c->ino, memory_order_acquire) : 0;

	if (!ino)
		return false;
	memcpy(token, c->token, sizeof(c->token));
	if (weft_fd_of(fd).ino == ino)
		return atomic_load(&c->ino) == ino;
	if (atomic_compare_exchange_strong(&c->ino, &ino, 0))
		atomic_fetch_sub(&weft_cm_channels, 1);
	return false;
}

/* The same for a descriptor that the program may have duplicated. */
static bool channel_of_copy(int fd, uint8_t token[16])
{
	uint64_t ino;

	if (channel_of(fd, token))
		return true;
	if (fd < 0 || atomic_load(&weft_cm_channels) == 0 || !(ino = weft_fd_of(fd).ino))
		return false;
	for (unsigned i = 0; i < PAGES; i++) {
		struct channel *p = atomic_load_explicit(&pages[i], memory_order_acquire);

		for (unsigned k = 0; p && k < PAGE; k++)
			if (atomic_load_explicit(&p[k].ino, memory_order_acquire) == ino) {
				memcpy(token, p[k].token, sizeof(p[k].token));
				return atomic_load(&p[k].ino) == ino;
			}
	}
	return false;
}

static int remember(int fd, const uint8_t token[16])
{
	struct channel *c;
	uint64_t ino = weft_fd_of(fd).ino;
	int err = 0;

	if ((unsigned)fd >= PAGE * PAGES || !ino)
		return EMFILE;
	weft_lock(&channels_lock);
	c = entry(fd);
	if (!c) {
		struct channel *p = calloc(PAGE, sizeof(*p));

		if (p) {
			atomic_store_explicit(&pages[(unsigned)fd / PAGE], p, memory_order_release);
			c = entry(fd);
		}
	}
	if (!c) {
		err = ENOMEM;
	} else {
		if (atomic_exchange(&c->ino, 0) == 0)
			atomic_fetch_add(&weft_cm_channels, 1);
		memcpy(c->token, token, sizeof(c->token));
		atomic_store_explicit(&c->ino, ino, memory_order_release);
	}
	weft_unlock(&channels_lock);
	return err;
}

/* --- commands -------------------------------------------------------------- */

static struct {
	struct weft_lock lock;
	struct weft_fd sock;
} commands = { .sock = { -1, 0 } };

static void forked(void)
{
	/* Threads that held the locks do not exist here, and answers that are under
	 * way are for the parent. */
	atomic_store(&channels_lock.word, 0);
	atomic_store(&commands.lock.word, 0);
	weft_fd_close(&commands.sock);
}

/* Opens a connection for the purpose op. Returns the descriptor or -1. */
static int begin(uint32_t op, int type, struct weft_cm_opened *ok)
{
	struct weft_cm_open m = { .op = op, .version = WEFT_CM_VERSION };
	int fd = weft_node_connect("rdmacm.sock", type), err;

	if (fd < 0)
		return -1;
	err = weft_node_ask(fd, &m, sizeof(m), ok, sizeof(*ok));
	if (!err)
		err = (int)ok->error;
	if (!err)
		return fd;
	weft_sys_close(fd);
	errno = err;
	return -1;
}

/* One command and its answer. Returns 0 or an errno. */
static int exchange(const struct weft_cm_command *m, struct weft_cm_answer *a)
{
	struct weft_cm_opened ok;
	int err = 0, fd, state;

	/* A thread that is cancelled where it connects would keep the lock. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	weft_lock(&commands.lock);
	if (!weft_fd_good(&commands.sock)) {
		fd = begin(WEFT_CM_COMMANDS, SOCK_CLOEXEC, &ok);
		if (fd < 0)
			err = errno == ENXIO ? EIO : errno;
		commands.sock = fd < 0 ? WEFT_NO_FD : weft_fd_of(fd);
	}
	if (!err) {
		err = weft_node_ask(commands.sock.fd, m, sizeof(*m), a, sizeof(*a));
		if (err)
			weft_fd_close(&commands.sock);
	}
	weft_unlock(&commands.lock);
	pthread_setcancelstate(state, NULL);
	if (!err && a->length > sizeof(a->data))
		err = EIO;
	return err ? err : (int)a->error;
}

/* Takes back a notice of a channel that has no events any more. Between the
 * node's notice and now others may have come: the node is notified. */
static void take_back(int fd, const uint8_t token[16])
{
	struct weft_cm_command m = { .flags = WEFT_CM_NOTICED, .command = WEFT_CM_RESUME };
	struct weft_cm_answer a;
	struct weft_cm_notice n;

	int state;
	ssize_t k;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	k = recv(fd, &n, sizeof(n), MSG_DONTWAIT);
	pthread_setcancelstate(state, NULL);
	if (k <= 0)
		return;
	memcpy(m.token, token, sizeof(m.token));
	exchange(&m, &a);
}

/* What is known of the body of each command. */
#define NO_ADDRESS 0xffff
static const uint16_t answer_at[] = {
	[WEFT_CM_CREATE_ID] = 8,
	[WEFT_CM_DESTROY_ID] = 0,
	[WEFT_CM_BIND_IP] = NO_ADDRESS,
	[WEFT_CM_RESOLVE_IP] = NO_ADDRESS,
	[WEFT_CM_RESOLVE_ROUTE] = NO_ADDRESS,
	[WEFT_CM_QUERY_ROUTE] = 0,
	[WEFT_CM_CONNECT] = NO_ADDRESS,
	[WEFT_CM_LISTEN] = NO_ADDRESS,
	[WEFT_CM_ACCEPT] = NO_ADDRESS,
	[WEFT_CM_REJECT] = NO_ADDRESS,
	[WEFT_CM_DISCONNECT] = NO_ADDRESS,
	[WEFT_CM_INIT_QP_ATTR] = 0,
	[WEFT_CM_GET_EVENT] = 0,
	[WEFT_CM_GET_OPTION] = NO_ADDRESS,
	[WEFT_CM_SET_OPTION] = NO_ADDRESS,
	[WEFT_CM_NOTIFY] = NO_ADDRESS,
	[WEFT_CM_JOIN_IP_MCAST] = 0,
	[WEFT_CM_LEAVE_MCAST] = 0,
	[WEFT_CM_MIGRATE_ID] = 0,
	[WEFT_CM_QUERY] = 0,
	[WEFT_CM_BIND] = NO_ADDRESS,
	[WEFT_CM_RESOLVE_ADDR] = NO_ADDRESS,
	[WEFT_CM_JOIN_MCAST] = 0,
	[WEFT_CM_RESOLVE_IB_SERVICE] = NO_ADDRESS,
	[WEFT_CM_WRITE_EVENT] = NO_ADDRESS,
};
#define COMMANDS (sizeof(answer_at) / sizeof(answer_at[0]))

/* Offsets in the bodies of SET_OPTION and MIGRATE_ID. */
#define OPTION_LEN_AT 20u
#define OPTION_BODY   24u
#define MIGRATE_FD_AT 12u
#define MIGRATE_BODY  16u

struct header {
	uint32_t command;
	uint16_t in, out;
};

/* Waits for the notice of an event by the flags of the descriptor: not at all, or until
 * a signal's handler has run. The only place where a command can wait, so that
 * a thread that is cancelled holds nothing. */
static int await(int fd)
{
	struct weft_cm_notice n;
	ssize_t k = recv(fd, &n, sizeof(n), 0);

	if (k < 0 && (errno == EAGAIN || errno == EINTR))
		return errno;
	return k > 0 ? 0 : EIO;
}

static int run(int fd, const uint8_t *body, const struct header *h, const uint8_t token[16])
{
	struct weft_cm_command m = { .command = h->command, .in_len = h->in, .out_len = h->out };
	struct weft_cm_answer a = { 0 };
	uint64_t to = 0;
	uint32_t v;
	int old = -1, err;

	if (m.in_len > sizeof(m.data))
		m.in_len = sizeof(m.data);
	memcpy(m.token, token, sizeof(m.token));
	memcpy(m.data, body, m.in_len);
	if (answer_at[h->command] != NO_ADDRESS) {
		if (m.in_len < answer_at[h->command] + sizeof(to))
			return EINVAL;
		memcpy(&to, m.data + answer_at[h->command], sizeof(to));
		memset(m.data + answer_at[h->command], 0, sizeof(to));
	}
	if (h->command == WEFT_CM_SET_OPTION) {
		uint64_t from;

		if (m.in_len < OPTION_BODY)
			return EINVAL;
		memcpy(&from, m.data, sizeof(from));
		memset(m.data, 0, sizeof(from));
		memcpy(&v, m.data + OPTION_LEN_AT, sizeof(v));
		if (v > sizeof(m.data) - OPTION_BODY)
			return EINVAL;
		if (v && !from)
			return EFAULT;
		m.in_len = OPTION_BODY;
		m.option_len = v;
		if (v)
			memcpy(m.data + OPTION_BODY, (const void *)(uintptr_t)from, v);
	}
	if (h->command == WEFT_CM_MIGRATE_ID) {
		if (m.in_len < MIGRATE_BODY)
			return EINVAL;
		memcpy(&v, m.data + MIGRATE_FD_AT, sizeof(v));
		memset(m.data + MIGRATE_FD_AT, 0, sizeof(v));
		old = (int)v;
		if (!channel_of_copy(old, m.from))
			return fcntl(old, F_GETFD) < 0 ? ENOENT : EINVAL;
	}
	for (;;) {
		if (h->command == WEFT_CM_GET_EVENT) {
			err = await(fd);
			if (err)
				return err;
			m.flags = WEFT_CM_NOTICED;
		}
		err = exchange(&m, &a);
		if (a.flags & WEFT_CM_STALE)
			take_back(fd, m.token);
		if (a.flags & WEFT_CM_STALE_FROM)
			take_back(old, m.from);
		/* Another thread may have had the event that the notice was for. */
		if (h->command != WEFT_CM_GET_EVENT || err != EAGAIN)
			break;
	}
	if (err)
		return err;
	if (a.length > h->out)
		a.length = h->out;
	if (a.length && !to)
		return EFAULT;
	if (a.length)
		memcpy((void *)(uintptr_t)to, a.data, a.length);
	return 0;
}

bool weft_cm_owns(int fd, const void *buf, size_t n)
{
	uint8_t token[16];
	struct header h;

	if (channel_of(fd, token))
		return true;
	/* Duplicates are looked for where it looks like a command. */
	if (n < sizeof(h) || !buf)
		return false;
	memcpy(&h, buf, sizeof(h));
	return h.command < COMMANDS && n == sizeof(h) + h.in && channel_of_copy(fd, token);
}

ssize_t weft_cm_write(int fd, const void *buf, size_t n)
{
	int saved = errno, err;
	uint8_t token[16];
	struct header h;

	if (n < sizeof(h)) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&h, buf, sizeof(h));
	if (h.command >= COMMANDS || h.in + sizeof(h) > n)
		err = EINVAL;
	else if (!channel_of_copy(fd, token))
		err = EBADF;
	else
		err = run(fd, (const uint8_t *)buf + sizeof(h), &h, token);
	if (err) {
		if (err != EAGAIN && err != EINTR)
			weft_log("rdma_cm command %u: %s", h.command, strerror(err));
		errno = err;
		return -1;
	}
	errno = saved;
	return (ssize_t)n;
}

int weft_cm_open(int flags)
{
	struct weft_cm_opened ok;
	int saved = errno, err, fd;

	fd = begin(WEFT_CM_CHANNEL, flags & O_CLOEXEC ? SOCK_CLOEXEC : 0, &ok);
	if (fd < 0) {
		weft_log("rdma_cm: %s", strerror(errno));
		return -1;
	}
	err = remember(fd, ok.token);
	if (!err && flags & O_NONBLOCK && fcntl(fd, F_SETFL, O_NONBLOCK))
		err = errno;
	if (err) {
		weft_sys_close(fd);
		errno = err;
		return -1;
	}
	errno = saved;
	return fd;
}

static __attribute__((constructor)) void rdmacm_init(void)
{
	pthread_atfork(NULL, NULL, forked);
}

/* --- what the device looks like --------------------------------------------- */

/* Not declared where the headers are newer than these. */
int __fxstat(int ver, int fd, struct stat *st);
int __fxstat64(int ver, int fd, struct stat64 *st);

/* librdmacm requires a character device. */
#define DEFINE_FSTAT(f, params, args)       \
	WEFT_PUBLIC int f params                                                     \
	{                                                                            \
		static int (*_Atomic next) params;                                   \
		int (*real) params = atomic_load_explicit(&next, memory_order_relaxed); \
		uint8_t token[16];                                                   \
		int r;                                                               \
                                                                                     \
		if (unlikely(!real)) {                                               \
			real = (__typeof__(real))dlsym(RTLD_NEXT, #f);               \
			if (!real) {                                                 \
				errno = ENOSYS;                                      \
				return -1;                                           \
			}                                                            \
			atomic_store_explicit(&next, real, memory_order_relaxed);    \
		}                                                                    \
		r = real args;                                                       \
		if (unlikely(weft_cm_any()) && !r && S_ISSOCK(st->st_mode) &&        \
		    channel_of_copy(fd, token)) {                                    \
			st->st_mode = S_IFCHR | 0666;                                \
			st->st_rdev = makedev(10, 0);                                \
		}                                                                    \
		return r;                                                            \
	}

DEFINE_FSTAT(fstat, (int fd, struct stat *st), (fd, st))
DEFINE_FSTAT(fstat64, (int fd, struct stat64 *st), (fd, st))
DEFINE_FSTAT(__fxstat, (int ver, int fd, struct stat *st), (ver, fd, st))
DEFINE_FSTAT(__fxstat64, (int ver, int fd, struct stat64 *st), (ver, fd, st))
