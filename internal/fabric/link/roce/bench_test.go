// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// BenchmarkLoopback sends and receives WRITEs of 64 KiB on one goroutine, with
// everything a Link does: headers, gathering, ICRC on both sides, joining. Raw
// moves the same bytes in the same trains by the same system calls and does
// nothing else: it is the limit.
func BenchmarkLoopback(b *testing.B) {
	for _, mtu := range []int{1024, 4096} {
		b.Run(fmt.Sprintf("Link/MTU%d", mtu), func(b *testing.B) { benchLink(b, mtu, 65536, ib.WriteOnly) })
		b.Run(fmt.Sprintf("Raw/MTU%d", mtu), func(b *testing.B) { benchRaw(b, mtu) })
	}
	b.Run("Link/WRITE8", func(b *testing.B) { benchLink(b, 1024, 8, ib.WriteOnly) })
	b.Run("Allow/WRITE8", func(b *testing.B) { benchAllow(b, 1024, 8) })
	b.Run("Allow/MTU4096", func(b *testing.B) { benchAllow(b, 4096, 65536) })
}

// benchAllow is benchLink between links that are restricted to 64 prefixes, of which the peer's is in the middle.
func benchAllow(b *testing.B, mtu, size int) {
	list := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	for i := range 63 {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(96 + i), 64, 0, 0}), 16))
	}
	allow := ib.NewAddrSet(list)
	benchBetween(b, open(b, Config{Port: 16791, PeerPort: 16793, Allow: allow}),
		open(b, Config{Port: 16793, PeerPort: 16791, Allow: allow}), mtu, size, ib.WriteOnly)
}

func benchLink(b *testing.B, mtu, size int, op ib.Opcode) {
	tx, rx := pair(b)
	benchBetween(b, tx, rx, mtu, size, op)
}

func benchBetween(b *testing.B, tx, rx *Link, mtu, size int, op ib.Opcode) {
	batch := mem.NewBatch(64 << 10)
	r := pkt.Burst{Headers: wire.Headers{Opcode: op, PKey: 0xffff}, Count: packets(size, mtu), MTU: uint32(mtu),
		Path: paths[0].path, Data: mem.BytesPayload(random(size))}
	// Small messages go as a lane sends them: many per flush.
	each := max(1, 64*1024/max(size, 1024))
	b.SetBytes(int64(size * each))
	b.ReportAllocs()
	for b.Loop() {
		for range each {
			if res := tx.Send(0, &r, batch); res != mem.OK {
				b.Fatal(res)
			}
		}
		tx.Flush(0)
		for got := uint32(0); got < r.Count*uint32(each); {
			runs, _ := rx.Recv()
			for i := range runs {
				got += runs[i].Count
			}
		}
	}
	b.ReportMetric(float64(b.N*each)*float64(r.Count)/b.Elapsed().Seconds(), "packets/s")
}

func benchRaw(b *testing.B, mtu int) {
	tx, rx := pair(b)
	s, _ := tx.route(paths[0].path)
	size := mtu + wire.BTHLen + wire.ICRCLen
	per := min(maxTrain, maxTrainBytes/size)
	n := 65536 / mtu
	b.SetBytes(65536)
	b.ReportAllocs()
	for b.Loop() {
		want := 0
		for left := n; left > 0; left -= per {
			k := min(left, per)
			tx.place(s, paths[0].path, true, size)
			m := &s.msg[s.n-1]
			m.end, m.segs = m.off+k*size, k
			tx.tail += k * size
			tx.open = nil
			want += k * size
		}
		tx.Flush(0)
		for want > 0 {
			for i := range rx.in {
				h := &rx.in[i].Hdr
				h.Namelen = udpsock.NameLen
				h.SetControllen(len(rx.inMsg[i].ctrl))
			}
			k, e := udpsock.Recv(rx.recv[0].fd, rx.in[:])
			if e != 0 && e != unix.EAGAIN {
				b.Fatal(e)
			}
			for i := range k {
				want -= int(rx.in[i].N)
			}
		}
	}
}
