// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
)

// known are the requests that the fuzzer prefers.
var known = []uint32{abi.ReqGetFeatures, abi.ReqSetFeatures, abi.ReqSetOwner, abi.ReqResetOwner, abi.ReqSetMemTable,
	abi.ReqSetVringNum, abi.ReqSetVringAddr, abi.ReqSetVringBase, abi.ReqGetVringBase, abi.ReqSetVringKick, abi.ReqSetVringCall,
	abi.ReqSetVringErr, abi.ReqGetProtocolFeatures, abi.ReqSetProtocolFeatures, abi.ReqGetQueueNum, abi.ReqSetVringEnable,
	abi.ReqGetConfig, abi.ReqSetConfig, abi.ReqResetDevice, abi.ReqGetMaxMemSlots, abi.ReqAddMemReg, abi.ReqRemMemReg,
	abi.ReqSetStatus, abi.ReqGetStatus, abi.ReqHello, abi.ReqSetDoorbell, abi.ReqSetRing, abi.ReqStopRing, abi.ReqProcMem,
	abi.ReqSetLogBase, abi.ReqSetLogFD, abi.ReqSendRARP, abi.ReqNetSetMTU,
	abi.ReqSetBackendReqFD}

// sizes are the payload lengths that are right for known.
var sizes = []int{0, 8, 0, 0, 8 + 32, 8, 40, 8, 8, 8, 8, 8, 0, 8, 0, 8, 12 + 8, 12 + 8, 0, 0, 40, 40, 8, 0, 16, 16,
	48, 8, 16, 16, 0, 8, 8, 0}

// writer makes a script of messages, as FuzzMessages reads it.
type writer []byte

func (w *writer) add(request uint32, flags byte, fds []byte, payload []byte) {
	*w = append(*w, byte(slices.Index(known, request)), flags, byte(len(fds)))
	*w = append(append(*w, fds...), byte(len(payload)))
	*w = append(*w, payload...)
}

// Kinds of descriptors a script may attach.
const (
	fdEvent = iota
	fdMem
	fdPipe
	fdProcMem
	fdNull
	fdSocket
	fdKinds
)

// fixed is where scripts find their memory: the fuzzer's file is announced
// there by the seeds, so that mutations stay meaningful.
const fixed = 1 << 32

