// SPDX-License-Identifier: Apache-2.0
/* Why a verbs call failed: the record, and the reasons of calls with many arguments. */
#include "weft.h"
#include "explain.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#define LINE 1024

enum { OFF, AT_EXIT, ALWAYS };
enum { GID_FOUND = -2 };

static struct weft_lock lock;
/* How likely a record is the reason of a bad end: a more likely one is not replaced. Programs try what a device may
 * lack, and go on without it; they look for a limit by trying, and go on within it (weft_explain_made). Nothing goes on
 * without the node. */
enum rank { NOTHING, EMPTY_GID, UNSUPPORTED, LIMIT, REFUSED, NODE_LOST };

static char last[LINE];  /* guarded by lock, as are last_pid and last_rank */
static pid_t last_pid;   /* of the process that recorded it, or 0 */
static enum rank last_rank;
static _Atomic int empty_gid = -1; /* the last GID that the program read, if all it read are empty, else negative */

static int mode(void)
{
	static _Atomic int known = -1;
	const char *e;

	if (known < 0) {
		e = getenv("WEFT_EXPLAIN");
		known = !e ? OFF : !strcmp(e, "1") ? ALWAYS : !strcmp(e, "exit") ? AT_EXIT : OFF;
	}
	return known;
}

bool weft_explains(void)
{
	return mode() != OFF;
}

static void at_exit(int status, void *arg)
{
	(void)arg;
	if (status && last_pid == getpid())
		weft_sys_write(2, last, strlen(last));
}

static void record(const char *line, enum rank rank)
{
	static bool registered;

	weft_lock(&lock);
	if (mode() == ALWAYS && rank > EMPTY_GID) {
		weft_sys_write(2, line, strlen(line));
		line = (const char[LINE]){ 0 }; /* nothing is left to print at the end */
	}
	if (rank >= last_rank || last_pid != getpid()) {
		memcpy(last, line, LINE);
		last_pid = getpid();
		last_rank = rank;
	}
	if (!registered)
		registered = on_exit(at_exit, NULL) == 0;
	weft_unlock(&lock);
}

/* What an errno means for any call: why, and in *fix what to do. */
static const char *meaning(int err, const char **fix)
{
	switch (err) {
	case EIO:
		*fix = "weft status, then start the program again";
		return "the node has ended, or has closed the session of this program";
	case ENOMEM:
	case ENOSPC:
	case EDQUOT:
		*fix = "weft res shows what is in use; weft dev set changes the quotas of a device";
		return "a limit of the device, or memory, is used up";
	case EPERM:
	case EACCES:
		*fix = "run it as the user of the node, or weft up --allow-uid";
		return "the node does not permit it to this user";
	case EOPNOTSUPP:
		*fix = "use a program or an option that does without";
		return "the device does not support it";
	case EBUSY:
		*fix = "destroy what uses it first";
		return "other objects use it";
	default:
		*fix = "weft run --explain shows each call that fails; WEFT_DEBUG=1 shows more";
		return "the node refused the arguments";
	}
}

void weft_explain_made(void)
{
	if (mode() != AT_EXIT)
		return;
	weft_lock(&lock);
	if (last_rank == LIMIT && last_pid == getpid()) {
		last_pid = 0;
		last_rank = NOTHING;
	}
	weft_unlock(&lock);
}

static void explain(enum rank rank, struct ibv_context *c, const char *call, int err, const char *fix,
		    const char *why, va_list ap)
{
	const char *general = NULL, *general_fix = NULL;
	char line[LINE] = { 0 };
	int saved = errno;
	size_t n;

	if (mode() == OFF)
		return;
	if (mode() == AT_EXIT && c && weft_dead(weft_ctx(c))) {
		weft_explain_lost();
		return;
	}
	if (!why || (c && weft_dead(weft_ctx(c)))) {
		general = meaning(c && weft_dead(weft_ctx(c)) ? EIO : err, &general_fix);
		fix = general_fix;
	}
	n = (size_t)snprintf(line, LINE - 1, "weft: %s%s%s failed (%s): ", call, c ? " of " : "",
			     c ? c->device->name : "", strerror(err));
	if (n < LINE - 1) {
		if (general)
			snprintf(line + n, LINE - 1 - n, "%s", general);
		else
			vsnprintf(line + n, LINE - 1 - n, why, ap);
		n = strlen(line);
	}
	if (fix && n < LINE - 1)
		snprintf(line + n, LINE - 1 - n, ". fix: %s", fix);
	strcat(line, "\n");
	record(line, rank);
	errno = saved;
}

