package reexec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"
)

// Codec encodes the state for the next program at a re-execution, and decodes it in that program. It includes unexported
// fields, so that a new field can't be forgotten. It supports booleans, numbers, strings, times and open files, and pointers,
// slices, arrays, maps and structs of them. Any other type is an error. Raw JSON is copied. Tags of fields:
//
//	`reexec:"-"`      the field is left out, and keeps its value in Decode
//	`reexec:"Name"`   the field is encoded under this name
//	`reexec:",json"`  encoding/json encodes the field
//
// Fields of an embedded struct are encoded like fields of the outer struct, unless the embedded struct has a tag.
//
// An open file is encoded as its descriptor number, which stays the same across execve(2). Decode returns the same *os.File for
// every occurrence of a number.
type Codec struct {
	now          time.Time
	nowMonotonic int64 // CLOCK_MONOTONIC in nanoseconds at the time now
	descriptors  []int
	files        map[int]*os.File
}

// NewCodec returns a codec that uses the present as the reference for times.
func NewCodec() *Codec {
	c, best := &Codec{files: map[int]*os.File{0: os.Stdin, 1: os.Stdout, 2: os.Stderr}}, int64(math.MaxInt64)
	// A delay between the readings of the two clocks shifts all times, so use the attempt with the smallest delay.
	for range 10 {
		before := monotonic()
		now := time.Now()
		if took := monotonic() - before; took < best {
			c.now, c.nowMonotonic, best = now, before+took/2, took
		}
	}
	return c
}

// Descriptors returns the descriptor numbers of the files in the encoded state, each once.
func (c *Codec) Descriptors() []int { return c.descriptors }

// field is one field of a struct, with its name and form in the encoding.
type field struct {
	name string
	json bool
	v    reflect.Value
}

// encodedFields returns the encoded fields of a struct, including fields of embedded structs.
func encodedFields(v reflect.Value) (list []field) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, tagged := f.Tag.Lookup("reexec")
		name, how, _ := strings.Cut(tag, ",")
		switch {
		case name == "-":
			continue
		case f.Anonymous && !tagged && f.Type.Kind() == reflect.Struct:
			list = append(list, encodedFields(v.Field(i))...)
			continue
		case name == "":
			name = f.Name
		}
		// NewAt returns a value that lets reflect read and write an unexported field
		list = append(list, field{name, how == "json", reflect.NewAt(f.Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem()})
	}
	return list
}

// encodedTime is the encoding of a time. The monotonic reading keeps the time right if somebody sets the wall clock in between.
type encodedTime struct {
	Wall int64 `json:"wall"`           // nanoseconds since 1970
	Mono int64 `json:"mono,omitempty"` // nanoseconds of CLOCK_MONOTONIC; 0 for a time without a monotonic reading
}

// Encode returns the JSON of the value to which v points.
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

// rawString is the encoding of a string that is not UTF-8, because a JSON string can't contain other bytes.
type rawString struct {
	Bytes []byte `json:"bytes"`
}