func seeds() (list []writer) {
	start := func(weft bool) writer {
		var w writer
		proto := uint64(1<<abi.ProtoReplyAck | 1<<abi.ProtoStatus)
		if weft {
			w.add(abi.ReqHello, 1, nil, abi.Hello{ABI: 1}.Append(nil))
			proto |= 1 << abi.ProtoWeft
		}
		w.add(abi.ReqSetProtocolFeatures, 9, nil, vhosttest.U64(proto))
		w.add(abi.ReqSetFeatures, 9, nil, vhosttest.U64(1<<32|1<<55|1<<17|1<<30))
		w.add(abi.ReqSetStatus, 9, nil, vhosttest.U64(0xb))
		w.add(abi.ReqAddMemReg, 9, []byte{fdMem}, abi.VUMemReg{GPA: fixed, Size: 1 << 16, UserAddr: fixed}.Append(nil))
		return w
	}
	std := start(false)
	std.add(abi.ReqSetVringNum, 9, nil, put(2, 4))
	std.add(abi.ReqSetVringBase, 9, nil, put(2, 0))
	std.add(abi.ReqSetVringAddr, 9, nil, abi.VUVringAddr{Index: 2, Desc: fixed, Avail: fixed + 256,
		Used: fixed + 512}.Append(nil))
	std.add(abi.ReqSetVringCall, 9, []byte{fdPipe}, vhosttest.U64(2))
	std.add(abi.ReqSetVringErr, 9, []byte{fdEvent}, vhosttest.U64(2))
	std.add(abi.ReqSetVringKick, 9, []byte{fdEvent}, vhosttest.U64(2))
	std.add(abi.ReqSetVringEnable, 9, nil, put(2, 1))
	stop := slices.Clone(std)
	stop.add(abi.ReqGetVringBase, 1, nil, put(2, 0))
	stop.add(abi.ReqSetVringKick, 9, []byte{fdEvent}, vhosttest.U64(2))
	stop.add(abi.ReqRemMemReg, 9, nil, abi.VUMemReg{GPA: fixed, Size: 1 << 16, UserAddr: fixed}.Append(nil))
	stop.add(abi.ReqResetDevice, 9, nil, nil)
	table := slices.Clone(std)
	table.add(abi.ReqSetMemTable, 9, []byte{fdMem}, append(put(1, 0), abi.VUMemReg{GPA: fixed, Size: 1 << 12,
		UserAddr: fixed}.Append(nil)[8:]...))
	table.add(abi.ReqGetConfig, 1, nil, append(put(24, 8, 0), make([]byte, 8)...))
	weft := start(true)
	weft.add(abi.ReqSetDoorbell, 9, []byte{fdEvent}, abi.SetDoorbell{GPA: fixed + 4096, NBits: 64}.Append(nil))
	weft.add(abi.ReqProcMem, 9, []byte{fdProcMem}, abi.ProcMem{}.Append(nil))
	weft.add(abi.ReqSetRing, 9, []byte{fdPipe}, abi.SetRing{Index: 2, Num: 4, Desc: fixed, Avail: fixed + 256,
		Used: fixed + 512, CallValue: 9, Flags: 1}.Append(nil))
	weft.add(abi.ReqSetRing, 9, nil, abi.SetRing{Index: 11, Num: 4, Desc: fixed + 1024, Avail: fixed + 1280,
		Used: fixed + 1536}.Append(nil))
	weft.add(abi.ReqStopRing, 9, nil, put(2, 0))
	weft.add(abi.ReqSetStatus, 9, nil, vhosttest.U64(0))
	log := start(false)
	log.add(abi.ReqSetProtocolFeatures, 9, nil,
		vhosttest.U64(1<<abi.ProtoReplyAck|1<<abi.ProtoLogShmFD|1<<abi.ProtoRARP|1<<abi.ProtoMTU))
	log.add(abi.ReqSetLogBase, 9, []byte{fdMem}, append(vhosttest.U64(1<<12), vhosttest.U64(64)...))
	log.add(abi.ReqSetFeatures, 9, nil, vhosttest.U64(1<<32|1<<55|1<<17|1<<30|1<<abi.FeatureLogAll))
	log.add(abi.ReqSetLogBase, 9, []byte{fdMem}, append(vhosttest.U64(1<<10), vhosttest.U64(0)...))
	log.add(abi.ReqSetLogFD, 9, []byte{fdEvent}, nil)
	log.add(abi.ReqSendRARP, 9, nil, vhosttest.U64(2))
	log.add(abi.ReqNetSetMTU, 9, nil, vhosttest.U64(1500))
	packed := start(false)
	packed.add(abi.ReqSetFeatures, 9, nil, vhosttest.U64(1<<32|1<<55|1<<17|1<<30|1<<abi.FeaturePacked))
	packed.add(abi.ReqSetVringNum, 9, nil, put(2, 3))
	packed.add(abi.ReqSetVringBase, 9, nil, put(2, 0x80008000))
	packed.add(abi.ReqSetVringAddr, 9, nil, abi.VUVringAddr{Index: 2, Desc: fixed, Avail: fixed + 256,
		Used: fixed + 512}.Append(nil))
	packed.add(abi.ReqSetVringKick, 9, []byte{fdEvent}, vhosttest.U64(2))
	packed.add(abi.ReqSetVringEnable, 9, nil, put(2, 1))
	packed.add(abi.ReqGetVringBase, 1, nil, put(2, 0))
	channel := start(false)
	channel.add(abi.ReqSetProtocolFeatures, 9, nil, vhosttest.U64(1<<abi.ProtoReplyAck|1<<abi.ProtoBackendReq))
	channel.add(abi.ReqSetBackendReqFD, 9, []byte{fdSocket}, nil)
	channel.add(abi.ReqSetBackendReqFD, 9, []byte{fdSocket}, nil)
	channel.add(abi.ReqSetVringNum, 9, nil, put(2, 4))
	channel.add(abi.ReqSetVringAddr, 9, nil, abi.VUVringAddr{Index: 2, Desc: fixed, Avail: fixed + 256,
		Used: fixed + 512}.Append(nil))
	channel.add(abi.ReqSetVringKick, 9, []byte{fdEvent}, vhosttest.U64(2))
	channel.add(abi.ReqRemMemReg, 9, nil, abi.VUMemReg{GPA: fixed, Size: 1 << 16, UserAddr: fixed}.Append(nil))
	channel.add(abi.ReqSetBackendReqFD, 9, []byte{fdPipe}, nil)
	return []writer{std, stop, table, weft, log, packed, channel}
}

