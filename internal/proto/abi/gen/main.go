// SPDX-License-Identifier: Apache-2.0

// Command gen writes the generated half of package abi and the C header of the
// shim from one schema.
//
// What comes in: the tables of schema.go; what goes out: const_gen.go and
// layout_gen.go in the directory of package abi, and the C header. go generate
// ./internal/proto/abi runs it. It must never read anything else: the schema is the
// only source of the ABI.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", ".", "directory of package abi")
	header := flag.String("header", "", "path of the C header")
	flag.Parse()
	if err := write(*dir, *header); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// generate returns the content of every generated file by its path.
func generate(dir, header string) (map[string]string, error) {
	all, err := parse(layouts)
	if err != nil {
		return nil, err
	}
	consts, err := goConsts(constants)
	if err != nil {
		return nil, err
	}
	structs, err := goLayouts(layouts, all)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		filepath.Join(dir, "const_gen.go"):  consts,
		filepath.Join(dir, "layout_gen.go"): structs,
		header:                              cHeader(layouts, all, constants),
	}, nil
}

func write(dir, header string) error {
	files, err := generate(dir, header)
	if err != nil {
		return err
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
