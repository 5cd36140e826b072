// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Text is an answer that is for another program.
type Text struct {
	Text string `json:"text"`
}

// Subnet is what the master's last sweep found.
type Subnet struct {
	Prefix string       `json:"prefix"`
	Nodes  []FabricNode `json:"nodes"` // the manager's first
	Links  []FabricLink `json:"links"`
}

// FabricNode is a switch, a channel adapter or a router.
type FabricNode struct {
	GUID        string       `json:"guid" order:"2"`
	SystemGUID  string       `json:"system_guid"`
	Type        string       `json:"type"` // switch, ca, router
	Description string       `json:"description" order:"1"`
	NumPorts    int          `json:"num_ports"`
	Ports       []FabricPort `json:"ports"` // that have a LID or a link
}

// FabricPort is a port of a node.
type FabricPort struct {
	Number    int      `json:"number" order:"1"`
	GUID      string   `json:"guid"` // of a port that has LIDs
	State     string   `json:"state"`
	PhysState string   `json:"phys_state"`
	LID       uint16   `json:"lid"`
	LMC       uint8    `json:"lmc"`
	MTU       int      `json:"mtu"` // bytes
	Gbps      float64  `json:"gbps"`
	PKeys     []string `json:"pkeys" order:"value"`
}

// FabricEnd names one end of a link.
type FabricEnd struct {
	GUID        string `json:"guid" order:"2"` // of the node
	Port        int    `json:"port" order:"3"`
	LID         uint16 `json:"lid"` // of the port, or of the switch
	Description string `json:"description" order:"1"`
}

// FabricLink is a link with what both ends agreed on.
type FabricLink struct {
	A     FabricEnd `json:"a" order:"1"`
	B     FabricEnd `json:"b" order:"2"`
	State string    `json:"state"`
	MTU   int       `json:"mtu"` // bytes
	Gbps  float64   `json:"gbps"`
}

// SwitchRoutes are the forwarding tables of a switch.
type SwitchRoutes struct {
	Switch    FabricEnd        `json:"switch" order:"1"`
	Unicast   []Route          `json:"unicast"`
	Multicast []MulticastRoute `json:"multicast"`
}

// Route is the port by which a switch sends packets to a LID.
type Route struct {
	LID  uint16    `json:"lid" order:"1"`
	Port int       `json:"port"`
	To   FabricEnd `json:"to"` // the port with the LID
	Hops int       `json:"hops"`
}

// MulticastRoute is the ports by which a switch sends packets to a group.
type MulticastRoute struct {
	MLID  uint16 `json:"mlid" order:"1"`
	Ports []int  `json:"ports" order:"value"`
}

// Path is a way through the subnet.
type Path struct {
	From FabricEnd   `json:"from"`
	To   FabricEnd   `json:"to"`
	MTU  int         `json:"mtu"` // bytes, the smallest on the way
	Gbps float64     `json:"gbps"`
	Hops []FabricEnd `json:"hops" order:"given: from one end to the other"` // the ports that packets leave by
}

// Manager is the subnet manager of a node.
type Manager struct {
	// State is off, external, failed (Store.Down is the reason), or what the built-in
	// manager is: not active, discovering, standby, master.
	State    string `json:"state"`
	PortGUID string `json:"port_guid"`
	LID      uint16 `json:"lid"`
	Priority int    `json:"priority"`
	Elected  bool   `json:"elected"` // by its store
	Term     uint64 `json:"term"`    // grows with every election
	// Master is the master of the subnet, empty where this node has not found it.
	Master Master `json:"master"`
	// Engine names the route engines that were requested, Routed the one that serves:
	// where it is a later one, Problems have the reason.
	Engine string   `json:"engine"`
	Routed string   `json:"routed"`
	Roots  []string `json:"roots" order:"value"` // GUIDs of switches, for updn
	// MKey is the source of the M_Key that protects the ports: "store", "node"
	// (its --m-key-file), or empty: there is none. MKeyProtect is its
	// protection, MKeyLeaseS the seconds after which it lapses without a manager. MKeyPerPort: each port has its own.
	MKey        string         `json:"m_key"`
	MKeyPerPort bool           `json:"m_key_per_port"`
	MKeyProtect int            `json:"m_key_protect"`
	MKeyLeaseS  int            `json:"m_key_lease_s"`
	Sweeping    string         `json:"sweeping"`                              // why, while a sweep goes on
	Sweeps      []Sweep        `json:"sweeps" order:"given: the latest last"` // the latest last
	Problems    []Problem      `json:"problems"`
	Notes       []Note         `json:"notes" order:"given: the latest last"`
	Others      []OtherManager `json:"others"`
	Store       Store          `json:"store"`
}

// ManagerChange is what shall be different; what is nil stays.
type ManagerChange struct {
	// Routing names route engines in the order of preference, with commas between
	// them, Roots the switches that updn takes as roots, by GUID; none: it chooses.
	Routing *string   `json:"routing,omitempty"`
	Roots   *[]string `json:"roots,omitempty"`
	// MKey is a number that is not 0, MKeyNone or MKeyRandom.
	MKey        *string `json:"m_key,omitempty"`
	MKeyProtect *int    `json:"m_key_protect,omitempty"`
	MKeyLeaseS  *int    `json:"m_key_lease_s,omitempty"`
}

