package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
	"unsafe"
)

// Codec writes and reads state. Both directions take the unexported fields of a struct like the exported ones, by their
// names. It knows booleans, numbers, strings, times, and pointers, slices, arrays, maps and structs of what it knows; a value
// of any other type is an error, unless its field is left out ([Codec.Without]). JSON itself passes as it is.
type Codec struct {
	now  time.Time
	mono int64 // CLOCK_MONOTONIC at now
	omit []string
}

// NewCodec returns a codec whose clock is the present.
func NewCodec() *Codec {
	c, best := &Codec{}, int64(math.MaxInt64)
	// A process that is kept from running between the two clocks would move all times by that.
	for range 10 {
		before := monotonic()
		now := time.Now()
		if took := monotonic() - before; took < best {
			c.now, c.mono, best = now, before+took/2, took
		}
	}
	return c
}

// Without returns a codec of the same clock that leaves out fields, each named as "package.Type.Field". Decode leaves them as
// they are.
func (c *Codec) Without(fields ...string) *Codec {
	other := *c
	other.omit = append(slices.Clone(c.omit), fields...)
	return &other
}

func (c *Codec) omits(t reflect.Type, field string) bool {
	return len(c.omit) > 0 && slices.Contains(c.omit, t.String()+"."+field)
}

// moment is a time on the wire.
type moment struct {
	Wall int64 `json:"wall"`           // nanoseconds since 1970
	Mono int64 `json:"mono,omitempty"` // nanoseconds of CLOCK_MONOTONIC; 0 for a time that has no place there
}

// Encode returns the JSON of what v points to.
func (c *Codec) Encode(v any) (json.RawMessage, error) {
	at := reflect.ValueOf(v)
	if at.Kind() != reflect.Pointer {
		return nil, errors.New("internal error: state must be given by pointer")
	}
	tree, err := c.encode(at.Elem())
	if err != nil {
		return nil, err
	}
	return json.Marshal(tree)
}

// rawString is a string on the wire that JSON can't hold, because it is not UTF-8.
type rawString struct {
	Bytes []byte `json:"bytes"`
}

var (
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
)

func (c *Codec) encode(v reflect.Value) (any, error) {
	v = open(v)
	switch known := v.Interface().(type) {
	case time.Time:
		return c.moment(known), nil
	case json.RawMessage:
		return known, nil
	}
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Uint(), nil
	case reflect.Float32, reflect.Float64:
		return v.Float(), nil
	case reflect.String:
		if s := v.String(); !utf8.ValidString(s) {
			return rawString{[]byte(s)}, nil
		}
		return v.String(), nil
	case reflect.Pointer:
		if v.IsNil() {
			return nil, nil
		}
		return c.encode(v.Elem())
	case reflect.Slice, reflect.Array:
		return c.encodeList(v)
	case reflect.Map:
		return c.encodeMap(v)
	case reflect.Struct:
		out := make(map[string]any, v.NumField())
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if c.omits(v.Type(), name) {
				continue
			}
			field, err := c.encode(v.Field(i))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out[name] = field
		}
		return out, nil
	default:
		return nil, fmt.Errorf("cannot hand over a value of type %s", v.Type())
	}
}

func (c *Codec) encodeList(v reflect.Value) (any, error) {
	if v.Kind() == reflect.Slice && v.IsNil() {
		return nil, nil
	}
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		return v.Bytes(), nil
	}
	out := make([]any, v.Len())
	for i := range out {
		var err error
		if out[i], err = c.encode(v.Index(i)); err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return out, nil
}

// encodeMap writes a map as a list of pairs, so that its keys may be anything.
func (c *Codec) encodeMap(v reflect.Value) (any, error) {
	if v.IsNil() {
		return nil, nil
	}
	out := make([][2]any, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		var pair [2]any
		for i, part := range []reflect.Value{it.Key(), it.Value()} {
			whole := reflect.New(part.Type()).Elem() // one that has an address
			whole.Set(part)
			var err error
			if pair[i], err = c.encode(whole); err != nil {
				return nil, fmt.Errorf("[%v]: %w", it.Key(), err)
			}
		}
		out = append(out, pair)
	}
	return out, nil
}

func (c *Codec) moment(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	m := moment{Wall: t.UnixNano()}
	if t != t.Round(0) { // unlike Equal it sees the monotonic reading
		m.Mono = c.mono + int64(t.Sub(c.now))
	}
	return m
}

// open returns an addressable value without what reflect forbids where it is an unexported field.
func open(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

// Decode puts the JSON into what v points to. What the JSON does not have keeps its value.
func (c *Codec) Decode(data json.RawMessage, v any) error {
	at := reflect.ValueOf(v)
	if at.Kind() != reflect.Pointer || at.IsNil() {
		return errors.New("internal error: state must be read into a pointer")
	}
	return c.decode(data, at.Elem())
}

func (c *Codec) decode(data json.RawMessage, v reflect.Value) error {
	v = open(v)
	if bytes.Equal(data, []byte("null")) {
		v.SetZero()
		return nil
	}
	if v.Type() == timeType {
		var m moment
		if err := json.Unmarshal(data, &m); err != nil {
			return err
		}
		v.Set(reflect.ValueOf(c.time(m)))
		return nil
	}
	if v.Type() == rawType {
		v.SetBytes(slices.Clone(data))
		return nil
	}
	switch v.Kind() {
	case reflect.Bool, reflect.Float32, reflect.Float64:
		return json.Unmarshal(data, v.Addr().Interface())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(string(data), 10, 64)
		v.SetInt(n)
		return err
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(string(data), 10, 64)
		v.SetUint(n)
		return err
	case reflect.String:
		if len(data) > 0 && data[0] == '{' {
			var raw rawString
			if err := json.Unmarshal(data, &raw); err != nil {
				return err
			}
			v.SetString(string(raw.Bytes))
			return nil
		}
		return json.Unmarshal(data, v.Addr().Interface())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return c.decode(data, v.Elem())
	case reflect.Slice, reflect.Array:
		return c.decodeList(data, v)
	case reflect.Map:
		return c.decodeMap(data, v)
	case reflect.Struct:
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data, &fields); err != nil {
			return err
		}
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			field, there := fields[name]
			if !there || c.omits(v.Type(), name) {
				continue
			}
			if err := c.decode(field, v.Field(i)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	default:
		return fmt.Errorf("cannot take over a value of type %s", v.Type())
	}
}

func (c *Codec) decodeList(data json.RawMessage, v reflect.Value) error {
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		return json.Unmarshal(data, v.Addr().Interface())
	}
	var items []json.RawMessage
	if err := json.Unmarshal(data, &items); err != nil {
		return err
	}
	if v.Kind() == reflect.Slice {
		v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	}
	for i, item := range items[:min(len(items), v.Len())] {
		if err := c.decode(item, v.Index(i)); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

func (c *Codec) decodeMap(data json.RawMessage, v reflect.Value) error {
	var pairs [][2]json.RawMessage
	if err := json.Unmarshal(data, &pairs); err != nil {
		return err
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(pairs)))
	for _, pair := range pairs {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		if err := errors.Join(c.decode(pair[0], key), c.decode(pair[1], value)); err != nil {
			return err
		}
		v.SetMapIndex(key, value)
	}
	return nil
}

func (c *Codec) time(m moment) time.Time {
	if m.Mono == 0 {
		return time.Unix(0, m.Wall)
	}
	return c.now.Add(time.Duration(m.Mono - c.mono))
}
