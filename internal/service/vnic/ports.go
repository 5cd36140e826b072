// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"fmt"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Config is what Ports are made with.
type Config struct {
	Function Function
	OPAPort  uint8 // number of the port of the fabric, from 1
	LinkMTU  int   // what a packet may carry; 0: DefaultLinkMTU
	// MaxPorts bounds how many an Ethernet Manager can make; 0: MaxNetdevs.
	MaxPorts int
}

// Ports are the VESW ports behind one port of the fabric, by number.
type Ports struct {
	cfg    Config
	active bool
	ports  [MaxNetdevs]*Port
	n      int
}

// New returns no ports: the Ethernet Manager makes them.
func New(cfg Config) *Ports {
	if cfg.LinkMTU == 0 {
		cfg.LinkMTU = DefaultLinkMTU
	}
	if cfg.MaxPorts <= 0 || cfg.MaxPorts > MaxNetdevs {
		cfg.MaxPorts = MaxNetdevs
	}
	return &Ports{cfg: cfg}
}

// OPAPort returns the number of the port of the fabric.
func (s *Ports) OPAPort() uint8 { return s.cfg.OPAPort }

// MaxPorts returns how many ports there can be.
func (s *Ports) MaxPorts() int { return s.cfg.MaxPorts }

// Port returns a port, nil where there is none.
func (s *Ports) Port(vport uint8) *Port {
	if int(vport) >= MaxNetdevs {
		return nil
	}
	return s.ports[vport]
}

// Each calls f for every port, in the order of numbers.
func (s *Ports) Each(f func(vport uint8, p *Port)) {
	for i, p := range s.ports {
		if p != nil {
			f(uint8(i), p)
		}
	}
}

// port returns a port, or an error that answers a manager.
func (s *Ports) port(vport uint8) (*Port, error) {
	p := s.Port(vport)
	if p == nil {
		return nil, fmt.Errorf("port %d: there is none: %w", vport, ErrInvalid)
	}
	return p, nil
}

// Info returns configuration and state of a port, the power-on defaults where there is none.
func (s *Ports) Info(vport uint8) mad.VESWPortInfo {
	if p := s.Port(vport); p != nil {
		return p.info
	}
	return mad.DefaultVESWPortInfo()
}

// SetInfo configures a port and makes it where there is none. What the manager cannot write is
// ignored. After an error nothing has changed.
func (s *Ports) SetInfo(now mono.Time, vport uint8, i *mad.VESWPortInfo) error {
	if err := s.validate(vport, i); err != nil {
		return fmt.Errorf("port %d: %w", vport, err)
	}
	p := s.Port(vport)
	if p == nil {
		if int(vport) >= MaxNetdevs || s.n >= s.cfg.MaxPorts {
			return fmt.Errorf("port %d: there can be %d: %w", vport, s.cfg.MaxPorts, ErrInvalid)
		}
		dev, err := s.cfg.Function.AllocNetdev(vport)
		if err != nil {
			return fmt.Errorf("port %d: %w: %w", vport, ErrInvalid, err)
		}
		p = newPort(s, vport, dev)
		s.ports[vport] = p
		s.n++
	}
	p.set(i)
	return nil
}

// Delete takes the configuration of a port back to the power-on defaults. Its interface and
// the interface's MAC stay, and so do generations and counters.
func (s *Ports) Delete(now mono.Time, vport uint8) error {
	p, err := s.port(vport)
	if err != nil {
		return err
	}
	p.reset()
	return nil
}

// Remove is Delete, and the interface goes too.
func (s *Ports) Remove(now mono.Time, vport uint8) error {
	p, err := s.port(vport)
	if err != nil {
		return err
	}
	p.reset()
	s.cfg.Function.FreeNetdev(vport)
	s.ports[vport] = nil
	s.n--
	return nil
}

// SetLink reports whether the port of the fabric is ACTIVE.
func (s *Ports) SetLink(now mono.Time, active bool) {
	if s.active == active {
		return
	}
	s.active = active
	for _, p := range s.ports {
		if p != nil {
			before := p.info.Port.LinkStatus
			if p.publish(); p.info.Port.LinkStatus != before {
				p.mark(now, mad.VEMALinkStatus)
			}
		}
	}
}

// Trap is an event of a port to report to the manager.
type Trap struct {
	VPort  uint8
	Opcode mad.VEMAOpcode
}

// NextTrap returns a trap to send now, each once. The caller calls it only while there is a manager to
// send to; events in between are kept.
func (s *Ports) NextTrap(now mono.Time) (t Trap, ok bool) {
	for i, p := range s.ports {
		if p != nil {
			if op, ok := p.traps.next(now); ok {
				return Trap{uint8(i), op}, true
			}
		}
	}
	return Trap{}, false
}

// Deadline returns when NextTrap has one next: not after now where it has one now, 0 where
// nothing waits.
func (s *Ports) Deadline() (t mono.Time) {
	for _, p := range s.ports {
		if p != nil {
			t = mono.Min(t, p.traps.deadline())
		}
	}
	return t
}

// MACEntries copies slots of the port's table from offset on to dst, as many as it holds, and
// returns the manager's mark of the table.
func (s *Ports) MACEntries(vport uint8, offset int, dst []mad.VESWMACEntry) (digest uint32, err error) {
	p, err := s.port(vport)
	if err != nil {
		return 0, err
	}
	if offset < 0 || offset+len(dst) > mad.VESWMaxMACs {
		return 0, fmt.Errorf("port %d: slots %d … %d: %w", vport, offset, offset+len(dst), ErrInvalid)
	}
	clear(dst)
	if p.table != nil {
		copy(dst, p.table[offset:])
	}
	return p.info.Port.MACDigest, nil
}

// SetMACEntries replaces slots of the port's table from offset on. After an error nothing has
// changed.
func (s *Ports) SetMACEntries(vport uint8, offset int, e []mad.VESWMACEntry, digest uint32) error {
	p, err := s.port(vport)
	if err != nil {
		return err
	}
	if offset < 0 || offset+len(e) > mad.VESWMaxMACs {
		return fmt.Errorf("port %d: slots %d … %d: %w", vport, offset, offset+len(e), ErrInvalid)
	}
	if err := p.setMACs(offset, e, digest); err != nil {
		return fmt.Errorf("port %d: %w", vport, err)
	}
	return nil
}

// UnicastMACs copies to dst, from index start on, the MACs that the interface takes besides the
// port's base MAC, and returns how many that were, how many there are, and their
// generation.
func (s *Ports) UnicastMACs(vport uint8, start int, dst [][6]byte) (n, total int, gen uint16, err error) {
	p, err := s.port(vport)
	if err != nil {
		return 0, 0, 0, err
	}
	return page(p.unicast, start, dst), len(p.unicast), p.info.Port.UcMACsGen, nil
}

// MulticastMACs is UnicastMACs for those of groups.
func (s *Ports) MulticastMACs(vport uint8, start int, dst [][6]byte) (n, total int, gen uint16, err error) {
	p, err := s.port(vport)
	if err != nil {
		return 0, 0, 0, err
	}
	return page(p.multicast, start, dst), len(p.multicast), p.info.Port.McMACsGen, nil
}

func page(list [][6]byte, start int, dst [][6]byte) int {
	if start < 0 || start >= len(list) {
		return 0
	}
	return copy(dst, list[start:])
}
