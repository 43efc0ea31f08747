package reexec

import (
	"encoding/json"
	"errors"
	"math"
	"os"
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
	Name       string
	raw        string
	flag       bool
	number     uint64
	duration   time.Duration
	float      float64
	timestamp  time.Time
	zeroTime   time.Time //nolint:unused // this field stays zero, but reflection finds it
	list       []inner
	nilSlice   []int //nolint:unused // this field stays nil
	pointer    *inner
	nilPointer *inner //nolint:unused // this field stays nil
	structMap  map[mapKey]uint64
	bytes      []byte
	array      [2]int64
	function   func() `reexec:"-"` //nolint:unused // can't be handed over
	renamed    int    `reexec:"another"`
	tagged     tagged `reexec:",json"`
	embedded
	inner `reexec:"inner"`
}

type embedded struct{ inside int }

type tagged struct {
	Name string `json:"called"`
}

type mapKey struct {
	pid   int
	start uint64
}

func sampleState() outer {
	return outer{
		Name: "gateway-\"ä\"", raw: "\xff\x00x", flag: true, number: math.MaxUint64, duration: -3 * time.Second, float: 0.1,
		timestamp: time.Now().Add(time.Hour), list: []inner{{-3, []string{"a", ""}}, {}}, pointer: &inner{A: 7},
		structMap: map[mapKey]uint64{{1, 2}: 3, {4, math.MaxUint64}: 5}, bytes: []byte{0, 1, 255}, array: [2]int64{math.MinInt64, 2},
		renamed: 4, tagged: tagged{"x"}, embedded: embedded{5}, inner: inner{A: 6},
	}
}

func TestEverythingComesBack(t *testing.T) {
	want := sampleState()
	data, err := NewCodec().Encode(&want)
	if err != nil {
		t.Fatal(err)
	}
	var got outer
	if err := NewCodec().Decode(data, &got); err != nil {
		t.Fatal(err)
	}
	if d := got.timestamp.Sub(want.timestamp); d.Abs() > time.Millisecond {
		t.Errorf("a deadline moved by %v", d)
	}
	if time.Until(got.timestamp) != got.timestamp.Sub(time.Now().Round(0)) && !strings.Contains(got.timestamp.String(), "m=") {
		t.Error("a deadline has lost its place on the monotonic clock")
	}
	got.timestamp = want.timestamp
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A change of the wall clock during a re-execution must move no deadline.
func TestDeadlinesDoNotFollowTheWallClock(t *testing.T) {
	old := NewCodec()
	deadline := old.now.Add(10 * time.Second)
	data, err := old.Encode(&deadline)
	if err != nil {
		t.Fatal(err)
	}
	// The new process sees the wall clock a year ahead, and the monotonic clock three seconds ahead.
	later := &Codec{now: old.now.Add(3 * time.Second), nowMonotonic: old.nowMonotonic + int64(3*time.Second)}
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

// An older hinit must ignore unknown fields, and a newer hinit must accept missing fields.
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

// The JSON names must be the names in the tags, because other versions of hinit look for them.
func TestTagsSayWhatIsOnTheWire(t *testing.T) {
	o := struct {
		outer
		file, noFile *os.File
	}{sampleState(), os.Stdout, nil}
	data, err := NewCodec().Encode(&o)
	if err != nil {
		t.Fatal(err)
	}
	var wire map[string]any
	if err := json.Unmarshal(data, &wire); err != nil {
		t.Fatal(err)
	}
	got := []any{wire["another"], wire["inside"], wire["tagged"], wire["inner"], wire["file"], wire["noFile"]}
	want := []any{4.0, 5.0, map[string]any{"called": "x"}, map[string]any{"A": 6.0, "b": nil}, 1.0, -1.0}
	if _, there := wire["function"]; there || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A descriptor must become one os.File, however often the state mentions it. Two would close the descriptor under each other.
func TestADescriptorIsOneFile(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	c := NewCodec()
	var parts [2]json.RawMessage
	for i := range parts {
		if parts[i], err = c.Encode(&[]*os.File{r, r, nil}); err != nil {
			t.Fatal(err)
		}
	}
	if keep := c.Descriptors(); len(keep) != 1 {
		t.Errorf("to be kept open: %v", keep)
	}
	next := NewCodec()
	var a, b []*os.File
	if err := errors.Join(next.Decode(parts[0], &a), next.Decode(parts[1], &b)); err != nil {
		t.Fatal(err)
	}
	if a[0] != a[1] || a[0] != b[0] || a[2] != nil {
		t.Errorf("got %v and %v", a, b)
	}
	_, _ = w.WriteString("x")
	if _, err := a[0].Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_ = a[0].Close()
	_ = r.Close()
	if data, err := c.Encode(&a[0]); err != nil || string(data) != "-1" {
		t.Errorf("a closed file is %s, %v", data, err)
	}
}

func FuzzDecode(f *testing.F) {
	o := sampleState()
	data, err := NewCodec().Encode(&o)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(data))
	f.Add([]byte(`{"list":{},"m":[[1]],"at":3,"n":-1,"raw":{"bytes":"!"}}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var into outer
		if json.Valid(data) {
			_ = NewCodec().Decode(data, &into)
		}
	})
}
