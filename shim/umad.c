// SPDX-License-Identifier: Apache-2.0
/*
 * User MADs: /dev/infiniband/umadN and issmN (docs/notes/umad.md). What open
 * returns is a connection to the node, one record per MAD, so that poll, select
 * and epoll are the kernel's own. read and write stand in front of libc's for what
 * a socket does otherwise than a device: a record longer than the buffer, and a
 * node that is gone. Requests (ioctl) go by a connection of their own, under the token
 * that the node gave at open.
 *
 * These are hot functions of programs that never see a MAD: unless one of the
 * files is open, they cost one look at a counter. Commands of the connection
 * manager (rdmacm.c) come by them too.
 */
#undef _FORTIFY_SOURCE
#include "base.h"
#include "paths.h"
#include "weft_abi.h"
#include "device.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* What the checking headers do not declare. */
ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
int ioctl(int fd, unsigned long request, ...);

static struct {
	ssize_t (*p_read)(int, void *, size_t);
	ssize_t (*p_write)(int, const void *, size_t);
	ssize_t (*p___read_chk)(int, void *, size_t, size_t);
	int (*p_ioctl)(int, unsigned long, ...);
} next;

static atomic_bool resolved;

/* May run in several threads at once before the constructor: all store the
 * same values. */
static __attribute__((noinline, cold)) void resolve(void)
{
#define X(f) \
	__atomic_store_n((void **)&next.p_##f, dlsym(RTLD_NEXT, #f), __ATOMIC_RELAXED);
	X(read) X(write) X(__read_chk) X(ioctl)
#undef X
	atomic_store_explicit(&resolved, true, memory_order_release);
}

#define CALL(f, args) ({ \
	if (unlikely(!atomic_load_explicit(&resolved, memory_order_acquire))) \
		resolve(); \
	unlikely(!next.p_##f) ? (errno = ENOSYS, -1) : next.p_##f args; })

/* --- open files ------------------------------------------------------------ */

#define MAX_FILES 64
#define MAD_LEN   256u
#define MIN_MAD   36u /* the common header and that of RMPP */

/* An open umadN or issmN. A program may close it unseen, and have another file under the
 * same number: the inode differs. */
struct file {
	atomic_int fd; /* -1: free; stored last */
	uint64_t ino;
	bool sm;
	_Atomic uint32_t header; /* length, of umadN */
	uint8_t token[16];
	struct weft_lock reading;
};

static struct file files[MAX_FILES];
static atomic_int open_files; /* entries in use, stale ones included */
static struct weft_lock files_lock; /* guards allocation of entries */

static void forked(void)
{
	/* Threads that held these do not exist here. */
	atomic_store(&files_lock.word, 0);
	for (int i = 0; i < MAX_FILES; i++)
		atomic_store(&files[i].reading.word, 0);
}

static uint64_t inode(int fd)
{
	return weft_fd_of(fd).ino;
}

static void forget(struct file *f, int fd)
{
	weft_lock(&files_lock);
	if (atomic_compare_exchange_strong(&f->fd, &fd, -1))
		atomic_fetch_sub(&open_files, 1);
	weft_unlock(&files_lock);
}

static __attribute__((noinline)) struct file *look(int fd)
{
	for (int i = 0; i < MAX_FILES; i++) {
		struct file *f = &files[i];

		if (atomic_load_explicit(&f->fd, memory_order_acquire) != fd)
			continue;
		if (inode(fd) == f->ino)
			return f;
		forget(f, fd);
	}
	return NULL;
}

static inline struct file *find(int fd)
{
	if (likely(atomic_load_explicit(&open_files, memory_order_relaxed) == 0) || fd < 0)
		return NULL;
	return look(fd);
}

/* The file behind a descriptor that the program duplicated. */
static struct file *find_copy(int fd)
{
	struct file *f = find(fd);
	uint64_t ino;

	if (f || fd < 0 || atomic_load(&open_files) == 0 || !(ino = inode(fd)))
		return f;
	for (int i = 0; i < MAX_FILES; i++)
		if (atomic_load_explicit(&files[i].fd, memory_order_acquire) >= 0 &&
		    files[i].ino == ino)
			return &files[i];
	return NULL;
}

static int remember(int fd, bool sm, const struct weft_umad_opened *m)
{
	int err = ENFILE;

	weft_lock(&files_lock);
	for (int i = 0; i < MAX_FILES; i++) {
		struct file *f = &files[i];
		int old = atomic_load(&f->fd);

		if (old >= 0 && inode(old) == f->ino)
			continue;
		if (old < 0)
			atomic_fetch_add(&open_files, 1);
		f->ino = inode(fd);
		f->sm = sm;
		f->header = m->header_len;
		memcpy(f->token, m->token, sizeof(f->token));
		atomic_store_explicit(&f->fd, fd, memory_order_release);
		err = 0;
		break;
	}
	weft_unlock(&files_lock);
	return err;
}

/* --- the node -------------------------------------------------------------- */

int weft_node_connect(const char *name, int type)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct ucred node;
	socklen_t len = sizeof(node);
	const char *dir = weft_dir();
	int fd, n, err;

	n = dir ? snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/%s", dir, name) : -1;
	if (n < 0 || (size_t)n >= sizeof(sa.sun_path)) {
		errno = ENXIO;
		return -1;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | type, 0);
	if (fd < 0)
		return -1;
	while (connect(fd, (struct sockaddr *)&sa, sizeof(sa)))
		if (errno != EINTR) {
			err = ENXIO; /* as from a device without its driver */
			goto fail;
		}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &node, &len) || !weft_trusted(&node)) {
		err = EPERM;
		goto fail;
	}
	return fd;
