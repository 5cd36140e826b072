// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/control/api"
	"weft/internal/control/fabricfile"
	"weft/internal/mgmt/contact"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/problem"
)

func empty() manager.Desired {
	return manager.Desired{Intent: manager.Intent{Version: manager.IntentVersion},
		Ethernet: em.Intent{FabricID: manager.DefaultFabricID}}
}

// random makes a valid configuration.
func random(r *rand.Rand) manager.Desired {
	d := empty()
	guid := func() ib.GUID { return ib.GUID(0x0200000000000000 | r.Uint64()>>8) }
	port := func() ib.GUID { return ib.GUID(0x0200000000010000 + r.Uint64N(20)) }
	names := []string{"red", "blue", "7", "true", "null", "a: b", "#x", "größe", "ALL", "~", "0x1", " b ", "'", "\"",
		"-"}
	d.Subnet.Engine = []string{"", "minhop", "updn", "ftree,updn"}[r.IntN(4)]
	if strings.Contains(d.Subnet.Engine, "updn") && r.IntN(2) == 0 {
		d.Subnet.Roots = []ib.GUID{guid(), guid()}
	}
	d.Subnet.MKeyProtect = uint8(r.IntN(4))
	if r.IntN(2) == 0 {
		d.Subnet.MKeyLease = uint16(15 + r.IntN(1000))
	}
	for k := range r.IntN(6) {
		p := sm.Partition{Name: names[r.IntN(len(names))], PKey: 0x8001 + ib.PKey(k*0x111),
			All: sm.Membership(r.IntN(3)), Apart: r.IntN(5) == 0}
		if k == 5 {
			p.PKey = 0xffff
		}
		seen := map[ib.GUID]bool{}
		for range r.IntN(5) {
			if g := port(); !seen[g] {
				seen[g] = true
				p.Members = append(p.Members, sm.Member{PortGUID: g, As: sm.Limited + sm.Membership(r.IntN(2))})
			}
		}
		d.Subnet.Partitions = append(d.Subnet.Partitions, p)
	}
	e := &d.Ethernet
	e.FabricID, e.ByteIDs = uint16(r.IntN(em.MaxFabricID+1)), r.IntN(3) == 0
	for k := range r.IntN(4) {
		v := em.VESW{Name: fmt.Sprintf("%d.lab-%d", k, r.IntN(9)), ID: uint16(1 + k*7), Flood: r.IntN(2) == 0,
			NoUserMACs: r.IntN(2) == 0, MaxMACs: uint16(r.IntN(3) * 100), SL: uint8(r.IntN(15)), MTU: uint16(r.IntN(2) * 9000)}
		if r.IntN(2) == 0 {
			v.PKey = 0x8001 + ib.PKey(r.IntN(3))
		}
		if r.IntN(2) == 0 {
			v.PCP = &[8]uint8{0, 1, 2, 3, 4, 5, 6, uint8(r.IntN(15))}
		}
		seen := map[ib.GUID]bool{}
		for n := range r.IntN(4) {
			if g := port(); !seen[g] {
				seen[g] = true
				v.Members = append(v.Members, em.Member{Port: g, Index: uint8(k), Num: uint32(9 - n), Gateway: n == 1})
			}
		}
		e.VESWs = append(e.VESWs, v)
	}
	for k := range r.IntN(4) {
		g := sa.Group{MGID: ib.GID{0xff, 0x12, 0x40, 0x1b, 15: byte(k)}, PKey: 0x8000 | ib.PKey(1+r.IntN(9)),
			QKey: ib.QKey(r.Uint32() * uint32(r.IntN(2))), MTU: ib.MTU256 + ib.MTU(r.IntN(5)), Rate: ib.Rate10}
		seen := map[ib.GUID]bool{}
		for range r.IntN(3) {
			if p := port(); !seen[p] {
				seen[p] = true
				g.Members = append(g.Members, sa.Member{PortGUID: p, JoinState: mad.JoinFull})
			}
		}
		d.Groups = append(d.Groups, g)
	}
	return d
}

// TestExportApply: what is exported, read, and applied to an empty fabric is exported as the same octets, and is the
// same configuration; the next apply changes nothing. From any other configuration it leads to the same.
func TestExportApply(t *testing.T) {
	n, ctx := New(Config{}), context.Background()
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		d := random(r)
		if err := d.Validate(); err != nil {
			t.Fatalf("seed %d: the test makes what is not valid: %v", seed, err)
		}
		text := fabricfile.Encode(describeDesired(&d))
		want, err := fabricfile.Decode(text)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		for _, from := range []manager.Desired{empty(), d.Clone(), random(r)} {
			got := from.Clone()
			if err := (configuration{n}).desire(ctx, &want, &got, nil); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			if err := got.Validate(); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			if diff := cmp.Diff(string(text), string(fabricfile.Encode(describeDesired(&got)))); diff != "" {
				t.Fatalf("seed %d:\n%s", seed, diff)
			}
			got.Ethernet.LastID = d.Ethernet.LastID
			if diff := cmp.Diff(d, got); diff != "" {
				t.Fatalf("seed %d:\n%s", seed, diff)
			}
			if list := compare(&d, &got, nil); len(list) != 0 {
				t.Fatalf("seed %d: %+v", seed, list)
			}
		}
	}
}

