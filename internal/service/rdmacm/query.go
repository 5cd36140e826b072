// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/service/cm"
)

// device returns the GUID of the identifier's device as records have it; 0 where
// it has none.
func (i *id) device() (guid [8]byte, ok bool) {
	if i.addr == nil {
		return guid, false
	}
	d, ok := i.hub.net.Device(i.addr.Function)
	be.PutUint64(guid[:], uint64(d.GUID))
	return guid, ok
}

// queryRoute appends what is known of an identifier's addresses, device and path.
func (i *id) queryRoute(b []byte) []byte {
	guid, ok := i.device()
	paths, port := uint32(0), uint8(0)
	b = append(b, guid[:]...)
	if ok {
		port = portNum
		b = appendRoute(b, i.addr, i.path)
		if i.path != nil {
			paths = 1
		}
	} else {
		b = append(b, make([]byte, 64)...)
	}
	b = append(b, make([]byte, 64)...) // the second path
	b = i.src.append(b, sockaddrLen)
	b = i.dst.append(b, sockaddrLen)
	b = le.AppendUint32(b, paths)
	b = append(b, port, 0, 0, 0)
	b = le.AppendUint32(b, noIndex)
	return le.AppendUint32(b, 0)
}

// Kinds of a QUERY.
const (
	queryAddr = iota
	queryPath
	queryGID
)

// query appends what is known of an identifier.
func (i *id) query(option uint32, room int, b []byte) ([]byte, Errno) {
	guid, ok := i.device()
	switch option {
	case queryAddr, queryGID:
		if room < queryAddrLen-8 {
			return b, ENOSPC
		}
		var pkey ib.PKey
		var port uint8
		if ok {
			port, pkey = portNum, i.addr.PKey
		}
		b = append(b, guid[:]...)
		b = append(b, port, 0)
		b = be.AppendUint16(b, uint16(pkey))
		if option == queryAddr {
			b = le.AppendUint16(b, uint16(i.src.len()))
			b = le.AppendUint16(b, uint16(i.dst.len()))
			b = i.src.append(b, storageLen)
			b = i.dst.append(b, storageLen)
		} else {
			var sgid, dgid ib.GID
			if i.addr != nil {
				sgid, dgid = i.addr.SGID, i.addr.DGID
			}
			b = le.AppendUint16(b, sockaddrIBLen)
			b = le.AppendUint16(b, sockaddrIBLen)
			b = appendIB(b, sgid, pkey, cm.IPService(i.ps, i.src.port))
			b = appendIB(b, dgid, pkey, cm.IPService(i.ps, i.dst.port))
		}
		b = le.AppendUint32(b, noIndex)
		return le.AppendUint32(b, 0), OK
	case queryPath:
		at := len(b)
		n := uint32(0)
		if i.path != nil && ok {
			n = 1
		}
		b = le.AppendUint32(b, n)
		b = le.AppendUint32(b, 0)
		if n == 1 && room >= queryPathLen+pathDataLen {
			b = le.AppendUint32(b, pathFlags)
			b = le.AppendUint32(b, 0)
			r := i.record()
			b = r.Append(b)
		}
		return b[:min(len(b), at+room)], OK
	}
	return b, ENOSYS
}

// sockaddrIBLen is the length of a socket address of family AF_IB.
const sockaddrIBLen = 48

// appendIB appends such an address, in the room of any.
func appendIB(b []byte, g ib.GID, k ib.PKey, s cm.ServiceID) []byte {
	at := len(b)
	b = le.AppendUint16(b, afIB)
	b = be.AppendUint16(b, uint16(k))
	b = be.AppendUint32(b, 0)
	b = append(b, g[:]...)
	b = be.AppendUint64(b, uint64(s))
	b = be.AppendUint64(b, ^uint64(0))
	b = be.AppendUint64(b, 0)
	return append(b, make([]byte, at+storageLen-len(b))...)
}

// pathFlags marks a path for everything, both ways: the only kind there is.
const pathFlags = 0x1 | 0x2 | 0x28

// record returns the identifier's path as a record of subnet administration.
func (i *id) record() mad.PathRecord {
	p := i.path
	return mad.PathRecord{DGID: p.DGID, SGID: p.SGID, DLID: p.DLID, SLID: p.SLID, FlowLabel: p.FlowLabel,
		HopLimit: p.HopLimit, TClass: p.TClass,
		Reversible: true, NumbPath: 1, PKey: p.PKey, SL: p.SL, MTUSelector: mad.SelectExactly, MTU: p.MTU, RateSelector: mad.SelectExactly, Rate: p.Rate,
		LifeSelector: mad.SelectExactly, Life: p.LifeTime}
}

