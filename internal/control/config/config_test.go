// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"weft/internal/proto/ib"
)

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "weft.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func env(kv map[string]string) func(string) string {
	return func(k string) string { return kv[k] }
}

// flags are those of weft up with arguments.
func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	f := pflag.NewFlagSet("up", pflag.ContinueOnError)
	AddFlags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPrecedence(t *testing.T) {
	name := file(t, "lanes: 3\nroce-port: 5000\nspin: 1ms\nallow-uid: [1, 2]\ndevice: file0\n")
	vars := env(map[string]string{"WEFT_LANES": "2", "WEFT_ROCE_PORT": "6000", "WEFT_ALLOW_UID": "7",
		"WEFT_IDLE_EXIT": ""})
	got, err := Load(Sources{Flags: flags(t, "--lanes=1"), Getenv: vars, File: name})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Lanes = 1               // flag over environment over file
	want.RoCEPort = 6000         // environment over file
	want.Spin = time.Millisecond // file over default
	want.Device = "file0"
	want.AllowUIDs = []int{7} // a list replaces, it does not merge
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestListFlags gives lists by flags: a value in quotation marks has commas of its own, and an empty list replaces that
// of the environment.
func TestListFlags(t *testing.T) {
	vars := env(map[string]string{"WEFT_PEER": "10.0.0.9", "WEFT_IPOIB_SET": "debug=1"})
	got, err := Load(Sources{Flags: flags(t, "--peer=", `--ipoib-set="pkeys=0x8014,0x8015"`, "--ipoib-set=scope=2"),
		Getenv: vars})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Peers, want.IPoIBSet = []string{}, []string{"pkeys=0x8014,0x8015", "scope=2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEverySettingFromEverySource(t *testing.T) {
	want := Config{Dir: "/d", Device: "w", Lanes: 5, RoCEPort: 1, RoCEInterfaces: []string{"eth0", "eno*"},
		RoCEAllow: []string{"10.0.0.0/24", "fd00::/8"}, WireLocal: true, ICRC: "solve",
		RealTime: true, Spin: time.Millisecond, IdleExit: time.Hour,
		AllowUIDs: []int{1, 1000}, LogLevel: "debug",
		Fabric: true, Peers: []string{"10.0.0.2",
			"10.0.0.3:7"}, McastPayloads: 5, McastThreshold: 6, TrunkPort: 2, TrunkSecurity: "authenticate",
		TrunkKeyFile: "/t", SwitchPorts: 9, SM: "off",
		SMPriority: 3, MKeyFile: "/k", Store: "http://h:1", StoreListen: "http://h:2",
		StoreCAFile: "/ca", StoreCertFile: "/c", StoreKeyFile: "/ck", StoreUserFile: "/u", StoreReplaceAfter: time.Hour, StorePort: 4,
		IPoIB: true, IPoIBParams: "/p", IPoIBSet: []string{"debug=1",
			"scope=2"}, IPoIBAddrs: []string{"ib0_1_1=10.0.0.1/8"}, IPoIBMTU: 4096, IPoIBQKey: 0x0b1b}
	text := map[string]string{"dir": "/d", "device": "w", "lanes": "5", "roce-port": "1",
		"roce-interfaces": "eth0,eno*", "roce-allow": "10.0.0.0/24,fd00::/8", "wire-local": "true",
		"icrc": "solve", "real-time": "true", "spin": "1ms",
		"idle-exit": "1h", "allow-uid": "1, 1000", "log-level": "debug",
		"fabric": "true", "peer": "10.0.0.2,10.0.0.3:7", "mcast-payloads": "5", "mcast-threshold": "6", "trunk-port": "2",
		"trunk-security": "authenticate", "trunk-key-file": "/t",
		"switch-ports": "9", "sm": "off", "sm-priority": "3", "m-key-file": "/k", "store": "http://h:1",
		"store-listen":  "http://h:2",
		"store-ca-file": "/ca", "store-cert-file": "/c", "store-key-file": "/ck", "store-user-file": "/u",
		"store-replace-after": "1h", "store-port": "4",
		"ipoib": "true", "ipoib-params": "/p", "ipoib-set": "debug=1,scope=2", "ipoib-addr": "ib0_1_1=10.0.0.1/8",
		"ipoib-mtu": "4096", "ipoib-qkey": "0x0b1b"}
	vars, yaml := map[string]string{}, ""
	var args []string
	for i := range Settings {
		set := &Settings[i]
		v := text[set.Name]
		vars[EnvName(set.Name)] = v
		args = append(args, "--"+set.Name+"="+strings.ReplaceAll(v, " ", ""))
		if set.isList() {
			v = "[" + v + "]"
		}
		yaml += set.Name + ": " + v + "\n"
	}
	if n := reflect.TypeFor[Config]().NumField(); n != len(Settings) {
		t.Errorf("Config has %d fields, there are %d settings", n, len(Settings))
	}
	for name, s := range map[string]Sources{
		"environment": {Getenv: env(vars)},
		"file":        {Getenv: env(nil), File: file(t, yaml)},
		"flags":       {Getenv: env(nil), Flags: flags(t, args...)},
	} {
		got, err := Load(s)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

func TestStrictFile(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"lane: 3\n", "line 1: lane is not a setting"},
		{"lanes: 3\nspim: 1ms\n", "line 2: spim is not a setting"},
		{"lanes: 3\nlanes: 4\n", `line 2: mapping key "lanes" already defined at line 1`},
		{"lanes: many\n", "line 1: cannot unmarshal !!str `many` into int"},
		{"spin: 5 apples\n", "5 apples"},
		{"lanes: 1\n---\nlanes: 2\n", "more than one document"},
		{"lanes: [\n", "line "},
		{"- lanes\n", "line 1: cannot unmarshal !!seq"},
	} {
		_, err := Load(Sources{Getenv: env(nil), File: file(t, x.text)})
		if err == nil || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), "weft.yaml") {
			t.Errorf("%q: want the file and %q, got %v", x.text, x.want, err)
		}
	}
	for _, text := range []string{"", "# nothing\n"} {
		if got, err := Load(Sources{Getenv: env(nil), File: file(t, text)}); err != nil ||
			!reflect.DeepEqual(got, Default()) {
			t.Errorf("%q: %v %+v", text, err, got)
		}
	}
	if _, err := Load(Sources{Getenv: env(nil), File: "/nonexistent.yaml"}); !os.IsNotExist(err) {
		t.Errorf("missing file: %v", err)
	}
}

