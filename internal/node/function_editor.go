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
	"weft/internal/node/intent"
	"weft/internal/node/ipif"
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
	dir       string // of the node
	perm      permissions
	identity  ib.GUID
	wireLocal bool
	spin      time.Duration // of programs that poll
	functions *hca.Functions
	table     *functionTable
	tree      *portTree
	sessions  *session.Registry
	lanes     *lane.Group
	cards     *vmcard.Cards
	ip        *ipif.Host  // nil: the node is in no subnet
	board     switchboard // connects InfiniBand ports; nil: the same

	// mu is held while functions and their sockets are added and removed, and while ports are set up and down. It is
	// locked while the intent is edited, and before all other mutexes of the node.
	mu sync.Mutex
}

// add makes a function with an InfiniBand port under the next number,
// and its device socket if the node serves already.
func (e *functionEditor) add(name string, limits hca.Limits) (*function, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.create(name, limits, e.functions.Add, true, nil, nil)
}

// create is add with mu held. number gives the function its number. on: its port may come up. st is its Ethernet port,
// or guest is; both nil: programs have the InfiniBand port.
func (e *functionEditor) create(name string, limits hca.Limits, number func(*hca.Adapter) error, on bool,
	st *vesw.DevicePort, guest *vesw.GuestPort) (*function, error) {
	if e.table.named(name) != nil {
		return nil, intent.ErrNameTaken
	}
	a := hca.NewAdapter(newPort(0, e.wireLocal), limits)
	a.Name, a.GuestGSI = name, guest != nil
	if err := number(a); err != nil {
		return nil, err
	}
	f := &function{a: a, st: st, guest: guest, disabled: !on}
	f.down = f.disabled || e.table.adapterIsOff()
	a.NodeGUID = e.identity + 2*ib.GUID(a.Number())
	p := newPort(a.NodeGUID+1, e.wireLocal)
	if f.down {
		p.State, p.Phys = ib.PortDown, ib.PhysDisabled
	}
	if port := f.switchPort(); port != nil {
		p = port.Port()
		a.SetPort(p)
		if err := port.Begin(a); err != nil { // before its function can get a port of a VESW
			return nil, errors.Join(err, e.functions.Remove(a))
		}
	} else {
		a.SetPort(p)
	}
	if e.board != nil {
		if err := e.board.Plug(a, !f.down); err != nil {
			if port := f.switchPort(); port != nil {
				port.Remove()
			}
			return nil, errors.Join(err, e.functions.Remove(a))
		}
	}
	if serving := e.table.add(f); !serving {
		return f, nil
	}
	err := e.open(f)
	if err == nil {
		err = e.tree.functionsChanged()
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
	if serving := e.table.setCard(f, m); !serving {
		return nil
	}
	if err := m.Open(); err != nil {
		return errors.Join(err, e.drop(f), e.tree.functionsChanged())
	}
	return nil
}

// remove ends the sessions of a function and the function.
func (e *functionEditor) remove(name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.table.named(name)
	switch {
	case f == nil:
		return errNoFunction
	case !virtual(f.a):
		return errPhysical
	}
	return errors.Join(e.drop(f), e.tree.functionsChanged())
}

// drop takes a function away; mu is held.
func (e *functionEditor) drop(f *function) error {
	if f.socket != nil {
		f.socket.Close()
	}
	if f.vm != nil {
		f.vm.Remove()
	}
	e.ip.RemoveAdapter(f.a)
	if e.board != nil {
		e.board.Unplug(f.a)
	}
	if port := f.switchPort(); port != nil {
		port.Remove()
	}
	e.table.remove(f)
	return e.functions.Remove(f.a)
}

// enable lets the port of a function come up, or takes it down: queue pairs
// stay, packets do not move.
func (e *functionEditor) enable(f *function, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.disable(f, !on)
	e.power(f)
}

// enableAdapter is enable for the whole adapter: every function's port goes
// down, and those that are enabled themselves come up again with it.
func (e *functionEditor) enableAdapter(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.disableAdapter(!on)
	e.power(e.table.all()...)
}

// power makes the ports of functions what was decided for them; mu is held.
func (e *functionEditor) power(list ...*function) {
	var plugged [2][]*hca.Adapter // off, on
	for _, f := range list {
		disabled, adapterOff := e.table.off(f)
		down := disabled || adapterOff
		if f.down == down {
			continue
		}
		f.down = down
		if !f.ethernet() && f.a.Port().Link != ib.LinkInfiniBand || e.board == nil {
			e.tree.setDown(f.a, down)
		} else if down {
			plugged[0] = append(plugged[0], f.a)
		} else {
			plugged[1] = append(plugged[1], f.a)
		}
	}
	for i, list := range plugged {
		if len(list) > 0 {
			e.board.Power(list, i == 1)
		}
	}
}

// open opens a function's device socket. All device sockets share the quotas of the first. The function of a guest has
// none: the guest reaches it at the socket of its card.
func (e *functionEditor) open(f *function) error {
	if f.guest != nil {
		return nil
	}
	var on *lane.Lane // any
	if f.st != nil {
		on = e.lanes.First() // it has the links of ports in virtual Ethernet switches
	}
	socket, err := vhost.Listen(filepath.Join(e.dir, rundir.SocketDir, f.a.Name+".sock"), e.perm.socket(), vhost.Config{
		New:   func(s *vhost.Session) (vhost.Device, error) { return e.sessions.Admit(f.a, on, s) },
		OnEnd: e.sessions.Ended, NodeUID: uint32(os.Geteuid()), SpinUs: uint32(e.spin / time.Microsecond),
		Limits: e.sessions.Limits(), OnRefuse: e.sessions.Refused, Share: e.table.all()[0].socket,
		Guard: e.sessions.Guard()})
	if err != nil {
		return fmt.Errorf("%s: %w", f.a.Name, err)
	}
	e.table.setSocket(f, socket)
	return nil
}

// openSockets opens the device sockets of the functions, and lets those that
// are added open theirs.
func (e *functionEditor) openSockets() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.table.all() {
		if err := e.open(f); err != nil {
			return err
		}
	}
	for _, m := range e.cards.All() {
		m.OpenLate()
	}
	e.table.setServing(true)
	return nil
}

// closeSockets ends every session; no function can be added any more.
func (e *functionEditor) closeSockets() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.setServing(false)
	for _, f := range e.table.all() {
		if f.socket != nil {
			f.socket.Close()
		}
	}
	for _, m := range e.cards.All() {
		m.Close()
	}
}

// permissions are those of the node's sockets.
type permissions struct {
	shared bool // other users than the node's may connect: the server validates their credentials
}

// socket returns the permissions of sockets.
func (p permissions) socket() os.FileMode {
	if p.shared {
		return 0o666
	}
	return 0o600
}

// dir returns the permissions of directories with sockets.
func (p permissions) dir() os.FileMode {
	if p.shared {
		return 0o755
	}
	return 0o700
}