// M_Keys that are no number.
const (
	MKeyNone   = "none"
	MKeyRandom = "random"
)

// ParseMKey reads an M_Key.
func ParseMKey(s string) (uint64, error) {
	k, err := strconv.ParseUint(strings.TrimSpace(s), 0, 64)
	if err != nil || k == 0 {
		// not what it is: it may be one
		return 0, errors.New("an M_Key is a number of 1 to 2^64-1 such as 0x1122334455667788")
	}
	return k, nil
}

// Bounds of an M_Key's lease, in seconds.
const (
	MinMKeyLease = 15
	MaxMKeyLease = 65535
)

// Validate reports all that is wrong with the change but for names, which the
// node knows.
func (c *ManagerChange) Validate() error {
	var errs []error
	if *c == (ManagerChange{}) {
		errs = append(errs, errors.New("nothing is to be changed"))
	}
	if c.MKey != nil && *c.MKey != MKeyNone && *c.MKey != MKeyRandom {
		if _, err := ParseMKey(*c.MKey); err != nil {
			errs = append(errs, fmt.Errorf("%w, or %s or %s", err, MKeyNone, MKeyRandom))
		}
	}
	if p := c.MKeyProtect; p != nil && (*p < 1 || *p > 3) {
		errs = append(errs, fmt.Errorf("the M_Key's protection must be 1 (others read) to 3, not %d", *p))
	}
	if s := c.MKeyLeaseS; s != nil && (*s < MinMKeyLease || *s > MaxMKeyLease) {
		errs = append(errs, fmt.Errorf("the M_Key's lease must be %d to %d seconds, not %d", MinMKeyLease,
			MaxMKeyLease, *s))
	}
	return errors.Join(errs...)
}

// Master is the master manager of a subnet. What is not known is empty.
type Master struct {
	Name string `json:"name"` // host and GUID
	GUID string `json:"guid"`
	Dir  string `json:"dir"`  // the node's directory
	Peer string `json:"peer"` // its address, where a trunk leads to it
}

// Sweep is one look of the manager at the subnet.
type Sweep struct {
	Kind       string        `json:"kind"` // heavy, light, groups
	Why        string        `json:"why"`
	StartedAt  time.Time     `json:"started_at"`
	TookNS     time.Duration `json:"took_ns"`
	Nodes      int           `json:"nodes"`
	Switches   int           `json:"switches"`
	Links      int           `json:"links"`
	Sent       uint64        `json:"sent"`
	Resent     uint64        `json:"resent"`
	Unanswered uint64        `json:"unanswered"`
	Failed     int           `json:"failed"`
}

// Problem is something wrong with the subnet.
type Problem struct {
	Where string `json:"where" order:"1"`
	What  string `json:"what" order:"2"`
}

// Note is a line of the manager's log.
type Note struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// OtherManager is another manager of the subnet.
type OtherManager struct {
	GUID     string `json:"guid" order:"1"`
	LID      uint16 `json:"lid"`
	Priority int    `json:"priority"`
	State    string `json:"state"`
}

// Trunk is this node's end of a trunk.
type Trunk struct {
	Peer    string `json:"peer" order:"1"`
	Port    int    `json:"port" order:"2"` // of the node's switch
	Up      bool   `json:"up"`
	State   string `json:"state"` // of that port: DOWN, INIT, ARMED, ACTIVE
	Node    string `json:"node"`  // the peer's GUID; empty: not known yet
	Name    string `json:"name"`  // of the peer, the same way, and Version
	Version string `json:"version"`
	// Security is what is done to packets: encrypt, authenticate or none; empty: there are no keys. KeysSince is when
	// those in use were agreed on.
	Security  string        `json:"security"`
	KeysSince time.Time     `json:"keys_since"`
	Rekeys    uint64        `json:"rekeys"`
	Why       string        `json:"why"` // reason of the newest handshake that failed
	Since     time.Time     `json:"since"`
	RTTNS     time.Duration `json:"rtt_ns"`
	Limit     int           `json:"limit"` // bytes of the largest datagram, as measured; 0: there is no route
	// LimitHere and LimitThere are the limits of the path as this node and the peer have it; 0: not known.
	LimitHere  int    `json:"limit_here"`
	LimitThere int    `json:"limit_there"`
	Sent       uint64 `json:"sent_packets"`
	Received   uint64 `json:"rcvd_packets"`
	Lost       uint64 `json:"lost"` // datagrams that did not come
	// LossPercent is the share of the datagrams that the peer sent in the last ten seconds and that did not arrive; 0
	// also if too few arrived to know it. Lossy: the share is higher than on a path that works.
	LossPercent float64 `json:"loss_percent"`
	Lossy       bool    `json:"lossy"`
	Reordered   uint64  `json:"reordered"` // datagrams that came late
	Downs       uint64  `json:"downs"`
}

