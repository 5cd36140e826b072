// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"crypto/tls"
	"testing"

	"weft/internal/mgmt/store/etcd"
)

// TestFrontMember: one member has some connections; each that ends leaves its place to another, and other members have
// their own.
func TestFrontMember(t *testing.T) {
	ca := newAuthority(t)
	f := newFabric(t)
	f.security = func(name string) *etcd.Security { return ca.security(t, name) }
	a := f.open("a")
	f.roles("a:voter")
	m1, m2 := ca.client(t, "m1", false), ca.client(t, "m2", false)
	for _, c := range []*tls.Config{m1, m2} {
		c.NextProtos = []string{"http/1.1"}
	}
	dial := func(by *tls.Config) (*tls.Conn, bool) {
		t.Helper()
		c, err := tls.Dial("tcp", f.configs["a"].Advertise, by)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write([]byte("GET /weft/store HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
			return c, false
		}
		_, err = c.Read(make([]byte, 1))
		return c, err == nil
	}
	var first *tls.Conn
	for n := range 64 {
		c, ok := dial(m1)
		if !ok {
			t.Fatalf("the connection %d of one member is refused", n)
		}
		if n == 0 {
			first = c
		}
	}
	if _, ok := dial(m1); ok {
		t.Error("one member has 65 connections")
	}
	if a.Arrivals().RefusedConns.Load() != 1 {
		t.Errorf("%d connections refused", a.Arrivals().RefusedConns.Load())
	}
	if _, ok := dial(m2); !ok {
		t.Error("another member has no connection")
	}
	first.Close()
	f.until("there is room again", func() bool { _, ok := dial(m1); return ok })
}
