// SPDX-License-Identifier: Apache-2.0

package api

import "fmt"

// The node itself.
var (
	GetStatus = Op[None, Status]{Method: "GET", Path: "/status", What: "cannot read the status", Access: ReadAccess}

	ListDevices = Op[None, []Device]{Method: "GET", Path: "/devices", What: "cannot list devices", Access: ReadAccess}

	GetResources = Op[None, Resources]{Method: "GET", Path: "/resources",
		What: "cannot list resources", Access: ReadAccess}

	ListCounters = Op[None, []Counter]{Method: "GET", Path: "/counters",
		What: "cannot read counters", Access: ReadAccess}

	// ListGroups lists the multicast groups that the node takes part in.
	ListGroups = Op[None, []Group]{Method: "GET", Path: "/groups",
		What: "cannot list multicast groups", Access: ReadAccess}

	// AnnounceProgram reports that a program is about to connect: a node with an idle limit counts its whole time from
	// now on. A node that ends already answers CodeNotReady.
	AnnounceProgram = Op[None, None]{Method: "POST", Path: "/use", What: "cannot use the node", Access: ReadAccess}

	// Shutdown requests the end of the node. The answer comes before the end.
	Shutdown = Op[None, None]{Method: "POST", Path: "/shutdown", What: "cannot stop the node", Access: FullAccess}
)

// Faults.
var (
	ListFaults = Op[None, []Fault]{Method: "GET", Path: "/faults", What: "cannot list faults", Access: ReadAccess}

	AddFault = Op[FaultSpec, Fault]{Method: "POST", Path: "/faults", What: "cannot add the fault", Access: FullAccess}

	DeleteFault = Op[int, None]{Method: "DELETE", Path: "/faults/{id}",
		What: "cannot delete the fault", Access: FullAccess,
		Param: "%q is not a fault's number"}
)

// Captures. HandleCapture and Client.Capture are the fourth operation: its answer is a stream.
var (
	ListCaptures = Op[None, []Capture]{Method: "GET", Path: "/captures",
		What: "cannot list captures", Access: ReadAccess}

	StopCapture = Op[int, None]{Method: "DELETE", Path: "/captures/{id}",
		What: "cannot end the capture", Access: FullAccess,
		Param: "%q is not a capture's number"}

	startCapture = Op[CaptureSpec, Capture]{Method: "POST", Path: "/captures",
		What: "cannot capture", Access: FullAccess}
)

// Devices as functions of the adapter.
var (
	ListFunctions = Op[None, []Function]{Method: "GET", Path: "/functions",
		What: "cannot list devices", Access: ReadAccess}

	AddFunction = Op[NewFunction, Function]{Method: "POST", Path: "/functions",
		What: "cannot add the device", Access: FullAccess}

	ChangeFunction = Op[Named[FunctionChange], Function]{Method: "PATCH", Path: "/functions/{name}",
		What: "cannot change the device", Access: FullAccess}

	// LostByFunction returns what DeleteFunction would take away, nil for nothing.
	LostByFunction = Op[string, *LostContact]{Method: "GET", Path: "/functions/{name}/lost",
		What: "cannot compare the contact of the device", Access: ReadAccess}

	// DeleteFunction deletes a virtual function and ends its sessions.
	DeleteFunction = Op[string, None]{Method: "DELETE", Path: "/functions/{name}",
		What: "cannot delete the device", Access: FullAccess}
)

