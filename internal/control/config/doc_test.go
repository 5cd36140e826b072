// SPDX-License-Identifier: Apache-2.0

package config

import (
	"flag"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/condtest"
)

var rewrite = flag.Bool("rewrite", false, "write the generated files anew")

// TestDocs compares docs/configuration.md and docs/weft.yaml with the settings that they are generated from.
func TestDocs(t *testing.T) {
	for name, want := range map[string]string{"configuration.md": Markdown(), "weft.yaml": Sample()} {
		path := filepath.Join("../../../docs", name)
		if *rewrite {
			if err := os.WriteFile(path, []byte(want), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s differs from the settings. fix: go test ./internal/control/config -run TestDocs -rewrite\n%s", path, diff)
		}
	}
}

// TestSample loads the sample file as it is, and again with every example in place of a comment.
func TestSample(t *testing.T) {
	const path = "../../../docs/weft.yaml"
	got, err := Load(Sources{Getenv: env(nil), File: path})
	if diff := cmp.Diff(Default(), got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for i := range Settings {
		text = strings.ReplaceAll(text, "\n# "+Settings[i].Name+": ", "\n"+Settings[i].Name+": ")
	}
	text = strings.Replace(text, "\nipoib: false", "\nipoib: true", 1) // ipoib-addr needs it
	c, err := Load(Sources{Getenv: env(nil), File: file(t, text)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		if set := &Settings[i]; set.Example != "" && v.Field(i).IsZero() {
			t.Errorf("%s: its example has no effect", set.Name)
		}
	}
}

func TestChoosePort(t *testing.T) {
	c := Config{RoCEPort: 7}
	if c.ChoosePort(); c.RoCEPort != 7 {
		t.Errorf("a port that was given became %d", c.RoCEPort)
	}
	// Another program may take the port that was chosen before the test does.
	var s *net.UDPConn
	var first int
	condtest.Until(t, "the port that was chosen is free", func() (ok bool) {
		c = Config{TrunkPort: TrunkPort}
		c.ChoosePort()
		first = c.RoCEPort
		var err error
		s, err = net.ListenUDP("udp4", &net.UDPAddr{Port: first})
		return err == nil
	})
	defer s.Close()
	c.RoCEPort = 0
	if c.ChoosePort(); c.RoCEPort <= first || c.RoCEPort == TrunkPort {
		t.Errorf("%d is taken, and %d was chosen", first, c.RoCEPort)
	}
}