void weft_explain(struct ibv_context *c, const char *call, int err, const char *fix, const char *why,
		  ...)
{
	va_list ap;

	va_start(ap, why);
	explain(err == EOPNOTSUPP ? UNSUPPORTED : err == ENODATA ? EMPTY_GID : REFUSED, c, call, err, fix, why, ap);
	va_end(ap);
}

/* The same for what a limit of the device refuses. */
static void explain_limit(struct ibv_context *c, const char *call, int err, const char *fix, const char *why, ...)
{
	va_list ap;

	va_start(ap, why);
	explain(LIMIT, c, call, err, fix, why, ap);
	va_end(ap);
}

/* Verbs that Weft does not have: why, and what a program can do instead. optional: programs do without, so that it is
 * not the reason of a bad end. */
static const struct missing {
	const char *call, *why, *fix;
	bool optional;
} missing[] = {
	{ "ibv_open_xrcd", "Weft has no XRC", "use RC queue pairs, with a shared receive queue of each process", false },
	{ "ibv_open_qp", "Weft has no XRC", "use RC queue pairs, with a shared receive queue of each process", false },
	{ "ibv_create_flow", "Weft has no raw Ethernet queue pairs, and steers no flows",
	  "use UD queue pairs, or a socket of an IP link (weft ipoib)", false },
	{ "ibv_create_flow_action_esp", "Weft steers no flows, and encrypts none",
	  "leave flow actions out", false },
	{ "ibv_create_wq", "Weft has no work queues apart from queue pairs",
	  "use queue pairs with receive queues of their own, or a shared one", false },
	{ "ibv_create_rwq_ind_table", "Weft has no work queues apart from queue pairs",
	  "use queue pairs with receive queues of their own, or a shared one", false },
	{ "ibv_alloc_dm", "Weft has no device memory", "register memory of the program (ibv_reg_mr)", false },
	{ "ibv_import_dm", "Weft has no device memory", "register memory of the program (ibv_reg_mr)", false },
	{ "ibv_dm_export_dmabuf_fd", "Weft has no device memory", "register memory of the program (ibv_reg_mr)",
	  false },
	{ "ibv_reg_dmabuf_mr", "Weft reaches the memory of the program, and no dma-buf of a device",
	  "copy to memory of the program, and register that (ibv_reg_mr)", false },
	{ "ibv_reg_mr_ex", "Weft registers memory by address, IOVA and buffer; other members are not supported",
	  "leave them out, or use ibv_reg_mr", false },
	{ "ibv_alloc_null_mr", "Weft has no null memory region", "register a buffer that nothing reads", false },
	{ "ibv_create_counters", "Weft steers no flows, and counts none", "weft stat shows the counters of Weft",
	  false },
	{ "ibv_create_comp_cntr", "Weft has no completion counters", "count the completions of a completion queue",
	  false },
	{ "ibv_query_comp_cntr_caps", "Weft has no completion counters",
	  "count the completions of a completion queue", true },
	{ "ibv_alloc_dmah", "Weft has no DMA handles: there is no PCI device", "register without one", true },
	{ "ibv_advise_mr", "Weft has no on-demand paging, so that there is nothing to prefetch",
	  "none needed: go on without", true },
	{ "ibv_modify_cq", "Weft moderates no completion events", "none needed: go on without", true },
	{ "ibv_query_ece", "Weft has no options of a vendor for connections", "none needed: go on without", true },
	{ "ibv_set_ece", "Weft has no options of a vendor for connections", "none needed: go on without", true },
	{ "ibv_query_port_speed", "Weft reports the speed by ibv_query_port", "none needed: go on without", true },
	{ "ibv_resolve_eth_l2_from_gid", "the kernel of the host finds MAC addresses, not Weft",
	  "none needed: address handles need a GID only", true },
};

