package control

import (
	"net/http"
	"slices"
	"strings"

	"hinit/client"
)

// Requests to hinit as a whole.

func postRescan(s *Server, r *request) (reply, error) {
	if err := bare(r); err != nil {
		return reply{}, err
	}
	if err := s.core.Rescan(r.Context()); err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, nil
}

func postReload(s *Server, r *request) (reply, error) {
	var how client.Reload
	if err := decode(r.body, &how); err != nil {
		return reply{}, err
	}
	out, err := s.core.Reload(r.Context(), how)
	if err != nil {
		return reply{}, err
	}
	out.Changes, out.Plan, out.Settings = list(out.Changes), list(out.Plan), list(out.Settings)
	return later(http.StatusOK, out)
}

func postTopology(s *Server, r *request) (reply, error) {
	var how client.Topology
	if err := decode(r.body, &how); err != nil {
		return reply{}, err
	}
	if how.Mode != "" && !slices.Contains(client.Topologies, how.Mode) {
		return reply{}, refuse(client.KindBadRequest, "mode is %q; it is one of %s, in a container with profiles", how.Mode, strings.Join(client.Topologies, ", "))
	}
	out, err := s.core.Topology(r.Context(), how.Mode, how.DryRun)
	if err != nil {
		return reply{}, err
	}
	return later(http.StatusOK, out)
}

func postExamine(s *Server, r *request) (reply, error) {
	if err := bare(r); err != nil {
		return reply{}, err
	}
	return later(http.StatusOK, client.ExamineReply{Findings: list(s.core.Examine(r.Context()))})
}

func getConfig(s *Server, r *request) (reply, error) {
	return s.inTurn(r, func() (reply, error) { return done(client.ConfigReply{Entries: list(s.core.Config())}) })
}

// bare refuses a body.
func bare(r *request) error {
	return decode(r.body, &struct{}{})
}
