// SPDX-License-Identifier: Apache-2.0
/* What every part needs: the lock's slow path, the log, the library behind. */
#include "base.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

void weft_lock_slow(struct weft_lock *l)
{
	for (int i = 0; i < 64; i++) {
		uint32_t free = 0;

		if (atomic_load_explicit(&l->word, memory_order_relaxed) == 0 &&
		    atomic_compare_exchange_strong_explicit(&l->word, &free, 1,
							    memory_order_acquire,
							    memory_order_relaxed))
			return;
		weft_relax();
	}
	/* Having slept once, a thread cannot know whether others still wait, so
	 * it takes the lock as waited for. */
	while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0) {
		int saved = errno;

		syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
		errno = saved;
	}
}

void weft_unlock_slow(struct weft_lock *l)
{
	int saved = errno;

	syscall(SYS_futex, &l->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	errno = saved;
}

static uint64_t inode_of(int fd)
{
	int saved = errno;
	struct stat st;
	uint64_t ino = syscall(SYS_fstat, fd, &st) ? 0 : (uint64_t)st.st_ino;

	errno = saved;
	return ino;
}

struct weft_fd weft_fd_of(int fd)
{
	return (struct weft_fd){ fd, fd < 0 ? 0 : inode_of(fd) };
}

bool weft_fd_good(const struct weft_fd *f)
{
	return f->fd >= 0 && inode_of(f->fd) == f->ino;
}

void weft_fd_close(struct weft_fd *f)
{
	if (weft_fd_good(f))
		weft_sys_close(f->fd);
	*f = WEFT_NO_FD;
}

/* The node gets a descriptor that rules this process, so it must be one the
 * user trusts with that anyway. */
bool weft_trusted(const struct ucred *c)
{
	const char *t = getenv("WEFT_TRUST_UID");

	return c->uid == 0 || c->uid == geteuid() ||
	       (t && *t && strtoul(t, NULL, 10) == c->uid);
}

void weft_log(const char *fmt, ...)
{
	static _Atomic int on = -1;
	int saved = errno;
	char line[512];
	va_list ap;
	int n;

	if (on < 0) {
		const char *e = getenv("WEFT_DEBUG");

		on = e && !strcmp(e, "1");
	}
	if (!on)
		return;
	n = snprintf(line, sizeof(line), "weft[%d]: ", (int)getpid());
	va_start(ap, fmt);
	n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if ((size_t)n > sizeof(line) - 1)
		n = sizeof(line) - 1;
	line[n++] = '\n';
	weft_sys_write(2, line, (size_t)n);
	errno = saved;
}

#ifdef WEFT_REPLACEMENT
void *weft_next(const char *name)
{
	(void)name;
	return NULL; /* this is libibverbs: nothing is behind it */
}
#else
void *weft_next(const char *name)
{
	void *fn = dlsym(RTLD_NEXT, name);

	if (!fn) {
		/* Loaded by a plugin, out of the search order: its own handle finds it. */
		void *lib = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);

		fn = lib ? dlsym(lib, name) : NULL;
	}
	return fn;
}
#endif
