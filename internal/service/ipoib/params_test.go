// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// TestH57_Precedence: command line over file over default.
func TestH57_Precedence(t *testing.T) {
	text := "# links\nsq_depth = 1024\nrq_depth=2048 # deep\n\n  timeout = 1s\nmcast_timeout=250\n"
	p, err := ParseParams("weft.conf", text, []string{"rq_depth=4096", "debug=3"})
	want := DefaultParams()
	want.SQDepth, want.RQDepth, want.TxTimeout, want.McastWait, want.Debug = 1024, 4096, time.Second,
		250*time.Millisecond, 3
	if d := cmp.Diff(want, p); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	if p, err := ParseParams("", "", nil); err != nil || cmp.Diff(DefaultParams(), p) != "" {
		t.Errorf("nothing said: %+v, %v", p, err)
	}
}

// TestParamFaults: each fault is reported with file and line, all of them at once.
func TestParamFaults(t *testing.T) {
	for text, want := range map[string]string{
		"sq_depth":                  `f:1: "sq_depth" is not of the form name=value`,
		"\nsq_dept=5":               "f:2: sq_dept: no such parameter",
		"sq_depth=x":                `f:1: sq_depth: "x" is not a number`,
		"sq_depth=8193":             "f:1: sq_depth: 8193 is not in 1 … 8192",
		"rq_depth=0":                "f:1: rq_depth: 0 is not in 1 … 8192",
		"mcast_timeout=5":           "f:1: mcast_timeout: 5ms is not in 10ms … 1m0s",
		"mcast_retry_cnt=-1":        "f:1: mcast_retry_cnt: -1 is not in 0 … 100",
		"timeout=soon":              `f:1: timeout: "soon" is neither a number of 10ms nor a duration such as 1s`,
		"debug=16":                  `f:1: debug: "16" is not a number in 0 … 15`,
		"pkeys=0x8000":              `f:1: pkeys: "0x8000" is not a P_Key such as 0x8014`,
		"create=perhaps":            `f:1: create: "perhaps" is neither 0 nor 1`,
		"tx_copybreak=some":         `f:1: tx_copybreak: "some" is not a number`,
		"scope=0":                   `f:1: scope: "0" is not a scope in 1 … 14`,
		"sendonly=linux":            `f:1: sendonly: "linux" is neither rfc nor create`,
		"shadow_idle=0":             "f:1: shadow_idle: 0s is not in 1s … 24h0m0s",
		"max_neigh=1":               "f:1: max_neigh: 1 is not in 16 … 1048576",
		"debug=1\n\ndebug=2":        "f:3: debug: set on line 1 already",
		"sq_depth=x\nrq_depth=y":    "f:1: sq_depth: \"x\" is not a number\nf:2: rq_depth: \"y\" is not a number",
		"pkeys=1,2,3,4,5,6,7,8\n#=": "",
	} {
		_, err := ParseParams("f", text, nil)
		if got := ""; err != nil || want != "" {
			if err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%q: %s, want %s", text, got, want)
			}
		}
	}
	if _, err := ParseParams("", "", []string{"what=1"}); err == nil || !errors.Is(err, ErrUnknownParam) ||
		!strings.HasPrefix(err.Error(), "command line: ") {
		t.Errorf("%v", err)
	}
	var many strings.Builder
	for i := range maxPKeys + 1 {
		many.WriteString(" 0x")
		many.WriteByte("0123456789abcdef"[(i+1)>>4])
		many.WriteByte("0123456789abcdef"[(i+1)&15])
	}
	if _, err := ParseParams("f", "pkeys="+many.String(), nil); err == nil {
		t.Error("too many P_Keys")
	}
}

