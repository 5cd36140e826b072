// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"testing"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
)

// BenchmarkRoster reads the records of a thousand members, as each member does after a change.
func BenchmarkRoster(b *testing.B) {
	l := crowd(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Roster(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAdmit decides about the last of a thousand members, as each handshake does.
func BenchmarkAdmit(b *testing.B) {
	l := crowd(b, 1000)
	r, err := l.Roster(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, v, _ := r.Admit(l.cert, start); v != member.Admitted {
			b.Fatal(v)
		}
	}
}

// crowd is the last of n members of a fabric.
func crowd(b *testing.B, n int) *host {
	l := newLab(b)
	a := l.found(1, "a1")
	r, err := a.Roster(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	ca, err := a.authority(b.Context(), &r.CAs[0])
	if err != nil {
		b.Fatal(err)
	}
	last := a
	for i := 2; i <= n; i++ {
		h := l.host(i)
		name := fmt.Sprintf("m%d", i)
		der, err := ca.Issue(member.Claims{Fabric: r.Fabric, Name: name, GUID: guid(i),
			Seal: h.id.Seal.PublicKey().Bytes()}, &h.id.Sign.PublicKey, start, 0, a.cfg.Random)
		if err != nil {
			b.Fatal(err)
		}
		w := put(recordKey(guid(i)), member.Record{GUID: guid(i), Name: name, Key: h.id.Key(), Certificate: der,
			State: member.Active, Addresses: []string{fmt.Sprintf("%s:4792", name)}, Joined: start})
		if w.err != nil {
			b.Fatal(w.err)
		}
		if _, err := l.store.Txn(b.Context(), store.Txn{Do: []store.Op{w.op}}); err != nil {
			b.Fatal(err)
		}
		h.cert, last = parse(b, der, nil), h
	}
	return last
}
