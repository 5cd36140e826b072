// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"maps"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
)

// Host is what a Driver has done with links, by whom it is called: each belongs to a
// lane, which the Driver never enters.
type Host interface {
	// AddLink makes a Link, starts it with the port as it is, and opens it.
	AddLink(c LinkConfig, p Port)
	// RemoveLink stops it. When its Device is told Closed, Driver.Gone follows.
	RemoveLink(name string)
	// Port is news of a link's port: Link.SetPort.
	Port(name string, p Port, events ...ib.Event)
}

// LinkConfig says which link it is.
type LinkConfig struct {
	Name     string // ibX_Y_Z
	CA, Port int
	PKey     ib.PKey // with the membership that the table has
	Params   Params
}

// Driver decides which links there are: one for each partition of each port of
// each channel adapter, or of those partitions only that the parameters name. It
// is not safe for concurrent use.
type Driver struct {
	host   Host
	params Params
	cas    map[int]map[int]Port // by adapter and port; an adapter may have none yet
	links  map[string]*driven
	modes  map[string]Mode // that were set by name
	ended  bool
}

// driven is a link that the Driver had made.
type driven struct {
	cfg   LinkConfig
	going bool        // RemoveLink was called
	again *LinkConfig // to be made when it has gone
}

// NewDriver makes a Driver for which host makes links.
func NewDriver(params Params, host Host) *Driver {
	return &Driver{host: host, params: params, cas: map[int]map[int]Port{}, links: map[string]*driven{},
		modes: map[string]Mode{}}
}

// AddCA tells that there is a channel adapter. The number names it in
// interface names.
func (d *Driver) AddCA(ca int) {
	if d.cas[ca] == nil && !d.ended {
		d.cas[ca] = map[int]Port{}
	}
}

// RemoveCA tells that an adapter is gone, and its ports and links with it.
func (d *Driver) RemoveCA(ca int) {
	for _, port := range slices.Sorted(maps.Keys(d.cas[ca])) {
		d.RemovePort(ca, port)
	}
	delete(d.cas, ca)
}

// SetPort tells what a port of an adapter is like, first and whenever it
// changed: partitions come and go, and links hear of the rest. events are
// those of Link.SetPort.
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
		case !ok && l.going:
			l.again = nil
		case !ok:
			l.going = true
			d.host.RemoveLink(name)
		case l.going:
			l.again = &cfg
		default:
			d.host.Port(name, p, events...)
		}
		delete(want, name)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		d.add(want[name], p)
	}
}

// config is that of a link.
func (d *Driver) config(name string, ca, port int, k ib.PKey) LinkConfig {
	c := LinkConfig{Name: name, CA: ca, Port: port, PKey: k, Params: d.params}
	if m, ok := d.modes[name]; ok {
		c.Params.Mode = m
	}
	return c
}

// SetMode changes the mode of a link: it goes, and comes again with it.
func (d *Driver) SetMode(name string, m Mode) {
	l := d.links[name]
	if l == nil || d.ended {
		return
	}
	d.modes[name] = m
	switch {
	case l.again != nil:
		l.again.Params.Mode = m
	case !l.going && l.cfg.Params.Mode != m:
		c := d.config(name, l.cfg.CA, l.cfg.Port, l.cfg.PKey)
		l.going, l.again = true, &c
		d.host.RemoveLink(name)
	}
}

// partitions lists the P_Keys of a port's table that shall have links, each
// partition once, by the full member's key where it has both.
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

// RemovePort tells that a port is gone, and its links with it.
func (d *Driver) RemovePort(ca, port int) {
	if _, ok := d.cas[ca][port]; !ok {
		return
	}
	d.SetPort(ca, port, Port{})
	delete(d.cas[ca], port)
}

// Gone tells that a link has released everything. One of its name that is
// wanted again is made now.
func (d *Driver) Gone(name string) {
	l := d.links[name]
	if l == nil {
		return
	}
	delete(d.links, name)
	if l.again == nil || d.ended {
		return
	}
	if p, ok := d.cas[l.cfg.CA][l.cfg.Port]; ok {
		d.add(*l.again, p)
	}
}

// Links lists the names of all links that are not gone, in order.
func (d *Driver) Links() []string { return slices.Sorted(maps.Keys(d.links)) }

// Unload removes all links; those that come later are not made. It is done
// when Links is empty.
func (d *Driver) Unload() {
	for _, ca := range slices.Sorted(maps.Keys(d.cas)) {
		d.RemoveCA(ca)
	}
	d.ended = true
}
