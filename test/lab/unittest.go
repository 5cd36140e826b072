// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"regexp"
	"strings"
)

// UnittestResult is the report of unittest on a test.
type UnittestResult struct{ Verdict, Why string }

var (
	unittestBegin = regexp.MustCompile(`^(test_\w+) \((tests\.[\w.]+)\)`)
	unittestEnd   = regexp.MustCompile(`(ok|ERROR|FAIL|expected failure|unexpected success|skipped (['"].*['"]))$`)
)

// UnittestResults reads the output of unittest -v: a line with the name begins a
// test, one that ends with a verdict ends it, and between the two there may be a
// description and whatever the test prints.
func UnittestResults(out string) map[string]UnittestResult {
	results := map[string]UnittestResult{}
	current := ""
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "======") {
			break // what follows are descriptions of errors
		}
		if m := unittestBegin.FindStringSubmatch(line); m != nil {
			current = m[2]
			if !strings.HasSuffix(current, "."+m[1]) {
				current += "." + m[1] // Python before 3.11
			}
			results[current] = UnittestResult{Verdict: "no verdict"}
		}
		if m := unittestEnd.FindStringSubmatch(line); m != nil && current != "" {
			r := UnittestResult{Verdict: m[1]}
			if m[2] != "" {
				r = UnittestResult{"skipped", m[2]}
			}
			results[current] = r
			current = ""
		}
	}
	return results
}
