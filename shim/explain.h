/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a verbs call failed. Verbs report an errno alone; programs print that, or
 * nothing. WEFT_EXPLAIN=1 (weft run --explain) prints a line at once for each call
 * that fails; WEFT_EXPLAIN=exit (weft run) prints the line of the last one when
 * the program ends with a status other than 0; without it nothing is printed. A call
 * that failed with EOPNOTSUPP counts there only if no other did, and the end of the node
 * before any call.
 *
 * All functions may be called from any thread, keep errno, and cost nothing where
 * no call fails.
 */
#ifndef WEFT_EXPLAIN_H
#define WEFT_EXPLAIN_H

#include <infiniband/verbs.h>

/* Whether explanations are wanted at all. */
bool weft_explains(void);

/*
 * Records that call, such as "ibv_create_cq", failed with err: why (format), and
 * what to do about it (fix, may be NULL). A NULL why is replaced by what err means
 * for any call.
 */
void weft_explain(struct ibv_context *c, const char *call, int err, const char *fix, const char *why,
		  ...) __attribute__((format(printf, 5, 6)));

/* The program made an object: a limit that refused a call before was one that the program looked for, and is not the
 * reason of a bad end. */
void weft_explain_made(void);

/* Records that the program read the GID of an index; gid is NULL if the entry is empty. Programs read the whole table
 * as well: an entry that is empty, or no address of the host, is the reason of a bad end only if the program found no
 * other, and nothing else failed. */
struct weft_res_query_gid;
void weft_explain_gid(struct ibv_context *c, uint32_t index, const struct weft_res_query_gid *gid);

/* Records that call failed with EOPNOTSUPP, since Weft does not have what it does. */
void weft_explain_missing(struct ibv_context *c, const char *call);

/* Records that the node has ended, or has closed the session of a device: the reason of a bad end, whatever else
 * failed. Once in a process. */
void weft_explain_lost(void);

void weft_explain_open(const char *device, const char *dir, int err);
void weft_explain_reg_mr(struct ibv_context *c, const void *addr, size_t len, unsigned int access,
			 int err);
void weft_explain_create_qp(struct ibv_context *c, const struct ibv_qp_init_attr_ex *a, int err);
void weft_explain_modify_qp(struct ibv_qp *qp, const struct ibv_qp_attr *a, int mask, int err);
void weft_explain_create_ah(struct ibv_context *c, const struct ibv_ah_attr *a, int err);

#endif
