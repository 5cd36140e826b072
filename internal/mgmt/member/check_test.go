// SPDX-License-Identifier: Apache-2.0

package member

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// csrOf makes a request with another curve, another name, or more names than one.
func csrOf(t *testing.T, curve elliptic.Curve, tmpl x509.CertificateRequest) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// refusals are all reasons for which a request is refused, each by one change of a request that is granted, with its
// whole text.
var refusals = []struct {
	name   string
	change func(b *bench, r *Request, s *Situation)
	want   string // after "cannot join the fabric: "
}{
	{"protocol too old", func(_ *bench, r *Request, _ *Situation) { r.Protocol = 0 },
		"this host has weft v1 of protocol 0, the fabric has protocol 1 to 1. fix: install the fabric's version " +
			"of weft here"},
	{"protocol too new", func(_ *bench, r *Request, _ *Situation) { r.Protocol = 2 },
		"this host has weft v1 of protocol 2, the fabric has protocol 1 to 1. fix: upgrade weft on the members " +
			"first, or install their version here"},
	{"no token", func(_ *bench, r *Request, _ *Situation) { r.Token = "" },
		`"" is no token. fix: weft token, on a member, prints a new one`},
	{"token with control characters", func(_ *bench, r *Request, _ *Situation) { r.Token = "\x1b[2J\xff" },
		`"?[2J?" is no token. fix: weft token, on a member, prints a new one`},
	{"unknown token", func(_ *bench, r *Request, s *Situation) { r.Token, s.Token = "aaaaaaaa", nil },
		"the fabric has no token aaaaaaaa: it was deleted, it is of another fabric, or the CA was " +
			"replaced after it was made. fix: weft token, on a member, prints a new one"},
	{"token of another row", func(_ *bench, r *Request, _ *Situation) { r.Token = "aaaaaaaa" },
		"the fabric has no token aaaaaaaa: it was deleted, it is of another fabric, or the CA was " +
			"replaced after it was made. fix: weft token, on a member, prints a new one"},
	{"wrong secret", func(_ *bench, r *Request, s *Situation) {
		r.Secret = slices.Clone(r.Secret)
		r.Secret[0] ^= 1
		r.Token, s.Token.ID = "bbbbbbbb", "bbbbbbbb"
	}, "the secret of the token bbbbbbbb is wrong. fix: copy the whole line that weft token printed"},
	{"no secret", func(_ *bench, r *Request, s *Situation) {
		r.Secret, r.Token, s.Token.ID = nil, "bbbbbbbb", "bbbbbbbb"
	},
		"the secret of the token bbbbbbbb is wrong. fix: copy the whole line that weft token printed"},
	{"another fabric", func(_ *bench, r *Request, _ *Situation) { r.Fabric = "ffffffffffffffff" },
		"the token is of fabric ffffffffffffffff, this is fabric 0123456789abcdef. fix: weft token, on a member, " +
			"prints a new one"},
	{"old token", func(_ *bench, r *Request, s *Situation) {
		r.Token, s.Token.ID = "cccccccc", "cccccccc"
		s.Token.Made, s.Token.End = start.Add(-time.Hour), start
	}, "the token cccccccc ended 2026-11-23 12:00:00 UTC. fix: weft token, on a member, prints a new one"},
	{"token of the future", func(_ *bench, r *Request, s *Situation) {
		r.Token, s.Token.ID = "cccccccc", "cccccccc"
		s.Token.Made, s.Token.End = start.Add(time.Hour), start.Add(2*time.Hour)
	}, "the token cccccccc was made 2026-11-23 13:00:00 UTC, and this member's clock shows 2026-11-23 12:00:00 " +
		"UTC. fix: set the clocks of the members"},
	{"used token", func(_ *bench, r *Request, s *Situation) {
		r.Token, s.Token.ID, s.Token.Used = "dddddddd", "dddddddd", 1
	},
		"the token dddddddd has been used once. fix: weft token, on a member, prints a new one"},
	{"often used token", func(_ *bench, r *Request, s *Situation) {
		r.Token, s.Token.ID, s.Token.Uses, s.Token.Used = "dddddddd", "dddddddd", 3, 3
	}, "the token dddddddd has been used 3 times. fix: weft token, on a member, prints a new one"},
	{"another pin", func(_ *bench, r *Request, s *Situation) {
		r.Token, s.Token.ID, r.Pin = "eeeeeeee", "eeeeeeee", make([]byte, PinSize)
	}, "the CA that the token eeeeeeee is bound to has been replaced. fix: weft token, on a member, prints a new " +
		"one"},
	{"replaced CA", func(b *bench, r *Request, s *Situation) {
		r.Token, s.Token.ID = "eeeeeeee", "eeeeeeee"
		f, err := Freeze(s.Fabric, []uint32{1}, b.authority(2), start)
		if err != nil {
			b.t.Fatal(err)
		}
		s.Fabric = f
	}, "the CA that the token eeeeeeee is bound to has been replaced. fix: weft token, on a member, prints a new " +
		"one"},
	{"no clock", func(_ *bench, r *Request, _ *Situation) { r.Clock = time.Time{} },
		"this host has sent no time. fix: set this host's clock: timedatectl set-ntp true"},
	{"clock an hour ahead", func(_ *bench, r *Request, _ *Situation) { r.Clock = start.Add(time.Hour) },
		"this host's clock is 1h0m0s ahead of that of the fabric, at most 1m0s is allowed. fix: set this host's " +
			"clock: timedatectl set-ntp true"},
	{"clock an hour behind", func(_ *bench, r *Request, _ *Situation) { r.Clock = start.Add(-time.Hour) },
		"this host's clock is 1h0m0s behind that of the fabric, at most 1m0s is allowed. fix: set this host's " +
			"clock: timedatectl set-ntp true"},
	{"no name", func(_ *bench, r *Request, _ *Situation) { r.Name = "" },
		"the name is empty. fix: weft join --name NAME, with a-z, 0-9 and -"},
	{"long name", func(_ *bench, r *Request, _ *Situation) { r.Name = strings.Repeat("a", 64) },
		"the name has 64 octets, at most 63 fit. fix: weft join --name NAME, with a-z, 0-9 and -"},
	{"name with dots", func(_ *bench, r *Request, _ *Situation) { r.Name = "a.b" },
		`the name "a.b" has characters other than a-z, 0-9 and -. fix: weft join --name NAME, with a-z, 0-9 and -`},
	{"reserved name", func(_ *bench, r *Request, _ *Situation) { r.Name = "all" },
		`the name "all" has another meaning. fix: weft join --name NAME, with a-z, 0-9 and -`},
	{"number as a name", func(_ *bench, r *Request, _ *Situation) { r.Name = "17" },
		`the name "17" is a number. fix: weft join --name NAME, with a-z, 0-9 and -`},
	{"no GUID", func(_ *bench, r *Request, _ *Situation) { r.GUID = 0 },
		"0000:0000:0000:0000 is not the identity of a node. fix: remove the file identity in the node's " +
			"directory; weft join again"},
	{"GUID of hardware", func(_ *bench, r *Request, _ *Situation) { r.GUID = 0x0002c90300000000 },
		"0002:c903:0000:0000 is not the identity of a node. fix: remove the file identity in the node's " +
			"directory; weft join again"},
	{"no request", func(_ *bench, r *Request, _ *Situation) { r.CSR = nil },
		"the certificate request is unreadable. fix: weft join again, with this version of weft"},
	{"long request", func(_ *bench, r *Request, _ *Situation) { r.CSR = make([]byte, 4097) },
		"the certificate request has 4097 octets, at most 4096 fit. fix: weft join again, with this version of weft"},
	{"forged request", func(_ *bench, r *Request, _ *Situation) {
		r.CSR = slices.Clone(r.CSR)
		r.CSR[len(r.CSR)-1] ^= 1
	}, "the signature of the certificate request is wrong: this host does not have its key. fix: weft join " +
		"again, with this version of weft"},
	{"another curve", func(b *bench, r *Request, _ *Situation) {
		r.CSR = csrOf(b.t, elliptic.P384(), x509.CertificateRequest{Subject: pkix.Name{CommonName: "b9"}})
	}, "the key of the certificate request is not ECDSA on P-256. fix: weft join again, with this version of weft"},
	{"request for another name", func(b *bench, r *Request, _ *Situation) {
		r.CSR = csrOf(b.t, elliptic.P256(), x509.CertificateRequest{Subject: pkix.Name{CommonName: "a1"}})
	}, `the certificate request is for "a1", the host's name is "b9". fix: weft join again, with this version of ` +
		`weft`},
	{"request for more names", func(b *bench, r *Request, _ *Situation) {
		r.CSR = csrOf(b.t, elliptic.P256(), x509.CertificateRequest{Subject: pkix.Name{CommonName: "b9"},
			DNSNames: []string{"a1.weft.internal"}})
	}, "the certificate request has more than a name. fix: weft join again, with this version of weft"},
	{"no sealing key", func(_ *bench, r *Request, _ *Situation) { r.Seal = nil },
		"the sealing key is no X25519 key: it has 0 octets. fix: weft join again, with this version of weft"},
	{"weak sealing key", func(_ *bench, r *Request, _ *Situation) { r.Seal = make([]byte, 32) },
		"the sealing key is a point of low order. fix: weft join again, with this version of weft"},
	{"removed member", func(b *bench, r *Request, s *Situation) {
		csr, _ := x509.ParseCertificateRequest(r.CSR)
		s.Roster.Removed = []Gone{{GUID: r.GUID, Name: "b9", Key: keyOfRequest(csr), At: start.Add(-time.Hour),
			Until: start.Add(time.Hour)}}
	}, "this host was the member b9, which was removed 2026-11-23 11:00:00 UTC. fix: weft leave; weft join " +
		"again: it makes new keys"},
	{"copied key", func(b *bench, r *Request, s *Situation) {
		r.CSR, _ = b.ids["a1"].Request("b9")
	}, "the key of this host is that of the member a1: the identity was copied. fix: weft leave; weft join " +
		"again: it makes new keys"},
	{"another name than before", func(b *bench, r *Request, s *Situation) {
		r.CSR, _ = b.ids["a1"].Request("b9")
		r.GUID = guid(1)
	}, "this host is the member a1 already. fix: weft member rename a1 b9"},
	{"copied identity", func(_ *bench, r *Request, _ *Situation) { r.GUID = guid(2) },
		"the member a2 has the identity 0200:0000:0002:0000 of this host: the node's directory was copied, or " +
			"this host left the fabric, or lost its keys. fix: remove the file identity here if it was copied; else weft " +
			"member remove --force a2, weft token, on a member"},
	{"duplicate name", func(b *bench, r *Request, _ *Situation) {
		r.Name = "a2"
		r.CSR, _ = b.identity().Request("a2")
	}, "the fabric has a member a2 with the identity 0200:0000:0002:0000. fix: weft join --name NAME"},
	{"copied sealing key", func(b *bench, r *Request, _ *Situation) { r.Seal = b.ids["a2"].Seal.PublicKey().Bytes() },
		"the sealing key of this host is that of the member a2: the identity was copied. fix: weft leave; weft " +
			"join again: it makes new keys"},
	{"contradictory roles", func(_ *bench, r *Request, _ *Situation) { x := Leaf | Voter; r.Roles = &x },
		"a leaf is neither voter nor manager. fix: weft join --role ROLES"},
	{"administrator without a vote", func(_ *bench, r *Request, _ *Situation) {
		x := Manager | Administrator
		r.Roles = &x
	}, "an administrator is a voter as well: only voters write the records of members. fix: weft join --role ROLES"},
	{"role beyond the token", func(_ *bench, r *Request, s *Situation) {
		r.Token, s.Token.ID, s.Token.Roles = "ffffffff", "ffffffff", Voter|Manager
		x := HostRoles
		r.Roles = &x
	}, "the token ffffffff does not give the role administrator. fix: weft token --role " +
		"voter,manager,administrator, on a member"},
	{"no path", func(_ *bench, r *Request, _ *Situation) { r.MTU = 0 },
		"this host has no path to 10.0.0.1: its MTU is unknown. fix: ip route get 10.0.0.1"},
	{"narrow path", func(_ *bench, r *Request, _ *Situation) { r.MTU = 576 },
		"the path from this host to 10.0.0.1 has an MTU of 576, trunks need 1280. fix: ip link set DEVICE mtu 1280"},
	{"impossible path", func(_ *bench, r *Request, _ *Situation) { r.MTU = 65536 },
		"an MTU of 65536 is longer than an IP packet. fix: weft join again, with this version of weft"},
	{"narrow path back", func(_ *bench, r *Request, s *Situation) { s.MTU = 1000 },
		"the path from 10.0.0.1 to this host has an MTU of 1000, trunks need 1280. fix: ip link set DEVICE mtu " +
			"1280, there"},
	{"no address", func(_ *bench, r *Request, _ *Situation) { r.Addresses = nil },
		"this host has no address that members reach. fix: weft join --address HOST:PORT, or --role leaf"},
	{"too many addresses", func(_ *bench, r *Request, _ *Situation) { r.Addresses = slices.Repeat(r.Addresses, 9) },
		"this host has 18 addresses, at most 16 fit. fix: weft join --address HOST:PORT"},
	{"wrong address", func(_ *bench, r *Request, _ *Situation) { r.Addresses = []string{"10.0.0.300:4792"} },
		`the address "10.0.0.300:4792" is no IP address. fix: weft join --address HOST:PORT`},
	{"address without a port", func(_ *bench, r *Request, _ *Situation) { r.Addresses = []string{"host"} },
		`the address "host" has no port. fix: weft join --address HOST:PORT`},
	{"address of a member", func(_ *bench, r *Request, _ *Situation) { r.Addresses = []string{"a2.example:4792"} },
		"a2.example:4792 is the address of the member a2. fix: weft join --address HOST:PORT, or weft member " +
			"remove a2 where that host is gone"},
	{"addresses of members", func(_ *bench, r *Request, _ *Situation) {
		r.Addresses = []string{"a1.example:4792", "a2.example:4792"}
	}, "each address of this host is another member's too. fix: weft join --address HOST:PORT"},
	{"full fabric", func(_ *bench, r *Request, s *Situation) { s.Members = 2 },
		"the fabric has 2 members, and takes no more. fix: weft member remove NAME"},
}

