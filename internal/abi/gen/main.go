// SPDX-License-Identifier: Apache-2.0

// Command gen writes the generated half of package abi and the C header of the
// shim from one schema.
//
// What comes in: the tables of schema.go; what goes out: the two files named
// by its flags. go generate ./internal/abi runs it. It must never read
// anything else: the schema is the only source of the ABI.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	header := flag.String("header", "", "path of the C header")
	flag.Parse()
	if err := run(*header); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(header string) error {
	all, err := parse(layouts)
	if err != nil {
		return err
	}
	return os.WriteFile(header, []byte(cHeader(layouts, all, constants)), 0o644)
}
