// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/api"
	"weft/test/lab"
)

// cmProgram is a program of librdmacm: its server, its client, and what the client says when all
// is well. ADDR is the server's address.
type cmProgram struct{ server, client, says string }

// cmBoth runs p with Weft as client of the guest, then as its server.
func (b *bench) cmBoth(t *testing.T, p cmProgram, v6 bool) {
	mine, theirs := b.ns.V4, b.v4
	if v6 {
		mine, theirs = b.ns.V6, b.v6
	}
	at := func(s, addr string) string { return strings.ReplaceAll(s, "ADDR", addr) }
	name := p.client
	if v6 {
		name += " over IPv6"
	}
	const limit = 2 * time.Minute
	t.Run(name+" weft as client", func(t *testing.T) {
		b.serve(t, at(p.server, theirs), "rdma resource show cm_id | grep -q LISTEN")
		out, err := lab.Run(b.node.Program(strings.Fields(at(p.client, theirs))...), limit)
		served, serr := b.served()
		if err != nil || serr != nil || !strings.Contains(out, p.says) {
			t.Errorf("weft: %v, guest: %v\n-- weft --\n%s\n-- guest --\n%s", err, serr, out, served)
		}
		b.forgotten(t)
	})
	t.Run(name+" weft as server", func(t *testing.T) {
		server, err := lab.Start(b.node.Program(strings.Fields(at(p.server, mine))...))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Kill()
		b.waitFor(t, "the server listens", func() bool {
			return slices.ContainsFunc(b.ids(t), func(i api.CMID) bool { return i.State == "LISTEN" })
		})
		out, err := b.guest.Run("timeout 100 "+at(p.client, mine), limit)
		serr := server.Wait(20 * time.Second)
		if err != nil || serr != nil || !strings.Contains(out, p.says) {
			t.Errorf("guest: %v, weft: %v\n-- guest --\n%s\n-- weft --\n%s", err, serr, out, server.Output())
		}
		b.forgotten(t)
	})
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
	programs := []cmProgram{
		{"rping -s -C 10 -V -a ADDR", "rping -c -C 10 -V -v -a ADDR", "ping data: rdma-ping-9:"},
		{"ucmatose -c 4 -C 20 -b ADDR", "ucmatose -s ADDR -c 4 -C 20", "return status 0"},
		{"udaddy -c 2 -C 10 -b ADDR", "udaddy -s ADDR -c 2 -C 10", "return status 0"},
	}
	for _, p := range programs {
		b.cmBoth(t, p, false)
	}
	b.cmBoth(t, programs[0], true)
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
		// The client hears of it, but does not always end: its threads wait for each other.
		if out, err := b.guest.Run(until("grep -q 'DISCONNECT EVENT' /tmp/out", 20*time.Second)+" || { tail -c 500 /tmp/out; exit 1; }; kill -9 $(cat /tmp/pid) || :", time.Minute); err != nil {
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
