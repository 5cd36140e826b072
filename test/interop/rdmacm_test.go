// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// cmProgram is a program of librdmacm: its server, its client, and what the client prints when all
// is well. ADDR is the server's address, DEV the device of the end.
type cmProgram struct {
	server, client, says string
	endless              bool // the server goes on until it is told to end
	tcp                  int  // it listens on this port first, and by address only then
}

// ends replaces what differs between the ends of a program.
func ends(command, addr, device string) string {
	return strings.NewReplacer("ADDR", addr, "DEV", device).Replace(command)
}

// hasty reports whether a client was refused since it was faster than its server: perftest's stops to listen for a
// moment between the connection for parameters and those for data, qperf's begins to when the client knows the port.
func hasty(p cmProgram, out string) bool {
	switch {
	case strings.HasPrefix(p.client, "ib_"):
		return strings.Contains(out, "RDMA CM event error")
	case strings.HasPrefix(p.client, "qperf"):
		return strings.Contains(out, "Event rejected")
	}
	return false
}

// cmBoth runs p with Weft as client of the guest, then as its server.
func (b *bench) cmBoth(t *testing.T, p cmProgram, v6 bool) {
	mine, theirs := b.ns.V4, b.v4
	if v6 {
		mine, theirs = b.ns.V6, b.v6
	}
	name := p.client
	if v6 {
		name += " over IPv6"
	}
	for _, client := range []bool{true, false} {
		once, addr, way := b.cmClient, theirs, "client"
		if !client {
			once, addr, way = b.cmServer, mine, "server"
		}
		b.run(t, name+" weft as "+way, func(t *testing.T) error {
			server, client, err := once(p, addr)
			for try := 0; try < 4 && err != nil && hasty(p, client); try++ {
				t.Logf("the server did not listen again in time: %v", err)
				if err := b.forgotten(); err != nil {
					return err
				}
				server, client, err = once(p, addr)
			}
			if err != nil || !strings.Contains(client, p.says) {
				return fmt.Errorf("%v\n-- client --\n%s\n-- server --\n%s", err, client, server)
			}
			return b.forgotten()
		})
	}
}

const cmLimit = 2 * time.Minute

// cmClient runs p with the guest at an address as the server, and returns what both printed.
func (b *bench) cmClient(p cmProgram, addr string) (server, client string, err error) {
	ready := "rdma resource show cm_id | grep -q LISTEN"
	if p.tcp != 0 {
		ready = listensOn(p.tcp)
	}
	if err := b.serve(ends(p.server, addr, "rxe0"), ready); err != nil {
		return "", "", err
	}
	client, err = b.beside(b.node.Program(strings.Fields(ends(p.client, addr, "weft0"))...), cmLimit)
	if err != nil || p.endless {
		if out, kerr := b.guest.Run("kill -9 $(cat /tmp/pid)", time.Minute); kerr != nil {
			return out, client, errors.Join(err, kerr)
		}
	}
	server, serr := b.served()
	if !p.endless {
		err = errors.Join(err, serr)
	}
	return server, client, err
}

// cmServer runs p with Weft at an address as the server, and returns what both printed.
func (b *bench) cmServer(p cmProgram, addr string) (server, client string, err error) {
	s, err := lab.Start(b.node.Program(strings.Fields(ends(p.server, addr, "weft0"))...))
	if err != nil {
		return "", "", err
	}
	defer s.Kill()
	if p.tcp != 0 {
		err = s.Listening(p.tcp, serverLimit)
	} else {
		err = b.listens(s)
	}
	if err != nil {
		return s.Output(), "", err
	}
	client, err = b.guest.Run("timeout 100 "+ends(p.client, addr, "rxe0"), cmLimit, s)
	if err != nil || p.endless {
		s.Kill()
	} else {
		err = b.waitBeside(s, lab.PeerPatience)
	}
	return s.Output(), client, err
}

// listens waits until program p listens by the connection manager.
func (b *bench) listens(p *lab.Proc) error {
	return b.waitFor("the server listens", p, func() (bool, error) {
		list, err := b.ids()
		return slices.ContainsFunc(list, func(i api.CMID) bool { return i.State == "LISTEN" }), err
	})
}

func (b *bench) ids() (list []api.CMID, err error) {
	err = b.node.Query(&list, "res", "cm_id")
	return list, err
}

// forgotten waits until the node keeps no identifier of a program.
func (b *bench) forgotten() error {
	return b.waitFor("no identifier is left", b.node.Proc, func() (bool, error) {
		list, err := b.ids()
		return len(list) == 0, err
	})
}

// waitFor waits until a condition is true, as long as the process lives that makes it so.
func (b *bench) waitFor(what string, p *lab.Proc, ok func() (bool, error)) error {
	return lab.Until(what, time.Minute, ok, p)
}

