// SPDX-License-Identifier: Apache-2.0

// Package config holds the settings of a node. Settings describes each of them once: flag, environment variable, key of
// the file, default, help, check and documentation are derived from it.
//
// What comes in: flags, environment, file and defaults, in that order of precedence; what goes out: a checked Config.
// Called by cli, and by node for the type. It starts nothing, and opens no file but the one it is given.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"net/url"
	"regexp"
	"runtime"
	"strings"
	"time"

	"weft/internal/proto/ib"
)

// RoCEPort is the UDP port of RoCEv2 (IBA annex A17), TrunkPort that of trunks (docs/notes/trunk.md), StorePort the TCP
// port of the store of a fabric's members.
const (
	RoCEPort  = 4791
	TrunkPort = 4792
	StorePort = 4793
)

// Limits of what Validate accepts.
const (
	MaxLanes = 64
	MaxSpin  = 100 * time.Millisecond
	// MaxMcastPayloads is 256 MiB.
	MaxMcastPayloads = 1 << 16
)

// Config is the configuration of a node. Settings describes each field.
type Config struct {
	Dir      string // absolute path; set by the caller where no source has it
	Device   string
	Lanes    int // 0: one per two CPUs, at most 4; see LaneCount
	RoCEPort int // 0: RoCEPort if it is free, else another; see ChoosePort
	// RoCEInterfaces are names or shell patterns of interfaces; empty: all but InfiniBand ones and those of a node's
	// own fabric.
	RoCEInterfaces []string
	RoCEAllow      []string // see RoCEAllowed
	WireLocal      bool
	ICRC           string // one of the ICRC constants
	RealTime       bool
	Spin           time.Duration
	IdleExit       time.Duration // 0: never
	AllowUIDs      []int
	LogLevel       string // see Level

	McastPayloads  int
	McastThreshold int // 0: McastPayloads

	Fabric    bool
	Peers     []string // see PeerAddr
	TrunkPort int
	// TrunkSecurity is what is done to packets on trunks: one of the Trunk constants.
	TrunkSecurity string
	TrunkKeyFile  string // empty: no key authenticates the nodes that Peers names
	SwitchPorts   int
	SM            string // one of the SM constants
	SMPriority    int
	MKeyFile      string // empty: the M_Key of the store
	Store         string // see StoreKind, StoreURLs
	StoreListen   string // empty: the embedded store has no listener
	StorePort     int    // TCP, of a member of a fabric

	// Of an etcd elsewhere: PEM files, and a file with USER:PASSWORD. Empty: none.
	StoreCAFile, StoreCertFile, StoreKeyFile, StoreUserFile string
	StoreReplaceAfter                                       time.Duration // absence of a voter until another replaces it

	IPoIB       bool
	IPoIBParams string
	IPoIBSet    []string // NAME=VALUE
	IPoIBAddrs  []string // LINK=ADDRESS/LENGTH
	IPoIBMTU    int
	IPoIBQKey   int
}

// Values of the setting trunk-security.
const (
	TrunkEncrypt      = "encrypt"
	TrunkAuthenticate = "authenticate"
	TrunkNone         = "none"
)

// Values of the setting sm.
const (
	SMAuto     = "auto"
	SMExternal = "external"
	SMOff      = "off"
)

// How the ICRC is checked.
const (
	ICRCAuto  = "auto"
	ICRCFull  = "full"
	ICRCSolve = "solve"
)

// Stores that need no URL.
const (
	StoreAuto     = "auto"
	StoreEmbedded = "embedded"
	StoreMemory   = "memory"
)

// Default returns the configuration with the default of every setting. Dir has none.
func Default() (c Config) {
	for i := range Settings {
		if set := &Settings[i]; set.Default != nil {
			set.assign(&c, set.Default)
		}
	}
	return c
}

var deviceName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`) // 63 bytes and a zero fit struct ibv_device

// Validate reports everything that is wrong with c, joined, one line each.
func (c Config) Validate() error {
	var errs []error
	for i := range Settings {
		set := &Settings[i]
		if set.check == nil {
			continue
		}
		set.check(&c, func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s %s", set.Name, fmt.Sprintf(format, args...)))
		})
	}
	return errors.Join(errs...)
}

func httpURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.Path == ""
}

// PeerAddr returns the address of a peer as Peers names it.
func (c Config) PeerAddr(peer string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(peer); err == nil {
		return a, nil
	}
	a, err := netip.ParseAddr(peer)
	return netip.AddrPortFrom(a, uint16(c.TrunkPort)), err
}

// RoCEAllowed returns the addresses that RoCEAllow lists, which are valid; nil: all addresses.
func (c Config) RoCEAllowed() *ib.AddrSet {
	if len(c.RoCEAllow) == 0 {
		return nil
	}
	var list []netip.Prefix
	for _, v := range c.RoCEAllow {
		p, _ := allowed(v) // one that is not valid adds nothing
		list = append(list, p)
	}
	return ib.NewAddrSet(list)
}

// allowed parses a value of roce-allow. The error is a sentence without subject.
func allowed(v string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(v); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(v)
	switch {
	case err != nil:
		_, why, _ := strings.Cut(err.Error(), "): ")
		return p, fmt.Errorf("must be prefixes such as 10.0.0.0/24 or fd00::/8, not %q: %s", v, why)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("must be prefixes without host bits: %v or %v/%d, not %q", p.Masked(),
			p.Addr(), p.Addr().BitLen(), v)
	}
	return p, nil
}

// StoreKind returns Store with "auto" resolved. A node for a limited time
// starts at once and leaves nothing behind.
func (c Config) StoreKind() string {
	switch {
	case c.Store != StoreAuto:
		return c.Store
	case c.IdleExit > 0:
		return StoreMemory
	}
	return StoreEmbedded
}

// StoreShared reports whether managers of other nodes use the store as well.
func (c Config) StoreShared() bool {
	k := c.StoreKind()
	return c.StoreListen != "" || k != StoreEmbedded && k != StoreMemory
}

// StoreURLs returns the URLs that Store names.
func (c Config) StoreURLs() []string { return strings.Split(c.Store, ",") }

// LaneCount returns the number of lanes with 0 resolved.
func (c Config) LaneCount() int {
	if c.Lanes > 0 {
		return c.Lanes
	}
	return min(max(runtime.NumCPU()/2, 1), 4)
}

// Level returns the log level.
func (c Config) Level() (slog.Level, error) {
	switch c.LogLevel {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("unknown level %q", c.LogLevel)
}

// DirPerm returns the permissions of the node's directory: its owner's alone,
// or open to look into where other users may have business. The device sockets and the
// control socket check the caller in either case.
func (c Config) DirPerm(uid int) fs.FileMode {
	if uid == 0 || len(c.AllowUIDs) > 0 {
		return 0o755
	}
	return 0o700
}
