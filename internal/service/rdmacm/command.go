// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// Command executes a command that a program wrote: body is what follows its header, option what a
// SET_OPTION points at, from the channel that a MIGRATE_ID names; room is how much of an
// answer there is room for. It appends the answer to b.
func (f *File) Command(now mono.Time, command uint32, body, option []byte, from *File, room int, b []byte) ([]byte,
	Errno) {
	h := f.hub
	h.now = now
	h.Stats.Commands++
	if command >= uint32(len(layouts)) {
		h.Stats.DropUnknown++
		return b, EINVAL
	}
	l := &layouts[command]
	switch {
	case f.closed:
		return b, EIO
	case l.full == 0:
		h.Stats.DropUnknown++
		return b, ENOSYS
	case len(body) < l.least:
		h.Stats.DropMalformed++
		return b, EINVAL
	case room < l.answer:
		h.Stats.DropMalformed++
		return b, ENOSPC
	}
	var full [MaxBody]byte
	copy(full[:l.full], body)
	r := &fields{b: full[:l.full]}
	switch command {
	case abi.CMCreateID:
		return f.createID(r, b)
	case abi.CMDestroyID:
		return f.destroyID(r, b)
	case abi.CMBindIP:
		r.skip(8)
		e, err := r.sockaddr()
		return b, f.with(r.u32(), err, func(i *id) Errno { return i.bind(e) })
	case abi.CMBind:
		n, size := r.u32(), r.u16()
		reserved := r.u16()
		e, err := r.storage(size)
		if reserved != 0 || size == 0 {
			err = EINVAL
		}
		return b, f.with(n, err, func(i *id) Errno { return i.bind(e) })
	case abi.CMResolveIP:
		src, err := r.sockaddr()
		dst, err2 := r.sockaddr()
		if err == OK {
			err = err2
		}
		return b, f.with(r.u32(), err, func(i *id) Errno { return i.resolveAddr(src, dst) })
	case abi.CMResolveAddr:
		n := r.u32()
		r.skip(4)
		srcLen, dstLen := r.u16(), r.u16()
		reserved := r.u32()
		src, err := r.storage(srcLen)
		dst, err2 := r.storage(dstLen)
		if err == OK {
			err = err2
		}
		if reserved != 0 || dstLen == 0 {
			err = EINVAL
		}
		return b, f.with(n, err, func(i *id) Errno { return i.resolveAddr(src, dst) })
	case abi.CMResolveRoute:
		return b, f.with(r.u32(), OK, (*id).resolveRoute)
	case abi.CMQueryRoute:
		r.skip(8)
		err := f.with(r.u32(), OK, func(i *id) Errno { b = i.queryRoute(b); return OK })
		return b, err
	case abi.CMQuery:
		r.skip(8)
		n, option := r.u32(), r.u32()
		err := f.with(n, OK, func(i *id) (err Errno) { b, err = i.query(option, room, b); return err })
		return b, err
	case abi.CMConnect:
		c := r.conn()
		n := r.u32()
		return b, f.with(n, OK, func(i *id) Errno { return i.connect(&c) })
	case abi.CMListen:
		n, backlog := r.u32(), r.u32()
		return b, f.with(n, OK, func(i *id) Errno { return i.listen(int32(backlog)) })
	case abi.CMAccept:
		uid := r.u64()
		c := r.conn()
		return b, f.with(r.u32(), OK, func(i *id) Errno { return i.accept(uid, &c) })
	case abi.CMReject:
		n, length, reason := r.u32(), r.u8(), r.u8()
		r.skip(2)
		data := r.take(maxPrivate)[:length]
		return b, f.with(n, OK, func(i *id) Errno { return i.reject(reason, data) })
	case abi.CMDisconnect:
		return b, f.with(r.u32(), OK, (*id).disconnect)
	case abi.CMInitQPAttr:
		r.skip(8)
		n, state := r.u32(), r.u32()
		err := f.with(n, OK, func(i *id) (err Errno) { b, err = i.qpAttr(state, b); return err })
		return b, err
	case abi.CMGetEvent:
		return f.event(room, b)
	case abi.CMSetOption:
		r.skip(8)
		n, level, name := r.u32(), r.u32(), r.u32()
		return b, f.with(n, OK, func(i *id) Errno { return i.setOption(level, name, option) })
	case abi.CMNotify:
		n, event := r.u32(), r.u32()
		return b, f.with(n, OK, func(i *id) Errno { return i.notify(event) })
	case abi.CMJoinIPMcast:
		r.skip(8)
		uid := r.u64()
		e, err := r.sockaddr()
		err = f.with(r.u32(), err, func(i *id) (err Errno) { b, err = i.join(uid, e, 0, b); return err })
		return b, err
	case abi.CMJoinMcast:
		r.skip(8)
		uid, n, size, flags := r.u64(), r.u32(), r.u16(), r.u16()
		e, err := r.storage(size)
		err = f.with(n, err, func(i *id) (err Errno) { b, err = i.join(uid, e, flags, b); return err })
		return b, err
	case abi.CMLeaveMcast:
		r.skip(8)
		return f.leave(r.u32(), b)
	case abi.CMWriteEvent:
		n := r.u32()
		r.skip(4)
		kind, status, arg := eventKind(r.u32()), int32(r.u32()), r.u64()
		return b, f.with(n, OK, func(i *id) Errno { return i.writeEvent(kind, status, arg) })
	case abi.CMMigrateID:
		r.skip(8)
		return f.migrate(r.u32(), from, b)
	}
	h.Stats.DropUnknown++
	return b, ENOSYS
}

