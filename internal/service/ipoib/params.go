// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft/internal/proto/ib"
)

// Jiffy is the unit of the parameter timeout.
const Jiffy = 10 * time.Millisecond

// Bits of Params.Debug: what is reported as events beside failures.
const (
	DebugControl = 1 << iota
	DebugMulticast
	DebugData
	DebugPath
)

// SendOnly is the rule for sending to a group without being a member.
type SendOnly uint8

// Rules for sending to a group without being a member.
const (
	// SendOnlyRFC joins existing groups only, as a sender; other packets go to the routers of the link, if they
	// may leave the link (RFC 4391, 7.3).
	SendOnlyRFC SendOnly = iota
	// SendOnlyCreate creates groups that do not exist.
	SendOnlyCreate
)

// Mode is how packets travel to one node.
type Mode uint8

// Modes: every packet is a datagram, or a packet goes by a connection where the neighbour takes one (RFC 4755).
const (
	Datagram Mode = iota
	Connected
)

var modeNames = []string{"datagram", "connected"}

// String returns the mode's name.
func (m Mode) String() string { return modeNames[m] }

// Params are the parameters of a link.
type Params struct {
	SQDepth     int           // send queue, send slots, and queue length of the network device
	RQDepth     int           // receive slots
	McastWait   time.Duration // mcast_timeout: for the answer to one request to join
	McastRetry  int           // mcast_retry_cnt: requests after the first, before backing off
	TxTimeout   time.Duration // timeout: how long a send may take
	Debug       uint
	PKeys       []ib.PKey // partitions to have links in; empty: all that have a broadcast group
	Create      bool      // with PKeys: create broadcast groups that are missing
	TxCopybreak int       // longer frames are mapped, if they can be, instead of copied
	Scope       uint8     // of broadcast groups
	SendOnly    SendOnly
	ShadowIdle  time.Duration // after which an unused shadow entry goes
	MaxNeigh    int           // neighbours, and shadow entries
	Mode        Mode
	MaxConns    int           // connections at a time
	ConnIdle    time.Duration // after which an unused connection ends
}

// Bounds of queue depths. Depths are powers of two.
const (
	minSQDepth = 128
	minRQDepth = 2
	maxDepth   = 8192
	maxPKeys   = 64
	maxConns   = 4096
)

// DefaultParams returns the default parameters.
func DefaultParams() Params {
	return Params{SQDepth: 512, RQDepth: 1024, McastWait: time.Second, McastRetry: 3, TxTimeout: 100 * Jiffy,
		TxCopybreak: 256, Scope: 2, ShadowIdle: time.Minute, MaxNeigh: 16384, MaxConns: 256, ConnIdle: 512 * time.Second}
}

