// SPDX-License-Identifier: Apache-2.0
/*
 * Path redirection. Programs and libraries (UCX, libibumad, ls) read below
 * /sys/class/infiniband and /dev/infiniband by themselves; on a host without
 * kernel RDMA these exist only in the tree the node writes. The functions below
 * stand in front of libc's and replace exactly five prefixes.
 *
 * These are hot functions of programs that never look at such a path, so two
 * characters decide first and everything else is out of line. Nothing here
 * allocates or locks; the real functions are looked up in the constructor, or
 * by the first call before it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "paths.h"

#define INTERPOSE __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* What <sys/stat.h> and the checking headers do not declare. */
int __xstat(int ver, const char *path, struct stat *st);
int __xstat64(int ver, const char *path, struct stat64 *st);
int __lxstat(int ver, const char *path, struct stat *st);
int __lxstat64(int ver, const char *path, struct stat64 *st);
int __fxstatat(int ver, int dir, const char *path, struct stat *st, int flags);
int __fxstatat64(int ver, int dir, const char *path, struct stat64 *st, int flags);
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
char *__realpath_chk(const char *path, char *resolved, size_t len);
ssize_t __readlink_chk(const char *path, char *buf, size_t size, size_t len);
ssize_t __readlinkat_chk(int dir, const char *path, char *buf, size_t size, size_t len);

#define FUNCTIONS(X) \
	X(open) X(open64) X(__open_2) X(__open64_2) \
	X(openat) X(openat64) X(__openat_2) X(__openat64_2) \
	X(fopen) X(fopen64) X(freopen) X(freopen64) \
	X(stat) X(stat64) X(lstat) X(lstat64) X(fstatat) X(fstatat64) X(statx) \
	X(__xstat) X(__xstat64) X(__lxstat) X(__lxstat64) X(__fxstatat) X(__fxstatat64) \
	X(access) X(faccessat) X(eaccess) X(euidaccess) \
	X(opendir) X(scandir) X(scandir64) X(scandirat) X(scandirat64) \
	X(readlink) X(readlinkat) X(__readlink_chk) X(__readlinkat_chk) \
	X(realpath) X(__realpath_chk) X(canonicalize_file_name) \
	X(getxattr) X(lgetxattr)

static struct {
#define X(f) __typeof__(f) *p_##f;
	FUNCTIONS(X)
#undef X
} next;

static atomic_bool resolved;

/* May run in several threads at once before the constructor: all store the
 * same values. */
