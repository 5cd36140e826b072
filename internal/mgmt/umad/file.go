// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mad/rmpp"
	"weft/internal/proto/mono"
)

// File is an open umadN: registrations, and records in both directions.
type File struct {
	hub      *Hub
	port     *port // nil once it is closed
	function uint16
	sink     Sink
	agents   [maxAgents]*agent
	pkeys    bool // the header has the P_Key index
	readOnly bool // of subnet management
	used     bool // has had a registration
}

// Open opens a file on the port of a function. sink receives its records.
func (h *Hub) Open(function uint16, sink Sink) (*File, Errno) {
	if _, ok := h.view.Port(function); !ok {
		return nil, ENODEV
	}
	f := &File{hub: h, port: h.port(function), function: function, sink: sink}
	f.port.files = append(f.port.files, f)
	return f, OK
}

// Restrict denies f the management of the subnet: by queue pair 0 it may send Gets, but no Sets and no answers, and
// may not register for methods. It also denies communication management, where f could pose as the manager of the
// node to other programs, and to IP links in connected mode.
func (f *File) Restrict() { f.readOnly = true }

// Close ends all registrations and transactions of f.
func (f *File) Close() {
	if f.port == nil {
		return
	}
	for id := range f.agents {
		f.Unregister(uint32(id))
	}
	i := slices.Index(f.port.files, f)
	f.port.files = slices.Delete(f.port.files, i, i+1)
	f.port = nil
}

// HeaderLen returns the length of the headers of the records of f.
func (f *File) HeaderLen() int {
	if f.pkeys {
		return HeaderLen
	}
	return shortHeaderLen
}

// EnablePKeys adds the P_Key index to the headers of the records of f. It fails after the first registration.
func (f *File) EnablePKeys() Errno {
	switch {
	case f.port == nil:
		return EIO
	case f.used:
		return EINVAL
	}
	f.pkeys = true
	return OK
}

// Registration selects the MADs that a program receives.
type Registration struct {
	QPN     ib.QPN    // 0 or 1
	Class   mad.Class // 0: it only sends, and receives the answers
	Version uint8
	// Methods are those that it serves: method m is bit m%64 of word m/64.
	Methods [2]uint64
	OUI     uint32 // of vendor range 2
	// RMPPVersion is 1 if the Hub joins and splits segments for the program, 0 if the program does so itself or the
	// class has none. With UserRMPP the program does so itself although RMPPVersion is 1.
	RMPPVersion uint8
	UserRMPP    bool
}

// Limits of a registration.
const (
	maxVersion = 0x83 // class versions below
	maxClass   = 0x50 // classes below, and the directed routes
)

// check returns EINVAL if r is invalid.
func (r *Registration) check() Errno {
	if r.QPN > ib.QPNGSI || r.RMPPVersion > mad.RMPPVersion || r.OUI > 0xffffff {
		return EINVAL
	}
	c := r.Class
	switch {
	case c == 0:
		if r.UserRMPP {
			return EINVAL
		}
		return OK
	case r.Version >= maxVersion,
		c >= maxClass && c != mad.ClassSubnDR,
		c.IsSubn() != (r.QPN == ib.QPNSMI),
		r.RMPPVersion != 0 && !c.HasRMPP(),
		hasOUI(c) && r.OUI == 0:
		return EINVAL
	}
	return OK
}

// agent is a registration of a file.
type agent struct {
	file    *File
	id      uint32
	qpn     ib.QPN
	tag     uint32 // upper half of its transaction identifiers
	routes  []route
	rmpp    *rmpp.Endpoint // nil: the program receives segments as they are
	pending map[pendingKey]*transaction
}

