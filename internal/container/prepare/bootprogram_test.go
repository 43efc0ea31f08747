package prepare

import (
	"context"
	"testing"

	"hinit/internal/boot"
	"hinit/supervisor"
)

type fakeLoop struct {
	programLoop
	names []string
}

func (l *fakeLoop) Register(_ context.Context, u supervisor.Unit, _ supervisor.Want) error {
	l.names = append(l.names, u.Name)
	return nil
}

// Two runs of the boot program must have different names. With one name, hinit could end the repair of a profile's files in
// place of the boot's repair, which has just finished. The error would be "cannot repair the owners of the agent's files: the
// boot program has failed".
func TestAProgramIsNotEndedInThePlaceOfAnEarlierOne(t *testing.T) {
	l := &fakeLoop{}
	for range 2 {
		p, err := startProgram(t.Context(), l, "hinit/repair", boot.Job{})
		if err != nil {
			t.Fatal(err)
		}
		p.close()
	}
	if l.names[0] == l.names[1] {
		t.Errorf("both are %s", l.names[0])
	}
}