void weft_explain_missing(struct ibv_context *c, const char *call)
{
	const struct missing *m = missing, *end = m + sizeof(missing) / sizeof(*m);

	while (m < end && strcmp(m->call, call) != 0)
		m++;
	if (m == end)
		weft_explain(c, call, EOPNOTSUPP, NULL, NULL);
	else if (!m->optional || mode() == ALWAYS)
		weft_explain(c, call, EOPNOTSUPP, m->fix, "%s", m->why);
}

void weft_explain_lost(void)
{
	static _Atomic bool printed; /* once for all devices of the node */
	int saved = errno;

	if (mode() != OFF && !atomic_exchange(&printed, true)) {
		char line[LINE] = { 0 };
		const char *fix, *why = meaning(EIO, &fix);

		snprintf(line, sizeof(line), "weft: %s. fix: %s\n", why, fix);
		record(line, NODE_LOST);
	}
	errno = saved;
}

void weft_explain_open(const char *device, const char *dir, int err)
{
	char call[96], fix[320];
	struct stat st;

	if (!weft_explains())
		return;
	snprintf(call, sizeof(call), "ibv_open_device(%s)", device);
	/* The refusal is the program's own: the node's user would see its memory. */
	if (err == EPERM && stat(dir, &st) == 0 && st.st_uid != 0 && st.st_uid != geteuid()) {
		snprintf(fix, sizeof(fix), "WEFT_TRUST_UID=%u weft run --dir %s -- PROGRAM, if that user is trusted",
			 (unsigned)st.st_uid, dir);
		weft_explain(NULL, call, err, fix,
			     "the node in %s is one of uid %u, which would reach the memory of the program", dir,
			     (unsigned)st.st_uid);
		return;
	}
	snprintf(fix, sizeof(fix), "weft status --dir %s", dir);
	switch (err) {
	case ENOENT:
	case ECONNREFUSED:
		weft_explain(NULL, call, err, fix, "no node answers in %s", dir);
		break;
	case EACCES:
	case EPERM:
	case ECONNRESET:
	case EPIPE:
		snprintf(fix, sizeof(fix), "start the node with --allow-uid %u, or run one of your own",
			 (unsigned)geteuid());
		weft_explain(NULL, call, err, fix,
			     "the node in %s does not serve uid %u, or refused the session", dir,
			     (unsigned)geteuid());
		break;
	default:
		weft_explain(NULL, call, err, fix, "the session with the node in %s failed", dir);
	}
}

void weft_explain_reg_mr(struct ibv_context *c, const void *addr, size_t len, unsigned int access,
			 int err)
{
	static const struct {
		const char *why, *fix;
	} reach[] = {
		[WEFT_UNMAPPED] = { "not all of the %zu bytes at %p are mapped in the program",
				    "register memory that is allocated" },
		[WEFT_UNREADABLE] = { "not all of the %zu bytes at %p are readable (PROT_READ)",
				      "make them readable with mprotect before" },
		[WEFT_READ_ONLY] = { "not all of the %zu bytes at %p are writable (PROT_WRITE), and the access flags ask for writing",
				     "map them writable, or leave out every access flag but IBV_ACCESS_REMOTE_READ" },
		[WEFT_PAST_FILE] = { "not all of the %zu bytes at %p lie within the file that is mapped there",
				     "extend the file with ftruncate before" },
		[WEFT_UNKNOWN] = { "what the program may do with the %zu bytes at %p is in /proc/self/maps, which cannot be read",
				   "mount proc in the root directory of the program, or open the device before chroot" },
	};
	const char *call = "ibv_reg_mr";
	enum weft_reach r = WEFT_REACHED;

	if (!weft_explains())
		return;
	if (!weft_dead(weft_ctx(c)) && (err == EFAULT || err == EPERM))
		r = weft_mr_reach(weft_ctx(c), addr, len, access);
	if (r != WEFT_REACHED)
		weft_explain(c, call, err, reach[r].fix, reach[r].why, len, addr);
	else if (access & IBV_ACCESS_ON_DEMAND)
		weft_explain(c, call, err, "leave IBV_ACCESS_ON_DEMAND out",
			     "the device has no on-demand paging");
	else if (err == EINVAL && !(access & IBV_ACCESS_LOCAL_WRITE) &&
		 access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC))
		weft_explain(c, call, err, "add IBV_ACCESS_LOCAL_WRITE",
			     "remote write or atomic access needs local write access");
	else if (err == EINVAL && weft_arena_torn(addr, len))
		weft_explain(c, call, err, "register the parts one by one",
			     "the %zu bytes at %p are partly in the arena and partly outside", len, addr);
	else
		weft_explain(c, call, err, NULL, NULL);
}

