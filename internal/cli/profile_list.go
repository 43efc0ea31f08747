package cli

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/profiles"
)

// profileRow is a profile. One that was deleted is told of as it was, without a gateway.
type profileRow struct {
	Name    string `json:"name"`
	Home    string `json:"home"`                // its directory
	Active  bool   `json:"active"`              // it is the one that the agent's commands use
	Prior   string `json:"prior_state"`         // what the state file says
	Gateway string `json:"gateway"`             // state of its service, "" when no init is reachable
	Want    string `json:"want"`                // "up" or "down", "" when no init is reachable
	PID     int    `json:"pid"`                 // of its gateway, 0 when there is none
	Served  string `json:"served_by,omitempty"` // as in the status
	Log     string `json:"log"`                 // path of its current log file
	Problem string `json:"problem,omitempty"`   // what is wrong with its files
}

// list shows all profiles, or one.
func (m *manager) list(only string) int {
	rows, warnings, err := m.rows(only)
	if err != nil {
		return m.failed(m.doing, err)
	}
	if only != "" && len(rows) == 0 {
		return m.missing(only, nil)
	}
	code := m.print(rows, only != "")
	for _, w := range warnings {
		if only == "" && code == exitDone {
			fmt.Fprintln(m.err, "warning:", show.Line(w.String()))
		}
	}
	return code
}

// rows reads what list shows.
func (m *manager) rows(only string) ([]profileRow, []profiles.Warning, error) {
	infos, warnings, err := m.store.List()
	if err != nil && len(infos) == 0 {
		return nil, nil, err
	}
	var st client.Status
	if m.cl != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shortWait)
		defer cancel()
		if st, err = m.cl.Status(ctx); err != nil {
			return nil, nil, err
		}
	}
	rows := []profileRow{}
	for _, info := range infos {
		if only != "" && info.Profile.Name != only {
			continue
		}
		row := profileRow{
			Name: info.Profile.Name, Home: info.Profile.Home, Active: info.Active, Prior: info.State.Prior(),
			Log: m.cfg.Logs.Dir + "/" + info.Profile.Name + "/current",
		}
		for _, s := range st.Services {
			if s.Profile == row.Name && s.Kind == "gateway" {
				row.Gateway, row.Want, row.PID, row.Served = s.State, s.Want, s.PID, s.ServedBy
			}
		}
		for _, w := range warnings {
			if w.Profile == row.Name {
				row.Problem = w.Message
			}
		}
		rows = append(rows, row)
	}
	return rows, warnings, nil
}

// print shows profiles, or one.
func (m *manager) print(rows []profileRow, one bool) int {
	var err error
	switch {
	case m.json && one:
		err = writeJSON(m.out, rows[0])
	case m.json:
		err = writeJSON(m.out, rows)
	default:
		err = m.printRows(rows, one)
	}
	if err != nil {
		return m.failed(m.doing, err)
	}
	return exitDone
}

func (m *manager) printRows(rows []profileRow, one bool) error {
	tw := tabwriter.NewWriter(m.out, 0, 0, 2, ' ', 0)
	if one {
		r := rows[0]
		fmt.Fprintf(tw, "name\t%s\nhome\t%s\nactive\t%v\nrecorded state\t%s\ngateway\t%s\nwant\t%s\npid\t%s\nlog\t%s\n",
			r.Name, show.Line(r.Home), r.Active, show.Line(r.Prior), orDash(r.Gateway), orDash(r.Want), show.Number(r.PID), show.Line(r.Log))
		if r.Served != "" {
			fmt.Fprintf(tw, "served by\t%s\n", r.Served)
		}
		if r.Problem != "" {
			fmt.Fprintf(tw, "problem\t%s\n", show.Line(r.Problem))
		}
		return tw.Flush()
	}
	served := slices.ContainsFunc(rows, func(r profileRow) bool { return r.Served != "" })
	by := func(text string) string { return map[bool]string{true: "\t" + text}[served] }
	fmt.Fprintf(tw, "NAME\tGATEWAY\tPID%s\tRECORDED\tHOME\n", by("SERVED BY"))
	for _, r := range rows {
		name := show.Name(r.Name)
		if r.Active {
			name += " *"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s%s\t%s\t%s\n", name, orDash(r.Gateway), show.Number(r.PID), by(orDash(r.Served)), show.Name(r.Prior), show.Line(r.Home))
	}
	return tw.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
