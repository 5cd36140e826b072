// SPDX-License-Identifier: Apache-2.0

// Package config is what a node can be told: one struct with its defaults and
// its checks, filled from flags, environment, file and defaults in that order
// of precedence.
//
// What comes in: the four sources; what goes out: a checked Config. Called by
// cli, and by node for the type. It starts nothing, and opens no file but the
// one it is given.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// RoCEPort is the UDP port of RoCEv2 (IBA annex A17), TrunkPort that of trunks
// (docs/notes/trunk.md).
const (
	RoCEPort  = 4791
	TrunkPort = 4792
)

// Limits of what Validate accepts.
const (
	MaxLanes = 64
	MaxSpin  = 100 * time.Millisecond
	// MaxMcastPayloads is 256 MiB.
	MaxMcastPayloads = 1 << 16
)

// Config is the configuration of a node. The tags are the keys of the file;
// the environment variable of key "roce-port" is WEFT_ROCE_PORT, its flag
// --roce-port.
type Config struct {
	// Dir is the node's directory, an absolute path; set by the caller.
	Dir string `koanf:"dir" yaml:"dir"`
	// Device is the name of the verbs device.
	Device string `koanf:"device" yaml:"device"`
	// Lanes is the number of lanes; 0 means one per two CPUs, at most 4: the
	// programs want the others.
	Lanes int `koanf:"lanes" yaml:"lanes"`
	// RoCEPort is the UDP port of RoCEv2.
	RoCEPort int `koanf:"roce-port" yaml:"roce-port"`
	// RoCEInterfaces are the interfaces whose addresses are GIDs of the device, as names or shell patterns; empty: all
	// but InfiniBand ones and those of a node's own fabric.
	RoCEInterfaces []string `koanf:"roce-interfaces" yaml:"roce-interfaces"`
	// WireLocal sends traffic within the node through the full packet path.
	WireLocal bool `koanf:"wire-local" yaml:"wire-local"`
	// ICRC says how the ICRC of RoCEv2 packets is checked over IPv4: "full" learns
	// their identification by a raw socket (CAP_NET_RAW), "solve" does not, "auto"
	// is full where that is allowed.
	ICRC string `koanf:"icrc" yaml:"icrc"`
	// RealTime asks for real-time priority for the lanes (CAP_SYS_NICE or
	// RLIMIT_RTPRIO). Without it they take a short slice and, where allowed, a
	// strongly negative nice value.
	RealTime bool `koanf:"real-time" yaml:"real-time"`
	// Spin is how long a lane polls after its last work before it sleeps.
	Spin time.Duration `koanf:"spin" yaml:"spin"`
	// IdleExit ends the node so long after its last session; 0 means never.
	IdleExit time.Duration `koanf:"idle-exit" yaml:"idle-exit"`
	// AllowUIDs may use the door and read the state, besides root and the
	// node's own user.
	AllowUIDs []int `koanf:"allow-uid" yaml:"allow-uid"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `koanf:"log-level" yaml:"log-level"`

	// McastPayloads bounds the multicast packets the node holds for copying,
	// McastThreshold those of them whose members are still to be found: one more
	// is dropped. 0 is the maximum: none is dropped before the store is full.
	McastPayloads  int `koanf:"mcast-payloads" yaml:"mcast-payloads"`
	McastThreshold int `koanf:"mcast-threshold" yaml:"mcast-threshold"`

	// Fabric gives the node a vswitch, InfiniBand ports and a place in a
	// subnet (docs/notes/fabric.md).
	Fabric bool `koanf:"fabric" yaml:"fabric"`
	// Peers are the nodes that trunks lead to: address, or address:port.
	Peers []string `koanf:"peer" yaml:"peer"`
	// TrunkPort is the UDP port of trunks.
	TrunkPort int `koanf:"trunk-port" yaml:"trunk-port"`
	// SwitchPorts is the number of ports of the vswitch, for functions and
	// trunks together.
	SwitchPorts int `koanf:"switch-ports" yaml:"switch-ports"`
	// SM says who manages the subnet: "auto", this node if no better one does;
	// "external", a program such as opensm; "off", another node.
	SM string `koanf:"sm" yaml:"sm"`
	// SMPriority is the priority in the election of a master, 0 … 15; the
	// highest wins.
	SMPriority int `koanf:"sm-priority" yaml:"sm-priority"`
	// MKeyFile is a file with the M_Key that this node's manager guards ports
	// with; empty: what the store says.
	MKeyFile string `koanf:"m-key-file" yaml:"m-key-file"`
	// Store is where the manager keeps what it knows: "embedded" (etcd in the
	// node's directory), "memory", URLs of an etcd cluster, or "auto": memory
	// where the node ends by itself, else embedded.
	Store string `koanf:"store" yaml:"store"`
	// StoreListen is the URL at which the embedded store serves other nodes;
	// empty: none.
	StoreListen string `koanf:"store-listen" yaml:"store-listen"`

	// IPoIB has IP links of every InfiniBand device come and go with its
	// partitions (docs/notes/ipoib.md).
	IPoIB bool `koanf:"ipoib" yaml:"ipoib"`
	// IPoIBParams is a file with the parameters of links, one NAME = VALUE per line; IPoIBSet are
	// NAME=VALUE, which win.
	IPoIBParams string   `koanf:"ipoib-params" yaml:"ipoib-params"`
	IPoIBSet    []string `koanf:"ipoib-set" yaml:"ipoib-set"`
	// IPoIBAddrs are LINK=ADDRESS/LENGTH: IP addresses that links of IPoIB have
	// whenever they are there.
	IPoIBAddrs []string `koanf:"ipoib-addr" yaml:"ipoib-addr"`
	// IPoIBMTU is the MTU of the broadcast groups that this node's manager makes as
	// master, 2048 or 4096: that of IP links is 4 less.
	IPoIBMTU int `koanf:"ipoib-mtu" yaml:"ipoib-mtu"`
	// IPoIBQKey is their Q_Key: of IP links, and of all groups that links create.
	// With bit 31 set no program without privilege sends or receives by it.
	IPoIBQKey int `koanf:"ipoib-qkey" yaml:"ipoib-qkey"`
}

// Who manages the subnet.
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

// Default returns the configuration of a node that was told nothing; Dir is
// left to the caller.
func Default() Config {
	return Config{
		Device:   "weft0",
		RoCEPort: RoCEPort,
		ICRC:     ICRCAuto,
		Spin:     50 * time.Microsecond,
		LogLevel: "info",

		McastPayloads:  2048,
		McastThreshold: 1024,

		Fabric:      true,
		TrunkPort:   TrunkPort,
		SwitchPorts: 36,
		SM:          SMAuto,
		Store:       StoreAuto,

		IPoIBMTU: 2048, IPoIBQKey: 0x80000b1b,
	}
}

var deviceName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`) // 63 bytes and a zero fit struct ibv_device