// setPath sets the path that a program has resolved by itself. Its source must be the port's: its GID,
// one of its LIDs, a P_Key of its table. The destination is not checked.
func (i *id) setPath(v []byte) Errno {
	if len(v)%pathDataLen != 0 {
		return EINVAL
	}
	for ; len(v) > 0; v = v[pathDataLen:] {
		if le.Uint32(v) == pathFlags {
			break
		}
	}
	if len(v) == 0 || i.state != stateAddrResolved || i.addr.Link != ib.LinkInfiniBand {
		return EINVAL
	}
	var r mad.PathRecord
	if r.Parse(v[8:pathDataLen]) != nil || r.SGID != i.addr.SGID || !r.MTU.Valid() {
		return EINVAL
	}
	a := i.addr
	d, ok := i.hub.net.Device(a.Function)
	pkey := slices.Index(d.PKeys, r.PKey)
	if !ok || pkey < 0 || r.PKey&0x7fff == 0 || !d.LID.Owns(d.LMC, r.SLID) || !r.DLID.IsUnicast() {
		i.hub.Stats.DropPath++
		return EINVAL
	}
	i.path = &cm.Path{Function: a.Function, Link: a.Link, SGID: r.SGID, DGID: r.DGID, SGIDIndex: a.SGIDIndex,
		PKeyIndex: uint16(pkey), SLID: r.SLID, DLID: r.DLID,
		Global: r.HopLimit > 1, PKey: r.PKey, FlowLabel: r.FlowLabel, TClass: r.TClass, HopLimit: r.HopLimit, SL: r.SL, MTU: r.MTU, Rate: r.Rate, LifeTime: r.Life}
	i.state = stateRouteResolved
	i.queue(&event{kind: evRouteResolved})
	return OK
}

// Masks and values of queue pair attributes as verbs have them.
const (
	accessRemoteWrite  = 2
	accessRemoteRead   = 4
	accessRemoteAtomic = 8
)

// qpAttr appends what the attributes of the identifier's queue pair must be in a
// state.
func (i *id) qpAttr(state uint32, b []byte) ([]byte, Errno) {
	if i.addr == nil || state > uint32(ib.Err) {
		return b, EINVAL
	}
	var a cm.QPAttr
	mask := ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort
	access, qkey := uint32(0), ib.QKey(0)
	switch {
	case i.datagram():
		mask |= ib.AttrQKey
		qkey = i.ownQKey()
	case i.conn == nil:
		mask |= ib.AttrAccessFlags
	default:
		var err error
		if a, mask, err = i.conn.QPAttr(ib.QPState(state)); err != nil {
			return b, EINVAL
		}
		mask |= ib.AttrState
		if ib.QPState(state) == ib.Init {
			mask |= ib.AttrAccessFlags | ib.AttrPKeyIndex | ib.AttrPort
		}
		access = accessRemoteWrite
		if i.serves {
			access |= accessRemoteRead | accessRemoteAtomic
		}
	}
	switch {
	case i.path != nil:
		a.PKeyIndex = i.path.PKeyIndex
	case mask&ib.AttrPKeyIndex != 0:
		d, _ := i.hub.net.Device(i.addr.Function)
		a.PKeyIndex = uint16(max(0, slices.Index(d.PKeys, i.addr.PKey)))
	}
	if i.ackTimeoutSet {
		a.Timeout = i.ackTimeout
	}
	b = le.AppendUint32(b, uint32(mask))
	b = le.AppendUint32(b, state)
	b = le.AppendUint32(b, 0) // the state it is in
	b = le.AppendUint32(b, uint32(a.PathMTU))
	b = le.AppendUint32(b, 0) // path migration
	b = le.AppendUint32(b, uint32(qkey))
	b = le.AppendUint32(b, uint32(a.RQPSN))
	b = le.AppendUint32(b, uint32(a.SQPSN))
	b = le.AppendUint32(b, uint32(a.DestQPN))
	b = le.AppendUint32(b, access)
	if mask&ib.AttrAV != 0 {
		b = appendAH(b, &a.Path)
	} else {
		b = appendAH(b, nil)
	}
	b = appendAH(b, nil) // the alternate path
	b = append(b, make([]byte, 20)...)
	b = le.AppendUint16(b, a.PKeyIndex)
	b = le.AppendUint16(b, 0)
	b = append(b, 0, 0, a.MaxRdAtomic, a.MaxDestRdAtomic, a.MinRNRTimer, portNum, a.Timeout, a.RetryCnt, a.RNRRetry,
		0, 0)
	return append(b, make([]byte, 5)...), OK
}

// Info describes an identifier to people.
type Info struct {
	Number    uint32
	Owner     Owner
	Function  uint16
	Bound     bool // Function means something
	PS        cm.PortSpace
	Type      ib.QPType
	State     string
	QPN       ib.QPN // 0: none, or not known
	Src, Dst  string // "" where there is none
	EventsDue int
}

// IDs describes the identifiers of all channels by number.
func (h *Hub) IDs() []Info {
	list := make([]Info, 0, len(h.ids))
	for n, i := range h.ids {
		v := Info{Number: n, Owner: i.file.owner, PS: i.ps, Type: i.qpType, State: stateNames[i.state], QPN: i.qpn,
			Src: i.src.String(), Dst: i.dst.String(),
			EventsDue: i.waiting + i.requests}
		if i.addr != nil {
			v.Function, v.Bound = i.addr.Function, true
		}
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b Info) int { return int(a.Number) - int(b.Number) })
	return list
}
