// SPDX-License-Identifier: Apache-2.0

package member

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft/internal/mgmt/member/shape"
	"weft/internal/proto/ib"
)

// Bounds of records.
const (
	MaxMembers = 1024
	MaxRecord  = 64 << 10 // octets of a record, but for a Roster
	MaxRoster  = 16 << 20
	maxCAs     = 8
	maxText    = 256
)

// State is the part of a member's life.
type State uint8

// States.
const (
	// Joining: the member has a certificate and was not seen with it yet.
	Joining State = iota + 1
	// Active: the member takes part.
	Active
	// Draining: no new program, guest, IP link or virtual port is accepted, and the present ones may end.
	Draining
	// Drained: nothing uses the member any more.
	Drained
)

var stateNames = []string{"", "joining", "active", "draining", "drained"}

// String is the state in a word.
func (s State) String() string {
	if int(s) < len(stateNames) && s != 0 {
		return stateNames[s]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) {
	if s == 0 || int(s) >= len(stateNames) {
		return nil, fmt.Errorf("there is no state %d of a member", s)
	}
	return []byte(stateNames[s]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *State) UnmarshalText(b []byte) error {
	i := slices.Index(stateNames[1:], string(b))
	if i < 0 {
		return fmt.Errorf("a member is not %q", printable(string(b)))
	}
	*s = State(i + 1)
	return nil
}

// Event is what changes the state of a member.
type Event uint8

// Events.
const (
	Seen    Event = iota // a trunk or the store saw its certificate
	Drain                // requested by an administrator
	Idle                 // reported by the member: nothing uses it
	Busy                 // reported by the member: something uses it
	Undrain              // requested by an administrator
)

// transitions are all changes of state. An event without one leaves the state as it is.
var transitions = map[State]map[Event]State{
	Joining:  {Seen: Active, Drain: Draining},
	Active:   {Drain: Draining},
	Draining: {Idle: Drained, Undrain: Active},
	Drained:  {Busy: Draining, Undrain: Active},
}

// After returns the state after an event.
func (s State) After(e Event) State {
	if next, ok := transitions[s][e]; ok {
		return next
	}
	return s
}

// Record is a member in the store. Its key there is the GUID, which stays over renames.
type Record struct {
	Form
	GUID        ib.GUID   `json:"guid"`
	Name        string    `json:"name"`
	Key         Key       `json:"key"`
	Certificate []byte    `json:"certificate"` // the newest, DER
	Roles       Role      `json:"roles"`
	State       State     `json:"state"`
	Force       bool      `json:"force,omitempty"`  // of Draining: what uses the member is ended
	Addresses   []string  `json:"addresses"`        // HOST:PORT of its trunks, which the join protocol has too
	Store       string    `json:"store,omitempty"`  // HOST:PORT at which its store serves members; empty: it has none
	Epochs      []uint32  `json:"epochs,omitempty"` // of the CAs with keys that were sealed to it
	Joined      time.Time `json:"joined"`
	// Switch is what the member reported about trunks, and Place where the plan put it (package shape).
	Switch Switch      `json:"switch,omitzero"`
	Place  shape.Place `json:"place,omitzero"`
	// Away: it has not been connected to the store for a while, and is a spine only if there are not enough others.
	Away bool   `json:"away,omitempty"`
	By   string `json:"by"` // the author: a token and its maker
}

// Check returns why r is no record.
func (r *Record) Check() error {
	if err := CheckGUID(r.GUID); err != nil {
		return err
	}
	if err := CheckName(r.Name); err != nil {
		return err
	}
	if err := r.Roles.Check(); err != nil {
		return err
	}
	switch {
	case r.State == 0:
		return errors.New("the member has no state")
	case r.Key == Key{}:
		return errors.New("the member has no key")
	case len(r.Addresses) > MaxAddresses || len(r.Epochs) > maxCAs || len(r.By) > maxText:
		return errors.New("a list of the member is too long")
	}
	if err := checkAddresses(r.Addresses, r.Store); err != nil {
		return err
	}
	if err := r.Switch.Check(); err != nil {
		return err
	}
	c, err := x509.ParseCertificate(r.Certificate)
	if err != nil {
		return fmt.Errorf("the certificate of %s: %w", r.Name, err)
	}
	if KeyOf(c) != r.Key {
		return fmt.Errorf("the certificate of %s has another key", r.Name)
	}
	return nil
}

func checkAddresses(list []string, store string) error {
	if store != "" {
		list = append(list[:len(list):len(list)], store)
	}
	for _, a := range list {
		if err := CheckAddress(a); err != nil {
			return err
		}
	}
	return nil
}

// Switch is the switch of a member, as the plan of trunks needs it.
type Switch struct {
	Ports   int `json:"ports,omitempty"`   // 0: not reported yet
	Devices int `json:"devices,omitempty"` // ports that are not for trunks, at least shape.DevicePorts
	// Settled is shape.Plan.Mark while all planned trunks of the member are up, 0 otherwise.
	Settled uint64 `json:"settled,omitempty"`
}

// Check returns why s is no switch.
func (s Switch) Check() error {
	if s.Ports < 0 || s.Ports > shape.MaxPorts || s.Devices < 0 || s.Devices > shape.MaxPorts {
		return fmt.Errorf("a switch has no %d ports with %d for devices", s.Ports, s.Devices)
	}
	return nil
}

// Gone is a removed member. It stays until its certificates have ended.
type Gone struct {
	Form
	GUID  ib.GUID   `json:"guid"`
	Name  string    `json:"name"`
	Key   Key       `json:"key"`
	At    time.Time `json:"at"`
	By    string    `json:"by"`
	Until time.Time `json:"until"` // the end of its last certificate: then the record may go
	// MKey: the M_Key that it had is still in force. A removal is complete when none has it.
	MKey bool `json:"m_key,omitempty"`
}

// Check returns why g is no record.
func (g *Gone) Check() error {
	if g.Key == (Key{}) || g.At.IsZero() || g.Until.Before(g.At) || len(g.By) > maxText {
		return errors.New("the removal has no key, or no time")
	}
	if err := CheckGUID(g.GUID); err != nil {
		return err
	}
	return CheckName(g.Name)
}

// Policy is what an administrator sets for all members.
type Policy struct {
	Skew       time.Duration `json:"skew"`        // of two clocks, at most
	MemberLife time.Duration `json:"member_life"` // of a certificate
}

// Check returns why p is no policy.
func (p Policy) Check() error {
	switch {
	case p.Skew < time.Second || p.Skew > backdate/2:
		return fmt.Errorf("the difference of clocks is bounded by 1s to %v, not %v", backdate/2, p.Skew)
	case p.MemberLife < time.Hour || p.MemberLife > 2*365*24*time.Hour:
		return fmt.Errorf("certificates are valid for 1h to 17520h, not %v", p.MemberLife)
	}
	return nil
}

// DefaultPolicy is that of a new fabric.
var DefaultPolicy = Policy{Skew: MaxSkew, MemberLife: MemberLife}

// Fabric is the identity of a fabric with its CAs.
type Fabric struct {
	Form
	ID     string    `json:"id"`
	Made   time.Time `json:"made"`
	Policy Policy    `json:"policy"`
	CAs    []CA      `json:"cas"` // in the order of their epochs; one signs
}

// Check returns why f is no fabric.
func (f *Fabric) Check() error {
	if err := checkFabric(f.ID); err != nil {
		return err
	}
	if err := f.Policy.Check(); err != nil {
		return err
	}
	return checkCAs(f.ID, f.CAs)
}

func checkCAs(fabric string, cas []CA) error {
	if len(cas) == 0 || len(cas) > maxCAs {
		return fmt.Errorf("a fabric has 1 to %d CAs, not %d", maxCAs, len(cas))
	}
	signing := 0
	for i := range cas {
		c, err := cas[i].parse()
		if err != nil {
			return err
		}
		if len(c.Subject.Organization) != 1 || c.Subject.Organization[0] != fabric {
			return fmt.Errorf("the CA of epoch %d is of another fabric", cas[i].Epoch)
		}
		if i > 0 && cas[i].Epoch <= cas[i-1].Epoch {
			return errors.New("the CAs are not in the order of their epochs")
		}
		if cas[i].State == 0 {
			return fmt.Errorf("the CA of epoch %d has no state", cas[i].Epoch)
		}
		if cas[i].State == CASigning {
			signing++
		}
	}
	if signing != 1 {
		return fmt.Errorf("one CA signs, not %d", signing)
	}
	return nil
}

// Signing is the CA that signs.
func (f *Fabric) Signing() *CA {
	for i := range f.CAs {
		if f.CAs[i].State == CASigning {
			return &f.CAs[i]
		}
	}
	return nil
}

// Report is what a member writes about itself; no other member writes it.
type Report struct {
	Form
	GUID        ib.GUID   `json:"guid"`
	Incarnation uint64    `json:"incarnation"`     // drawn at each start of the node
	Program     string    `json:"program"`         // version of weft
	Clock       time.Time `json:"clock"`           // when it was written, by the member's clock
	Addresses   []string  `json:"addresses"`       // as they are now; they replace those of the Record
	Store       string    `json:"store,omitempty"` // as of the Record
	Users       []User    `json:"users"`           // what keeps a drain waiting
	More        int       `json:"more"`            // users beyond the list
	CAs         []uint32  `json:"cas"`             // epochs that its roster has: a CA signs when every member has it
	// Signed is the epoch of the CA of the certificate that the member uses; 0: that is not the certificate of its
	// record, or a restore ended the report.
	Signed uint32 `json:"signed"`
	Switch Switch `json:"switch,omitzero"` // as of the Record
}

// User is what uses a member.
type User struct {
	Kind string `json:"kind"` // program, guest, IP link, VESW port
	Name string `json:"name"`
	PID  int    `json:"pid,omitempty"`
	UID  int    `json:"uid,omitempty"`
}

// MaxUsers bounds the users of a Report.
const MaxUsers = 64

// Check returns why r is no report.
func (r *Report) Check() error {
	if err := CheckGUID(r.GUID); err != nil {
		return err
	}
	if len(r.Users) > MaxUsers || len(r.CAs) > maxCAs || len(r.Program) > maxText || r.More < 0 ||
		len(r.Addresses) > MaxAddresses {
		return errors.New("a list of the report is too long")
	}
	if err := checkAddresses(r.Addresses, r.Store); err != nil {
		return err
	}
	if err := r.Switch.Check(); err != nil {
		return err
	}
	for _, u := range r.Users {
		if len(u.Kind)+len(u.Name) > maxText {
			return errors.New("a name in the report is too long")
		}
	}
	return nil
}

// Check returns why s is no sealed key.
func (s *Sealed) Check() error {
	if s.Epoch == 0 || s.To == (Key{}) || len(s.Box) == 0 || len(s.Box) > 1024 {
		return errors.New("the sealed key has no epoch, no voter or no content")
	}
	return nil
}
