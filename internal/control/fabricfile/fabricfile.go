// SPDX-License-Identifier: Apache-2.0

// Package fabricfile is the YAML file of "weft export", "weft diff" and "weft apply": its text, and the differences
// between two configurations.
//
// What comes in: files, and configurations as the control interface has them; what goes out: the same, and errors that
// name the line. Callers: the command line, and the operations that compare configurations. It touches no file and no
// node, and it does not know which ports there are.
package fabricfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"weft/internal/control/api"
)

// Bounds of a file.
const (
	MaxSize  = 8 << 20 // octets
	maxDepth = 8
	version  = 1
)

// Error is what is wrong with a file, with the line.
type Error struct {
	Line int // from 1
	Why  string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Why) }

func wrong(n *yaml.Node, format string, args ...any) error {
	return &Error{n.Line, fmt.Sprintf(format, args...)}
}

// Decode reads a file. Unknown and repeated names, names without a value, values of another type, anchors and a
// second document are errors.
func Decode(b []byte) (d api.Desired, err error) {
	if len(b) > MaxSize {
		return d, fmt.Errorf("the file has %d octets, the limit is %d", len(b), MaxSize)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return d, &Error{1, "the file is empty"}
	} else if err != nil {
		return d, syntax(err)
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		return d, wrong(&second, "a second document")
	} else if !errors.Is(err, io.EOF) {
		return d, syntax(err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return d, &Error{max(doc.Line, 1), "the file is no list of sections such as partitions:"}
	}
	top := doc.Content[0]
	rest := &yaml.Node{Kind: yaml.MappingNode, Line: top.Line}
	stated := false
	for i := 0; i+1 < len(top.Content); i += 2 {
		k, v := top.Content[i], top.Content[i+1]
		if k.Value != "version" {
			rest.Content = append(rest.Content, k, v)
			continue
		}
		if stated {
			return d, wrong(k, "version is there twice")
		}
		stated = true
		if v.Value != strconv.Itoa(version) {
			return d, wrong(v, "version %s of the format: this program reads version %d", short(v.Value), version)
		}
	}
	return d, decode(rest, reflect.ValueOf(&d).Elem(), "the file", false, 0)
}

// syntax is the error of a text that is no YAML.
func syntax(err error) error {
	why := strings.TrimPrefix(err.Error(), "yaml: ")
	if line, rest, ok := strings.Cut(strings.TrimPrefix(why, "line "), ": "); ok {
		if n, err := strconv.Atoi(line); err == nil {
			return &Error{n, rest}
		}
	}
	return &Error{1, why}
}

// decode reads a node into v. name is what v is called; anyText permits a number where a text is wanted.
func decode(n *yaml.Node, v reflect.Value, name string, anyText bool, depth int) error {
	switch {
	case depth > maxDepth:
		return wrong(n, "%s: too deep", name)
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return wrong(n, "%s: anchors and aliases are not supported", name)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return decode(n, v.Elem(), name, anyText, depth)
	case reflect.Struct:
		return decodeStruct(n, v, name, depth)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 0, len(n.Content)))
		if n.Kind != yaml.SequenceNode {
			return wrong(n, "%s is a list, not %s; an empty one is []", name, kind(n))
		}
		for _, x := range n.Content {
			e := reflect.New(v.Type().Elem()).Elem()
			if err := decode(x, e, "an element of "+name, anyText, depth+1); err != nil {
				return err
			}
			v.Set(reflect.Append(v, e))
		}
		return nil
	case reflect.Map:
		if n.Kind != yaml.MappingNode {
			return wrong(n, "%s has names with numbers, not %s", name, kind(n))
		}
		v.Set(reflect.MakeMap(v.Type()))
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, x := n.Content[i], n.Content[i+1]
			key := reflect.ValueOf(k.Value)
			if k.Kind != yaml.ScalarNode {
				return wrong(k, "%s: a name is a text, not %s", name, kind(k))
			}
			if v.MapIndex(key).IsValid() {
				return wrong(k, "%s: %s is there twice", name, short(k.Value))
			}
			e := reflect.New(v.Type().Elem()).Elem()
			if err := decode(x, e, name+" of "+short(k.Value), anyText, depth+1); err != nil {
				return err
			}
			v.SetMapIndex(key, e)
		}
		return nil
	}
	return decodeScalar(n, v, name, anyText)
}

// decodeScalar reads a text, a number or a truth value.
func decodeScalar(n *yaml.Node, v reflect.Value, name string, anyText bool) error {
	if n.Kind != yaml.ScalarNode {
		return wrong(n, "%s is %s, not %s", name, wanted(v), kind(n))
	}
	switch v.Kind() {
	case reflect.String:
		if n.Tag != "!!str" && !(anyText && n.Tag == "!!int") {
			return wrong(n, "%s is a text, not %s: write it in quotes", name, kind(n))
		}
		v.SetString(n.Value)
		return nil
	case reflect.Int:
		var i int
		if n.Tag != "!!int" || n.Decode(&i) != nil {
			return wrong(n, "%s is a number, not %s", name, short(n.Value))
		}
		v.SetInt(int64(i))
		return nil
	case reflect.Bool:
		var b bool
		if n.Tag != "!!bool" || n.Decode(&b) != nil {
			return wrong(n, "%s is true or false, not %s", name, short(n.Value))
		}
		v.SetBool(b)
		return nil
	}
	panic("fabricfile: a value cannot be a " + v.Type().String())
}

