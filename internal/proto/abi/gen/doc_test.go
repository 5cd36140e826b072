// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"weft/internal/proto/abi"
)

// docFiles are the texts that describe the ABI: for every driver, and for programs of the host.
var docFiles = []string{"virtio-roce.md", "abi.md"}

// docRow is a row of a table of a text.
type docRow struct {
	at     string // file and line
	header string // first row of the table
	cells  []string
}

// docRows returns the rows of all tables of the text, without their headers.
func docRows(file, text string) (rows []docRow) {
	header := ""
	for i, line := range strings.Split(text, "\n") {
		switch {
		case !strings.HasPrefix(line, "|"):
			header = ""
		case header == "":
			header = line
		case !strings.HasPrefix(line, "|---"):
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for j := range cells {
				cells[j] = strings.TrimSpace(cells[j])
			}
			rows = append(rows, docRow{fmt.Sprintf("%s:%d", file, i+1), header, cells})
		}
	}
	return rows
}

// docField writes a field of the schema as the texts do: offset, name, type.
func docField(line string) string {
	w := strings.Fields(line)
	if w[2] == "union" {
		arms := make([]string, 0, len(w)-3)
		for _, arm := range w[3:] {
			_, l, _ := strings.Cut(arm, "=")
			arms = append(arms, "`"+l+"`")
		}
		return w[0] + " " + w[1] + " union of " + strings.Join(arms, ", ")
	}
	typ, _, _ := strings.Cut(w[2], ":")
	typ = strings.NewReplacer("[", "×", "]", "").Replace(typ)
	if len(w) > 3 {
		typ += "×n"
	}
	return w[0] + " " + w[1] + " " + typ
}

func docFields(l *layout) string {
	var out []string
	for line := range strings.Lines(strings.TrimSpace(l.fields)) {
		out = append(out, docField(line))
	}
	return strings.Join(out, " · ")
}

// docConstants returns the names and values of the schema's constants with a prefix. Prefixes that are longer and have
// rows of their own are not part of it.
func docConstants(prefix string, prefixes []string) map[string]uint64 {
	out := map[string]uint64{}
	for _, g := range constants {
	next:
		for _, c := range g.list {
			name, ok := strings.CutPrefix(c.name, prefix)
			if !ok || c.name == "ATTR_ALL" {
				continue
			}
			for _, p := range prefixes {
				if len(p) > len(prefix) && strings.HasPrefix(c.name, p) {
					continue next
				}
			}
			out[name] = c.value
		}
	}
	return out
}

// docFaults compares the tables of the texts with the schema.
func docFaults(texts map[string]string) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var rows []docRow
	for _, f := range docFiles {
		rows = append(rows, docRows(f, texts[f])...)
	}
	schema := map[string]*layout{}
	for i := range layouts {
		schema[layouts[i].c] = &layouts[i]
	}
	ext := map[string]uint64{"–": 0}
	var prefixes []string
	for name, bit := range docConstants("CAP_", nil) {
		ext[name] = bit
	}
	for _, r := range rows {
		if strings.HasPrefix(r.header, "| prefix |") {
			prefixes = append(prefixes, strings.Trim(r.cells[0], "`"))
		}
	}
	commands, structures := map[int]bool{}, map[string]bool{}
	for _, r := range rows {
		switch {
		case strings.HasPrefix(r.header, "| command | name | request | result | extension |"):
			n, _ := strconv.Atoi(r.cells[0])
			i, ok := abi.Cmd(n).Info()
			bit, known := ext[r.cells[4]]
			got := fmt.Sprint(r.cells[:4], bit)
			if want := fmt.Sprint([]string{strconv.Itoa(n), i.Name, strconv.Itoa(i.Req), strconv.Itoa(i.Res)},
				i.Ext); !ok || !known || got != want {
				fault("%s: command %s, the schema has %s", r.at, got, want)
			}
			if commands[n] {
				fault("%s: command %d a second time", r.at, n)
			}
			commands[n] = true
		case strings.HasPrefix(r.header, "| structure | size |"):
			name := strings.Trim(r.cells[0], "`")
			l := schema[name]
			if l == nil {
				fault("%s: no structure %s in the schema", r.at, name)
				continue
			}
			structures[name] = true
			if want := docFields(l); r.cells[1] != strconv.Itoa(l.size) || r.cells[2] != want {
				fault("%s: %s has %s octets: %s\nthe schema has %d: %s", r.at, name, r.cells[1], r.cells[2], l.size, want)
			}
		case strings.HasPrefix(r.header, "| prefix |"):
			prefix, got := strings.Trim(r.cells[0], "`"), map[string]uint64{}
			for _, c := range strings.Split(r.cells[2], " · ") {
				name, value, _ := strings.Cut(c, " ")
				v, err := strconv.ParseUint(value, 0, 64)
				if err != nil {
					fault("%s: %q is no name and value", r.at, c)
				}
				got[name] = v
			}
			if want := docConstants(prefix, prefixes); fmt.Sprint(got) != fmt.Sprint(want) {
				fault("%s: %s has %v, the schema has %v", r.at, prefix, got, want)
			}
		case strings.HasPrefix(r.header, "| bit | name |"):
			if bit, err := strconv.ParseUint(r.cells[0], 10, 8); err != nil || ext[strings.TrimPrefix(r.cells[1],
				"WEFT_")] != bit {
				fault("%s: bit %s is not %s", r.at, r.cells[0], r.cells[1])
			}
		case strings.HasPrefix(r.header, "| offset | type | field |"):
			if !elementHas(schema, r.cells[0], r.cells[1], r.cells[2]) {
				fault("%s: no element has %s %s at %s", r.at, r.cells[1], r.cells[2], r.cells[0])
			}
		}
	}
	for n := range 256 {
		if i, ok := abi.Cmd(n).Info(); ok && !commands[n] {
			fault("command %d %s is in no table", n, i.Name)
		}
	}
	for name := range schema {
		if described.MatchString(name) && !structures[name] {
			fault("structure %s is in no table", name)
		}
	}
	return faults
}