// The subnet. Only the node of the master has it. In a fabric of members other nodes forward the requests to it;
// elsewhere they answer CodeNotMaster and name the master.
var (
	GetSubnet = Op[None, Subnet]{Method: "GET", Path: "/fabric/subnet",
		What: "cannot show the fabric", Access: ReadAccess, Master: true}

	// GetSubnetText is the subnet in one of TextFormats.
	GetSubnetText = Op[TextFormat, Text]{Method: "GET", Path: "/fabric/text?format",
		What: "cannot show the fabric", Access: ReadAccess, Master: true,
		Fix: "weft fabric topo -o ibnetdiscover"}

	ListRoutes = Op[None, []SwitchRoutes]{Method: "GET", Path: "/fabric/routes",
		What: "cannot show the fabric", Access: ReadAccess, Master: true}

	// FindPath follows the forwarding tables between two ports.
	FindPath = Op[PathQuery, Path]{Method: "GET", Path: "/fabric/path?from&to",
		What: "cannot show the fabric", Access: ReadAccess, Master: true}

	// CheckPair walks from one port to another, and back.
	CheckPair = Op[PathQuery, PairCheck]{Method: "GET", Path: "/fabric/check?from&to",
		What: "cannot check the ports", Access: ReadAccess, Master: true}

	// CheckFabric checks the whole subnet.
	CheckFabric = Op[None, []Finding]{Method: "GET", Path: "/fabric/findings",
		What: "cannot check the fabric", Access: ReadAccess, Master: true}

	GetManager = Op[None, Manager]{Method: "GET", Path: "/fabric/manager",
		What: "cannot show the subnet manager", Access: ReadAccess}

	// ChangeManager changes how the subnet is managed. A sweep follows at once.
	ChangeManager = Op[ManagerChange, None]{Method: "PATCH", Path: "/fabric/manager",
		What: "cannot change the subnet manager", Access: FullAccess, Master: true,
		Fix: "weft sm set --help"}

	// StartSweep requests a heavy sweep. The answer comes before the sweep.
	StartSweep = Op[None, None]{Method: "POST", Path: "/fabric/sweep",
		What: "cannot sweep the subnet", Access: FullAccess, Master: true}

	ListTrunks = Op[None, []Trunk]{Method: "GET", Path: "/fabric/trunks",
		What: "cannot list trunks", Access: ReadAccess}

	ListPartitions = Op[None, []Partition]{Method: "GET", Path: "/fabric/partitions",
		What: "cannot list partitions", Access: ReadAccess, Master: true}

	// AddPartition makes a partition, or adds members to one.
	AddPartition = Op[Partition, Partition]{Method: "POST", Path: "/fabric/partitions",
		What: "cannot add to the partition", Access: FullAccess, Master: true}

	// DeletePartition removes members from a partition; without members, it deletes the partition.
	DeletePartition = Op[PartitionMembers, None]{Method: "DELETE", Path: "/fabric/partitions/{pkey}?member",
		What: "cannot delete from the partition", Access: FullAccess, Master: true}

	ListSubnetGroups = Op[None, []SubnetGroup]{Method: "GET", Path: "/fabric/groups",
		What: "cannot list multicast groups", Access: ReadAccess, Master: true}

	// JoinGroup keeps ports in a multicast group.
	JoinGroup = Op[GroupJoin, None]{Method: "POST", Path: "/fabric/groups/join",
		What: "cannot join the multicast group", Access: FullAccess, Master: true}

	// LeaveGroup undoes JoinGroup.
	LeaveGroup = Op[GroupJoin, None]{Method: "POST", Path: "/fabric/groups/leave",
		What: "cannot leave the multicast group", Access: FullAccess, Master: true}

	GetStore = Op[None, Store]{Method: "GET", Path: "/store", What: "cannot show the store", Access: ReadAccess}

	// ListStoreEntries lists the keys below a tree of the store, all keys for "".
	ListStoreEntries = Op[string, []StoreEntry]{Method: "GET", Path: "/store/entries?tree",
		What: "cannot show the store", Access: ReadAccess}

	// BackupStore returns the content of the store, with all secrets in it.
	BackupStore = Op[None, StoreBackup]{Method: "GET", Path: "/store/backup", What: "cannot back up the store",
		Access: FullAccess}

	// RestoreStore makes this node the only voter of a new store. It is carried out even when the caller leaves.
	RestoreStore = Op[StoreRestore, Store]{Method: "POST", Path: "/store/restore", What: "cannot restore the store",
		Access: FullAccess, Limit: maxBackup}

	// DefragStore writes the file of this node's copy anew.
	DefragStore = Op[None, StoreDefrag]{Method: "POST", Path: "/store/defrag", What: "cannot defragment the store",
		Access: FullAccess}
)

