// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/device/unixsock"
	"weft/internal/proto/abi"
)

// Session is one connection. Its exported methods may be called from any
// goroutine.
type Session struct {
	conn   *unixsock.Conn
	peer   unix.Ucred
	server *Server
	table  *MemTable
	dev    Device // without parts until it is made
	out    []byte

	weft     bool // WEFT_HELLO was received
	features uint64
	proto    uint64
	status   atomic.Uint32
	refused  bool // SetFeatures failed: FEATURES_OK is not set
	rings    map[int]*ring
	doorbell span // empty: none
	kick     *Kick
	held     int // descriptors: of messages, rings, the doorbell, the process and the backend
	backend  backend

	verdict atomic.Pointer[end]
}

// span is a range of guest physical addresses.
type span struct{ gpa, size uint64 }

// Peer returns the peer's credentials at the time of the connection.
func (s *Session) Peer() unix.Ucred { return s.peer }

// Mem returns the memory table. It stays valid for ever; after the end of the
// session it is empty.
func (s *Session) Mem() *MemTable { return s.table }

// Weft reports whether the front-end sent WEFT_HELLO. Only the session's own goroutine, which runs
// every Device call, may call it.
func (s *Session) Weft() bool { return s.weft }

// Fail ends the session because of what its front-end did. It does not wait;
// Lifetime.Closed follows.
func (s *Session) Fail(r Reason, cause error) {
	s.verdict.CompareAndSwap(nil, &end{Reason: r, cause: cause})
	s.conn.Close()
}

// Protocol features offered to every front-end, and those of WEFT.
const (
	protoAll = 1<<abi.ProtoMQ | 1<<abi.ProtoReplyAck | 1<<abi.ProtoBackendReq | 1<<abi.ProtoConfig |
		1<<abi.ProtoResetDevice | 1<<abi.ProtoConfigureMemSlots | 1<<abi.ProtoStatus
	protoWeft = 1 << abi.ProtoWeft
)

// handler serves one request. size is the payload's length, -1 where the
// handler checks it; fds the number of descriptors, -1 likewise. weft marks
// private requests. A handler that answers itself returns errAnswered.
type handler struct {
	size, fds int
	weft      bool
	do        func(s *Session, m *message) error
}

// errAnswered signals to the dispatcher that the reply has been sent.
var errAnswered = errors.New("answered")

