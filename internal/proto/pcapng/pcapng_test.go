// SPDX-License-Identifier: Apache-2.0

package pcapng

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
)

var seen = time.Unix(1_700_000_000, 500_000_000)

// TestFile: the octets of a file, as the format's draft has them.
func TestFile(t *testing.T) {
	var f bytes.Buffer
	w, err := NewWriter(&f, "weft", Interface{Name: "ib0", Type: LinkERF})
	if err == nil {
		err = w.Write(0, seen, []byte{1, 2, 3, 4, 5})
	}
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll("0a0d0d0a 28000000 4d3c2b1a 0100 0000 ffffffffffffffff 0400 0400 77656674 0000 0000 28000000"+
		"01000000 28000000 c500 0000 00000000 0200 0300 69623000 0900 0100 09000000 0000 0000 28000000"+
		"06000000 28000000 00000000 fe9c9717 0065f753 05000000 05000000 0102030405000000 28000000", " ", "")
	if got := hex.EncodeToString(f.Bytes()); got != want {
		t.Errorf("-want +got:\n%s", cmp.Diff(want, got))
	}
}

// TestRead: another's reader finds the packets, whatever their length, with interface and time.
func TestRead(t *testing.T) {
	var f bytes.Buffer
	w, err := NewWriter(&f, "weft", Interface{Name: "ib0", Type: LinkERF}, Interface{Name: "ib0_1_7fff",
		Type: LinkIPoIB})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 70 {
		if err := w.Write(n%2, seen.Add(time.Duration(n)), bytes.Repeat([]byte{byte(n)}, n)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := pcapgo.NewNgReader(&f, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 70 {
		data, ci, err := r.ReadPacketData()
		if err != nil || !bytes.Equal(data, bytes.Repeat([]byte{byte(n)}, n)) || ci.InterfaceIndex != n%2 ||
			!ci.Timestamp.Equal(seen.Add(time.Duration(n))) {
			t.Fatalf("packet %d: %v %x %+v", n, err, data, ci)
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("behind the last: %v", err)
	}
	for i, want := range []Interface{{Name: "ib0", Type: LinkERF}, {Name: "ib0_1_7fff", Type: LinkIPoIB}} {
		if got, err := r.Interface(i); err != nil || got.Name != want.Name || LinkType(got.LinkType) != want.Type {
			t.Errorf("interface %d: %v %+v", i, err, got)
		}
	}
}

// TestBlocks: packets that are put together elsewhere, cut, and what is missing.
func TestBlocks(t *testing.T) {
	var f bytes.Buffer
	w, err := NewWriter(&f, "weft", Interface{Name: "weft0", Type: LinkEthernet, SnapLen: 64})
	if err != nil {
		t.Fatal(err)
	}
	var blocks []byte
	for n := range 70 {
		at := len(blocks)
		blocks = AppendPacket(blocks, 0, seen.Add(time.Duration(n)), bytes.Repeat([]byte{byte(n)}, min(n, 64)), n)
		if got := len(blocks) - at; got != PacketLen(min(n, 64)) {
			t.Errorf("%d octets take %d, not %d", n, got, PacketLen(min(n, 64)))
		}
	}
	rest, n := blocks, 0
	for ; len(rest) > 0; n++ {
		var at time.Time
		var block []byte
		if block, rest, at = Next(rest); !at.Equal(seen.Add(time.Duration(n))) || len(block) != PacketLen(min(n, 64)) {
			t.Errorf("block %d of %d octets, seen at %v", n, len(block), at)
		}
	}
	if n != 70 {
		t.Errorf("%d blocks", n)
	}
	if err := errors.Join(w.Blocks(blocks), w.Statistics(0, seen, 75, 5)); err != nil {
		t.Fatal(err)
	}
	tail := hex.EncodeToString(f.Bytes()[f.Len()-52:])
	if want := "0500000034000000" + "00000000fe9c97170065f753" + "04000800" + "4b00000000000000" + "05000800" +
		"0500000000000000" + "00000000" + "34000000"; tail != want {
		t.Errorf("statistics %s, want %s", tail, want)
	}
	r, err := pcapgo.NewNgReader(&f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 70 {
		data, ci, err := r.ReadPacketData()
		if err != nil || !bytes.Equal(data, bytes.Repeat([]byte{byte(n)}, min(n, 64))) || ci.Length != n ||
			!ci.Timestamp.Equal(seen.Add(time.Duration(n))) {
			t.Fatalf("packet %d: %v %x %+v", n, err, data, ci)
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("behind the last: %v", err)
	}
	got := hex.EncodeToString(AppendCut(nil, seen, []byte{1, 2, 3}, 300))
	if want := "00000080" + "00f15365" + "15" + "04" + "0013" + "0000" + "012c" + "010203"; got != want {
		t.Errorf("cut: %s, want %s", got, want)
	}
}

func TestRecords(t *testing.T) {
	got := hex.EncodeToString(AppendNative([]byte{0xa5}, seen, []byte{1, 2, 3}))
	if want := "a5" + "00000080" + "00f15365" + "15" + "04" + "0013" + "0000" + "0003" + "010203"; got != want {
		t.Errorf("native: %s, want %s", got, want)
	}
	long := AppendNative(nil, seen, make([]byte, 1<<17))
	if len(long) != 1<<16-1 || long[10] != 0xff || long[11] != 0xff {
		t.Errorf("a long one: %d octets", len(long))
	}
	src := wire.MakeHWAddr(0x80, 0x123456, ib.MakeGID(ib.DefaultGIDPrefix, 1))
	dst := wire.MakeHWAddr(0, 0x654321, ib.MakeGID(ib.DefaultGIDPrefix, 2))
	got = hex.EncodeToString(AppendIPoIB(nil, src, dst, []byte{8, 0, 0, 0, 0x45}))
	if want := "60000000" + "00123456" + "fe800000000000000000000000000001" + "fe800000000000000000000000000002" +
		"0800000045"; got != want {
		t.Errorf("IPoIB: %s, want %s", got, want)
	}
}

// full is a writer without room.
type full struct{ room int }

func (f *full) Write(b []byte) (int, error) {
	if f.room--; f.room < 0 {
		return 0, errors.New("no room")
	}
	return len(b), nil
}

func TestFaults(t *testing.T) {
	for room := range 2 {
		if _, err := NewWriter(&full{room}, "", Interface{}); err == nil {
			t.Errorf("room for %d blocks: no error", room)
		}
	}
	w, err := NewWriter(&full{2}, "", Interface{})
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"writing": w.Write(0, seen, nil), "interface": w.Write(1, seen, nil),
		"below": w.Write(-1, seen, nil), "time": w.Write(0, time.Unix(-1, 0), nil)} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestNoAllocation: a busy link is captured without memory per packet.
func TestNoAllocation(t *testing.T) {
	w, err := NewWriter(io.Discard, "weft", Interface{Name: "ib0", Type: LinkERF})
	if err != nil {
		t.Fatal(err)
	}
	packet, record := make([]byte, 4096), make([]byte, 0, 5000)
	if n := testing.AllocsPerRun(100, func() {
		record = AppendNative(record[:0], seen, packet)
		if err := w.Write(0, seen, record); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}
