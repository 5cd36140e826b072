// SPDX-License-Identifier: Apache-2.0
/* Devices and contexts: listed from the node's tree, opened, closed, forked. */
#include "weft.h"

#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>

#define MAX_DEVICES 64

struct weft_device {
	struct ibv_device dev;
	/* Other providers look behind ibv_device for a pointer of theirs. */
	uint8_t zero[2048];
	struct weft_device *next;
	uint64_t guid, image_guid; /* of node and system, network order */
	int index;
	char dir[256];             /* of the node */
};

struct weft_lock weft_contexts_lock;
struct weft_ctx *weft_contexts;

/* Programs compare devices by address across listings, so one that was ever
 * seen is kept. Guarded by devices_lock. */
static struct weft_lock devices_lock;
static struct weft_device *devices;

/* ---- fork ---- */

static void before_fork(void)
{
	weft_lock(&devices_lock);
	weft_lock(&weft_contexts_lock);
	for (struct weft_ctx *c = weft_contexts; c; c = c->next)
		weft_lock(&c->obj);
}

static void after_fork_parent(void)
{
	for (struct weft_ctx *c = weft_contexts; c; c = c->next)
		weft_unlock(&c->obj);
	weft_unlock(&weft_contexts_lock);
	weft_unlock(&devices_lock);
}

/* The session is the parent's. The child lets go of every descriptor, or the
 * node would not notice the parent's end; its rings are not mapped here. */
static void after_fork_child(void)
{
	struct weft_ctx *c;

	while ((c = weft_contexts)) {
		weft_contexts = c->next;
		atomic_store(&c->dead, WEFT_FORKED);
		weft_session_drop(c);
		weft_fd_close(&c->async_rd);
		weft_fd_close(&c->async_wr);
		for (struct weft_channel *ch = c->channels; ch; ch = ch->next) {
			weft_fd_close(&ch->rd);
			weft_fd_close(&ch->wr);
		}
		c->obj = c->ctl = c->numbers = c->mr_lock = c->mem.lock = (struct weft_lock){ 0 };
	}
	weft_contexts_lock = devices_lock = (struct weft_lock){ 0 };
}

__attribute__((constructor)) static void set_up(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* ---- devices ---- */

/* The node's directory: the user's choice, else where a node of this user or
 * of the system would be. */
static void node_dir(char *out, size_t n)
{
	const char *dir = weft_dir(), *run = getenv("XDG_RUNTIME_DIR");

	if (dir)
		snprintf(out, n, "%s", dir);
	else if (run && *run)
		snprintf(out, n, "%s/weft", run);
	else if (geteuid() == 0)
		snprintf(out, n, "/run/weft");
	else
		snprintf(out, n, "/tmp/weft-%u", (unsigned)geteuid());
}

static struct weft_device *find(const struct ibv_device *d)
{
	struct weft_device *w;

	weft_lock(&devices_lock);
	for (w = devices; w && &w->dev != d; w = w->next)
		;
	weft_unlock(&devices_lock);
	return w;
}

static bool read_attr(const char *dir, const char *dev, const char *name, char *out, size_t n)
{
	char path[512];
	long k;
	int fd;

	snprintf(path, sizeof(path), "%s/tree/sys/class/infiniband/%s/%s", dir, dev, name);
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return false;
	k = weft_sys_read(fd, out, n - 1);
	weft_sys_close(fd);
	if (k <= 0)
		return false;
	out[k] = 0;
	return true;
}

static uint64_t read_guid(const char *dir, const char *dev, const char *name)
{
	unsigned g[4];
	char s[64];

	if (!read_attr(dir, dev, name, s, sizeof(s)) ||
	    sscanf(s, "%4x:%4x:%4x:%4x", &g[0], &g[1], &g[2], &g[3]) != 4)
		return 0;
	return htobe64((uint64_t)g[0] << 48 | (uint64_t)g[1] << 32 | (uint64_t)g[2] << 16 | g[3]);
}

/* devices_lock is held. */
static struct weft_device *device(const char *dir, const char *name, int index)
{
	struct weft_device *w;
	char s[64];

	for (w = devices; w; w = w->next)
		if (!strcmp(w->dir, dir) && !strcmp(w->dev.name, name))
			break;
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			return NULL;
		snprintf(w->dir, sizeof(w->dir), "%s", dir);
		memcpy(w->dev.name, name, strlen(name) + 1);
		snprintf(w->dev.ibdev_path, sizeof(w->dev.ibdev_path), "/sys/class/infiniband/%s",
			 w->dev.name);
		w->dev.transport_type = IBV_TRANSPORT_IB;
		w->next = devices;
		devices = w;
	}
	w->dev.node_type = IBV_NODE_CA;
	if (read_attr(dir, name, "node_type", s, sizeof(s)) && atoi(s) > 0)
		w->dev.node_type = atoi(s);
	w->index = index;
	w->guid = read_guid(dir, name, "node_guid");
	w->image_guid = read_guid(dir, name, "sys_image_guid");
	snprintf(w->dev.dev_name, sizeof(w->dev.dev_name), "uverbs%d", index);
	snprintf(w->dev.dev_path, sizeof(w->dev.dev_path), "/sys/class/infiniband_verbs/uverbs%d",
		 index);
	return w;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* Names of the node's devices in lexical order; -1 where there is no node. */
static int list_names(const char *dir, char (*names)[IBV_SYSFS_NAME_MAX])
{
	char path[512];
	struct dirent *e;
	int n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "%s/tree/sys/class/infiniband", dir);
	d = opendir(path);
	if (!d)
		return -1;
	while (n < MAX_DEVICES && (e = readdir(d)))
		if (e->d_name[0] != '.' && strlen(e->d_name) < IBV_SYSFS_NAME_MAX)
			memcpy(names[n++], e->d_name, strlen(e->d_name) + 1);
	closedir(d);
	qsort(names, (size_t)n, sizeof(names[0]), by_name);
	return n;
}

