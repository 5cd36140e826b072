// SPDX-License-Identifier: Apache-2.0
/* Protection domains, and what is made of them: parent and thread domains, and
 * other handles on them. */
#include "weft.h"

int weft_destroy(struct weft_ctx *ctx, uint8_t cmd, const void *in, size_t n)
{
	int err = weft_dead(ctx) ? 0 : weft_command(ctx, cmd, in, n, NULL, 0);

	return err && !weft_dead(ctx) ? weft_ret(err) : 0;
}

static struct weft_pd *to_weft_pd(const struct ibv_pd *p)
{
	return weft_container(p, struct weft_pd, pd);
}

static struct weft_pd *new_pd(struct ibv_context *c, uint32_t handle)
{
	struct weft_pd *pd = calloc(1, sizeof(*pd));

	if (pd) {
		pd->pd.context = c;
		pd->pd.handle = handle;
	}
	return pd;
}

WEFT_PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct weft_res_create_pd made;
	struct weft_ctx *ctx;
	struct weft_pd *pd;
	int err;

	WEFT_FORWARD(c, NULL, ibv_alloc_pd, c);
	ctx = weft_ctx(c);
	pd = new_pd(c, 0);
	if (!pd)
		return NULL;
	err = weft_command(ctx, WEFT_CMD_CREATE_PD, NULL, 0, &made, sizeof(made));
	if (err) {
		free(pd);
		weft_explain(c, "ibv_alloc_pd", err, NULL, NULL);
		errno = err;
		return NULL;
	}
	pd->pd.handle = made.pdn;
	weft_lock(&ctx->obj);
	pd->next = ctx->pds;
	ctx->pds = pd;
	weft_unlock(&ctx->obj);
	return &pd->pd;
}

/* obj is held. */
static void forget(struct weft_ctx *ctx, struct weft_pd *pd)
{
	struct weft_pd **at = &ctx->pds;

	while (*at && *at != pd)
		at = &(*at)->next;
	if (*at)
		*at = pd->next;
}

static int dealloc_parent(struct weft_ctx *ctx, struct weft_pd *pd)
{
	weft_lock(&ctx->obj);
	pd->base->users--;
	if (pd->td)
		pd->td->users--;
	weft_unlock(&ctx->obj);
	free(pd);
	return 0;
}

WEFT_PUBLIC int ibv_dealloc_pd(struct ibv_pd *p)
{
	struct weft_cmd_destroy_pd rm = { .pdn = p->handle };
	struct weft_pd *pd = to_weft_pd(p);
	struct weft_ctx *ctx;
	int err;

	WEFT_FORWARD(p->context, errno, ibv_dealloc_pd, p);
	ctx = weft_ctx(p->context);
	if (pd->imported)
		return weft_ret(EINVAL);
	if (pd->base)
		return dealloc_parent(ctx, pd);
	weft_lock(&ctx->obj);
	err = pd->users ? EBUSY : 0;
	if (!err)
		forget(ctx, pd); /* it cannot be imported from now on */
	weft_unlock(&ctx->obj);
	if (err)
		return weft_ret(err);
	err = weft_destroy(ctx, WEFT_CMD_DESTROY_PD, &rm, sizeof(rm));
	if (!err) {
		free(pd);
		return 0;
	}
	weft_lock(&ctx->obj);
	pd->next = ctx->pds;
	ctx->pds = pd;
	weft_unlock(&ctx->obj);
	return err;
}

/* ---- thread and parent domains ---- */

/* A promise that one thread at a time uses what is made with it; the locks here
 * cost little when that is so. */
struct ibv_td *weft_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr)
{
	struct weft_td *td;

	if (attr->comp_mask) {
		weft_explain(c, "ibv_alloc_td", EOPNOTSUPP, "set comp_mask to 0",
			     "comp_mask is 0x%x, and no bit of it is supported", attr->comp_mask);
		errno = EOPNOTSUPP;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td)
		return NULL;
	td->td.context = c;
	return &td->td;
}

int weft_dealloc_td(struct ibv_td *t)
{
	struct weft_td *td = weft_container(t, struct weft_td, td);
	struct weft_ctx *ctx = weft_ctx(t->context);
	uint32_t users;

	weft_lock(&ctx->obj);
	users = td->users;
	weft_unlock(&ctx->obj);
	if (users)
		return weft_ret(EBUSY);
	free(td);
	return 0;
}

/* Allocators are accepted and not asked: the memory of rings is shared with the
 * node from birth, which no memory of the program's is. */
struct ibv_pd *weft_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *a)
{
	const uint32_t have = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			      IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	struct weft_pd *base, *pd;
	int err = 0;

	if (a->comp_mask & ~have)
		err = EOPNOTSUPP;
	else if (!a->pd || a->pd->context != c || (a->td && a->td->context != c))
		err = EINVAL;
	else if (to_weft_pd(a->pd)->base || to_weft_pd(a->pd)->imported)
		err = EINVAL;
	else if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS && (!a->alloc || !a->free))
		err = EINVAL;
	if (err) {
		errno = err;
		return NULL;
	}
	base = to_weft_pd(a->pd);
	pd = new_pd(c, base->pd.handle);
	if (!pd)
		return NULL;
	pd->base = base;
	pd->td = a->td ? weft_container(a->td, struct weft_td, td) : NULL;
	weft_lock(&weft_ctx(c)->obj);
	base->users++;
	if (pd->td)
		pd->td->users++;
	weft_unlock(&weft_ctx(c)->obj);
	return &pd->pd;
}

bool weft_is_parent_domain(const struct ibv_pd *pd)
{
	return to_weft_pd(pd)->base != NULL;
}

/* ---- other handles ---- */

WEFT_PUBLIC struct ibv_pd *ibv_import_pd(struct ibv_context *c, uint32_t handle)
{
	struct weft_pd *pd, *made;
	struct weft_ctx *ctx;

	WEFT_FORWARD(c, NULL, ibv_import_pd, c, handle);
	ctx = weft_ctx(c);
	made = new_pd(c, handle);
	if (!made)
		return NULL;
	made->imported = true;
	weft_lock(&ctx->obj);
	for (pd = ctx->pds; pd && pd->pd.handle != handle; pd = pd->next)
		;
	weft_unlock(&ctx->obj);
	if (pd)
		return &made->pd;
	free(made);
	errno = ENOENT;
	return NULL;
}

WEFT_PUBLIC void ibv_unimport_pd(struct ibv_pd *p)
{
	WEFT_FORWARD(p->context, , ibv_unimport_pd, p);
	if (to_weft_pd(p)->imported)
		free(to_weft_pd(p));
}
