// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// Testbed is where a server and a client run: on two nodes, or both on one.
type Testbed struct {
	Server, Client *Node
	V6             bool // packets are IPv6; programs find each other over IPv4 all the same
	// Device is a device of both nodes; empty is weft0. Programs are told its GID of index GID, and none where that is
	// 0, as an InfiniBand device needs none.
	Device string
	GID    int
	// ClientDevice is the client's, if it is another.
	ClientDevice string
}

// Pair is a program running as server and as client.
type Pair struct {
	Server, Client *Proc // nil: not started
}

var lastPort atomic.Int32

// Port returns a TCP port that no other pair of this process has. Beds are in
// namespaces of this process, so no other program uses them.
func Port() int { return 20000 + int(lastPort.Add(1))%12000 }

// Start starts a program as server and, once it listens, as client, both told
// device, GID and port. Flags are those of weft run. What has been started is
// in the pair even if there is an error.
func (b *Testbed) Start(flags []string, program string, args ...string) (Pair, error) {
	var p Pair
	var address [2][]string
	for i, n := range []*Node{b.Server, b.Client} {
		flag := "-g"
		if strings.HasPrefix(filepath.Base(program), "ib_") {
			flag = "-x"
		}
		if device := b.Device; device != "" {
			if i == 1 && b.ClientDevice != "" {
				device = b.ClientDevice
			}
			address[i] = []string{"-d", device}
			if b.GID != 0 {
				address[i] = append(address[i], flag, fmt.Sprint(b.GID))
			}
			continue
		}
		a := n.NetNS.V4
		if b.V6 {
			a = n.NetNS.V6
		}
		gid, err := n.GID(a)
		if err != nil {
			return p, err
		}
		address[i] = []string{"-d", "weft0", flag, fmt.Sprint(gid)}
	}
	tcp := Port()
	argv := func(i int, more ...string) []string {
		v := append(append(append([]string{}, flags...), "--", program), address[i]...)
		return append(append(append(v, "-p", fmt.Sprint(tcp)), args...), more...)
	}
	return StartPair(tcp, b.Server.Program(argv(0)...), b.Client.Program(argv(1, b.Server.NetNS.V4)...))
}

// StartPair starts a server and, once it listens on the TCP port, a client. What
// has been started is in the pair even if there is an error.
func StartPair(tcp int, server, client Cmd) (p Pair, err error) {
	if p.Server, err = Start(server); err != nil {
		return p, err
	}
	if err := p.Server.Listening(tcp, limitQuick); err != nil {
		return p, err
	}
	p.Client, err = Start(client)
	return p, err
}

// Working waits until both programs are connected.
func (b *Testbed) Working(p Pair) error {
	if err := b.Server.Working(p.Server, limitQuick); err != nil {
		return err
	}
	return b.Client.Working(p.Client, limitQuick)
}

// Wait waits for both programs, the server a moment longer than the client.
func (p Pair) Wait(limit time.Duration) (client, server error) {
	done := make(chan error, 1)
	go func() { done <- p.Server.WaitBeside(p.Client, limit) }()
	client = p.Client.WaitBeside(p.Server, limit)
	return client, <-done
}

// GaveUp is the status of a request that had no answer as often as its queue pair may try.
const GaveUp = "transport retry counter exceeded"

// gaveUpSending is what a pingpong prints of its last send, if that failed so. It sends one message only
// after the one before was acknowledged, and gives up at the first request that fails.
const gaveUpSending = "Failed status " + GaveUp + " (12) for wr_id 2"

// LastAckLost reports, of a pair that has ended, whether all that went wrong is what no wire that loses
// packets can spare pingpongs: one had all its messages and ended well, its queue pair with it, and the
// acknowledgement of the last message was lost, which no end is left to repeat. So the other gave up its
// last request. They say no farewell to each other; programs that do, such as perftest's, end well.
func (p Pair) LastAckLost() bool {
	if p.Server == nil || p.Client == nil {
		return false
	}
	well, other := p.Server, p.Client
	if p.Client.ended() == 0 {
		well, other = other, well
	}
	out := other.Output()
	return well.ended() == 0 && other.ended() == 1 && strings.Contains(out, gaveUpSending) &&
		strings.Count(out, "Failed ") == 1 && !strings.Contains(out, "invalid data")
}

// Kill ends both.
func (p Pair) Kill() {
	for _, x := range []*Proc{p.Client, p.Server} {
		if x != nil {
			x.Kill()
		}
	}
}

// Outputs returns the end of what both have printed.
func (p Pair) Outputs() string {
	s := ""
	for _, x := range []struct {
		name string
		p    *Proc
	}{{"server", p.Server}, {"client", p.Client}} {
		if x.p != nil {
			s += "\n-- " + x.name + " --\n" + Tail(x.p.Output(), 12)
		}
	}
	return s
}

// Tail returns the last n lines of s.
func Tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = append([]string{"…"}, lines[len(lines)-n:]...)
	}
	return strings.Join(lines, "\n")
}
