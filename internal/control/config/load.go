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

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"go.yaml.in/yaml/v3"
)

// Keys are the names of the settings, in the order of Config.
var Keys = []string{"dir", "device", "lanes", "roce-port", "roce-interfaces", "wire-local", "icrc", "real-time", "spin", "idle-exit", "allow-uid", "log-level", "mcast-payloads", "mcast-threshold",
	"fabric", "peer", "trunk-port", "switch-ports", "sm", "sm-priority", "m-key-file", "store", "store-listen", "ipoib", "ipoib-params", "ipoib-set", "ipoib-addr", "ipoib-mtu", "ipoib-qkey"}

// EnvName returns the environment variable of a key.
func EnvName(key string) string {
	return "WEFT_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// Sources are where a configuration comes from, strongest first.
type Sources struct {
	Flags  map[string]any      // by key; only those that were given
	Getenv func(string) string // an empty variable counts as unset
	File   string              // path of a YAML file; empty: none
}

// Load merges the sources over the defaults. It does not Validate: the caller
// fills Dir first.
func Load(s Sources) (Config, error) {
	k := koanf.New("\x00") // a delimiter no key has: keys are flat
	if s.File != "" {
		m, err := readFile(s.File)
		if err != nil {
			return Config{}, err
		}
		if err := k.Load(confmap.Provider(m, ""), nil); err != nil {
			return Config{}, err
		}
	}
	env, err := fromEnv(s.Getenv)
	if err != nil {
		return Config{}, err
	}
	for _, m := range []map[string]any{env, s.Flags} {
		if err := k.Load(confmap.Provider(m, ""), nil); err != nil {
			return Config{}, err
		}
	}
	c := Default()
	err = k.UnmarshalWithConf("", &c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		DecodeHook:  mapstructure.StringToTimeDurationHookFunc(),
		ErrorUnused: true,
		ZeroFields:  true, // a list replaces a weaker list, it is not merged into it
	}})
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	return c, nil
}

// readFile decodes a YAML file strictly: an unknown or doubled key, a wrong
// type or a second document is an error that names the line.
func readFile(path string) (map[string]any, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var typed Config
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&typed); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %s", path, oneLine(err))
	}
	if err := dec.Decode(&typed); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one document", path)
	}
	m := map[string]any{}
	if err := yaml.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%s: %s", path, oneLine(err))
	}
	return m, nil
}

// oneLine turns the YAML reader's indented list into one line, without the
// Go type names that mean nothing to whoever wrote the file.
func oneLine(err error) string {
	var te *yaml.TypeError
	if !errors.As(err, &te) {
		return strings.TrimPrefix(err.Error(), "yaml: ")
	}
	lines := make([]string, len(te.Errors))
	for i, e := range te.Errors {
		e = strings.Replace(e, "not found in type config.Config", "is not a setting", 1)
		lines[i] = strings.Replace(e, "field ", "", 1)
	}
	return strings.Join(lines, "; ")
}

// fromEnv reads the WEFT_ variables. They are parsed here and not weakly by
// the decoder, so that a wrong one is named.
func fromEnv(getenv func(string) string) (map[string]any, error) {
	m := map[string]any{}
	var errs []error
	for _, key := range Keys {
		name := EnvName(key)
		s := getenv(name)
		if s == "" {
			continue
		}
		var v any = s
		var err error
		switch key {
		case "lanes", "roce-port", "trunk-port", "switch-ports", "sm-priority", "mcast-payloads", "mcast-threshold", "ipoib-mtu":
			v, err = strconv.Atoi(s)
		case "ipoib-qkey":
			var n int64
			n, err = strconv.ParseInt(s, 0, 0)
			v = int(n)
		case "wire-local", "real-time", "fabric", "ipoib":
			v, err = strconv.ParseBool(s)
		case "spin", "idle-exit":
			v, err = time.ParseDuration(s)
		case "roce-interfaces", "peer", "ipoib-set", "ipoib-addr":
			v = strings.Split(s, ",")
		case "allow-uid":
			var uids []int
			for f := range strings.SplitSeq(s, ",") {
				uid, e := strconv.Atoi(strings.TrimSpace(f))
				err = errors.Join(err, e)
				uids = append(uids, uid)
			}
			v = uids
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s has no valid value: %q", name, s))
			continue
		}
		m[key] = v
	}
	return m, errors.Join(errs...)
}
