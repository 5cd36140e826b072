// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"weft/internal/control/config"
)

// TestFlagArgument passes flags on as weft up --detach does: the node in the background reads the same values.
func TestFlagArgument(t *testing.T) {
	load := func(args []string) (c config.Config, again []string) {
		f := pflag.NewFlagSet("up", pflag.ContinueOnError)
		config.AddFlags(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Sources{Flags: f, Getenv: func(string) string { return "" }})
		if err != nil {
			t.Fatal(err)
		}
		f.Visit(func(f *pflag.Flag) { again = append(again, flagArgument(f)) })
		return c, again
	}
	want, args := load([]string{"--roce-interfaces=eth[0-9]", "--peer=[fd00::2]:4792", "--peer=10.0.0.2",
		"--allow-uid=1,2",
		`--ipoib-set="pkeys=0x8014,0x8015"`, "--spin=1ms", "--real-time", "--ipoib-qkey=0xb1b", "--store=http://h:1,http://h:2"})
	got, _ := load(args)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%q\n%s", args, diff)
	}
}
