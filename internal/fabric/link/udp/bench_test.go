// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk/seal"
)

// BenchmarkLoopback sends and receives packets of one length on one goroutine,
// 64 KiB at a time, with everything a trunk does. Where they are larger than
// the path they go in fragments: Limit1472 is an Ethernet underlay. Raw moves as
// many octets in trains of datagrams of that length by the same system calls and does nothing
// else: it is the limit. Beside the rate is the processor time per octet, which a busy machine changes less.
func BenchmarkLoopback(b *testing.B) {
	for _, size := range []int{30, 1060, 4178} {
		for _, limit := range []int{1472, 8972, 65000} {
			for mode := range seal.NumModes {
				b.Run(fmt.Sprintf("Trunk/%d/Limit%d/%v", size, limit, mode), func(b *testing.B) {
					benchTrunk(b,
						size, limit, mode)
				})
			}
		}
	}
	for _, size := range []int{1060, 1432, 4178} {
		b.Run(fmt.Sprintf("Raw/%d", size), func(b *testing.B) { benchRaw(b, size) })
	}
}

// spent returns the processor time of the process.
func spent(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perGB reports the processor time since a start per 10^9 of so many octets.
func perGB(b *testing.B, since time.Duration, octets int) {
	b.ReportMetric((spent(b)-since).Seconds()/(float64(octets)/1e9), "cpu-s/GB")
}

func benchTrunk(b *testing.B, size, limit int, mode seal.Mode) {
	tx, rx := pairMode(b, "127.0.0.1", mode)
	tx.peers[0].path.Store(int32(limit))
	data := random(size)
	n := max(1, min(65536/size, 1024))
	got, want := 0, 0
	deliver := func(int, []byte) { got++ }
	b.SetBytes(int64(n * size))
	b.ReportAllocs()
	since := spent(b)
	for b.Loop() {
		for range n {
			copy(tx.Reserve(0, size), data)
			tx.Commit(0, size)
		}
		tx.Flush(0)
		for want += n; got < want; {
			rx.Recv(1, deliver)
		}
	}
	perGB(b, since, got*size)
	b.ReportMetric(float64(got)/b.Elapsed().Seconds(), "packets/s")
}

func benchRaw(b *testing.B, size int) {
	tx, rx := pair(b, "127.0.0.1")
	per := min(64, 65000/size)
	n := 65536 / size
	buf := random(65536)
	var msg [8]udpsock.Message
	var iov [8]unix.Iovec
	var ctrl [8][udpsock.SegmentLen]byte
	messages := 0
	for left := n; left > 0; left -= per {
		k := min(left, per)
		h := &msg[messages].Hdr
		at := tx.peers[0].to.Load()
		h.Name, h.Namelen = &at.name[0], at.nameLen
		iov[messages].Base = &buf[0]
		iov[messages].SetLen(k * size)
		h.Iov = &iov[messages]
		h.SetIovlen(1)
		h.Control = &ctrl[messages][0]
		h.SetControllen(udpsock.PutSegment(ctrl[messages][:], 0, size))
		messages++
	}
	b.SetBytes(int64(n * size))
	b.ReportAllocs()
	since := spent(b)
	for b.Loop() {
		if k, e := udpsock.Send(tx.Link.fd[0], msg[:messages]); k != messages {
			b.Fatal(k, e)
		}
		for want := n * size; want > 0; {
			for i := range rx.in {
				h := &rx.in[i].Hdr
				h.Namelen = udpsock.NameLen
				h.SetControllen(len(rx.inMsg[i].ctrl))
			}
			k, e := udpsock.Recv(rx.Link.fd[0], rx.in[:])
			if e != 0 && e != unix.EAGAIN {
				b.Fatal(e)
			}
			for i := range k {
				want -= int(rx.in[i].N)
			}
		}
	}
	perGB(b, since, b.N*n*size)
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "packets/s")
}
