// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/mad"
)

func TestIsSM(t *testing.T) {
	b := newBench(t)
	heard := map[string][]Errno{}
	open := func(name string, wait bool) *IsSM {
		return b.hub.OpenIsSM(b.now, 1, wait, func(e Errno) { heard[name] = append(heard[name], e) })
	}
	first := open("first", false)
	if !b.isSM[1] {
		t.Error("IsSM is not set")
	}
	open("refused", false).Close(b.now)
	second, third := open("second", true), open("third", true)
	fourth := open("fourth", true)
	third.Close(b.now) // tired of waiting
	first.Close(b.now)
	first.Close(b.now)
	if !b.isSM[1] {
		t.Error("IsSM is not set while the second has it")
	}
	second.Close(b.now)
	if !b.isSM[1] {
		t.Error("IsSM is not set while the fourth has it")
	}
	fourth.Close(b.now)
	if b.isSM[1] {
		t.Error("IsSM is set")
	}
	b.hub.OpenIsSM(b.now, 9, true, func(e Errno) { heard["nowhere"] = append(heard["nowhere"], e) }).Close(b.now)
	want := map[string][]Errno{"first": {OK}, "refused": {EAGAIN}, "second": {OK}, "fourth": {OK}, "nowhere": {ENODEV}}
	if diff := cmp.Diff(want, heard); diff != "" {
		t.Error(diff)
	}
}

func TestRemove(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	_, other := b.open(2)
	id := b.register(f, perf)
	f.Write(b.now, record(Header{Agent: id, QPN: 1, TimeoutMS: 1}, request(mad.ClassPerf, 1, mad.MethodGet, 1)))
	var heard []Errno
	b.hub.OpenIsSM(b.now, 1, false, func(e Errno) { heard = append(heard, e) })
	waits := b.hub.OpenIsSM(b.now, 1, true, func(e Errno) { heard = append(heard, e) })
	delete(b.port, 1)
	b.hub.Remove(b.now, 1)
	b.hub.Remove(b.now, 1)
	if !r.gone || other.gone || !slices.Equal(heard, []Errno{OK, ENODEV}) || b.isSM[1] {
		t.Errorf("%+v, %+v, %v, %v", r, other, heard, b.isSM)
	}
	if err := f.Write(b.now, record(Header{Agent: id, QPN: 1}, request(mad.ClassPerf, 1, mad.MethodGet,
		1))); err != EIO {
		t.Errorf("write: %d", err)
	}
	if err := f.Control(ioctlEnablePKey, nil); err != EIO {
		t.Errorf("control: %d", err)
	}
	f.Close()
	waits.Close(b.now)
	if b.hub.Deadline() != 0 {
		t.Error("a deadline is left")
	}
}

func TestControl(t *testing.T) {
	b := newBench(t)
	r := &reader{room: 9}
	f, _ := b.hub.Open(1, r)
	// struct ib_user_mad_reg_req: id, method_mask, qpn, mgmt_class, mgmt_class_version,
	// oui, rmpp_version.
	reg := make([]byte, registerLen)
	copy(reg, []byte{0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 4})
	copy(reg[20:], []byte{1, 0x32, 1, 0, 0x14, 5, 1})
	if err := f.Control(ioctlRegister, reg); err != OK || le.Uint32(reg) != 0 {
		t.Fatalf("register: %d, % x", err, reg)
	}
	a := f.agents[0]
	want := []route{{0x32, 1, 1, 0x1405}, {0x32, 1, 0x42, 0x1405}}
	if diff := cmp.Diff(want, a.routes, cmp.AllowUnexported(route{})); diff != "" || a.qpn != 1 || a.rmpp == nil ||
		f.HeaderLen() != shortHeaderLen {
		t.Errorf("%s%+v", diff, a)
	}
	// struct ib_user_mad_reg_req2: id, qpn, mgmt_class, mgmt_class_version, res,
	// flags, method_mask, oui, rmpp_version, reserved.
	reg2 := make([]byte, register2Len)
	copy(reg2, []byte{0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 3, 2, 0, 0, 2})
	if err := f.Control(ioctlRegister2, reg2); err != EINVAL || le.Uint32(reg2[12:]) != userRMPP {
		t.Errorf("unknown flag: %d, % x", err, reg2)
	}
	reg2[16], reg2[36] = 4, 1
	if err := f.Control(ioctlRegister2, reg2); err != OK || le.Uint32(reg2) != 1 || f.agents[1].rmpp != nil ||
		f.HeaderLen() != shortHeaderLen {
		t.Errorf("register 2: %d, % x", err, reg2)
	}
	if diff := cmp.Diff([]route{{3, 2, 2, 0}}, f.agents[1].routes, cmp.AllowUnexported(route{})); diff != "" {
		t.Error(diff)
	}
	if err := f.Control(ioctlUnregister, []byte{1, 0, 0, 0}); err != OK || f.agents[1] != nil {
		t.Errorf("unregister: %d", err)
	}
	if err := f.Control(ioctlUnregister, []byte{1, 0, 0, 0}); err != EINVAL {
		t.Errorf("unregister again: %d", err)
	}
	if err := f.Control(ioctlEnablePKey, nil); err != EINVAL {
		t.Errorf("P_Key index after a registration: %d", err)
	}
	for n := range uint32(8) {
		for l := range MaxArgument + 2 {
			lens := map[uint32]int{ioctlRegister: registerLen, ioctlUnregister: unregisterLen, ioctlEnablePKey: 0,
				ioctlRegister2: register2Len}
			if want, known := lens[n]; !known {
				if err := f.Control(n, make([]byte, l)); err != ENOTTY {
					t.Errorf("request %d: %d", n, err)
				}
			} else if l != want {
				if err := f.Control(n, make([]byte, l)); err != EINVAL {
					t.Errorf("request %d with %d bytes: %d", n, l, err)
				}
			}
		}
	}
	// A program that starts with the second ioctl gets the long header, one that enables it too.
	g, _ := b.hub.Open(2, r)
	reg2[12], reg2[8] = 0, 0
	if err := g.Control(ioctlRegister2, reg2); err != OK || g.HeaderLen() != HeaderLen {
		t.Errorf("register 2 first: %d, header of %d", err, g.HeaderLen())
	}
	h, _ := b.hub.Open(2, r)
	if err := h.Control(ioctlEnablePKey, nil); err != OK || h.HeaderLen() != HeaderLen {
		t.Errorf("enable: %d, header of %d", err, h.HeaderLen())
	}
}