/* ---- queue pairs ---- */

static const char *const states[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

static const char *state_name(unsigned int s)
{
	return s < sizeof(states) / sizeof(states[0]) ? states[s] : "an unknown state";
}

/* Reports a request above a limit of the device; returns whether it was. */
static bool above(struct ibv_context *c, const char *call, int err, const char *what,
		  uint64_t asked, uint64_t limit)
{
	if (asked <= limit)
		return false;
	explain_limit(c, call, err, "ask for less; ibv_devinfo -v shows the limits",
		     "%s %llu is above the limit of the device, %llu", what,
		     (unsigned long long)asked, (unsigned long long)limit);
	return true;
}

void weft_explain_create_qp(struct ibv_context *c, const struct ibv_qp_init_attr_ex *a, int err)
{
	const struct weft_res_query_device *d = &weft_ctx(c)->attr;
	const struct ibv_qp_cap *cap = &a->cap;
	const char *call = "ibv_create_qp";

	if (!weft_explains())
		return;
	if (err == EOPNOTSUPP) {
		bool known = a->qp_type == IBV_QPT_RC || a->qp_type == IBV_QPT_UC || a->qp_type == IBV_QPT_UD;

		weft_explain(c, call, err,
			     known ? "leave them out" : "use IBV_QPT_RC, IBV_QPT_UC or IBV_QPT_UD",
			     known ? "Weft does not have all flags and operations asked of type %d" :
			     a->qp_type == IBV_QPT_RAW_PACKET ? "Weft has no raw Ethernet queue pairs (type %d)" :
			     "Weft has no queue pairs of type %d", (int)a->qp_type);
		return;
	}
	if (!a->send_cq || !a->recv_cq) {
		weft_explain(c, call, err, "name a completion queue for sends and one for receives",
			     "send_cq or recv_cq is NULL");
		return;
	}
	if (above(c, call, err, "max_send_wr", cap->max_send_wr, d->max_qp_wr) ||
	    above(c, call, err, "max_send_sge", cap->max_send_sge, d->max_send_sge) ||
	    above(c, call, err, "max_inline_data", cap->max_inline_data, weft_inline_limit(d)))
		return;
	if (!a->srq && (above(c, call, err, "max_recv_wr", cap->max_recv_wr, d->max_qp_wr) ||
			above(c, call, err, "max_recv_sge", cap->max_recv_sge, d->max_recv_sge)))
		return;
	weft_explain(c, call, err, NULL, NULL);
}

#define HOW_TO_NAME_A_GID \
	"name a GID: -g INDEX of ibv_*_pingpong, -x INDEX of perftest; weft dev lists them"

/* Reports what is wrong with an address; returns whether something was found. */
static bool wrong_address(struct ibv_context *c, const char *call, const struct ibv_ah_attr *a,
			  int err)
{
	struct weft_res_query_gid gid;
	struct ibv_port_attr port;

	if (a->port_num != 1) {
		weft_explain(c, call, err, "set port_num to 1",
			     "the address names port %u, the only one is 1", a->port_num);
		return true;
	}
	if (weft_query_port(c, 1, &port, sizeof(port)))
		return false;
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET && !a->is_global && empty_gid >= 0) {
		weft_explain(c, call, err, "name a GID that exists: weft dev lists them",
			     "there is no GID %d, which the program named", empty_gid);
		return true;
	}
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET && !a->is_global) {
		weft_explain(c, call, err, HOW_TO_NAME_A_GID,
			     "the address has no GID, which a RoCE port needs to reach its peer");
		return true;
	}
	if (port.link_layer != IBV_LINK_LAYER_ETHERNET && !a->dlid) {
		weft_explain(c, call, err, "weft wait --for=active, on the other node too",
			     "the address has LID 0: the port of the peer had no LID yet");
		return true;
	}
	if (!a->is_global)
		return false;
	if (a->grh.sgid_index >= port.gid_tbl_len ||
	    weft_gid(weft_ctx(c), a->grh.sgid_index, &gid) || !gid.valid) {
		weft_explain(c, call, err, "name a GID that exists: weft dev lists them",
			     "GID index %u is empty", a->grh.sgid_index);
		return true;
	}
	return false;
}