// Memberships of a partition.
const (
	MemberFull    = "full"
	MemberLimited = "limited"
)

// AllPorts is the member that stands for every port.
const AllPorts = "ALL"

// Partition is a partition as it is intended, and as ports have it. One that is intended has a name.
type Partition struct {
	Name    string   `json:"name"`
	PKey    string   `json:"pkey" order:"1"`
	Members []Member `json:"members"`
}

// Member is a member of a partition. To add one, Port is a port's GUID, a
// device of the node that answers, DEVICE@NODE with a node's host name or GUID, or
// AllPorts; to show one, a GUID or AllPorts.
type Member struct {
	Port       string `json:"port" order:"2,ALL"`
	Membership string `json:"membership"`     // as intended; empty: it shall not be one
	Name       string `json:"name" order:"1"` // of the port's node, where the node that answers has it
	// Has is the membership by the answers of the port: full, limited or no; of AllPorts the number of ports that are
	// as intended. It is empty where the node that answers is not the master.
	Has string `json:"has"`
	Differs
}

// Differs tells how what is real differs from what is intended.
type Differs struct {
	Flag string `json:"flag"` // one of the flags; empty: it does not differ, or the node that answers is not the master
	Why  string `json:"why"`  // the reason, where the manager has one
}

// Flags of Differs.
const (
	FlagMissing = "missing"
	FlagExtra   = "extra"
	FlagNotYet  = "not yet" // no sweep of the manager has applied the newest change
)

// SubnetGroup is a multicast group that the master's SA keeps.
type SubnetGroup struct {
	MGID      string        `json:"mgid" order:"2"`
	MLID      uint16        `json:"mlid" order:"1"`
	PKey      string        `json:"pkey"`
	QKey      uint32        `json:"qkey"`
	MTU       int           `json:"mtu"` // bytes
	Gbps      float64       `json:"gbps"`
	SL        int           `json:"sl"`
	Permanent bool          `json:"permanent"` // it exists without members
	Members   []GroupMember `json:"members"`
}

// GroupMember is a port in a group.
type GroupMember struct {
	PortGUID string   `json:"port_guid" order:"2"`
	Name     string   `json:"name" order:"1"`
	Join     []string `json:"join" order:"value"` // full, non, send_only, send_only_full
	Differs           // whether packets of the group reach the port
}

// GroupJoin names the permanent members of a multicast group, whether their programs join it or not. Without members it
// makes the group permanent.
type GroupJoin struct {
	MGID string `json:"mgid"`
	// PKey, QKey and MTU are of a group that does not exist yet; zero values
	// are the default partition, its Q_Key and 2048.
	PKey    string   `json:"pkey"`
	QKey    uint32   `json:"qkey"`
	MTU     int      `json:"mtu"`     // bytes
	Members []string `json:"members"` // named as those of partitions
}

// Store is the state of the store that a node uses.
type Store struct {
	Kind      string   `json:"kind"` // memory, embedded, external; none
	Version   string   `json:"version"`
	Dir       string   `json:"dir"`
	Endpoints []string `json:"endpoints" order:"value"`
	Leader    string   `json:"leader"`
	Members   int      `json:"members"`
	Revision  int64    `json:"revision"`
	SizeBytes int64    `json:"size_bytes"`
	UsedBytes int64    `json:"used_bytes"`
	MaxBytes  int64    `json:"max_bytes"`
	Down      string   `json:"down"` // why it cannot be used; empty when it can
	// Of a store on the members of a fabric: the part of this node (voter, learner, client), how often the store was
	// restored, plus 1, the replicas, and why this node's replica was set aside.
	Role       string         `json:"role"`
	Generation int64          `json:"generation"`
	Replicas   []StoreReplica `json:"replicas"`
	SetAside   string         `json:"set_aside"`
}

// StoreReplica is a copy of the store on a member.
type StoreReplica struct {
	Member string `json:"member" order:"1"`
	URL    string `json:"url"`
	Role   string `json:"role"` // leader, voter, learner
}

// StoreBackup is the content of a store as a file.
type StoreBackup struct {
	Content  []byte `json:"content"`
	Entries  int    `json:"entries"`
	Revision int64  `json:"revision"`
}

// StoreRestore requests a store with the content of a backup, of the node's own copy where it is empty. Force is needed
// while the store has its majority.
type StoreRestore struct {
	Content []byte `json:"content"`
	Force   bool   `json:"force"`
}

// StoreDefrag is the size of a file before and after.
type StoreDefrag struct {
	Before int64 `json:"before"`
	After  int64 `json:"after"`
}

// maxBackup bounds the octets of a request with a backup: those of a full store in JSON and base64.
const maxBackup = 512 << 20

// StoreEntry is a key of the store and its value.
type StoreEntry struct {
	Key      string `json:"key" order:"1"`
	Revision int64  `json:"revision"`
	Size     int    `json:"size"`
	Leased   bool   `json:"leased"` // it ends with its owner
	Value    string `json:"value"`  // empty where it is a secret
}
