// SPDX-License-Identifier: Apache-2.0
/*
 * Which of its own memory the program may read and write, for registrations.
 *
 * The node reaches memory whatever protection the program gave it, so the library refuses
 * what the kernel's ib_umem_get refuses: it pins pages for writing where the access rights
 * permit writes, and for reading elsewhere. The answer comes from the list of mappings,
 * /proc/self/maps, through a descriptor of the context. On Linux 6.11 and later an ioctl
 * returns the mapping of one address; before, or if a filter refuses the ioctl, the text is
 * read from its start to the end of the range. Neither touches a page.
 *
 * A mapping that another thread changes meanwhile is seen as before or as after. Mappings
 * that do not change are never missed: the kernel promises that for both ways.
 */
#include "weft.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* PROCMAP_QUERY of <linux/fs.h>, Linux 6.11: headers of the build may be older. */
struct query {
	uint64_t size, flags, addr;                    /* in */
	uint64_t start, end, vma_flags, page_size, offset, ino;
	uint32_t dev_major, dev_minor;
	uint32_t name_size, build_id_size;             /* in and out */
	uint64_t name, build_id;                       /* in */
};
#define QUERY _IOWR('f', 17, struct query)
_Static_assert(sizeof(struct query) == 104, "as the kernel has it");
#define QUERY_READABLE 1u
#define QUERY_WRITABLE 2u
#define QUERY_SHARED   8u

/* One mapping. */
struct mapping {
	uint64_t start, end, offset, ino;
	uint32_t dev_major, dev_minor;
	bool readable, writable, shared;
	const char *path;      /* of its file, absolute; else anything else */
};

/* What is left of a range to look at. */
struct range {
	uint64_t at, end;
	bool write;            /* the pages must be writable, not only readable */
	bool sized;            /* the file behind is known to have all pages */
};

/*
 * Whether byte last of a mapping lies behind the end of its file, where a page is no
 * memory. Only a file that still has the name by which it was mapped is found; what is
 * wrong with another is found by the request that meets it.
 */
static bool past_file(const struct mapping *m, uint64_t last)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct statx st;

	/* The size that the kernel goes by: no server of a file system is consulted. */
	return !syscall(SYS_statx, AT_FDCWD, m->path, AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO | STATX_SIZE, &st) &&
	       S_ISREG(st.stx_mode) && st.stx_ino == m->ino && st.stx_dev_major == m->dev_major &&
	       st.stx_dev_minor == m->dev_minor && ((last - m->start + m->offset) & ~(page - 1)) >= st.stx_size;
}

/* Whether the page of byte last is in memory, so that the file has it. The kernel reports
 * that of files which the program may write, as it may if a shared mapping is writable. */
static bool cached(const struct mapping *m, uint64_t last)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned char in = 0;

	return m->shared && m->writable && !syscall(SYS_mincore, last & ~(page - 1), page, &in) && in & 1;
}

/* Looks at what a mapping that holds r->at has of the range, and moves behind it. */
static enum weft_reach step(struct range *r, const struct mapping *m)
{
	uint64_t last = (m->end < r->end ? m->end : r->end) - 1;

	if (r->write ? !m->writable : !m->readable)
		return r->write ? WEFT_READ_ONLY : WEFT_UNREADABLE;
	if (!r->sized && m->ino && m->path[0] == '/' && past_file(m, last))
		return WEFT_PAST_FILE;
	r->at = last + 1;
	return WEFT_REACHED;
}

/* Where the file of a mapping is remembered if it has no name, as shared memory: the name
 * need not be read each time. */
static uint64_t *remembered(struct weft_ctx *ctx, const struct mapping *m, uint64_t *file)
{
	*file = (uint64_t)m->dev_major << 44 ^ (uint64_t)m->dev_minor << 32 ^ m->ino;
	return &ctx->nameless[*file % (sizeof(ctx->nameless) / sizeof(ctx->nameless[0]))];
}

/* Completes what a query returned about a file by the name of the file. */
static __attribute__((noinline)) enum weft_reach step_file(struct weft_ctx *ctx, struct range *r, struct mapping *m)
{
	static const char deleted[] = " (deleted)";
	char name[4096];
	struct query q = { .size = sizeof(q), .addr = m->start, .name = (uintptr_t)name, .name_size = sizeof(name) };
	uint64_t file, *nameless = remembered(ctx, m, &file);

	name[0] = 0;
	if (ioctl(ctx->maps.fd, QUERY, &q) || q.start != m->start || q.ino != m->ino)
		name[0] = 0;
	else if (q.name_size >= sizeof(deleted) && !strcmp(name + q.name_size - sizeof(deleted), deleted))
		*nameless = file;
	m->path = name;
	return step(r, m);
}

/* Whether it is known that the file of a mapping is long enough, if there is one, or that its
 * length cannot be known. */
