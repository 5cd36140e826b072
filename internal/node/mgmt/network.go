// SPDX-License-Identifier: Apache-2.0

// Package mgmt is the management of a subnet by its node: the store, the subnet manager with its Ethernet Manager, and
// the operations of the control interface on them: topology, routes, partitions, groups, virtual Ethernet switches, the
// store.
//
// What comes in: requests of people; what goes out: their answers, and changes of the intent in the store, which
// managers apply. The node starts it after the management goroutine (package subnet), and closes it before.
package mgmt

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/node/describe"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/problem"
)

// Config is what the management needs from its node.
type Config struct {
	Settings config.Config
	Log      *slog.Logger
	Now      func() mono.Time
	Wall     func(mono.Time) time.Time // a time of Now as people have it
	GUID     ib.GUID                   // of the node
	Host     string                    // the host's name
	Subnet   *subnet.Subnet            // nil: the node is in no subnet
	// DevicePort returns the GUID of a device's InfiniBand port; false where there is none.
	DevicePort func(device string) (ib.GUID, bool)
	// Members are the other members of the node's fabric; nil: it is never in one.
	Members Members
	// Drained is the name of the drained member with a port; empty: its member is not drained.
	Drained func(port ib.GUID) string
	// Planned reports whether two nodes shall have a trunk; nil: each two that had one.
	Planned func(a, b ib.GUID) bool
	// ManagedBy is the LID of the manager that gave a port of this node its LID, 0 where there is none.
	ManagedBy func() ib.LID
}

// Fabric is what a node needs to share the store with the other members of its fabric: one store on all of them.
type Fabric struct {
	// Name is that of the member, unique in the fabric and the same for ever: the last part of the keys that only this
	// member writes.
	Name      string
	Listen    string // HOST:PORT of the store's listener
	Advertise string // HOST:PORT where other members reach it
	// Moved is where the node is now: addresses of hosts change.
	Moved  func() etcd.Place
	Seeds  []string // HOST:PORT of members that have the store
	Joins  bool     // it never makes a store: another member has it
	ID     string   // of the fabric; empty: none, of a laboratory
	Unable bool     // it holds no copy: it has no disk, or others do not reach it
	// What the member's roles withhold: NoManager, it runs no subnet manager; NoAdministrator, its commands change
	// nothing of the subnet.
	NoManager, NoAdministrator bool
	Security                   *etcd.Security
	// Label is the name of a member for people, by Name; nil: Name is.
	Label func(name string) string
	// MayRestore returns why this member may not restore the store of the fabric; nil: it may.
	MayRestore func() error
}

// label is the name of a member for people.
func (f *Fabric) label(name string) string {
	if f == nil || f.Label == nil {
		return name
	}
	return f.Label(name)
}

func (f *Fabric) noManager() bool { return f != nil && f.NoManager }

// administer returns why commands on the member may not change the subnet: root on a member without the role
// administrator is none.
func (f *Fabric) administer() error {
	if f != nil && f.NoAdministrator {
		return &api.Error{Code: api.CodeRefused, Why: "this host has not the role administrator",
			Fix: "run the command on a host that has it: weft member list"}
	}
	return nil
}

// Network is the management of a subnet by its node. Its methods may be called on any goroutine but lanes and the
// management goroutine, after Start.
type Network struct {
	cfg Config
	sub *subnet.Subnet
	// VESWs has the virtual Ethernet switches of the subnet.
	VESWs VESWs
	// Transit is which members carry packets of others.
	Transit Transit

	fabric atomic.Pointer[Fabric] // nil: an embedded store is the node's own
	// comparisons admits comparisons of configurations.
	comparisons turns
	// noMKey is why the M_Key of a new fabric could not be written; nil: it was, or has been since.
	noMKey atomic.Pointer[problem.Error]

	// Set by Start.
	store       store.Store      // nil: there is none
	storeMember *etcd.Member     // nil: the store is memory, or an etcd elsewhere
	manager     *manager.Manager // nil where another node, or a program, manages
	noManager   error            // why there is none, though there should be
	unsettled   atomic.Bool      // the last report of the store and the election had something
	noStore     error            // why there is no store, though there should be
}

// New returns a management that is not started.
func New(c Config) *Network {
	n := &Network{cfg: c, sub: c.Subnet}
	n.VESWs.n, n.Transit.n = n, n
	return n
}

// Share makes an embedded store that of a fabric, on all of its members. It is called before Start.
func (n *Network) Share(f *Fabric) { n.fabric.Store(f) }

