package forward

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A proxy before the receiver sends a client without a session to its login page, whose answer is 200. The records must not
// count as accepted then.
func TestLinesThatALoginPageAnsweredWereLost(t *testing.T) {
	t.Parallel()
	for kind, path := range map[string]string{"otlp+": "/v1/logs", "loki+": "/loki/api/v1/push"} {
		for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
			var got string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == path:
					http.Redirect(w, r, "/elsewhere", code)
				case r.Method == http.MethodPost:
					body, _ := io.ReadAll(r.Body)
					got = string(body)
				default:
					_, _ = io.WriteString(w, "<form>Log in</form>")
				}
			}))
			s, err := NewSink(kind+server.URL, "")
			if err != nil {
				t.Fatal(err)
			}
			err = s(t.Context(), []Record{{Kind: KindLog, Service: "x", Text: "line 1"}})
			if accepted := err == nil; accepted != strings.Contains(got, "line 1") {
				t.Errorf("%s after %d: the error is %v, and the receiver has %q", kind, code, err, got)
			}
			server.Close()
		}
	}
}