static __attribute__((noinline, cold)) void resolve(void)
{
#define X(f) \
	__atomic_store_n((void **)&next.p_##f, dlsym(RTLD_NEXT, #f), __ATOMIC_RELAXED);
	FUNCTIONS(X)
#undef X
	atomic_store_explicit(&resolved, true, memory_order_release);
}

/*
 * The real function; where this libc does not have it, the call fails as one
 * that the kernel does not have.
 */
#define CALL(fail, f, args) ({ \
	if (unlikely(!atomic_load_explicit(&resolved, memory_order_acquire))) \
		resolve(); \
	unlikely(!next.p_##f) ? (errno = ENOSYS, (fail)) : next.p_##f args; })

/* --- the node's directory ------------------------------------------------ */

#define TREE "/tree"
#define TREE_MAX 1024

static char dir_path[TREE_MAX];
static char tree_path[TREE_MAX + sizeof(TREE)];
static atomic_int dir_state; /* 0: not looked at, 1: in work, 2: none, 3: set */

static __attribute__((noinline, cold)) int find_dir(void)
{
	int want = 0, state = 2;

	if (!atomic_compare_exchange_strong(&dir_state, &want, 1))
		return want;
	const char *d = secure_getenv("WEFT_DIR");
	size_t n = d ? strlen(d) : 0;

	while (n > 1 && d[n - 1] == '/')
		n--;
	if (n > 0 && n < TREE_MAX && d[0] == '/') {
		memcpy(dir_path, d, n);
		memcpy(tree_path, d, n);
		memcpy(tree_path + n, TREE, sizeof(TREE));
		state = 3;
	}
	atomic_store_explicit(&dir_state, state, memory_order_release);
	return state;
}

static bool have_dir(void)
{
	int s = atomic_load_explicit(&dir_state, memory_order_acquire);

	return (likely(s >= 2) ? s : find_dir()) == 3;
}

const char *weft_dir(void)
{
	return have_dir() ? dir_path : NULL;
}

const char *weft_tree(void)
{
	return have_dir() ? tree_path : NULL;
}

static __attribute__((constructor)) void paths_init(void)
{
	resolve();
	find_dir();
}

/* --- rewriting ----------------------------------------------------------- */

int (*weft_device_open)(const char *name, int flags);

static const struct prefix {
	const char *s;
	size_t n;
} prefixes[] = {
#define P(s) { s, sizeof(s) - 1 }
	P("/dev/infiniband"),
	P("/sys/class/infiniband"),
	P("/sys/class/infiniband_verbs"),
	P("/sys/class/infiniband_mad"),
	P("/sys/class/misc/rdma_cm"),
#undef P
};

/* Whether path can be one of ours: what every call pays. */
static inline bool maybe(const char *path)
{
	/* The declarations promise libc a path; a program that passes NULL must
	 * still get libc's answer. */
	__asm__("" : "+r"(path));
	return path && path[0] == '/' && (path[1] == 'd' || path[1] == 's') &&
	       path[2] != '\0' && path[3] != '\0' && path[4] == '/' &&
	       (path[5] == 'i' || path[5] == 'c');
}

/* Whether path is one of ours, or below it. */
static bool matches(const char *path)
{
	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
		const struct prefix *p = &prefixes[i];

		if (!strncmp(path, p->s, p->n) && (path[p->n] == '/' || path[p->n] == '\0'))
			return true;
	}
	return false;
}

/* What follows "/dev/infiniband/", or NULL. */
static const char *device_name(const char *path)
{
	size_t n = prefixes[0].n;

	if (strncmp(path, prefixes[0].s, n) || path[n] != '/')
		return NULL;
	for (path += n; *path == '/'; path++)
		;
	return *path ? path : NULL;
}

static __attribute__((noinline)) bool rewrite(const char *path, char *out, size_t size)
{
	if (!matches(path) || !have_dir())
		return false;
	size_t n = strlen(tree_path), m = strlen(path) + 1;

	if (n + m > size)
		return false;
	/* Without a node these are the host's own paths. */
	int saved = errno;
	bool there = syscall(SYS_faccessat, AT_FDCWD, tree_path, F_OK) == 0;

	errno = saved;
	if (!there)
		return false;
	memcpy(out, tree_path, n);
	memcpy(out + n, path, m);
	return true;
}

bool weft_rewrite(const char *path, char *out, size_t size)
{
	return maybe(path) && rewrite(path, out, size);
}

/*
 * Every interposed function is a pair: the visible one passes straight through
 * unless the path may be ours, and its slow half, which has the buffer for the
 * new path in its frame: programs call these on small signal stacks.
 */
#define SLOW static __attribute__((noinline, cold))

#define DEFINE(type, fail, f, params, args) \
SLOW type slow_##f params \
{ \
	char buf[PATH_MAX]; \
\
	if (rewrite(path, buf, sizeof(buf))) \
		path = buf; \
	return CALL(fail, f, args); \
} \
INTERPOSE type f params \
{ \
	return likely(!maybe(path)) ? CALL(fail, f, args) : slow_##f args; \
}

/* --- open ---------------------------------------------------------------- */

/* A device that another part of the library emulates: true where it answered,
 * with the descriptor or -1 in fd. */
static bool open_device(const char *path, int flags, int *fd)
{
	const char *name = device_name(path);

	if (!name || !weft_device_open || !have_dir())
		return false;
	*fd = weft_device_open(name, flags);
	return *fd != WEFT_NOT_MINE;
}

/*
 * Whether fd, opened by a path of the tree, stands for an attribute that the
 * kernel cannot read: a GID's without an interface, or an unused entry's. The
 * node writes an empty file for it. Programs expect EINVAL, which the kernel
 * returns from read.
 */
static bool unreadable(const char *path, int fd)
{
	struct stat st;

	return strstr(path, "/gid_attrs/") && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       st.st_size == 0;
}

#define DEFINE_OPEN_SLOW(f, params, args) \
SLOW int slow_##f params \
{ \
	char buf[PATH_MAX]; \
	int fd; \
\
	if (open_device(path, flags, &fd)) \
		return fd; \
	if (!rewrite(path, buf, sizeof(buf))) \
		return CALL(-1, f, args); \
	path = buf; \
	fd = CALL(-1, f, args); \
	if (fd >= 0 && unreadable(path, fd)) { \
		close(fd); \
		errno = EINVAL; \
		fd = -1; \
	} \
	return fd; \
}

/* Only these flags come with a mode. */
#define TAKES_MODE(flags) \
	(((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE)

#define DEFINE_OPEN(f, params, full, args) \
DEFINE_OPEN_SLOW(f, full, args) \
INTERPOSE int f params \
{ \
	mode_t mode = 0; \
\
	if (TAKES_MODE(flags)) { \
		va_list ap; \
\
		va_start(ap, flags); \
		mode = va_arg(ap, mode_t); \
		va_end(ap); \
	} \
	return likely(!maybe(path)) ? CALL(-1, f, args) : slow_##f args; \
}

/* What the checking headers call where there is no mode. */
#define DEFINE_OPEN_2(f, params, args) \
DEFINE_OPEN_SLOW(f, params, args) \
INTERPOSE int f params \
{ \
	return likely(!maybe(path)) ? CALL(-1, f, args) : slow_##f args; \
}

DEFINE_OPEN(open, (const char *path, int flags, ...),
	    (const char *path, int flags, mode_t mode), (path, flags, mode))
DEFINE_OPEN(open64, (const char *path, int flags, ...),
	    (const char *path, int flags, mode_t mode), (path, flags, mode))
DEFINE_OPEN(openat, (int dir, const char *path, int flags, ...),
	    (int dir, const char *path, int flags, mode_t mode), (dir, path, flags, mode))
DEFINE_OPEN(openat64, (int dir, const char *path, int flags, ...),
	    (int dir, const char *path, int flags, mode_t mode), (dir, path, flags, mode))
DEFINE_OPEN_2(__open_2, (const char *path, int flags), (path, flags))
DEFINE_OPEN_2(__open64_2, (const char *path, int flags), (path, flags))
DEFINE_OPEN_2(__openat_2, (int dir, const char *path, int flags), (dir, path, flags))
DEFINE_OPEN_2(__openat64_2, (int dir, const char *path, int flags), (dir, path, flags))

int weft_real_open(const char *path, int flags, unsigned int mode)
{
	return CALL(-1, open, (path, flags, mode));
}

#define DEFINE_FOPEN(f, params, args) \
SLOW FILE *slow_##f params \
{ \
	char buf[PATH_MAX]; \
	FILE *opened; \
\
	if (!rewrite(path, buf, sizeof(buf))) \
		return CALL(NULL, f, args); \
	path = buf; \
	opened = CALL(NULL, f, args); \
	if (opened && unreadable(path, fileno(opened))) { \
		fclose(opened); \
		errno = EINVAL; \
		opened = NULL; \
	} \
	return opened; \
} \
INTERPOSE FILE *f params \
{ \
	return likely(!maybe(path)) ? CALL(NULL, f, args) : slow_##f args; \
}

DEFINE_FOPEN(fopen, (const char *path, const char *mode), (path, mode))
DEFINE_FOPEN(fopen64, (const char *path, const char *mode), (path, mode))
DEFINE_FOPEN(freopen, (const char *path, const char *mode, FILE *f), (path, mode, f))
DEFINE_FOPEN(freopen64, (const char *path, const char *mode, FILE *f), (path, mode, f))

/* --- stat ---------------------------------------------------------------- */

/* The tree cannot hold device nodes; programs insist on seeing them. */
static inline void make_device(mode_t *mode)
{
	if (S_ISREG(*mode))
		*mode = (*mode & ~(mode_t)S_IFMT) | S_IFCHR;
}

#define PATCH_STAT make_device(&st->st_mode)
#define PATCH_STATX \
	do { \
		mode_t m = st->stx_mode; \
\
		make_device(&m); \
		st->stx_mode = (uint16_t)m; \
	} while (0)

#define DEFINE_STAT(f, params, args, patch) \
SLOW int slow_##f params \
{ \
	char buf[PATH_MAX]; \
	bool dev = false; \
	int r; \
\
	if (rewrite(path, buf, sizeof(buf))) { \
		dev = device_name(path) != NULL; \
		path = buf; \
	} \
	r = CALL(-1, f, args); \
	if (r == 0 && dev) \
		patch; \
	return r; \
} \
INTERPOSE int f params \
{ \
	return likely(!maybe(path)) ? CALL(-1, f, args) : slow_##f args; \
}

DEFINE_STAT(stat, (const char *path, struct stat *st), (path, st), PATCH_STAT)
DEFINE_STAT(stat64, (const char *path, struct stat64 *st), (path, st), PATCH_STAT)
DEFINE_STAT(lstat, (const char *path, struct stat *st), (path, st), PATCH_STAT)
DEFINE_STAT(lstat64, (const char *path, struct stat64 *st), (path, st), PATCH_STAT)
DEFINE_STAT(fstatat, (int dir, const char *path, struct stat *st, int flags),
	    (dir, path, st, flags), PATCH_STAT)
DEFINE_STAT(fstatat64, (int dir, const char *path, struct stat64 *st, int flags),
	    (dir, path, st, flags), PATCH_STAT)
DEFINE_STAT(statx, (int dir, const char *path, int flags, unsigned int mask, struct statx *st),
	    (dir, path, flags, mask, st), PATCH_STATX)
/* Programs linked against a libc older than 2.33 call these. */
DEFINE_STAT(__xstat, (int ver, const char *path, struct stat *st), (ver, path, st), PATCH_STAT)
DEFINE_STAT(__xstat64, (int ver, const char *path, struct stat64 *st), (ver, path, st), PATCH_STAT)
DEFINE_STAT(__lxstat, (int ver, const char *path, struct stat *st), (ver, path, st), PATCH_STAT)
DEFINE_STAT(__lxstat64, (int ver, const char *path, struct stat64 *st), (ver, path, st), PATCH_STAT)
DEFINE_STAT(__fxstatat, (int ver, int dir, const char *path, struct stat *st, int flags),
	    (ver, dir, path, st, flags), PATCH_STAT)
DEFINE_STAT(__fxstatat64, (int ver, int dir, const char *path, struct stat64 *st, int flags),
	    (ver, dir, path, st, flags), PATCH_STAT)

/* --- everything else that takes a path ------------------------------------ */

DEFINE(int, -1, access, (const char *path, int mode), (path, mode))
DEFINE(int, -1, eaccess, (const char *path, int mode), (path, mode))
DEFINE(int, -1, euidaccess, (const char *path, int mode), (path, mode))
DEFINE(int, -1, faccessat, (int dir, const char *path, int mode, int flags),
       (dir, path, mode, flags))

typedef int select_fn(const struct dirent *);
typedef int order_fn(const struct dirent **, const struct dirent **);
typedef int select64_fn(const struct dirent64 *);
typedef int order64_fn(const struct dirent64 **, const struct dirent64 **);

/* libc's own call of opendir in scandir does not come past here. */
DEFINE(DIR *, NULL, opendir, (const char *path), (path))
DEFINE(int, -1, scandir,
       (const char *path, struct dirent ***out, select_fn *sel, order_fn *cmp),
       (path, out, sel, cmp))
DEFINE(int, -1, scandir64,
       (const char *path, struct dirent64 ***out, select64_fn *sel, order64_fn *cmp),
       (path, out, sel, cmp))
DEFINE(int, -1, scandirat,
       (int dir, const char *path, struct dirent ***out, select_fn *sel, order_fn *cmp),
       (dir, path, out, sel, cmp))
DEFINE(int, -1, scandirat64,
       (int dir, const char *path, struct dirent64 ***out, select64_fn *sel, order64_fn *cmp),
       (dir, path, out, sel, cmp))

DEFINE(ssize_t, -1, readlink, (const char *path, char *to, size_t size), (path, to, size))
DEFINE(ssize_t, -1, readlinkat, (int dir, const char *path, char *to, size_t size),
       (dir, path, to, size))
DEFINE(ssize_t, -1, __readlink_chk, (const char *path, char *to, size_t size, size_t len),
       (path, to, size, len))
DEFINE(ssize_t, -1, __readlinkat_chk,
       (int dir, const char *path, char *to, size_t size, size_t len),
       (dir, path, to, size, len))

/* The result is the path below the tree: it names the same files. */
DEFINE(char *, NULL, realpath, (const char *path, char *to), (path, to))
DEFINE(char *, NULL, __realpath_chk, (const char *path, char *to, size_t len), (path, to, len))
DEFINE(char *, NULL, canonicalize_file_name, (const char *path), (path))

/* ls -l queries these and reports an error where the file is missing. */
DEFINE(ssize_t, -1, getxattr, (const char *path, const char *name, void *v, size_t size),
       (path, name, v, size))
DEFINE(ssize_t, -1, lgetxattr, (const char *path, const char *name, void *v, size_t size),
       (path, name, v, size))
