package gateways

import "hinit/profiles"

// WarnIfMissing queues a job that says something.
func (k *Reconciler) WarnIfMissing(service, profile string) { k.warnIfMissing(service, profile) }

// ExpectLate is a part of [Reconciler.Boot].
func (k *Reconciler) ExpectLate(plan profiles.Plan) { k.expectLate(plan) }

// NotePrior is a part of [Reconciler.Boot].
func (k *Reconciler) NotePrior(d profiles.Decision) { k.notePrior(d) }