static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };

static const char *gid_text(const unsigned char raw[16], char text[INET6_ADDRSTRLEN])
{
	bool v4 = !memcmp(raw, mapped, sizeof(mapped));

	return inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? raw + sizeof(mapped) : raw, text, INET6_ADDRSTRLEN);
}

/* Reports an address that --roce-allow does not list; returns whether that is the reason. */
static bool denied_address(struct ibv_context *c, const char *call, const struct ibv_ah_attr *a,
			   int err)
{
	char text[INET6_ADDRSTRLEN];

	if (err != EACCES || !a->is_global || weft_dead(weft_ctx(c)))
		return false;
	weft_explain(c, call, err, "start the node with --roce-allow for that address too",
		     "the node may not send RoCEv2 to %s: --roce-allow does not list it", gid_text(a->grh.dgid.raw, text));
	return true;
}

/* The first GID that packets to other hosts can leave with, or -1. */
static int outward_gid(struct ibv_context *c, uint32_t len)
{
	struct weft_res_query_gid gid;

	for (uint32_t i = 0; i < len; i++) {
		if (weft_gid(weft_ctx(c), i, &gid) || !gid.valid)
			continue;
		const unsigned char *raw = gid.gid;
		bool v4 = !memcmp(raw, mapped, sizeof(mapped));
		bool near = v4 ? raw[12] == 127 || (raw[12] == 169 && raw[13] == 254) :
				 (raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80) ||
					 !memcmp(raw, &in6addr_loopback, sizeof(in6addr_loopback));

		if (!near)
			return (int)i;
	}
	return -1;
}

/* The fix for a GID that reaches no other host: the index of another, three times. */
#define NAME_THE_GID "name GID %d on both hosts: -g %d of ibv_*_pingpong, -x %d of perftest"

/* Records a GID that is no address of this host. The call that fails may be one of the peer: its program ends, and this
 * one, which waits for it, ends too. */
static void unreachable_gid(struct ibv_context *c, uint32_t index, const struct weft_res_query_gid *gid)
{
	char line[LINE] = { 0 }, from[INET6_ADDRSTRLEN];
	struct ibv_port_attr port;
	int other;

	if (weft_dead(weft_ctx(c)) || weft_query_port(c, 1, &port, sizeof(port)))
		return;
	other = outward_gid(c, port.gid_tbl_len);
	if (other < 0)
		return;
	snprintf(line, LINE - 1,
		 "weft: GID %u of %s, %s, is no address of this host: ibv_modify_qp to RTR and ibv_create_ah "
		 "refuse other hosts with it. fix: " NAME_THE_GID "\n",
		 index, c->device->name, gid_text(gid->gid, from), other, other, other);
	record(line, EMPTY_GID);
}

