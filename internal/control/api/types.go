// SPDX-License-Identifier: Apache-2.0

// Package api is the control interface of a node: its types, its server on
// the node's Unix socket and the client the command line uses.
//
// What comes in: requests of a person's tools; what goes out: snapshots of the node's state, as the same JSON that
// `weft … -o json` prints. Field names are stable and the set only grows. Each operation is one value (operations.go):
// the node registers a function for it with Handle, the command line uses it with Call. The node owns the listener. The
// package never touches the packet path and keeps no state of its own (docs/adr/0005-control-api.md).
package api

import "time"

// Version is the version of the interface, the first element of every path.
const Version = "v1"

// Status is one screen of truth about a node.
type Status struct {
	Ready     bool          `json:"ready"`
	Version   string        `json:"version"`
	PID       int           `json:"pid"`
	UID       int           `json:"uid"`
	Dir       string        `json:"dir"`
	StartedAt time.Time     `json:"started_at"`
	UptimeNS  time.Duration `json:"uptime_ns"`
	WireLocal bool          `json:"wire_local"`
	RoCEPort  int           `json:"roce_port"` // UDP
	// RoCEAllow is the prefixes of addresses with which the RoCEv2 device exchanges packets; empty: all.
	RoCEAllow []string `json:"roce_allow" order:"value"`
	// IdleExitNS is how long after its last session the node ends; 0: never.
	IdleExitNS time.Duration   `json:"idle_exit_ns"`
	Devices    []DeviceSummary `json:"devices"`
	// AdapterEnabled is false where the physical function disabled the whole
	// adapter: every port is down.
	AdapterEnabled bool      `json:"adapter_enabled"`
	Lanes          []Lane    `json:"lanes"`
	Sessions       []Session `json:"sessions"`
	Faults         []Fault   `json:"faults"`
	Captures       []Capture `json:"captures"`
	// Manager is what the subnet manager of the node is (Manager.State); empty
	// where the node is in no subnet.
	Manager string `json:"manager"`
	// Member is the node's part in a fabric in a line, empty where it is in none.
	Member  string   `json:"member"`
	Trunks  []Trunk  `json:"trunks"`
	IPLinks []IPLink `json:"ip_links"`
	// VESWInterfaces are the ports of virtual Ethernet switches.
	VESWInterfaces []VESWInterface `json:"vesw_interfaces"`
	VMs            []VM            `json:"vms"`
	Degraded       []Degraded      `json:"degraded"`
	// Notices are worth knowing, though all works as it shall.
	Notices []Degraded `json:"notices"`
}

// DeviceSummary is a device's line in the status.
type DeviceSummary struct {
	Name      string `json:"name" order:"1"`
	LinkLayer string `json:"link_layer"`
	PortState string `json:"port_state"` // verbs name: ACTIVE, DOWN, …
	ActiveMTU int    `json:"active_mtu"` // bytes
	GIDs      int    `json:"gids"`
	LID       uint16 `json:"lid"` // 0: none
	// ICRC is how the ICRC of received packets is checked: "full", or "solve":
	// 16 bits of it where the peer's IPv4 identifications cannot be foreseen.
	ICRC    string `json:"icrc"`
	ICRCWhy string `json:"icrc_why"`
	// Segment is where an Ethernet port is plugged.
	Segment string `json:"segment"`
	// Enabled is false where the port is down on purpose: the device, or the
	// whole adapter, was disabled.
	Enabled bool `json:"enabled"`
}

// Lane is one event loop of the node.
type Lane struct {
	ID       int  `json:"id" order:"1"`
	Sessions int  `json:"sessions"`
	Polling  bool `json:"polling"`  // false: asleep until a doorbell, a packet or a deadline
	RealTime bool `json:"realtime"` // its thread has real-time priority
}

// Owner is the program that owns an object.
type Owner struct {
	Device  string `json:"device" order:"1"`
	Session uint32 `json:"session" order:"2"`
	PID     int    `json:"pid" order:"3"`
	Comm    string `json:"comm"`
	UID     int    `json:"uid"`
}

// Session is one program's connection to a device socket.
type Session struct {
	Owner
	Lane int `json:"lane"`
	// Memory is how the node reaches registered memory: "mapped", "process", "node" (its own)
	// or "none" (only the arena).
	Memory  string `json:"memory"`
	Objects int    `json:"objects"`
}