// params has the parameters by name. set parses the text of a value and stores it.
var params = []struct {
	name, help string
	set        func(p *Params, v string) error
	get        func(p *Params) string
}{
	{"sq_depth", "send queue depth, in frames", depth(minSQDepth, func(p *Params) *int { return &p.SQDepth }),
		number(func(p *Params) *int { return &p.SQDepth })},
	{"rq_depth", "receive queue depth, in buffers", depth(minRQDepth, func(p *Params) *int { return &p.RQDepth }),
		number(func(p *Params) *int { return &p.RQDepth })},
	{"mcast_timeout", "time for one request to join a multicast group, in milliseconds",
		duration(time.Millisecond, 10*time.Millisecond, time.Minute,
			func(p *Params) *time.Duration { return &p.McastWait }),
		units(time.Millisecond, func(p *Params) *time.Duration { return &p.McastWait })},
	{"mcast_retry_cnt", "requests to join a multicast group after the first, before backing off",
		between(0, 100, func(p *Params) *int { return &p.McastRetry }),
		number(func(p *Params) *int { return &p.McastRetry })},
	{"timeout", "time that a send may take, in jiffies of 10 ms",
		duration(Jiffy, Jiffy, time.Hour, func(p *Params) *time.Duration { return &p.TxTimeout }),
		units(Jiffy, func(p *Params) *time.Duration { return &p.TxTimeout })},
	{"debug", "what to report as events, as a sum: 1 control, 2 multicast, 4 data, 8 path", setDebug,
		func(p *Params) string { return strconv.Itoa(int(p.Debug)) }},
	{"pkeys", "partitions to have links in, separated by commas; empty: all with a broadcast group", setPKeys,
		getPKeys},
	{"create", "create missing broadcast groups of the partitions in pkeys: 0 or 1", setCreate, func(p *Params) string {
		if p.Create {
			return "1"
		}
		return "0"
	}},
	{"tx_copybreak", "frames longer than this, in octets, are mapped instead of copied; all: copy all frames",
		setCopybreak, func(p *Params) string {
			if p.TxCopybreak == math.MaxInt {
				return "all"
			}
			return strconv.Itoa(p.TxCopybreak)
		}},
	{"scope", "scope of broadcast groups", setScope, func(p *Params) string { return strconv.Itoa(int(p.Scope)) }},
	{"sendonly", "sending to groups without being a member: rfc, or create to create them", setSendOnly,
		func(p *Params) string {
			return [...]string{"rfc", "create"}[p.SendOnly]
		}},
	{"shadow_idle", "time after which an unused shadow entry is removed, in seconds",
		duration(time.Second, time.Second, 24*time.Hour, func(p *Params) *time.Duration { return &p.ShadowIdle }),
		units(time.Second, func(p *Params) *time.Duration { return &p.ShadowIdle })},
	{"max_neigh", "largest number of neighbours of a link", between(16, 1<<20,
		func(p *Params) *int { return &p.MaxNeigh }), number(func(p *Params) *int { return &p.MaxNeigh })},
	{"mode", "datagram, or connected: by a connection with each neighbour that takes one", setMode,
		func(p *Params) string { return p.Mode.String() }},
	{"max_conns", "connections of connected mode at a time", between(1, maxConns,
		func(p *Params) *int { return &p.MaxConns }), number(func(p *Params) *int { return &p.MaxConns })},
	{"conn_idle", "time after which an unused connection ends, in seconds",
		duration(time.Second, time.Second, 24*time.Hour, func(p *Params) *time.Duration { return &p.ConnIdle }),
		units(time.Second, func(p *Params) *time.Duration { return &p.ConnIdle })},
}

func between(lo, hi int, f func(p *Params) *int) func(p *Params, v string) error {
	return func(p *Params, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("%q is not a number", v)
		}
		if n < lo || n > hi {
			return fmt.Errorf("%d is not in %d … %d", n, lo, hi)
		}
		*f(p) = n
		return nil
	}
}

// depth parses a queue depth, and rounds it up to a power of two.
func depth(lo int, f func(p *Params) *int) func(p *Params, v string) error {
	set := between(1, maxDepth, f)
	return func(p *Params, v string) error {
		if err := set(p, v); err != nil {
			return err
		}
		n := lo
		for n < *f(p) {
			n *= 2
		}
		*f(p) = n
		return nil
	}
}

// duration parses a number of units, or a duration in the syntax of Go.
func duration(unit, lo, hi time.Duration, f func(p *Params) *time.Duration) func(p *Params, v string) error {
	return func(p *Params, v string) error {
		d, err := time.ParseDuration(v)
		if n, nerr := strconv.ParseInt(v, 10, 32); nerr == nil {
			d, err = time.Duration(n)*unit, nil
		}
		if err != nil {
			return fmt.Errorf("%q is neither a number of %v nor a duration such as 1s", v, unit)
		}
		if d < lo || d > hi {
			return fmt.Errorf("%v is not in %v … %v", d, lo, hi)
		}
		*f(p) = d
		return nil
	}
}

func number(f func(p *Params) *int) func(p *Params) string {
	return func(p *Params) string { return strconv.Itoa(*f(p)) }
}

func units(unit time.Duration, f func(p *Params) *time.Duration) func(p *Params) string {
	return func(p *Params) string {
		if d := *f(p); d%unit != 0 {
			return d.String()
		}
		return strconv.FormatInt(int64(*f(p)/unit), 10)
	}
}

