// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"weft/internal/device/vhost"
	"weft/internal/host/rundir"
	"weft/internal/node/lane"
	"weft/internal/node/session"
	"weft/internal/node/vesw"
	"weft/internal/node/vmcard"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// functionEditor adds and removes functions and their device sockets, and sets their ports up and down. Any goroutine
// but a lane and the management goroutine may call its methods.
type functionEditor struct {
	cfg functionEditorConfig
	// board connects InfiniBand ports; nil: the node is in no subnet.
	board switchboard

	// mu is held while functions and their sockets are added and removed, and while ports are set up and down. It is
	// locked after the intentStore's mu, and before all other mutexes of the node.
	mu sync.Mutex
}

// functionEditorConfig is what a functionEditor needs from its node.
type functionEditorConfig struct {
	Dir         string // of the node
	Permissions permissions
	Identity    ib.GUID
	WireLocal   bool
	Spin        time.Duration // of programs that poll
	Functions   *hca.Functions
	Table       *functionTable
	Tree        *portTree
	Sessions    *session.Registry
	// EthernetLane returns the lane of sessions of functions with an Ethernet port in a virtual Ethernet switch.
	EthernetLane func() *lane.Lane
	// Removing detaches the users of a function inside the node, before it is removed.
	Removing func(a *hca.Adapter)
	// Cards lists the network cards of virtual machines.
	Cards func() []*vmcard.Card
}

func newFunctionEditor(c functionEditorConfig) *functionEditor { return &functionEditor{cfg: c} }

// add makes a function with an InfiniBand port under the next number,
// and its device socket if the node serves already.
func (e *functionEditor) add(name string, limits hca.Limits) (*function, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.create(name, limits, e.cfg.Functions.Add, true, nil)
}

// create is add with mu held. number gives the function its number. on: its port may come up. st is its Ethernet port;
// nil: programs have the InfiniBand port.
func (e *functionEditor) create(
	name string,
	limits hca.Limits,
	number func(*hca.Adapter) error,
	on bool,
	st *vesw.DevicePort,
) (*function, error) {
	if e.cfg.Table.named(name) != nil {
		return nil, errFunctionThere
	}
	a := hca.NewAdapter(newPort(0, e.cfg.WireLocal), limits)
	a.Name = name
	if err := number(a); err != nil {
		return nil, err
	}
	f := &function{a: a, st: st, disabled: !on}
	f.down = f.disabled || e.cfg.Table.adapterIsOff()
	a.NodeGUID = e.cfg.Identity + 2*ib.GUID(a.Number())
	p := newPort(a.NodeGUID+1, e.cfg.WireLocal)
	if f.down {
		p.State, p.Phys = ib.PortDown, ib.PhysDisabled
	}
	if st != nil {
		p = st.Port()
	}
	a.SetPort(p)
	if st != nil {
		if err := st.Begin(a); err != nil { // before its function can get a port of a VESW
			return nil, errors.Join(err, e.cfg.Functions.Remove(a))
		}
	}
	if e.board != nil {
		if err := e.board.Plug(a, !f.down); err != nil {
			if st != nil {
				st.Remove()
			}
			return nil, errors.Join(err, e.cfg.Functions.Remove(a))
		}
	}
	if serving := e.cfg.Table.add(f); !serving {
		return f, nil
	}
	err := e.open(f)
	if err == nil {
		err = e.cfg.Tree.functionsChanged()
	}
	if err != nil {
		return nil, errors.Join(err, e.drop(f))
	}
	return f, nil
}

// addCard makes a function the network card of a virtual machine, and opens the socket of the card if the node serves.
// On an error the function is removed.
func (e *functionEditor) addCard(f *function, m *vmcard.Card) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	m.SetAdapter(f.a)
	if serving := e.cfg.Table.setCard(f, m); !serving {
		return nil
	}
	if err := m.Open(); err != nil {
		return errors.Join(err, e.drop(f), e.cfg.Tree.functionsChanged())
	}
	return nil
}

// remove ends the sessions of a function and the function.
func (e *functionEditor) remove(name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.cfg.Table.named(name)
	switch {
	case f == nil:
		return errNoFunction
	case !virtual(f.a):
		return errPhysical
	}
	return errors.Join(e.drop(f), e.cfg.Tree.functionsChanged())
}

// drop takes a function away; mu is held.
func (e *functionEditor) drop(f *function) error {
	if f.socket != nil {
		f.socket.Close()
	}
	if f.vm != nil {
		f.vm.Remove()
	}
	e.cfg.Removing(f.a)
	if e.board != nil {
		e.board.Unplug(f.a)
	}
	if f.st != nil {
		f.st.Remove()
	}
	e.cfg.Table.remove(f)
	return e.cfg.Functions.Remove(f.a)
}

// open opens a function's device socket. All device sockets share the quotas of the first.
func (e *functionEditor) open(f *function) error {
	var on *lane.Lane // any
	if f.st != nil {
		on = e.cfg.EthernetLane() // it has the links of ports in virtual Ethernet switches
	}
	socket, err := vhost.Listen(
		filepath.Join(e.cfg.Dir, rundir.SocketDir, f.a.Name+".sock"),
		e.cfg.Permissions.socket(),
		vhost.Config{
			New:   func(s *vhost.Session) (vhost.Device, error) { return e.cfg.Sessions.Admit(f.a, on, s) },
			OnEnd: e.cfg.Sessions.Ended, NodeUID: uint32(os.Geteuid()), SpinUs: uint32(e.cfg.Spin / time.Microsecond),
			Limits: e.cfg.Sessions.Limits(), OnRefuse: e.cfg.Sessions.Refused, Share: e.cfg.Table.all()[0].socket},
	)
	if err != nil {
		return fmt.Errorf("%s: %w", f.a.Name, err)
	}
	e.cfg.Table.setSocket(f, socket)
	return nil
}

// openSockets opens the device sockets of the functions, and lets those that
// are added open theirs.
func (e *functionEditor) openSockets() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.cfg.Table.all() {
		if err := e.open(f); err != nil {
			return err
		}
	}
	for _, m := range e.cfg.Cards() {
		m.OpenLate()
	}
	e.cfg.Table.setServing(true)
	return nil
}

// closeSockets ends every session; no function can be added any more.
func (e *functionEditor) closeSockets() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cfg.Table.setServing(false)
	for _, f := range e.cfg.Table.all() {
		if f.socket != nil {
			f.socket.Close()
		}
	}
	for _, m := range e.cfg.Cards() {
		m.Close()
	}
}
