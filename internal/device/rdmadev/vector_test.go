// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

type vector struct {
	ID, Kind string
	Command  abi.Cmd
	Ack      byte
	ToDevice string `json:"driver_to_device_hex"`
	ToDriver string `json:"device_to_driver_hex"`
}

func vectors(t testing.TB, kinds ...string) (list []vector) {
	t.Helper()
	raw, err := os.ReadFile("../../../test/vectors/virtio-roce.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	for _, v := range file.Vectors {
		for _, k := range kinds {
			if v.Kind == k {
				list = append(list, v)
			}
		}
	}
	if len(list) == 0 {
		t.Fatal("no vectors")
	}
	return list
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// prepare brings a fresh device into the state that a vector supposes.
func prepare(d *driver, id string) {
	pdCQs := func(n int) (uint32, []*cq) {
		pd := d.pd()
		var list []*cq
		for range n {
			list = append(list, d.cq(64))
		}
		return pd, list
	}
	twoQP := func() *qp {
		pd, c := pdCQs(2)
		return d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c[0], rcq: c[1], cap: abi.QPCap{MaxSendWR: 128, MaxRecvWR: 256,
			MaxSendSGE: 4, MaxRecvSGE: 2, MaxInlineData: 512}})
	}
	before := func(ids ...string) {
		q := twoQP()
		if q.num != 2 {
			d.t.Fatalf("first queue pair is %d", q.num)
		}
		for _, v := range vectors(d.t, "ctrl") {
			for _, id := range ids {
				if v.ID == id {
					if out := d.exec(unhex(d.t, v.ToDevice), 1); !bytes.Equal(out, []byte{0}) {
						d.t.Fatalf("%s: %x", id, out)
					}
				}
			}
		}
	}
	switch id {
	case "destroy-cq-1":
		d.cq(1)
	case "destroy-pd-1", "get-dma-mr-1", "create-ah-1":
		d.pd()
	case "reg-user-mr-1":
		d.must(abi.CmdGetDMAMR, abi.GetDMAMR{PDN: d.pd(), AccessFlags: 1}.Append(nil), abi.MRResultSize)
	case "dereg-mr-1":
		pd := d.pd()
		for range 2 {
			d.must(abi.CmdGetDMAMR, abi.GetDMAMR{PDN: pd, AccessFlags: 1}.Append(nil), abi.MRResultSize)
		}
	case "create-qp-rc-1", "req-notify-1", "req-notify-2":
		pdCQs(2)
	case "create-qp-gsi-1":
		pdCQs(1)
	case "create-qp-ud-1":
		pd, c := pdCQs(4)
		d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c[0], rcq: c[1]})
	case "modify-qp-init-1", "destroy-qp-1", "modify-qp-bad-1":
		twoQP()
	case "modify-qp-rtr-1":
		before("modify-qp-init-1")
	case "modify-qp-rts-1":
		before("modify-qp-init-1", "modify-qp-rtr-1")
	case "query-qp-1":
		before("modify-qp-init-1", "modify-qp-rtr-1", "modify-qp-rts-1")
	case "destroy-ah-1":
		d.ah(d.pd())
	case "err-create-pd-exhausted":
		for range d.f.adapter.Limits().PD {
			d.pd()
		}
	}
}

// own are the vectors with an implementation-specific reply: own attributes, random keys.
var own = map[string]func(t *testing.T, d *driver, got []byte){
	"query-device-1": func(t *testing.T, d *driver, got []byte) {
		r := parse(d, got[1:], abi.ParseQueryDeviceResult)
		l := d.f.adapter.Limits()
		r.DeviceCapFlags &= 1<<40 - 1 // beyond are extensions
		want := abi.QueryDeviceResult{DeviceCapFlags: 1, MaxMRSize: 1<<64 - 1, PageSizeCap: 0xfffff000, HWVer: 1,
			MaxQPWR:    l.QPWR,
			MaxSendSGE: l.SGE, MaxRecvSGE: l.SGE, MaxSGERd: l.SGE, MaxCQE: l.CQE, MaxMR: l.MR, MaxPD: l.PD, MaxQPRdAtom: 128,
			MaxQPInitRdAtom: 128, MaxAH: l.AH, LocalCAAckDelay: 15}
		if r != want {
			t.Errorf("got  %+v\nwant %+v", r, want)
		}
	},
	"query-port-1": func(t *testing.T, d *driver, got []byte) {
		if r := parse(d, got[1:], abi.ParseQueryPortResult); r != (abi.QueryPortResult{GIDTblLen: 256,
			MaxMsgSz: 1 << 31}) {
			t.Errorf("%+v", r)
		}
	},
	"get-dma-mr-1": func(t *testing.T, d *driver, got []byte) {
		if r := parse(d, got[1:], abi.ParseMRResult); r.MRN != 1 || r.LKey == 0 || r.RKey != 0 {
			t.Errorf("%+v", r)
		}
	},
	// The vector's pair has moved data already: its PSNs stand elsewhere.
	"query-qp-1": func(t *testing.T, d *driver, got []byte) {
		for _, v := range vectors(t, "ctrl") {
			if v.ID == "query-qp-1" {
				want := unhex(t, v.ToDriver)
				copy(want[1+20:], []byte{0x56, 0x34, 0x12, 0, 0xef, 0xcd, 0xab, 0})
				if !bytes.Equal(got, want) {
					t.Errorf("\ngot  %x\nwant %x", got, want)
				}
			}
		}
	},
	"reg-user-mr-1": func(t *testing.T, d *driver, got []byte) {
		if r := parse(d, got[1:], abi.ParseMRResult); r.MRN != 2 || r.LKey == 0 || r.RKey == 0 {
			t.Errorf("%+v", r)
		}
	},
}

