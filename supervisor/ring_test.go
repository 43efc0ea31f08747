package supervisor

import (
	"fmt"
	"testing"

	"hinit/client"
)

// Events of one service must not push the events of others out of the history. Here the agent starts and stops its service
// 3,000 times.
func TestAServiceThatIsStartedAndStoppedTakesNoEventsOfOthersAway(t *testing.T) {
	var r Ring
	for i := range 10 {
		r.add(Record{Service: "gateway-coder", Reason: fmt.Sprint("coder ", i)})
		r.add(Record{Reason: fmt.Sprint("container ", i)})
		r.add(Record{Service: "gone", Reason: "x"})
	}
	r.add(Record{Service: "gone", Dropped: true})
	for i := range 3000 {
		r.add(Record{Service: "agents", Reason: fmt.Sprint("start ", i)})
		r.add(Record{Service: "agents", Reason: fmt.Sprint("stop ", i)})
		r.add(Record{Reason: "a notice", Key: "flood"})
	}
	r.publish()
	check := func(r *Ring) {
		t.Helper()
		records, _ := r.Since(0)
		of := make(map[string]int)
		last := uint64(0)
		for _, rec := range append(r.KeptRecords(records[0].Seq), records...) {
			of[rec.Service+rec.Key]++
			if rec.Seq <= last {
				t.Fatalf("event %d comes after %d", rec.Seq, last)
			}
			last = rec.Seq
		}
		if of["gateway-coder"] != overwrittenPerService || of[""] != overwrittenPerService || of["gone"] != 0 || last != r.Last() {
			t.Errorf("the history has %v", of)
		}
	}
	check(&r)
	records, _ := r.Since(0)
	var next Ring
	next.restore(append(r.KeptRecords(records[0].Seq), records...))
	check(&next)
}

// Orders of the agent must not push root's orders out of the history. Here the agent gives 3,000 orders after root's.
func TestOrdersOfTheAgentTakeNoOrderOfRootsAway(t *testing.T) {
	var r Ring
	root, agent := &client.Author{Program: "hinit", Origin: client.OriginExec}, &client.Author{UID: 10000, Program: "sh", Origin: client.OriginAPI}
	for i := range 2 * maxRootCommands {
		r.add(Record{Service: "agents", Reason: fmt.Sprint("root ", i), By: root})
	}
	r.add(Record{Service: "gone", Dropped: true, By: root})
	for i := range 3000 {
		r.add(Record{Service: "agents", Reason: fmt.Sprint("agent ", i), By: agent})
	}
	r.publish()
	check := func(r *Ring) {
		t.Helper()
		records, _ := r.Since(0)
		kept := r.KeptRecords(records[0].Seq)
		of := make(map[string]int)
		for _, rec := range kept {
			of[rec.By.Program+rec.Service]++
		}
		if of["hinitagents"] != maxRootCommands-1 || of["hinitgone"] != 1 || of["shagents"] != overwrittenPerService || len(kept) != maxRootCommands+overwrittenPerService {
			t.Errorf("kept are %v of %d", of, len(kept))
		}
	}
	check(&r)
	records, _ := r.Since(0)
	var next Ring
	next.restore(append(r.KeptRecords(records[0].Seq), records...))
	check(&next)
}

func TestTheHistoryIsBoundedWhateverServicesThereAre(t *testing.T) {
	var r Ring
	for i := range 20_000 {
		r.add(Record{Service: fmt.Sprint("s", i%2000)})
	}
	r.publish()
	if n := len(r.KeptRecords(r.Last())); n > maxKeptServices*overwrittenPerService {
		t.Errorf("%d records are kept", n)
	}
	for range 3 * ringSize {
		r.add(Record{Service: "other", Dropped: true})
	}
	if n := len(*r.overwritten.Load()); n > maxKeptServices {
		t.Errorf("records of %d services are kept", n)
	}
}
