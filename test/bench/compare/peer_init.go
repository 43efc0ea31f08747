package main

// plainInit is an init that only starts one command and reaps orphans.
type plainInit struct {
	program string
	before  []string
}

//nolint:gochecknoglobals // constants
var (
	tini      = plainInit{"tini", []string{"--"}}
	dumbInit  = plainInit{"dumb-init", []string{"--"}}
	catatonit = plainInit{"catatonit", []string{"--"}}
)

func (p plainInit) name() string       { return p.program }
func (p plainInit) programs() []string { return []string{p.program} }
func (p plainInit) version() string    { return debianVersion(p.program) }
func (plainInit) prepare(*site) error  { return nil }
func (p plainInit) command(s *site) (argv, env []string) {
	return append(append([]string{p.program}, p.before...), s.command...), nil
}