// described matches the structures that the texts must have.
var described = regexp.MustCompile(`^(cmd|res|sq)_|^(qp_cap|ah_attr|mr_result|sge|rq_hdr|cqe|event|qp_attr_ex)$`)

// elementHas reports whether the send element of the RFC or a completion has the field. A field of a union is written
// "arm.name", with its offset in the element. The list at the end and its type have names of the RFC.
func elementHas(schema map[string]*layout, offset, typ, name string) bool {
	if name == "sg_list" {
		return typ == "sge×num_sge" && offset == strconv.Itoa(schema["sq_req"].size)
	}
	names, base := []string{"sq_req", "cqe"}, 0
	if arm, field, ok := strings.Cut(name, "."); ok {
		names, base, name = []string{"sq_" + arm}, 16, field
	}
	n, err := strconv.Atoi(offset)
	if err != nil {
		return false
	}
	for _, l := range names {
		if schema[l] == nil {
			return false
		}
		for _, f := range strings.Split(docFields(schema[l]), " · ") {
			if f == fmt.Sprintf("%d %s %s", n-base, name, typ) {
				return true
			}
		}
	}
	// A row of reserved words covers what the RFC reserves.
	return name == "reserved" && (offset == "36" || offset == "564") && typ == "u32×3"
}

func readDocs(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, f := range docFiles {
		b, err := os.ReadFile("../../../../docs/notes/" + f)
		if err != nil {
			t.Fatal(err)
		}
		texts[f] = string(b)
	}
	return texts
}

// TestTextsMatchSchema compares the tables of docs/notes/virtio-roce.md and docs/notes/abi.md with the schema.
func TestTextsMatchSchema(t *testing.T) {
	for _, f := range docFaults(readDocs(t)) {
		t.Error(f)
	}
}

// TestFaultsOfTextsAreFound changes the texts in each kind of table.
func TestFaultsOfTextsAreFound(t *testing.T) {
	for _, c := range []struct{ name, old, new string }{
		{"number of a command", "| 65 | CREATE_SRQ |", "| 66 | CREATE_SRQ |"},
		{"size of a request", "| 9 | CREATE_QP | 56 |", "| 9 | CREATE_QP | 52 |"},
		{"extension of a command", "| 70 | ALLOC_MW | 8 | 8 | MW |", "| 70 | ALLOC_MW | 8 | 8 | SRQ |"},
		{"size of a structure", "| `sq_hdr` | 64 |", "| `sq_hdr` | 60 |"},
		{"offset of a field", "16 mr_lkey", "20 mr_lkey"},
		{"offset in an element", "| 16 | u32 | ud.remote_qpn |", "| 20 | u32 | ud.remote_qpn |"},
		{"type in a completion", "| 28 | u32 | src_qp |", "| 28 | u16 | src_qp |"},
		{"value of a number", "SRQ_LIMIT 9", "SRQ_LIMIT 8"},
		{"absent number", " · MW_BIND_ERR 0x40", ""},
		{"bit of an extension", "| 44 | ASYNC_EVQ |", "| 45 | ASYNC_EVQ |"},
		{"absent structure", "| `cmd_set_arm_area` |", "| `other` |"},
	} {
		t.Run(c.name, func(t *testing.T) {
			texts := readDocs(t)
			text := texts["virtio-roce.md"]
			if !strings.Contains(text, c.old) {
				t.Fatalf("the text has no %q", c.old)
			}
			texts["virtio-roce.md"] = strings.ReplaceAll(text, c.old, c.new)
			if len(docFaults(texts)) == 0 {
				t.Errorf("%q instead of %q was not found", c.new, c.old)
			}
		})
	}
}
