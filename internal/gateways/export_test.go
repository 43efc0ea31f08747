package gateways

import "hinit/profiles"

// WarnIfMissing queues a job that says something.
func (k *Keeper) WarnIfMissing(service, profile string) { k.warnIfMissing(service, profile) }

// ExpectLate is a part of [Keeper.Boot].
func (k *Keeper) ExpectLate(plan profiles.Plan) { k.expectLate(plan) }

// NotePrior is a part of [Keeper.Boot].
func (k *Keeper) NotePrior(d profiles.Decision) { k.notePrior(d) }