void weft_explain_gid(struct ibv_context *c, uint32_t index, const struct weft_res_query_gid *gid)
{
	if (!weft_explains() || empty_gid == GID_FOUND)
		return;
	if (gid && gid->valid == WEFT_GID_OF_NODE) {
		unreachable_gid(c, index, gid);
		return;
	}
	empty_gid = gid ? GID_FOUND : (int)index;
	if (!gid) {
		weft_explain(c, "ibv_query_gid", ENODATA, "name a GID that exists: weft dev lists them",
			     "there is no GID %u", index);
		return;
	}
	weft_lock(&lock);
	if (last_rank == EMPTY_GID) {
		last[0] = 0;
		last_rank = NOTHING;
	}
	weft_unlock(&lock);
}

/* Reports two addresses between which no packet can go; returns whether that is the reason. */
static bool no_route(struct ibv_context *c, const char *call, const struct ibv_ah_attr *a, int err)
{
	char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN], fix[192];
	struct weft_res_query_gid gid;
	struct ibv_port_attr port;
	int other;

	if (!a->is_global || weft_dead(weft_ctx(c)) ||
	    (err != EINVAL && err != ENETUNREACH && err != EHOSTUNREACH) ||
	    weft_query_port(c, 1, &port, sizeof(port)) || port.link_layer != IBV_LINK_LAYER_ETHERNET ||
	    weft_gid(weft_ctx(c), a->grh.sgid_index, &gid) || !gid.valid)
		return false;
	gid_text(gid.gid, from);
	gid_text(a->grh.dgid.raw, to);
	other = outward_gid(c, port.gid_tbl_len);
	if (other >= 0 && other != a->grh.sgid_index)
		snprintf(fix, sizeof(fix), NAME_THE_GID, other, other, other);
	else
		snprintf(fix, sizeof(fix), "ip route get %s from %s; weft dev lists the GIDs of this host", to, from);
	weft_explain(c, call, err, fix, "no packet can go from GID %u, %s, to %s", a->grh.sgid_index, from, to);
	return true;
}

/* The attributes that a change of state needs (IBA volume 1, 10.3.1, as verbs name them). */
static const struct {
	enum ibv_qp_state from, to;
	int rc, uc, ud;
} needs[] = {
	{ IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	  IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	  IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY },
	{ IBV_QPS_INIT, IBV_QPS_RTR,
	  IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	  IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, 0 },
	{ IBV_QPS_RTR, IBV_QPS_RTS,
	  IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
	  IBV_QP_SQ_PSN, IBV_QP_SQ_PSN },
};

