package inside

import (
	"testing"

	"golang.org/x/sys/unix"

	"hinit/sandbox/mux"
)

// BenchmarkOutput measures the throughput of a command's output from the pipe to the client,
// without a container.
func BenchmarkOutput(b *testing.B) {
	const size = 100 << 20
	c, err := mux.NewClient(dialTest(b), "box")
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.SetBytes(size)
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	for b.Loop() {
		st, err := c.Open(mux.Open{Op: mux.OpRun, Argv: []string{"dd", "if=/dev/zero", "bs=1M", "count=100", "status=none"}})
		if err != nil {
			b.Fatal(err)
		}
		var got countingWriter
		if _ = st.Output.CopyTo(&got, nil); got != size {
			b.Fatal(got)
		}
		<-st.Done()
	}
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(spent)/float64(b.N)/1e6, "cpu-ms/op")
}

type countingWriter int

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}
