// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store/etcd"
)

// encoded is a record as the store has it.
func encoded[T any, R interface {
	*T
	member.Value
}](t *testing.T, v T) []byte {
	t.Helper()
	b, err := member.Encode[T, R](v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRetain: a backup is from before a removal that replaced the CA. What is restored has the removed member as one
// that was removed, the CAs that there are now with their keys, and the newer M_Key.
func TestRetain(t *testing.T) {
	now := time.Now()
	r, _ := trial(t, member.Voter|member.Administrator, member.Voter, member.Voter)
	for i := range r.Members {
		r.Members[i].Epochs = []uint32{1}
	}
	before := member.Fabric{ID: r.Fabric, Made: now, Policy: member.DefaultPolicy, CAs: r.CAs}
	backup := func() *etcd.Backup {
		b := &etcd.Backup{}
		put := func(key string, v []byte) { b.Entries = append(b.Entries, etcd.BackupEntry{Key: key, Value: v}) }
		put(member.KeyFabric, encoded(t, before))
		put(manager.KeyMKey, []byte("old"))
		put(member.TreeToken+"/abcdef", []byte("token"))
		put("subnet/intent", []byte("intent"))
		for _, m := range r.Members {
			guid := member.GUIDKey(m.GUID)
			put(member.TreeRecord+"/"+guid, encoded(t, m))
			put(member.TreeName+"/"+m.Name, []byte(guid))
			put(member.TreeReport+"/"+guid, encoded(t, member.Report{GUID: m.GUID}))
			put(member.TreeStoreMember+"/"+guid, []byte("store"))
			put(member.TreeSealed+"/1/"+guid, []byte("sealed"))
		}
		return b
	}

	gone := r.Members[2]
	second, err := member.NewAuthority(r.Fabric, 2, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	after, err := member.Freeze(before, []uint32{1}, second, now)
	if err != nil {
		t.Fatal(err)
	}
	x := *r
	x.CAs, x.Members = after.CAs, r.Members[:2]
	x.Removed = []member.Gone{{GUID: gone.GUID, Name: gone.Name, Key: gone.Key, At: now, Until: now.Add(time.Hour)}}
	own := &etcd.Backup{Entries: []etcd.BackupEntry{{Key: manager.KeyMKey, Value: []byte("new")}}}
	for _, m := range x.Members {
		own.Entries = append(own.Entries, etcd.BackupEntry{Key: member.TreeSealed + "/2/" + member.GUIDKey(m.GUID),
			Value: []byte("sealed 2")})
	}
	b := backup()
	if err := retain(b, own, &x, now); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i, e := range b.Entries {
		got[e.Key] = string(e.Value)
		if strings.Contains(e.Key, member.GUIDKey(gone.GUID)) || e.Key == member.TreeName+"/"+gone.Name ||
			strings.HasPrefix(e.Key, member.TreeToken) {
			t.Errorf("%s is there", e.Key)
		}
		if i > 0 && b.Entries[i-1].Key >= e.Key {
			t.Errorf("%s follows %s", e.Key, b.Entries[i-1].Key)
		}
	}
	if got[manager.KeyMKey] != "new" || got["subnet/intent"] != "intent" {
		t.Errorf("%q", got)
	}
	g, err := member.Decode[member.Gone]([]byte(got[member.TreeGone+"/"+gone.Key.String()]))
	if err != nil || !g.MKey || g.GUID != gone.GUID {
		t.Errorf("%+v, %v", g, err)
	}
	f, err := member.Decode[member.Fabric]([]byte(got[member.KeyFabric]))
	if err != nil || len(f.CAs) != 2 || f.CAs[0].State != member.CAFrozen || f.Signing().Epoch != 2 {
		t.Errorf("%+v, %v", f.CAs, err)
	}
	for _, m := range x.Members {
		guid := member.GUIDKey(m.GUID)
		k, err := member.Decode[member.Record]([]byte(got[member.TreeRecord+"/"+guid]))
		if err != nil || len(k.Epochs) != 2 || k.Epochs[1] != 2 || got[member.TreeSealed+"/2/"+guid] != "sealed 2" {
			t.Errorf("%+v, %v", k.Epochs, err)
		}
	}

	// Without a removal nothing changes but the M_Key, and a removal is over when the certificates have ended.
	b = backup()
	n := len(b.Entries)
	x.CAs = before.CAs
	if err := retain(b, nil, &x, now.Add(2*time.Hour)); err != nil || len(b.Entries) != n {
		t.Errorf("%d entries, want %d: %v", len(b.Entries), n, err)
	}
	// What is not of this fabric is refused.
	y := x
	y.Fabric = "fedcba9876543210"
	if err := retain(backup(), nil, &y, now); err == nil || !strings.Contains(err.Error(), "of fabric "+x.Fabric) {
		t.Errorf("%v", err)
	}
	b = backup()
	b.Entries = b.Entries[1:]
	if err := retain(b, nil, &x, now); err == nil || !strings.Contains(err.Error(), "before the fabric was made") {
		t.Errorf("%v", err)
	}
}

// TestRetainMembers: a backup is from before a voter joined, and from before another got the key of a second CA. Both
// are in the records of what is restored, so that their removal replaces the CAs.
func TestRetainMembers(t *testing.T) {
	now := time.Now()
	r, _ := trial(t, member.Voter|member.Administrator, member.Voter, member.Voter, member.Voter)
	for i := range r.Members {
		r.Members[i].Epochs = []uint32{1}
	}
	before := member.Fabric{ID: r.Fabric, Made: now, Policy: member.DefaultPolicy, CAs: r.CAs}
	b := &etcd.Backup{}
	put := func(key string, v []byte) { b.Entries = append(b.Entries, etcd.BackupEntry{Key: key, Value: v}) }
	put(member.KeyFabric, encoded(t, before))
	for _, m := range r.Members[:2] {
		put(member.TreeRecord+"/"+member.GUIDKey(m.GUID), encoded(t, m))
		put(member.TreeName+"/"+m.Name, []byte(member.GUIDKey(m.GUID)))
	}
	gone := r.Members[3] // the roster is older than its removal
	put(member.TreeGone+"/"+gone.Key.String(), encoded(t, member.Gone{GUID: gone.GUID, Name: gone.Name, Key: gone.Key,
		At: now, Until: now.Add(time.Hour)}))
	x := *r
	x.Members = append([]member.Record(nil), r.Members...)
	x.Members[1].Epochs = []uint32{1, 2}
	x.Members[2].Name = x.Members[1].Name // that one has been renamed since
	x.Members[1].Name = "renamed"
	if err := retain(b, nil, &x, now); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range b.Entries {
		got[e.Key] = string(e.Value)
	}
	for i, want := range []struct {
		name   string
		epochs []uint32
	}{{"h1", []uint32{1}}, {"h2", []uint32{1, 2}}, {"h2-" + x.Members[2].Key.Short(), []uint32{1}}} {
		guid := member.GUIDKey(x.Members[i].GUID)
		m, err := member.Decode[member.Record]([]byte(got[member.TreeRecord+"/"+guid]))
		if err != nil || m.Name != want.name || !slices.Equal(m.Epochs, want.epochs) || m.Key != x.Members[i].Key {
			t.Errorf("%+v, %v, want %+v", m, err, want)
		}
		if got[member.TreeName+"/"+want.name] != guid {
			t.Errorf("the name %s is of %q", want.name, got[member.TreeName+"/"+want.name])
		}
	}
	if got[member.TreeRecord+"/"+member.GUIDKey(gone.GUID)] != "" {
		t.Error("a removed member is back")
	}
}

// TestRetainCertificates: a backup is from before the CA was rotated. What is restored has the certificates that
// members use now, so that no member is out when the CA is replaced; no key of a CA that is gone; and reports in
// which nothing counts that was so at the time of the backup.
func TestRetainCertificates(t *testing.T) {
	now := time.Now()
	r, _ := trial(t, member.Voter|member.Administrator, member.Voter)
	fabric := member.Fabric{ID: r.Fabric, Made: now, Policy: member.DefaultPolicy, CAs: r.CAs}
	b := &etcd.Backup{}
	put := func(key string, v []byte) { b.Entries = append(b.Entries, etcd.BackupEntry{Key: key, Value: v}) }
	put(member.KeyFabric, encoded(t, fabric))
	for _, m := range r.Members {
		guid := member.GUIDKey(m.GUID)
		put(member.TreeRecord+"/"+guid, encoded(t, m))
		put(member.TreeName+"/"+m.Name, []byte(guid))
		put(member.TreeSealed+"/1/"+guid, []byte("sealed"))
		put(member.TreeReport+"/"+guid, encoded(t, member.Report{GUID: m.GUID, Incarnation: 7, Clock: now,
			CAs: []uint32{1}, Signed: 1, Addresses: []string{"10.0.0.9:4792"},
			Users: []member.User{{Kind: "program", Name: "rping"}}}))
	}
	next, err := member.NewAuthority(r.Fabric, 2, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := *r
	x.CAs, x.Members = []member.CA{next.CA(member.CASigning, now)}, slices.Clone(r.Members)
	for i := range x.Members {
		m := &x.Members[i]
		c, err := x509.ParseCertificate(m.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := member.ClaimsOf(c)
		if err != nil {
			t.Fatal(err)
		}
		if m.Certificate, err = next.Issue(claims, c.PublicKey.(*ecdsa.PublicKey), now.Add(time.Minute), 0,
			rand.Reader); err != nil {
			t.Fatal(err)
		}
		m.Addresses = []string{fmt.Sprintf("10.0.0.%d:4792", i+1)}
	}
	if err := retain(b, nil, &x, now); err != nil {
		t.Fatal(err)
	}
	got := map[string][]byte{}
	for _, e := range b.Entries {
		got[e.Key] = e.Value
	}
	for _, m := range x.Members {
		guid := member.GUIDKey(m.GUID)
		k, err := member.Decode[member.Record](got[member.TreeRecord+"/"+guid])
		if err != nil || !bytes.Equal(k.Certificate, m.Certificate) {
			t.Errorf("%s: the certificate is not the one in use: %v", m.Name, err)
		}
		if got[member.TreeSealed+"/1/"+guid] != nil {
			t.Errorf("%s: the key of the CA that was replaced is there", m.Name)
		}
		want := member.Report{Form: k.Form, GUID: m.GUID, Addresses: m.Addresses,
			Users: []member.User{{Kind: "program", Name: "rping"}}}
		p, err := member.Decode[member.Report](got[member.TreeReport+"/"+guid])
		if d := cmp.Diff(want, p); d != "" || err != nil {
			t.Errorf("%s: the report: %v\n%s", m.Name, err, d)
		}
	}
}