// TestParamsList: what is listed can be set again, and is the same then.
func TestParamsList(t *testing.T) {
	p, err := ParseParams("", "", []string{"sq_depth=200", "timeout=15ms", "pkeys=0x14,0x8015,20", "create=true",
		"tx_copybreak=1500", "scope=5", "sendonly=create", "shadow_idle=90", "max_neigh=100", "mode=connected",
		"max_conns=7", "conn_idle=60", "debug=0xf", "mcast_timeout=2s"})
	if err != nil {
		t.Fatal(err)
	}
	want := Params{SQDepth: 256, RQDepth: 1024, McastWait: 2 * time.Second, McastRetry: 3,
		TxTimeout: 15 * time.Millisecond, Debug: 15, PKeys: []ib.PKey{0x8014, 0x8015}, Create: true, TxCopybreak: 1500,
		Scope: 5, SendOnly: SendOnlyCreate, ShadowIdle: 90 * time.Second, MaxNeigh: 100, Mode: Connected, MaxConns: 7,
		ConnIdle: time.Minute}
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for _, p := range []Params{p, DefaultParams()} {
		var words []string
		for _, v := range p.List() {
			if v.Help == "" {
				t.Errorf("%s is not explained", v.Name)
			}
			words = append(words, v.Name+"="+v.Value)
		}
		again, err := ParseParams("", "", words)
		if d := cmp.Diff(p, again); err != nil || d != "" {
			t.Errorf("%v, -want +got:\n%s", err, d)
		}
	}
	if n := DefaultParams().TxCopybreak; n != 256 { // what pays: docs/notes/ipoib.md, section 3
		t.Errorf("frames longer than %d are mapped by default", n)
	}
	if p, err := ParseParams("", "", []string{"tx_copybreak=all"}); err != nil || p.TxCopybreak != math.MaxInt {
		t.Errorf("all: %v, %d", err, p.TxCopybreak)
	}
}

// TestH69_Effects: each parameter of the driver design does something that can be
// seen. timeout is TestH17_Watchdog, the joins' two TestJoinBackoff.
func TestH69_Effects(t *testing.T) {
	t.Run("depths", func(t *testing.T) {
		s, a := one(t, "sq_depth=128", "rq_depth=64")
		a.start()
		s.run(time.Second)
		if i := a.l.Info(); i.SendFree != 128 || i.RecvPosted != 64 || len(a.tx) != 128*slotLen || len(a.recvq) != 64 {
			t.Errorf("%+v", i)
		}
	})
	t.Run("mcast", func(t *testing.T) {
		s, a := one(t, "mcast_timeout=100", "mcast_retry_cnt=5")
		s.silent = true
		a.start()
		s.run(590 * time.Millisecond)
		if len(s.asked) != 6 || a.l.groups.broadcast.failures != 0 {
			t.Errorf("asked %d times, failed %d", len(s.asked), a.l.groups.broadcast.failures)
		}
		if s.run(20 * time.Millisecond); a.l.groups.broadcast.failures != 1 {
			t.Errorf("failed %d times", a.l.groups.broadcast.failures)
		}
	})
	t.Run("debug", func(t *testing.T) {
		for mask := range uint(16) {
			s, a := alone(t, fmt.Sprint("debug=", mask))
			a.xmitText(hwB, "x")
			for range 10 {
				a.injectUnicast([]byte{1})
			}
			s.run(100 * time.Millisecond)
			told := map[string]int{}
			for _, e := range a.events {
				for _, text := range []string{"made: ", "joining", "drop_short_frame", "query sent"} {
					if strings.Contains(e.Text, text) {
						told[text]++
					}
				}
			}
			if told["made: "] != int(mask&1)*5 || (told["joining"] > 0) != (mask&2 != 0) ||
				told["drop_short_frame"] != int(mask>>2&1) ||
				told["query sent"] != int(mask>>3&1) {
				t.Errorf("debug %d: told %v", mask, told)
			}
		}
	})
	t.Run("shadow_idle", func(t *testing.T) {
		s, a, _ := two(t, "shadow_idle=5")
		a.send(ipA, ipB, "x")
		s.run(time.Second)
		a.l.Engine().Flush(s.now)
		if s.run(20 * time.Second); len(a.l.shadow.entries) != 0 || len(a.l.shadow.paths) != 0 ||
			len(a.l.shadow.byIP) != 0 {
			t.Errorf("%d entries, %d paths, %d addresses are left", len(a.l.shadow.entries), len(a.l.shadow.paths),
				len(a.l.shadow.byIP))
		}
	})
	t.Run("scope", func(t *testing.T) {
		s, a := one(t, "scope=5")
		a.start()
		s.run(time.Second)
		if len(s.asked) == 0 || !strings.Contains(s.asked[0], "ff15:401b:8014") {
			t.Errorf("asked %v", s.asked)
		}
	})
}

func FuzzParseParams(f *testing.F) {
	f.Add("sq_depth=5\n#x\npkeys=1,0x14 ,0x7fff")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseParams("f", text, nil)
		if err != nil {
			return
		}
		if p.SQDepth < minSQDepth || p.SQDepth > maxDepth || p.SQDepth&(p.SQDepth-1) != 0 || p.RQDepth < minRQDepth ||
			p.RQDepth > maxDepth ||
			len(p.PKeys) > maxPKeys || p.TxTimeout <= 0 || p.McastWait <= 0 || p.MaxNeigh < 16 {
			t.Errorf("%q gives %+v", text, p)
		}
	})
}