static const struct {
	int bit;
	const char *name;
} attributes[] = {
	{ IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX" }, { IBV_QP_PORT, "IBV_QP_PORT" },
	{ IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS" }, { IBV_QP_QKEY, "IBV_QP_QKEY" },
	{ IBV_QP_AV, "IBV_QP_AV" }, { IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU" },
	{ IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN" }, { IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN" },
	{ IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC" },
	{ IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER" }, { IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN" },
	{ IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT" }, { IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT" },
	{ IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY" },
	{ IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC" },
};

/* Reports a change of state that does not exist, or lacks attributes. */
static bool wrong_change(struct ibv_qp *qp, const char *call, const struct ibv_qp_attr *a, int mask,
			 int err)
{
	enum ibv_qp_state from = mask & IBV_QP_CUR_STATE ? a->cur_qp_state : qp->state;
	char missing[256] = "";

	if (!(mask & IBV_QP_STATE))
		return false;
	for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
		int lacks;

		if (a->qp_state != needs[i].to)
			continue;
		if (from != needs[i].from && from != needs[i].to &&
		    !(needs[i].to == IBV_QPS_RTS && (from == IBV_QPS_SQD || from == IBV_QPS_SQE))) {
			weft_explain(qp->context, call, err, "RESET, INIT, RTR, RTS, in this order",
				     "the queue pair is in state %s", state_name(from));
			return true;
		}
		if (from != needs[i].from)
			continue;
		lacks = (qp->qp_type == IBV_QPT_RC ? needs[i].rc :
			 qp->qp_type == IBV_QPT_UC ? needs[i].uc : needs[i].ud) & ~mask;
		for (size_t k = 0; k < sizeof(attributes) / sizeof(attributes[0]); k++)
			if (lacks & attributes[k].bit)
				snprintf(missing + strlen(missing),
					 sizeof(missing) - strlen(missing), " %s",
					 attributes[k].name);
		if (!lacks)
			continue;
		weft_explain(qp->context, call, err, "set them and name them in the mask",
			     "attributes that this change needs are missing:%s", missing);
		return true;
	}
	return false;
}

void weft_explain_modify_qp(struct ibv_qp *qp, const struct ibv_qp_attr *a, int mask, int err)
{
	struct ibv_context *c = qp->context;
	const struct weft_res_query_device *d = &weft_ctx(c)->attr;
	struct ibv_port_attr port;
	char call[48] = "ibv_modify_qp";

	if (!weft_explains())
		return;
	if (mask & IBV_QP_STATE)
		snprintf(call, sizeof(call), "ibv_modify_qp to %s", state_name(a->qp_state));
	if (mask & IBV_QP_AV && denied_address(c, call, &a->ah_attr, err))
		return;
	if (mask & IBV_QP_AV && err != EINVAL && no_route(c, call, &a->ah_attr, err))
		return;
	if (err != EINVAL || weft_dead(weft_ctx(c)))
		goto general;
	if (wrong_change(qp, call, a, mask, err))
		return;
	if (mask & IBV_QP_PORT && a->port_num != 1) {
		weft_explain(c, call, err, "set port_num to 1", "it names port %u, the only one is 1",
			     a->port_num);
		return;
	}
	if (mask & IBV_QP_AV && wrong_address(c, call, &a->ah_attr, err))
		return;
	if (weft_query_port(c, 1, &port, sizeof(port)))
		goto general;
	if (mask & IBV_QP_PATH_MTU && a->path_mtu > port.active_mtu) {
		weft_explain(c, call, err,
			     "a path MTU of at most that (-m); a larger MTU of the interface",
			     "the path MTU %u is above the active MTU of the port, %u",
			     128u << a->path_mtu, 128u << port.active_mtu);
		return;
	}
	if (mask & IBV_QP_PKEY_INDEX && a->pkey_index >= port.pkey_tbl_len) {
		weft_explain(c, call, err, "weft pkey shows the partitions",
			     "P_Key index %u is outside of the table of %u", a->pkey_index,
			     port.pkey_tbl_len);
		return;
	}
	if ((mask & IBV_QP_MAX_QP_RD_ATOMIC &&
	     above(c, call, err, "max_rd_atomic", a->max_rd_atomic, d->max_qp_init_rd_atom)) ||
	    (mask & IBV_QP_MAX_DEST_RD_ATOMIC &&
	     above(c, call, err, "max_dest_rd_atomic", a->max_dest_rd_atomic, d->max_qp_rd_atom)) ||
	    (mask & IBV_QP_TIMEOUT && above(c, call, err, "timeout", a->timeout, 31)) ||
	    (mask & IBV_QP_MIN_RNR_TIMER &&
	     above(c, call, err, "min_rnr_timer", a->min_rnr_timer, 31)) ||
	    (mask & IBV_QP_RETRY_CNT && above(c, call, err, "retry_cnt", a->retry_cnt, 7)) ||
	    (mask & IBV_QP_RNR_RETRY && above(c, call, err, "rnr_retry", a->rnr_retry, 7)))
		return;
	if (mask & IBV_QP_AV && no_route(c, call, &a->ah_attr, err))
		return;
general:
	weft_explain(c, call, err, NULL, NULL);
}

void weft_explain_create_ah(struct ibv_context *c, const struct ibv_ah_attr *a, int err)
{
	const char *call = "ibv_create_ah";

	if (!weft_explains())
		return;
	if (denied_address(c, call, a, err))
		return;
	if (err == EINVAL && !weft_dead(weft_ctx(c)) && wrong_address(c, call, a, err))
		return;
	if (!no_route(c, call, a, err))
		weft_explain(c, call, err, NULL, NULL);
}
