// SPDX-License-Identifier: Apache-2.0

package cli

import "os"

// explainEnv is the setting of the preload library for why verbs calls failed: "1" prints a line for each at once,
// "exit" the last one when the program ends with a status other than 0.
const explainEnv = "WEFT_EXPLAIN"

// explainFailures sets explainEnv for the program of weft run: "1" for all failures, else "exit"
// unless the environment has a value. The library prints it, since weft run becomes the program.
func explainFailures(all bool) {
	if all {
		os.Setenv(explainEnv, "1")
	} else if _, set := os.LookupEnv(explainEnv); !set {
		os.Setenv(explainEnv, "exit")
	}
}