var handlers = map[uint32]handler{
	abi.ReqGetFeatures: {0, 0, false, func(s *Session, m *message) error {
		return s.answer(m, s.offer())
	}},
	abi.ReqSetFeatures:  {8, 0, false, (*Session).setFeatures},
	abi.ReqSetOwner:     {0, 0, false, func(*Session, *message) error { return nil }},
	abi.ReqResetOwner:   {0, 0, false, func(*Session, *message) error { return nil }},
	abi.ReqSetMemTable:  {-1, -1, false, (*Session).setMemTable},
	abi.ReqSetLogBase:   {16, 1, false, (*Session).setLogBase},
	abi.ReqSetLogFD:     {0, 1, false, func(*Session, *message) error { return nil }}, // the log is polled by its owner
	abi.ReqSetVringNum:  {abi.VUVringStateSize, 0, false, (*Session).setVringNum},
	abi.ReqSetVringAddr: {abi.VUVringAddrSize, 0, false, (*Session).setVringAddr},
	abi.ReqSetVringBase: {abi.VUVringStateSize, 0, false, (*Session).setVringBase},
	abi.ReqGetVringBase: {abi.VUVringStateSize, 0, false, (*Session).getVringBase},
	abi.ReqSetVringKick: {8, -1, false, (*Session).setVringKick},
	abi.ReqSetVringCall: {8, -1, false, (*Session).setVringCall},
	abi.ReqSetVringErr:  {8, -1, false, (*Session).setVringErr},
	abi.ReqGetProtocolFeatures: {0, 0, false, func(s *Session, m *message) error {
		return s.answer(m, s.offerProto())
	}},
	abi.ReqSetProtocolFeatures: {8, 0, false, (*Session).setProtocolFeatures},
	abi.ReqGetQueueNum: {0, 0, false, func(s *Session, m *message) error {
		return s.answer(m, max(1, uint64(s.dev.Registers.Config().MaxVirtqueuePairs)))
	}},
	abi.ReqSetVringEnable:  {abi.VUVringStateSize, 0, false, (*Session).setVringEnable},
	abi.ReqSendRARP:        {8, 0, false, (*Session).sendRARP},
	abi.ReqNetSetMTU:       {8, 0, false, (*Session).netSetMTU},
	abi.ReqSetBackendReqFD: {0, 1, false, (*Session).setBackendReqFD},
	abi.ReqGetConfig:       {-1, 0, false, (*Session).getConfig},
	abi.ReqSetConfig:       {-1, 0, false, func(*Session, *message) error { return unix.EOPNOTSUPP }},
	abi.ReqResetDevice:     {0, 0, false, (*Session).resetDevice},
	abi.ReqGetMaxMemSlots: {0, 0, false, func(s *Session, m *message) error {
		return s.answer(m, abi.MaxMemRegions)
	}},
	abi.ReqAddMemReg: {abi.VUMemRegSize, 1, false, (*Session).addMemReg},
	abi.ReqRemMemReg: {abi.VUMemRegSize, -1, false, (*Session).remMemReg},
	abi.ReqSetStatus: {8, 0, false, (*Session).setStatus},
	abi.ReqGetStatus: {0, 0, false, func(s *Session, m *message) error {
		return s.answer(m, uint64(s.status.Load()))
	}},
	abi.ReqHello:       {abi.HelloSize, 0, false, (*Session).hello},
	abi.ReqSetDoorbell: {abi.SetDoorbellSize, 1, true, (*Session).setDoorbell},
	abi.ReqSetRing:     {abi.SetRingSize, -1, true, (*Session).setRing},
	abi.ReqStopRing:    {abi.StopRingSize, 0, true, (*Session).stopRing},
	abi.ReqProcMem:     {abi.ProcMemSize, 1, true, (*Session).procMem},
}

func (s *Session) answer(m *message, v uint64) error {
	if err := s.replyU64(m, v); err != nil {
		return err
	}
	return errAnswered
}

// run serves the connection until it ends and returns the reason.
func (s *Session) run() error {
	r := &reader{conn: s.conn, s: s}
	for {
		m, err := r.next()
		if err == nil {
			err = s.handle(m)
		}
		if v := s.verdict.Load(); v != nil {
			return v
		}
		if err == io.EOF { // between messages, so not wrapped
			return Gone
		}
		if errors.Is(err, net.ErrClosed) {
			return Shutdown
		}
		if err != nil {
			return err
		}
	}
}

// handle serves one message. An error ends the session.
func (s *Session) handle(m *message) error {
	defer m.close()
	h, ok := handlers[m.Request]
	var err error
	switch {
	case m.over != nil:
		err = m.over
		var q Quota
		errors.As(err, &q)
		s.refuse(q)
	case !ok || h.weft && s.proto&protoWeft == 0:
		err = unix.EOPNOTSUPP
	case h.size >= 0 && len(m.payload) != h.size:
		return fatal(BadSize, "request %#x has %d bytes, want %d", m.Request, len(m.payload), h.size)
	case h.fds >= 0 && len(m.fds) != h.fds:
		return fatal(BadDescriptors, "request %#x has %d descriptors, want %d", m.Request, len(m.fds), h.fds)
	default:
		if err = h.do(s, m); err == errAnswered {
			return nil
		}
	}
	m.close() // before the reply: the front-end may rely on it then
	var e *end
	if errors.As(err, &e) {
		return err
	}
	if m.Flags&abi.VUNeedReply != 0 {
		return s.replyU64(m, errno(err))
	}
	switch {
	case err == nil:
		return nil
	case !ok || h.weft && s.proto&protoWeft == 0:
		return fatal(BadRequest, "request %#x", m.Request)
	}
	return &end{Reason: Refused, detail: "request " + hex(m.Request), cause: err}
}

// errno returns the value of the front-end's reply to an error.
func errno(err error) uint64 {
	if err == nil {
		return 0
	}
	var e unix.Errno
	if errors.As(err, &e) && e != 0 {
		return uint64(e)
	}
	return uint64(unix.EINVAL)
}