func (f *File) createID(r *fields, b []byte) ([]byte, Errno) {
	uid := r.u64()
	r.skip(8)
	i := &id{hub: f.hub, uid: uid, ps: cm.PortSpace(r.u16())}
	switch i.ps {
	case cm.SpaceTCP:
		i.qpType = ib.RC
	case cm.SpaceUDP, cm.SpaceIPoIB:
		i.qpType = ib.UD
	case cm.SpaceIB:
		// Extended connected queue pairs are not to be had here; identifiers are, for librdmacm
		// makes some to see what there is.
		i.qpType = ib.QPType(r.u8())
	default:
		f.hub.Stats.DropMalformed++
		return b, EINVAL
	}
	if err := f.hub.number(i, f); err != OK {
		return b, err
	}
	return le.AppendUint32(b, i.n), OK
}

func (f *File) destroyID(r *fields, b []byte) ([]byte, Errno) {
	r.skip(8)
	i, err := f.lookup(r.u32())
	if err != OK {
		return b, err
	}
	i.destroy()
	return le.AppendUint32(b, i.reported), OK
}

// destroy ends an identifier that has a number.
func (i *id) destroy() {
	f, h := i.file, i.hub
	if len(f.events) > 0 {
		f.purge(func(e *event) bool { return e.id == i })
	}
	i.abandon()
	delete(h.ids, i.n)
	delete(f.ids, i)
	h.free = append(h.free, i.n)
	h.charge(f.owner, -1)
}

// Remove reports that the port of a function was removed.
func (h *Hub) Remove(now mono.Time, function uint16) {
	h.now = now
	for _, i := range h.ids {
		if i.addr == nil || i.addr.Function != function || i.removed {
			continue
		}
		i.halt()
		if i.uid != 0 {
			i.queue(&event{kind: evDeviceRemoval})
		}
		i.removed = true
	}
	for f := range h.files {
		f.purge(func(e *event) bool {
			return e.child != nil && e.child.addr != nil &&
				e.child.addr.Function == function
		})
	}
}

// Close ends all that the channel has, as if its identifiers were destroyed.
func (f *File) Close(now mono.Time) {
	if f.closed {
		return
	}
	f.hub.now = now
	for i := range f.ids {
		i.destroy()
	}
	f.closed = true
	f.events = nil
	delete(f.hub.files, f)
}