WEFT_PUBLIC struct ibv_device **ibv_get_device_list(int *num)
{
	char names[MAX_DEVICES][IBV_SYSFS_NAME_MAX], dir[256];
	const char *only = getenv("WEFT_DEVICE"); /* weft run --device */
	struct ibv_device **list;
	int n, k = 0;

	node_dir(dir, sizeof(dir));
	n = list_names(dir, names);
	if (n < 0 && !weft_dir()) {
		/* No node is named and none runs: real devices, if any. */
		struct ibv_device **(*real)(int *) = weft_next("ibv_get_device_list");

		if (real)
			return real(num);
	}
	if (n < 0)
		n = 0;
	list = calloc((size_t)n + 1, sizeof(*list));
	if (!list)
		return NULL;
	weft_lock(&devices_lock);
	for (int i = 0; i < n; i++) {
		struct weft_device *w;

		if (only && *only && strcmp(names[i], only))
			continue;
		w = device(dir, names[i], i);
		if (w)
			list[k++] = &w->dev;
	}
	weft_unlock(&devices_lock);
	if (num)
		*num = k;
	return list;
}

WEFT_PUBLIC void ibv_free_device_list(struct ibv_device **list)
{
	if (list && list[0] && !find(list[0])) {
		void (*real)(struct ibv_device **) = weft_next("ibv_free_device_list");

		if (real)
			real(list);
		return;
	}
	free(list);
}

WEFT_PUBLIC const char *ibv_get_device_name(struct ibv_device *d)
{
	return d->name;
}

WEFT_PUBLIC __be64 ibv_get_device_guid(struct ibv_device *d)
{
	struct weft_device *w = find(d);
	__be64 (*real)(struct ibv_device *);

	if (w)
		return w->guid;
	real = weft_next("ibv_get_device_guid");
	return real ? real(d) : 0;
}

WEFT_PUBLIC int ibv_get_device_index(struct ibv_device *d)
{
	struct weft_device *w = find(d);
	int (*real)(struct ibv_device *);

	if (w)
		return w->index;
	real = weft_next("ibv_get_device_index");
	return real ? real(d) : -1;
}

__be64 weft_device_guid(const struct ibv_device *d)
{
	return weft_container(d, struct weft_device, dev)->guid;
}

__be64 weft_device_image_guid(const struct ibv_device *d)
{
	return weft_container(d, struct weft_device, dev)->image_guid;
}

/* ---- contexts ---- */