func (s *Session) offer() uint64 { return s.dev.Registers.Features() | 1<<abi.FeatureProtocol }

func (s *Session) offerProto() uint64 {
	f := uint64(protoAll)
	if s.weft {
		f |= protoWeft
	}
	if s.dev.Ethernet != nil {
		f |= 1<<abi.ProtoRARP | 1<<abi.ProtoMTU
	}
	if s.dev.Registers.Features()&(1<<abi.FeatureLogAll) != 0 {
		f |= 1 << abi.ProtoLogShmFD
	}
	return f
}

// setFeatures takes the driver's choice. Front-ends repeat it.
func (s *Session) setFeatures(m *message) error {
	f := binary.NativeEndian.Uint64(m.payload)
	if f&^s.offer() != 0 {
		return fatal(BadRequest, "features %#x of %#x", f, s.offer())
	}
	const log = 1 << abi.FeatureLogAll
	if s.running() && f&^log != s.features&^log {
		return unix.EBUSY
	}
	turned := f&log != s.features&log
	s.features = f
	if turned {
		s.table.logging(f&log != 0)
		if s.running() {
			return nil // no other change
		}
	}
	// A device without VERSION_1 is a legacy one, which this is not; ROCE
	// needs its control queue. FEATURES_OK stays clear then.
	s.refused = f&(1<<abi.FeatureVersion1) == 0 || f&(1<<abi.FeatureRoCE) != 0 && f&(1<<abi.FeatureCtrlVQ) == 0
	if !s.refused {
		s.refused = s.dev.Registers.SetFeatures(f&^(1<<abi.FeatureProtocol|log)) != nil
	}
	if s.refused {
		s.status.And(^uint32(abi.StatusFeaturesOK))
	}
	if f&(1<<abi.FeatureProtocol) == 0 {
		for _, r := range s.rings {
			r.Enabled = true // without the bit there is no SET_VRING_ENABLE
		}
	}
	return nil
}

func (s *Session) setProtocolFeatures(m *message) error {
	f := binary.NativeEndian.Uint64(m.payload)
	if f&^s.offerProto() != 0 {
		return fatal(BadRequest, "protocol features %#x of %#x", f, s.offerProto())
	}
	s.proto = f
	return nil
}

func (s *Session) setStatus(m *message) error {
	v := binary.NativeEndian.Uint64(m.payload)
	if v > 0xff {
		return fatal(BadRequest, "status %#x", v)
	}
	st := uint8(v)
	if s.refused {
		st &^= abi.StatusFeaturesOK
	}
	if err := s.dev.Registers.SetStatus(st); err != nil {
		return err
	}
	if st == 0 {
		s.status.Store(0)
		return nil
	}
	// NEEDS_RESET is the device's and stays until a reset.
	s.status.Store(uint32(st) | s.status.Load()&abi.StatusNeedsReset)
	return nil
}

// sendRARP lets a guest that moved be found at once.
func (s *Session) sendRARP(m *message) error {
	if s.dev.Ethernet == nil || s.proto&(1<<abi.ProtoRARP) == 0 {
		return unix.EOPNOTSUPP
	}
	s.dev.Ethernet.Announce([6]byte(m.payload))
	return nil
}

func (s *Session) netSetMTU(m *message) error {
	if s.dev.Ethernet == nil || s.proto&(1<<abi.ProtoMTU) == 0 {
		return unix.EOPNOTSUPP
	}
	v := binary.NativeEndian.Uint64(m.payload)
	if v > 0xffff {
		return unix.EINVAL
	}
	return s.dev.Ethernet.SetMTU(uint16(v))
}

// setLogBase maps the memory in which written pages are marked. It always replies.
func (s *Session) setLogBase(m *message) error {
	if s.proto&(1<<abi.ProtoLogShmFD) == 0 {
		return unix.EOPNOTSUPP
	}
	size, offset := binary.NativeEndian.Uint64(m.payload), binary.NativeEndian.Uint64(m.payload[8:])
	err := s.table.setLog(m.fds[0], offset, size)
	var e *end
	if errors.As(err, &e) {
		return err
	}
	m.close()
	return s.answer(m, errno(err))
}

// maxConfig bounds the configuration space; what lies beyond its fields is
// zero.
const maxConfig = 256