// FuzzMessages sends any sequence of messages with any descriptors. Whatever
// happens, the session ends when the front-end leaves, for a reason that has a
// name; nothing it had stays behind; and the socket serves the next one.
func FuzzMessages(f *testing.F) {
	for _, w := range seeds() {
		f.Add([]byte(w))
	}
	f.Add([]byte{})
	socket := newSocket(f)
	m := virtiotest.NewMemory(f, 1<<16)
	proc, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		f.Fatal(err)
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		f.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		f.Fatal(err)
	}
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		proc.Close()
		null.Close()
		unix.Close(sockets[0])
		unix.Close(sockets[1])
		unix.Close(pipe[0])
		unix.Close(pipe[1])
	})
	kinds := [fdKinds]int{fdEvent: vhosttest.Eventfd(f), fdMem: m.FD, fdPipe: pipe[1], fdProcMem: int(proc.Fd()),
		fdNull: int(null.Fd()), fdSocket: sockets[0]}
	// The runtime opens descriptors of its own at the first connection.
	first, _ := vhosttest.Dial(socket.path)
	first.Close()
	socket.settled(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		before := descriptors(t)
		c, err := vhosttest.Dial(socket.path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Conn.SetDeadline(time.Now().Add(vhosttest.Limit)); err != nil {
			t.Fatal(err)
		}
		clear(m.Bytes)
		// The lane looks at ring 2 and the doorbell: let there be something.
		binary.LittleEndian.PutUint16(m.Bytes[256+2:], 1)
		sent := 0
		for len(script) > 3 && sent < 64 {
			k, flags, nfds := int(script[0]), uint32(script[1]), int(script[2])%16
			script = script[3:]
			request := uint32(k)
			if k < len(known) {
				request = known[k]
			}
			var fds []int
			for range min(nfds, len(script)) {
				fds = append(fds, kinds[int(script[0])%fdKinds])
				script = script[1:]
			}
			size := 0
			if len(script) > 0 {
				size = int(script[0])
				script = script[1:]
			}
			if flags&0x40 != 0 && k < len(sizes) {
				size = sizes[k] // forgive the length
			}
			if flags&0x80 == 0 {
				flags &= 0x0f
			}
			payload := make([]byte, size)
			script = script[copy(payload, script):]
			if c.Send(request, flags, payload, fds...) != nil {
				break // the node ended the session
			}
			sent++
		}
		// Closing now would reset the connection under the answers.
		c.Conn.CloseWrite()
		io.Copy(io.Discard, c.Conn)
		c.Close()
		reason := socket.settled(t)
		var r vhost.Reason
		if !errors.As(reason, &r) || r == vhost.Shutdown || r == vhost.NoDevice {
			t.Fatalf("ended: %v", reason)
		}
		<-socket.made
		if n := descriptors(t); n > before {
			t.Fatalf("%d descriptors before, %d after", before, n)
		}
		if n := socket.Sessions(); n != 0 {
			t.Fatalf("%d sessions left", n)
		}
	})
}
