// SPDX-License-Identifier: Apache-2.0

package member

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// The form of every record here. A field that an older weft may ignore raises recordMinor; one that it must not ignore,
// such as one that takes a right away, raises recordVersion. A record of another version is refused, never guessed.
const (
	recordVersion = 1
	recordMinor   = 0
)

// Form is the form of a record, which Encode sets.
type Form struct {
	Version int `json:"version"`
	Minor   int `json:"minor,omitempty"`
	// Kept are the fields of a record of a later minor form that this weft has not, as they were read. What changes
	// the record writes them back. Those within other fields, or of a name that differs in case alone, are not kept.
	Kept map[string]json.RawMessage `json:"-"`
}

// Newer reports whether a later weft wrote the record, with fields that this one may lack.
func (f *Form) Newer() bool { return f.Minor > recordMinor }

func (f *Form) form() *Form { return f }

// Value is a record: Record, Gone, Fabric, Report, Sealed, Token or Roster.
type Value interface {
	Check() error
	Newer() bool
	form() *Form
	limit() int
}

func (r *Record) limit() int { return MaxRecord }
func (g *Gone) limit() int   { return MaxRecord }
func (f *Fabric) limit() int { return MaxRecord }
func (r *Report) limit() int { return MaxRecord }
func (s *Sealed) limit() int { return MaxRecord }
func (t *Token) limit() int  { return MaxRecord }
func (r *Roster) limit() int { return MaxRoster }

// Encode returns the form of a record in the store: JSON with its version, and the fields that Decode kept. Where those
// do not fit, the record is of this weft's minor form: the later one would not find its fields in its own. A record
// that Check refuses is not encoded.
func Encode[T any, R interface {
	*T
	Value
}](v T) ([]byte, error) {
	r := R(&v)
	f := r.form()
	f.Version, f.Minor = recordVersion, max(f.Minor, recordMinor)
	if err := r.Check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(v)
	if err != nil || len(f.Kept) == 0 {
		return b, err
	}
	kept, err := json.Marshal(f.Kept)
	if err != nil {
		return nil, err
	}
	if len(b)+len(kept)-1 > r.limit() {
		f.Minor = recordMinor
		return json.Marshal(v)
	}
	return append(append(b[:len(b)-1], ','), kept[1:]...), nil
}

// Decode is the reverse of Encode. Foreign octets are refused with the reason: another version, unknown fields without
// a later minor form, too long, not what Check accepts.
func Decode[T any, R interface {
	*T
	Value
}](b []byte) (v T, err error) {
	var none T
	r := R(&v)
	if len(b) > r.limit() {
		return none, fmt.Errorf("the record has %d octets, at most %d fit", len(b), r.limit())
	}
	var head Form
	if err := json.Unmarshal(b, &head); err != nil {
		return none, fmt.Errorf("the record is unreadable: %w", err)
	}
	if head.Version != recordVersion || head.Minor < 0 {
		return none, fmt.Errorf("the record is of version %d, this weft reads version %d", head.Version, recordVersion)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if !head.Newer() {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(&v); err != nil {
		return none, fmt.Errorf("the record is unreadable: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return none, errors.New("the record is unreadable: more than one value")
	}
	if err := r.Check(); err != nil {
		return none, err
	}
	if head.Newer() {
		r.form().Kept, err = unknown(b, reflect.TypeFor[T]())
	}
	return v, err
}

// unknown returns the fields of a JSON object that a type has not.
func unknown(b []byte, t reflect.Type) (fields map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(b, &fields); err != nil {
		return nil, fmt.Errorf("the record is unreadable: %w", err)
	}
	known := reflect.VisibleFields(t)
	for name := range fields {
		for _, f := range known {
			if has, _, _ := strings.Cut(f.Tag.Get("json"), ","); strings.EqualFold(has, name) {
				delete(fields, name)
			}
		}
	}
	if len(fields) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(fields) // in the form in which Encode writes them
	if err != nil {
		return nil, err
	}
	clear(fields)
	return fields, json.Unmarshal(text, &fields)
}
