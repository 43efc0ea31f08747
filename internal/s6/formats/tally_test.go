package formats_test

import (
	"encoding/hex"
	"testing"
	"time"

	"hinit/internal/s6/formats"
)

func TestDeathsAreCountedAsS6CountsThem(t *testing.T) {
	// s6 2.11.3 wrote this death tally for an exit with 3, a SIGKILL and a SIGTERM.
	want := "400000006b022010267676030300" + "400000006b02201208ef03ef8909" + "400000006b02201326d6b44d8f0f"
	raw, err := hex.DecodeString(want)
	if err != nil {
		t.Fatal(err)
	}
	deaths := formats.ParseDeaths(append(raw, 1, 2, 3))
	if len(deaths) != 3 || deaths[0].Code != 3 || deaths[0].Signal != 0 || deaths[1].Signal != 9 || deaths[1].Code != 137 {
		t.Fatalf("deaths %+v", deaths)
	}
	if got := formats.TAI64N(deaths[2].At); got != "@400000006b02201326d6b44d" {
		t.Errorf("the last was at %s", got)
	}
	var tally []byte
	for i, code := range []int{3, -1, -1} {
		tally = formats.AddDeath(tally, deaths[i].At, code, deaths[i].Signal, 100)
	}
	if got := hex.EncodeToString(tally); got != want {
		t.Errorf("written:\n%s, want\n%s", got, want)
	}
	for range 5 {
		tally = formats.AddDeath(tally, time.Unix(1e9, 5), 7, 0, 2)
	}
	if got := formats.ParseDeaths(tally); len(got) != 2 || got[1].Code != 7 {
		t.Errorf("of many deaths the last two are %+v", got)
	}
	if got := formats.AddDeath(tally, time.Unix(1e9, 5), 7, 0, 0); len(got) != 0 {
		t.Errorf("with no room, %d bytes", len(got))
	}
	if got := formats.ParseDeaths(make([]byte, 50)); got != nil {
		t.Errorf("garbage is %v", got)
	}
}
