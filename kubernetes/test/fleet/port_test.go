package fleet

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/host"
	"hinit/kubernetes/internal/pool"
)

// TestOnlyTheHostThatAProfileMovesToIsSentIt requests the data of an offered profile without a
// certificate and with another one. Both must be refused, and after the move the port must be
// closed.
func TestOnlyTheHostThatAProfileMovesToIsSentIt(t *testing.T) {
	f := newSim(t, "port", 3)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	from := f.profile("p00000").Status.Host
	others := f.otherHosts(3, from)
	to := others[0]
	eventually(t, time.Minute, "all hosts on", func() string {
		if s := f.poolStatus(); s.Reachable != 3 {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	f.kubelet.partition(to, true) // The target is disconnected, so it does not fetch the data.
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = to }); err != nil {
		t.Fatal(err)
	}
	var offer *v1alpha1.Offer
	eventually(t, time.Minute, "the offer", func() string {
		if m := f.profile("p00000").Status.Move; m != nil && m.Offer != nil {
			offer = m.Offer
			return ""
		}
		return "none"
	})
	other := httptest.NewTLSServer(nil) // This client has a stranger's certificate and key.
	defer other.Close()
	ask := func(nonce string, certificates []tls.Certificate) (int, string) {
		t.Helper()
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: host.ServerName(offer.Nonce), Certificates: certificates}}
		r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, "https://"+offer.Address+"/v1/data/"+string(f.profile("p00000").UID)+"/"+nonce, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		read, _ := io.ReadAll(answer.Body) // Ignore the error: the part that was read is enough.
		return answer.StatusCode, strings.TrimSpace(string(read))
	}
	for _, c := range []struct {
		what, nonce  string
		certificates []tls.Certificate
		code         int
		text         string
	}{
		{"no certificate", offer.Nonce, nil, 0, "certificate required"},
		{"another offer", "guessed", other.TLS.Certificates, http.StatusNotFound, "no such offer"},
		{"the certificate of no host", offer.Nonce, other.TLS.Certificates, http.StatusForbidden, "not for you"},
	} {
		if code, text := ask(c.nonce, c.certificates); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s: %d %.80q", c.what, code, text)
		}
	}
	forged := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, pool.CertificateAnnotation, strings.Repeat("0", 64))
	if out, err := f.Kubectl(f.ctx, "patch", "lease", pool.LeaseName(to), "--type=merge", "-p", forged).CombinedOutput(); err == nil || !strings.Contains(string(out), "only the pod of a host writes its Lease") {
		t.Errorf("a Lease in which somebody else names a certificate is answered with %v: %s", err, out)
	}

	address := offer.Address
	f.kubelet.partition(to, false)
	eventually(t, 2*time.Minute, "the profile on "+to, func() string { return f.placementProblem("p00000", to) })
	eventually(t, time.Minute, "the port closed", func() string {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return "it is open"
		}
		return ""
	})
	f.checkLedger()
}

// TestAHostTakesNothingFromAnotherThanTheOfferNames checks that a host accepts no data from a server with another
// certificate than the offer names.
func TestAHostTakesNothingFromAnotherThanTheOfferNames(t *testing.T) {
	f := newSim(t, "middle", 2)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	from, to := f.profile("p00000").Status.Host, f.pool+"-0"
	if from == to {
		to = f.pool + "-1"
	}
	eventually(t, time.Minute, "both hosts on", func() string {
		if p := f.pod(to); p.Status.Phase != corev1.PodRunning {
			return string(p.Status.Phase)
		}
		return ""
	})
	f.kubelet.partition(to, true)
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = to }); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the offer", func() string {
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
	f.kubelet.partition(to, false)
	eventually(t, time.Minute, "the reason told", func() string {
		if p := f.profile("p00000"); !strings.Contains(p.Status.Message, "it has another certificate than the offer names") {
			return fmt.Sprintf("%+v", p.Status)
		}
		return ""
	})
	if p := f.profile("p00000"); p.Status.Host != from || p.Status.Move.Received != nil {
		t.Errorf("%+v", p.Status)
	}
	patch(right)
	eventually(t, 2*time.Minute, "the profile on "+to, func() string { return f.placementProblem("p00000", to) })
	f.checkLedger()
}
