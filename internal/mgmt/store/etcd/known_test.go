// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestKnownLost: what a node keeps about its group is damaged or gone, as after a loss of power. The replica is used
// all the same, and not given up because another member reports its group.
func TestKnownLost(t *testing.T) {
	for what, damage := range map[string]func(string) error{
		"empty":      func(name string) error { return os.Truncate(name, 0) },
		"half":       func(name string) error { return os.Truncate(name, 20) },
		"gone":       os.Remove,
		"no numbers": func(name string) error { return os.WriteFile(name, []byte("{}"), 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFabric(t)
			f.open("a")
			f.open("b", "a")
			f.roles("a:voter b:learner")
			f.put("b", "k", "kept")
			group := f.members["b"].Part().Group
			f.kill("a")
			c := f.configs["a"]
			c.Seeds, c.Joins = []string{f.configs["b"].Advertise}, true
			f.configs["a"] = c
			if err := damage(filepath.Join(c.Dir, "group.json")); err != nil {
				t.Fatal(err)
			}
			f.open("a")
			f.roles("a:voter b:learner")
			f.expect("b", "k", "kept")
			f.put("b", "k", "changed")
			f.holds("a:voter b:learner")
			if p := f.members["a"].Part(); p.Group != group || p.Why != "" {
				t.Errorf("%+v, want the group %+v", p, group)
			}
		})
	}
}
