/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of a libibverbs that does not exist yet as a context meets: its
 * verbs_context has grown by slots, and its public functions call through a
 * private table in an order of its own, without a test for NULL. Linked in front
 * of the installed libibverbs, it is "the real library" to the preload library.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define PUBLIC __attribute__((visibility("default")))

struct context {
	void *device;
	void *ops[32];
	int cmd_fd, async_fd, num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

struct table {
	uint64_t unsupported_ioctls[3];
	uint32_t driver_id;
	uint8_t use_ioctl_write;
	void *(*make_object)(struct context *c);
	int (*do_something)(struct context *c, int value);
};

struct extended {
	void *added[50];        /* slots in front of those that exist today */
	void *slots[26];
	struct table *priv;     /* 112 bytes in front of the context, in every version */
	void *more[12];
	size_t sz;
	struct context context;
};

_Static_assert(offsetof(struct extended, context) - offsetof(struct extended, priv) == 112, "priv");
_Static_assert(offsetof(struct context, abi_compat) == 320, "abi_compat");

static void *no_object(struct context *c)
{
	(void)c;
	errno = EOPNOTSUPP;
	return NULL;
}

static int not_done(struct context *c, int value)
{
	(void)c;
	(void)value;
	return EOPNOTSUPP;
}

PUBLIC void *_verbs_init_and_alloc_context(void *device, int cmd_fd, size_t size, void *offset, uint32_t driver)
{
	uint8_t *mem = calloc(1, size);
	struct extended *x = (void *)(mem + (uintptr_t)offset);

	x->context.device = device;
	x->context.cmd_fd = cmd_fd;
	x->context.abi_compat = (void *)UINTPTR_MAX;
	x->sz = sizeof(*x);
	x->priv = calloc(1, sizeof(*x->priv));
	x->priv->driver_id = driver;
	x->priv->make_object = no_object;
	x->priv->do_something = not_done;
	return mem;
}

static struct table *table_of(struct context *c)
{
	return *(struct table **)((uint8_t *)c - 112);
}

PUBLIC void *ibv_make_later_object(struct context *c)
{
	return table_of(c)->make_object(c);
}

PUBLIC int ibv_do_something_later(struct context *c, int value)
{
	return table_of(c)->do_something(c, value);
}