// The configuration of the fabric as a whole.
var (
	// ExportDesired returns it, without a node's.
	ExportDesired = Op[None, Desired]{Method: "GET", Path: "/fabric/desired",
		What: "cannot export the configuration", Access: ReadAccess, Master: true}

	// CompareDesired returns what ApplyDesired would change.
	CompareDesired = Op[Desired, Comparison]{Method: "POST", Path: "/fabric/desired/compare",
		What: "cannot compare the configuration", Access: ReadAccess, Master: true, Limit: maxDesired}

	// ApplyDesired makes it so, all of it or nothing, but for a node's.
	ApplyDesired = Op[Desired, Comparison]{Method: "PUT", Path: "/fabric/desired",
		What: "cannot apply the configuration", Access: FullAccess, Master: true, Limit: maxDesired}

	// ListHistory lists the changes of it, the oldest first.
	ListHistory = Op[Since, []HistoryEntry]{Method: "GET", Path: "/fabric/history?since",
		What: "cannot show the history", Access: ReadAccess, Master: true, Reads: "history",
		Fix: "weft history --since 24h"}

	// LostByPort returns what the deletion of a port would take away, by its GUID; nil for nothing.
	LostByPort = Op[string, *LostContact]{Method: "GET", Path: "/fabric/ports/{port}/lost",
		What: "cannot compare the contact of the port", Access: ReadAccess, Master: true}

	// ExportNode returns what this node keeps of its devices and links.
	ExportNode = Op[None, DesiredNode]{Method: "GET", Path: "/node/desired",
		What: "cannot export the configuration", Access: ReadAccess}
)

// maxDesired bounds the octets of a request with a configuration.
const maxDesired = 8 << 20

// IP links (docs/notes/ipoib.md). Tables are of the link that is named, or of all links for "".
var (
	ListIPLinks = Op[None, []IPLink]{Method: "GET", Path: "/ipoib/links",
		What: "cannot list IP links", Access: ReadAccess}

	// AddIPLinks requests links, which come and go with their partitions. The answer is the links that are there by
	// then.
	AddIPLinks = Op[IPRequest, []IPLink]{Method: "POST", Path: "/ipoib/links",
		What: "cannot add IP links", Access: FullAccess}

	// DeleteIPLinks undoes AddIPLinks, by the name of a device or of a link, or by a device and partitions.
	DeleteIPLinks = Op[IPLinkDelete, None]{Method: "DELETE", Path: "/ipoib/links/{name}?pkey",
		What: "cannot delete IP links", Access: FullAccess}

	ChangeIPLink = Op[Named[IPAction], None]{Method: "POST", Path: "/ipoib/links/{name}/do",
		What: "cannot change the IP link", Access: FullAccess}

	ListIPNeighbours = Op[string, []IPNeighbour]{Method: "GET", Path: "/ipoib/neighbours?link",
		What: "cannot show the IP link", Access: ReadAccess}
	ListIPShadow = Op[string, []IPShadow]{Method: "GET", Path: "/ipoib/shadow?link",
		What: "cannot show the IP link", Access: ReadAccess}
	ListIPPaths = Op[string, []IPPath]{Method: "GET", Path: "/ipoib/paths?link",
		What: "cannot show the IP link", Access: ReadAccess}
	ListIPGroups = Op[string, []IPGroup]{Method: "GET", Path: "/ipoib/groups?link",
		What: "cannot show the IP link", Access: ReadAccess}
	ListIPCounters = Op[string, []Counter]{Method: "GET", Path: "/ipoib/stats?link",
		What: "cannot show the IP link", Access: ReadAccess}
	ListIPParams = Op[string, []IPParam]{Method: "GET", Path: "/ipoib/params?link",
		What: "cannot show the IP link", Access: ReadAccess}

	// ListIPEvents lists the events after a number, the oldest first. It may wait some seconds for one.
	ListIPEvents = Op[EventQuery, []IPEvent]{Method: "GET", Path: "/ipoib/events?after&wait",
		What: "cannot follow IP links", Access: ReadAccess,
		Param: "after must be the number of an event", Wait: answerTime / 2}

	// ResolveIPPath resolves the path to an IP address.
	ResolveIPPath = Op[IPPathQuery, IPPathInfo]{Method: "POST", Path: "/ipoib/path",
		What: "cannot resolve the path", Access: ReadAccess}
)

