package testkit

import "slices"

// IsolationPlan says what a command in a test may access. hinit-isolate gets it as arguments, see isolation.Argv.
type IsolationPlan struct {
	Name, Home, Rules, Save string
	HOME                    string // HOME of the command; "": the one in the environment
	Hide, Share, Read       []string
	Ports                   []string
	Marked, Degrade         bool
}

// Argv returns the command line that runs command in isolation. path is the path of hinit-isolate.
func (p IsolationPlan) Argv(path string, command []string) []string {
	words := []string{"name=" + p.Name, "home=" + p.Home}
	for _, list := range []struct {
		key    string
		values []string
	}{{"rules=", []string{p.Rules}}, {"HOME=", []string{p.HOME}}, {"save=", []string{p.Save}}, {"hide=", p.Hide}, {"share=", p.Share}, {"read=", p.Read}, {"port=", p.Ports}} {
		for _, value := range list.values {
			if value != "" {
				words = append(words, list.key+value)
			}
		}
	}
	if p.Marked {
		words = append(words, "marked")
	}
	if p.Degrade {
		words = append(words, "degrade")
	}
	return slices.Concat([]string{path}, words, []string{"--"}, command)
}