// TestApplyChooses: what a file leaves out is kept, or chosen.
func TestApplyChooses(t *testing.T) {
	n, ctx := New(Config{}), context.Background()
	d := empty()
	if err := d.Ethernet.Create(em.VESW{Name: "old", ID: 9}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Ethernet.Add("old", 5, 3, false); err != nil {
		t.Fatal(err)
	}
	want := api.Desired{VESWs: []api.DesiredVESW{{Name: "new",
		Ports: []api.DesiredVESWPort{{Port: "0x5"}, {Port: "0x6"}}},
		{Name: "old", Ports: []api.DesiredVESWPort{{Port: "0x5", Gateway: true}}}}}
	if err := (configuration{n}).desire(ctx, &want, &d, nil); err != nil {
		t.Fatal(err)
	}
	v, old := d.Ethernet.Find("new"), d.Ethernet.Find("old")
	if v.ID != 10 || old.ID != 9 || d.Ethernet.LastID != 10 || d.Ethernet.FabricID != manager.DefaultFabricID {
		t.Errorf("ids: %+v", d.Ethernet)
	}
	if diff := cmp.Diff([]em.Member{{Port: 5, Index: 3, Num: 1, Gateway: true}}, old.Members); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]em.Member{{Port: 5, Index: 0, Num: 1}, {Port: 6, Index: 0, Num: 2}}, v.Members); diff != "" {
		t.Error(diff)
	}
}

// TestApplyRefuses: each mistake is refused with its line.
func TestApplyRefuses(t *testing.T) {
	n := New(Config{DevicePort: func(string) (ib.GUID, bool) { return 0, false }})
	for _, x := range []struct{ text, want string }{
		{"partitions:\n  - pkey: red\n",
			`line 2: a P_Key is a number of 0x0001 to 0x7fff, with or without the bit 0x8000, not "red"`},
		{"partitions:\n  - name: a\n",
			`line 2: a P_Key is a number of 0x0001 to 0x7fff, with or without the bit 0x8000, not ""`},
		{"partitions:\n  - pkey: 8001\n", "line 2: the P_Key 8001 may be decimal or hexadecimal: write 0x before it"},
		{"partitions:\n  - pkey: 0x8000\n",
			`line 2: a P_Key is a number of 0x0001 to 0x7fff, with or without the bit 0x8000, not "0x8000"`},
		{"partitions:\n  - pkey: 0x1\n\n  - pkey: 0x8001\n", "line 4: partition 0x8001 is there twice: also in line 2"},
		{"partitions:\n  - pkey: 0x1\n    members: [weft_ib7]\n",
			`line 2: "weft_ib7" is no GUID, and this node has no such InfiniBand device`},
		{"partitions:\n  - pkey: 0x1\n    members: [weft_ib7@h]\n",
			`line 2: this node does not know the devices of others: "weft_ib7@h"`},
		{"partitions:\n  - pkey: 0x1\n    members: [0x5=some]\n",
			`line 2: partition 0x8001: a member is full or limited, not "some"`},
		{"partitions:\n  - pkey: 0x1\n    members: [0x5, 0x05]\n",
			"line 2: partition 0x8001: port 0x05 is a member twice"},
		{"partitions:\n  - pkey: 0x1\n    members: [ALL, ALL]\n", "line 2: partition 0x8001: ALL is a member twice"},
		{"subnet:\n  routing: best\n", `line 2: engine "best": there is no such one`},
		{"subnet:\n  roots: [0x5]\n", `line 2: roots are for the engine updn, which the routing "" does not name`},
		{"subnet:\n  m_key_protect: 4\n", "line 2: m_key_protect 4: want 0 to 3"},
		{"subnet:\n  m_key_lease_s: 1\n", "line 2: m_key_lease_s 1: want 15 to 65535"},
		{"ethernet:\n  fabric_id: 1024\n", "line 2: fabric_id 1024: want 0 to 1023"},
		{"vesws:\n  - name: a\n  - name: a\n", "line 3: vesw a is there twice: also in line 2"},
		{"vesws:\n  - name: a/b\n",
			`line 2: vesw a/b: the name "a/b": want 1 to 64 letters, digits, dots, dashes and underscores`},
		{"vesws:\n  - name: a\n    mtu: 5\n", "line 2: vesw a: MTU 5: want 68 to 10222"},
		{"vesws:\n  - name: a\n    id: 70000\n", "line 2: vesw a: id: 70000 is out of range"},
		{"vesws:\n  - name: a\n    pcp: [1]\n", "line 2: vesw a: 1 service levels by priority: want 8"},
		{"vesws:\n  - name: a\n    ports:\n      - port: 0x5\n      - port: 0x5\n",
			"line 5: vesw a: port 0x5 is there twice"},
		{"vesws:\n  - name: a\n    ports:\n      - port: 0x5\n        vport: 255\n",
			"line 4: vesw a: port 0x5: vport 0 to 254, number 1 to 4096"},
		{"vesws:\n  - name: a\n    ports:\n      - {port: 0x5, vport: 0, number: 1}\n      - {port: 0x6, vport: 0, number: 1}\n",
			"line 5: vesw a: port 0x6: the number 1 is another's"},
		{"vesws:\n  - name: a\n    ports:\n      - {port: 0x5, vport: 0, number: 1}\n  - name: b\n    ports:\n" +
			"      - {port: 0x5, vport: 0, number: 1}\n", "line 7: vesw b: vport 0 of port 0x5 is in a"},
		{"groups:\n  - mgid: 10.0.0.1\n",
			`line 2: an MGID is a multicast address such as ff12:401b:ffff::1, not "10.0.0.1"`},
		{"groups:\n  - mgid: ff12::1\n    mtu: 7\n", "line 2: the MTU must be 256, 512, 1024, 2048 or 4096, not 7"},
		{"groups:\n  - mgid: ff12::1\n    qkey: 5\n",
			`line 2: a Q_Key is a number of 32 bits with 0x before it, not "5"`},
		{"groups:\n  - mgid: ff12::1\n  - mgid: ff12:0::1\n", "line 3: group ff12:0::1 is there twice"},
		{"groups:\n  - mgid: ff12::1\n    members: [0x5, 0x5]\n",
			"line 2: group ff12::1: port 0000:0000:0000:0005 is a member twice"},
		{"vesws:\n  - {name: a, id: 5}\npartitions:\n  - pkey: 0xc005\n",
			"line 4: partition 0xc005 is the one that the virtual Ethernet switch a has for itself"},
	} {
		want, err := fabricfile.Decode([]byte(x.text))
		if err != nil {
			t.Errorf("%q: %v", x.text, err)
			continue
		}
		d := empty()
		err = configuration{n}.desire(context.Background(), &want, &d, nil)
		if err == nil {
			t.Errorf("%q is accepted", x.text)
		} else if why := problem.Of("", err).Why; !strings.HasPrefix(why, x.want) {
			t.Errorf("%q:\n got %s\nwant %s", x.text, why, x.want)
		}
	}
}

