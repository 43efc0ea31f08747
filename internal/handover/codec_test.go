package handover

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

type inner struct {
	A int8
	b []string
}

type outer struct {
	Name    string
	raw     string
	on      bool
	n       uint64
	d       time.Duration
	f       float64
	at      time.Time
	never   time.Time //nolint:unused // stays zero: reflection finds it
	list    []inner
	none    []int //nolint:unused // stays nil
	p       *inner
	nothing *inner //nolint:unused // stays nil
	m       map[inner2]uint64
	bytes   []byte
	arr     [2]int64
	fn      func() //nolint:unused // is left out by its name
}

type inner2 struct {
	pid   int
	start uint64
}

func sample() outer {
	return outer{
		Name: "gateway-\"ä\"", raw: "\xff\x00x", on: true, n: math.MaxUint64, d: -3 * time.Second, f: 0.1,
		at: time.Now().Add(time.Hour), list: []inner{{-3, []string{"a", ""}}, {}}, p: &inner{A: 7},
		m: map[inner2]uint64{{1, 2}: 3, {4, math.MaxUint64}: 5}, bytes: []byte{0, 1, 255}, arr: [2]int64{math.MinInt64, 2},
	}
}

func TestEverythingComesBack(t *testing.T) {
	want := sample()
	data, err := NewCodec().Without("handover.outer.fn").Encode(&want)
	if err != nil {
		t.Fatal(err)
	}
	var got outer
	if err := NewCodec().Without("handover.outer.fn").Decode(data, &got); err != nil {
		t.Fatal(err)
	}
	if d := got.at.Sub(want.at); d.Abs() > time.Millisecond {
		t.Errorf("a deadline moved by %v", d)
	}
	if time.Until(got.at) != got.at.Sub(time.Now().Round(0)) && !strings.Contains(got.at.String(), "m=") {
		t.Error("a deadline has lost its place on the monotonic clock")
	}
	got.at = want.at
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A wall clock that is set while the images change moves no deadline.
func TestDeadlinesDoNotFollowTheWallClock(t *testing.T) {
	old := NewCodec()
	deadline := old.now.Add(10 * time.Second)
	data, err := old.Encode(&deadline)
	if err != nil {
		t.Fatal(err)
	}
	// The new image's wall clock is a year ahead, its monotonic clock three seconds.
	later := &Codec{now: old.now.Add(3 * time.Second), mono: old.mono + int64(3*time.Second)}
	var got time.Time
	if err := later.Decode(data, &got); err != nil {
		t.Fatal(err)
	}
	if left := got.Sub(later.now); left != 7*time.Second {
		t.Errorf("%v are left of 7s", left)
	}
}

func TestATimeOfTheWallClockStaysOne(t *testing.T) {
	want := time.Date(2001, 2, 3, 4, 5, 6, 7, time.Local)
	data, err := NewCodec().Encode(&want)
	if err != nil {
		t.Fatal(err)
	}
	var got time.Time
	if err := NewCodec().Decode(data, &got); err != nil || !got.Equal(want) {
		t.Errorf("got %v, %v", got, err)
	}
}

// A newer image writes what an older one does not know, and the other way round.
func TestOtherVersionsOfAStateAreUnderstood(t *testing.T) {
	type v1 struct{ A, B int }
	type v2 struct {
		B, C int
		D    []string
	}
	data, err := NewCodec().Encode(&v1{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	got := v2{C: 9}
	if err := NewCodec().Decode(data, &got); err != nil || got.B != 2 || got.C != 9 || got.D != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestWhatCannotBeHandedOverIsNamed(t *testing.T) {
	_, err := NewCodec().Encode(&struct{ Deep struct{ Bad func() } }{})
	if err == nil || !strings.Contains(err.Error(), "Deep: Bad: cannot hand over a value of type func()") {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	o := sample()
	data, err := NewCodec().Without("handover.outer.fn").Encode(&o)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(data))
	f.Add([]byte(`{"list":{},"m":[[1]],"at":3,"n":-1,"raw":{"bytes":"!"}}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var into outer
		if json.Valid(data) {
			_ = NewCodec().Without("handover.outer.fn").Decode(data, &into) // an error is fine, a panic is not
		}
	})
}
