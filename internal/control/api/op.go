// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Op is one operation of the interface: everything that server and client have in common about it. In is what a
// request has, Out what the answer has; None is nothing.
//
// A request's parameters are in its path, everything else is its body, in JSON. A path below Version has parameters in
// braces, and behind a question mark the names of those in the query: "/vesws/{name}/ports/{port}?vport". Where In is a
// string or a number it is the only parameter; where it is a struct, fields with the tag `param:"name"` are parameters
// and the field with the tag `body:""` is the body. A struct without such tags is the body.
//
// An In, or its body, that has a method Validate() error is refused by the server where that returns an error.
type Op[In, Out any] struct {
	Method string
	Path   string
	What   string // begins the text of every error: "cannot list devices"
	Access Access // the least that a peer needs
	// Param is the reason for the refusal of a parameter that is no number; %q in it is the parameter.
	Param string
	// Fix is the fix of a refused In.
	Fix string
	// Wait bounds how long the node works on a request; 0: until the caller is gone.
	Wait time.Duration
	// Limit bounds the octets of a request's body; 0: 64 KiB.
	Limit int64
	// Master states that only the master of the subnet can do it: in a fabric, every other node forwards the request.
	Master bool
	// Reads is the tree of the store that an operation of the master shows. A request of a member needs what the store
	// itself would require; empty: what every member reads.
	Reads string
}

// None is no input, or no output.
type None struct{}

// Named is an input with the name of what it is about in the path.
type Named[T any] struct {
	Name  string `param:"name"`
	Value T      `body:""`
}

type validator interface{ Validate() error }

// Validate is that of the value, if it has one.
func (n *Named[T]) Validate() error {
	if v, ok := any(&n.Value).(validator); ok {
		return v.Validate()
	}
	return nil
}

// Handle registers f as what op does. f is called from any goroutine, several times at once; it returns soon after ctx
// is done. What it returns belongs to the caller: snapshots, never live state. An *Error is passed on as it is; any
// other error is CodeInternal. Lists that are nil are answered as empty ones.
func Handle[In, Out any](mux *http.ServeMux, op Op[In, Out], f func(context.Context, In) (Out, error)) {
	path, _, _ := strings.Cut(op.Path, "?")
	pattern := op.Method + " /" + Version + path
	out := reflect.TypeFor[Out]()
	sort, err := sorterOf(out, "")
	if err != nil {
		panic(fmt.Sprintf("api: the answer of %s: %v", pattern, err))
	}
	call := func(r *http.Request) (any, error) {
		in, err := op.decode(r)
		if err != nil {
			return nil, err
		}
		ctx := r.Context()
		if op.Wait != 0 {
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, op.Wait)
			defer stop()
		}
		out, err := f(ctx, in)
		if err != nil {
			return nil, err
		}
		v := reflect.ValueOf(&out).Elem()
		noNilLists(v)
		if sort != nil {
			sort(v)
		}
		return out, nil
	}
	mux.Handle(pattern, handler{op.What, op.Access, op.Limit, op.Master, op.Reads, call, out})
}

// Refuse registers err as the outcome of every request for op.
func (op Op[In, Out]) Refuse(mux *http.ServeMux, err error) {
	Handle(mux, op, func(context.Context, In) (out Out, _ error) { return out, err })
}

// NoInput makes a function without input one that Handle takes.
func NoInput[Out any](f func(context.Context) (Out, error)) func(context.Context, None) (Out, error) {
	return func(ctx context.Context, _ None) (Out, error) { return f(ctx) }
}

// NoOutput makes a function without output one that Handle takes.
func NoOutput[In any](f func(context.Context, In) error) func(context.Context, In) (None, error) {
	return func(ctx context.Context, in In) (None, error) { return None{}, f(ctx, in) }
}

// Action makes a function without input and output one that Handle takes.
func Action(f func(context.Context) error) func(context.Context, None) (None, error) {
	return func(ctx context.Context, _ None) (None, error) { return None{}, f(ctx) }
}

// ByName makes a function of a name and a value one that Handle takes.
func ByName[T, Out any](f func(ctx context.Context, name string, v T) (Out, error)) func(context.Context,
	Named[T]) (Out, error) {
	return func(ctx context.Context, in Named[T]) (Out, error) { return f(ctx, in.Name, in.Value) }
}

// Call has the node of c do op. Every error is an *Error.
func Call[In, Out any](ctx context.Context, c *Client, op Op[In, Out], in In) (out Out, err error) {
	path, body, err := op.encode(in)
	if err != nil {
		return out, asError(op.What, err)
	}
	b, err := c.do(ctx, op.What, op.Method, path, body)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return out, asError(op.What, fmt.Errorf("the node's answer is not valid: %w", err))
	}
	return out, nil
}

// Get is Call of an operation without input.
func Get[Out any](ctx context.Context, c *Client, op Op[None, Out]) (Out, error) {
	return Call(ctx, c, op, None{})
}

