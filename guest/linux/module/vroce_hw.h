/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The RoCE half as the device defines it: commands of class 6 of the control
 * queue, and elements of the RDMA queues. All integers are little-endian; GIDs
 * and immediate data are in network byte order.
 */
#ifndef VROCE_HW_H
#define VROCE_HW_H

#include <linux/if_ether.h>
#include <linux/types.h>

enum {
	HW_QUERY_DEVICE = 0,
	HW_QUERY_PORT = 1,
	HW_CREATE_CQ = 2,
	HW_DESTROY_CQ = 3,
	HW_CREATE_PD = 4,
	HW_DESTROY_PD = 5,
	HW_GET_DMA_MR = 6,
	HW_REG_USER_MR = 7,
	HW_DEREG_MR = 8,
	HW_CREATE_QP = 9,
	HW_MODIFY_QP = 10,
	HW_QUERY_QP = 11,
	HW_DESTROY_QP = 12,
	HW_CREATE_AH = 13,
	HW_DESTROY_AH = 14,
	HW_ADD_GID = 15,
	HW_DEL_GID = 16,
	HW_REQ_NOTIFY_CQ = 17,
	HW_EXT_ENABLE = 64,
	HW_CREATE_SRQ = 65,
	HW_MODIFY_SRQ = 66,
	HW_QUERY_SRQ = 67,
	HW_DESTROY_SRQ = 68,
	HW_ALLOC_MR = 69,
	HW_SET_EVQ = 73,
	HW_SET_ARM_AREA = 74,
	HW_ATTACH_MCAST = 82,
	HW_DETACH_MCAST = 83,
};

/* Bits of device_cap_flags. */
#define HW_CAP_RC_RNR_NAK_GEN BIT_ULL(0)
#define HW_CAP_ATOMIC         BIT_ULL(40)
#define HW_CAP_MEM_MGT        BIT_ULL(41)
#define HW_CAP_SRQ            BIT_ULL(43)
#define HW_CAP_ASYNC_EVQ      BIT_ULL(44)
#define HW_CAP_ERRNO_ACK      BIT_ULL(45)
#define HW_CAP_SG_WQE         BIT_ULL(46)
#define HW_CAP_ARM_DOORBELL   BIT_ULL(50)
#define HW_CAP_ATOMIC_WRITE   BIT_ULL(57)
#define HW_CAP_MCAST          BIT_ULL(59)
#define HW_CAP_PORT_ATTR      BIT_ULL(60)

struct hw_qp_cap {
	__le32 max_send_wr;
	__le32 max_recv_wr;
	__le32 max_send_sge;
	__le32 max_recv_sge;
	__le32 max_inline_data;
	__le32 padding;
};

struct hw_ah_attr {
	u8 dgid[16];
	__le32 flow_label;
	u8 sgid_index;
	u8 hop_limit;
	u8 traffic_class;
	u8 padding;
	u8 dmac[ETH_ALEN];
	u8 reserved[10];
};

struct hw_query_device {
	__le64 device_cap_flags;
	__le64 max_mr_size;
	__le64 page_size_cap;
	__le32 hw_ver;
	__le32 max_qp_wr;
	__le32 max_send_sge;
	__le32 max_recv_sge;
	__le32 max_sge_rd;
	__le32 max_cqe;
	__le32 max_mr;
	__le32 max_pd;
	__le32 max_qp_rd_atom;
	__le32 max_qp_init_rd_atom;
	__le32 max_ah;
	u8 local_ca_ack_delay;
	u8 padding[3];
	/* With an extension enabled: */
	__le32 max_srq;
	__le32 max_srq_wr;
	__le32 max_srq_sge;
	__le32 max_mw;
	__le32 max_fast_reg_pages;
	__le32 atomic_cap;
	__le32 max_inline;
	__le32 active_mtu;
	__le32 max_mcast_grp;
	__le32 max_mcast_qp_attach;
	__le32 max_total_mcast_qp_attach;
	__le32 max_pkeys;
	__le32 reserved[2];
};

struct hw_query_port {
	__le32 gid_tbl_len;
	__le32 max_msg_sz;
	__le32 reserved[6];
};

struct hw_ext_enable {
	__le64 mask;
};

/* The request, or the result, of all commands that name one object and nothing else. */
struct hw_handle {
	__le32 handle;
};

struct hw_create_cq {
	__le32 cqe;
};

struct hw_get_dma_mr {
	__le32 pdn;
	__le32 access_flags;
};

struct hw_reg_user_mr {
	__le32 pdn;
	__le32 access_flags;
	__le64 virt_addr;
	__le64 length;
	__le32 npages;
	__le32 padding;
};

struct hw_alloc_mr {
	__le32 pdn;
	__le32 max_pages;
	__le32 access;
	__le32 type;
};