static bool sized(struct weft_ctx *ctx, const struct range *r, const struct mapping *m)
{
	uint64_t file;

	return r->sized || !m->ino || *remembered(ctx, m, &file) == file || cached(m, (m->end < r->end ? m->end : r->end) - 1);
}

/* By the ioctl. Returns false if it does not work here. */
static bool by_query(struct weft_ctx *ctx, struct range *r, enum weft_reach *out)
{
	*out = WEFT_REACHED;
	while (r->at < r->end && *out == WEFT_REACHED) {
		struct query q = { .size = sizeof(q), .addr = r->at };
		struct mapping m;

		if (ioctl(ctx->maps.fd, QUERY, &q)) {
			*out = WEFT_UNMAPPED;
			return errno == ENOENT;
		}
		m = (struct mapping){ q.start, q.end, q.offset, q.ino, q.dev_major, q.dev_minor, q.vma_flags & QUERY_READABLE,
				      q.vma_flags & QUERY_WRITABLE, q.vma_flags & QUERY_SHARED, "" };
		*out = sized(ctx, r, &m) ? step(r, &m) : step_file(ctx, r, &m);
	}
	return true;
}

static const char *number(const char *p, unsigned int base, uint64_t *v)
{
	for (*v = 0;; p++) {
		unsigned int d = *p >= '0' && *p <= '9' ? (unsigned int)(*p - '0') :
				 *p >= 'a' && *p <= 'f' ? (unsigned int)(*p - 'a' + 10) : base;

		if (d >= base)
			return p;
		*v = *v * base + d;
	}
}

/* One line: "start-end rwxp offset major:minor inode   path", without its newline. */
static void parse(const char *p, struct mapping *m)
{
	uint64_t major, minor;

	p = number(p, 16, &m->start);
	p = number(p + 1, 16, &m->end);
	m->readable = p[1] == 'r';
	m->writable = p[2] == 'w';
	m->shared = p[4] == 's';
	p = number(p + 6, 16, &m->offset);
	p = number(p + 1, 16, &major);
	p = number(p + 1, 16, &minor);
	p = number(p + 1, 10, &m->ino);
	m->dev_major = (uint32_t)major;
	m->dev_minor = (uint32_t)minor;
	while (*p == ' ')
		p++;
	m->path = p;
}

/* By the text. The lock of the descriptor, and so of its position, is held. */
static __attribute__((noinline)) enum weft_reach by_text(int fd, struct range *r)
{
	enum weft_reach out = WEFT_REACHED;
	char buf[4096 + 128];          /* one line at least: a path has up to 4096 bytes */
	size_t have = 0;

	if (syscall(SYS_lseek, fd, 0, SEEK_SET))
		return WEFT_UNKNOWN;
	while (r->at < r->end && out == WEFT_REACHED) {
		char *line = buf, *nl;
		/* The kernel makes the lines that are read, and few more. */
		size_t room = sizeof(buf) - have < 1024 ? sizeof(buf) - have : 1024;
		long n = weft_sys_read(fd, buf + have, room);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? WEFT_UNKNOWN : WEFT_UNMAPPED;
		have += (size_t)n;
		while (r->at < r->end && out == WEFT_REACHED && (nl = memchr(line, '\n', (size_t)(buf + have - line)))) {
			struct mapping m;

			*nl = 0;
			parse(line, &m);
			line = nl + 1;
			if (m.end > r->at)
				out = m.start > r->at ? WEFT_UNMAPPED : step(r, &m);
		}
		have -= (size_t)(line - buf);
		memmove(buf, line, have);
	}
	return out;
}

/* The descriptor of the mappings, opened anew if the program has closed it; or -1. The
 * lock is held. */
static int maps_of(struct weft_ctx *ctx)
{
	if (!weft_fd_good(&ctx->maps))
		ctx->maps = weft_fd_of((int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0));
	return ctx->maps.fd;
}

void weft_reach_open(struct weft_ctx *ctx)
{
	int saved = errno;

	if (maps_of(ctx) < 0)
		weft_log("/proc/self/maps: %s: no memory can be registered", strerror(errno));
	errno = saved;
}

enum weft_reach weft_reach(struct weft_ctx *ctx, const void *addr, size_t len, bool write, bool sized)
{
	struct range r = { (uintptr_t)addr, (uintptr_t)addr + len, write, sized };
	enum weft_reach out = WEFT_UNKNOWN;
	int saved = errno, fd;

	if (r.end < r.at)
		return WEFT_UNMAPPED;
	weft_lock(&ctx->maps_lock);
	fd = maps_of(ctx);
	if (fd >= 0 && (ctx->maps_text || !by_query(ctx, &r, &out))) {
		if (!ctx->maps_text)
			weft_log("mappings are read as text: the kernel has no PROCMAP_QUERY, or refuses it");
		ctx->maps_text = true;
		out = by_text(fd, &r);
	}
	weft_unlock(&ctx->maps_lock);
	errno = saved;
	return out;
}
