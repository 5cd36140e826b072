// SPDX-License-Identifier: Apache-2.0
/* Memory regions and windows, address handles. */
#include "weft.h"

#include <endian.h>

/* ---- memory regions ---- */

static uint32_t hash(uint32_t key)
{
	return (key * 0x9e3779b1u) >> 7;
}

/* mr_lock is held. */
static bool grow(struct weft_ctx *ctx)
{
	uint32_t n = ctx->mr_hash ? (ctx->mr_hash_mask + 1) * 2 : 64;
	struct weft_mr **t;

	if (ctx->mr_hash && ctx->mr_count <= ctx->mr_hash_mask)
		return true;
	t = calloc(n, sizeof(*t));
	if (!t)
		return ctx->mr_hash != NULL;
	for (uint32_t i = 0; ctx->mr_hash && i <= ctx->mr_hash_mask; i++) {
		struct weft_mr *m;

		while ((m = ctx->mr_hash[i])) {
			ctx->mr_hash[i] = m->next;
			m->next = t[hash(m->mr.lkey) & (n - 1)];
			t[hash(m->mr.lkey) & (n - 1)] = m;
		}
	}
	free(ctx->mr_hash);
	ctx->mr_hash = t;
	ctx->mr_hash_mask = n - 1;
	return true;
}

/* A region that finds no place in the table is still good: its sends go by
 * reference and the node checks the key. */
static void enter(struct weft_ctx *ctx, struct weft_mr *m)
{
	weft_lock(&ctx->mr_lock);
	if (grow(ctx)) {
		struct weft_mr **at = &ctx->mr_hash[hash(m->mr.lkey) & ctx->mr_hash_mask];

		m->next = *at;
		*at = m;
		ctx->mr_count++;
	}
	weft_unlock(&ctx->mr_lock);
}

static void leave(struct weft_ctx *ctx, struct weft_mr *m)
{
	weft_lock(&ctx->mr_lock);
	if (ctx->mr_hash) {
		struct weft_mr **at = &ctx->mr_hash[hash(m->mr.lkey) & ctx->mr_hash_mask];

		for (; *at; at = &(*at)->next) {
			if (*at == m) {
				*at = m->next;
				ctx->mr_count--;
				break;
			}
		}
	}
	if (atomic_fetch_add(&ctx->mr_gen, 1) == UINT32_MAX)
		atomic_store(&ctx->mr_gen, 1); /* zero means no hint */
	weft_unlock(&ctx->mr_lock);
}

bool weft_mr_lookup(struct weft_ctx *ctx, uint32_t lkey, struct weft_mr_hint *out)
{
	struct weft_mr *m = NULL;

	weft_lock(&ctx->mr_lock);
	if (ctx->mr_hash) {
		m = ctx->mr_hash[hash(lkey) & ctx->mr_hash_mask];
		while (m && m->mr.lkey != lkey)
			m = m->next;
	}
	if (m)
		*out = (struct weft_mr_hint){
			.lkey = lkey,
			.gen = atomic_load(&ctx->mr_gen),
			.start = m->iova,
			.len = m->mr.length,
			.delta = (uint64_t)(uintptr_t)m->mr.addr - m->iova,
			.pdn = m->mr.pd->handle,
		};
	weft_unlock(&ctx->mr_lock);
	return m != NULL;
}

/* The access flags the node knows. What is optional may be dropped; what would
 * change the meaning may not. Returns 0 or an errno. */
static int access_of(unsigned int access, uint32_t *out)
{
	const unsigned int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
				   IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED;

	access &= ~(unsigned int)IBV_ACCESS_OPTIONAL_RANGE & ~(unsigned int)IBV_ACCESS_HUGETLB;
	if (access & IBV_ACCESS_ON_DEMAND)
		return EOPNOTSUPP;
	if (access & ~known)
		return EINVAL;
	*out = access;
	return 0;
}

/* The rights for which the kernel pins pages for writing (ib_access_writable). */
#define WRITES (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)

enum weft_reach weft_mr_reach(struct weft_ctx *ctx, const void *addr, size_t len, unsigned int access)
{
	return weft_reach(ctx, addr, len, access & WRITES, weft_arena_contains(addr, len));
}

/* Ensures that the node can tell arena memory from other memory. Returns 0 or an errno. */
static int announce(struct weft_ctx *ctx, const void *addr, size_t len)
{
	if (weft_arena_contains(addr, len))
		return weft_announce_arena(ctx);
	return weft_arena_torn(addr, len) ? EINVAL : 0;
}

/* The memory of a region, and what the program may do with it. */
struct look {
	struct weft_ctx *ctx;
	const void *addr;
	size_t len;
	unsigned int access;
	enum weft_reach found;
};

