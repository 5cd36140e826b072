/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbcheck: checks every byte and every error of the verbs interface.
 *
 * A test drives two ends, A and B. An end owns a verbs context and executes
 * requests: in this process (--local) or in a server at the other side of a
 * TCP connection. So a test is one straight piece of code that states what both
 * ends do and what each must then see.
 */
#ifndef VC_H
#define VC_H

#include <endian.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	MAX_SGE = 16,     /* entries of one request */
	MAX_WRS = 256,    /* requests of one post */
	MAX_OBJ = 512,    /* objects of one kind at an end */
	PAYLOAD = 128 << 10,
	GUARD = 4096,     /* bytes before and after every buffer */
	NONE = -1,
	RXE_VENDOR = 0xffffff, /* the vendor ID of Linux soft-RoCE */
};

/* What an end can be asked to do. */
enum op {
	OP_HELLO = 1, OP_BYE, OP_RESET,
	OP_QUERY_DEVICE, OP_QUERY_PORT, OP_QUERY_GID, OP_QUERY_PKEY, OP_REOPEN,
	OP_PD, OP_PD_FREE,
	OP_BUF, OP_PROTECT, OP_UNMAP, OP_FILL, OP_EXPECT, OP_EXPECT_BYTES, OP_VERIFY, OP_GET, OP_CMP,
	OP_MR, OP_MR_FREE, OP_MR_REREG, OP_MW, OP_MW_FREE, OP_MW_BIND,
	OP_CHANNEL, OP_CHANNEL_FREE,
	OP_CQ, OP_CQ_FREE, OP_CQ_RESIZE, OP_ARM, OP_EVENT, OP_POLL,
	OP_SRQ, OP_SRQ_FREE, OP_SRQ_MODIFY, OP_SRQ_QUERY,
	OP_QP, OP_QP_FREE, OP_QP_MODIFY, OP_QP_QUERY,
	OP_AH, OP_AH_FREE, OP_AH_FROM_WC, OP_MCAST,
	OP_POST_SEND, OP_POST_RECV, OP_POST_SRQ, OP_ASYNC,
	OP_STRESS,
};

/* One request or answer; len bytes of payload follow it. */
struct msg {
	uint32_t op, len;
	int32_t rc;       /* answer: 0, or the errno the call reported */
	int32_t id;       /* answer: the new object */
	int32_t i[8];
	uint64_t u[6];
};

/* What an end reports about itself at the start. */
struct hello {
	uint32_t magic, vendor_id, part_id;
	uint8_t active_mtu, link_layer, port, gid_index;
	uint32_t max_msg_sz;
	uint16_t lid, reserved;
	union ibv_gid gid;
	struct ibv_device_attr dev;
};
#define HELLO_MAGIC 0x56430001u

struct end {
	const char *name;
	int fd;                 /* of the server, or NONE */
	struct exec *x;         /* the executor in this process */
	struct hello h;
	bool rxe;               /* deviations of Linux soft-RoCE are accepted */
};

/* A send request in portable form. */
struct swr {
	uint64_t wr_id;
	uint32_t opcode, flags, imm, num_sge;
	uint64_t raddr, cmp_add, swap;
	uint32_t rkey, rqpn, rqkey;
	int32_t ah;
	uint32_t scribble;      /* overwrite the payload once it is posted */
	/* BIND_MW: window and region; what of it is raddr and length, the key is
	 * rkey, as is the one that a request invalidates. */
	int32_t mw, mr;
	uint32_t access;
	uint64_t length;
	struct ibv_sge sge[MAX_SGE];
};

struct rwr {
	uint64_t wr_id;
	uint32_t num_sge, reserved;
	struct ibv_sge sge[MAX_SGE];
};

struct mr {
	int id;
	uint32_t lkey, rkey;
	uint64_t addr, len;     /* addr: what remote peers and SGEs name */
};

struct buf {
	int id;
	uint64_t addr, len;
};

/* exec.c */
struct exec *exec_open(const char *dev, int port, int gid_index, bool v6);
void exec_close(struct exec *x);
void exec_do(struct exec *x, struct msg *m, void *payload);
const char *exec_device(struct exec *x);
void pattern(void *p, uint64_t len, uint64_t seed, uint64_t off);

/* stress.c */
int stress(struct ibv_context *ctx, const struct hello *h, int threads, int iters, uint64_t seed, char *why, size_t n);

/* wire.c */
int wire_serve(const char *port, struct exec *x);
int wire_connect(const char *host, const char *port);
int call(struct end *e, struct msg *m, const void *in, size_t in_len, void *out, size_t out_len);

