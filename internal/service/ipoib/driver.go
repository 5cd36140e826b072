// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"maps"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
)

// Host makes and removes the links of a Driver. A link belongs to a lane, where the Driver never runs.
type Host interface {
	// AddLink makes a Link, starts it with the port as it is, and opens it.
	AddLink(c LinkConfig, p Port)
	// RemoveLink stops it. After Interface.Closed it calls Driver.Gone.
	RemoveLink(name string)
	// Port sets the attributes of a link's port: Link.SetPort.
	Port(name string, p Port, events ...ib.Event)
}

// LinkConfig is the configuration of a Link.
type LinkConfig struct {
	Name     string // ibX_Y_Z
	CA, Port int
	PKey     ib.PKey // with the membership that the table has
	Params   Params
}

// Driver decides which links exist: one for each partition of each port of each channel adapter, or for those
// partitions only that the parameters name. It is not safe for concurrent use.
type Driver struct {
	host   Host
	params Params
	cas    map[int]map[int]Port // by adapter and port; an adapter may have no port yet
	links  map[string]*driven
	modes  map[string]Mode // set by SetMode
	ended  bool
}

// driven is a link that the Host made for the Driver.
type driven struct {
	cfg      LinkConfig
	removing bool        // RemoveLink was called
	next     *LinkConfig // of the link to be made after it; nil: none
}

// NewDriver makes a Driver without adapters.
func NewDriver(params Params, host Host) *Driver {
	return &Driver{host: host, params: params, cas: map[int]map[int]Port{}, links: map[string]*driven{},
		modes: map[string]Mode{}}
}

// AddCA adds a channel adapter. Its number is part of interface names.
func (d *Driver) AddCA(ca int) {
	if d.cas[ca] == nil && !d.ended {
		d.cas[ca] = map[int]Port{}
	}
}

// RemoveCA removes an adapter, with its ports and links.
func (d *Driver) RemoveCA(ca int) {
	for _, port := range slices.Sorted(maps.Keys(d.cas[ca])) {
		d.RemovePort(ca, port)
	}
	delete(d.cas, ca)
}

// SetPort sets the attributes of a port, first and whenever they change: links are added and removed with partitions;
// other changes go to the links. events are those of Link.SetPort.
func (d *Driver) SetPort(ca, port int, p Port, events ...ib.Event) {
	if d.cas[ca] == nil || d.ended {
		return
	}
	p.PKeys = slices.Clone(p.PKeys)
	d.cas[ca][port] = p
	want := map[string]LinkConfig{}
	for _, k := range d.partitions(&p) {
		name := wire.IPoIBName(ca, port, k)
		want[name] = d.config(name, ca, port, k)
	}
	for _, name := range slices.Sorted(maps.Keys(d.links)) {
		l := d.links[name]
		if l.cfg.CA != ca || l.cfg.Port != port {
			continue
		}
		cfg, ok := want[name]
		switch {
		case !ok && l.removing:
			l.next = nil
		case !ok:
			l.removing = true
			d.host.RemoveLink(name)
		case l.removing:
			l.next = &cfg
		default:
			d.host.Port(name, p, events...)
		}
		delete(want, name)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		d.add(want[name], p)
	}
}

// config returns the configuration of a link.
func (d *Driver) config(name string, ca, port int, k ib.PKey) LinkConfig {
	c := LinkConfig{Name: name, CA: ca, Port: port, PKey: k, Params: d.params}
	if m, ok := d.modes[name]; ok {
		c.Params.Mode = m
	}
	return c
}

// SetMode changes the mode of a link, which is removed and made again.
func (d *Driver) SetMode(name string, m Mode) {
	l := d.links[name]
	if l == nil || d.ended {
		return
	}
	d.modes[name] = m
	switch {
	case l.next != nil:
		l.next.Params.Mode = m
	case !l.removing && l.cfg.Params.Mode != m:
		c := d.config(name, l.cfg.CA, l.cfg.Port, l.cfg.PKey)
		l.removing, l.next = true, &c
		d.host.RemoveLink(name)
	}
}

// partitions returns the P_Keys of a port's table that have links: each partition once, by the full member's key where
// the table has both.
func (d *Driver) partitions(p *Port) (keys []ib.PKey) {
	for _, k := range p.PKeys {
		if k&0x7fff == 0 || len(d.params.PKeys) > 0 && !slices.Contains(d.params.PKeys, k|0x8000) {
			continue
		}
		i := slices.IndexFunc(keys, func(have ib.PKey) bool { return (have^k)&0x7fff == 0 })
		if i < 0 {
			keys = append(keys, k)
		} else if k.IsFull() {
			keys[i] = k
		}
	}
	return keys
}

func (d *Driver) add(cfg LinkConfig, p Port) {
	d.links[cfg.Name] = &driven{cfg: cfg}
	d.host.AddLink(cfg, p)
}

// RemovePort removes a port with its links.
func (d *Driver) RemovePort(ca, port int) {
	if _, ok := d.cas[ca][port]; !ok {
		return
	}
	d.SetPort(ca, port, Port{})
	delete(d.cas[ca], port)
}

// Gone reports that a link has released everything. The next one of its name is made now, if there is one.
func (d *Driver) Gone(name string) {
	l := d.links[name]
	if l == nil {
		return
	}
	delete(d.links, name)
	if l.next == nil || d.ended {
		return
	}
	if p, ok := d.cas[l.cfg.CA][l.cfg.Port]; ok {
		d.add(*l.next, p)
	}
}

// Links returns the names of all links that are not gone, in order.
func (d *Driver) Links() []string { return slices.Sorted(maps.Keys(d.links)) }

// Unload removes all links, and makes no further ones. It is complete when Links is empty.
func (d *Driver) Unload() {
	for _, ca := range slices.Sorted(maps.Keys(d.cas)) {
		d.RemoveCA(ca)
	}
	d.ended = true
}