// byAddress connects programs by address with those of a Linux host, both ways, and has each
// side refuse the other where no program listens, and die.
func (b *bench) byAddress(t *testing.T) {
	n, size := "-n 20", "65536"
	if lab.Soak {
		n = "-n 1000"
	}
	perftest := func(args string) cmProgram {
		args = strings.Replace(args, " ", " -d DEV -R -F "+n+" ", 1)
		return cmProgram{server: args, client: args + " ADDR", says: "BW average"}
	}
	programs := []cmProgram{
		{server: "rping -s -C 10 -V -a ADDR", client: "rping -c -C 10 -V -v -a ADDR", says: "ping data: rdma-ping-9:"},
		{server: "ucmatose -c 4 -C 20 -b ADDR", client: "ucmatose -s ADDR -c 4 -C 20", says: "return status 0"},
		{server: "udaddy -c 2 -C 10 -b ADDR", client: "udaddy -s ADDR -c 2 -C 10", says: "return status 0"},
		perftest("ib_send_bw -s " + size),
	}
	if lab.Soak {
		lat := perftest("ib_read_lat -s 8")
		lat.says = "t_typical"
		programs = append(programs, perftest("ib_write_bw -s "+size), lat, perftest("ib_atomic_bw -A CMP_AND_SWAP"),
			perftest("ib_send_bw -c UD -s 1000 -n 100"),
			cmProgram{server: "ucmatose -m -c 4 -C 20", client: "ucmatose -m -s ADDR -c 4 -C 20",
				says: "return status 0"},
			cmProgram{server: "rdma_server", client: "rdma_client -s ADDR", says: "rdma_client: end 0"},
			cmProgram{server: "rdma_xserver", client: "rdma_xclient -s ADDR", says: "end 0"},
			cmProgram{server: "cmtime -c 20", client: "cmtime -s ADDR -c 20", says: "disconnect", endless: true},
			cmProgram{server: "rstream -S 65536 -I 10 -C 20", client: "rstream -S 65536 -I 10 -C 20 -s ADDR",
				says: "64k"},
			cmProgram{server: "riostream -S 4096 -I 10 -C 100", client: "riostream -S 4096 -I 10 -C 100 -s ADDR",
				says: "4k"},
			cmProgram{server: "qperf", client: "qperf ADDR -cm1 -t 1 rc_lat rc_bw", says: "rc_bw", endless: true,
				tcp: 19765})
	}
	for _, p := range programs {
		b.cmBoth(t, p, false)
	}
	b.cmBoth(t, cmProgram{server: "rping -s -C 10 -V -S 4096 -a ADDR", client: "rping -c -C 10 -V -v -S 4096 -a ADDR",
		says: "ping data: rdma-ping-9:"}, true)
	b.run(t, "nobody listens", func(*testing.T) error {
		out, err := b.beside(b.node.Program("rping", "-c", "-C", "1", "-a", b.v4), time.Minute)
		if err == nil || !strings.Contains(out, "RDMA_CM_EVENT_REJECTED") {
			return fmt.Errorf("weft as client: %v\n%s", err, out)
		}
		out, err = b.guest.Run("timeout 50 rping -c -C 1 -a "+b.ns.V4, time.Minute, b.node.Proc)
		if err == nil || !strings.Contains(out, "RDMA_CM_EVENT_REJECTED") {
			return fmt.Errorf("weft as server: %v\n%s", err, out)
		}
		return b.forgotten()
	})
	b.run(t, "the server is killed", func(*testing.T) error { return b.serverKilled() })
	b.run(t, "the client is killed", func(*testing.T) error { return b.clientKilled() })
}

// serverKilled: a client in the guest gets an event or an error when Weft's server is killed.
func (b *bench) serverKilled() error {
	server, err := lab.Start(b.node.Program("rping", "-s", "-a", b.ns.V4))
	if err != nil {
		return err
	}
	defer server.Kill()
	if err := b.listens(server); err != nil {
		return err
	}
	if err := b.serve("rping -c -v -a "+b.ns.V4, "grep -q 'ping data' /tmp/out"); err != nil {
		return err
	}
	server.Kill()
	// The client gets an event, or a request of its own fails, whichever is first. It does not always end: its threads
	// wait for each other.
	noticed := until("grep -q -e 'DISCONNECT EVENT' -e 'completion failed' /tmp/out", serverLimit)
	out, err := b.guest.Run(noticed+" || { tail -c 500 /tmp/out; exit 1; }; kill -9 $(cat /tmp/pid) || :",
		2*serverLimit)
	if err != nil {
		return fmt.Errorf("the client in the guest: %w\n%s", err, out)
	}
	b.served()
	return b.forgotten()
}

// clientKilled: a server in the guest ends when Weft's client is killed.
func (b *bench) clientKilled() error {
	if err := b.serve("rping -s -a "+b.v4, "rdma resource show cm_id | grep -q LISTEN"); err != nil {
		return err
	}
	program := b.node.Program("rping", "-c", "-v", "-a", b.v4)
	program.Peers = append(program.Peers, b.guest)
	client, err := lab.Start(program)
	if err != nil {
		return err
	}
	defer client.Kill()
	if _, err := client.Expect("ping data", time.Minute); err != nil {
		return fmt.Errorf("%w\n%s", err, client.Output())
	}
	client.Kill()
	if out, err := b.served(); strings.Contains(out, "still running") {
		return fmt.Errorf("the server in the guest: %v\n%s", err, out)
	}
	return b.forgotten()
}
