package host

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/internal/pause"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// renewLeaseLoop renews the Lease of the host until ctx ends. The Lease tells the controller that the host is alive, and in
// which pod. It also tells other hosts the certificate of this host.
func (h *host) renewLeaseLoop(ctx context.Context) {
	for {
		err := h.renewLease(ctx)
		if err != nil && ctx.Err() == nil {
			h.settings.Log.Warn("the Lease of the host can't be renewed", "error", err)
		}
		// Add a random part, because all hosts of a pool may have been started together.
		wait := h.settings.LeaseInterval*3/4 + rand.N(h.settings.LeaseInterval/2)
		if err != nil {
			wait = min(wait, 5*time.Second)
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// renewLease extends the host's Lease to three beats, and makes the Lease if it is missing.
func (h *host) renewLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	now, seconds := metav1.NowMicro(), int32(3*h.settings.LeaseInterval/time.Second)
	l := &coordinationv1.Lease{}
	err := h.settings.API.Get(ctx, client.ObjectKey{Namespace: h.settings.Namespace, Name: pool.LeaseName(h.settings.Name)}, l)
	l.Namespace, l.Name = h.settings.Namespace, pool.LeaseName(h.settings.Name)
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &h.settings.UID, LeaseDurationSeconds: &seconds, RenewTime: &now}
	// Without this label, the controller does not see the Lease.
	metav1.SetMetaDataLabel(&l.ObjectMeta, v1alpha1.PoolLabel, h.settings.Pool)
	metav1.SetMetaDataAnnotation(&l.ObjectMeta, pool.CertificateAnnotation, h.offers.identity.fingerprint)
	switch {
	case apierrors.IsNotFound(err):
		err = h.settings.API.Create(ctx, l)
	case err == nil:
		err = h.settings.API.Update(ctx, l)
	}
	if err != nil {
		return fmt.Errorf("cannot renew Lease %q: %w", pool.LeaseName(h.settings.Name), err)
	}
	return nil
}