static void free_ctx(struct weft_ctx *ctx)
{
	free(ctx->qps);
	free(ctx->srqs);
	free(ctx->cqs);
	free(ctx->mr_hash);
	if (!ctx->leaked)
		free(ctx);
}

WEFT_PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct weft_device *w = find(d);
	struct ibv_context *(*real)(struct ibv_device *);
	struct weft_ctx *ctx;
	char path[512];
	int err;

	if (!w) {
		real = weft_next("ibv_open_device");
		if (real)
			return real(d);
		errno = ENODEV;
		return NULL;
	}
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return NULL;
	ctx->vctx.context.device = d;
	ctx->vctx.context.async_fd = -1;
	ctx->async_rd = ctx->async_wr = WEFT_NO_FD;
	ctx->vctx.context.num_comp_vectors = 1;
	pthread_mutex_init(&ctx->vctx.context.mutex, NULL);
	ctx->arena_gen = ~0ull;
	ctx->mr_gen = 1;
	weft_operations(ctx);

	snprintf(path, sizeof(path), "%s/door/%s.sock", w->dir, d->name);
	err = weft_session_open(ctx, path);
	if (err) {
		free_ctx(ctx);
		weft_explain_open(d->name, w->dir, err);
		errno = err;
		return NULL;
	}
	ctx->vctx.context.cmd_fd = ctx->sock.fd;
	ctx->qps = calloc(ctx->max_qps, sizeof(*ctx->qps));
	ctx->srqs = calloc(ctx->max_qps, sizeof(*ctx->srqs));
	ctx->cqs = calloc(ctx->max_cqs, sizeof(*ctx->cqs));
	err = ctx->qps && ctx->srqs && ctx->cqs ? weft_events_open(ctx) : ENOMEM;
	if (err) {
		weft_log("%s: event queue: %s", path, strerror(err));
		weft_session_close(ctx);
		weft_events_close(ctx);
		free_ctx(ctx);
		errno = err;
		return NULL;
	}
	weft_lock(&weft_contexts_lock);
	ctx->next = weft_contexts;
	weft_contexts = ctx;
	weft_unlock(&weft_contexts_lock);
	return &ctx->vctx.context;
}

/* A descriptor of a context of this process stands for that context: what it
 * opens is the context itself once more, so that all its objects are there. What
 * another process sent is not for this one to use: sessions are not shared. */
WEFT_PUBLIC struct ibv_context *ibv_import_device(int cmd_fd)
{
	struct ibv_context *(*real)(int) = weft_dir() ? NULL : weft_next("ibv_import_device");
	struct weft_fd fd = weft_fd_of(cmd_fd);
	struct weft_ctx *ctx;

	weft_lock(&weft_contexts_lock);
	for (ctx = weft_contexts; ctx; ctx = ctx->next)
		if (fd.ino && ctx->sock.ino == fd.ino && atomic_load(&ctx->dead) == WEFT_ALIVE)
			break;
	if (ctx)
		ctx->imports++;
	weft_unlock(&weft_contexts_lock);
	if (ctx) {
		if (cmd_fd != ctx->sock.fd)
			weft_fd_close(&fd); /* the context has its own */
		return &ctx->vctx.context;
	}
	if (real)
		return real(cmd_fd);
	errno = EOPNOTSUPP;
	return NULL;
}

WEFT_PUBLIC int ibv_close_device(struct ibv_context *c)
{
	struct weft_ctx *ctx;
	bool last;

	WEFT_FORWARD(c, errno, ibv_close_device, c);
	ctx = weft_ctx(c);
	weft_lock(&weft_contexts_lock);
	last = !ctx->imports;
	if (!last)
		ctx->imports--;
	for (struct weft_ctx **at = &weft_contexts; *at; at = &(*at)->next) {
		if (last && *at == ctx) {
			*at = ctx->next;
			break;
		}
	}
	weft_unlock(&weft_contexts_lock);
	if (!last)
		return 0;
	weft_session_close(ctx);
	weft_events_close(ctx);
	free_ctx(ctx);
	return 0;
}

/* ---- fork promises ---- */

/* The node reaches memory by address in this process, or through a shared
 * mapping: no page is pinned, so fork needs no preparation. */
WEFT_PUBLIC int ibv_fork_init(void)
{
	return 0;
}

WEFT_PUBLIC enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}
