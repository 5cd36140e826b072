// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvName returns the environment variable of a setting.
func EnvName(name string) string {
	return "WEFT_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Sources are where a configuration comes from, strongest first.
type Sources struct {
	Flags  *pflag.FlagSet      // with the flags of AddFlags; only those that were given count; nil: none
	Getenv func(string) string // an empty variable counts as unset
	File   string              // path of a YAML file; empty: none
}

// AddFlags adds a flag for each setting, except for the names in skip.
func AddFlags(flags *pflag.FlagSet, skip ...string) {
	c := new(Config)
	*c = Default()
next:
	for i := range Settings {
		s := &Settings[i]
		for _, name := range skip {
			if s.Name == name {
				continue next
			}
		}
		switch p := s.field(c).(type) {
		case *string:
			flags.StringVar(p, s.Name, *p, s.Help)
		case *bool:
			flags.BoolVar(p, s.Name, *p, s.Help)
		case *int:
			flags.IntVar(p, s.Name, *p, s.Help)
		case *time.Duration:
			flags.DurationVar(p, s.Name, *p, s.Help)
		case *[]int:
			flags.IntSliceVar(p, s.Name, *p, s.Help)
		case *[]string:
			flags.StringSliceVar(p, s.Name, *p, s.Help)
		}
		if s.Base == 16 {
			flags.Lookup(s.Name).DefValue = s.DefaultText()
		}
	}
}

// Load merges the sources over the defaults. It does not Validate: the caller fills Dir first.
func Load(from Sources) (Config, error) {
	c := Default()
	if from.File != "" {
		if err := c.readFile(from.File); err != nil {
			return Config{}, err
		}
	}
	if err := c.readEnv(from.Getenv); err != nil {
		return Config{}, err
	}
	if from.Flags == nil {
		return c, nil
	}
	for i := range Settings {
		s := &Settings[i]
		if f := from.Flags.Lookup(s.Name); f != nil && f.Changed {
			text := f.Value.String()
			if list, ok := f.Value.(pflag.SliceValue); ok {
				if p, ok := s.field(&c).(*[]string); ok { // a value may have commas, and the list none: --peer=
					*p = list.GetSlice()
					continue
				}
				text = strings.Join(list.GetSlice(), ",")
			}
			if err := s.parse(&c, text); err != nil {
				return Config{}, fmt.Errorf("flag --%s has no valid value: %q", s.Name, f.Value)
			}
		}
	}
	return c, nil
}

// readFile decodes a YAML file strictly: an unknown or repeated key, a wrong type or a second document is an error that
// names the line.
func (c *Config) readFile(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var keys map[string]yaml.Node
	if err := dec.Decode(&keys); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %s", path, oneLine(err))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one document", path)
	}
	var errs []string
	for i := range Settings {
		s := &Settings[i]
		if v, ok := keys[s.Name]; ok {
			if err := v.Decode(s.field(c)); err != nil {
				errs = append(errs, oneLine(err))
			}
			delete(keys, s.Name)
		}
	}
	for name := range keys {
		errs = append(errs, fmt.Sprintf("line %d: %s is not a setting", lineOf(b, name), name))
	}
	if len(errs) > 0 {
		return fmt.Errorf("%s: %s", path, strings.Join(errs, "; "))
	}
	return nil
}

// lineOf returns the line of a key of a YAML mapping.
func lineOf(b []byte, key string) int {
	var doc yaml.Node
	if yaml.Unmarshal(b, &doc) == nil && len(doc.Content) > 0 {
		for _, k := range doc.Content[0].Content {
			if k.Value == key {
				return k.Line
			}
		}
	}
	return 0
}

// oneLine joins the lines of a YAML reader's error.
func oneLine(err error) string {
	var te *yaml.TypeError
	if !errors.As(err, &te) {
		return strings.TrimPrefix(err.Error(), "yaml: ")
	}
	return strings.Join(te.Errors, "; ")
}

// readEnv reads the WEFT_ variables.
func (c *Config) readEnv(getenv func(string) string) error {
	var errs []error
	for i := range Settings {
		s := &Settings[i]
		name := EnvName(s.Name)
		text := getenv(name)
		if text == "" {
			continue
		}
		if err := s.parse(c, text); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s has no valid value: %q", name, text))
		}
	}
	return errors.Join(errs...)
}

// parse sets the setting in c to the value of text. A list has commas between its values.
func (s *Setting) parse(c *Config, text string) (err error) {
	switch p := s.field(c).(type) {
	case *string:
		*p = text
	case *bool:
		*p, err = strconv.ParseBool(text)
	case *int:
		var n int64
		base := 10
		if s.Base == 16 {
			base = 0 // hexadecimal with 0x, else decimal
		}
		n, err = strconv.ParseInt(text, base, 0)
		*p = int(n)
	case *time.Duration:
		*p, err = time.ParseDuration(text)
	case *[]string:
		*p = strings.Split(text, ",")
	case *[]int:
		*p = nil
		for f := range strings.SplitSeq(text, ",") {
			n, e := strconv.Atoi(strings.TrimSpace(f))
			err = errors.Join(err, e)
			*p = append(*p, n)
		}
	}
	return err
}

// assign sets the setting in c to v, which has its type.
func (s *Setting) assign(c *Config, v any) {
	switch p := s.field(c).(type) {
	case *string:
		*p = v.(string)
	case *bool:
		*p = v.(bool)
	case *int:
		*p = v.(int)
	case *time.Duration:
		*p = v.(time.Duration)
	}
}
