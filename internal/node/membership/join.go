// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"weft/internal/host/hostnet"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/home"
	"weft/internal/mgmt/member/join"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// JoinSpec is a host that joins.
type JoinSpec struct {
	Dir       string // of its node, which does not run
	GUID      ib.GUID
	Host      string // HOST or HOST:PORT of a member
	Port      int    // of its trunks
	Token     string
	Name      string   // empty: of the host's name
	Roles     string   // empty: all that the token gives
	Addresses []string // empty: those of its interfaces
	Program   string
	Now       func() time.Time
}

// Joined is a host that joined.
type Joined struct {
	Name, Fabric string
	Roles        member.Role
	Members      int
	Warnings     []string
}

const cannotJoin = "cannot join the fabric"

// Join makes a host a member, and keeps that in the directory of its node. On an error the directory is as before,
// except that keys stay where the answer was lost: with them the next attempt is the same host.
func Join(ctx context.Context, s JoinSpec) (*Joined, error) {
	token, err := member.ParseSecret(s.Token)
	if err != nil {
		return nil, problem.New(cannotJoin, err.Error(), "copy the whole line that weft token printed")
	}
	q := member.Request{Program: s.Program, GUID: s.GUID, Name: s.Name}
	if q.Name == "" {
		host, err := os.Hostname()
		if q.Name = member.NameOf(host); q.Name == "" || err != nil {
			return nil, problem.New(cannotJoin, "the name of this host is no name of a member", "weft join --name NAME")
		}
	}
	if s.Roles != "" {
		r, err := member.ParseRoles(s.Roles)
		if err != nil {
			return nil, problem.New(cannotJoin, err.Error(), "weft join --role ROLES")
		}
		q.Roles = &r
	}
	if q.Addresses, err = addresses(s.Addresses, s.Port); err != nil {
		return nil, problem.New(cannotJoin, err.Error(), "weft join --address HOST:PORT")
	}
	dir := home.Open(s.Dir)
	fresh := !dir.Pending()
	id, err := dir.Join(s.GUID)
	if err != nil {
		if fresh {
			err = errors.Join(err, dir.Abandon())
		}
		return nil, err
	}
	client := join.Client{Now: s.Now, MTU: hostnet.PathMTU}
	a, p := client.Join(ctx, withPort(s.Host, s.Port), token, id, q)
	if p != nil {
		if fresh && !join.Lost(p) {
			if err := dir.Abandon(); err != nil {
				return nil, err
			}
		}
		return nil, p
	}
	keys, err := id.Encode()
	if err != nil {
		return nil, err
	}
	kept := &home.Membership{Fabric: a.Roster.Fabric, Name: q.Name, GUID: s.GUID, Keys: keys,
		Certificate: a.Certificate, CAs: a.Roster.CAs, Voters: keptVoters(&a.Roster, s.GUID)}
	if len(s.Addresses) > 0 {
		kept.Addresses = q.Addresses
	}
	if err := dir.Commit(kept, &a.Roster); err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(a.Certificate)
	if err != nil {
		return nil, err
	}
	claims, err := member.ClaimsOf(cert)
	return &Joined{Name: q.Name, Fabric: a.Roster.Fabric, Roles: claims.Roles, Members: len(a.Roster.Members),
		Warnings: a.Warnings}, err
}

// addresses are those that were named, each with a port, or those of the host.
func addresses(named []string, port int) (list []string, err error) {
	if len(named) == 0 {
		return hostnet.Addresses(uint16(port), member.MaxAddresses), nil
	}
	for _, a := range named {
		a = withPort(a, port)
		if err := member.CheckAddress(a); err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// withPort adds a port to a host without one.
func withPort(host string, port int) string {
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return net.JoinHostPort(a.String(), strconv.Itoa(port))
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
