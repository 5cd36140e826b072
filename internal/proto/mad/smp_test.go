// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

func TestSMPTruncated(t *testing.T) {
	for n := range Len {
		if err := new(SMP).Parse(make([]byte, n)); !errors.Is(err, ErrShort) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// TestSMPBytes compares a directed-route SMP with bytes written out by hand
// (IBA volume 1, figure 160).
func TestSMPBytes(t *testing.T) {
	s := SMP{
		Header: Header{BaseVersion: 1, MgmtClass: ClassSubnDR, ClassVersion: 1, Method: MethodGetResp,
			Status:        StatusInvalidValue,
			ClassSpecific: 0xdead, TransactionID: 0x0102030405060708, AttributeID: AttrPortInfo, AttributeModifier: 0x80000003},
		MKey: 0x1112131415161718, D: true, HopPointer: 5, HopCount: 6, DrSLID: 0x2122, DrDLID: 0x2324,
	}
	s.Data[0], s.Data[63] = 0x31, 0x32
	s.InitialPath[1], s.InitialPath[63] = 0x41, 0x42
	s.ReturnPath[1], s.ReturnPath[63] = 0x51, 0x52
	want := make([]byte, Len)
	copy(want, []byte{1, 0x81, 1, 0x81, 0x80, 0x1c, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x15, 0, 0, 0x80, 0, 0, 3,
		0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24})
	want[64], want[127] = 0x31, 0x32
	want[129], want[191] = 0x41, 0x42
	want[193], want[255] = 0x51, 0x52
	got := s.Append(nil)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	s.ClassSpecific = 0
	if back := parse[SMP](t, got); back != s {
		t.Errorf("want %+v\n got %+v", s, back)
	}
	// LID-routed: the directed fields neither go out nor come in.
	s.MgmtClass, s.ClassSpecific = ClassSubnLID, 0xbeef
	clear(want[32:64])
	clear(want[128:])
	want[1], want[4], want[6], want[7] = 1, 0, 0xbe, 0xef
	got = s.Append(nil)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	back := parse[SMP](t, append(got[:128:128], bytes.Repeat([]byte{0xa5}, 128)...))
	if back.Append(nil); !bytes.Equal(back.Append(nil), want) || back.D || back.InitialPath != [64]uint8{} {
		t.Errorf("LID-routed: %+v", back)
	}
}

func TestReply(t *testing.T) {
	for _, c := range []struct{ ask, answer Method }{
		{MethodGet, MethodGetResp}, {MethodSet, MethodGetResp}, {MethodTrap, MethodTrapRepress}, {MethodReport,
			MethodReportResp},
		{MethodGetTable, MethodGetTableResp}, {MethodGetTraceTable, MethodGetTableResp}, {MethodGetMulti,
			MethodGetMultiResp},
		{MethodDelete, MethodDeleteResp}, {MethodSend, 0}, {MethodGetResp, 0}, {MethodTrapRepress, 0},
	} {
		if got := c.ask.Response(); got != c.answer {
			t.Errorf("%v is answered with %v, want %v", c.ask, got, c.answer)
		}
		if c.answer != 0 && (!c.answer.IsResponse() || c.ask.IsResponse()) {
			t.Errorf("%v and %v: which is the response?", c.ask, c.answer)
		}
	}
	s := SMP{Header: Header{MgmtClass: ClassSubnLID, Method: MethodSet, TransactionID: 7}, MKey: 9}
	s.Reply(StatusInvalidValue)
	if s.D || s.HopPointer != 0 || s.Method != MethodGetResp || s.Status != StatusInvalidValue ||
		s.TransactionID != 7 || s.MKey != 9 {
		t.Errorf("%+v", s)
	}
}

// TestWalk follows the published walk of one SMP to a switch two hops away and
// back.
func TestWalk(t *testing.T) {
	v := vectors(t)
	s := SMP{Header: Header{MgmtClass: ClassSubnDR, Method: MethodGet}, HopCount: 2, DrSLID: ib.LIDPermissive,
		DrDLID: ib.LIDPermissive}
	copy(s.InitialPath[:], v.Walk.InitialPath)
	step := 0
	at := func(h Hop, want Action) {
		t.Helper()
		w := v.Walk.Steps[step]
		step++
		if h.Action != want || h.Port != w.OutPort || s.D != (w.D == 1) || s.HopPointer != w.HopPointer ||
			!bytes.Equal(s.ReturnPath[:3], w.ReturnPath) {
			t.Fatalf("%s: %v, %+v\nwant %+v", w.At, h, s, w)
		}
	}
	at(Hop{Action: Discard}, Discard) // before it is sent
	at(s.Send(false, 1, 1), Forward)
	at(s.Receive(true, 1, 8), Forward)
	at(s.Receive(true, 1, 8), Deliver)
	s.Reply(StatusOK)
	at(s.Send(true, 0, 8), Forward)
	at(s.Receive(true, 3, 8), Forward)
	at(s.Receive(false, 1, 1), Deliver)
	if step != len(v.Walk.Steps) {
		t.Errorf("%d steps", step)
	}
}