// Validate reports everything that is wrong with c, joined, one line each.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s %s", key, fmt.Sprintf(format, args...)))
	}
	if !filepath.IsAbs(c.Dir) {
		bad("dir", "must be an absolute path, not %q", c.Dir)
	} else if n := len(filepath.Join(c.Dir, "door", c.Device+".sock")); n > 107 {
		bad("dir", "is too long: the door's socket path has %d bytes, at most 107 fit", n)
	}
	if !deviceName.MatchString(c.Device) {
		bad("device", "must be a letter and up to 62 letters, digits or ._-, not %q", c.Device)
	}
	if c.Lanes < 0 || c.Lanes > MaxLanes {
		bad("lanes", "must be 0 (one per two CPUs, at most 4) to %d, not %d", MaxLanes, c.Lanes)
	}
	if c.RoCEPort < 1 || c.RoCEPort > 65535 {
		bad("roce-port", "must be 1 to 65535, not %d", c.RoCEPort)
	}
	for _, v := range c.RoCEInterfaces {
		if _, err := path.Match(v, ""); err != nil || v == "" {
			bad("roce-interfaces", "must be names or shell patterns of interfaces, not %q", v)
		}
	}
	if c.ICRC != ICRCAuto && c.ICRC != ICRCFull && c.ICRC != ICRCSolve {
		bad("icrc", "must be auto, full or solve, not %q", c.ICRC)
	}
	if c.Spin < 0 || c.Spin > MaxSpin {
		bad("spin", "must be 0s to %v, not %v", MaxSpin, c.Spin)
	}
	if c.IdleExit < 0 {
		bad("idle-exit", "must not be negative, not %v", c.IdleExit)
	}
	for _, uid := range c.AllowUIDs {
		if uid < 0 || int64(uid) >= 1<<32-1 {
			bad("allow-uid", "must be a user id, not %d", uid)
		}
	}
	if _, err := c.Level(); err != nil {
		bad("log-level", "must be debug, info, warn or error, not %q", c.LogLevel)
	}
	if c.McastPayloads < 1 || c.McastPayloads > MaxMcastPayloads {
		bad("mcast-payloads", "must be 1 to %d, not %d", MaxMcastPayloads, c.McastPayloads)
	}
	if c.McastThreshold < 0 || c.McastThreshold > MaxMcastPayloads {
		bad("mcast-threshold", "must be 0 (maximum) to %d, not %d", MaxMcastPayloads, c.McastThreshold)
	}
	if c.TrunkPort < 1 || c.TrunkPort > 65535 {
		bad("trunk-port", "must be 1 to 65535, not %d", c.TrunkPort)
	}
	for _, p := range c.Peers {
		if _, err := c.PeerAddr(p); err != nil {
			bad("peer", "must be an IP address, or address:port, not %q", p)
		}
	}
	if c.SwitchPorts < 2 || c.SwitchPorts > 254 {
		bad("switch-ports", "must be 2 to 254, not %d", c.SwitchPorts)
	} else if len(c.Peers) >= c.SwitchPorts {
		bad("switch-ports", "must be more than the %d trunks, not %d", len(c.Peers), c.SwitchPorts)
	}
	if c.SM != SMAuto && c.SM != SMExternal && c.SM != SMOff {
		bad("sm", "must be auto, external or off, not %q", c.SM)
	}
	if c.SMPriority < 0 || c.SMPriority > 15 {
		bad("sm-priority", "must be 0 to 15, not %d", c.SMPriority)
	}
	if c.MKeyFile != "" && (c.SM != SMAuto || !c.Fabric) {
		bad("m-key-file", "must not be given to a node without a manager of its own, not %q", c.MKeyFile)
	}
	if store := c.StoreKind(); store != StoreEmbedded && store != StoreMemory {
		for _, u := range c.StoreURLs() {
			if !httpURL(u) {
				bad("store", "must be auto, embedded, memory, or URLs such as http://10.0.0.1:2379, not %q", c.Store)
				break
			}
		}
	}
	if c.StoreListen != "" && (c.StoreKind() != StoreEmbedded || !httpURL(c.StoreListen)) {
		bad("store-listen", "must be a URL such as http://10.0.0.1:2379 of an embedded store, not %q", c.StoreListen)
	}
	if c.IPoIB && !c.Fabric {
		bad("ipoib", "must be false where fabric is")
	}
	if c.IPoIBMTU != 2048 && c.IPoIBMTU != 4096 {
		bad("ipoib-mtu", "must be 2048 or 4096, not %d", c.IPoIBMTU)
	}
	if c.IPoIBQKey < 1 || c.IPoIBQKey > math.MaxUint32 {
		bad("ipoib-qkey", "must be a number of 32 bits such as 0x80000b1b, not %#x", c.IPoIBQKey)
	}
	for _, v := range c.IPoIBSet {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			bad("ipoib-set", "must be NAME=VALUE, not %q", v)
		}
	}
	for _, v := range c.IPoIBAddrs {
		link, addr, _ := strings.Cut(v, "=")
		if _, err := netip.ParsePrefix(addr); err != nil || link == "" || !c.IPoIB {
			bad("ipoib-addr", "must be LINK=ADDRESS/LENGTH of a link of ipoib, not %q", v)
		}
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

// StoreKind returns Store with "auto" resolved. A node that somebody needs for
// a while starts at once and leaves nothing behind.
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
// or open to look into where other users may have business. The door and the
// control socket check who calls in either case.
func (c Config) DirPerm(uid int) fs.FileMode {
	if uid == 0 || len(c.AllowUIDs) > 0 {
		return 0o755
	}
	return 0o700
}
