// SPDX-License-Identifier: Apache-2.0

// Package vmcard runs the network cards of virtual machines: functions of a node with a vhost-user device as the
// segment.
//
// What comes in: requests for cards, of the store and the control interface; front-ends at the sockets of cards; ports
// in virtual Ethernet switches, from the room of VESW ports. What goes out: segments for these ports, and descriptions
// of cards. Package node makes one Cards, registers its operations, and adds and removes the functions of cards.
package vmcard

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"

	"weft/internal/control/api"
	"weft/internal/device/unixsock"
	"weft/internal/device/vhost"
	"weft/internal/node/intent"
	"weft/internal/node/lane"
	"weft/internal/node/vesw"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
)

// Config is what the cards of a node need from it.
type Config struct {
	Dir     string // the node's directory
	DirPerm os.FileMode
	Log     *slog.Logger
	// Absent is why the node can have no cards, nil: it can.
	Absent error
	// Admit returns why the host accepts no new card and no guest; nil: it does. Any goroutine may call it.
	Admit    func() error
	Lanes    *lane.Group // the first carries the frames of cards
	Sessions Sessions
	// Share is the device socket that shares its quotas with the sockets of cards.
	Share func() *vhost.Server
	// AddFunction makes the function of a card: it calls SetAdapter, and Open where the node serves. number gives the
	// function its number.
	AddFunction func(m *Card, change *api.FunctionChange, number func(*hca.Adapter) error) error
	// RemoveFunction deletes the function of a card, and calls Remove.
	RemoveFunction func(name string) error
	// Number gives a function the next number.
	Number func(*hca.Adapter) error
	// NewGuestPort makes the Ethernet port of the function of a card with RDMA.
	NewGuestPort func() *vesw.GuestPort
	// Half makes the RoCE half of a card with the function a for a front-end. HalfEnded removes it after the session.
	Half      func(a *hca.Adapter, s *vhost.Session, c HalfConfig) (Half, error)
	HalfEnded func(s *vhost.Session)
	// PortState returns the port of a function in a VESW.
	PortState func(function uint16) vesw.PortState
	// AwaitPort returns when done reports true, which is called after each change of a VESW port, or ctx ends.
	AwaitPort func(ctx context.Context, done func() bool)
	VESWs     VESWs
	Keeper    Keeper
}

// Sessions are the rules for sessions at sockets, and the log of their ends.
type Sessions interface {
	Guard() *unixsock.Guard
	// Own reports whether a user is root or the node's own.
	Own(uid int) bool
	Limits() vhost.Limits
	Refused(s *vhost.Session, q vhost.Quota)
	Complain(msg string, args ...any)
}

// VESWs are the virtual Ethernet switches of the subnet, in the store.
type VESWs interface {
	Get(ctx context.Context, name string) (api.VESW, error)
	AddPort(ctx context.Context, name string, p api.VESWPortAdd) (api.VESW, error)
	Leave(ctx context.Context, vesw, device string) error
}

// Keeper keeps the cards in the store.
type Keeper interface {
	// Edit calls change, and saves after it unless that fails. It refuses while the contents of the store are unknown.
	Edit(ctx context.Context, what string, change func() error) error
	// Kept reports whether what was saved is there after a restart, and else why not.
	Kept() (bool, string)
	// Forget removes a device of the store that could not be restored; false where there is none.
	Forget(name string) bool
}

// Cards are the network cards of a node. Its methods may be called on any goroutine but a lane, unless they say
// otherwise.
type Cards struct {
	cfg Config

	mu     sync.Mutex // guards what follows; no other lock is taken while it is held
	byName map[string]*Card
}

var _ vesw.Cards = (*Cards)(nil)

// New returns no cards.
func New(c Config) *Cards { return &Cards{cfg: c, byName: make(map[string]*Card)} }

// first is lane 0.
func (c *Cards) first() *lane.Lane { return c.cfg.Lanes.First() }

// socketDir holds the sockets of cards, below the node's directory.
const socketDir = "vm"

// Make makes a card and its function, while the keeper's state cannot change.
func (c *Cards) Make(want api.NewVM, change *api.FunctionChange, number func(*hca.Adapter) error) (*Card, error) {
	m, err := c.newCard(want)
	if err != nil {
		return nil, err
	}
	if err := c.validateSocket(m); err != nil {
		return nil, err
	}
	c.mu.Lock()
	_, there := c.byName[want.Name]
	if !there {
		c.byName[want.Name] = m // before its function can get a port of a VESW
	}
	c.mu.Unlock()
	if there {
		return nil, intent.ErrNameTaken
	}
	if err := c.cfg.AddFunction(m, change, number); err != nil {
		c.forget(m)
		return nil, err
	}
	return m, nil
}

// validateSocket refuses sockets of other cards, and paths of files that are no sockets.
func (c *Cards) validateSocket(m *Card) error {
	path := m.want.Socket + m.want.Connect
	for _, o := range c.All() {
		if o.want.Name != m.want.Name && o.want.Socket+o.want.Connect == path {
			return fmt.Errorf("%s is the socket of %s", path, o.want.Name)
		}
	}
	if m.want.Socket == "" {
		return nil
	}
	if st, err := os.Lstat(m.want.Socket); err == nil && st.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there, and is no socket", m.want.Socket)
	}
	return nil
}

func (c *Cards) forget(m *Card) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName[m.want.Name] == m {
		delete(c.byName, m.want.Name)
	}
}

// All lists the cards in the order of their names.
func (c *Cards) All() (list []*Card) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.byName {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *Card) int { return cmp.Compare(a.want.Name, b.want.Name) })
	return list
}

// Card returns the card with a name, nil where there is none.
func (c *Cards) Card(name string) *Card {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byName[name]
}

// EndGuests ends the sessions of guests: they lose the carrier. Their cards stay.
func (c *Cards) EndGuests(reason error) {
	for _, m := range c.All() {
		m.mu.Lock()
		s := m.of
		m.mu.Unlock()
		if s != nil {
			s.Fail(vhost.Shutdown, reason)
		}
	}
}

// Has implements vesw.Cards.
func (c *Cards) Has(device string) bool { return c.Card(device) != nil }

// Segment implements vesw.Cards.
func (c *Cards) Segment(device string, d vnic.Device, notify func(vnic.SegmentEvent)) (vnic.OpenSegment, error) {
	m := c.Card(device)
	if m == nil {
		return vnic.OpenSegment{}, fmt.Errorf("there is no virtual machine %s", device)
	}
	return m.segment(d, notify)
}

// MemoryOwner finds the card of the guest with memory at addr, nil where there is none. Any goroutine may call it.
func (c *Cards) MemoryOwner(addr uintptr) lane.MemoryOwner {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.byName {
		if m.owns(addr) {
			return m
		}
	}
	return nil
}

// Counters reports the counters of all cards.
func (c *Cards) Counters(add func(scope, instance, name string, v uint64)) error {
	for _, m := range c.All() {
		if err := m.counters(add); err != nil {
			return err
		}
	}
	return nil
}