func (c *Codec) encode(v reflect.Value) (any, error) {
	switch known := v.Interface().(type) {
	case time.Time:
		return c.encodeTime(known), nil
	case json.RawMessage:
		return known, nil
	case *os.File:
		return c.descriptorOf(known), nil
	}
	switch v.Kind() {
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
		out := make(map[string]any)
		for _, f := range encodedFields(v) {
			part, err := f.encode(c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			out[f.name] = part
		}
		return out, nil
	case reflect.Uintptr, reflect.Complex64, reflect.Complex128, reflect.Chan, reflect.Func, reflect.Interface, reflect.UnsafePointer, reflect.Invalid:
		return nil, fmt.Errorf("cannot hand over a value of type %s", v.Type())
	default:
		return v.Interface(), nil
	}
}

func (f field) encode(c *Codec) (any, error) {
	if f.json {
		data, err := json.Marshal(f.v.Interface())
		return json.RawMessage(data), err
	}
	return c.encode(f.v)
}

func (f field) decode(c *Codec, data json.RawMessage) error {
	if f.json {
		return json.Unmarshal(data, f.v.Addr().Interface())
	}
	return c.decode(data, f.v)
}

// descriptorOf returns the descriptor number of an open file, and stores it for Descriptors. It returns -1 for a nil or closed
// file. Unlike File.Fd, it does not make the file blocking.
func (c *Codec) descriptorOf(f *os.File) int {
	fd := -1
	if raw, err := f.SyscallConn(); err == nil { // an error means a nil file
		_ = raw.Control(func(n uintptr) { fd = int(n) }) // an error means a closed file
	}
	if fd > 2 && !slices.Contains(c.descriptors, fd) {
		c.descriptors = append(c.descriptors, fd)
	}
	return fd
}

// fileOf returns the open file with a descriptor number, the inverse of descriptorOf.
func (c *Codec) fileOf(fd int) *os.File {
	if fd < 0 {
		return nil
	}
	if c.files[fd] == nil {
		c.files[fd] = os.NewFile(uintptr(fd), "descriptor "+strconv.Itoa(fd))
	}
	return c.files[fd]
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

// encodeMap encodes a map as a list of pairs, because keys of JSON objects must be strings.
func (c *Codec) encodeMap(v reflect.Value) (any, error) {
	if v.IsNil() {
		return nil, nil
	}
	out := make([][2]any, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		var pair [2]any
		for i, part := range []reflect.Value{it.Key(), it.Value()} {
			whole := reflect.New(part.Type()).Elem()
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

func (c *Codec) encodeTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	m := encodedTime{Wall: t.UnixNano()}
	if t != t.Round(0) { // != also compares the monotonic reading, unlike Equal
		m.Mono = c.nowMonotonic + int64(t.Sub(c.now))
	}
	return m
}

// Decode decodes JSON into the value to which v points. A field that the JSON lacks keeps its value.
func (c *Codec) Decode(data json.RawMessage, v any) error {
	at := reflect.ValueOf(v)
	if at.Kind() != reflect.Pointer || at.IsNil() {
		return errors.New("internal error: state must be read into a pointer")
	}
	return c.decode(data, at.Elem())
}

func (c *Codec) decode(data json.RawMessage, v reflect.Value) error {
	if bytes.Equal(data, []byte("null")) {
		v.SetZero()
		return nil
	}
	switch known := v.Addr().Interface().(type) {
	case *time.Time:
		var m encodedTime
		err := json.Unmarshal(data, &m)
		*known = c.decodeTime(m)
		return err
	case **os.File:
		fd, err := strconv.Atoi(string(data))
		*known = c.fileOf(fd)
		return err
	case *json.RawMessage:
		*known = slices.Clone(data)
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		if !bytes.HasPrefix(data, []byte("{")) {
			return json.Unmarshal(data, v.Addr().Interface())
		}
		var raw rawString
		err := json.Unmarshal(data, &raw)
		v.SetString(string(raw.Bytes))
		return err
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return c.decode(data, v.Elem())
	case reflect.Slice, reflect.Array:
		return c.decodeList(data, v)
	case reflect.Map:
		return c.decodeMap(data, v)
	case reflect.Struct:
		var parts map[string]json.RawMessage
		if err := json.Unmarshal(data, &parts); err != nil {
			return err
		}
		for _, f := range encodedFields(v) {
			part, there := parts[f.name]
			if !there {
				continue
			}
			if err := f.decode(c, part); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
		return nil
	case reflect.Uintptr, reflect.Complex64, reflect.Complex128, reflect.Chan, reflect.Func, reflect.Interface, reflect.UnsafePointer, reflect.Invalid:
		return fmt.Errorf("cannot take over a value of type %s", v.Type())
	default:
		return json.Unmarshal(data, v.Addr().Interface())
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

func (c *Codec) decodeTime(m encodedTime) time.Time {
	if m.Mono == 0 {
		return time.Unix(0, m.Wall)
	}
	return c.now.Add(time.Duration(m.Mono - c.nowMonotonic))
}
