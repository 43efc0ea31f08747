package fleet

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/host"
	"hinit/kubernetes/internal/pool"
)

// TestOnlyTheHostThatAProfileMovesToIsSentIt requests the data of a profile while it is offered, with what others can
// have: no token, tokens for another purpose, and tokens of other pods. All must be refused. Before and after the move,
// the port must be closed.
func TestOnlyTheHostThatAProfileMovesToIsSentIt(t *testing.T) {
	f := newSim(t, "port", 3)
	f.controller(t, f.log)
	f.create(1)
	until(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	from := f.profile("p00000").Status.Host
	others := f.others(3, from)
	to, third := others[0], others[1]
	until(t, time.Minute, "all hosts on", func() string {
		if s := f.poolStatus(); s.Reachable != 3 {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	f.k.partition(to, true) // cut off, so that the target does not fetch the data
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = to }); err != nil {
		t.Fatal(err)
	}
	var offer *v1alpha1.Offer
	until(t, time.Minute, "the offer", func() string {
		if m := f.profile("p00000").Status.Move; m != nil && m.Offer != nil {
			offer = m.Offer
			return ""
		}
		return "none"
	})
	token := func(host, audience string) string {
		t.Helper()
		text, err := f.k.token(f.ctx, f.pod(host), audience)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	stranger, err := f.k.kube.CoreV1().ServiceAccounts("default").CreateToken(f.ctx, "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{pool.Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	unbound, err := f.k.kube.CoreV1().ServiceAccounts("default").CreateToken(f.ctx, pool.Account(f.pool), &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{pool.Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: host.ServerName(offer.Nonce)}}
	https := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	ask := func(nonce, authorization string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, "https://"+offer.Address+"/v1/data/"+nonce, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		answer, err := https.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body) // the part that was read is enough
		return answer.StatusCode, strings.TrimSpace(string(text))
	}
	for _, c := range []struct {
		what, nonce, authorization string
		code                       int
	}{
		{"no token", offer.Nonce, "", http.StatusNotFound},
		{"a password", offer.Nonce, "Basic YTpi", http.StatusNotFound},
		{"another offer", "guessed", "Bearer " + token(to, pool.Audience), http.StatusNotFound},
		{"no real token", offer.Nonce, "Bearer x.y.z", http.StatusForbidden},
		{"a token for the API server", offer.Nonce, "Bearer " + token(to, ""), http.StatusForbidden},
		{"a token for something else", offer.Nonce, "Bearer " + token(to, "vault"), http.StatusForbidden},
		{"the token of another host of the pool", offer.Nonce, "Bearer " + token(third, pool.Audience), http.StatusForbidden},
		{"the token of the host itself", offer.Nonce, "Bearer " + token(from, pool.Audience), http.StatusForbidden},
		{"a token of the pool's account without a pod", offer.Nonce, "Bearer " + unbound.Status.Token, http.StatusForbidden},
		{"the token of another account", offer.Nonce, "Bearer " + stranger.Status.Token, http.StatusForbidden},
	} {
		if code, text := ask(c.nonce, c.authorization); code != c.code || text != map[int]string{http.StatusNotFound: "no such offer", http.StatusForbidden: "not for you"}[code] {
			t.Errorf("%s: %d %.80q", c.what, code, text)
		}
	}
	if code, text := ask(offer.Nonce, "Bearer "+token(to, pool.Audience)); code != http.StatusOK || !strings.Contains(text, "SOUL.md") {
		t.Errorf("the host that it moves to is answered with %d %.80q", code, text)
	}

	address := offer.Address
	f.k.partition(to, false)
	until(t, 2*time.Minute, "the profile on "+to, func() string { return f.on("p00000", to) })
	until(t, time.Minute, "the port closed", func() string {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return "it is open"
		}
		return ""
	})
	f.sound()
}

// TestAHostTakesNothingFromAnotherThanTheOfferNames checks that a host accepts no data from a server with another
// certificate than the offer names.
func TestAHostTakesNothingFromAnotherThanTheOfferNames(t *testing.T) {
	f := newSim(t, "middle", 2)
	f.controller(t, f.log)
	f.create(1)
	until(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	from, to := f.profile("p00000").Status.Host, f.pool+"-0"
	if from == to {
		to = f.pool + "-1"
	}
	until(t, time.Minute, "both hosts on", func() string {
		if p := f.pod(to); p.Status.Phase != corev1.PodRunning {
			return string(p.Status.Phase)
		}
		return ""
	})
	f.k.partition(to, true)
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = to }); err != nil {
		t.Fatal(err)
	}
	until(t, time.Minute, "the offer", func() string {
		if m := f.profile("p00000").Status.Move; m == nil || m.Offer == nil {
			return "none"
		}
		return ""
	})
	p := f.profile("p00000")
	right := p.Status.Move.Offer.Certificate
	patch := func(sum string) {
		t.Helper()
		text, err := json.Marshal(map[string]any{"status": map[string]any{"move": map[string]any{"offer": map[string]any{"certificate": sum}}}})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := f.Kubectl(f.ctx, "patch", "agentprofile", "p00000", "--subresource=status", "--type=merge", "-p", string(text)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	patch(strings.Repeat("0", 64))
	f.k.partition(to, false)
	until(t, time.Minute, "the reason told", func() string {
		if p := f.profile("p00000"); !strings.Contains(p.Status.Message, "it has another certificate than the offer names") {
			return fmt.Sprintf("%+v", p.Status)
		}
		return ""
	})
	if p := f.profile("p00000"); p.Status.Host != from || p.Status.Move.Received != nil {
		t.Errorf("%+v", p.Status)
	}
	patch(right)
	until(t, 2*time.Minute, "the profile on "+to, func() string { return f.on("p00000", to) })
	f.sound()
}
