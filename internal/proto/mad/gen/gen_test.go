// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGeneratedFilesAreCurrent compares the checked-in files with the schema.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	files, err := generate(schema)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s differs from the schema: run go generate ./internal/proto/mad", name)
		}
	}
}

func TestSchemaFaultsAreFound(t *testing.T) {
	for _, tc := range []struct{ name, fields, want string }{
		{"gap", "0 8 A uint8\n16 8 B uint8", "offset 16, want 8"},
		{"overlap", "0 16 A uint16\n8 8 B uint8", "offset 8, want 16"},
		{"length", "0 4 A uint8", "no whole octets"},
		{"type", "0 8 A map[int]int", "unknown type"},
		{"no type", "0 8 A", "no type"},
		{"typed reserved field", "0 8 reserved uint8", "no type"},
		{"mark", "0 8 A uint8 wide", "unknown mark"},
		{"bool", "0 8 A bool", "a bool has 1 bit"},
		{"integer", "0 72 A uint64", "at most 64 bits"},
		{"array", "0 40 A [N]uint16", "hold no array"},
		{"array between octets", "0 4 reserved\n4 32 A [4]uint8\n36 4 reserved", "hold no array"},
		{"structure", "0 8 A Inner", "Inner has 16 bits"},
		{"part", "0 8 A[23:17] uint32", "hold no bits"},
		{"GID", "0 64 A ib.GID", "128 bits"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inner := layout{name: "Inner", fields: "0 16 A uint16"}
			_, err := parse([]layout{inner, {name: "Outer", fields: tc.fields}})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if _, err := parse([]layout{{name: "X", fields: "0 8 A uint8"}, {name: "X", fields: "0 8 A uint8"}}); err == nil {
		t.Error("two layouts of one name")
	}
}