// Register adds a registration and returns its number: the lowest free one.
func (f *File) Register(r Registration) (id uint32, err Errno) {
	if f.port == nil {
		return 0, EIO
	}
	free := slices.Index(f.agents[:], nil)
	if free < 0 {
		return 0, ENOMEM
	}
	if err := r.check(); err != OK {
		return 0, err
	}
	if f.readOnly && r.QPN == ib.QPNSMI && r.Methods != [2]uint64{} {
		return 0, EPERM
	}
	if f.readOnly && r.Class == mad.ClassCM && r.Methods != [2]uint64{} {
		return 0, EPERM
	}
	h := f.hub
	a := &agent{file: f, id: uint32(free), qpn: r.QPN, pending: map[pendingKey]*transaction{}}
	if r.Class != 0 {
		if !hasOUI(r.Class) {
			r.OUI = 0
		}
		for m := range mad.MethodResponse {
			if r.Methods[m/64]>>(m%64)&1 == 0 {
				continue
			}
			k := route{r.Class, r.Version, m, r.OUI}
			if f.port.routes[k] != nil {
				return 0, EINVAL
			}
			a.routes = append(a.routes, k)
		}
	}
	for _, k := range a.routes {
		f.port.routes[k] = a
	}
	if r.RMPPVersion != 0 && !r.UserRMPP {
		a.rmpp = rmpp.NewEndpoint(rmppConfig)
		h.rmpp = append(h.rmpp, a)
	}
	for {
		if h.tag++; h.tag != 0 && h.tags[h.tag] == nil {
			break
		}
	}
	a.tag = h.tag
	h.tags[a.tag] = a
	f.agents[free] = a
	f.used = true
	return a.id, OK
}

// Unregister removes a registration and its unanswered requests.
func (f *File) Unregister(id uint32) Errno {
	if id >= maxAgents || f.agents[id] == nil {
		return EINVAL
	}
	a, h := f.agents[id], f.hub
	f.agents[id] = nil
	for _, k := range a.routes {
		delete(f.port.routes, k)
	}
	delete(h.tags, a.tag)
	for _, t := range a.pending {
		h.timers.Stop(&t.timer)
	}
	a.pending = nil
	if i := slices.Index(h.rmpp, a); i >= 0 {
		h.rmpp = slices.Delete(h.rmpp, i, i+1)
	}
	return OK
}

// Write handles a record that the program wrote. A MAD that cannot be sent is returned to the program as one that
// timed out is: the header with a status, and the header of the MAD.
func (f *File) Write(now mono.Time, record []byte) Errno {
	f.hub.now = now
	var h Header
	err := h.Parse(record, f.HeaderLen())
	if err == OK {
		err = f.write(&h, record[f.HeaderLen():])
	}
	if err == OK {
		return OK
	}
	if len(record) < f.HeaderLen()+mad.HeaderLen {
		f.hub.Stats.DropMalformed++
		return err
	}
	f.hub.Stats.Refused++
	f.returnMAD(&h, err, record[f.HeaderLen():])
	return err
}

// returnMAD returns a MAD that was not answered or not sent to the program.
func (f *File) returnMAD(h *Header, why Errno, m []byte) {
	r := *h
	r.Status = why
	f.put(append(r.Append(make([]byte, 0, HeaderLen+mad.HeaderLen), f.HeaderLen()), m[:mad.HeaderLen]...))
}

func (f *File) put(record []byte) {
	if !f.sink.Put(record) {
		f.hub.Stats.DropReaderFull++
	}
}

// minMAD is the length of the shortest MAD that a program may write: it includes an RMPP header, whether the class
// uses it or not.
const minMAD = mad.HeaderLen + mad.RMPPLen

func (f *File) write(h *Header, b []byte) Errno {
	if f.port == nil {
		return EIO
	}
	if len(b) < minMAD || h.Agent >= maxAgents {
		return EINVAL
	}
	a := f.agents[h.Agent]
	if a == nil {
		return EIO
	}
	t := &transaction{agent: a, header: *h}
	t.timer.Value = t
	var m mad.Header
	m.Parse(b)
	headers := mad.HeaderLen
	if n := rmpp.HeaderLen(m.MgmtClass); n != 0 {
		headers = n
	}
	long := m.BaseVersion == mad.OPABaseVersion && a.qpn == ib.QPNGSI
	if len(b) < headers || m.BaseVersion != mad.BaseVersion && !long {
		return EINVAL
	}
	if f.readOnly && (m.MgmtClass == mad.ClassVEMA || m.MgmtClass == mad.ClassCM) && m.Method != mad.MethodGet {
		return EPERM
	}
	if a.qpn == ib.QPNSMI && m.Method != mad.MethodGet {
		if f.readOnly {
			return EPERM
		}
		if !f.hub.view.Manages() {
			return f.hub.notManager(f.hub.now)
		}
	}
	if a.rmpp != nil && m.MgmtClass.HasRMPP() {
		var r mad.RMPP
		r.Parse(b[mad.HeaderLen:])
		t.rmpp = r.Flags&mad.RMPPActive != 0
	}
	if long {
		if t.rmpp || !t.d.SetMAD(b) {
			return EINVAL
		}
	} else if t.rmpp {
		if len(b)-headers > MaxMessage {
			return ENOMEM
		}
		copy(t.d.Data[:], b[:headers])
		t.data = slices.Clone(b[headers:])
		t.double = m.Method == mad.MethodGetMulti && h.TimeoutMS != 0
	} else {
		if len(b) > mad.Len {
			return EINVAL
		}
		copy(t.d.Data[:], b)
	}
	if err := a.address(&t.d, h, m.MgmtClass); err != OK {
		return err
	}
	if !isResponse(&m) {
		m.TransactionID = uint64(a.tag)<<32 | m.TransactionID&0xffffffff
		be.PutUint64(t.d.Data[8:], m.TransactionID)
		if long {
			be.PutUint64(t.d.Long[8:], m.TransactionID)
		}
	}
	return a.begin(t, &m)
}