// Degraded is something that works less well than it could, or not at all.
type Degraded struct {
	What string `json:"what" order:"1"`
	Why  string `json:"why" order:"2"`
	Fix  string `json:"fix"`
}

// Device is a verbs device.
type Device struct {
	Name         string `json:"name" order:"1"`
	Index        int    `json:"index"`
	NodeGUID     string `json:"node_guid"`
	SysImageGUID string `json:"sys_image_guid"`
	NodeType     string `json:"node_type"`
	Firmware     string `json:"fw_ver"`
	// Enabled is false of a device that was disabled, AdapterEnabled while the
	// whole adapter is.
	Enabled        bool   `json:"enabled"`
	AdapterEnabled bool   `json:"adapter_enabled"`
	Ports          []Port `json:"ports"`
}

// Port is a port of a device.
type Port struct {
	Number    int    `json:"number" order:"1"`
	State     string `json:"state"`
	PhysState string `json:"phys_state"`
	LinkLayer string `json:"link_layer"`
	NetDev    string `json:"netdev"`
	Segment   string `json:"segment"`    // of an Ethernet port
	MaxMTU    int    `json:"max_mtu"`    // bytes
	ActiveMTU int    `json:"active_mtu"` // bytes
	LID       uint16 `json:"lid"`
	LMC       uint8  `json:"lmc"`
	SMLID     uint16 `json:"sm_lid"`
	GIDs      []GID  `json:"gids"`
	PKeys     []PKey `json:"pkeys"` // of an InfiniBand port
	// Ethernet describes a port in a virtual Ethernet switch.
	Ethernet EthernetPort `json:"ethernet"`
}

// PKey is one used entry of a port's P_Key table.
type PKey struct {
	Index int    `json:"index" order:"1"`
	PKey  string `json:"pkey"`
}

// GID is one used entry of a port's GID table.
type GID struct {
	Index   int    `json:"index" order:"1"`
	GID     string `json:"gid"`
	Address string `json:"address"`
	Type    string `json:"type"`
	NetDev  string `json:"netdev"`
}

// Resources are the objects of every session, with the columns of the rdma
// tool where it has them.
type Resources struct {
	PDs  []PD  `json:"pd"`
	MRs  []MR  `json:"mr"`
	MWs  []MW  `json:"mw"`
	CQs  []CQ  `json:"cq"`
	QPs  []QP  `json:"qp"`
	SRQs []SRQ `json:"srq"`
	AHs  []AH  `json:"ah"`
	// CMIDs are identifiers of the connection manager (rdma_cm), with an Owner without Session; Device is
	// empty before they are bound to one.
	CMIDs []CMID `json:"cm_id"`
}

// PD is a protection domain.
type PD struct {
	Owner
	PDN   uint32 `json:"pdn" order:"4"`
	Users int    `json:"users"`
}

// MR is a memory region. Its keys are secrets of its owner and not shown.
type MR struct {
	Owner
	MRN    uint32   `json:"mrn" order:"4"`
	PDN    uint32   `json:"pdn"`
	IOVA   uint64   `json:"iova"`
	Length uint64   `json:"mrlen"`
	Access []string `json:"access" order:"given: as in enum ibv_access_flags"`
	Memory string   `json:"memory"` // "mapped", "process", or "node": the node's own
}

// MW is a memory window. Its key is its owner's secret.
type MW struct {
	Owner
	MWN    uint32   `json:"mwn" order:"4"`
	PDN    uint32   `json:"pdn"`
	Type   int      `json:"type"` // 1 or 2
	MRN    uint32   `json:"mrn"`  // of the region it is bound to, 0: it is bound to nothing
	IOVA   uint64   `json:"iova"`
	Length uint64   `json:"mwlen"`
	Access []string `json:"access" order:"given: as in enum ibv_access_flags"`
}

// CQ is a completion queue.
type CQ struct {
	Owner
	CQN     uint32 `json:"cqn" order:"4"`
	CQE     int    `json:"cqe"`
	Users   int    `json:"users"`
	Armed   bool   `json:"armed"`
	Overrun bool   `json:"overrun"`
}