/* lib.c: what tests are written with. Those without "try" fail the test when the call does not succeed. */
extern struct end *A, *B;
extern int wait_ms;             /* how long an expected event may take */
extern bool opt_big, opt_lid, opt_user;    /* opt_lid: address by LID, without a GRH */
extern uint64_t opt_seed;
extern int opt_timeout;         /* local ACK timeout unless a test changes it */

_Noreturn void fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(cond, ...) do { if (!(cond)) FAIL(__VA_ARGS__); } while (0)
#define EXPECT_RC(want, expr) do { int rc_ = (expr); if (rc_ != (want)) \
	FAIL("%s: %s, want %s", #expr, errname(rc_), errname(want)); } while (0)
#define OK(expr) EXPECT_RC(0, expr)
const char *errname(int e);
uint64_t rnd(void);
uint64_t rnd_below(uint64_t n);

int make_pd(struct end *e);
int try_free(struct end *e, enum op op, int id);
struct buf make_buf(struct end *e, uint64_t len, unsigned misalign);
/* protect changes the protection of the pages from an offset of the buffer on. */
void protect(struct end *e, struct buf b, uint64_t off, uint64_t len, int prot);
void unmap(struct end *e, struct buf b); /* its memory is gone; its regions stay */
struct buf make_big(struct end *e, uint64_t len);
void fill(struct end *e, struct buf b, uint64_t off, uint64_t len, uint64_t seed);
void expect(struct end *e, struct buf b, uint64_t off, uint64_t len, uint64_t seed, uint64_t seed_off);
void expect_bytes(struct end *e, struct buf b, uint64_t off, const void *p, size_t n);
void get_bytes(struct end *e, struct buf b, uint64_t off, void *p, size_t n);
void verify(struct end *e, struct buf b, int ms, const char *what);
struct mr make_mr(struct end *e, int pd, struct buf b, uint64_t off, uint64_t len, int access);
int try_mr(struct end *e, int pd, uint64_t addr, uint64_t len, int access, struct mr *out);
int try_rereg(struct end *e, struct mr *m, int flags, int pd, uint64_t addr, uint64_t len, int access);
int try_mw(struct end *e, int pd, int type, int *mw, uint32_t *rkey);
/* Binds a window of type 1; rkey becomes the new one. */
int try_bind(struct end *e, int qp, int mw, int mr, uint64_t addr, uint64_t len, int access, uint64_t wr_id, int flags,
	uint32_t *rkey);
int make_channel(struct end *e);
int make_cq(struct end *e, int cqe, int channel);
int try_cq(struct end *e, int cqe, int channel, int vector, int *cq, int *got);
int try_resize(struct end *e, int cq, int cqe, int *got);
int try_arm(struct end *e, int cq, bool solicited);
int get_event(struct end *e, int channel, int ms);  /* the CQ, or NONE */
int poll_cq(struct end *e, int cq, struct ibv_wc *wc, int min, int max, int ms);
int try_srq(struct end *e, int pd, int wr, int sge, int *srq, struct ibv_srq_attr *got);
int try_srq_modify(struct end *e, int srq, struct ibv_srq_attr *a, int mask);
int try_srq_query(struct end *e, int srq, struct ibv_srq_attr *a);
struct qp_init {
	int type, pd, scq, rcq, srq, sig_all;
	uint32_t create_flags;
	uint64_t send_ops;      /* not 0: requests go by ibv_wr_* */
	struct ibv_qp_cap cap;
};
int try_qp(struct end *e, struct qp_init *in, int *qp, uint32_t *qpn); /* in->cap: what was granted */
int try_modify(struct end *e, int qp, struct ibv_qp_attr *a, int mask);
int try_query(struct end *e, int qp, struct ibv_qp_attr *a, struct ibv_qp_init_attr *ia);
enum ibv_qp_state state(struct end *e, int qp);
void wait_state(struct end *e, int qp, enum ibv_qp_state s); /* SQD: until it has drained */
int try_ah(struct end *e, int pd, struct ibv_ah_attr *a, int *ah);
int try_mcast(struct end *e, int qp, bool attach, const union ibv_gid *g, uint16_t lid);
int try_post_send(struct end *e, int qp, struct swr *w, int n, int *bad);
int try_post_recv(struct end *e, int qp, struct rwr *w, int n, int *bad);
int try_post_srq(struct end *e, int srq, struct rwr *w, int n, int *bad);
int get_async(struct end *e, int ms, int *element); /* event type, or NONE */
bool comes_async(struct end *e, int type, int element, int ms);
void want_async(struct end *e, int type, int element);

/* A connected pair of queue pairs, one at each end (or both at one). */
struct opt {
	int type;               /* IBV_QPT_*; 0 means RC */
	bool srq[2];
	uint32_t create_flags[2];
	uint64_t send_ops;
	bool sig_all, channels;
	int depth, sge, inl, cqe, rcqe;
	int rd, mtu;            /* outstanding READs; path MTU (enum) */
	int timeout, retry, rnr, min_rnr;
	int access[2];          /* QP access flags, NONE for none */
	uint32_t psn[2];        /* initial send PSN; 0: chosen at random near the wrap */
	uint64_t room;          /* size of the buffers of each end */
	int until;              /* last state to reach; 0 means RTS, NONE stays in RESET */
	struct end *end[2];     /* NULL: A and B */
};
struct side {
	struct end *e;
	int pd, scq, rcq, srq, qp, ah, sch, rch;
	uint32_t qpn, psn, inl;
	struct buf tx, rx;
	struct mr txm, rxm;
};
struct conn {
	struct opt o;
	struct side s[2];
	int mtu;                /* bytes */
	uint64_t next_id;
};
extern const uint32_t qkey;
void connect_pair(struct conn *c, const struct opt *o);
void attr_init(struct conn *c, int i, struct ibv_qp_attr *a, int *mask);
void attr_rtr(struct conn *c, int i, struct ibv_qp_attr *a, int *mask);
void attr_rts(struct conn *c, int i, struct ibv_qp_attr *a, int *mask);
void attr_ah(struct end *from, struct end *to, struct ibv_ah_attr *a);
void to_state(struct conn *c, int i, enum ibv_qp_state s);
void destroy_qps(struct conn *c);

struct seg { uint64_t off; uint32_t len; };
struct swr swr(struct conn *c, enum ibv_wr_opcode op, int flags);
void add(struct swr *w, struct mr m, uint64_t off, uint32_t len);
struct rwr rwr(struct conn *c);
void radd(struct rwr *w, struct mr m, uint64_t off, uint32_t len);
void target(struct swr *w, struct conn *c, int from, struct mr remote, uint64_t off);
void post(struct conn *c, int i, struct swr *w);
void post_recv(struct conn *c, int i, struct rwr *w);
struct ibv_wc one(struct end *e, int cq);
void want_wc(struct end *e, int cq, uint64_t wr_id, enum ibv_wc_status st);
void want_ok(struct conn *c, int i, const struct swr *w, uint32_t len);
struct ibv_wc want_recv(struct conn *c, int i, const struct rwr *w, const struct swr *from, uint32_t len);
void want_none(struct end *e, int cq, int ms);
void ping(struct conn *c, int from);  /* a SEND that must arrive */
int sizes(struct conn *c, uint64_t *out);
uint64_t room(const struct conn *c);
uint64_t aligned(struct buf b);  /* an offset fit for an atomic */
bool is_rxe(const struct conn *c);
/* Whether soft-RoCE at end e completed a request of its own fault `want` as flushed, which Linux 6.12 does. */
bool flushed_fault(const struct end *e, enum ibv_wc_status want, enum ibv_wc_status got);
/* Whether end e may lose its kernel when a resize of a shared receive queue is refused because too many requests wait:
 * every soft-RoCE, with --peer=rxe or without (docs/notes/soft-roce.md). A limit of the device or of the queue that
 * refuses a resize is harmless. */
bool refused_resize_kills(const struct end *e);
const char *type_name(int type);
bool port_is_ib(void);

/* t_errors.c: posts w at side 0 and another request behind it; expects the status, the flush, and ERR. */
void fails(struct conn *c, struct swr *w, enum ibv_wc_status st);

/* A failure inside one of these names the line of the test that called it. */
extern int test_line;
#ifndef VC_LIB
#define AT(call) (test_line = __LINE__, call)
#define verify(...) AT(verify(__VA_ARGS__))
#define comes_async(...) AT(comes_async(__VA_ARGS__))
#define want_async(...) AT(want_async(__VA_ARGS__))
#define wait_state(...) AT(wait_state(__VA_ARGS__))
#define to_state(...) AT(to_state(__VA_ARGS__))
#define post(...) AT(post(__VA_ARGS__))
#define post_recv(...) AT(post_recv(__VA_ARGS__))
#define one(...) AT(one(__VA_ARGS__))
#define want_wc(...) AT(want_wc(__VA_ARGS__))
#define want_ok(...) AT(want_ok(__VA_ARGS__))
#define want_recv(...) AT(want_recv(__VA_ARGS__))
#define want_none(...) AT(want_none(__VA_ARGS__))
#define ping(...) AT(ping(__VA_ARGS__))
#endif

/* the t_*.c files */
struct test {
	const char *name;
	void (*run)(void);
	int flags;
};
enum { ASYNC = 1, BIG = 2 };
extern uint16_t opt_mlid;        /* t_mcast.c: of the group on InfiniBand ports */
extern const struct test object_tests[], state_tests[], data_tests[], atomic_tests[], big_tests[], error_tests[],
	memory_tests[],
	window_tests[], unreliable_tests[], mcast_tests[], event_tests[];

#endif
