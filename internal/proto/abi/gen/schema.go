// SPDX-License-Identifier: Apache-2.0

package main

// layout is one structure of the ABI. Fields are lines "offset name type";
// the generator checks that every offset follows from natural alignment, that the
// compiler adds no padding and that the sum is size.
type layout struct {
	c, goName string // goName "" = no Go structure, only offsets
	size      int
	doc       string
	fields    string
}

// A field type is u8 … u64, an array of it, or the C name of an earlier
// layout. ":T" after it gives the Go type T. "flex" marks a flexible array.
// "union a=x b=y" overlays earlier layouts, padded to the bytes before the
// next field.
var layouts = []layout{
	{"qp_cap", "QPCap", 24, "capacities of a queue pair", `
		0 max_send_wr u32
		4 max_recv_wr u32
		8 max_send_sge u32
		12 max_recv_sge u32
		16 max_inline_data u32
		20 padding u32`},
	{"ah_attr", "AHAttr", 40, "address vector; from sl on valid in CREATE_AH with WEFT_VERBS, else 0", `
		0 dgid u8[16]:ib.GID
		16 flow_label u32
		20 sgid_index u8
		21 hop_limit u8
		22 traffic_class u8
		23 padding u8
		24 dmac u8[6]
		30 sl u8
		31 src_path_bits u8
		32 dlid u16:ib.LID
		34 static_rate u8:ib.Rate
		35 flags u8
		36 reserved u8[4]`},
	{"mr_result", "MRResult", 12, "result of every memory registration", `
		0 mrn u32
		4 lkey u32:ib.Key
		8 rkey u32:ib.Key`},
	{"sge", "", 16, "one entry of a scatter/gather list", `
		0 addr u64
		8 length u32
		12 lkey u32`},
	{"config", "Config", 32, "device configuration space", `
		0 mac u8[6]
		6 status u16
		8 max_virtqueue_pairs u16
		10 mtu u16
		12 speed u32
		16 duplex u8
		17 rss_max_key_size u8
		18 rss_max_indirection_table_length u16
		20 supported_hash_types u32
		24 max_rdma_qps u32
		28 max_rdma_cqs u32`},

	{"vu_hdr", "VUHeader", 12, "header of every vhost-user message", `
		0 request u32
		4 flags u32
		8 size u32`},
	{"vu_config", "VUConfig", 12, "payload head of GET_CONFIG and SET_CONFIG, the bytes follow", `
		0 offset u32
		4 size u32
		8 flags u32`},
	{"vu_mem_reg", "VUMemReg", 40, "payload of ADD_MEM_REG and REM_MEM_REG", `
		0 padding u64
		8 gpa u64
		16 size u64
		24 user_addr u64
		32 mmap_offset u64`},
	{"vu_vring_state", "VUVringState", 8, "payload of SET_VRING_NUM, SET_VRING_BASE and others", `
		0 index u32
		4 num u32`},
	{"vu_vring_addr", "VUVringAddr", 40, "payload of SET_VRING_ADDR; addresses are those of the front end", `
		0 index u32
		4 flags u32
		8 desc u64
		16 used u64
		24 avail u64
		32 log u64`},
	{"hello", "Hello", 16, "payload of WEFT_HELLO", `
		0 abi u32
		4 flags u32
		8 pid u32
		12 reserved u32`},
	{"hello_reply", "HelloReply", 16, "answer to WEFT_HELLO", `
		0 abi u32
		4 flags u32
		8 node_uid u32
		12 spin_us u32`},
	{"set_doorbell", "SetDoorbell", 16, "payload of WEFT_SET_DOORBELL, with the kick eventfd", `
		0 gpa u64
		8 nbits u32
		12 reserved u32`},
	{"set_ring", "SetRing", 48, "payload of WEFT_SET_RING; addresses are GPAs", `
		0 index u32
		4 num u32
		8 desc u64
		16 avail u64
		24 used u64
		32 call_value u64
		40 flags u32
		44 reserved u32`},
	{"stop_ring", "StopRing", 8, "payload of WEFT_STOP_RING", `
		0 index u32
		4 reserved u32`},
	{"proc_mem", "ProcMem", 16, "payload of WEFT_PROC_MEM, with the descriptor", `
		0 probe_addr u64
		8 probe_value u64`},

	{"doorbell", "", 128, "doorbell area; WEFT_DOORBELL_SIZE(nbits) bytes in all", `
		0 sleeping u32
		4 pad0 u32[15]
		64 summary u64
		72 pad1 u64[7]
		128 bits u64 flex`},

	{"vring_desc", "", 16, "descriptor of a split ring", `
		0 addr u64
		8 len u32
		12 flags u16
		14 next u16`},
	{"vring_avail", "", 4, "available ring; shared, idx is stored with release", `
		0 flags u16
		2 idx u16
		4 ring u16 flex`},
	{"vring_used_elem", "", 8, "entry of the used ring", `
		0 id u32
		4 len u32`},
	{"vring_used", "", 4, "used ring; shared, idx is loaded with acquire", `
		0 flags u16
		2 idx u16
		4 ring vring_used_elem flex`},

	{"ctrl_hdr", "CtrlHeader", 2, "first bytes of every control command", `
		0 cls u8
		1 command u8:Cmd`},
	{"res_query_device", "QueryDeviceResult", 128,
		"fields from max_srq on are valid with their capability bit, else 0", `
		0 device_cap_flags u64
		8 max_mr_size u64
		16 page_size_cap u64
		24 hw_ver u32
		28 max_qp_wr u32
		32 max_send_sge u32
		36 max_recv_sge u32
		40 max_sge_rd u32
		44 max_cqe u32
		48 max_mr u32
		52 max_pd u32
		56 max_qp_rd_atom u32
		60 max_qp_init_rd_atom u32
		64 max_ah u32
		68 local_ca_ack_delay u8
		69 padding u8[3]
		72 max_srq u32
		76 max_srq_wr u32
		80 max_srq_sge u32
		84 max_mw u32
		88 max_fast_reg_pages u32
		92 atomic_cap u32
		96 max_inline u32
		100 active_mtu u32
		104 max_mcast_grp u32
		108 max_mcast_qp_attach u32
		112 max_total_mcast_qp_attach u32
		116 max_pkeys u32
		120 reserved u32[2]`},
	{"res_query_port", "QueryPortResult", 32, "", `
		0 gid_tbl_len u32
		4 max_msg_sz u32
		8 reserved u32[6]`},
	{"cmd_create_cq", "CreateCQ", 4, "", `
		0 cqe u32`},
	{"res_create_cq", "CreateCQResult", 4, "", `
		0 cqn u32`},
	{"cmd_destroy_cq", "DestroyCQ", 4, "", `
		0 cqn u32`},
	{"res_create_pd", "CreatePDResult", 4, "", `
		0 pdn u32`},
	{"cmd_destroy_pd", "DestroyPD", 4, "", `
		0 pdn u32`},
	{"cmd_get_dma_mr", "GetDMAMR", 8, "", `
		0 pdn u32
		4 access_flags u32:ib.Access`},
	{"cmd_reg_user_mr", "RegUserMR", 32, "npages page addresses (u64) follow", `
		0 pdn u32
		4 access_flags u32:ib.Access
		8 virt_addr u64
		16 length u64
		24 npages u32
		28 padding u32`},
	{"cmd_dereg_mr", "DeregMR", 4, "", `
		0 mrn u32`},
	{"cmd_create_qp", "CreateQP", 56, "srqn1 and qp_flags need WEFT_VERBS, else they are reserved", `
		0 pdn u32
		4 qp_type u8:ib.QPType
		5 sq_sig_all u8
		6 padding u8[2]
		8 send_cqn u32
		12 recv_cqn u32
		16 cap qp_cap
		40 srqn1 u32
		44 qp_flags u32
		48 reserved u32[2]`},
	{"res_create_qp", "CreateQPResult", 4, "the RFC's result", `
		0 qpn u32`},
	{"res_create_qp_ex", "CreateQPResultEx", 8, "result with WEFT_VERBS", `
		0 qpn u32
		4 wire_qpn u32:ib.QPN`},
	{"cmd_modify_qp", "ModifyQP", 128, "attr_mask has the bits of the RFC", `
		0 qpn u32
		4 attr_mask u32:AttrMask
		8 qp_state u8:ib.QPState
		9 cur_qp_state u8:ib.QPState
		10 path_mtu u8:ib.MTU
		11 max_rd_atomic u8
		12 max_dest_rd_atomic u8
		13 min_rnr_timer u8
		14 timeout u8
		15 retry_cnt u8
		16 rnr_retry u8
		17 padding u8[7]
		24 qkey u32:ib.QKey
		28 rq_psn u32:ib.PSN
		32 sq_psn u32:ib.PSN
		36 dest_qp_num u32:ib.QPN
		40 qp_access_flags u32:ib.Access
		44 rate_limit u32
		48 cap qp_cap
		72 ah_attr ah_attr
		112 reserved u32[4]`},
	{"cmd_query_qp", "QueryQP", 8, "", `
		0 qpn u32
		4 attr_mask u32:AttrMask`},
	{"res_query_qp", "QueryQPResult", 120, "", `
		0 qp_state u8:ib.QPState
		1 path_mtu u8:ib.MTU
		2 sq_draining u8
		3 max_rd_atomic u8
		4 max_dest_rd_atomic u8
		5 min_rnr_timer u8
		6 timeout u8
		7 retry_cnt u8
		8 rnr_retry u8
		9 padding u8[7]
		16 qkey u32:ib.QKey
		20 rq_psn u32:ib.PSN
		24 sq_psn u32:ib.PSN
		28 dest_qp_num u32:ib.QPN
		32 qp_access_flags u32:ib.Access
		36 rate_limit u32
		40 cap qp_cap
		64 ah_attr ah_attr
		104 reserved u32[4]`},
	{"cmd_destroy_qp", "DestroyQP", 4, "", `
		0 qpn u32`},
	{"cmd_create_ah", "CreateAH", 48, "", `
		0 pdn u32
		4 padding u32
		8 ah_attr ah_attr`},
	{"res_create_ah", "CreateAHResult", 4, "", `
		0 ah u32`},
	{"cmd_destroy_ah", "DestroyAH", 8, "", `
		0 pdn u32
		4 ah u32`},
	{"cmd_add_gid", "AddGID", 24, "", `
		0 index u16
		2 padding u16[3]
		8 gid u8[16]:ib.GID`},
	{"cmd_del_gid", "DelGID", 2, "", `
		0 index u16`},
	{"cmd_req_notify_cq", "ReqNotifyCQ", 8, "", `
		0 cqn u32
		4 flags u32`},

	{"cmd_ext_enable", "ExtEnable", 8, "request and result", `
		0 mask u64`},
	{"cmd_create_srq", "CreateSRQ", 32, "", `
		0 pdn u32
		4 max_wr u32
		8 max_sge u32
		12 limit u32
		16 reserved u32[4]`},
	{"res_create_srq", "CreateSRQResult", 8, "", `
		0 srqn u32
		4 ring_index u32`},
	{"cmd_modify_srq", "ModifySRQ", 16, "", `
		0 srqn u32
		4 mask u32
		8 max_wr u32
		12 limit u32`},
	{"cmd_query_srq", "QuerySRQ", 4, "", `
		0 srqn u32`},
	{"res_query_srq", "QuerySRQResult", 16, "", `
		0 max_wr u32
		4 max_sge u32
		8 limit u32
		12 outstanding u32`},
	{"cmd_destroy_srq", "DestroySRQ", 4, "", `
		0 srqn u32`},
	{"cmd_alloc_mr", "AllocMR", 16, "", `
		0 pdn u32
		4 max_pages u32
		8 access u32:ib.Access
		12 type u32`},
	{"cmd_alloc_mw", "AllocMW", 8, "", `
		0 pdn u32
		4 type u32`},
	{"res_alloc_mw", "AllocMWResult", 8, "", `
		0 mwn u32
		4 rkey u32:ib.Key`},
	{"cmd_dealloc_mw", "DeallocMW", 4, "", `
		0 mwn u32`},
	{"cmd_resize_cq", "ResizeCQ", 8, "", `
		0 cqn u32
		4 cqe u32`},
	{"cmd_set_evq", "SetEVQ", 8, "", `
		0 cqn u32
		4 flags u32`},
	{"cmd_set_arm_area", "SetArmArea", 16, "", `
		0 cqn u32
		4 flags u32
		8 gpa u64`},
	{"cmd_reg_mr_va", "RegMRVA", 32, "", `
		0 pdn u32
		4 access u32:ib.Access
		8 va u64
		16 length u64
		24 iova u64`},
	{"cmd_rereg_mr", "ReregMR", 40, "", `
		0 mrn u32
		4 flags u32
		8 pdn u32
		12 access u32:ib.Access
		16 va u64
		24 length u64
		32 iova u64`},
	{"cmd_query_port_ex", "QueryPortEx", 8, "", `
		0 port u32
		4 reserved u32`},
	{"res_query_port_ex", "QueryPortExResult", 64, "", `
		0 state u8
		1 max_mtu u8:ib.MTU
		2 active_mtu u8:ib.MTU
		3 phys_state u8
		4 link_layer u8
		5 active_width u8
		6 active_speed u8
		7 lmc u8
		8 lid u16:ib.LID
		10 sm_lid u16:ib.LID
		12 gid_tbl_len u16
		14 pkey_tbl_len u16
		16 max_msg_sz u32
		20 port_cap_flags u32
		24 bad_pkey_cntr u32
		28 qkey_viol_cntr u32
		32 sm_sl u8
		33 subnet_timeout u8
		34 init_type u8
		35 flags u8
		36 reserved u32[7]`},
	{"cmd_query_gid", "QueryGID", 8, "", `
		0 index u32
		4 reserved u32`},
	{"res_query_gid", "QueryGIDResult", 32, "", `
		0 gid u8[16]:ib.GID
		16 type u32
		20 ifindex u32
		24 valid u32
		28 reserved u32`},
	{"cmd_attach_mcast", "AttachMcast", 24, "also DETACH_MCAST", `
		0 qpn u32
		4 mlid u16:ib.LID
		6 reserved u16
		8 gid u8[16]:ib.GID`},
	{"qp_attr_ex", "QPAttrEx", 192, "request of MODIFY_QP_EX, result of QUERY_QP_EX; attr_mask has verbs numbers", `
		0 qpn u32
		4 attr_mask u32:ib.AttrMask
		8 qp_state u8:ib.QPState
		9 cur_qp_state u8:ib.QPState
		10 path_mtu u8:ib.MTU
		11 path_mig_state u8
		12 qkey u32:ib.QKey
		16 rq_psn u32:ib.PSN
		20 sq_psn u32:ib.PSN
		24 dest_qp_num u32:ib.QPN
		28 access u32:ib.Access
		32 pkey_index u16
		34 en_sqd_async_notify u8
		35 sq_draining u8
		36 max_rd_atomic u8
		37 max_dest_rd_atomic u8
		38 min_rnr_timer u8
		39 port u8
		40 timeout u8
		41 retry_cnt u8
		42 rnr_retry u8
		43 is_global u8
		44 rate_limit u32
		48 cap qp_cap
		72 ah_attr ah_attr
		112 sl u8
		113 src_path_bits u8
		114 dlid u16:ib.LID
		116 static_rate u8
		117 qp_type u8:ib.QPType
		118 sig_all u8
		119 reserved u8[73]`},
	{"cmd_query_qp_ex", "QueryQPEx", 8, "", `
		0 qpn u32
		4 reserved u32`},
	{"cmd_query_pkey", "QueryPKey", 8, "", `
		0 index u32
		4 reserved u32`},
	{"res_query_pkey", "QueryPKeyResult", 4, "", `
		0 pkey u16:ib.PKey
		2 reserved u16`},

	{"sq_rdma", "", 32, "WRITE and READ part of a send element", `
		0 remote_addr u64
		8 rkey u32
		12 reserved u32[5]`},
	{"sq_ud", "", 32, "datagram part of a send element", `
		0 remote_qpn u32
		4 remote_qkey u32
		8 ah u32
		12 reserved u32[5]`},
	{"sq_atomic", "", 32, "atomic part of a send element", `
		0 remote_addr u64
		8 compare_add u64
		16 swap u64
		24 rkey u32
		28 reserved u32`},
	{"sq_reg", "", 32, "REG_MR part of a send element", `
		0 mrn u32
		4 key u32
		8 access u32
		12 npages u32
		16 iova u64
		24 length u64`},
	{"sq_bind", "", 32, "BIND_MW part of a send element", `
		0 addr u64
		8 length u64
		16 mr_lkey u32
		20 mw_rkey u32
		24 access u32
		28 reserved u32`},
	{"sq_hdr", "", 64, "compact send element (SG_WQE); num_sge entries or bytes of inline data follow", `
		0 wr_id u64
		8 opcode u8
		9 send_flags u8
		10 padding u16
		12 imm_data u8[4]
		16 wr union rdma=sq_rdma ud=sq_ud atomic=sq_atomic reg=sq_reg bind=sq_bind
		48 num_sge u32
		52 reserved u32[3]
		64 sge sge flex`},
	{"sq_req", "", 576, "send element of the RFC; num_sge entries follow", `
		0 wr_id u64
		8 opcode u8
		9 send_flags u8
		10 padding u16
		12 imm_data u8[4]
		16 wr union rdma=sq_rdma ud=sq_ud
		48 inline_data u8[512]
		560 num_sge u32
		564 reserved u32[3]
		576 sge sge flex`},
	{"rq_hdr", "", 24, "receive element; num_sge entries follow", `
		0 wr_id u64
		8 num_sge u32
		12 reserved u32[3]
		24 sge sge flex`},
	{"cqe", "", 48, "completion", `
		0 wr_id u64
		8 status u8
		9 opcode u8
		10 padding u16
		12 vendor_err u32
		16 byte_len u32
		20 imm_data u8[4]
		24 qp_num u32
		28 src_qp u32
		32 wc_flags u32
		36 pkey_index u16
		38 slid u16
		40 sl u8
		41 dlid_path_bits u8
		42 reserved u8[6]`},
	{"event", "Event", 16, "asynchronous event", `
		0 type u32
		4 object u32
		8 reserved u64`},

	{"umad_open", "UmadOpen", 80, "first record at umad.sock that opens a file of a device's port", `
		0 op u32:UmadOp
		4 version u32
		8 flags u32
		12 port u32
		16 device u8[64]`},
	{"umad_opened", "UmadOpened", 24, "its answer; records of the file follow", `
		0 error u32
		4 header_len u32
		8 token u8[16]`},
	{"umad_control", "UmadControl", 72, "first and only record of an ioctl on an open file", `
		0 op u32:UmadOp
		4 version u32
		8 token u8[16]
		24 number u32
		28 length u32
		32 arg u8[40]`},
	{"umad_controlled", "UmadControlled", 48, "its answer", `
		0 error u32
		4 header_len u32
		8 arg u8[40]`},

	{"cm_open", "CMOpen", 16, "first record at rdmacm.sock", `
		0 op u32:CMOp
		4 version u32
		8 reserved u64`},
	{"cm_opened", "CMOpened", 24, "its answer; of a channel, notices follow", `
		0 error u32
		4 reserved u32
		8 token u8[16]`},
	{"cm_notice", "CMNotice", 8, "record of a channel: it has events", `
		0 reserved u64`},
	{"cm_command", "CMCommand", 568, "record of a command connection: a command of the rdma_cm device", `
		0 token u8[16]
		16 from u8[16]
		32 flags u32
		36 command u32
		40 in_len u32
		44 out_len u32
		48 option_len u32
		52 reserved u32
		56 data u8[512]`},
	{"cm_answer", "CMAnswer", 528, "its answer", `
		0 error u32
		4 flags u32
		8 length u32
		12 reserved u32
		16 data u8[512]`},
}