func (s *Session) getConfig(m *message) error {
	if len(m.payload) < abi.VUConfigSize {
		return fatal(BadSize, "GET_CONFIG of %d bytes", len(m.payload))
	}
	c, err := abi.ParseVUConfig(m.payload[:abi.VUConfigSize])
	if err != nil {
		return err
	}
	if uint64(len(m.payload)) != abi.VUConfigSize+uint64(c.Size) {
		return fatal(BadSize, "GET_CONFIG of %d bytes for %d", len(m.payload), c.Size)
	}
	if uint64(c.Offset)+uint64(c.Size) > maxConfig {
		if err := s.reply(m, nil); err != nil { // the protocol's error answer
			return err
		}
		return errAnswered
	}
	space := make([]byte, maxConfig)
	s.dev.Registers.Config().Append(space[:0])
	if err := s.reply(m, append(c.Append(nil), space[c.Offset:][:c.Size]...)); err != nil {
		return err
	}
	return errAnswered
}

func (s *Session) resetDevice(*message) error {
	for i, r := range s.rings {
		s.halt(i, r)
		r.base = 0
		r.Enabled = s.features&(1<<abi.FeatureProtocol) == 0
	}
	s.dev.Registers.Reset()
	s.status.Store(0)
	return nil
}

func (s *Session) setMemTable(m *message) error {
	if len(m.payload) < 8 {
		return fatal(BadSize, "SET_MEM_TABLE of %d bytes", len(m.payload))
	}
	n := uint64(binary.NativeEndian.Uint32(m.payload))
	const regionSize = abi.VUMemRegSize - 8
	if n > maxTable || uint64(len(m.payload)) != 8+n*regionSize {
		return fatal(BadSize, "SET_MEM_TABLE of %d regions in %d bytes", n, len(m.payload))
	}
	if uint64(len(m.fds)) != n {
		return fatal(BadDescriptors, "SET_MEM_TABLE of %d regions with %d descriptors", n, len(m.fds))
	}
	list := make([]abi.VUMemReg, n)
	for i := range list {
		// A region here lacks the padding word at the beginning.
		r, err := abi.ParseVUMemReg(append(make([]byte, 8), m.payload[8+regionSize*i:][:regionSize]...))
		if err != nil {
			return err
		}
		list[i] = r
	}
	if s.doorbell.size > 0 {
		return unix.EBUSY
	}
	return s.table.replace(list, m.fds, s.stopRings)
}

func (s *Session) addMemReg(m *message) error {
	r, err := abi.ParseVUMemReg(m.payload)
	if err != nil {
		return err
	}
	return s.table.add(r, m.fds[0])
}

// remMemReg removes memory; memory keys of regions in it fail until memory is announced at these addresses again. A
// descriptor in the message is closed.
func (s *Session) remMemReg(m *message) error {
	if len(m.fds) > 1 {
		return fatal(BadDescriptors, "REM_MEM_REG with %d descriptors", len(m.fds))
	}
	want, err := abi.ParseVUMemReg(m.payload)
	if err != nil {
		return err
	}
	r := s.table.lookup(want)
	if r == nil {
		return unix.ENOENT
	}
	if overlap(s.doorbell.gpa, s.doorbell.size, r.gpa, r.size) {
		return unix.EBUSY
	}
	s.stopRings(r)
	s.table.drop(r)
	return nil
}

// stopRings stops every running ring with tables in r.
func (s *Session) stopRings(r *region) {
	for i, g := range s.rings {
		if g.running && slices.ContainsFunc(g.spans(), func(p span) bool {
			return overlap(p.gpa, p.size, r.gpa,
				r.size)
		}) {
			s.halt(i, g)
			s.broken(g)
		}
	}
}

// close releases everything after the connection has ended.
func (s *Session) close(reason error) {
	s.conn.Close()
	if s.dev.Lifetime != nil {
		s.dev.Lifetime.Closed(reason)
	}
	for _, r := range s.rings {
		s.closeKick(r.Kick)
		s.closeCall(r.Call)
		s.closeCall(r.Err)
	}
	s.rings = nil
	s.closeKick(s.kick)
	s.backend.replace(-1)
	s.release(s.held) // the device has closed the memory of the process
	s.table.close()
}
