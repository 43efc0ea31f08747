package web

import "net/http"

func (s *Server) loginPage(w http.ResponseWriter, r *http.Request) {
	if s.Token == "" {
		s.fail(w, r, http.StatusNotFound, "There is no token to log in with.")
		return
	}
	s.show(w, r, http.StatusOK, "login", "Log in", "")
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.Token == "":
		s.fail(w, r, http.StatusNotFound, "There is no token to log in with.")
	case !s.fromOurPage(r):
		s.show(w, r, http.StatusForbidden, "login", "Log in", "The form was too old; try again.")
	case same(r.PostFormValue("token"), s.Token):
		s.beginSession(w, r)
		http.Redirect(w, r, s.Base+"/", http.StatusSeeOther)
	case !s.guesses.allow(remote(r)):
		s.tooManyGuesses(w)
		s.show(w, r, http.StatusTooManyRequests, "login", "Log in", "Too many wrong tokens from this address. Wait a minute, or enter the right one.")
	default:
		s.Log.Warn("wrong token", "remote", remote(r))
		s.show(w, r, http.StatusForbidden, "login", "Log in", "That is not the token.")
	}
}

func (s *Server) tooManyGuesses(w http.ResponseWriter) { w.Header().Set("Retry-After", "60") }

func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	if s.fromOurPage(r) {
		s.setCookie(w, r, sessionCookie, "", -1)
	}
	http.Redirect(w, r, s.Base+"/", http.StatusSeeOther)
}