// constant is one number of the ABI. The C name is WEFT_ + name; goName gives
// the Go one, "" omits it in Go (a type of package ib has it).
type constant struct {
	name, goName string
	value        uint64
}

type constGroup struct {
	doc    string
	goType string
	list   []constant
}

var constants = []constGroup{
	{"version of this ABI", "", []constant{{"ABI_VERSION", "Version", 2}}},
	{"feature bits of the device", "", []constant{
		{"F_CSUM", "FeatureCsum", 0}, {"F_GUEST_CSUM", "FeatureGuestCsum", 1},
		{"F_CTRL_GUEST_OFFLOADS", "FeatureCtrlGuestOffloads", 2}, {"F_MTU", "FeatureMTU", 3}, {"F_MAC",
			"FeatureMAC", 5},
		{"F_GUEST_TSO4", "FeatureGuestTSO4", 7}, {"F_GUEST_TSO6", "FeatureGuestTSO6", 8}, {"F_GUEST_ECN",
			"FeatureGuestECN", 9},
		{"F_HOST_TSO4", "FeatureHostTSO4", 11}, {"F_HOST_TSO6", "FeatureHostTSO6", 12}, {"F_HOST_ECN",
			"FeatureHostECN", 13},
		{"F_MRG_RXBUF", "FeatureMrgRxbuf", 15}, {"F_STATUS", "FeatureStatus", 16}, {"F_CTRL_VQ", "FeatureCtrlVQ", 17},
		{"F_CTRL_RX", "FeatureCtrlRX", 18}, {"F_CTRL_VLAN", "FeatureCtrlVLAN", 19}, {"F_CTRL_RX_EXTRA",
			"FeatureCtrlRXExtra", 20},
		{"F_GUEST_ANNOUNCE", "FeatureGuestAnnounce", 21}, {"F_MQ", "FeatureMQ", 22}, {"F_CTRL_MAC_ADDR",
			"FeatureCtrlMACAddr", 23},
		{"F_LOG_ALL", "FeatureLogAll", 26}, {"F_RING_INDIRECT_DESC", "FeatureIndirect", 28}, {"F_RING_EVENT_IDX",
			"FeatureEventIdx", 29},
		{"F_PROTOCOL_FEATURES", "FeatureProtocol", 30}, {"F_VERSION_1", "FeatureVersion1", 32}, {"F_RING_PACKED",
			"FeaturePacked", 34},
		{"F_RING_RESET", "FeatureRingReset", 40}, {"F_ROCE", "FeatureRoCE", 55}, {"F_HOST_USO", "FeatureHostUSO", 56}}},
	{"vhost-user protocol feature bits", "", []constant{
		{"PF_MQ", "ProtoMQ", 0}, {"PF_LOG_SHMFD", "ProtoLogShmFD", 1}, {"PF_RARP", "ProtoRARP", 2},
		{"PF_REPLY_ACK", "ProtoReplyAck", 3}, {"PF_MTU", "ProtoMTU", 4},
		{"PF_BACKEND_REQ", "ProtoBackendReq", 5}, {"PF_CONFIG", "ProtoConfig", 9},
		{"PF_RESET_DEVICE", "ProtoResetDevice", 13}, {"PF_CONFIGURE_MEM_SLOTS", "ProtoConfigureMemSlots", 15},
		{"PF_STATUS", "ProtoStatus", 16}, {"PF_WEFT", "ProtoWeft", 56}}},
	{"bits of the device status", "", []constant{
		{"STATUS_ACKNOWLEDGE", "StatusAcknowledge", 1}, {"STATUS_DRIVER", "StatusDriver", 2},
		{"STATUS_DRIVER_OK", "StatusDriverOK", 4}, {"STATUS_FEATURES_OK", "StatusFeaturesOK", 8},
		{"STATUS_NEEDS_RESET", "StatusNeedsReset", 64}, {"STATUS_FAILED", "StatusFailed", 128}}},
	{"flags of a vhost-user header", "", []constant{
		{"VU_VERSION", "VUVersion", 1}, {"VU_REPLY", "VUReply", 4}, {"VU_NEED_REPLY", "VUNeedReply", 8}}},
	{"vhost-user requests", "", []constant{
		{"VU_GET_FEATURES", "ReqGetFeatures", 1}, {"VU_SET_FEATURES", "ReqSetFeatures", 2},
		{"VU_SET_OWNER", "ReqSetOwner", 3}, {"VU_RESET_OWNER", "ReqResetOwner", 4},
		{"VU_SET_MEM_TABLE", "ReqSetMemTable", 5}, {"VU_SET_LOG_BASE", "ReqSetLogBase", 6},
		{"VU_SET_LOG_FD", "ReqSetLogFD", 7}, {"VU_SET_VRING_NUM", "ReqSetVringNum", 8},
		{"VU_SET_VRING_ADDR", "ReqSetVringAddr", 9}, {"VU_SET_VRING_BASE", "ReqSetVringBase", 10},
		{"VU_GET_VRING_BASE", "ReqGetVringBase", 11}, {"VU_SET_VRING_KICK", "ReqSetVringKick", 12},
		{"VU_SET_VRING_CALL", "ReqSetVringCall", 13}, {"VU_SET_VRING_ERR", "ReqSetVringErr", 14},
		{"VU_GET_QUEUE_NUM", "ReqGetQueueNum", 17}, {"VU_SET_VRING_ENABLE", "ReqSetVringEnable", 18},
		{"VU_SEND_RARP", "ReqSendRARP", 19}, {"VU_NET_SET_MTU", "ReqNetSetMTU", 20},
		{"VU_SET_BACKEND_REQ_FD", "ReqSetBackendReqFD", 21}, {"VU_SET_CONFIG", "ReqSetConfig",
			25}, {"VU_RESET_DEVICE", "ReqResetDevice", 34},
		{"VU_GET_PROTOCOL_FEATURES", "ReqGetProtocolFeatures", 15},
		{"VU_SET_PROTOCOL_FEATURES", "ReqSetProtocolFeatures", 16}, {"VU_GET_CONFIG", "ReqGetConfig", 24},
		{"VU_GET_MAX_MEM_SLOTS", "ReqGetMaxMemSlots", 36}, {"VU_ADD_MEM_REG", "ReqAddMemReg", 37},
		{"VU_REM_MEM_REG", "ReqRemMemReg", 38}, {"VU_SET_STATUS", "ReqSetStatus", 39},
		{"VU_GET_STATUS", "ReqGetStatus", 40},
		{"VU_HELLO", "ReqHello", 0x5701}, {"VU_SET_DOORBELL", "ReqSetDoorbell", 0x5702},
		{"VU_SET_RING", "ReqSetRing", 0x5703}, {"VU_STOP_RING", "ReqStopRing", 0x5704},
		{"VU_PROC_MEM", "ReqProcMem", 0x5705}}},
	{"vhost-user requests of the device", "", []constant{{"VU_BACKEND_CONFIG_CHANGE", "BackendConfigChange", 2}}},
	{"flags of SET_RING", "", []constant{{"RING_CALL", "RingCall", 1}, {"RING_MOVE", "RingMove", 2}}},
	{"limits", "", []constant{
		{"MAX_MEM_REGIONS", "MaxMemRegions", 256}, {"MAX_OBJECT_RINGS", "MaxObjectRings", 16384},
		{"MAX_RING_NUM", "MaxRingNum", 32768}, {"MAX_CTRL_CMD", "MaxCtrlCmd", 2048},
		{"MAX_INLINE_RFC", "MaxInlineRFC", 512}, {"MAX_CQE", "MaxCQE", 4194303},
		{"MAX_FAST_REG_PAGES", "MaxFastRegPages", 512}, {"MAX_FAST_REG_INLINE", "MaxFastRegInline", 64}}},
	{"flags of split rings", "", []constant{
		{"VRING_DESC_NEXT", "DescFlagNext", 1}, {"VRING_DESC_WRITE", "DescFlagWrite", 2}, {"VRING_DESC_INDIRECT",
			"DescFlagIndirect", 4},
		{"VRING_AVAIL_NO_INTERRUPT", "AvailNoInterrupt", 1}, {"VRING_USED_NO_NOTIFY", "UsedNoNotify", 1}}},
	{"control command classes", "", []constant{
		{"CLASS_RX", "ClassRX", 0}, {"CLASS_MAC", "ClassMAC", 1}, {"CLASS_VLAN", "ClassVLAN", 2}, {"CLASS_ANNOUNCE",
			"ClassAnnounce", 3},
		{"CLASS_MQ", "ClassMQ", 4}, {"CLASS_GUEST_OFFLOADS", "ClassGuestOffloads", 5}, {"CLASS_ROCE", "ClassRoCE", 6}}},
	{"control commands", "Cmd", []constant{
		{"CMD_QUERY_DEVICE", "CmdQueryDevice", 0}, {"CMD_QUERY_PORT", "CmdQueryPort", 1},
		{"CMD_CREATE_CQ", "CmdCreateCQ", 2}, {"CMD_DESTROY_CQ", "CmdDestroyCQ", 3},
		{"CMD_CREATE_PD", "CmdCreatePD", 4}, {"CMD_DESTROY_PD", "CmdDestroyPD", 5},
		{"CMD_GET_DMA_MR", "CmdGetDMAMR", 6}, {"CMD_REG_USER_MR", "CmdRegUserMR", 7},
		{"CMD_DEREG_MR", "CmdDeregMR", 8}, {"CMD_CREATE_QP", "CmdCreateQP", 9},
		{"CMD_MODIFY_QP", "CmdModifyQP", 10}, {"CMD_QUERY_QP", "CmdQueryQP", 11},
		{"CMD_DESTROY_QP", "CmdDestroyQP", 12}, {"CMD_CREATE_AH", "CmdCreateAH", 13},
		{"CMD_DESTROY_AH", "CmdDestroyAH", 14}, {"CMD_ADD_GID", "CmdAddGID", 15},
		{"CMD_DEL_GID", "CmdDelGID", 16}, {"CMD_REQ_NOTIFY_CQ", "CmdReqNotifyCQ", 17},
		{"CMD_EXT_ENABLE", "CmdExtEnable", 64}, {"CMD_CREATE_SRQ", "CmdCreateSRQ", 65},
		{"CMD_MODIFY_SRQ", "CmdModifySRQ", 66}, {"CMD_QUERY_SRQ", "CmdQuerySRQ", 67},
		{"CMD_DESTROY_SRQ", "CmdDestroySRQ", 68}, {"CMD_ALLOC_MR", "CmdAllocMR", 69}, {"CMD_ALLOC_MW", "CmdAllocMW",
			70},
		{"CMD_DEALLOC_MW", "CmdDeallocMW", 71}, {"CMD_RESIZE_CQ", "CmdResizeCQ", 72},
		{"CMD_SET_EVQ", "CmdSetEVQ", 73}, {"CMD_SET_ARM_AREA", "CmdSetArmArea", 74},
		{"CMD_REG_MR_VA", "CmdRegMRVA", 75}, {"CMD_REREG_MR", "CmdReregMR", 76},
		{"CMD_QUERY_PORT_EX", "CmdQueryPortEx", 77}, {"CMD_QUERY_GID", "CmdQueryGID", 78},
		{"CMD_MODIFY_QP_EX", "CmdModifyQPEx", 79}, {"CMD_QUERY_QP_EX", "CmdQueryQPEx", 80},
		{"CMD_QUERY_PKEY", "CmdQueryPKey", 81}, {"CMD_ATTACH_MCAST", "CmdAttachMcast", 82},
		{"CMD_DETACH_MCAST", "CmdDetachMcast", 83}}},
	{"ack byte without ERRNO_ACK; with it a positive errno is a failure", "", []constant{
		{"ACK_OK", "AckOK", 0}, {"ACK_ERR", "AckErr", 1}}},
	{"device_cap_flags: bit numbers", "", []constant{
		{"CAP_RC_RNR_NAK_GEN", "CapRNRNAK", 0}, {"CAP_ATOMIC", "CapAtomic", 40}, {"CAP_MEM_MGT", "CapMemMgt",
			41}, {"CAP_MW", "CapMW", 42},
		{"CAP_SRQ", "CapSRQ", 43},
		{"CAP_ASYNC_EVQ", "CapAsyncEVQ", 44}, {"CAP_ERRNO_ACK", "CapErrnoAck", 45}, {"CAP_SG_WQE", "CapSGWQE", 46},
		{"CAP_ARM_DOORBELL", "CapArmDoorbell", 50}, {"CAP_VERBS", "CapVerbs", 56}, {"CAP_ATOMIC_WRITE",
			"CapAtomicWrite", 57},
		{"CAP_SRQ_RESIZE", "CapSRQResize", 58}, {"CAP_MCAST", "CapMcast", 59}, {"CAP_PORT_ATTR", "CapPortAttr", 60},
		{"CAP_QP_ATTR", "CapQPAttr", 61}, {"CAP_CQ_RESIZE", "CapCQResize", 62}}},
	{"flags of CREATE_QP", "", []constant{{"QP_SG_WQE", "QPSGWQE", 1}, {"QP_BLOCK_SELF_MCAST", "QPBlockSelfMcast", 2}}},
	{"types of ALLOC_MR", "", []constant{{"MR_FAST_REG", "MRFastReg", 0}}},
	{"types of ALLOC_MW", "", []constant{{"MW_TYPE_1", "MWType1", 1}, {"MW_TYPE_2", "MWType2", 2}}},
	{"flags of an address vector", "", []constant{{"AH_NO_GRH", "AHNoGRH", 1}}},
	{"mask of MODIFY_SRQ", "", []constant{{"SRQ_MAX_WR", "SRQMaxWR", 1}, {"SRQ_LIMIT", "SRQLimit", 2}}},
	{"flags of REREG_MR", "", []constant{
		{"REREG_TRANSLATION", "ReregTranslation", 1}, {"REREG_PD", "ReregPD", 2}, {"REREG_ACCESS", "ReregAccess", 4}}},
	{"flags of REQ_NOTIFY_CQ, values of the arm word", "", []constant{
		{"ARM_NONE", "ArmNone", 0}, {"ARM_SOLICITED", "ArmSolicited", 1}, {"ARM_NEXT", "ArmNext", 2}}},
	{"attr_mask of MODIFY_QP and QUERY_QP", "AttrMask", []constant{
		{"ATTR_STATE", "AttrState", 1 << 0}, {"ATTR_CUR_STATE", "AttrCurState", 1 << 1},
		{"ATTR_ACCESS_FLAGS", "AttrAccessFlags", 1 << 2}, {"ATTR_QKEY", "AttrQKey", 1 << 3},
		{"ATTR_AV", "AttrAV", 1 << 4}, {"ATTR_PATH_MTU", "AttrPathMTU", 1 << 5},
		{"ATTR_TIMEOUT", "AttrTimeout", 1 << 6}, {"ATTR_RETRY_CNT", "AttrRetryCnt", 1 << 7},
		{"ATTR_RNR_RETRY", "AttrRNRRetry", 1 << 8}, {"ATTR_RQ_PSN", "AttrRQPSN", 1 << 9},
		{"ATTR_MAX_QP_RD_ATOMIC", "AttrMaxQPRdAtomic", 1 << 10}, {"ATTR_MIN_RNR_TIMER", "AttrMinRNRTimer", 1 << 11},
		{"ATTR_SQ_PSN", "AttrSQPSN", 1 << 12}, {"ATTR_MAX_DEST_RD_ATOMIC", "AttrMaxDestRdAtomic", 1 << 13},
		{"ATTR_CAP", "AttrCap", 1 << 14}, {"ATTR_DEST_QPN", "AttrDestQPN", 1 << 15},
		{"ATTR_RATE_LIMIT", "AttrRateLimit", 1 << 16}, {"ATTR_ALL", "AttrAll", 0x1ffff}}},
	{"atomic_cap: atomic among queue pairs of this device, or with the CPU too", "", []constant{
		{"ATOMIC_HCA", "AtomicHCA", 1}, {"ATOMIC_GLOB", "AtomicGlob", 2}}},
	{"types of GID", "", []constant{{"GID_TYPE_IB", "GIDTypeIB", 0}, {"GID_TYPE_ROCE_V2", "GIDTypeRoCEv2", 2}}},
	{"values of valid of a GID", "", []constant{{"GID_EMPTY", "GIDEmpty", 0}, {"GID_OF_HOST", "GIDOfHost", 1},
		{"GID_OF_NODE", "GIDOfNode", 2}}},
	{"opcodes of send elements", "", []constant{
		{"OP_RDMA_WRITE", "OpWrite", 0}, {"OP_RDMA_WRITE_IMM", "OpWriteImm", 1}, {"OP_SEND", "OpSend", 2},
		{"OP_SEND_IMM", "OpSendImm", 3}, {"OP_RDMA_READ", "OpRead", 4},
		{"OP_ATOMIC_CMP_SWP", "OpCmpSwap", 0x40}, {"OP_ATOMIC_FETCH_ADD", "OpFetchAdd", 0x41},
		{"OP_SEND_INV", "OpSendInv", 0x42}, {"OP_LOCAL_INV", "OpLocalInv", 0x43}, {"OP_REG_MR", "OpRegMR", 0x44},
		{"OP_BIND_MW", "OpBindMW", 0x45}, {"OP_ATOMIC_WRITE", "OpAtomicWrite", 0x47}}},
	{"send_flags", "", []constant{
		{"SEND_FENCE", "", 1}, {"SEND_SIGNALED", "", 2}, {"SEND_SOLICITED", "", 4}, {"SEND_INLINE", "", 8}}},
	{"completion statuses", "", []constant{
		{"WC_SUCCESS", "WCSuccess", 0}, {"WC_LOC_LEN_ERR", "WCLocLenErr", 1}, {"WC_LOC_QP_OP_ERR", "WCLocQPOpErr", 2},
		{"WC_LOC_PROT_ERR", "WCLocProtErr", 3}, {"WC_WR_FLUSH_ERR", "WCWRFlushErr", 4},
		{"WC_BAD_RESP_ERR", "WCBadRespErr", 5}, {"WC_LOC_ACCESS_ERR", "WCLocAccessErr", 6},
		{"WC_REM_INV_REQ_ERR", "WCRemInvReqErr", 7}, {"WC_REM_ACCESS_ERR", "WCRemAccessErr", 8},
		{"WC_REM_OP_ERR", "WCRemOpErr", 9}, {"WC_RETRY_EXC_ERR", "WCRetryExcErr", 10},
		{"WC_RNR_RETRY_EXC_ERR", "WCRNRRetryExcErr", 11}, {"WC_REM_ABORT_ERR", "WCRemAbortErr", 12},
		{"WC_FATAL_ERR", "WCFatalErr", 13}, {"WC_RESP_TIMEOUT_ERR", "WCRespTimeoutErr", 14},
		{"WC_GENERAL_ERR", "WCGeneralErr", 15}, {"WC_MW_BIND_ERR", "WCMWBindErr", 0x40}}},
	{"opcodes of completions", "", []constant{
		{"WC_OP_SEND", "WCOpSend", 0}, {"WC_OP_RDMA_WRITE", "WCOpWrite", 1}, {"WC_OP_RDMA_READ", "WCOpRead", 2},
		{"WC_OP_RECV", "WCOpRecv", 3}, {"WC_OP_RECV_RDMA_WITH_IMM", "WCOpRecvWithImm", 4},
		{"WC_OP_CMP_SWP", "WCOpCmpSwap", 0x40}, {"WC_OP_FETCH_ADD", "WCOpFetchAdd", 0x41},
		{"WC_OP_LOCAL_INV", "WCOpLocalInv", 0x42}, {"WC_OP_REG_MR", "WCOpRegMR", 0x43}, {"WC_OP_BIND_MW",
			"WCOpBindMW", 0x44},
		{"WC_OP_ATOMIC_WRITE", "WCOpAtomicWrite", 0x47}}},
	{"wc_flags", "", []constant{{"WC_FLAG_GRH", "", 1}, {"WC_FLAG_WITH_IMM", "", 2},
		{"WC_FLAG_WITH_INV", "WCFlagWithInv", 0x100}}},
	{"version of the records at umad.sock", "", []constant{{"UMAD_VERSION", "UmadVersion", 1}}},
	{"operation of the first record at umad.sock", "UmadOp", []constant{
		{"UMAD_OPEN", "UmadOpOpen", 1}, {"UMAD_OPEN_ISSM", "UmadOpIsSM", 2}, {"UMAD_CONTROL", "UmadOpControl", 3}}},
	{"flags of umad_open", "", []constant{{"UMAD_NONBLOCK", "UmadNonblock", 1}}},
	{"version of the records at rdmacm.sock", "", []constant{{"CM_VERSION", "CMVersion", 1}}},
	{"operation of the first record at rdmacm.sock", "CMOp", []constant{
		{"CM_CHANNEL", "CMOpChannel", 1}, {"CM_COMMANDS", "CMOpCommands", 2}}},
	{"flags of cm_command: a notice of the channel was received", "", []constant{{"CM_NOTICED", "CMNoticed", 1}}},
	{"flags of cm_answer: a notice of the channel, of the one migrated from, is obsolete", "", []constant{
		{"CM_STALE", "CMStale", 1}, {"CM_STALE_FROM", "CMStaleFrom", 2}}},
	{"commands of the rdma_cm device, ABI version 4", "", []constant{
		{"CM_CREATE_ID", "CMCreateID", 0}, {"CM_DESTROY_ID", "CMDestroyID", 1}, {"CM_BIND_IP", "CMBindIP", 2},
		{"CM_RESOLVE_IP", "CMResolveIP", 3}, {"CM_RESOLVE_ROUTE", "CMResolveRoute", 4}, {"CM_QUERY_ROUTE",
			"CMQueryRoute", 5},
		{"CM_CONNECT", "CMConnect", 6}, {"CM_LISTEN", "CMListen", 7}, {"CM_ACCEPT", "CMAccept", 8}, {"CM_REJECT",
			"CMReject", 9},
		{"CM_DISCONNECT", "CMDisconnect", 10}, {"CM_INIT_QP_ATTR", "CMInitQPAttr", 11}, {"CM_GET_EVENT", "CMGetEvent",
			12},
		{"CM_GET_OPTION", "CMGetOption", 13}, {"CM_SET_OPTION", "CMSetOption", 14}, {"CM_NOTIFY", "CMNotify", 15},
		{"CM_JOIN_IP_MCAST", "CMJoinIPMcast", 16}, {"CM_LEAVE_MCAST", "CMLeaveMcast", 17}, {"CM_MIGRATE_ID",
			"CMMigrateID", 18},
		{"CM_QUERY", "CMQuery", 19}, {"CM_BIND", "CMBind", 20}, {"CM_RESOLVE_ADDR", "CMResolveAddr", 21},
		{"CM_JOIN_MCAST", "CMJoinMcast", 22}, {"CM_RESOLVE_IB_SERVICE", "CMResolveIBService",
			23},
		{"CM_WRITE_EVENT", "CMWriteEvent", 24}}},
	{"an additional command that only carries flags", "", []constant{{"CM_RESUME", "CMResume", 0x100}}},
	{"asynchronous events", "", []constant{
		{"EVENT_CQ_ERR", "", 1}, {"EVENT_QP_FATAL", "", 2}, {"EVENT_QP_REQ_ERR", "", 3},
		{"EVENT_QP_ACCESS_ERR", "", 4}, {"EVENT_COMM_EST", "", 5}, {"EVENT_SQ_DRAINED", "", 6},
		{"EVENT_LAST_WQE_REACHED", "", 7}, {"EVENT_SRQ_ERR", "", 8}, {"EVENT_SRQ_LIMIT", "", 9},
		{"EVENT_PORT_ACTIVE", "", 10}, {"EVENT_PORT_DOWN", "", 11}, {"EVENT_GID_CHANGE", "", 12},
		{"EVENT_DEVICE_FATAL", "", 13}, {"EVENT_LID_CHANGE", "", 14}, {"EVENT_PKEY_CHANGE", "", 15},
		{"EVENT_SM_CHANGE", "", 16}, {"EVENT_CLIENT_REREGISTER", "", 17}}},
}
