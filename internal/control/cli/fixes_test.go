// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/internal/control/api"
	"weft/test/arch/fixes"
)

// samples are values of the types that fixes have holes for.
var samples = map[string]string{"netip.Addr": "10.0.0.1", "netip.AddrPort": "10.0.0.1:4792",
	"netip.Prefix": "10.0.0.0/8", "time.Duration": "1s", "ib.GUID": "0200:0000:0001:0001", "ib.PKey": "0x8001",
	"member.Role": "voter", "string": "NAME", "any": "NAME", "int": "7", "uint16": "7", "uint32": "7", "uint64": "7",
	"api.TextFormat": "dot",
	"int64":          "7", "uint8": "7", "ib.LID": "7", "ib.GID": "fe80::1", "bool": "true"}

// programs are the commands of fixes that are not weft.
var programs = strings.Fields("apt-get cat chmod df etcd etcdctl ethtool ip kill modprobe mount openssl ping rm " +
	"setcap ss sudo sysctl timedatectl ulimit")

// openers are words with which a clause begins that is no command. What is in no list may be a command: write it
// as one of programs, or begin with another word.
var openers = strings.Fields("a add again an another as ask at attach change check choose connect copy date decide " +
	"defrag delete else end first for free give here if in install it its later leave let make more move name " +
	"no none not nothing omit on open or prints raise read readable remove repeat restart restore run section see " +
	"set lists so start stop such take that the there they to upgrade use wait where which with within without write")

// clause ends a clause of a text.
var clause = regexp.MustCompile(`[;,:] | or | and then | \(`)

// outside are fixes with what is wrong for the members of a fabric, each with the reason for which no member gets it,
// or may follow it.
var outside = []struct {
	reason string
	texts  []string
}{
	{"somebody typed the address", []string{
		"weft up --peer <string>",
		"weft up --peer ADDRESS, with that of another host",
		"weft up --store http://10.0.0.1:2379",
		"weft up --store https://10.0.0.1:2379"}},
	{"it leaves the flag out", []string{
		"weft down; weft up --detach, without --peer",
		"weft down; weft up --detach, without --store memory"}},
	{"the code before it finds that the node is in no fabric", []string{
		"weft join, or for nodes in no fabric weft up --peer ADDRESS",
		"if that is the peer, give this address of it to --peer",
		"start it or make it reachable, or name another: weft up --store URL",
		"weft down; weft up --detach --store embedded",
		"weft up --store https://10.0.0.1:2379, or without --store-ca-file, --store-cert-file, --store-user-file"}},
	{"the content of the store is damaged", []string{
		"weft store restore FILE with a backup",
		"weft store restore FILE with a backup, or upgrade weft",
		"weft store restore FILE with a backup, or upgrade weft on this node"}},
	{"there are two stores", []string{
		"decide which is the fabric's, and on a voter of it: weft store restore; the other one is set aside then"}},
	{"the majority of the voters is not reached", []string{
		"start those nodes; where they are lost for good: weft store restore"}},
	{"somebody removes the only voter", []string{
		"weft join on a third host, then wait until weft store status lists three voters; or weft down on " +
			"<string> and weft store restore here, then repeat this"}},
	{"somebody typed weft store restore", []string{
		"weft store restore --help",
		"weft store restore FILE, with a backup of this fabric",
		"nothing is to be done; to go back to a backup: weft store restore --force FILE",
		"weft store restore FILE with a backup, or weft store restore on a node that has a copy"}},
}

// isOutside reports whether a fix is one of outside.
func isOutside(text string) bool {
	for _, x := range outside {
		if slices.Contains(x.texts, text) {
			return true
		}
	}
	return false
}

// elsewhere are commands whose operands another command prints: a fix may name them without.
var elsewhere = []string{"join"}

// prose are words behind a command that are no operands of it.
var prose = strings.Fields("where with on as there here prints lists shows names has again then and or to in of for " +
	"without first instead needs makes by starts ends until if which too tries accepts at also")

// asNoun are words before "weft" where it is the name of the program and no command.
var asNoun = strings.Fields("the of install upgrade without")

// forMembers are flags and commands that a member of a fabric must not be sent to.
var forMembers = regexp.MustCompile(`--peer\b|--store(\s|$|,|;)|weft store restore|invalid AddrPort`)

