// SPDX-License-Identifier: Apache-2.0

package member

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MaxName is the longest name of a member: a label of the DNS (RFC 1035, section 2.3.4).
const MaxName = 63

// reserved are names with another meaning in commands or certificates.
var reserved = []string{"all", "any", "none", "self", "localhost", "fabric", "weft", "ca", "member", "voter", "manager",
	"administrator", "leaf", "spine"}

// CheckName returns why s is no name of a member: a lower-case label as RFC 1123, section 2.1, has it.
func CheckName(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("the name is empty")
	case len(s) > MaxName:
		return fmt.Errorf("the name has %d octets, at most %d fit", len(s), MaxName)
	case s[0] == '-' || s[len(s)-1] == '-':
		return fmt.Errorf("the name %q begins or ends with a hyphen", s)
	case slices.Contains(reserved, s):
		return fmt.Errorf("the name %q has another meaning", s)
	}
	digits := true
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("the name %q has characters other than a-z, 0-9 and -", printable(s))
		}
		digits = digits && c >= '0' && c <= '9'
	}
	if digits {
		return fmt.Errorf("the name %q is a number", s)
	}
	return nil
}

// NameOf makes a name of a member of a host's name: its first label in lower case, without what CheckName refuses. It
// is empty where nothing remains.
func NameOf(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, host), "-")
	name = strings.TrimRight(name[:min(len(name), MaxName)], "-")
	if CheckName(name) != nil {
		return ""
	}
	return name
}

// printable bounds a foreign text, and replaces what is not printable ASCII.
func printable(s string) string {
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// MaxAddresses bounds the addresses of a member.
const MaxAddresses = 16

// CheckAddress returns why s is no address of a member: HOST:PORT with an IP address, in brackets where it is IPv6, or
// a DNS name.
func CheckAddress(s string) error {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return fmt.Errorf("the address %q has no port", printable(s))
	}
	host, port := s[:i], s[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' || port[0] == '+' {
		return fmt.Errorf("the address %q has no port of 1 to 65535", printable(s))
	}
	bare, bracketed := strings.CutPrefix(host, "[")
	if bracketed {
		bare, bracketed = strings.CutSuffix(bare, "]")
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		switch {
		case a.Is4() == bracketed:
			return fmt.Errorf("the address %q: brackets belong around IPv6 addresses", printable(s))
		case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() && a.Zone() != "":
			return fmt.Errorf("the address %q is no address of a host", printable(s))
		}
		return nil
	}
	if bracketed || len(host) == 0 || len(host) > 253 {
		return fmt.Errorf("the address %q has no host", printable(s))
	}
	numeric := true
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("the address %q has no DNS name", printable(s))
		}
		numeric = true
		for _, c := range []byte(label) {
			letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_'
			if !letter && (c < '0' || c > '9') {
				return fmt.Errorf("the address %q has no DNS name", printable(s))
			}
			numeric = numeric && !letter
		}
	}
	if numeric { // 10.0.0 or 10.0.0.300
		return fmt.Errorf("the address %q is no IP address", printable(s))
	}
	return nil
}

// Role is a set of roles. The empty set is a plain member: it serves programs and devices, and no packets of third
// members pass its switch.
type Role uint8

// Roles.
const (
	// Voter may hold the store, and with it the key of the CA.
	Voter Role = 1 << iota
	// Manager may run the subnet manager, and read the M_Keys.
	Manager
	// Administrator: root on the member may change the fabric.
	Administrator
	// Leaf: no path of others leads through the member; one open UDP port is enough.
	Leaf
	// Spine: paths of others lead through the member before all members without this role. It permits nothing.
	Spine

	allRoles = Voter | Manager | Administrator | Leaf | Spine
)

// HostRoles is what a host gets where a token does not restrict it.
const HostRoles = Voter | Manager | Administrator

var roleNames = []string{"voter", "manager", "administrator", "leaf", "spine"}

// Has reports whether r has all of x.
func (r Role) Has(x Role) bool { return r&x == x }

// Transits reports whether a member with these roles may carry packets of third members. A switch on the way can change
// the management packets that pass it, so only a member does that can change the subnet by its role anyway: a voter by
// the store, an administrator by commands, and a manager.
func (r Role) Transits() bool { return r&(Voter|Manager|Administrator) != 0 && !r.Has(Leaf) }

// errConfinedSpine is why a member without another role is no spine.
var errConfinedSpine = errors.New("a spine carries management packets of others: it is a voter, manager or " +
	"administrator as well")

// Check returns why r is no set of roles.
func (r Role) Check() error {
	switch {
	case r&^allRoles != 0:
		return fmt.Errorf("there is no role %#x", uint8(r&^allRoles))
	case r.Has(Leaf) && r&(Voter|Manager) != 0:
		return fmt.Errorf("a leaf is neither voter nor manager")
	case r.Has(Leaf | Spine):
		return fmt.Errorf("a leaf is no spine")
	}
	return nil
}

// Assignable returns why a host cannot be given r. Members that are no voters read the records of members and write
// none, so that an administrator without that role could change nothing. Records can have roles that are not assignable
// any more.
func (r Role) Assignable() error {
	if r.Has(Spine) && !r.Transits() {
		return errConfinedSpine
	}
	if r.Has(Administrator) && !r.Has(Voter) {
		return errors.New("an administrator is a voter as well: only voters write the records of members")
	}
	return r.Check()
}

// String lists the roles with commas between them, "member" where there is none.
func (r Role) String() string {
	var s []string
	for i, name := range roleNames {
		if r&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	if len(s) == 0 {
		return "member"
	}
	return strings.Join(s, ",")
}

// ParseRoles is the reverse of String.
func ParseRoles(s string) (r Role, err error) {
	if s == "member" {
		return 0, nil
	}
	for name := range strings.SplitSeq(s, ",") {
		i := slices.Index(roleNames, name)
		if i < 0 || r&(1<<i) != 0 {
			return 0, fmt.Errorf("%q is no list of roles out of %s", printable(s), strings.Join(roleNames, ", "))
		}
		r |= 1 << i
	}
	return r, r.Check()
}

// MarshalText implements encoding.TextMarshaler.
func (r Role) MarshalText() ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	return []byte(r.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler. It takes the form of MarshalText alone.
func (r *Role) UnmarshalText(b []byte) error {
	v, err := ParseRoles(string(b))
	if err == nil && v.String() != string(b) {
		err = fmt.Errorf("the roles %q are not in order", printable(string(b)))
	}
	if err == nil {
		*r = v
	}
	return err
}