func TestWrongEnvironmentIsNamed(t *testing.T) {
	_, err := Load(Sources{Getenv: env(map[string]string{"WEFT_LANES": "x", "WEFT_SPIN": "5",
		"WEFT_ALLOW_UID": "1,,2", "WEFT_WIRE_LOCAL": "maybe"})})
	for _, name := range []string{"WEFT_LANES", "WEFT_SPIN", "WEFT_ALLOW_UID", "WEFT_WIRE_LOCAL"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}

func TestValidateReportsAllFaults(t *testing.T) {
	c := Default()
	c.Dir = "/run/weft"
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults are wrong: %v", err)
	}
	bad := Config{Dir: "x", Device: "-", Lanes: -1, RoCEPort: 65536, RoCEInterfaces: []string{"eth["},
		RoCEAllow: []string{"10.0.0.0/33"}, Spin: time.Hour, IdleExit: -1, AllowUIDs: []int{-1}, LogLevel: "loud",
		Peers: []string{"nowhere"}, McastPayloads: 0, McastThreshold: -1, TrunkPort: -1, SwitchPorts: 1, SM: "me",
		SMPriority: 16, MKeyFile: "k", Store: "disk", StoreListen: "x",
		StoreCAFile: "x", StoreUserFile: "x", StoreKeyFile: "x",
		IPoIB: true, IPoIBSet: []string{"debug"}, IPoIBAddrs: []string{"ib0_1_1=10.0.0.1"}}
	err := bad.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for i := range Settings {
		key := Settings[i].Name
		if key != "wire-local" && key != "real-time" && key != "fabric" && key != "ipoib-params" && key != "trunk-key-file" &&
			!strings.Contains("\n"+err.Error(), "\n"+key+" must") {
			t.Errorf("%v does not name %s", err, key)
		}
	}
	c.Dir = "/" + strings.Repeat("x", 100)
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a socket path that does not fit: %v", err)
	}
}

// TestRoCEAllow: prefixes and addresses are taken; what is wrong is named with its reason.
func TestRoCEAllow(t *testing.T) {
	c := Default()
	c.Dir = "/run/weft"
	if c.RoCEAllowed() != nil {
		t.Error("without a value not all addresses are allowed")
	}
	for v, want := range map[string]string{
		"10.0.0.0/24": "", "fd00::/8": "", "0.0.0.0/0": "", "10.0.0.7": "", "fe80::1": "", "::ffff:10.0.0.0/104": "",
		"10.0.0.0/33":      `not "10.0.0.0/33": prefix length out of range`,
		"10.0.0.1/8":       `without host bits: 10.0.0.0/8 or 10.0.0.1/32, not "10.0.0.1/8"`,
		"fd00::1/64":       `without host bits: fd00::/64 or fd00::1/128, not "fd00::1/64"`,
		"fe80::1%eth0":     `not "fe80::1%eth0": no '/'`,
		"fe80::%eth0/64":   `not "fe80::%eth0/64": IPv6 zones cannot be present in a prefix`,
		"host1":            `not "host1": no '/'`,
		"":                 `not "": no '/'`,
		"10.0.0.0/8/8":     `not "10.0.0.0/8/8"`,
		"10.0.0.0/-1":      `not "10.0.0.0/-1"`,
		"010.0.0.0/8":      `not "010.0.0.0/8"`,
		" 10.0.0.0/8":      `not " 10.0.0.0/8"`,
		"10.0.0.0-10.0.9.": "must be prefixes such as 10.0.0.0/24 or fd00::/8",
	} {
		c.RoCEAllow = []string{"192.0.2.0/24", v}
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), "roce-allow must be prefixes") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", v, err, want)
		}
		g := ib.GIDFromAddr(netip.MustParseAddr("10.0.0.7"))
		inside := want == "" && !strings.HasPrefix(v, "f")
		if got := c.RoCEAllowed().Contains(&g); got != inside {
			t.Errorf("%q: 10.0.0.7 is allowed: %v", v, got)
		}
	}
}

func TestDirPerm(t *testing.T) {
	for _, x := range []struct {
		uid   int
		allow []int
		want  os.FileMode
	}{{1000, nil, 0o700}, {0, nil, 0o755}, {1000, []int{1}, 0o755}} {
		if got := (Config{AllowUIDs: x.allow}).DirPerm(x.uid); got != x.want {
			t.Errorf("uid %d, allow %v: %o", x.uid, x.allow, got)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add("lanes: 3\nspin: 1ms\nallow-uid: [1]\n")
	f.Add("? {a: b}\n: c\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load(Sources{Getenv: env(nil), File: file(t, text)})
		if err == nil && c.Validate() == nil && !filepath.IsAbs(c.Dir) {
			t.Errorf("%q gave an unusable configuration %+v", text, c)
		}
	})
}