func setDebug(p *Params, v string) error {
	n, err := strconv.ParseUint(v, 0, 4)
	if err != nil {
		return fmt.Errorf("%q is not a number in 0 … 15", v)
	}
	p.Debug = uint(n)
	return nil
}

func setPKeys(p *Params, v string) error {
	var keys []ib.PKey
	for _, s := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.ParseUint(s, 0, 16)
		if err != nil || n&0x7fff == 0 {
			return fmt.Errorf("%q is not a P_Key such as 0x8014", s)
		}
		if k := ib.PKey(n) | 0x8000; !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if len(keys) > maxPKeys {
		return fmt.Errorf("%d P_Keys are more than %d", len(keys), maxPKeys)
	}
	p.PKeys = keys
	return nil
}

func getPKeys(p *Params) string {
	var b []string
	for _, k := range p.PKeys {
		b = append(b, fmt.Sprintf("0x%04x", uint16(k)))
	}
	return strings.Join(b, ",")
}

func setCreate(p *Params, v string) error {
	b, err := strconv.ParseBool(v)
	if err != nil {
		return fmt.Errorf("%q is neither 0 nor 1", v)
	}
	p.Create = b
	return nil
}

func setCopybreak(p *Params, v string) error {
	if v == "all" {
		p.TxCopybreak = math.MaxInt
		return nil
	}
	return between(0, MaxPacket, func(p *Params) *int { return &p.TxCopybreak })(p, v)
}

func setScope(p *Params, v string) error {
	n, err := strconv.ParseUint(v, 0, 4)
	if err != nil || n == 0 || n == 15 {
		return fmt.Errorf("%q is not a scope in 1 … 14", v)
	}
	p.Scope = uint8(n)
	return nil
}

func setSendOnly(p *Params, v string) error {
	i := slices.Index([]string{"rfc", "create"}, v)
	if i < 0 {
		return fmt.Errorf("%q is neither rfc nor create", v)
	}
	p.SendOnly = SendOnly(i)
	return nil
}

func setMode(p *Params, v string) error {
	i := slices.Index(modeNames, v)
	if i < 0 {
		return fmt.Errorf("%q is neither datagram nor connected", v)
	}
	p.Mode = Mode(i)
	return nil
}

// ErrUnknownParam is the cause of the error of Set for an unknown name.
var ErrUnknownParam = errors.New("no such parameter")

// Set sets a parameter by name.
func (p *Params) Set(name, value string) error {
	for i := range params {
		if params[i].name != name {
			continue
		}
		if err := params[i].set(p, strings.TrimSpace(value)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("%s: %w", name, ErrUnknownParam)
}

// Param is a parameter with its value and help text.
type Param struct{ Name, Value, Help string }

// List returns all parameters.
func (p *Params) List() []Param {
	l := make([]Param, len(params))
	for i := range params {
		l[i] = Param{params[i].name, params[i].get(p), params[i].help}
	}
	return l
}

// ParseParams returns the parameters of a configuration file and of a command line. The file has lines "name = value",
// and comments from # on; text may be empty. The words of the command line are "name=value", and take precedence. The
// error lists all faults, those of the file with its name and the line.
func ParseParams(file, text string, words []string) (Params, error) {
	p := DefaultParams()
	var faults []error
	first := map[string]int{}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, err := p.assign(line)
		if at, twice := first[name]; err == nil && twice {
			err = fmt.Errorf("%s: set on line %d already", name, at)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %w", file, i+1, err))
			continue
		}
		first[name] = i + 1
	}
	for _, w := range words {
		if _, err := p.assign(w); err != nil {
			faults = append(faults, fmt.Errorf("command line: %w", err))
		}
	}
	return p, errors.Join(faults...)
}

func (p *Params) assign(s string) (name string, err error) {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		return "", fmt.Errorf("%q is not of the form name=value", s)
	}
	name = strings.TrimSpace(name)
	return name, p.Set(name, value)
}
