// SPDX-License-Identifier: Apache-2.0

package config

import (
	"math"
	"net/netip"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Setting describes a setting of a node.
type Setting struct {
	// Name is the key of the file and the name of the flag. The environment variable of "roce-port" is WEFT_ROCE_PORT.
	Name  string
	Group string // heading in the documentation
	// Help is the help text of the flag, Doc the additional paragraph of the documentation.
	Help, Doc string
	Unit      string // of a number
	// Default is the value where no source has one; nil: the zero value.
	Default any
	// Base is the base in which a number is printed: 10 or, for 16, with 0x.
	Base int
	// Example is a value for the sample file where the default is empty.
	Example string
	// field returns a pointer to the setting in c: *string, *bool, *int, *time.Duration, *[]int or *[]string.
	field func(c *Config) any
	// check reports what is wrong with the setting, each fault with bad: "must be 1 to 65535, not 0".
	check func(c *Config, bad func(format string, args ...any))
}

// between is the check of a number with bounds; zero is the meaning of 0, if 0 is not just a number.
func between(field func(c *Config) *int, low, high int, zero string) func(c *Config, bad func(format string,
	args ...any)) {
	return func(c *Config, bad func(format string, args ...any)) {
		if v := *field(c); v < low || v > high {
			bad("must be %d%s to %d, not %d", low, zero, high, v)
		}
	}
}

// oneOf is the check of a text that is one of some words.
func oneOf(field func(c *Config) *string, words ...string) func(c *Config, bad func(format string, args ...any)) {
	text := strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	return func(c *Config, bad func(format string, args ...any)) {
		for _, w := range words {
			if *field(c) == w {
				return
			}
		}
		bad("must be %s, not %q", text, *field(c))
	}
}

// Settings are all settings, in the order of the documentation.
var Settings = []Setting{
	{Name: "dir", Group: "Node", Help: "directory of the node",
		Doc:     "Its sockets, identity, store and log. Without it: /run/weft for root, $XDG_RUNTIME_DIR/weft or /tmp/weft-<uid> for others.",
		Example: "/run/weft",
		field:   func(c *Config) any { return &c.Dir },
		check: func(c *Config, bad func(string, ...any)) {
			if !filepath.IsAbs(c.Dir) {
				bad("must be an absolute path, not %q", c.Dir)
			} else if n := len(filepath.Join(c.Dir, "door", c.Device+".sock")); n > maxSocketPath {
				bad("is too long: the path of its device sockets has %d bytes, at most %d fit", n, maxSocketPath)
			}
		}},
	{Name: "device", Group: "Node", Help: "name of the verbs device", Default: "weft0",
		Doc:   "For weft up it names the node's own device. In a program that uses a node, WEFT_DEVICE is the only device it sees.",
		field: func(c *Config) any { return &c.Device },
		check: func(c *Config, bad func(string, ...any)) {
			if !deviceName.MatchString(c.Device) {
				bad("must be a letter and up to 62 letters, digits or ._-, not %q", c.Device)
			}
		}},
	{Name: "lanes", Group: "Node", Help: "event loops of the data path; 0: one per two CPUs, at most 4",
		Doc:   "Each lane is a thread. Programs need the other CPUs.",
		field: func(c *Config) any { return &c.Lanes },
		check: between(func(c *Config) *int { return &c.Lanes }, 0, MaxLanes, " (one per two CPUs, at most 4)")},
	{Name: "roce-port", Group: "Node", Help: "UDP port of RoCEv2; 0: 4791 if it is free, else a free port",
		Default: RoCEPort,
		Doc:     "Nodes reach each other by RoCEv2 only with the same port. 4791 is the port of the specification (IBA annex A17).",
		field:   func(c *Config) any { return &c.RoCEPort },
		check:   between(func(c *Config) *int { return &c.RoCEPort }, 0, 65535, "")},
	{Name: "roce-interfaces", Group: "Node", Help: "interfaces with addresses for the GIDs of the device, by name or shell pattern (may be repeated)",
		Doc: "Without it: all interfaces but InfiniBand ones and those of a node's own fabric.", Example: "eth0",
		field: func(c *Config) any { return &c.RoCEInterfaces },
		check: func(c *Config, bad func(string, ...any)) {
			for _, v := range c.RoCEInterfaces {
				if _, err := path.Match(v, ""); err != nil || v == "" {
					bad("must be names or shell patterns of interfaces, not %q", v)
				}
			}
		}},
	{Name: "roce-allow", Group: "Node",
		Help: "prefixes of the addresses with which the RoCEv2 device exchanges packets (may be repeated)",
		Doc: "RoCEv2 has no authentication: without roce-allow the device accepts packets from every address. " +
			"With it, packets from other " +
			"addresses are dropped and counted (drop_source_not_allowed), and programs cannot connect to them (EACCES). " +
			"The node's own addresses are always allowed. " +
			"Packets to a multicast group leave the node only if the group is in a prefix. " +
			"It does not protect from hosts that forge an allowed source address.",
		Example: "10.0.0.0/24",
		field:   func(c *Config) any { return &c.RoCEAllow },
		check: func(c *Config, bad func(string, ...any)) {
			for _, v := range c.RoCEAllow {
				if _, err := allowed(v); err != nil {
					bad("%v", err)
				}
			}
		}},
	{Name: "wire-local", Group: "Node", Help: "send traffic within the node through the packet path",
		Doc:   "Without it, payload between two programs of a node is copied from memory to memory.",
		field: func(c *Config) any { return &c.WireLocal }},
	{Name: "icrc", Group: "Node", Help: "check of the ICRC of received RoCEv2 packets over IPv4: full, solve or auto",
		Default: ICRCAuto,
		Doc: "full compares all 32 bits and needs CAP_NET_RAW, by which the node reads IPv4 identifications. solve compares 16 bits " +
			"where the peer's identifications cannot be predicted. auto is full where CAP_NET_RAW is granted, else solve.",
		field: func(c *Config) any { return &c.ICRC },
		check: oneOf(func(c *Config) *string { return &c.ICRC }, ICRCAuto, ICRCFull, ICRCSolve)},
	{Name: "real-time", Group: "Node", Help: "run the lanes with real-time priority",
		Doc:   "Needs CAP_SYS_NICE or RLIMIT_RTPRIO. Without it lanes run with a short time slice and, where allowed, a negative nice value.",
		field: func(c *Config) any { return &c.RealTime }},
	{Name: "spin", Group: "Node", Help: "time that a lane polls after its last work before it sleeps",
		Default: 50 * time.Microsecond,
		field:   func(c *Config) any { return &c.Spin },
		check: func(c *Config, bad func(string, ...any)) {
			if c.Spin < 0 || c.Spin > MaxSpin {
				bad("must be 0s to %v, not %v", MaxSpin, c.Spin)
			}
		}},
	{Name: "idle-exit", Group: "Node", Help: "time after the last session after which the node ends; 0: never",
		field: func(c *Config) any { return &c.IdleExit },
		check: func(c *Config, bad func(string, ...any)) {
			if c.IdleExit < 0 {
				bad("must not be negative, not %v", c.IdleExit)
			}
		}},
	{Name: "allow-uid", Group: "Node", Help: "users that may use the node, besides root and its own user (may be repeated)",
		Doc: "They may open devices and read the state of the node, and change nothing.", Example: "1000",
		field: func(c *Config) any { return &c.AllowUIDs },
		check: func(c *Config, bad func(string, ...any)) {
			for _, uid := range c.AllowUIDs {
				if uid < 0 || int64(uid) >= 1<<32-1 {
					bad("must be a user id, not %d", uid)
				}
			}
		}},
	{Name: "log-level", Group: "Node", Help: "debug, info, warn or error", Default: "info",
		field: func(c *Config) any { return &c.LogLevel },
		check: oneOf(func(c *Config) *string { return &c.LogLevel }, "debug", "info", "warn", "error")},

	{Name: "mcast-payloads", Group: "Multicast",
		Help: "multicast packets that are held for replication, of 4 KiB each", Default: 2048, Unit: "packets",
		field: func(c *Config) any { return &c.McastPayloads },
		check: between(func(c *Config) *int { return &c.McastPayloads }, 1, MaxMcastPayloads, "")},
	{Name: "mcast-threshold", Group: "Multicast",
		Help:    "multicast packets that wait for the lookup of their members; more are dropped; 0: no limit but --mcast-payloads",
		Default: 1024, Unit: "packets",
		field: func(c *Config) any { return &c.McastThreshold },
		check: between(func(c *Config) *int { return &c.McastThreshold }, 0, MaxMcastPayloads, " (maximum)")},

	{Name: "fabric", Group: "Subnet", Help: "be part of a subnet: a switch, InfiniBand ports, trunks", Default: true,
		field: func(c *Config) any { return &c.Fabric }},
	{Name: "peer", Group: "Subnet", Help: "node at the other end of a trunk: IP address, or IP address:port (may be repeated)",
		Doc: "The other node needs a --peer with an address of this node. Trunks are made when the node starts.", Example: "10.0.0.2",
		field: func(c *Config) any { return &c.Peers },
		check: func(c *Config, bad func(string, ...any)) {
			for _, p := range c.Peers {
				if _, err := c.PeerAddr(p); err != nil {
					bad("must be an IP address, or address:port, not %q", p)
				}
			}
		}},
	{Name: "trunk-port", Group: "Subnet", Help: "UDP port of trunks", Default: TrunkPort,
		field: func(c *Config) any { return &c.TrunkPort },
		check: func(c *Config, bad func(string, ...any)) {
			between(func(c *Config) *int { return &c.TrunkPort }, 1, 65535, "")(c, bad)
			if c.Fabric && c.TrunkPort == c.RoCEPort {
				bad("and roce-port must differ, and are both %d", c.TrunkPort)
			}
		}},
	{Name: "trunk-security", Group: "Subnet", Help: "what protects packets on trunks: encrypt, authenticate or none",
		Default: TrunkEncrypt,
		Doc: "authenticate leaves packets readable on the network, none also lets them be forged. " +
			"Of two nodes the stronger setting counts at both. With --peer and without a key file only none is possible.",
		field: func(c *Config) any { return &c.TrunkSecurity },
		check: oneOf(func(c *Config) *string { return &c.TrunkSecurity }, TrunkEncrypt, TrunkAuthenticate, TrunkNone)},
	{Name: "trunk-key-file", Group: "Subnet", Help: "file with the key that the nodes of --peer share",
		Doc: "It contains 64 hexadecimal digits, such as openssl rand -hex 32 prints; a password is too weak. " +
			"A node with another key gets no trunk.",
		Example: "/etc/weft/trunk-key",
		field:   func(c *Config) any { return &c.TrunkKeyFile }},
	{Name: "switch-ports", Group: "Subnet", Help: "ports of the node's switch, for devices and trunks together",
		Default: 36, Unit: "ports",
		field: func(c *Config) any { return &c.SwitchPorts },
		check: func(c *Config, bad func(string, ...any)) {
			if c.SwitchPorts < 2 || c.SwitchPorts > 254 {
				bad("must be 2 to 254, not %d", c.SwitchPorts)
			} else if len(c.Peers) >= c.SwitchPorts {
				bad("must be more than the %d trunks, not %d", len(c.Peers), c.SwitchPorts)
			}
		}},
	{Name: "sm", Group: "Subnet", Help: "subnet manager: auto (this node takes part in the election), external (such as opensm) or off", Default: SMAuto,
		field: func(c *Config) any { return &c.SM },
		check: oneOf(func(c *Config) *string { return &c.SM }, SMAuto, SMExternal, SMOff)},
	{Name: "sm-priority", Group: "Subnet", Help: "priority in the election of the master manager, 0 to 15; the highest wins",
		field: func(c *Config) any { return &c.SMPriority },
		check: between(func(c *Config) *int { return &c.SMPriority }, 0, 15, "")},
	{Name: "m-key-file", Group: "Subnet", Help: "file with the M_Key that protects ports against managers without it",
		Doc:     "The file contains a number such as 0x1122334455667788. Without it the manager uses the M_Key of its store.",
		Example: "/etc/weft/m_key",
		field:   func(c *Config) any { return &c.MKeyFile },
		check: func(c *Config, bad func(string, ...any)) {
			if c.MKeyFile != "" && (c.SM != SMAuto || !c.Fabric) {
				bad("must not be given to a node without a manager of its own, not %q", c.MKeyFile)
			}
		}},
	{Name: "store", Group: "Subnet", Help: "store of the manager: embedded, memory, URLs of an etcd cluster, or auto",
		Default: StoreAuto,
		Doc: "embedded is an etcd in the node's directory. auto is memory with idle-exit, else embedded. " +
			"Managers that share a store share partitions, groups and virtual Ethernet switches.",
		field: func(c *Config) any { return &c.Store },
		check: func(c *Config, bad func(string, ...any)) {
			if k := c.StoreKind(); k == StoreEmbedded || k == StoreMemory {
				return
			}
			for _, u := range c.StoreURLs() {
				if !httpURL(u) {
					bad("must be auto, embedded, memory, or URLs such as http://10.0.0.1:2379, not %q", c.Store)
					return
				}
			}
		}},
	{Name: "store-listen", Group: "Subnet", Help: "URL at which the embedded store serves other nodes",
		Example: "http://10.0.0.1:2379",
		field:   func(c *Config) any { return &c.StoreListen },
		check: func(c *Config, bad func(string, ...any)) {
			if c.StoreListen != "" && (c.StoreKind() != StoreEmbedded || !httpURL(c.StoreListen)) {
				bad("must be a URL such as http://10.0.0.1:2379 of an embedded store, not %q", c.StoreListen)
			}
		}},
	{Name: "store-port", Group: "Subnet", Help: "TCP port at which the store serves the other members of a fabric",
		Default: StorePort,
		Doc:     "It is used by hosts that joined a fabric. Their certificates authenticate them to each other.",
		field:   func(c *Config) any { return &c.StorePort },
		check: func(c *Config, bad func(string, ...any)) {
			between(func(c *Config) *int { return &c.StorePort }, 1, 65535, "")(c, bad)
			if c.Fabric && c.StorePort == c.TrunkPort {
				bad("and trunk-port must differ, since hosts join at its TCP port; both are %d", c.StorePort)
			}
		}},
	{Name: "store-ca-file", Group: "Subnet", Help: "file with the CA certificates of the etcd cluster in --store",
		Doc: "PEM. Without it the certificates of the system are used.", Example: "/etc/weft/etcd-ca.pem",
		field: func(c *Config) any { return &c.StoreCAFile },
		check: func(c *Config, bad func(string, ...any)) {
			https := true
			for _, u := range c.StoreURLs() {
				https = https && strings.HasPrefix(u, "https:")
			}
			if k := c.StoreKind(); c.StoreCAFile+c.StoreCertFile != "" && k != StoreEmbedded && !https {
				bad("must be empty, and store-cert-file, unless --store has https URLs only, not %q", c.Store)
			}
		}},
	{Name: "store-cert-file", Group: "Subnet", Help: "file with the client certificate for the etcd cluster in --store",
		Doc: "PEM. It is read again for each connection.", Example: "/etc/weft/etcd-client.pem",
		field: func(c *Config) any { return &c.StoreCertFile },
		check: func(c *Config, bad func(string, ...any)) {
			if (c.StoreCertFile == "") != (c.StoreKeyFile == "") {
				bad("must be given together with store-key-file: %q, %q", c.StoreCertFile, c.StoreKeyFile)
			}
		}},
	{Name: "store-key-file", Group: "Subnet", Help: "file with the key of --store-cert-file",
		Example: "/etc/weft/etcd-client-key.pem", field: func(c *Config) any { return &c.StoreKeyFile },
		check: func(c *Config, bad func(string, ...any)) {
			if (c.StoreCertFile == "") != (c.StoreKeyFile == "") {
				bad("must be given together with store-cert-file: %q, %q", c.StoreKeyFile, c.StoreCertFile)
			}
		}},
	{Name: "store-user-file", Group: "Subnet", Help: "file with user and password for the etcd cluster in --store",
		Doc: "One line USER:PASSWORD, which keeps it out of the command line.", Example: "/etc/weft/etcd-user",
		field: func(c *Config) any { return &c.StoreUserFile },
		check: func(c *Config, bad func(string, ...any)) {
			if c.StoreUserFile != "" && !filepath.IsAbs(c.StoreUserFile) {
				bad("must be an absolute path, not %q", c.StoreUserFile)
			}
		}},
	{Name: "store-replace-after", Group: "Subnet",
		Help:    "absence after which another member replaces one that holds the store",
		Default: 5 * time.Minute, Doc: "At least 10s. The value of the member that leads the store counts.",
		field: func(c *Config) any { return &c.StoreReplaceAfter },
		check: func(c *Config, bad func(string, ...any)) {
			if c.StoreReplaceAfter < 10*time.Second {
				bad("must be 10s or more, not %v", c.StoreReplaceAfter)
			}
		}},

	{Name: "ipoib", Group: "IP links", Help: "add an IP link to every partition with a broadcast group, of every InfiniBand device",
		Doc:   "Needs CAP_NET_ADMIN. weft ipoib add does the same in a running node.",
		field: func(c *Config) any { return &c.IPoIB },
		check: func(c *Config, bad func(string, ...any)) {
			if c.IPoIB && !c.Fabric {
				bad("must be false where fabric is")
			}
		}},
	{Name: "ipoib-params", Group: "IP links", Help: "file with parameters of IP links, one NAME = VALUE per line",
		Doc: "weft ipoib params lists the parameters.", Example: "/etc/weft/ipoib.conf",
		field: func(c *Config) any { return &c.IPoIBParams }},
	{Name: "ipoib-set", Group: "IP links", Help: "parameter of IP links: NAME=VALUE; it overrides the file's (may be repeated)", Example: "sq_depth=1024",
		field: func(c *Config) any { return &c.IPoIBSet },
		check: func(c *Config, bad func(string, ...any)) {
			for _, v := range c.IPoIBSet {
				if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
					bad("must be NAME=VALUE, not %q", v)
				}
			}
		}},
	{Name: "ipoib-addr", Group: "IP links", Help: "IP address of a link of --ipoib: LINK=ADDRESS/LENGTH (may be repeated)",
		Doc: "Needs ipoib.", Example: "ib0_1_7fff=10.1.0.1/24",
		field: func(c *Config) any { return &c.IPoIBAddrs },
		check: func(c *Config, bad func(string, ...any)) {
			for _, v := range c.IPoIBAddrs {
				link, addr, _ := strings.Cut(v, "=")
				if _, err := netip.ParsePrefix(addr); err != nil || link == "" || !c.IPoIB {
					bad("must be LINK=ADDRESS/LENGTH of a link of ipoib, not %q", v)
				}
			}
		}},
	{Name: "ipoib-mtu", Group: "IP links", Help: "MTU of the broadcast groups that this node's manager makes, 2048 or 4096", Default: 2048, Unit: "bytes",
		Doc:   "The MTU of IP links is 4 less.",
		field: func(c *Config) any { return &c.IPoIBMTU },
		check: func(c *Config, bad func(string, ...any)) {
			if c.IPoIBMTU != 2048 && c.IPoIBMTU != 4096 {
				bad("must be 2048 or 4096, not %d", c.IPoIBMTU)
			}
		}},
	{Name: "ipoib-qkey", Group: "IP links", Help: "Q_Key of these groups", Default: 0x80000b1b, Base: 16,
		Doc: "With the top bit set, only the node and programs with CAP_NET_RAW can use it. OpenSM's is 0x0b1b, " +
			"which programs without privilege can use as well.",
		field: func(c *Config) any { return &c.IPoIBQKey },
		check: func(c *Config, bad func(string, ...any)) {
			if c.IPoIBQKey < 1 || c.IPoIBQKey > math.MaxUint32 {
				bad("must be a number of 32 bits such as 0x80000b1b, not %#x", c.IPoIBQKey)
			}
		}},
}

// maxSocketPath is the longest path of struct sockaddr_un, without the final zero.
const maxSocketPath = 107
