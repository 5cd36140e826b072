// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/vhost"
	"weft/internal/fabric/link/fabric"
	"weft/internal/host/rundir"
	"weft/internal/node/lane"
	"weft/internal/node/session"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// function is a device of the node: a function of the adapter with its device socket.
type function struct {
	n        *Node
	a        *hca.Adapter
	socket   *vhost.Server      // its device socket, nil before the node serves
	vm       *machine           // whose network card it is, nil: nobody's; guarded by the table
	st       *segmentPort       // its Ethernet port in a virtual Ethernet switch, nil: it has none
	disabled bool               // by whoever runs the node; guarded by the table
	asked    api.FunctionChange // all that people asked for; guarded by the intentStore
	down     bool               // its port is kept down, for that or with the whole adapter; guarded by edits
}

// switchboard is where InfiniBand ports are plugged in. Calls come with edits held, one at a time.
type switchboard interface {
	// Plug connects the port of a function that was added, on or off.
	Plug(a *hca.Adapter, on bool) error
	// Unplug disconnects it before the function is removed.
	Unplug(a *hca.Adapter)
	// Power lets the ports of functions come up, or takes them down; when it returns they are in that state, as far as
	// they depend on this node.
	Power(list []*hca.Adapter, on bool)
}

var _ switchboard = (*subnet.Subnet)(nil)

// Errors of functions.
var (
	errNoFunction    = errors.New("there is no such device")
	errFunctionThere = errors.New("a device has that name")
	errPhysical      = errors.New("a device of the physical function cannot be deleted")
)

// Sizes of the tables of an InfiniBand port, which its subnet manager fills.
const (
	pkeyTable = 32
	guidTable = 8
)

// newPort describes the InfiniBand port of a function that nobody manages yet.
func (n *Node) newPort(guid ib.GUID) *hca.Port {
	p := &hca.Port{Link: ib.LinkInfiniBand, State: ib.PortInit, Phys: ib.PhysLinkUp, MTU: ib.MTU4096, MaxMTU: ib.MTU4096,
		Width: ib.Width4x, Speed: ib.SpeedQDR, SpeedExt: ib.SpeedEDR, SubnetTimeout: 18, GIDPrefix: ib.DefaultGIDPrefix,
		PKeys: make([]ib.PKey, pkeyTable), GUIDs: make([]ib.GUID, guidTable), WireLocal: n.cfg.WireLocal, MaxRun: fabric.MaxRun, MaxLocalRun: lane.LocalBurst}
	p.PKeys[0], p.GUIDs[0] = ib.DefaultPKey, guid
	p.SetGIDs()
	return p
}

// addFunction makes a function with an InfiniBand port under the next number,
// and its device socket if the node serves already.
func (n *Node) addFunction(name string, limits hca.Limits) (*function, error) {
	n.edits.Lock()
	defer n.edits.Unlock()
	return n.makeFunction(name, limits, n.all.Add, true, nil)
}

// makeFunction is addFunction with edits held; number gives the function its
// number, on says whether its port may come up, and st is its Ethernet port, nil: programs have the InfiniBand port.
func (n *Node) makeFunction(name string, limits hca.Limits, number func(*hca.Adapter) error, on bool, st *segmentPort) (*function, error) {
	if n.funcs.named(name) != nil {
		return nil, errFunctionThere
	}
	a := hca.NewAdapter(n.newPort(0), limits)
	a.Name = name
	if err := number(a); err != nil {
		return nil, err
	}
	f := &function{n: n, a: a, st: st, disabled: !on}
	f.down = f.disabled || n.funcs.adapterIsOff()
	a.NodeGUID = n.identity + 2*ib.GUID(a.Number())
	p := n.newPort(a.NodeGUID + 1)
	if f.down {
		p.State, p.Phys = ib.PortDown, ib.PhysDisabled
	}
	if st != nil {
		p = st.port()
	}
	a.SetPort(p)
	if st != nil {
		if err := st.begin(a); err != nil {
			return nil, errors.Join(err, n.all.Remove(a))
		}
		n.mu.Lock()
		n.segmentPorts[name] = st // before its function can get a port of a VESW
		n.mu.Unlock()
	}
	if n.board != nil {
		if err := n.board.Plug(a, !f.down); err != nil {
			if st != nil {
				n.removeSegmentPort(st)
			}
			return nil, errors.Join(err, n.all.Remove(a))
		}
	}
	if serving := n.funcs.add(f); !serving {
		return f, nil
	}
	err := f.open()
	if err == nil {
		err = n.tree.functionsChanged()
	}
	if err != nil {
		return nil, errors.Join(err, n.drop(f))
	}
	return f, nil
}