// address sets the addresses of a datagram from the header of its record.
func (a *agent) address(d *mad.Datagram, h *Header, c mad.Class) Errno {
	f := a.file
	p, ok := f.hub.view.Port(f.function)
	if !ok {
		return EIO
	}
	mask := uint8(1)<<(p.LMC&7) - 1
	d.Port, d.DLID, d.PathBits, d.SL = 1, h.LID, h.PathBits&mask, h.SL
	d.SLID = p.LID | ib.LID(d.PathBits)
	d.SrcQPN, d.DstQPN = a.qpn, h.QPN
	if a.qpn == ib.QPNSMI {
		d.PKey = ib.DefaultPKey
		if h.QPN != ib.QPNSMI || !c.IsSubn() || h.GRH {
			return EINVAL
		}
		return OK
	}
	if h.QPN == ib.QPNSMI || c.IsSubn() || int(h.PKeyIndex) >= len(p.PKeys) || p.PKeys[h.PKeyIndex] == 0 {
		return EINVAL
	}
	d.PKey, d.QKey = p.PKeys[h.PKeyIndex], h.QKey
	if h.QKey&ownQKey != 0 {
		d.QKey = ib.GSIQKey
	}
	if h.GRH {
		own, ok := p.gid(h.GIDIndex)
		if !ok {
			return EINVAL
		}
		d.Global, d.SGID, d.DGID = true, own, h.GID
		d.HopLimit, d.TClass, d.FlowLabel = h.HopLimit, h.TClass, h.FlowLabel
	}
	return OK
}

// ownQKey is the bit of a Q_Key that selects the Q_Key of the queue pair (IBA volume 1, 10.2.5).
const ownQKey = 0x80000000

// deliver passes a MAD to the program. data follows the headers of a MAD in segments, and is nil of another.
func (a *agent) deliver(d *mad.Datagram, data []byte) {
	f := a.file
	m := d.MAD()
	if data != nil {
		m = m[:rmpp.HeaderLen(mad.Class(m[1]))]
	}
	n := f.HeaderLen()
	h := Header{Agent: a.id, Length: uint32(n + len(m) + len(data)), QPN: d.SrcQPN, LID: d.SLID, SL: d.SL,
		GRH: d.Global}
	if p, ok := f.hub.view.Port(f.function); ok {
		if d.DLID.IsUnicast() {
			h.PathBits = uint8(d.DLID) & (1<<(p.LMC&7) - 1)
		}
		h.PKeyIndex = pkeyIndex(p.PKeys, d.PKey)
		if d.Global {
			h.GIDIndex = p.gidIndex(d.DGID)
		}
	}
	if d.Global {
		h.GID, h.HopLimit, h.TClass, h.FlowLabel = d.SGID, d.HopLimit, d.TClass, d.FlowLabel
	}
	b := make([]byte, 0, n+len(m)+len(data))
	f.put(append(append(h.Append(b, n), m...), data...))
}

// pkeyIndex returns the index of the key that matches k: the same key, or one of the same partition; 0 if there is
// none.
func pkeyIndex(table []ib.PKey, k ib.PKey) uint16 {
	i := slices.Index(table, k)
	if i < 0 {
		i = slices.IndexFunc(table, func(o ib.PKey) bool { return o != 0 && (o^k)&0x7fff == 0 })
	}
	return uint16(max(0, i))
}