// TestRefusals: each fault of a request is named in one line with its fix, and nothing of the situation changes.
func TestRefusals(t *testing.T) {
	if len(refusals) < 25 {
		t.Fatalf("%d refusals", len(refusals))
	}
	for _, x := range refusals {
		t.Run(x.name, func(t *testing.T) {
			b := newBench(t, "a1", "a2")
			r, s := b.request("b9", guid(9))
			if _, p := Check(r, s, start); p != nil {
				t.Fatalf("the request without the change: %v", p)
			}
			x.change(b, r, s)
			before, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			g, p := Check(r, s, start)
			if g != nil || p == nil {
				t.Fatalf("granted %+v", g)
			}
			if diff := cmp.Diff("cannot join the fabric: "+x.want, p.Error()); diff != "" {
				t.Error(diff)
			}
			if strings.ContainsAny(p.Error(), "\n\x1b") || p.Fix == "" {
				t.Errorf("not one line with a fix: %q", p.Error())
			}
			after, _ := json.Marshal(s)
			mustEqual(t, "the situation", before, after)
		})
	}
}

// TestGrant: a good request gets what its token gives, and counts as one use.
func TestGrant(t *testing.T) {
	b := newBench(t, "a1")
	r, s := b.request("b9", guid(9))
	s.MTU = 9000
	g, p := Check(r, s, start)
	if p != nil {
		t.Fatal(p)
	}
	if g.Record.Name != "b9" || g.Record.GUID != guid(9) || g.Record.State != Joining || g.Claims.Roles != HostRoles ||
		g.Token.Used != 1 || s.Token.Used != 0 || g.Repeat {
		t.Errorf("%+v", g)
	}
	want := []string{"the MTU is 1500 here and 9000 at 10.0.0.1: the trunk uses 1500. fix: ip link set DEVICE " +
		"mtu 9000, on both"}
	if diff := cmp.Diff(want, g.Warnings); diff != "" {
		t.Error(diff)
	}
	r.Addresses = append(r.Addresses, "a1.example:4792") // as of a bridge that each host has
	if g, p = Check(r, s, start); p != nil || len(g.Record.Addresses) != 2 || len(g.Warnings) != 2 {
		t.Errorf("%+v, %v", g, p)
	}
	leaf := Leaf
	r.Roles = &leaf
	r.Addresses = nil // a leaf needs none
	if g, p = Check(r, s, start); p != nil || g.Claims.Roles != Leaf {
		t.Errorf("%v, %v", g, p)
	}
	// Clocks within the bound.
	for _, d := range []time.Duration{MaxSkew, -MaxSkew} {
		r.Clock = start.Add(d)
		if _, p := Check(r, s, start); p != nil {
			t.Error(p)
		}
	}
}