// segment is where the function's Ethernet port is plugged, empty where it has none.
func (f *function) segment() string {
	switch {
	case f.st != nil:
		return f.st.want.Segment
	case f.a.Port().Link == ib.LinkEthernet:
		return api.SegmentHost
	}
	return ""
}

// removeFunction ends the sessions of a function and the function.
func (n *Node) removeFunction(name string) error {
	n.edits.Lock()
	defer n.edits.Unlock()
	f := n.funcs.named(name)
	switch {
	case f == nil:
		return errNoFunction
	case !virtual(f.a):
		return errPhysical
	}
	return errors.Join(n.drop(f), n.tree.functionsChanged())
}

// drop takes a function away; edits is held.
func (n *Node) drop(f *function) error {
	if f.socket != nil {
		f.socket.Close()
	}
	if f.vm != nil {
		f.vm.close()
		n.forgetMachine(f.vm)
	}
	if n.ip != nil {
		n.ip.RemoveAdapter(f.a)
	}
	if n.board != nil {
		n.board.Unplug(f.a)
	}
	if f.st != nil {
		n.removeSegmentPort(f.st)
	}
	n.funcs.remove(f)
	return n.all.Remove(f.a)
}

// ownSocketPerm are the permissions of a socket that only the node's user may enter.
const ownSocketPerm os.FileMode = 0o600

// socketPerm returns the permissions of the node's sockets.
func (n *Node) socketPerm() os.FileMode {
	if len(n.cfg.AllowUIDs) > 0 || os.Geteuid() == 0 {
		return 0o666 // who calls is checked by its credentials
	}
	return ownSocketPerm
}

// listenRecords opens a record socket, which serves nothing before Start.
func (n *Node) listenRecords(name, what string, most, mostOfUser int) (*session.Records, error) {
	l, err := n.dir.ListenRecords(name, n.socketPerm())
	if err != nil {
		return nil, err
	}
	return n.sessions.OpenRecords(l, name, what, most, mostOfUser), nil
}

// treePerm returns the permissions of directories with sockets.
func (n *Node) treePerm() os.FileMode {
	if n.socketPerm() == ownSocketPerm {
		return 0o700
	}
	return 0o755
}

// open opens the function's device socket. All device sockets share the quotas of the first.
func (f *function) open() error {
	n := f.n
	socket, err := vhost.Listen(filepath.Join(n.cfg.Dir, rundir.DoorDir, f.a.Name+".sock"), n.socketPerm(), vhost.Config{
		New:   func(s *vhost.Session) (vhost.Device, error) { return n.sessions.Admit(f.a, f.lane(), s) },
		OnEnd: n.sessions.Ended, NodeUID: uint32(os.Geteuid()), SpinUs: uint32(n.cfg.Spin / time.Microsecond),
		Limits: n.sessions.Limits(), OnRefuse: n.sessions.Refused, Share: n.funcs.all()[0].socket})
	if err != nil {
		return fmt.Errorf("%s: %w", f.a.Name, err)
	}
	n.funcs.setSocket(f, socket)
	return nil
}

// lane is the lane of the function's sessions, nil: any. Lane 0 has the links of ports in virtual Ethernet switches.
func (f *function) lane() *lane.Lane {
	if f.st != nil {
		return f.n.lanes.First()
	}
	return nil
}

// openSockets opens the device sockets of the functions, and lets those that
// are added open theirs.
func (n *Node) openSockets() error {
	n.edits.Lock()
	defer n.edits.Unlock()
	for _, f := range n.funcs.all() {
		if err := f.open(); err != nil {
			return err
		}
	}
	for _, m := range n.machines() {
		m.openLate()
	}
	n.funcs.setServing(true)
	return nil
}

// closeSockets ends every session; no function can be added any more.
func (n *Node) closeSockets() {
	n.edits.Lock()
	defer n.edits.Unlock()
	n.funcs.setServing(false)
	for _, f := range n.funcs.all() {
		if f.socket != nil {
			f.socket.Close()
		}
	}
	for _, m := range n.machines() {
		m.close()
	}
}