// Virtual Ethernet switches as their manager sees them (docs/notes/vesw.md). The store of the subnet's master keeps
// what is intended; the master alone has the state.
var (
	ListVESWs = Op[None, []VESW]{Method: "GET", Path: "/vesws",
		What: "cannot list virtual Ethernet switches", Access: ReadAccess, Master: true}

	// GetVESW finds a switch by name or identifier.
	GetVESW = Op[string, VESW]{Method: "GET", Path: "/vesws/{name}",
		What: "cannot show the virtual Ethernet switch", Access: ReadAccess, Master: true}

	CreateVESW = Op[VESWCreate, VESW]{Method: "POST", Path: "/vesws",
		What: "cannot create the virtual Ethernet switch", Access: FullAccess, Master: true}

	ChangeVESW = Op[Named[VESWChange], VESW]{Method: "PATCH", Path: "/vesws/{name}",
		What: "cannot change the virtual Ethernet switch", Access: FullAccess, Master: true,
		Fix: "weft vesw set --help"}

	DeleteVESW = Op[string, None]{Method: "DELETE", Path: "/vesws/{name}",
		What: "cannot delete the virtual Ethernet switch", Access: FullAccess, Master: true}

	// AddVESWPort makes a port a member, or changes whether it is a gateway.
	AddVESWPort = Op[Named[VESWPortAdd], VESW]{Method: "POST", Path: "/vesws/{name}/ports",
		What: "cannot add the port to the virtual Ethernet switch", Access: FullAccess, Master: true}

	DeleteVESWPort = Op[VESWPortDelete, None]{Method: "DELETE", Path: "/vesws/{name}/ports/{port}?vport",
		What: "cannot take the port out of the virtual Ethernet switch", Access: FullAccess, Master: true,
		Param: "a vport is a number, not %q", Fix: "weft vesw"}
)

// This node's ports of virtual Ethernet switches (docs/notes/vesw.md).
var (
	ListVESWInterfaces = Op[None, []VESWInterface]{Method: "GET", Path: "/vesw/interfaces",
		What: "cannot list the ports", Access: ReadAccess}

	// ListVESWCounters lists the counters of an interface, of all for "".
	ListVESWCounters = Op[string, []Counter]{Method: "GET", Path: "/vesw/stats?interface",
		What: "cannot show the counters", Access: ReadAccess}

	// AttachVESW sets what the port of a device in a switch is for, whether the port exists yet or not. The answer is
	// what is there soon after.
	AttachVESW = Op[VESWRequest, []VESWInterface]{Method: "POST", Path: "/vesw/interfaces",
		What: "cannot attach the port", Access: FullAccess}

	// DetachVESW undoes AttachVESW, by the name of an interface or DEVICE:ID.
	DetachVESW = Op[string, None]{Method: "DELETE", Path: "/vesw/interfaces/{name}",
		What: "cannot detach the port", Access: FullAccess}
)

// Network cards of virtual machines.
var (
	ListVMs = Op[None, []VM]{Method: "GET", Path: "/vms", What: "cannot list virtual machines", Access: ReadAccess}

	AddVM = Op[NewVM, VM]{Method: "POST", Path: "/vms", What: "cannot add the virtual machine", Access: FullAccess}

	DeleteVM = Op[string, None]{Method: "DELETE", Path: "/vms/{name}",
		What: "cannot delete the virtual machine", Access: FullAccess}
)

// TextFormat is a format of GetSubnetText.
type TextFormat string

// TextFormats are those that there are: that of ibnetdiscover, which InfiniBand tools read, and that of Graphviz.
var TextFormats = []TextFormat{"ibnetdiscover", "dot"}

// Validate refuses a format that there is not.
func (f *TextFormat) Validate() error {
	for _, k := range TextFormats {
		if *f == k {
			return nil
		}
	}
	return fmt.Errorf("there is no format %q", string(*f))
}

// PathQuery names the ends of a path, each as members of partitions are named.
type PathQuery struct {
	From string `param:"from"`
	To   string `param:"to"`
}

// PartitionMembers names members of a partition, or the partition itself.
type PartitionMembers struct {
	PKey    string   `param:"pkey"`
	Members []string `param:"member"`
}

// EventQuery names the events after a number. With Wait the answer waits for one where there is none.
type EventQuery struct {
	After uint64 `param:"after"`
	Wait  bool   `param:"wait"`
}

// VESWPortDelete names a member of a virtual Ethernet switch. VPort nil is whichever the port has there.
type VESWPortDelete struct {
	Name  string `param:"name"`
	Port  string `param:"port"`
	VPort *uint  `param:"vport"`
}