// decodeStruct reads a mapping into a struct by its yaml tags, and sets its Line.
func decodeStruct(n *yaml.Node, v reflect.Value, name string, depth int) error {
	if n.Kind != yaml.MappingNode {
		return wrong(n, "%s has names with values, not %s", name, kind(n))
	}
	if l := v.FieldByName("Line"); l.IsValid() {
		l.SetInt(int64(n.Line))
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, x := n.Content[i], n.Content[i+1]
		if before := seen[k.Value]; before != 0 {
			return wrong(k, "%s is there twice: also in line %d", short(k.Value), before)
		}
		seen[k.Value] = k.Line
		f, anyText, ok := field(v, k.Value)
		if !ok || k.Kind != yaml.ScalarNode {
			return wrong(k, "%s: %s is not known here; known are %s", name, short(k.Value),
				strings.Join(fields(v.Type()), ", "))
		}
		if err := decode(x, f, k.Value, anyText, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// tag is the name of a field in a file, empty where it has none.
func tag(f reflect.StructField) (name string, anyText bool) {
	name, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if name == "-" {
		name = ""
	}
	return name, option == "any"
}

func field(v reflect.Value, name string) (f reflect.Value, anyText, ok bool) {
	for i := range v.NumField() {
		if t, anyText := tag(v.Type().Field(i)); t != "" && t == name {
			return v.Field(i), anyText, true
		}
	}
	return f, false, false
}

func fields(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if name, _ := tag(t.Field(i)); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func wanted(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Int:
		return "a number"
	case reflect.Bool:
		return "true or false"
	}
	return "a text"
}

// kind describes what a node is.
func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "names with values"
	case n.Tag == "!!int" || n.Tag == "!!float":
		return "the number " + short(n.Value)
	case n.Tag == "!!null":
		return "nothing"
	}
	return short(n.Value)
}

// short quotes a text of a file, cut to what an error has room for.
func short(s string) string {
	if r := []rune(s); len(r) > 40 {
		s = string(r[:40]) + "…"
	}
	return strconv.Quote(s)
}

// Encode returns the text of a file. Lists that are nil, and values that are zero, are left out.
func Encode(d api.Desired) []byte {
	top := encodeStruct(reflect.ValueOf(d))
	head := []*yaml.Node{scalar("version", ""), scalar(strconv.Itoa(version), "!!int")}
	top.Content = append(head, top.Content...)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{top}}); err != nil {
		panic("fabricfile: a configuration has no text: " + err.Error())
	}
	_ = e.Close() // a buffer takes everything
	return b.Bytes()
}

// scalar is a value; without a tag it is a text, which the encoder quotes where it has to.
func scalar(s, tag string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode}
	if tag == "" {
		n.SetString(s)
		return n
	}
	n.Tag, n.Value = tag, s
	return n
}

func encode(v reflect.Value, anyText bool) *yaml.Node {
	switch v.Kind() {
	case reflect.Pointer:
		return encode(v.Elem(), anyText)
	case reflect.Struct:
		return encodeStruct(v)
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if v.Len() == 0 || v.Type().Elem().Kind() == reflect.Int {
			n.Style = yaml.FlowStyle
		}
		for i := range v.Len() {
			n.Content = append(n.Content, encode(v.Index(i), anyText))
		}
		return n
	case reflect.Map:
		n := &yaml.Node{Kind: yaml.MappingNode}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			n.Content = append(n.Content, scalar(k.String(), ""), encode(v.MapIndex(k), anyText))
		}
		return n
	case reflect.Int:
		return scalar(strconv.FormatInt(v.Int(), 10), "!!int")
	case reflect.Bool:
		return scalar(strconv.FormatBool(v.Bool()), "!!bool")
	}
	if s := v.String(); anyText && hexadecimal(s) {
		return scalar(s, "!!int")
	}
	return scalar(v.String(), "")
}

// hexadecimal reports whether a text is a number that a file has without quotes.
func hexadecimal(s string) bool {
	digits, ok := strings.CutPrefix(s, "0x")
	_, err := strconv.ParseUint(digits, 16, 64)
	return ok && err == nil && !strings.ContainsAny(digits, "_+-")
}

func encodeStruct(v reflect.Value) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := range v.NumField() {
		name, anyText := tag(v.Type().Field(i))
		f := v.Field(i)
		if name == "" || absent(f) {
			continue
		}
		n.Content = append(n.Content, scalar(name, ""), encode(f, anyText))
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n
}

// absent reports whether a file leaves a value out. Empty lists of sections stay: they state that there is none.
func absent(v reflect.Value) bool {
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct {
		return v.IsNil()
	}
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() == 0
	}
	return v.IsZero()
}
