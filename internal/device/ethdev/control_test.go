// SPDX-License-Identifier: Apache-2.0

package ethdev_test

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/device/ethdev/ethdevtest"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

// TestControl: the device answers a command that does not exist, or that the driver did not negotiate, with an error.
func TestControl(t *testing.T) {
	w := newWorld(t, 1)
	g := w.guest(0, ethdevtest.Options{Features: mrg | mq, Control: true, Pairs: 4})
	for _, c := range []struct {
		class, command uint8
		data           []byte
		want           uint8
	}{
		{abi.ClassMQ, 0, []byte{2, 0}, 0}, {abi.ClassMQ, 0, []byte{4, 0}, 0}, {abi.ClassMQ, 0, []byte{0, 0},
			1}, {abi.ClassMQ, 0, []byte{5, 0}, 1},
		{abi.ClassMQ, 0, []byte{1}, 1}, {abi.ClassMQ, 1, []byte{1, 0}, 1},
		{abi.ClassRX, 0, []byte{1}, 1}, {abi.ClassMAC, 1, []byte{2, 0, 0, 0, 0, 1}, 1}, {abi.ClassVLAN, 0,
			[]byte{1, 0}, 1}, {abi.ClassAnnounce, 0, nil, 1},
		{abi.ClassRoCE, 0, nil, 1}, {200, 0, nil, 1}, {abi.ClassMAC, 0, make([]byte, 600), 1}, {abi.ClassMAC, 0,
			make([]byte, 4000), 1},
	} {
		if ack, err := g.Command(c.class, c.command, c.data); err != nil || ack != c.want {
			t.Errorf("%+v: ack %d, %v", c, ack, err)
		}
	}
	// Without room for an answer, and without a command.
	g.CVQ.Raw([]virtiotest.Buf{{GPA: g.Mem.Base, Len: 2}}, nil)
	g.CVQ.Raw(nil, []virtiotest.Buf{{GPA: g.Mem.Base + 1<<20, Len: 1}})
	if err := g.CVQ.Done(); err != nil {
		t.Fatal(err)
	}
	if s := w.stats(0); s.Commands != 16 || s.CommandErrors != 14 {
		t.Errorf("%d commands, %d errors", s.Commands, s.CommandErrors)
	}
	all := uint64(1<<abi.FeatureCtrlRX | 1<<abi.FeatureCtrlRXExtra | 1<<abi.FeatureCtrlMACAddr |
		1<<abi.FeatureCtrlVLAN | 1<<abi.FeatureGuestAnnounce)
	w = newWorld(t, 1)
	g = w.guest(0, ethdevtest.Options{Features: mrg | all, Control: true})
	for _, c := range []struct {
		class, command uint8
		data           []byte
		want           uint8
	}{
		{abi.ClassRX, 0, []byte{1}, 0}, {abi.ClassRX, 5, []byte{0}, 0}, {abi.ClassRX, 6, []byte{0}, 1}, {abi.ClassRX,
			0, nil, 1},
		{abi.ClassVLAN, 0, []byte{1, 0}, 0}, {abi.ClassVLAN, 1, []byte{1, 0}, 0}, {abi.ClassVLAN, 0, []byte{0, 0x10},
			1}, {abi.ClassVLAN, 2, []byte{1, 0}, 1},
		{abi.ClassAnnounce, 0, nil, 0}, {abi.ClassAnnounce, 1, nil, 1},
		{abi.ClassMAC, 0, make([]byte, 8), 0}, {abi.ClassMAC, 0, make([]byte, 7), 1}, {abi.ClassMAC, 0,
			[]byte{65, 0, 0, 0}, 1},
		{abi.ClassMAC, 0, []byte{0xff, 0xff, 0xff, 0xff}, 1}, {abi.ClassMAC, 1, []byte{3, 0, 0, 0, 0, 1},
			1}, {abi.ClassMAC, 1, []byte{2, 0, 0, 0, 0}, 1},
	} {
		if ack, err := g.Command(c.class, c.command, c.data); err != nil || ack != c.want {
			t.Errorf("%+v: ack %d, %v", c, ack, err)
		}
	}
	// The later commands of the class have a feature of their own.
	w = newWorld(t, 1)
	g = w.guest(0, ethdevtest.Options{Features: mrg | 1<<abi.FeatureCtrlRX, Control: true})
	for command := range uint8(6) {
		want := uint8(abi.AckErr)
		if command < 2 {
			want = abi.AckOK
		}
		if ack, err := g.Command(abi.ClassRX, command, []byte{1}); err != nil || ack != want {
			t.Errorf("RX command %d without CTRL_RX_EXTRA: ack %d, %v", command, ack, err)
		}
	}
}

