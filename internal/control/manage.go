package control

import (
	"net/http"
	"time"

	"hinit/client"
)

// What is asked of hinit as a whole.

// rescanTime is how long a look at the profiles waits for the boot, which looks at them anyway.
const rescanTime = 30 * time.Second

func postRescan(s *Server, r *request) (reply, error) {
	if err := bare(r); err != nil {
		return reply{}, err
	}
	if _, err := s.awaitBoot(r, rescanTime); err != nil {
		return reply{}, err
	}
	if err := s.core.Rescan(r.Context()); err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, nil
}

func postReload(s *Server, r *request) (reply, error) {
	if err := bare(r); err != nil {
		return reply{}, err
	}
	changes, err := s.core.Reload(r.Context())
	if err != nil {
		return reply{}, err
	}
	return done(client.ReloadReply{Changes: list(changes)})
}

func getConfig(s *Server, r *request) (reply, error) {
	if _, err := queryOf(r); err != nil {
		return reply{}, err
	}
	return done(client.ConfigReply{Entries: list(s.core.Config())})
}

// bare refuses parameters and a body where there are none to understand.
func bare(r *request) error {
	if _, err := queryOf(r); err != nil {
		return err
	}
	var none struct{}
	return decode(r.body, &none)
}