static void look(void *arg)
{
	struct look *l = arg;

	l->found = weft_mr_reach(l->ctx, l->addr, l->len, l->access);
}

/* The errno of a registration: EFAULT, as with hardware, if the program itself may not access the memory as the rights
 * let others do. Memory that is unmapped or protected later is detected when the node accesses it. */
static int refusal(enum weft_reach found)
{
	return found == WEFT_REACHED ? 0 : found == WEFT_UNKNOWN ? EPERM : EFAULT;
}

/* Makes a region. The library looks at the memory while the node executes the command, which takes as long; the key
 * of a region that is refused then was never returned. Returns 0 or an errno. */
static int make_region(struct weft_ctx *ctx, const struct weft_cmd_reg_mr_va *in, struct weft_mr_result *made)
{
	struct look l = { ctx, (const void *)(uintptr_t)in->va, in->length, in->access, WEFT_REACHED };
	int err = announce(ctx, l.addr, l.len);

	if (!err)
		err = weft_command_beside(ctx, WEFT_CMD_REG_MR_VA, in, sizeof(*in), made, sizeof(*made), look, &l);
	if (!err && (err = refusal(l.found))) {
		struct weft_cmd_dereg_mr rm = { .mrn = made->mrn };

		weft_command(ctx, WEFT_CMD_DEREG_MR, &rm, sizeof(rm), NULL, 0);
	}
	return err;
}

WEFT_PUBLIC struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
					    uint64_t iova, unsigned int access)
{
	struct weft_cmd_reg_mr_va in = { .pdn = pd->handle, .va = (uintptr_t)addr,
					 .length = length };
	struct weft_mr_result made;
	struct weft_ctx *ctx;
	struct weft_mr *m;
	int err;

	WEFT_FORWARD(pd->context, NULL, ibv_reg_mr_iova2, pd, addr, length, iova, access);
	ctx = weft_ctx(pd->context);
	m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	err = access_of(access, &in.access);
	in.iova = in.access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
	if (err || (err = make_region(ctx, &in, &made)))
		goto fail;
	m->mr = (struct ibv_mr){
		.context = pd->context,
		.pd = pd,
		.addr = addr,
		.length = length,
		.handle = made.mrn,
		.lkey = made.lkey,
		.rkey = made.rkey,
	};
	m->iova = in.iova;
	m->access = in.access;
	enter(ctx, m);
	return &m->mr;
fail:
	free(m);
	weft_explain_reg_mr(pd->context, addr, length, access, err);
	errno = err;
	return NULL;
}

WEFT_PUBLIC struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
					   uint64_t iova, int access)
{
	WEFT_FORWARD(pd->context, NULL, ibv_reg_mr_iova, pd, addr, length, iova, access);
	return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

WEFT_PUBLIC struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	WEFT_FORWARD(pd->context, NULL, ibv_reg_mr, pd, addr, length, access);
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

WEFT_PUBLIC int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
			     size_t length, int access)
{
	struct weft_mr *m = weft_container(mr, struct weft_mr, mr);
	struct weft_cmd_rereg_mr in = { .mrn = mr->handle };
	struct weft_mr_result made;
	struct weft_ctx *ctx;
	int err = 0;

	WEFT_FORWARD(mr->context, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr, mr, flags, pd, addr, length,
		     access);
	ctx = weft_ctx(mr->context);
	in.access = m->access;
	if (m->imported || !flags || flags & ~IBV_REREG_MR_FLAGS_SUPPORTED ||
	    (flags & IBV_REREG_MR_CHANGE_PD && !pd))
		err = EINVAL;
	if (!err && flags & IBV_REREG_MR_CHANGE_ACCESS)
		err = access_of((unsigned int)access, &in.access);
	if (!err && flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		err = announce(ctx, addr, length);
		if (!err)
			err = refusal(weft_mr_reach(ctx, addr, length, in.access));
	} else if (!err && in.access & WRITES && !(m->access & WRITES)) {
		err = refusal(weft_mr_reach(ctx, mr->addr, mr->length, in.access));
	}
	if (err) {
		errno = err;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		in.flags |= WEFT_REREG_TRANSLATION;
		in.va = (uintptr_t)addr;
		in.length = length;
		in.iova = in.access & IBV_ACCESS_ZERO_BASED ? 0 : (uintptr_t)addr;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		in.flags |= WEFT_REREG_PD;
		in.pdn = pd->handle;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		in.flags |= WEFT_REREG_ACCESS;
	leave(ctx, m);
	err = weft_command(ctx, WEFT_CMD_REREG_MR, &in, sizeof(in), &made, sizeof(made));
	if (err) {
		enter(ctx, m);
		errno = err;
		return IBV_REREG_MR_ERR_CMD;
	}
	mr->lkey = made.lkey;
	mr->rkey = made.rkey;
	m->access = in.access;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = length;
		m->iova = in.iova;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD)
		mr->pd = pd;
	enter(ctx, m);
	return 0;
}