// Found is Share for the first member of a fabric, while the node runs: other members can use its store from now on,
// and the subnet gets an M_Key. On an error nothing has changed. An M_Key that cannot be written is no error: the store
// is shared by then, and Degraded reports it (m_key_failed).
func (n *Network) Found(ctx context.Context, f *Fabric) error {
	m := n.storeMember
	if m == nil {
		return nil // memory, or an etcd elsewhere, which the members reach by themselves
	}
	if err := m.Found(ctx, etcd.Group{Name: f.Name, Listen: f.Listen, Advertise: f.Advertise,
		Moved: f.Moved, Fabric: f.ID, Security: f.Security}); err != nil {
		return storeError(err)
	}
	n.fabric.Store(f)
	if n.cfg.Settings.MKeyFile != "" {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	by := n.changeOf(ctx, "token")
	by.Text = "an M_Key, since the node is in a fabric now"
	if err := manager.EditMKey(ctx, n.store, by, func(k *manager.MKey) {
		if k.IsNone() && !k.Off {
			k.Renew()
		}
	}); err != nil {
		n.cfg.Log.Error("the subnet has no M_Key", "err", err)
		n.noMKey.Store(problem.Of("", err))
	}
	return nil
}

// unkeyed reports that the M_Key of a new fabric could not be written.
func unkeyed(p *problem.Error) []api.Degraded {
	if p == nil {
		return nil
	}
	return []api.Degraded{{What: "m_key_failed", Why: problem.Text("no M_Key could be written, and each node of the "+
		"subnet may change its tables", problem.Text(p.What, p.Why, ""), ""), Fix: "weft sm set --m-key random"}}
}

// Store is the store, nil where there is none; missing is why, where there should be one.
func (n *Network) Store() (s store.Store, missing error) { return n.store, n.noStore }

// Manager is the subnet manager, nil where there is none; missing is why, where there should be one. It belongs to the
// management goroutine.
func (n *Network) Manager() (m *manager.Manager, missing error) { return n.manager, n.noManager }

// ErrNoFabric is the error of operations on a subnet where the node is in none.
var ErrNoFabric = &api.Error{Code: api.CodeNotFound, Why: "the node is in no subnet", Fix: "weft up --fabric"}

// StoreWait bounds how long a command waits for the store, StorePatience how long a request for the state does.
const (
	StorePatience = time.Second
	StoreWait     = 2 * StorePatience
)

func isNotFound(err error) bool { return errors.Is(err, store.ErrNotFound) }

// name is what the node is called in elections.
func (n *Network) name() string { return n.cfg.Host + " " + n.cfg.GUID.String() }

// State is the manager's state in a word, empty where the node is in no subnet.
func (n *Network) State() string {
	switch {
	case n.sub == nil:
		return ""
	case n.noManager != nil:
		return "failed"
	case n.manager == nil && n.fabric.Load().noManager():
		return config.SMOff
	case n.manager == nil:
		return n.cfg.Settings.SM
	}
	s, _ := n.status()
	return s.State
}

// status is the state of the manager, which there is; the error is loop.ErrStopped.
func (n *Network) status() (s manager.Status, err error) {
	err = n.sub.Do(func() { s = n.manager.Status() })
	return s, err
}

// Elsewhere gives an error of a node that is not the master another fix; other errors stay as they are.
func Elsewhere(err error, fix string) error {
	var e *api.Error
	if errors.As(err, &e) && e.Code == api.CodeNotMaster {
		x := *e
		x.Fix = fix
		return &x
	}
	return err
}

// topologyIfKnown is the model of the subnet if this node has one, to name ports by.
func (n *Network) topologyIfKnown() (t *topo.Subnet) {
	if n.manager != nil {
		n.sub.Do(func() { t = n.manager.Topo() })
	}
	return t
}

// portNamed returns the GUID of a port: the GUID itself, a device of the node that received the request of ctx, or
// DEVICE@NODE with a host name, or the GUID of a node's switch.
func (n *Network) portNamed(ctx context.Context, name string, t *topo.Subnet) (ib.GUID, error) {
	return n.portNames(ctx, t)(name)
}

// portNames is portNamed for many names. What it returns is for one goroutine.
func (n *Network) portNames(ctx context.Context, t *topo.Subnet) func(name string) (ib.GUID, error) {
	var devices *deviceNames // made for the first name that needs it
	return func(name string) (ib.GUID, error) {
		if g, ok := describe.ParseGUID(name); ok {
			return g, nil
		}
		device, host, remote := strings.Cut(name, "@")
		if c := api.CallerOf(ctx); !remote && c.Node != 0 { // of the member that forwarded the request
			host, remote = c.Node.String(), true
		}
		own, isGUID := describe.ParseGUID(host)
		if !remote || isGUID && own == n.cfg.GUID {
			port, ok := n.cfg.DevicePort(device)
			if !ok {
				return 0, describe.NotFound("weft dev", "%q is no GUID, and this node has no such InfiniBand device", name)
			}
			return port, nil
		}
		if t == nil {
			return 0, describe.Invalid("give the port's GUID, or ask the master (weft sm)",
				"this node does not know the devices of others: %q", name)
		}
		if devices == nil {
			devices = namesOf(t)
		}
		found := devices.byHost[device+"@"+host]
		if isGUID && len(found) == 0 {
			found = devices.byNode[device+"@"+own.String()]
		}
		switch len(found) {
		case 1:
			return found[0], nil
		case 0:
			return 0, describe.NotFound("weft fabric nodes", "the subnet has no device %q", name)
		}
		return 0, describe.Invalid("name it by GUID", "%d devices are called %q: %v", len(found), name, found)
	}
}

// deviceNames are the ports of a subnet by DEVICE@NODE.
type deviceNames struct{ byHost, byNode map[string][]ib.GUID }

func namesOf(t *topo.Subnet) *deviceNames {
	d := deviceNames{map[string][]ib.GUID{}, map[string][]ib.GUID{}}
	for r := range t.EndPorts() {
		x, port := &t.Nodes[r.Node], t.Port(r).GUID
		if host, device, ok := strings.Cut(x.Description, " "); ok {
			at := device + "@" + host
			d.byHost[at] = append(d.byHost[at], port)
			at = device + "@" + x.Info.SystemImageGUID.String()
			d.byNode[at] = append(d.byNode[at], port)
		}
	}
	return &d
}

// portName is the description of a port's node, where t has it.
func portName(t *topo.Subnet, g ib.GUID) string {
	if t == nil {
		return ""
	}
	if r := t.PortByGUID(g); !r.IsNone() {
		return t.Nodes[r.Node].Description
	}
	return ""
}

func partition(i *manager.Intent, key ib.PKey) int {
	return slices.IndexFunc(i.Subnet.Partitions, func(p sm.Partition) bool { return (p.PKey^key)&0x7fff == 0 })
}
