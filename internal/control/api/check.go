// SPDX-License-Identifier: Apache-2.0

package api

// Levels of a Finding.
const (
	LevelOK   = "ok"
	LevelWarn = "warn"
	LevelFail = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Level string `json:"level"`                                                      // ok, warn or fail
	Check string `json:"check" order:"1,manager port link mtu trunk partition path"` // what was checked, in a word
	What  string `json:"what" order:"2"`
	Fix   string `json:"fix"` // a command or an action; empty of an ok
}

// PairCheck is the way between two ports, with all that was checked on it.
type PairCheck struct {
	From FabricEnd `json:"from"` // empty: it is not in the subnet, as To
	To   FabricEnd `json:"to"`
	// Works reports whether no check failed; Verdict is the result in a line.
	Works    bool       `json:"works"`
	Verdict  string     `json:"verdict"`
	Fix      string     `json:"fix"`                                 // of the first failure or warning
	MTU      int        `json:"mtu"`                                 // bytes, the smallest on the way; 0: there is no way
	Hops     []CheckHop `json:"hops" order:"given: from From to To"` // as far as they lead
	Findings []Finding  `json:"findings" order:"given: along the way, and back"`
}

// CheckHop is a link on the way.
type CheckHop struct {
	Out   FabricEnd `json:"out"` // the port that a packet leaves by
	In    FabricEnd `json:"in"`  // and the one that it arrives at
	State string    `json:"state"`
	MTU   int       `json:"mtu"` // bytes
	Gbps  float64   `json:"gbps"`
}