// QP is a queue pair.
type QP struct {
	Owner
	LQPN      uint32 `json:"lqpn" order:"4"`
	RQPN      uint32 `json:"rqpn"`
	Type      string `json:"type"`
	State     string `json:"state"`
	RQPSN     uint32 `json:"rq_psn"`
	SQPSN     uint32 `json:"sq_psn"`
	PDN       uint32 `json:"pdn"`
	SendCQN   uint32 `json:"send_cqn"`
	RecvCQN   uint32 `json:"recv_cqn"`
	SRQN      uint32 `json:"srqn"`
	PathMTU   int    `json:"path_mtu"` // bytes
	LocalGID  string `json:"local_gid"`
	RemoteGID string `json:"remote_gid"`
	SameNode  bool   `json:"same_node"` // payload goes straight from memory to memory
}

// SRQ is a shared receive queue.
type SRQ struct {
	Owner
	SRQN        uint32 `json:"srqn" order:"4"`
	PDN         uint32 `json:"pdn"`
	MaxWR       int    `json:"max_wr"`
	Outstanding int    `json:"outstanding"`
	Limit       int    `json:"limit"`
}

// AH is an address handle.
type AH struct {
	Owner
	AHN       uint32 `json:"ahn" order:"4"`
	PDN       uint32 `json:"pdn"`
	RemoteGID string `json:"remote_gid"`
}

// CMID is an identifier of the connection manager: a listener, a connection, or what
// may become one.
type CMID struct {
	Owner
	CMIDN uint32 `json:"cm_idn" order:"4"`
	LQPN  uint32 `json:"lqpn"` // 0: none, or not known
	Type  string `json:"qp_type"`
	State string `json:"state"`
	PS    string `json:"ps"`
	Src   string `json:"src_addr"` // address and port; empty where there is none
	Dst   string `json:"dst_addr"`
}

// Group is a multicast group as far as this node takes part in it.
type Group struct {
	MLID    uint16 `json:"mlid" order:"1"` // 0: a group of an IP address
	MGID    string `json:"mgid" order:"2"` // empty: the switch forwards the LID, and no queue pair has named the group
	Address string `json:"address"`        // the MGID as an IP address
	// Devices are those that the group's packets reach.
	Devices []string  `json:"devices" order:"value"`
	QPs     []GroupQP `json:"qps"`
}

// GroupQP is a queue pair that is attached to a group.
type GroupQP struct {
	Owner
	LQPN uint32 `json:"lqpn" order:"4"`
	Lane int    `json:"lane"`
}

// Counter scopes.
const (
	ScopeNode    = "node"
	ScopeLane    = "lane"
	ScopeLink    = "link"
	ScopeSession = "session"
	ScopeQP      = "qp"
	ScopePort    = "port"
	ScopeMcast   = "mcast"
	ScopeTrunk   = "trunk" // by peer
	ScopeAgent   = "agent" // of the switch, and of devices
	ScopeSM      = "sm"
	ScopeSA      = "sa"
	ScopeEM      = "em"    // the Ethernet Manager
	ScopeIPoIB   = "ipoib" // by link
	ScopeVM      = "vm"    // by virtual machine
	ScopeVESW    = "vesw"  // by interface, and by device
	ScopeCM      = "cm"    // the communication manager
	ScopeJoin    = "join"  // the join protocol
	ScopeStore   = "store" // the listener of the store
)

// Counter is one named count since its scope's start.
type Counter struct {
	Scope string `json:"scope" order:"1"`
	// Instance distinguishes scopes of one kind: a lane's or a session's number,
	// a link's name; empty for the node.
	Instance string `json:"instance" order:"2"`
	Name     string `json:"name" order:"3"`
	Value    uint64 `json:"value"`
}

// Quotas bound what a device's clients may have: sessions for all, the rest for
// each session. In a change 0 leaves a quota as it is.
type Quotas struct {
	Sessions    int   `json:"sessions"`
	PDs         int   `json:"pd"`
	MRs         int   `json:"mr"`
	CQs         int   `json:"cq"`
	QPs         int   `json:"qp"`
	SRQs        int   `json:"srq"`
	AHs         int   `json:"ah"`
	MemoryBytes int64 `json:"memory_bytes"` // of the node, for queues and page lists
}

