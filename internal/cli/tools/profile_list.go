package tools

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/profiles"
)

// profileRow describes a profile, for --json and for the list. For a deleted profile, it has the values from before the deletion,
// without the gateway.
type profileRow struct {
	Name    string `json:"name"`
	Home    string `json:"home"`                // directory of the profile
	Active  bool   `json:"active"`              // the agent's commands use this profile by default
	Prior   string `json:"prior_state"`         // decides whether the gateway starts at boot; "" if the caller may not look into the profile's home
	Gateway string `json:"gateway"`             // state of the gateway's service, "" when no init is reachable
	Want    string `json:"want"`                // "up" or "down", "" when no init is reachable
	PID     int    `json:"pid"`                 // process id of the gateway, 0 if it has none
	Served  string `json:"served_by,omitempty"` // which gateway serves the profile, as in the status
	Log     string `json:"log"`                 // path of the current log file
	Problem string `json:"problem,omitempty"`   // fault in the profile's files
}

// list prints all profiles. If only is not "", it prints just the profile with that name.
func (m *manager) list(only string) int {
	rows, warnings, err := m.rows(only)
	if err != nil {
		return m.Failed(m.doing, err)
	}
	if only != "" && len(rows) == 0 {
		return m.printMissing(only, nil)
	}
	switch one := only != ""; {
	case !m.json:
		err = m.printRows(rows, one)
	case one:
		err = cli.WriteJSON(m.Out, rows[0])
	default:
		err = cli.WriteJSON(m.Out, rows)
	}
	code := m.Failed(m.doing, err)
	for _, w := range warnings {
		if only == "" && code == cmdline.Done {
			fmt.Fprintln(m.Err, "warning:", show.Line(w.String()))
		}
	}
	return code
}

// rows returns a row for each profile, with the state of its gateway. If only is not "", it returns just the row of that profile.
// It also returns the warnings about profiles.
func (m *manager) rows(only string) ([]profileRow, []profiles.Warning, error) {
	infos, warnings, err := m.store.List()
	if err != nil && len(infos) == 0 {
		return nil, nil, err
	}
	var st client.Status
	if m.cl != nil {
		ctx, cancel := context.WithTimeout(context.Background(), cli.ShortWait)
		defer cancel()
		if st, err = m.cl.Status(ctx); err != nil {
			return nil, nil, err
		}
	}
	rows, listed := []profileRow{}, make(map[string]bool)
	for _, info := range infos {
		rows = append(rows, profileRow{Name: info.Profile.Name, Home: info.Profile.Home, Active: info.Active, Prior: info.State.Prior()})
		listed[info.Profile.Name] = true
	}
	active, _ := m.store.Active() // store.List has already warned of an error
	gateways := make(map[string]client.Service)
	for _, s := range st.Services {
		if s.Kind != client.KindGateway {
			continue
		}
		gateways[s.Profile] = s
		if s.HasOwnUser() && !listed[s.Profile] { // this user can't look into the home of the profile
			p, _ := m.store.Profile(s.Profile)
			rows = append(rows, profileRow{Name: s.Profile, Home: p.Home, Active: s.Profile == active})
			warnings = slices.DeleteFunc(warnings, func(w profiles.Warning) bool { return w.Profile == s.Profile })
		}
	}
	slices.SortFunc(rows, func(a, b profileRow) int { return profiles.Compare(a.Name, b.Name) })
	rows = slices.DeleteFunc(rows, func(r profileRow) bool { return only != "" && r.Name != only })
	for i := range rows {
		row := &rows[i]
		s := gateways[row.Name]
		row.Gateway, row.Want, row.PID, row.Served = s.State, s.Want, s.PID, s.ServedBy
		row.Log = m.cfg.Logs.Dir + "/" + row.Name + "/current"
		for _, w := range warnings {
			if w.Profile == row.Name {
				row.Problem = w.Message
			}
		}
	}
	return rows, warnings, nil
}

// printRows prints rows as a table. If one is true, it prints the single row with all its fields.
func (m *manager) printRows(rows []profileRow, one bool) error {
	tw := tabwriter.NewWriter(m.Out, 0, 0, 2, ' ', 0)
	if one {
		r := rows[0]
		fmt.Fprintf(tw, "name\t%s\nhome\t%s\nactive\t%v\nrecorded state\t%s\ngateway\t%s\nwant\t%s\npid\t%s\nlog\t%s\n",
			r.Name, show.Line(r.Home), r.Active, show.Line(cmp.Or(r.Prior, "-")), cmp.Or(r.Gateway, "-"), cmp.Or(r.Want, "-"),
			show.Number(r.PID), show.Line(r.Log))
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
		prior := show.Name(cmp.Or(r.Prior, "-"))
		fmt.Fprintf(tw, "%s\t%s\t%s%s\t%s\t%s\n", name, cmp.Or(r.Gateway, "-"), show.Number(r.PID), by(cmp.Or(r.Served, "-")), prior, show.Line(r.Home))
	}
	return tw.Flush()
}