// TestRepeat: a host that lost the answer gets it again with its used token, and it is not used twice; with another key
// it gets nothing.
func TestRepeat(t *testing.T) {
	b := newBench(t, "a1")
	r, s := b.request("b9", guid(9))
	g, p := Check(r, s, start)
	if p != nil {
		t.Fatal(p)
	}
	der, err := b.ca.Issue(g.Claims, g.Key, start, 0, b.random)
	if err != nil {
		t.Fatal(err)
	}
	g.Record.Certificate = der
	s.Roster.Members = append(s.Roster.Members, g.Record)
	s.Token = &g.Token
	again, p := Check(r, s, start.Add(time.Second))
	if p != nil {
		t.Fatal(p)
	}
	if !again.Repeat || again.Token.Used != 1 || !again.Record.Joined.Equal(start) {
		t.Errorf("%+v", again)
	}
	r.CSR, _ = b.identity().Request("b9")
	if g, p := Check(r, s, start); p == nil {
		t.Errorf("another key got %+v", g)
	} else if !strings.Contains(p.Why, "has been used once") {
		t.Error(p)
	}
}

// TestNameOf makes names of hosts' names.
func TestNameOf(t *testing.T) {
	for host, want := range map[string]string{"Node-1.lab.example": "node-1", "my_host": "my-host", "localhost": "",
		"":  "",
		"_": "", "10": "", strings.Repeat("x", 70): strings.Repeat("x", 63)} {
		if got := NameOf(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
}

// TestAddresses reads DNS names and both families.
func TestAddresses(t *testing.T) {
	for _, s := range []string{"10.0.0.1:4792", "[fd00::1]:1", "[fe80::1%eth0]:4792", "host:65535",
		"a.b-c.example:4792",
		"127.0.0.1:4792"} {
		if err := CheckAddress(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", ":1", "host", "host:", "host:0", "host:65536", "host:+1", "host:01", "fd00::1:4792",
		"[10.0.0.1]:1", "[host]:1", "[fd00::1:1", "0.0.0.0:1", "[::]:1", "224.0.0.1:1", "-a:1", "a..b:1", "1.2.3:4",
		"a b:1", "a\n:1", strings.Repeat("a", 64) + ":1"} {
		if CheckAddress(s) == nil {
			t.Errorf("%q passes", s)
		}
	}
}

// FuzzCheck sends any request to a fabric: only one with the token's secret and a signature of its own key is granted,
// and what is granted can be signed and encoded.
func FuzzCheck(f *testing.F) {
	t := &testing.T{}
	b := newBench(t, "a1", "a2")
	r, s := b.request("b9", guid(9))
	good, _ := json.Marshal(r)
	f.Add(good)
	f.Add([]byte(`{"token":"aaaaaaaa","secret":"AAAA"}`))
	secret := slices.Clone(r.Secret)
	f.Fuzz(func(t *testing.T, body []byte) {
		var q Request
		if json.Unmarshal(body, &q) != nil {
			return
		}
		g, p := Check(&q, s, start)
		if p != nil {
			if strings.ContainsAny(p.Error(), "\n\r\x1b\x00") || len(p.Error()) > 1024 {
				t.Errorf("%q", p.Error())
			}
			return
		}
		if string(q.Secret) != string(secret) {
			t.Fatal("granted without the secret")
		}
		der, err := b.ca.Issue(g.Claims, g.Key, start, 0, b.random)
		if err != nil {
			t.Fatal(err)
		}
		g.Record.Certificate = der
		if _, err := Encode(g.Record); err != nil {
			t.Fatal(err)
		}
	})
}

// TestPin compares the pin of a certificate with what OpenSSL computes of it:
// openssl x509 -in testdata/ca.pem -pubkey -noout | openssl pkey -pubin -outform DER | openssl dgst -sha256
func TestPin(t *testing.T) {
	text, err := os.ReadFile("testdata/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	c := parsePEM(t, text)
	const want = "c705ccd73d927df16d8a724f400212ce76c47737c9927d4b1095e90fad678473"
	if got := KeyOf(c).String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	p := PinOf(c)
	if got := tokenText.EncodeToString(p[:]); got != "y4c4zvz5sj67c3mkojhuaaqszz3mi5zx" {
		t.Errorf("%s", got)
	}
}
