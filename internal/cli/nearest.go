package cli

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hinit/internal/config"
	"hinit/profiles"
)

// didYouMean is the end of a message about a word that is not known, "" when none of the words is near.
func didYouMean(word string, words []string) string {
	if near := config.Nearest(word, words); near != "" && near != word {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// flagMeant is that for a flag that the verb doesn't have, after what package flag says of it.
func (c *call) flagMeant(err error) string {
	_, word, unknown := strings.Cut(err.Error(), "flag provided but not defined: ")
	if !unknown {
		return ""
	}
	var names []string
	c.flags.VisitAll(func(f *flag.Flag) { names = append(names, dashed(f.Name)) })
	return didYouMean(dashed(strings.TrimLeft(word, "-")), names)
}

// dashed is a flag as people type it.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// nameMeant is that for a service or a profile that hinit doesn't know, from hinit's answer.
func (t *terminal) nameMeant(message string) string {
	const before = "no such profile or service "
	_, rest, found := strings.Cut(message, before)
	quoted, err := strconv.QuotedPrefix(rest)
	if !found || err != nil {
		return ""
	}
	word, err := strconv.Unquote(quoted)
	if err != nil {
		return ""
	}
	names, _ := t.liveNames(shortWait)
	return didYouMean(word, names)
}

// liveNames are the names that the running init knows: profiles, other services, and then the slots of gateways.
func (t *terminal) liveNames(limit time.Duration) (names, slots []string) {
	cl, err := t.dial()
	if err != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	st, err := cl.Status(ctx)
	if err != nil {
		return nil, nil
	}
	for _, s := range st.Services {
		if s.Profile == "" {
			names = append(names, s.Name)
			continue
		}
		names, slots = append(names, s.Profile), append(slots, profiles.SlotName(s.Profile))
	}
	return names, slots
}
