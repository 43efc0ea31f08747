package show

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"hinit/client"
)

// Status is what `hinit status` prints.
func Status(st client.Status) []byte {
	var w bytes.Buffer
	head(&w, st.Init)
	if len(st.Services) == 0 {
		w.WriteString("no services\n")
		return w.Bytes()
	}
	rows := make([]row, 0, len(st.Services)+1)
	rows = append(rows, row{"NAME", "STATE", "SINCE", "PID", "RESTARTS", "MEMORY", "LAST EXIT", "NOTE"})
	for i := range st.Services {
		s := &st.Services[i]
		rows = append(rows, row{
			s.Name, stateWord(s), Duration(time.Since(s.Since)), Number(s.PID), strconv.Itoa(s.Restarts), megabytes(s.MemoryBytes),
			LastExit(s.LastExit), note(s),
		})
	}
	layOut(&w, rows)
	return w.Bytes()
}

// head is what there is to say of hinit itself.
func head(w *bytes.Buffer, in client.Init) {
	fmt.Fprintf(w, "hinit %s, pid %d, up %s, home %s", in.Version, in.PID, Seconds(in.UptimeSeconds), in.Home)
	if in.Subreaper {
		w.WriteString(", as a subreaper")
	}
	if in.Stopping {
		w.WriteString(", STOPPING")
	}
	w.WriteByte('\n')
	if in.Cmd != nil {
		fmt.Fprintf(w, "CMD: %s (pid %d)\n", strings.Join(in.Cmd.Argv, " "), in.Cmd.PID)
	}
	if len(in.Boot) > 0 {
		fmt.Fprintf(w, "boot: %s\n", Timeline(in.Boot))
	}
	if r := in.Repair; r != nil && !r.Done {
		fmt.Fprintf(w, "repairing file ownership: %d files looked at, %d changed, now in %s\n", r.Seen, r.Changed, r.Directory)
	}
	for _, warning := range in.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
}

// row is a line of the table.
type row [8]string

// layOut writes rows with columns two spaces apart. The last column, and an empty end of a line, take no padding.
func layOut(w *bytes.Buffer, rows []row) {
	var width [len(row{})]int
	for i := range rows {
		for j, cell := range rows[i] {
			width[j] = max(width[j], utf8.RuneCountInString(cell)+2)
		}
	}
	for i := range rows {
		pad := 0
		for j, cell := range rows[i] {
			if cell == "" {
				pad += width[j]
				continue
			}
			for range pad {
				w.WriteByte(' ')
			}
			w.WriteString(cell)
			pad = width[j] - utf8.RuneCountInString(cell)
		}
		w.WriteByte('\n')
	}
}

// stateWord is the state with what changes its meaning.
func stateWord(s *client.Service) string {
	switch {
	case s.CrashLoop:
		return s.State + " (crash-loop)"
	case s.Paused:
		return s.State + " (paused)"
	case s.State == "up" && !s.Ready:
		return "up (not ready)"
	}
	return s.State
}

// note says what happens next, or why nothing does.
func note(s *client.Service) string {
	switch s.State {
	case "backoff":
		if s.NextStart != nil {
			return "next start in " + Duration(max(time.Until(*s.NextStart), 0))
		}
	case "waiting":
		return "waits for " + strings.Join(s.Needs, ", ")
	case "parked", "failed", "stopping", "killing", "finishing":
		return s.Reason
	case "down":
		if s.Want == "up" {
			return s.Reason
		}
	}
	return ""
}

func megabytes(bytes uint64) string {
	if bytes == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(bytes)/1e6, 'f', 1, 64) + " MB"
}