/* The result of every registration. */
struct hw_mr_result {
	__le32 mrn;
	__le32 lkey;
	__le32 rkey;
};

struct hw_create_qp {
	__le32 pdn;
	u8 qp_type;
	u8 sq_sig_all;
	u8 padding[2];
	__le32 send_cqn;
	__le32 recv_cqn;
	struct hw_qp_cap cap;
	__le32 srqn1;
	__le32 qp_flags;
	__le32 reserved[2];
};

#define HW_QP_SG_WQE           1
#define HW_QP_BLOCK_SELF_MCAST 2

enum { HW_QPT_GSI = 1, HW_QPT_RC = 2, HW_QPT_UC = 3, HW_QPT_UD = 4 };

struct hw_modify_qp {
	__le32 qpn;
	__le32 attr_mask;
	u8 qp_state;
	u8 cur_qp_state;
	u8 path_mtu;
	u8 max_rd_atomic;
	u8 max_dest_rd_atomic;
	u8 min_rnr_timer;
	u8 timeout;
	u8 retry_cnt;
	u8 rnr_retry;
	u8 padding[7];
	__le32 qkey;
	__le32 rq_psn;
	__le32 sq_psn;
	__le32 dest_qp_num;
	__le32 qp_access_flags;
	__le32 rate_limit;
	struct hw_qp_cap cap;
	struct hw_ah_attr ah_attr;
	__le32 reserved[4];
};

#define HW_ATTR_STATE              0x1
#define HW_ATTR_CUR_STATE          0x2
#define HW_ATTR_ACCESS_FLAGS       0x4
#define HW_ATTR_QKEY               0x8
#define HW_ATTR_AV                 0x10
#define HW_ATTR_PATH_MTU           0x20
#define HW_ATTR_TIMEOUT            0x40
#define HW_ATTR_RETRY_CNT          0x80
#define HW_ATTR_RNR_RETRY          0x100
#define HW_ATTR_RQ_PSN             0x200
#define HW_ATTR_MAX_QP_RD_ATOMIC   0x400
#define HW_ATTR_MIN_RNR_TIMER      0x800
#define HW_ATTR_SQ_PSN             0x1000
#define HW_ATTR_MAX_DEST_RD_ATOMIC 0x2000
#define HW_ATTR_DEST_QPN           0x8000
#define HW_ATTR_RATE_LIMIT         0x10000

struct hw_query_qp {
	__le32 qpn;
	__le32 attr_mask;
};

struct hw_query_qp_result {
	u8 qp_state;
	u8 path_mtu;
	u8 sq_draining;
	u8 max_rd_atomic;
	u8 max_dest_rd_atomic;
	u8 min_rnr_timer;
	u8 timeout;
	u8 retry_cnt;
	u8 rnr_retry;
	u8 padding[7];
	__le32 qkey;
	__le32 rq_psn;
	__le32 sq_psn;
	__le32 dest_qp_num;
	__le32 qp_access_flags;
	__le32 rate_limit;
	struct hw_qp_cap cap;
	struct hw_ah_attr ah_attr;
	__le32 reserved[4];
};

struct hw_create_ah {
	__le32 pdn;
	__le32 padding;
	struct hw_ah_attr ah_attr;
};

struct hw_destroy_ah {
	__le32 pdn;
	__le32 ah;
};

struct hw_add_gid {
	__le16 index;
	__le16 padding[3];
	u8 gid[16];
};

struct hw_del_gid {
	__le16 index;
};

struct hw_req_notify_cq {
	__le32 cqn;
	__le32 flags;
};

/* Of REQ_NOTIFY_CQ and of the arm word. */
#define HW_ARM_SOLICITED 1
#define HW_ARM_NEXT      2

struct hw_create_srq {
	__le32 pdn;
	__le32 max_wr;
	__le32 max_sge;
	__le32 limit;
	__le32 reserved[4];
};

struct hw_create_srq_result {
	__le32 srqn;
	__le32 ring_index;
};

struct hw_modify_srq {
	__le32 srqn;
	__le32 mask;
	__le32 max_wr;
	__le32 limit;
};

#define HW_SRQ_LIMIT 2

struct hw_query_srq_result {
	__le32 max_wr;
	__le32 max_sge;
	__le32 limit;
	__le32 outstanding;
};

struct hw_set_evq {
	__le32 cqn;
	__le32 flags;
};

struct hw_set_arm_area {
	__le32 cqn;
	__le32 flags;
	__le64 gpa;
};

struct hw_attach_mcast {
	__le32 qpn;
	__le16 mlid;
	__le16 reserved;
	u8 gid[16];
};

/* ---- elements ---- */

struct hw_sge {
	__le64 addr;
	__le32 length;
	__le32 lkey;
};

