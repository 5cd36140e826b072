// SPDX-License-Identifier: Apache-2.0

package fabricfile

import (
	"fmt"
	"reflect"
	"strings"

	"weft/internal/control/api"
)

// Compare returns the differences between what is configured and what shall be. Sections that want does not state are
// not compared. Both have their elements in the form of an export. name adds to a port what people call it; nil:
// nothing.
func Compare(is, want api.Desired, name func(port string) string) (list []api.DesiredChange) {
	c := comparer{name: name}
	if want.Subnet != nil {
		c.section("subnet", orEmpty(is.Subnet), *want.Subnet)
	}
	if want.Partitions != nil {
		each(&c, is.Partitions, want.Partitions, func(p *api.DesiredPartition) (string, string) {
			return p.PKey, fmt.Sprintf("partition %s (%s)", p.Name, p.PKey)
		})
	}
	if want.Ethernet != nil {
		c.section("ethernet", orEmpty(is.Ethernet), *want.Ethernet)
	}
	if want.VESWs != nil {
		each(&c, is.VESWs, want.VESWs, func(v *api.DesiredVESW) (string, string) { return v.Name, "vesw " + v.Name })
	}
	if want.Groups != nil {
		each(&c, is.Groups, want.Groups,
			func(g *api.DesiredGroup) (string, string) { return g.MGID, "group " + g.MGID })
	}
	if want.Node != nil {
		was := orEmpty(is.Node)
		if want.Node.Devices != nil {
			each(&c, was.Devices, want.Node.Devices, func(d *api.DesiredDevice) (string, string) {
				return d.Name, "device " + d.Name
			})
		}
		if want.Node.Links != nil {
			each(&c, was.Links, want.Node.Links, func(l *api.DesiredLink) (string, string) {
				return LinkKey(l), "IP links of " + LinkKey(l)
			})
		}
	}
	return c.list
}

// LinkKey identifies a request for IP links: its device and its partitions.
func LinkKey(l *api.DesiredLink) string {
	r := api.IPRequest{Device: l.Device, PKeys: l.PKeys}
	return strings.TrimSuffix(r.Key(), "/")
}

func orEmpty[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

type comparer struct {
	name func(string) string
	list []api.DesiredChange
}

func (c *comparer) add(kind, what, how string) {
	c.list = append(c.list, api.DesiredChange{Kind: kind, What: what, How: how})
}

func (c *comparer) section(what string, is, want any) {
	if how := c.differences(reflect.ValueOf(is), reflect.ValueOf(want)); how != "" {
		c.add(api.ChangeModify, what, how)
	}
}

// each compares two lists by what identifies their elements: deletions first, as a change makes room.
func each[T any](c *comparer, is, want []T, id func(*T) (key, what string)) {
	places := func(list []T) map[string]int {
		at := make(map[string]int, len(list))
		for i := range list {
			key, _ := id(&list[i])
			if _, twice := at[key]; !twice {
				at[key] = i
			}
		}
		return at
	}
	were, are := places(is), places(want)
	var zero T
	for i := range is {
		key, what := id(&is[i])
		if _, stays := are[key]; !stays {
			c.add(api.ChangeDelete, what, "")
		}
	}
	for i := range want {
		key, what := id(&want[i])
		k, was := were[key]
		if !was {
			c.add(api.ChangeAdd, what, c.differences(reflect.ValueOf(zero), reflect.ValueOf(want[i])))
		} else if how := c.differences(reflect.ValueOf(is[k]), reflect.ValueOf(want[i])); how != "" {
			c.add(api.ChangeModify, what, how)
		}
	}
}

// identity are fields that are in the name of an element.
var identity = map[string]bool{"pkey": true, "name": true, "mgid": true, "device": true, "pkeys": true, "guid": true}

// differences lists the fields of two values of a type that differ.
func (c *comparer) differences(is, want reflect.Value) string {
	var list []string
	for i := range is.NumField() {
		name, _ := tag(is.Type().Field(i))
		a, b := is.Field(i), want.Field(i)
		if name == "" || same(a, b) {
			continue
		}
		if identity[name] && is.IsZero() {
			continue // of an element that is added
		}
		list = append(list, c.difference(name, a, b))
	}
	return strings.Join(list, ", ")
}

// same compares values; a list that is nil is empty.
func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		return a.Len() == 0 && b.Len() == 0 || reflect.DeepEqual(a.Interface(), b.Interface())
	case reflect.Struct:
		for i := range a.NumField() {
			if name, _ := tag(a.Type().Field(i)); name != "" && !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// difference describes a field that differs.
func (c *comparer) difference(name string, a, b reflect.Value) string {
	if a.Kind() != reflect.Slice || a.Type().Elem().Kind() == reflect.Int {
		if text(a) == "" {
			return name + " " + text(b)
		}
		return fmt.Sprintf("%s %s → %s", name, text(a), orDefault(text(b)))
	}
	var parts []string
	was, is := c.elements(a), c.elements(b)
	before, after := set(was), set(is)
	for _, e := range is {
		if !before[e] {
			parts = append(parts, "+ "+e)
		}
	}
	for _, e := range was {
		if !after[e] {
			parts = append(parts, "- "+e)
		}
	}
	if len(parts) == 0 {
		return name + " in another order"
	}
	return name + " " + strings.Join(parts, ", ")
}

func set(list []string) map[string]bool {
	s := make(map[string]bool, len(list))
	for _, e := range list {
		s[e] = true
	}
	return s
}

func orDefault(s string) string {
	if s == "" {
		return "the default"
	}
	return s
}

// text is a value for people, empty where it is zero.
func text(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return fmt.Sprint(v.Elem().Interface())
	case v.IsZero(), (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0:
		return ""
	}
	return strings.TrimPrefix(fmt.Sprint(v.Interface()), "map")
}

// elements are the elements of a list as texts.
func (c *comparer) elements(v reflect.Value) (list []string) {
	for i := range v.Len() {
		e := v.Index(i)
		if p, ok := e.Interface().(api.DesiredVESWPort); ok {
			s := c.port(p.Port)
			if p.VPort != nil {
				s += fmt.Sprintf(" vport %d", *p.VPort)
			}
			if p.Number != 0 {
				s += fmt.Sprintf(" number %d", p.Number)
			}
			if p.Gateway {
				s += " gateway"
			}
			list = append(list, s)
			continue
		}
		list = append(list, c.port(e.String()))
	}
	return list
}

// port adds the name of a port to its GUID, where it has one.
func (c *comparer) port(s string) string {
	if c.name == nil {
		return s
	}
	port, as, _ := strings.Cut(s, "=")
	if n := c.name(port); n != "" {
		port += " (" + n + ")"
	}
	if as != "" {
		port += "=" + as
	}
	return port
}

// Text is differences in one line.
func Text(list []api.DesiredChange) string {
	signs := map[string]string{api.ChangeAdd: "+ ", api.ChangeDelete: "- "}
	var lines []string
	for _, x := range list {
		s := signs[x.Kind] + x.What
		if x.How != "" {
			s += ": " + x.How
		}
		lines = append(lines, s)
	}
	return strings.Join(lines, "; ")
}
