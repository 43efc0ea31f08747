package control

import (
	"net/http"
	"slices"
	"strings"

	"hinit/client"
)

// These handlers answer requests that concern hinit as a whole.

func postRescan(s *Server, r *request, _ struct{}) (reply, error) {
	return reply{status: http.StatusNoContent}, s.core.Rescan(r.Context())
}

func postReload(s *Server, r *request, how client.Reload) (reply, error) {
	out, err := s.core.Reload(r.Context(), how)
	out.Changes, out.Plan, out.Settings = nonNil(out.Changes), nonNil(out.Plan), nonNil(out.Settings)
	return answerLater(http.StatusOK, out, err)
}

func postTopology(s *Server, r *request, how client.Topology) (reply, error) {
	if how.Mode != "" && !slices.Contains(client.Topologies, how.Mode) {
		return reply{}, refuse(client.KindBadRequest, "mode is %q; it is one of %s, in a container with profiles", how.Mode, strings.Join(client.Topologies, ", "))
	}
	out, err := s.core.Topology(r.Context(), how.Mode, how.DryRun)
	return answerLater(http.StatusOK, out, err)
}

func postExamine(s *Server, r *request, _ struct{}) (reply, error) {
	return answerLater(http.StatusOK, client.ExamineReply{Findings: nonNil(s.core.Examine(r.Context()))}, nil)
}

func getConfig(s *Server, r *request) (reply, error) {
	return s.inTurn(r, func() (reply, error) { return answer(client.ConfigReply{Entries: nonNil(s.core.Config())}) })
}
