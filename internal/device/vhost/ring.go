// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"strconv"

	"golang.org/x/sys/unix"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
)

func hex(v uint32) string { return "0x" + strconv.FormatUint(uint64(v), 16) }

// ring is the session's state of one ring.
type ring struct {
	Ring
	running bool
	base    uint32
	addr    abi.VUVringAddr // front-end addresses
	addrSet bool
}

// sizes returns how long the tables of a ring are: descriptors, the driver's
// and the device's.
func (r *ring) sizes() (desc, driver, device uint64) {
	n := uint64(r.Num)
	if r.Packed {
		return n * abi.VringDescSize, 4, 4
	}
	return n * abi.VringDescSize, abi.VringAvailRing + 2*n, abi.VringUsedRing + n*abi.VringUsedElemSize
}

// spans returns where the tables of a running ring lie.
func (r *ring) spans() []span {
	desc, driver, device := r.sizes()
	return []span{{r.Desc, desc}, {r.Driver, driver}, {r.Device, device}}
}

// ring returns ring i, which the caller got from the front-end.
func (s *Session) ring(i uint32) (*ring, error) {
	if uint64(i) >= uint64(s.dev.Rings.Rings()) {
		return nil, fatal(BadRing, "ring %d of %d", i, s.dev.Rings.Rings())
	}
	r := s.rings[int(i)]
	if r == nil {
		r = &ring{}
		r.Enabled = s.features != 0 && s.features&(1<<abi.FeatureProtocol) == 0
		s.rings[int(i)] = r
	}
	return r, nil
}

func (s *Session) running() bool {
	for _, r := range s.rings {
		if r.running {
			return true
		}
	}
	return false
}

// halt stops a ring and closes its descriptors.
func (s *Session) halt(i int, r *ring) {
	if r.running {
		r.base = s.dev.Rings.StopRing(i)
		r.running = false
	}
	s.closeKick(r.Kick)
	r.Kick = nil
	if r.Weft {
		s.closeCall(r.Call)
		r.Call = nil
	}
}

// NeedsReset sets DEVICE_NEEDS_RESET in the status and notifies the front-end.
func (s *Session) NeedsReset() {
	s.status.Or(abi.StatusNeedsReset)
	s.backend.configChange()
}

// broken notifies the front-end that a ring is broken.
func (s *Session) broken(r *ring) {
	if r.Err != nil {
		r.Err.Write()
	}
	s.NeedsReset()
}

// RingError notifies the front-end through the ring's error descriptor that the ring is broken. Only
// the session's goroutine may call it, inside a Device call.
func (s *Session) RingError(i int) {
	if r := s.rings[i]; r != nil {
		s.broken(r)
	}
}

func (s *Session) vringState(m *message) (*ring, abi.VUVringState, error) {
	st, err := abi.ParseVUVringState(m.payload)
	if err != nil {
		return nil, st, err
	}
	r, err := s.ring(st.Index)
	return r, st, err
}

func (s *Session) setVringNum(m *message) error {
	r, st, err := s.vringState(m)
	if err != nil {
		return err
	}
	if r.running {
		return unix.EBUSY
	}
	packed := s.features&(1<<abi.FeaturePacked) != 0
	if st.Num == 0 || st.Num > abi.MaxRingNum || !packed && st.Num&(st.Num-1) != 0 {
		return fatal(BadRing, "ring %d of %d entries", st.Index, st.Num)
	}
	r.Num = st.Num
	return nil
}

// setVringAddr stores the front-end's addresses; they are translated when the ring starts, because the
// memory may be announced later.
func (s *Session) setVringAddr(m *message) error {
	a, err := abi.ParseVUVringAddr(m.payload)
	if err != nil {
		return err
	}
	r, err := s.ring(a.Index)
	if err != nil {
		return err
	}
	if a.Flags&^1 != 0 {
		return fatal(BadRing, "ring %d with address flags %#x", a.Index, a.Flags)
	}
	if r.running && (a.Desc != r.addr.Desc || a.Avail != r.addr.Avail || a.Used != r.addr.Used) {
		return unix.EBUSY
	}
	r.addr, r.addrSet = a, true
	return nil
}

func (s *Session) setVringBase(m *message) error {
	r, st, err := s.vringState(m)
	if err != nil {
		return err
	}
	if r.running {
		return unix.EBUSY
	}
	if st.Num > 0xffff && s.features&(1<<abi.FeaturePacked) == 0 {
		return fatal(BadRing, "ring %d with base %#x", st.Index, st.Num)
	}
	r.base = st.Num
	return nil
}

func (s *Session) getVringBase(m *message) error {
	r, st, err := s.vringState(m)
	if err != nil {
		return err
	}
	s.halt(int(st.Index), r)
	st.Num = r.base
	if err := s.reply(m, st.Append(nil)); err != nil {
		return err
	}
	return errAnswered
}

