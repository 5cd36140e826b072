// SPDX-License-Identifier: Apache-2.0

// Command census prints the counts of package census: of the module in the current directory, or
// in the one that -C names, such as a worktree of another revision. -json prints all of it, with
// each type and package; -words lists where the odd words are. It changes nothing.
package main

import (
	"flag"
	"fmt"
	"os"

	"weft/test/arch/census"
)

func main() {
	dir := flag.String("C", ".", "a directory of the module to count")
	asJSON := flag.Bool("json", false, "print everything as JSON")
	words := flag.Bool("words", false, "list the odd words with file and line")
	flag.Parse()
	c, err := census.Take(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "census:", err)
		os.Exit(1)
	}
	switch {
	case *asJSON:
		out, err := c.JSON()
		if err != nil {
			fmt.Fprintln(os.Stderr, "census:", err)
			os.Exit(1)
		}
		fmt.Println(string(out))
	case *words:
		for _, p := range c.Prose {
			for _, at := range p.Examples {
				fmt.Println(at)
			}
		}
	default:
		c.Report(os.Stdout)
	}
}