WEFT_PUBLIC int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct weft_mr *m = weft_container(mr, struct weft_mr, mr);
	struct weft_cmd_dereg_mr rm = { .mrn = mr->handle };
	struct weft_ctx *ctx;
	int err;

	WEFT_FORWARD(mr->context, errno, ibv_dereg_mr, mr);
	if (m->imported)
		return weft_ret(EINVAL);
	ctx = weft_ctx(mr->context);
	leave(ctx, m);
	err = weft_destroy(ctx, WEFT_CMD_DEREG_MR, &rm, sizeof(rm));
	if (err)
		enter(ctx, m);
	else
		free(m);
	return err;
}

/* Another handle on a region of the context; only the numbers are known. */
WEFT_PUBLIC struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	struct weft_mr *m = NULL, *made;
	struct weft_ctx *ctx;

	WEFT_FORWARD(pd->context, NULL, ibv_import_mr, pd, handle);
	ctx = weft_ctx(pd->context);
	made = calloc(1, sizeof(*made));
	if (!made)
		return NULL;
	weft_lock(&ctx->mr_lock);
	for (uint32_t i = 0; !m && ctx->mr_hash && i <= ctx->mr_hash_mask; i++)
		for (m = ctx->mr_hash[i]; m && m->mr.handle != handle; m = m->next)
			;
	if (m && m->mr.pd->handle == pd->handle) {
		made->mr = m->mr;
		made->mr.addr = NULL;
		made->mr.pd = pd;
		made->imported = true;
	}
	weft_unlock(&ctx->mr_lock);
	if (made->imported)
		return &made->mr;
	free(made);
	errno = m ? EINVAL : ENOENT;
	return NULL;
}

WEFT_PUBLIC void ibv_unimport_mr(struct ibv_mr *mr)
{
	struct weft_mr *m = weft_container(mr, struct weft_mr, mr);

	WEFT_FORWARD(mr->context, , ibv_unimport_mr, mr);
	if (m->imported)
		free(m);
}

/* ---- memory windows ---- */

struct ibv_mw *weft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct weft_cmd_alloc_mw in = { .pdn = pd->handle, .type = (uint32_t)type };
	struct weft_ctx *ctx = weft_ctx(pd->context);
	struct weft_res_alloc_mw made;
	struct weft_mw *w;
	int err;

	if (!(ctx->ext & 1ull << WEFT_CAP_MW)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	err = weft_command(ctx, WEFT_CMD_ALLOC_MW, &in, sizeof(in), &made, sizeof(made));
	if (err) {
		free(w);
		errno = err;
		return NULL;
	}
	w->mw = (struct ibv_mw){
		.context = pd->context,
		.pd = pd,
		.rkey = made.rkey,
		.handle = made.mwn,
		.type = type,
	};
	return &w->mw;
}

/* Binds a window of type 1: a request like any other, with the next key. */
int weft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *b)
{
	struct ibv_send_wr wr = {
		.wr_id = b->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = b->send_flags,
		.bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = b->bind_info },
	};
	struct ibv_send_wr *bad;
	int err = weft_post_send(qp, &wr, &bad);

	if (!err)
		mw->rkey = wr.bind_mw.rkey;
	return weft_ret(err);
}

int weft_dealloc_mw(struct ibv_mw *mw)
{
	struct weft_cmd_dealloc_mw rm = { .mwn = mw->handle };
	int err = weft_destroy(weft_ctx(mw->context), WEFT_CMD_DEALLOC_MW, &rm, sizeof(rm));

	if (!err)
		free(weft_container(mw, struct weft_mw, mw));
	return err;
}

/* ---- address handles ---- */