// TestControlFraming: commands of every class are understood in whatever pieces they come, with more data than their
// structure has, and with more room than the answer needs.
func TestControlFraming(t *testing.T) {
	w := newWorld(t, 1)
	g := w.guest(0, ethdevtest.Options{Features: mrg | mq | 1<<abi.FeatureCtrlRX | 1<<abi.FeatureCtrlRXExtra |
		1<<abi.FeatureCtrlMACAddr | 1<<abi.FeatureCtrlVLAN | 1<<abi.FeatureGuestAnnounce |
		1<<abi.FeatureCtrlGuestOffloads, Control: true, Pairs: 4})
	out := g.Mem.Alloc(64, 8)
	for _, command := range [][]byte{
		{abi.ClassRX, 0, 1}, {abi.ClassRX, 1, 0}, {abi.ClassRX, 2, 1}, {abi.ClassRX, 3, 0}, {abi.ClassRX, 4, 0},
		{abi.ClassRX, 5, 0}, {abi.ClassMAC, 0, 1, 0, 0, 0, 2, 7, 0, 0, 0, 0, 1, 0, 0, 0, 3, 7, 0, 0, 0, 0},
		{abi.ClassMAC, 1, 2, 9, 9, 9, 9, 9}, {abi.ClassVLAN, 0, 1, 0}, {abi.ClassVLAN, 1, 1, 0}, {abi.ClassAnnounce, 0},
		{abi.ClassMQ, 0, 2, 0}, {abi.ClassGuestOffloads, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		whole := len(command)
		at := g.Mem.Alloc(whole+8000, 8)
		copy(g.Mem.At(at, whole), command)
		single := make([]int, whole)
		for i := range single {
			single[i] = 1
		}
		for _, read := range [][]int{{whole}, single, {1, 0, whole - 1}, {whole, 1}, {whole - 1, 8000}} {
			for _, write := range [][]int{{1}, {0, 1}, {20, 40}} {
				g.Mem.At(out, 1)[0] = 0x5a
				g.CVQ.Raw(pieces(at, read...), pieces(out, write...))
				if n, err := g.CVQ.Reap(); n != 1 || err != nil || g.Mem.At(out, 1)[0] != abi.AckOK {
					t.Errorf("% x in %v, answer in %v: %d used, ack %d, %v", command, read, write, n,
						g.Mem.At(out, 1)[0], err)
				}
			}
		}
	}
	if s := w.stats(0); s.CommandErrors != 0 {
		t.Errorf("%+v", s)
	}
}

// TestDriverAddress: the configuration space has the address that a driver set, and a driver does not begin with the
// filter of the driver before it.
func TestDriverAddress(t *testing.T) {
	const features = mrg | 1<<abi.FeatureCtrlRX | 1<<abi.FeatureCtrlMACAddr
	w := newWorld(t, 1)
	g := w.guest(0, ethdevtest.Options{Features: features, Control: true})
	mac := [6]byte{2, 9, 9, 9, 9, 9}
	if ack, err := g.Command(abi.ClassMAC, 1, mac[:]); ack != abi.AckOK || err != nil {
		t.Fatal(ack, err)
	}
	table := []byte{1, 0, 0, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0}
	if ack, err := g.Command(abi.ClassMAC, 0, table); ack != abi.AckOK || err != nil {
		t.Fatal(ack, err)
	}
	p, err := g.Get(abi.ReqGetConfig, append(abi.VUConfig{Size: abi.ConfigSize}.Append(nil),
		make([]byte, abi.ConfigSize)...))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := abi.ParseConfig(p[abi.VUConfigSize:]); err != nil || c.MAC != mac || c.Status != 1 || c.MTU != 9000 {
		t.Errorf("%+v, %v", c, err)
	}
	g.Close()
	<-w.port[0].ends
	g = w.guest(0, ethdevtest.Options{Features: features, Control: true})
	if ack, err := g.Command(abi.ClassRX, 0, []byte{0}); ack != abi.AckOK || err != nil { // filters, by an empty table
		t.Fatal(ack, err)
	}
	f := frame(60, 1)
	copy(f, []byte{2, 7, 0, 0, 0, 0})
	if w.write(0, f); w.stats(0).RxFiltered != 1 {
		t.Error("the table of another driver is in use")
	}
}

// TestGuestOffloads: a driver turns off and on what it negotiated, at any time, and nothing else. A driver to
// which bit 55 is GUEST_USO6 may name it.
func TestGuestOffloads(t *testing.T) {
	const set = 1 << abi.FeatureCtrlGuestOffloads
	offloads := func(g *ethdevtest.Guest, mask uint64) uint8 {
		t.Helper()
		ack, err := g.Command(abi.ClassGuestOffloads, 0, binary.LittleEndian.AppendUint64(nil, mask))
		if err != nil {
			t.Fatal(err)
		}
		return ack
	}
	w := newWorld(t, 1)
	takes := func() (f ether.Features) {
		w.hub.Do(func() { f = w.port[0].Takes() })
		return f
	}
	const guest = 1<<abi.FeatureGuestCsum | 1<<abi.FeatureGuestTSO4 | 1<<abi.FeatureGuestTSO6
	g := w.guest(0, ethdevtest.Options{Features: mrg | guest | set, Control: true})
	all := ether.FeatureCsum | ether.FeatureTSO4 | ether.FeatureTSO6
	if takes() != all {
		t.Errorf("takes %#x", takes())
	}
	for _, c := range []struct {
		mask uint64
		ack  uint8
		want ether.Features
	}{
		{0, 0, 0},
		{1 << abi.FeatureGuestCsum, 0, ether.FeatureCsum},
		{1<<abi.FeatureGuestCsum | 1<<abi.FeatureGuestECN, 1, ether.FeatureCsum}, // not negotiated
		{guest, 0, all},
		{guest &^ (1 << abi.FeatureGuestCsum), 0, 0}, // the other offloads need it
		{guest | roce, 1, 0},                         // not negotiated
		{guest | mrg, 1, 0},                          // not an offload
		{guest, 0, all},
	} {
		if ack := offloads(g, c.mask); ack != c.ack || takes() != c.want {
			t.Errorf("mask %#x: ack %d, takes %#x", c.mask, ack, takes())
		}
	}
	for _, c := range []struct {
		command uint8
		data    []byte
		ack     uint8
	}{{1, make([]byte, 8), 1}, {0, make([]byte, 7), 1}, {0, make([]byte, 4000), 0}} {
		if ack, err := g.Command(abi.ClassGuestOffloads, c.command, c.data); ack != c.ack || err != nil {
			t.Errorf("%+v: ack %d, %v", c, ack, err)
		}
	}
	g.Close()
	<-w.port[0].ends
	g = w.guest(0, ethdevtest.Options{Features: mrg | guest, Control: true})
	if offloads(g, 0) != abi.AckErr || takes() != all {
		t.Error("a driver that did not negotiate the command changes offloads")
	}
	g.Close()
	<-w.port[0].ends

	// A driver of a later version of virtio-net.
	h := &half{qps: 40, cqs: 30}
	w.half.Store(h)
	g = w.guest(0, ethdevtest.Options{Features: mrg | guest | set | roce, Control: true})
	for _, mask := range []uint64{guest | roce, roce, 0} {
		want := ether.Features(0)
		if mask&guest != 0 {
			want = all
		}
		if ack := offloads(g, mask); ack != 0 || takes() != want {
			t.Errorf("mask %#x: ack %d, takes %#x", mask, ack, takes())
		}
	}
	if ack := offloads(g, 1<<54|guest); ack != abi.AckErr {
		t.Error("GUEST_USO4 was not offered")
	}
}

// TestCarrierMessages: a front-end with a channel receives one message per change of the configuration space.
func TestCarrierMessages(t *testing.T) {
	w := newWorld(t, 1)
	g := w.guest(0, ethdevtest.Options{Features: mrg})
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if err := g.Do(abi.ReqSetBackendReqFD, nil, p[1]); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dev  vnic.Device
		told int
	}{
		{vnic.Device{MTU: 1500, MaxMTU: 9000, Carrier: true}, 0},
		{vnic.Device{MTU: 1500, MaxMTU: 9000}, 1},
		{vnic.Device{MTU: 1500, MaxMTU: 9000}, 0},
		{vnic.Device{MTU: 1500, MaxMTU: 1500}, 1},
		{vnic.Device{MTU: 1500, MaxMTU: 1500, Carrier: true}, 1},
	} {
		w.hub.Do(func() { w.port[0].Configure(c.dev) })
		b := make([]byte, 256)
		n, err := unix.Read(p[0], b)
		if err == unix.EAGAIN {
			n = 0
		} else if err != nil {
			t.Fatal(err)
		}
		if n != c.told*abi.VUHeaderSize {
			t.Errorf("%+v: %d octets", c.dev, n)
		}
	}
}
