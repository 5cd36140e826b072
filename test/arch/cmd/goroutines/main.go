// SPDX-License-Identifier: Apache-2.0

// Command goroutines prints two lines: of the packages that match its arguments and have tests, those whose tests start
// goroutines, and the others. It changes nothing.
package main

import (
	"fmt"
	"os"
	"strings"

	"weft/test/arch/goroutines"
)

func main() {
	s, err := goroutines.Sort(".", os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "goroutines:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(s.With, " "))
	fmt.Println(strings.Join(s.Without, " "))
}