// TestRefuseLoss: a loss is refused with its lines, at most ten, unless the request confirms it, or exactly it.
func TestRefuseLoss(t *testing.T) {
	ctx := context.Background()
	if err := refuseLoss(ctx, nil); err != nil {
		t.Error(err)
	}
	var list, fewer contact.Losses
	for p := range ib.GUID(12) {
		l := contact.Loss{Port: p + 1, By: "vesw lab"}
		for q := range 5 + p%2 {
			l.With = append(l.With, 100+q)
		}
		if list.Add(l); p < 11 {
			fewer.Add(l)
		}
	}
	err := refuseLoss(ctx, describeLost(&list, nil))
	e, ok := err.(*api.Error)
	if !ok || e.Code != api.CodeContact || e.Lost.Pairs != 66 || len(e.Lost.Lines) != api.LostLines ||
		e.Lost.More != 2 {
		t.Fatalf("%+v", err)
	}
	if want := "0000:0000:0000:0001: 0000:0000:0000:0064, 0000:0000:0000:0065, 0000:0000:0000:0066, 2 more, in vesw lab"; e.Lost.
		Lines[0] != want {
		t.Errorf("a line is %q", e.Lost.Lines[0])
	}
	if !strings.HasSuffix(e.Why, "; and 9 more") {
		t.Errorf("why: %s", e.Why)
	}
	for _, c := range []string{api.ConfirmAll, e.Lost.Digest} {
		if err := refuseLoss(api.Confirm(ctx, c), describeLost(&list, nil)); err != nil {
			t.Errorf("confirmed by %q: %v", c, err)
		}
	}
	if err := refuseLoss(api.Confirm(ctx, e.Lost.Digest), describeLost(&fewer, nil)); err == nil {
		t.Error("another loss is confirmed")
	}
}

// TestUnknownPorts: a node that does not know the subnet's ports does not take the first partition for harmless.
func TestUnknownPorts(t *testing.T) {
	before, after := empty(), empty()
	after.Subnet.Partitions = []sm.Partition{{Name: "red", PKey: 0x8001}}
	unknown := func() *contact.Losses {
		t.Helper()
		l, err := lostBy(t.Context(), &before, &after, nil)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := unknown(); l.Count() != 1 || l.List[0].Port != unnamed {
		t.Errorf("%+v", l.List)
	}
	after.Subnet.Partitions[0].Apart = true
	if l := unknown(); l.Count() != 0 {
		t.Errorf("%+v", l.List)
	}
}
