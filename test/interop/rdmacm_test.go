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

// cmProgram is a program of librdmacm: its server, its client, and what the client says when all
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
		t.Run(name+" weft as "+way, func(t *testing.T) {
			server, client, err := once(t, p, addr)
			for try := 0; try < 4 && err != nil && hasty(p, client); try++ {
				t.Logf("the server did not listen again in time: %v", err)
				b.forgotten(t)
				server, client, err = once(t, p, addr)
			}
			if err != nil || !strings.Contains(client, p.says) {
				t.Errorf("%v\n-- client --\n%s\n-- server --\n%s", err, client, server)
			}
			b.forgotten(t)
		})
	}
}

const cmLimit = 2 * time.Minute

// cmClient runs p with the guest at an address as the server, and returns what both printed.
func (b *bench) cmClient(t *testing.T, p cmProgram, addr string) (server, client string, err error) {
	t.Helper()
	ready := "rdma resource show cm_id | grep -q LISTEN"
	if p.tcp != 0 {
		ready = fmt.Sprintf("netstat -ltn | grep -q ':%d '", p.tcp)
	}
	b.serve(t, ends(p.server, addr, "rxe0"), ready)
	client, err = lab.Run(b.node.Program(strings.Fields(ends(p.client, addr, "weft0"))...), cmLimit)
	if err != nil || p.endless {
		if out, kerr := b.guest.Run("kill -9 $(cat /tmp/pid)", time.Minute); kerr != nil {
			t.Errorf("%v\n%s", kerr, out)
		}
	}
	server, serr := b.served()
	if !p.endless {
		err = errors.Join(err, serr)
	}
	return server, client, err
}

// cmServer runs p with Weft at an address as the server, and returns what both printed.
func (b *bench) cmServer(t *testing.T, p cmProgram, addr string) (server, client string, err error) {
	t.Helper()
	s, err := lab.Start(b.node.Program(strings.Fields(ends(p.server, addr, "weft0"))...))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	if p.tcp != 0 {
		err = s.Listening(p.tcp, 20*time.Second)
	} else {
		b.waitFor(t, "the server listens", func() bool {
			return slices.ContainsFunc(b.ids(t), func(i api.CMID) bool { return i.State == "LISTEN" })
		})
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, s.Output())
	}
	client, err = b.guest.Run("timeout 100 "+ends(p.client, addr, "rxe0"), cmLimit)
	if err != nil || p.endless {
		s.Kill()
	} else {
		err = s.Wait(20 * time.Second)
	}
	return s.Output(), client, err
}

func (b *bench) ids(t *testing.T) (list []api.CMID) {
	t.Helper()
	if err := b.node.Query(&list, "res", "cm_id"); err != nil {
		t.Fatal(err)
	}
	return list
}

// forgotten waits until the node keeps no identifier of a program.
func (b *bench) forgotten(t *testing.T) {
	t.Helper()
	b.waitFor(t, "no identifier is left", func() bool { return len(b.ids(t)) == 0 })
}

func (b *bench) waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// byAddress connects programs by address with those of a Linux host, both ways, and has each
// side refuse the other where nobody listens, and die.
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
		programs = append(programs, perftest("ib_write_bw -s "+size), lat, perftest("ib_atomic_bw -A CMP_AND_SWAP"), perftest("ib_send_bw -c UD -s 1000 -n 100"),
			cmProgram{server: "ucmatose -m -c 4 -C 20", client: "ucmatose -m -s ADDR -c 4 -C 20", says: "return status 0"},
			cmProgram{server: "rdma_server", client: "rdma_client -s ADDR", says: "rdma_client: end 0"},
			cmProgram{server: "rdma_xserver", client: "rdma_xclient -s ADDR", says: "end 0"},
			cmProgram{server: "cmtime -c 20", client: "cmtime -s ADDR -c 20", says: "disconnect", endless: true},
			cmProgram{server: "rstream -S 65536 -I 10 -C 20", client: "rstream -S 65536 -I 10 -C 20 -s ADDR", says: "64k"},
			cmProgram{server: "riostream -S 4096 -I 10 -C 100", client: "riostream -S 4096 -I 10 -C 100 -s ADDR", says: "4k"},
			cmProgram{server: "qperf", client: "qperf ADDR -cm1 -t 1 rc_lat rc_bw", says: "rc_bw", endless: true, tcp: 19765})
	}
	for _, p := range programs {
		b.cmBoth(t, p, false)
	}
	b.cmBoth(t, cmProgram{server: "rping -s -C 10 -V -S 4096 -a ADDR", client: "rping -c -C 10 -V -v -S 4096 -a ADDR", says: "ping data: rdma-ping-9:"}, true)
	t.Run("nobody listens", func(t *testing.T) {
		if out, err := lab.Run(b.node.Program("rping", "-c", "-C", "1", "-a", b.v4), time.Minute); err == nil || !strings.Contains(out, "RDMA_CM_EVENT_REJECTED") {
			t.Errorf("weft as client: %v\n%s", err, out)
		}
		if out, err := b.guest.Run("timeout 50 rping -c -C 1 -a "+b.ns.V4, time.Minute); err == nil || !strings.Contains(out, "RDMA_CM_EVENT_REJECTED") {
			t.Errorf("weft as server: %v\n%s", err, out)
		}
		b.forgotten(t)
	})
	t.Run("the server is killed", func(t *testing.T) {
		server, err := lab.Start(b.node.Program("rping", "-s", "-a", b.ns.V4))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Kill()
		b.waitFor(t, "the server listens", func() bool {
			return slices.ContainsFunc(b.ids(t), func(i api.CMID) bool { return i.State == "LISTEN" })
		})
		b.serve(t, "rping -c -v -a "+b.ns.V4, "grep -q 'ping data' /tmp/out")
		server.Kill()
		// The client hears of it, by the news or by what its requests come to, whichever is first. It does not
		// always end: its threads wait for each other.
		if out, err := b.guest.Run(until("grep -q -e 'DISCONNECT EVENT' -e 'completion failed' /tmp/out", 20*time.Second)+" || { tail -c 500 /tmp/out; exit 1; }; kill -9 $(cat /tmp/pid) || :", time.Minute); err != nil {
			t.Errorf("the client in the guest: %v\n%s", err, out)
		}
		b.served()
		b.forgotten(t)
	})
	t.Run("the client is killed", func(t *testing.T) {
		b.serve(t, "rping -s -a "+b.v4, "rdma resource show cm_id | grep -q LISTEN")
		client, err := lab.Start(b.node.Program("rping", "-c", "-v", "-a", b.v4))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Kill()
		if _, err := client.Expect("ping data", time.Minute); err != nil {
			t.Fatalf("%v\n%s", err, client.Output())
		}
		client.Kill()
		if out, err := b.served(); strings.Contains(out, "still running") {
			t.Errorf("the server in the guest: %v\n%s", err, out)
		}
		b.forgotten(t)
	})
}