// vringFD returns the ring that a KICK, CALL or ERR request means, and its
// descriptor or -1. The index has 8 bits there.
func (s *Session) vringFD(m *message) (i int, r *ring, fd int, err error) {
	v := binary.NativeEndian.Uint64(m.payload)
	if v&^0x1ff != 0 {
		return 0, nil, -1, fatal(BadRing, "ring descriptor word %#x", v)
	}
	i = int(v & 0xff)
	want := 1
	if v&0x100 != 0 {
		want = 0
	}
	if len(m.fds) != want {
		return 0, nil, -1, fatal(BadDescriptors, "ring %d: %d descriptors, want %d", i, len(m.fds), want)
	}
	if r, err = s.ring(uint32(i)); err != nil {
		return 0, nil, -1, err
	}
	if r.Weft && r.running {
		return 0, nil, -1, unix.EBUSY
	}
	fd = -1
	if want == 1 {
		fd = m.take(0)
	}
	return i, r, fd, nil
}

// setVringKick starts the ring, or replaces its kick.
func (s *Session) setVringKick(m *message) error {
	i, r, fd, err := s.vringFD(m)
	if err != nil {
		return err
	}
	var k *Kick
	if fd >= 0 {
		if k, err = newKick(fd); err != nil {
			s.release(1)
			return &end{Reason: BadKind, cause: err}
		}
	}
	old := r.Kick
	r.Kick = k
	if r.running {
		s.dev.Rings.ChangeRing(i, r.Ring)
		s.closeKick(old)
		return nil
	}
	s.closeKick(old)
	return s.start(i, r)
}

// start translates a ring's addresses and starts it.
func (s *Session) start(i int, r *ring) error {
	if r.Num == 0 || !r.addrSet {
		return fatal(BadState, "ring %d started without size or addresses", i)
	}
	c := virtio.Config{Num: r.Num, EventIdx: s.features&(1<<abi.FeatureEventIdx) != 0,
		Packed: s.features&(1<<abi.FeaturePacked) != 0,
		Base:   r.base, Resume: true}
	if s.dev.Registers.Features()&(1<<abi.FeatureLogAll) != 0 {
		c.Log = s.table // whether it logs is read while the ring runs
	}
	r.Packed = c.Packed
	desc, driver, device := r.sizes()
	for _, t := range []struct {
		gpa        *uint64
		user, size uint64
	}{
		{&c.Desc, r.addr.Desc, desc},
		{&c.Driver, r.addr.Avail, driver},
		{&c.Device, r.addr.Used, device},
	} {
		gpa, ok := s.table.fromUser(t.user, t.size)
		if !ok {
			return fatal(BadRing, "ring %d: %#x+%#x is not announced", i, t.user, t.size)
		}
		*t.gpa = gpa
	}
	r.Config, r.Weft = c, false
	return s.launch(i, r)
}

// launch starts a ring at the device once its description is complete.
func (s *Session) launch(i int, r *ring) error {
	// What virtio.New will refuse is the front-end's mistake; find out here,
	// where it has a name. Nothing is kept of the trial.
	if err := virtio.Check(s.table, r.Config); err != nil {
		return &end{Reason: BadRing, detail: "ring " + strconv.Itoa(i), cause: err}
	}
	if err := s.dev.Rings.SetRing(i, r.Ring); err != nil {
		return err
	}
	r.running = true
	return nil
}

// vringCall takes over the descriptor of a standard ring's notification; there
// is none where fd is negative.
func (s *Session) vringCall(fd int) (*Call, error) {
	if fd < 0 {
		return nil, nil
	}
	c, err := newCall(fd, 1)
	if err != nil {
		s.release(1)
		return nil, &end{Reason: BadKind, cause: err}
	}
	return c, nil
}

func (s *Session) setVringCall(m *message) error {
	i, r, fd, err := s.vringFD(m)
	if err != nil {
		return err
	}
	c, err := s.vringCall(fd)
	if err != nil {
		return err
	}
	old := r.Call
	r.Call = c
	if r.running {
		s.dev.Rings.ChangeRing(i, r.Ring)
	}
	s.closeCall(old)
	return nil
}

func (s *Session) setVringErr(m *message) error {
	i, r, fd, err := s.vringFD(m)
	if err != nil {
		return err
	}
	c, err := s.vringCall(fd)
	if err != nil {
		return err
	}
	old := r.Err
	r.Err = c
	if r.running {
		s.dev.Rings.ChangeRing(i, r.Ring)
	}
	s.closeCall(old)
	return nil
}

func (s *Session) setVringEnable(m *message) error {
	r, st, err := s.vringState(m)
	if err != nil {
		return err
	}
	if st.Num > 1 {
		return fatal(BadRing, "ring %d enabled with %d", st.Index, st.Num)
	}
	on := st.Num == 1
	if r.Enabled == on {
		return nil
	}
	r.Enabled = on
	if r.running {
		s.dev.Rings.ChangeRing(int(st.Index), r.Ring)
	}
	return nil
}