union hw_wr {
	struct {
		__le64 remote_addr;
		__le32 rkey;
	} rdma;
	struct {
		__le32 remote_qpn;
		__le32 remote_qkey;
		__le32 ah;
	} ud;
	struct {
		__le64 remote_addr;
		__le64 compare_add;
		__le64 swap;
		__le32 rkey;
	} atomic;
	struct {
		__le32 mrn;
		__le32 key;
		__le32 access;
		__le32 npages;
		__le64 iova;
		__le64 length;
	} reg;
	u8 octets[32];
};

/* The head of every send element. */
struct hw_send {
	__le64 wr_id;
	u8 opcode;
	u8 send_flags;
	__le16 padding;
	__le32 imm_data; /* octets in network byte order, or a key in little-endian order */
	union hw_wr wr;
};

/* The layout with the extension SG_WQE: entries, or inline data, follow the head. */
struct hw_send_compact {
	struct hw_send head;
	__le32 num_sge;
	__le32 reserved[3];
	struct hw_sge sge[];
};

#define HW_INLINE 512

/* The layout of the RFC: inline data has its own place. */
struct hw_send_full {
	struct hw_send head;
	u8 inline_data[HW_INLINE];
	__le32 num_sge; /* or the octets of inline_data */
	__le32 reserved[3];
	struct hw_sge sge[];
};

struct hw_recv {
	__le64 wr_id;
	__le32 num_sge;
	__le32 reserved[3];
	struct hw_sge sge[];
};

#define HW_SEND_FENCE     1
#define HW_SEND_SIGNALED  2
#define HW_SEND_SOLICITED 4
#define HW_SEND_INLINE    8

enum {
	HW_OP_RDMA_WRITE = 0,
	HW_OP_RDMA_WRITE_IMM = 1,
	HW_OP_SEND = 2,
	HW_OP_SEND_IMM = 3,
	HW_OP_RDMA_READ = 4,
	HW_OP_ATOMIC_CMP_SWP = 0x40,
	HW_OP_ATOMIC_FETCH_ADD = 0x41,
	HW_OP_SEND_INV = 0x42,
	HW_OP_LOCAL_INV = 0x43,
	HW_OP_REG_MR = 0x44,
};

struct hw_cqe {
	__le64 wr_id;
	u8 status;
	u8 opcode;
	__le16 padding;
	__le32 vendor_err;
	__le32 byte_len;
	__le32 imm_data;
	__le32 qp_num;
	__le32 src_qp;
	__le32 wc_flags;
	__le16 pkey_index;
	__le16 slid;
	u8 sl;
	u8 dlid_path_bits;
	u8 reserved[6];
};

enum {
	HW_WC_OP_SEND = 0,
	HW_WC_OP_RDMA_WRITE = 1,
	HW_WC_OP_RDMA_READ = 2,
	HW_WC_OP_RECV = 3,
	HW_WC_OP_RECV_IMM = 4,
	HW_WC_OP_CMP_SWP = 0x40,
	HW_WC_OP_FETCH_ADD = 0x41,
	HW_WC_OP_LOCAL_INV = 0x42,
	HW_WC_OP_REG_MR = 0x43,
};

#define HW_WC_GRH      1
#define HW_WC_WITH_IMM 2
#define HW_WC_WITH_INV 0x100

struct hw_event {
	__le32 type;
	__le32 object;
	__le64 reserved;
};

enum {
	HW_EVENT_CQ_ERR = 1,
	HW_EVENT_QP_FATAL = 2,
	HW_EVENT_QP_REQ_ERR = 3,
	HW_EVENT_QP_ACCESS_ERR = 4,
	HW_EVENT_COMM_EST = 5,
	HW_EVENT_SQ_DRAINED = 6,
	HW_EVENT_LAST_WQE_REACHED = 7,
	HW_EVENT_SRQ_ERR = 8,
	HW_EVENT_SRQ_LIMIT = 9,
	HW_EVENT_PORT_ACTIVE = 10,
	HW_EVENT_PORT_DOWN = 11,
	HW_EVENT_GID_CHANGE = 12,
	HW_EVENT_DEVICE_FATAL = 13,
};

static_assert(sizeof(struct hw_ah_attr) == 40);
static_assert(sizeof(struct hw_query_device) == 128);
static_assert(sizeof(struct hw_create_qp) == 56);
static_assert(sizeof(struct hw_modify_qp) == 128);
static_assert(sizeof(struct hw_query_qp_result) == 120);
static_assert(sizeof(struct hw_create_ah) == 48);
static_assert(sizeof(struct hw_send) == 48);
static_assert(sizeof(struct hw_send_compact) == 64);
static_assert(sizeof(struct hw_send_full) == 576);
static_assert(sizeof(struct hw_recv) == 24);
static_assert(sizeof(struct hw_cqe) == 48);
static_assert(sizeof(struct hw_event) == 16);

#endif