fail:
	weft_sys_close(fd);
	errno = err;
	return -1;
}

/* One record out, one in; patient: a signal does not end the wait. */
static int ask(int fd, const void *req, size_t reqlen, void *ans, size_t anslen, bool patient)
{
	ssize_t n;

	do
		n = send(fd, req, reqlen, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return EIO;
	do
		n = recv(fd, ans, anslen, 0);
	while (n < 0 && errno == EINTR && patient);
	if (n < 0 && errno == EINTR)
		return EINTR;
	return n == (ssize_t)anslen ? 0 : EIO;
}

int weft_node_ask(int fd, const void *req, size_t reqlen, void *ans, size_t anslen)
{
	int err, state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	err = ask(fd, req, reqlen, ans, anslen, true);
	pthread_setcancelstate(state, NULL);
	return err;
}

/* The device and port that umadN or issmN stands for. */
static bool whose(const char *name, struct weft_umad_open *m)
{
	char path[1200], text[2][66] = { "", "" };
	static const char *const leaf[2] = { "ibdev", "port" };

	for (int i = 0; i < 2; i++) {
		int n = snprintf(path, sizeof(path), "%s/sys/class/infiniband_mad/%s/%s", weft_tree(), name,
				 leaf[i]);
		int fd = n < 0 || (size_t)n >= sizeof(path) ? -1 :
			 (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
		long k;

		if (fd < 0)
			return false;
		k = weft_sys_read(fd, text[i], sizeof(text[i]) - 1);
		weft_sys_close(fd);
		if (k <= 0)
			return false;
		text[i][strcspn(text[i], "\n")] = '\0';
	}
	if (!*text[0] || strlen(text[0]) > sizeof(m->device))
		return false;
	memcpy(m->device, text[0], strlen(text[0]));
	m->port = (uint32_t)strtoul(text[1], NULL, 10);
	return true;
}

static bool numbered(const char *name, const char *kind)
{
	size_t n = strlen(kind);

	return !strncmp(name, kind, n) && name[n] && strspn(name + n, "0123456789") == strlen(name + n);
}

/* Long answers of a subnet manager that runs here need room on their way. */
static void widen(int fd)
{
	int size = 4 << 20;

	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

static int open_device(const char *name, int flags)
{
	struct weft_umad_open m = { .version = WEFT_UMAD_VERSION };
	struct weft_umad_opened ok;
	bool sm = numbered(name, "issm");
	int saved = errno, fd, err;

	if (!strcmp(name, "rdma_cm"))
		return weft_cm_open(flags);
	if (!sm && !numbered(name, "umad"))
		return WEFT_NOT_MINE;
	if (!whose(name, &m)) {
		errno = saved;
		return WEFT_NOT_MINE; /* which prints why */
	}
	m.op = sm ? WEFT_UMAD_OPEN_ISSM : WEFT_UMAD_OPEN;
	m.flags = flags & O_NONBLOCK ? WEFT_UMAD_NONBLOCK : 0;
	fd = weft_node_connect("umad.sock", flags & O_CLOEXEC ? SOCK_CLOEXEC : 0);
	if (fd < 0)
		return -1;
	err = ask(fd, &m, sizeof(m), &ok, sizeof(ok), !sm);
	if (!err)
		err = (int)ok.error;
	if (!err)
		err = remember(fd, sm, &ok);
	if (!err && flags & O_NONBLOCK && fcntl(fd, F_SETFL, O_NONBLOCK))
		err = errno;
	if (err) {
		weft_log("%s: %s", name, strerror(err));
		weft_sys_close(fd);
		errno = err;
		return -1;
	}
	widen(fd);
	errno = saved;
	return fd;
}

static __attribute__((constructor)) void umad_init(void)
{
	resolve();
	for (int i = 0; i < MAX_FILES; i++)
		atomic_store(&files[i].fd, -1);
	pthread_atfork(NULL, NULL, forked);
	weft_device_open = open_device;
}

/* --- what programs call ------------------------------------------------------ */

static ssize_t failed(int err)
{
	errno = err;
	return -1;
}

static __attribute__((noinline, cold)) ssize_t read_mad(struct file *f, int fd, void *buf, size_t n)
{
	const int look = MSG_PEEK | MSG_TRUNC;

	if (f->sm)
		return failed(EINVAL);
	for (;;) {
		size_t header = atomic_load(&f->header);
		ssize_t real = recv(fd, NULL, 0, look), got = -1;
		int err = 0;

		if (real < 0 && (errno == EAGAIN || errno == EINTR))
			return -1;
		if (real <= 0)
			return failed(EIO);
		if (n < header)
			return failed(EINVAL);
		/* Another thread may take that record: from here on it cannot. */
		weft_lock(&f->reading);
		real = recv(fd, NULL, 0, look | MSG_DONTWAIT);
		if (real <= 0)
			err = real < 0 && errno == EAGAIN ? EAGAIN : EIO;
		else if ((size_t)real <= n)
			got = recv(fd, buf, n, MSG_DONTWAIT);
		else if ((size_t)real <= header + MAD_LEN || n < header + MAD_LEN)
			err = EINVAL;
		else if (recv(fd, buf, header + MAD_LEN, MSG_PEEK | MSG_DONTWAIT) >= 0)
			err = ENOSPC; /* the first segment, and the length of all */
		else
			err = EIO;
		weft_unlock(&f->reading);
		if (got >= 0)
			return got;
		if (err != EAGAIN)
			return failed(err ? err : EIO);
	}
}

WEFT_PUBLIC ssize_t read(int fd, void *buf, size_t n)
{
	struct file *f = find(fd);

	if (unlikely(weft_cm_any()) && weft_cm_owns(fd, NULL, 0))
		return failed(EINVAL);
	return likely(!f) ? CALL(read, (fd, buf, n)) : read_mad(f, fd, buf, n);
}

WEFT_PUBLIC ssize_t __read_chk(int fd, void *buf, size_t n, size_t room)
{
	struct file *f = find(fd);

	return likely(!f || n > room) ? CALL(__read_chk, (fd, buf, n, room)) : read_mad(f, fd, buf, n);
}

static __attribute__((noinline, cold)) ssize_t write_mad(struct file *f, int fd, const void *buf,
							  size_t n)
{
	if (f->sm || n < atomic_load(&f->header) + MIN_MAD)
		return failed(EINVAL);
	for (;;) {
		ssize_t k = send(fd, buf, n, MSG_NOSIGNAL);
		struct pollfd p = { .fd = fd, .events = POLLOUT };

		if (k >= 0 || errno == EINTR || errno == EFAULT)
			return k;
		if (errno == EMSGSIZE || errno == ENOBUFS || errno == ENOMEM)
			return failed(ENOMEM);
		if (errno != EAGAIN)
			return failed(EIO);
		/* A device never makes a program repeat its MAD. */
		if (poll(&p, 1, -1) < 0)
			return -1;
	}
}

WEFT_PUBLIC ssize_t write(int fd, const void *buf, size_t n)
{
	struct file *f = find(fd);

	if (unlikely(weft_cm_any()) && weft_cm_owns(fd, buf, n))
		return weft_cm_write(fd, buf, n);
	return likely(!f) ? CALL(write, (fd, buf, n)) : write_mad(f, fd, buf, n);
}

#define IOCTL_TYPE 0x1b

static const struct {
	unsigned long request;
	uint32_t length;
} requests[] = {
	{ _IOC(_IOC_READ | _IOC_WRITE, IOCTL_TYPE, 1, 28), 28 }, /* REGISTER_AGENT */
	{ _IOC(_IOC_WRITE, IOCTL_TYPE, 2, 4), 4 },               /* UNREGISTER_AGENT */
	{ _IOC(_IOC_NONE, IOCTL_TYPE, 3, 0), 0 },                /* ENABLE_PKEY */
	{ _IOC(_IOC_READ | _IOC_WRITE, IOCTL_TYPE, 4, 40), 40 }, /* REGISTER_AGENT2 */
};

static __attribute__((noinline, cold)) int control(struct file *f, unsigned long request, void *arg)
{
	struct weft_umad_control m = { .op = WEFT_UMAD_CONTROL, .version = WEFT_UMAD_VERSION };
	struct weft_umad_controlled ok;
	int saved = errno, fd, err;

	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
		if (!f->sm && requests[i].request == (unsigned int)request) {
			m.number = _IOC_NR(request);
			m.length = requests[i].length;
		}
	if (!m.number)
		return (int)failed(ENOTTY);
	if (m.length && !arg)
		return (int)failed(EFAULT);
	memcpy(m.token, f->token, sizeof(m.token));
	if (m.length)
		memcpy(m.arg, arg, m.length);
	fd = weft_node_connect("umad.sock", SOCK_CLOEXEC);
	if (fd < 0)
		return (int)failed(EIO);
	err = ask(fd, &m, sizeof(m), &ok, sizeof(ok), true);
	weft_sys_close(fd);
	if (err)
		return (int)failed(err);
	if (ok.header_len)
		atomic_store(&f->header, ok.header_len);
	if (m.length && request & ((unsigned long)_IOC_READ << _IOC_DIRSHIFT))
		memcpy(arg, ok.arg, m.length);
	if (ok.error) {
		weft_log("user MAD request %u: %s", m.number, strerror((int)ok.error));
		return (int)failed((int)ok.error);
	}
	errno = saved;
	return 0;
}

WEFT_PUBLIC int ioctl(int fd, unsigned long request, ...)
{
	struct file *f = NULL;
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (unlikely(_IOC_TYPE(request) == IOCTL_TYPE))
		f = find_copy(fd);
	return likely(!f) ? CALL(ioctl, (fd, request, arg)) : control(f, request, arg);
}
