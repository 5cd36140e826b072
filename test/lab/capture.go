// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/fabric/trunk"
	"weft/internal/proto/ib"
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
	const header = 24
	if err = Until("dumpcap captures packets", limitQuick, func() (bool, error) {
		st, err := os.Stat(c.file)
		return err == nil && st.Size() > header, nil
	}, c.proc); err != nil {
		c.proc.Kill()
		return nil, fmt.Errorf("%w: %s", err, c.proc.Output())
	}
	return c, nil
}

// Kill ends a capture that is not needed any more.
func (c *Capture) Kill() { c.proc.Kill() }

// Packets ends the capture, and calls f with each native packet that passed the
// cable, as whole and in the order as the receiver got them: for each receiver, trunk.Core takes
// them out of the datagrams. A packet is valid during the call.
func (c *Capture) Packets(f func(at time.Time, packet []byte)) error {
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
	receivers := map[trunk.Epoch]*trunk.Core{}
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
		var h trunk.Header
		if _, why := h.Parse(udp.Payload); why != trunk.OK {
			return fmt.Errorf("no datagram of a trunk (%v): %x", why, udp.Payload)
		}
		if h.To == 0 {
			continue // a hello without an epoch of the receiver
		}
		to := receivers[h.To]
		if to == nil {
			// The GUID is any but the sender's.
			if to, err = trunk.New(trunk.Config{Node: h.Node ^ 1, Epoch: h.To, Peers: []ib.GUID{h.Node}}); err != nil {
				return err
			}
			receivers[h.To] = to
		}
		to.Handle(mono.Time(info.Timestamp.UnixNano()), 0, udp.Payload, func(_ int, packet []byte) {
			f(info.Timestamp,
				packet)
		})
		to.Recycle()
	}
}