// Function is a device as a function of the node's adapter: what it may have
// and its share of what the adapter sends.
type Function struct {
	Name    string `json:"name"`
	Number  int    `json:"number" order:"1"`
	Virtual bool   `json:"virtual"` // can be deleted
	Enabled bool   `json:"enabled"`
	// AdapterEnabled is false while the physical function has the whole adapter
	// disabled: every port is down, whatever Enabled is.
	AdapterEnabled bool   `json:"adapter_enabled"`
	LinkLayer      string `json:"link_layer"`
	PortState      string `json:"port_state"`
	LID            uint16 `json:"lid"`
	NodeGUID       string `json:"node_guid"`
	Sessions       int    `json:"sessions"`
	Weight         int    `json:"weight"`
	QoS            []int  `json:"qos" order:"given: by service level"` // weight of each level, by service level
	// Kept reports whether the device and its changes survive a restart of the node; if not, NotKept is the reason.
	Kept    bool   `json:"kept"`
	NotKept string `json:"not_kept"`
	Quotas  Quotas `json:"quotas"`
	// PortGUID names its port in the fabric; empty: it is in none.
	PortGUID string `json:"port_guid"`
	// Segment is where an Ethernet port is plugged: host, or that of NewFunction.
	Segment string       `json:"segment"`
	VESW    EthernetPort `json:"vesw"` // of a port in a virtual Ethernet switch
}

// SegmentHost is the segment of a port that has the host's addresses.
const SegmentHost = "host"

// EthernetPort is the Ethernet port of a device in a virtual Ethernet switch.
type EthernetPort struct {
	Addrs  []string `json:"addrs" order:"value"`
	Routes []string `json:"routes" order:"value"`
	// Number is that of the switch, 0: it is in none; VPort the port's there.
	Number  int    `json:"number"`
	VPort   int    `json:"vport"`
	MAC     string `json:"mac"`
	MTU     int    `json:"mtu"` // of frames
	Carrier bool   `json:"carrier"`
	// CarrierReason is the reason of no carrier.
	CarrierReason string      `json:"carrier_reason"`
	Neighbours    []Neighbour `json:"neighbours"`
}

// Neighbour is a station that a device sends to.
type Neighbour struct {
	Address string `json:"address" order:"1"`
	MAC     string `json:"mac"`   // its, or that of the gateway to it; empty: not known
	State   string `json:"state"` // resolving, reachable, unreachable
	// SinceNS is the time since the last request for it, 0: it never answered; Frames is the number that wait for it.
	SinceNS time.Duration `json:"since_ns"`
	Frames  int           `json:"frames"`
}

// FunctionChange is what to change of a function; what is not there stays.
type FunctionChange struct {
	Enabled *bool `json:"enabled"`
	// AdapterEnabled enables or disables the whole adapter; only a device of the
	// physical function has it.
	AdapterEnabled *bool       `json:"adapter_enabled"`
	Weight         int         `json:"weight"` // 0: as it is
	QoS            map[int]int `json:"qos"`    // weights by level
	Quotas         Quotas      `json:"quotas"`
}

// NewFunction is a device to add: a virtual function with an InfiniBand port.
type NewFunction struct {
	Name string `json:"name"`
	// Segment is where its port is plugged: empty for an InfiniBand port, vesw:NAME for an Ethernet port in a
	// virtual Ethernet switch by name or number, vesw for one that the manager of the switches assigns.
	Segment string `json:"segment"`
	// Addrs are the IP addresses of an Ethernet port, with prefix lengths, and Routes ways by it, PREFIX=GATEWAY.
	Addrs  []string `json:"addrs"`
	Routes []string `json:"routes"`
	FunctionChange
}

// FaultSpec is what a fault does to outgoing packets of a link. Percentages
// are 0 … 100 of packets, independent of each other.
type FaultSpec struct {
	Drop      float64       `json:"drop"`
	Duplicate float64       `json:"duplicate"`
	Reorder   float64       `json:"reorder"`
	Corrupt   float64       `json:"corrupt"`
	DelayNS   time.Duration `json:"delay_ns"`
	// Seed fixes the sequence of decisions; the node draws one when it is 0.
	Seed uint64 `json:"seed"`
	// Device and Peer narrow the fault down; empty means all. Peer is an IP
	// address.
	Device string `json:"device"`
	Peer   string `json:"peer"`
	// Link is LinkRoCE or LinkTrunk; empty means both.
	Link string `json:"link"`
}

// Links that faults act on.
const (
	LinkRoCE  = "roce"
	LinkTrunk = "trunk"
)

// Fault is an active fault and what it has done.
type Fault struct {
	ID int `json:"id" order:"1"`
	FaultSpec
	Packets    uint64 `json:"packets"` // seen
	Dropped    uint64 `json:"dropped"`
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Corrupted  uint64 `json:"corrupted"`
	Delayed    uint64 `json:"delayed"`
}