// word is a flag in a text.
var word = regexp.MustCompile(`(^|\s|\()(--[a-z][a-z0-9-]*)`)

// fill replaces the holes of a text by samples.
func fill(t fixes.Text) (text string, err error) {
	var b strings.Builder
	for _, p := range t {
		v, known := samples[p.Hole]
		switch {
		case p.Hole == "":
			v = p.Literal
		case strings.HasPrefix(p.Hole, "netip.") && !p.Checked:
			return "", fmt.Errorf("a value of type %s may be invalid: check it with IsValid", p.Hole)
		case p.Hole == fixes.HoleCommand:
			v = "weft"
		case strings.HasPrefix(p.Hole, fixes.HoleFix):
			v = "weft status"
		case !known:
			return "", fmt.Errorf("there is no sample of the type %s", p.Hole)
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

// judge returns what is wrong with a fix.
func judge(f fixes.Fix) error {
	degraded := strings.HasSuffix(f.Type, ".Degraded")
	text := f.Text.String()
	switch {
	case text == "" && degraded:
		return fmt.Errorf("a degraded state has no fix")
	case text == "":
		return nil // it names none
	case degraded && strings.HasPrefix(text, "<"+fixes.HoleFix+"problem.Error>"):
		return fmt.Errorf("the fix of a problem may be empty: use cmp.Or")
	case strings.HasPrefix(text, "<"+fixes.HoleFix) && len(f.Text) == 1:
		return nil
	case len(f.Text) == 1 && f.Text[0].Hole != "" && f.Text[0].Hole != fixes.HoleCommand:
		return fmt.Errorf("the fix is not known before the node runs: form it from constants")
	}
	if !isOutside(text) && forMembers.MatchString(text) {
		return fmt.Errorf("a member of a fabric must not do that")
	}
	filled, err := fill(f.Text)
	if err != nil {
		return err
	}
	if f.Text[0].Hole == fixes.HoleCommand {
		return nil // the command that runs, with something added
	}
	for _, c := range weftCommands(filled) {
		if err := parses(c); err != nil {
			return fmt.Errorf("weft %s: %w", strings.Join(c, " "), err)
		}
	}
	if w := unknownOpener(filled); w != "" {
		return fmt.Errorf("%q is in neither of the lists of programs and of words", w)
	}
	for _, m := range word.FindAllStringSubmatch(filled, -1) {
		if !isFlag(m[2]) && !foreign(filled, m[2]) {
			return fmt.Errorf("no command has the flag %s", m[2])
		}
	}
	return nil
}

// unknownOpener is the first word of a clause that is neither a known command nor a word of prose; empty for none.
func unknownOpener(text string) string {
	for _, c := range clause.Split(text, -1) {
		for _, w := range strings.Fields(c) {
			w = strings.TrimRight(w, ",;:.)")
			if slices.Contains([]string{"and", "then", "or", "else", "if"}, w) {
				continue // the clause begins behind it
			}
			if isWord.MatchString(w) && w != "weft" && !slices.Contains(programs, w) && !slices.Contains(openers, w) {
				return w
			}
			break
		}
	}
	return ""
}

// isWord matches words that may be commands.
var isWord = regexp.MustCompile(`^[a-z][a-z-]*$`)

// foreign reports whether a flag belongs to a program other than weft.
func foreign(text, flag string) bool {
	before, _, _ := strings.Cut(text, flag)
	i := strings.LastIndexAny(before, ";:,")
	return slices.ContainsFunc(strings.Fields(before[i+1:]),
		func(w string) bool { return slices.Contains(programs, w) })
}

// weftCommands returns the commands of weft in a text, each as its words.
func weftCommands(text string) (list [][]string) {
	words := strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(text))
	for i := 0; i < len(words); i++ {
		if strings.TrimRight(words[i], ",;") != "weft" || i > 0 && slices.Contains(asNoun, words[i-1]) {
			continue
		}
		var c []string
		for j := i + 1; j < len(words) && words[j] != "weft" && !strings.HasSuffix(words[j-1], ","); j++ {
			w := words[j]
			end := strings.TrimRight(w, ",;:")
			if slices.Contains(prose, end) || strings.ContainsAny(w, "()|>") {
				break
			}
			c = append(c, sample(end))
			if end != w {
				break
			}
		}
		list = append(list, c)
	}
	return list
}

// sample is a value for a placeholder that must be a number.
func sample(w string) string {
	if w == "N" || w == "PORT" || w == "ID" {
		return "4794"
	}
	return w
}

// parses returns why the parser of commands refuses one.
func parses(args []string) error {
	root := documented()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if cmd == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("there is no such command")
	}
	same := slices.Index(rest, "…") // the operands of the command that failed
	if same >= 0 {
		rest = slices.Delete(slices.Clone(rest), same, same+1)
	}
	if err := cmd.ParseFlags(rest); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	operands := cmd.Flags().Args()
	if same >= 0 || len(operands) == 0 && slices.Contains(elsewhere, cmd.Name()) {
		return nil
	}
	if err := cmd.ValidateArgs(operands); err != nil {
		return err
	}
	return cmd.ValidateRequiredFlags()
}

// isFlag reports whether a command has a flag.
func isFlag(flag string) bool {
	for _, c := range everyCommand(documented()) {
		c.InitDefaultHelpFlag()
		name := strings.TrimPrefix(flag, "--")
		if c.Flags().Lookup(name) != nil || c.InheritedFlags().Lookup(name) != nil {
			return true
		}
	}
	return false
}

// cString matches a string literal of C with the literals that continue it.
var cString = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"(?:\s*(?:PRI\w+\s*)?"((?:[^"\\]|\\.)*)")*`)

// ofShim lists the fixes in the strings of the C code.
func ofShim(t *testing.T, dir string) (list []fixes.Fix) {
	t.Helper()
	sources, err := filepath.Glob(filepath.Join(dir, "shim", "*.c"))
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	verb := regexp.MustCompile(`%[-+#0-9.*]*(?:l|ll|z|h)?[a-z]`)
	part := regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	for _, path := range sources {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range cString.FindAllIndex(b, -1) {
			text := ""
			for _, m := range part.FindAllSubmatch(b[at[0]:at[1]], -1) {
				text += string(m[1])
			}
			_, fix, ok := strings.Cut(text, "fix: ")
			if !ok {
				continue
			}
			fix, _, _ = strings.Cut(fix, `\n`)
			fix = verb.ReplaceAllString(fix, "NAME")
			line := 1 + strings.Count(string(b[:at[0]]), "\n")
			list = append(list, fixes.Fix{Pos: fmt.Sprintf("shim/%s:%d", filepath.Base(path), line),
				Text: fixes.Text{{Literal: fix}}})
		}
	}
	return list
}

// TestFixes proves of every fix in the tree that its commands exist and that the parser of commands takes them, and
// that a member of a fabric may follow it.
func TestFixes(t *testing.T) {
	const dir = "../../.."
	all, err := fixes.Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, ofShim(t, dir)...)
	commands, used := 0, map[string]bool{}
	for _, f := range all {
		used[f.Text.String()] = true
		if err := judge(f); err != nil {
			t.Errorf("%s: %q (%s): %v", f.Pos, f.Text, f.Type, err)
		}
		if filled, err := fill(f.Text); err == nil {
			commands += len(weftCommands(filled))
		}
	}
	for _, x := range outside {
		for _, text := range x.texts {
			if !used[text] {
				t.Errorf("no code has the fix %q", text)
			}
		}
	}
	if len(all) < 500 || commands < 200 {
		t.Errorf("only %d fixes with %d commands were found", len(all), commands)
	}
	t.Logf("%d fixes with %d commands", len(all), commands)
}

// TestFixOfWait: a member without a trunk, or with one that is down, is not sent to settings of nodes in no fabric.
func TestFixOfWait(t *testing.T) {
	for _, s := range []api.Status{{Member: "a of fabric f"},
		{Member: "a of fabric f", Trunks: []api.Trunk{{Peer: "10.0.0.2:4792"}}}} {
		if why, fix := trunksDown(&s); why == "" || fix == "" || forMembers.MatchString(fix) {
			t.Errorf("%q, %q", why, fix)
		}
	}
}

// everyCommand lists a command and all below it.
func everyCommand(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		list = append(list, everyCommand(sub)...)
	}
	return list
}