WEFT_PUBLIC struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	struct weft_cmd_create_ah in = { .pdn = pd->handle };
	struct weft_res_create_ah made;
	struct weft_ah *ah;
	int err;

	WEFT_FORWARD(pd->context, NULL, ibv_create_ah, pd, a);
	if (a->port_num != 1) {
		weft_explain_create_ah(pd->context, a, EINVAL);
		errno = EINVAL;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah)
		return NULL;
	memcpy(in.ah_attr.dgid, a->grh.dgid.raw, sizeof(in.ah_attr.dgid));
	in.ah_attr.flow_label = a->grh.flow_label;
	in.ah_attr.sgid_index = a->grh.sgid_index;
	in.ah_attr.hop_limit = a->grh.hop_limit;
	in.ah_attr.traffic_class = a->grh.traffic_class;
	in.ah_attr.flags = a->is_global ? 0 : WEFT_AH_NO_GRH;
	in.ah_attr.sl = a->sl;
	in.ah_attr.src_path_bits = a->src_path_bits;
	in.ah_attr.dlid = a->dlid;
	in.ah_attr.static_rate = a->static_rate;
	err = weft_command(weft_ctx(pd->context), WEFT_CMD_CREATE_AH, &in, sizeof(in), &made,
			   sizeof(made));
	if (err) {
		free(ah);
		weft_explain_create_ah(pd->context, a, err);
		errno = err;
		return NULL;
	}
	ah->ah.context = pd->context;
	ah->ah.pd = pd;
	ah->ah.handle = made.ah;
	return &ah->ah;
}

WEFT_PUBLIC int ibv_destroy_ah(struct ibv_ah *ah)
{
	struct weft_cmd_destroy_ah rm = { ah->pd->handle, ah->handle };
	int err;

	WEFT_FORWARD(ah->context, errno, ibv_destroy_ah, ah);
	err = weft_destroy(weft_ctx(ah->context), WEFT_CMD_DESTROY_AH, &rm, sizeof(rm));
	if (!err)
		free(weft_container(ah, struct weft_ah, ah));
	return err;
}

/* An IPv4 header sits in the second half of the 40 bytes; its checksum
 * distinguishes it from the tail of an IPv6 header. */
static bool ipv4_header(const uint8_t *h)
{
	uint32_t sum = 0;

	if (h[0] != 0x45)
		return false;
	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)h[i] << 8 | h[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

static void mapped_gid(uint8_t gid[16], const uint8_t ip[4])
{
	memset(gid, 0, 10);
	memset(gid + 10, 0xff, 2);
	memcpy(gid + 12, ip, 4);
}

/* The index of the GID that was the destination; for a multicast one, the first
 * of the same family. */
static int source_index(struct weft_ctx *ctx, const uint8_t gid[16], bool v4)
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };
	bool multicast = v4 ? (gid[12] & 0xf0) == 0xe0 : gid[0] == 0xff;
	struct weft_res_query_gid g;

	for (uint32_t i = 0; i < 256 && !weft_gid(ctx, i, &g); i++) {
		if (!g.valid)
			continue;
		if (multicast ? !memcmp(g.gid, prefix, 12) == v4 : !memcmp(g.gid, gid, 16))
			return (int)i;
	}
	return -1;
}

WEFT_PUBLIC int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc,
				    struct ibv_grh *grh, struct ibv_ah_attr *a)
{
	const uint8_t *h = (const uint8_t *)grh;
	struct ibv_port_attr link;
	uint8_t dst[16];
	int index, err;
	bool v4;

	WEFT_FORWARD(c, -1, ibv_init_ah_from_wc, c, port, wc, grh, a);
	memset(a, 0, sizeof(*a));
	a->dlid = wc->slid;
	a->sl = wc->sl;
	a->src_path_bits = wc->dlid_path_bits;
	a->port_num = port;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	err = weft_query_port(c, port, &link, sizeof(link));
	if (err) {
		errno = err;
		return -1;
	}
	a->is_global = 1;
	v4 = link.link_layer == IBV_LINK_LAYER_ETHERNET && ipv4_header(h + 20);
	if (v4) {
		mapped_gid(a->grh.dgid.raw, h + 32);
		mapped_gid(dst, h + 36);
		a->grh.traffic_class = h[21];
		a->grh.hop_limit = h[28];
	} else {
		uint32_t word = be32toh(grh->version_tclass_flow);

		a->grh.dgid = grh->sgid;
		memcpy(dst, grh->dgid.raw, sizeof(dst));
		a->grh.traffic_class = (uint8_t)(word >> 20);
		a->grh.flow_label = word & 0xfffff;
		a->grh.hop_limit = grh->hop_limit;
	}
	index = source_index(weft_ctx(c), dst, v4);
	if (index < 0) {
		errno = ENODATA;
		return -1;
	}
	a->grh.sgid_index = (uint8_t)index;
	return 0;
}

WEFT_PUBLIC struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc,
						 struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr a;

	WEFT_FORWARD(pd->context, NULL, ibv_create_ah_from_wc, pd, wc, grh, port);
	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &a))
		return NULL;
	return ibv_create_ah(pd, &a);
}