// Do is Call of an operation without output.
func Do[In any](ctx context.Context, c *Client, op Op[In, None], in In) error {
	_, err := Call(ctx, c, op, in)
	return err
}

// decode reads and validates the input of a request.
func (op Op[In, Out]) decode(r *http.Request) (in In, err error) {
	v := reflect.ValueOf(&in).Elem()
	_, names, _ := strings.Cut(op.Path, "?")
	query := r.URL.Query()
	inQuery := strings.Split(names, "&")
	for _, p := range params(op.Path, v) {
		values := []string{r.PathValue(p.name)}
		for _, q := range inQuery {
			if q == p.name {
				values = query[q]
			}
		}
		if bad, ok := setParam(p.v, values); !ok {
			why := op.Param
			if strings.Contains(why, "%q") {
				why = fmt.Sprintf(why, bad)
			}
			return in, &Error{Code: CodeInvalid, Why: why, Fix: op.Fix}
		}
	}
	if b := bodyOf(v); b.IsValid() {
		if err := decodeStrict(r.Body, b.Addr().Interface()); err != nil {
			return in, &Error{Code: CodeInvalid, Why: err.Error()}
		}
	}
	if x, ok := any(&in).(validator); ok {
		if err := x.Validate(); err != nil {
			return in, &Error{Code: CodeInvalid, Why: err.Error(), Fix: op.Fix}
		}
	}
	return in, nil
}

// encode returns the path and the body of a request; body is nil where there is none.
func (op Op[In, Out]) encode(in In) (path string, body io.Reader, err error) {
	v := reflect.ValueOf(&in).Elem()
	path, names, _ := strings.Cut(op.Path, "?")
	inQuery := strings.Split(names, "&")
	query := url.Values{}
	for _, p := range params(op.Path, v) {
		values := paramText(p.v)
		in := false
		for _, q := range inQuery {
			if q == p.name {
				in = true
				if len(values) > 0 {
					query[q] = values
				}
			}
		}
		if !in {
			path = strings.Replace(path, "{"+p.name+"}", url.PathEscape(values[0]), 1)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	if b := bodyOf(v); b.IsValid() {
		text, err := json.Marshal(b.Interface())
		if err != nil {
			return "", nil, err
		}
		body = bytes.NewReader(text)
	}
	return path, body, nil
}

// param is a parameter and where its value is.
type param struct {
	name string
	v    reflect.Value
}

// params are the parameters of an input.
func params(path string, v reflect.Value) (list []param) {
	if v.Kind() != reflect.Struct {
		_, name, ok := strings.Cut(path, "{")
		if ok {
			name, _, _ = strings.Cut(name, "}")
		} else {
			_, name, _ = strings.Cut(path, "?")
		}
		return []param{{name, v}}
	}
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("param"); name != "" {
			list = append(list, param{name, v.Field(i)})
		}
	}
	return list
}

// bodyOf is what of an input is in the body, the zero Value where nothing is.
func bodyOf(v reflect.Value) (body reflect.Value) {
	if v.Kind() != reflect.Struct || v.NumField() == 0 {
		return body
	}
	body = v
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if _, ok := tag.Lookup("body"); ok {
			return v.Field(i)
		}
		if tag.Get("param") != "" {
			body = reflect.Value{}
		}
	}
	return body
}

// setParam sets v to what a request has: nothing, or one value, or several for a list. bad is what is no number.
func setParam(v reflect.Value, values []string) (bad string, ok bool) {
	s := ""
	if len(values) > 0 {
		s = values[0]
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		v.SetBool(s != "")
	case reflect.Slice:
		v.Set(reflect.ValueOf(values))
	case reflect.Int:
		n, err := strconv.Atoi(s)
		if err != nil {
			return s, false
		}
		v.SetInt(int64(n))
	case reflect.Uint, reflect.Uint64:
		n, err := strconv.ParseUint(s, 10, v.Type().Bits())
		if err != nil {
			return s, false
		}
		v.SetUint(n)
	case reflect.Pointer:
		if s != "" {
			v.Set(reflect.New(v.Type().Elem()))
			return setParam(v.Elem(), values)
		}
	default:
		panic("api: a parameter cannot be a " + v.Type().String())
	}
	return "", true
}

// paramText is the values of a parameter in a request, what setParam reads.
func paramText(v reflect.Value) []string {
	switch v.Kind() {
	case reflect.Slice:
		return v.Interface().([]string)
	case reflect.Bool:
		if !v.Bool() {
			return nil
		}
		return []string{"1"}
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return paramText(v.Elem())
	}
	return []string{fmt.Sprint(v.Interface())}
}

// noNilLists makes every list of v that is nil an empty one, so that a list is never null in JSON. Octets are text
// there and stay.
func noNilLists(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		elem := v.Type().Elem().Kind()
		if elem == reflect.Uint8 {
			return
		}
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		if elem == reflect.Struct || elem == reflect.Slice || elem == reflect.Pointer {
			for i := range v.Len() {
				noNilLists(v.Index(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			noNilLists(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				noNilLists(v.Field(i))
			}
		}
	}
}
