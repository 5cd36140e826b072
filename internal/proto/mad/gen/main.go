// SPDX-License-Identifier: Apache-2.0

// Command gen writes the structures of package mad, their codecs and the component masks of their records from
// the tables of the schema.
//
// What comes in: schema.go and schema_*.go; what goes out: layout_gen.go and component_gen.go in the directory
// of package mad. go generate ./internal/proto/mad runs it, and its test compares the files. It must never read
// anything else: the schema is the only source of offsets.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", ".", "directory of package mad")
	flag.Parse()
	files, err := generate(schema)
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(*dir, name), []byte(text), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// generate returns the content of every generated file by its name.
func generate(ls []layout) (map[string]string, error) {
	all, err := parse(ls)
	if err != nil {
		return nil, err
	}
	codecs, err := goCodecs(ls, all)
	if err != nil {
		return nil, err
	}
	masks, err := goComponents(ls, all)
	if err != nil {
		return nil, err
	}
	return map[string]string{"layout_gen.go": codecs, "component_gen.go": masks}, nil
}