// notHere are the vectors of what this device refuses, and must refuse
// cleanly: it has no general services queue pair, and its only addresses are
// those of the host.
var notHere = map[string]bool{"create-qp-gsi-1": true, "add-gid-2": true}

func TestVectors(t *testing.T) {
	for _, v := range vectors(t, "ctrl", "ctrl-error") {
		t.Run(v.ID, func(t *testing.T) {
			d := newFabric(t).newDriver(false, 4<<20)
			prepare(d, v.ID)
			in, want := unhex(t, v.ToDevice), unhex(t, v.ToDriver)
			if notHere[v.ID] {
				want = []byte{abi.AckErr}
			}
			// More room than needed: the rest must stay untouched (exec checks).
			got := d.exec(in, max(len(want), 200))
			if check := own[v.ID]; check != nil {
				if len(got) != len(want) || got[0] != 0 {
					t.Fatalf("answer of %d bytes %x, want %d", len(got), got, len(want))
				}
				check(t, d, got)
			} else if !bytes.Equal(got, want) {
				t.Errorf("\ngot  %x\nwant %x", got, want)
			}
		})
	}
}

// TestShortCommands cuts every command of the vectors at every length, and
// every answer's room: each is refused and nothing happens.
func TestShortCommands(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		for _, v := range vectors(t, "ctrl") {
			if notHere[v.ID] {
				continue
			}
			d := newFabric(t).newDriver(verbs, 4<<20)
			prepare(d, v.ID)
			in, out := unhex(t, v.ToDevice), unhex(t, v.ToDriver)
			before := d.dev.Session().Inspect()
			for n := range len(in) {
				if got := d.exec(in[:n], 200); len(got) != 1 || got[0] == 0 {
					t.Errorf("%s cut to %d bytes: %x", v.ID, n, got)
				}
			}
			for n := range len(out) {
				got := d.exec(in, n)
				if n == 0 && len(got) != 0 || n > 0 && (len(got) != 1 || got[0] == 0) {
					t.Errorf("%s with room for %d bytes: %x", v.ID, n, got)
				}
			}
			after := d.dev.Session().Inspect()
			if len(before.QPs) != len(after.QPs) || len(before.CQs) != len(after.CQs) ||
				len(before.MRs) != len(after.MRs) ||
				len(before.PDs) != len(after.PDs) || len(before.AHs) != len(after.AHs) {
				t.Errorf("%s: refused commands had effects", v.ID)
			}
			if len(before.QPs) > 0 && before.QPs[0].Attr.State != after.QPs[0].Attr.State {
				t.Errorf("%s: a refused command changed a state", v.ID)
			}
			if got := d.exec(append(in, 1, 2, 3), 200); v.ID != "reg-user-mr-1" && got[0] != v.Ack &&
				!(verbs && got[0] != 0 && v.Ack != 0) && !rfcOnly(v.Command) {
				t.Errorf("%s with a tail: %x", v.ID, got)
			}
		}
	})
}

// rfcOnly are the commands that a program's session refuses, because its GID
// table is the port's.
func rfcOnly(c abi.Cmd) bool { return c == abi.CmdAddGID || c == abi.CmdDelGID }

// padding are the bytes of a request that mean nothing to a plain device; the
// Linux driver leaves in them what was there before.
var padding = map[abi.Cmd][][2]int{
	abi.CmdRegUserMR: {{28, 32}},
	abi.CmdCreateQP:  {{6, 8}, {36, 40}, {40, 56}},
	abi.CmdModifyQP:  {{17, 24}, {68, 72}, {95, 96}, {102, 112}, {112, 128}},
	abi.CmdCreateAH:  {{4, 8}, {31, 32}, {38, 48}},
	abi.CmdAddGID:    {{2, 8}},
}

func TestPaddingIsIgnored(t *testing.T) {
	for _, v := range vectors(t, "ctrl") {
		if padding[v.Command] == nil || notHere[v.ID] {
			continue
		}
		d := newFabric(t).newDriver(false, 4<<20)
		prepare(d, v.ID)
		in := unhex(t, v.ToDevice)
		for _, p := range padding[v.Command] {
			for i := p[0]; i < p[1]; i++ {
				in[2+i] = 0xa5
			}
		}
		if got := d.exec(in, 200); got[0] != v.Ack {
			t.Errorf("%s with garbage in its padding: %x", v.ID, got)
		}
	}
}
