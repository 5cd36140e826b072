// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/mono"
)

// Capture is a capture under way of one of a Triangle's cables.
type Capture struct {
	proc *Proc
	file string
}

// Capture begins to capture what passes the cable between two spaces, into a
// directory, and returns when packets come. The kernel cuts there what it was given joined.
func (t *Triangle) Capture(i, j int, dir string) (*Capture, error) {
	for _, x := range [][2]int{{i, j}, {j, i}} {
		if err := ip("-n", t.Spaces[x[0]].Name, "link", "set", cable(x[1]), "gso_max_segs", "1"); err != nil {
			return nil, err
		}
	}
	c := &Capture{file: filepath.Join(dir, "cable.pcap")}
	var err error
	c.proc, err = Start(Cmd{NetNS: t.Spaces[i].Name, Args: []string{"dumpcap", "-P", "-p", "-B", "64", "-i", cable(j),
		"-f", fmt.Sprintf("udp port %d", trunk.DefaultPort), "-w", c.file}})
	if err != nil {
		return nil, err
	}
	if err = c.Await(1); err != nil {
		c.proc.Kill()
		return nil, err
	}
	return c, nil
}

// Await waits until so many octets are in the file. The kernel hands packets over a moment after they passed, and what
// it still has when the capture ends is lost, without being counted.
func (c *Capture) Await(octets int64) error {
	const header = 24
	if err := Until("dumpcap captures packets", limitQuick, func() (bool, error) {
		st, err := os.Stat(c.file)
		return err == nil && st.Size() >= header+octets, nil
	}, c.proc); err != nil {
		return fmt.Errorf("%w: %s", err, c.proc.Output())
	}
	return nil
}

// Kill ends a capture that is not needed any more.
func (c *Capture) Kill() { c.proc.Kill() }

// Datagrams ends the capture, and calls f with each datagram between the trunk ports, in the order of their passing. A
// datagram is valid during the call. An error of f ends it.
func (c *Capture) Datagrams(f func(at time.Time, datagram []byte) error) error {
	c.proc.Signal(syscall.SIGINT)
	if err := c.proc.Wait(limitQuick); err != nil {
		return fmt.Errorf("%w: %s", err, c.proc.Output())
	}
	if !strings.Contains(c.proc.Output(), " (pcap:0/dumpcap:0/") {
		return fmt.Errorf("dumpcap has lost packets: %s", c.proc.Output())
	}
	file, err := os.Open(c.file)
	if err != nil {
		return err
	}
	defer file.Close()
	r, err := pcapgo.NewReader(file)
	if err != nil {
		return err
	}
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p := gopacket.NewPacket(data, r.LinkType(), gopacket.NoCopy)
		udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if !ok {
			return fmt.Errorf("no datagram of UDP: %v", p)
		}
		if err := f(info.Timestamp, udp.Payload); err != nil {
			return err
		}
	}
}

// Packets ends the capture, and calls f with each native packet that passed the
// cable, as whole and in the order as the receiver got them: for each receiver, trunk.Core takes
// them out of the datagrams. The nodes have --trunk-security none: one datagram that is encrypted is an error. A packet
// is valid during the call.
func (c *Capture) Packets(f func(at time.Time, packet []byte)) error {
	receivers := map[uint32]*trunk.Core{} // by session index
	return c.Datagrams(func(at time.Time, datagram []byte) (err error) {
		var h trunk.Header
		if _, why := h.Parse(datagram); why == trunk.BadKind {
			return nil // of a handshake
		} else if why != trunk.OK {
			return fmt.Errorf("no datagram of a trunk (%v): %x", why, datagram)
		}
		now := mono.Time(at.UnixNano())
		to := receivers[h.Index]
		if to == nil {
			if to, err = newReceiver(now, h.Index); err != nil {
				return err
			}
			receivers[h.Index] = to
		}
		to.Handle(now, sender, datagram, func(_ int, packet []byte) { f(at, packet) })
		to.Recycle()
		if to.Status(0).Drop[trunk.BadBody] != 0 {
			return errors.New("the trunk is encrypted. fix: start its nodes with --trunk-security none")
		}
		return nil
	})
}

// sender is any address.
var sender = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), trunk.DefaultPort)

// newReceiver returns a Core whose trunk is up by a session of its own with an index, that takes packets as they are.
func newReceiver(now mono.Time, index uint32) (*trunk.Core, error) {
	to, err := trunk.New(trunk.Config{Node: 1, Peers: []trunk.PeerConfig{{Addr: sender}}})
	if err != nil {
		return nil, err
	}
	key, err := seal.NewKey(make([]byte, 32), index)
	if err != nil {
		return nil, err
	}
	hello := handshake.Hello{Mode: seal.None, Epoch: 1, Node: 2}
	to.Install(now, 0, handshake.Result{Identity: handshake.Identity{Node: 2}, Local: hello, Remote: hello, Send: key,
		Recv: key})
	// A hello of a peer that receives brings it up.
	h := trunk.Header{Kind: trunk.Control, Stream: trunk.MaxStreams, Index: index, Number: 1 << 40}
	b := make([]byte, trunk.HeaderLen+12, 64)
	h.Put(b)
	b[trunk.HeaderLen], b[trunk.HeaderLen+1] = 1, 1
	to.Handle(now, sender, key.Seal(new(seal.Scratch), seal.Encrypt, b, trunk.HeaderLen,
		trunk.MaxStreams<<56|h.Number), nil)
	return to, nil
}
