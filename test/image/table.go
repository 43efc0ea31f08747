// Package image has a table of the behaviour of the agent's image: how versions of the image differ, and what hinit does.
// docs/reference/image.md is generated from the table. A test checks that each row names tests that exist. The package starts
// no goroutine.
package image

import "strings"

// Row is one behaviour of the agent's image.
type Row struct {
	Behaviour string
	Since     string   // First version of the image with this behaviour.
	Decision  string   // What hinit does.
	Tests     []string // Names of the test functions for this behaviour.
}

// july is the image of July 2026 and all earlier ones. newest stands for the requirements of the
// agent's tests of autumn 2026.
const (
	july   = "0.17"
	later  = "after " + july
	august = "0.18"
	newest = "autumn 2026"
)

// Rows has the behaviours in the order of the boot.
var Rows = []Row{
	{
		"`/usr/bin/tini` is a script that leaves tini's options out; the entrypoint may be `docker/entrypoint-dispatch.sh`", later,
		"always",
		[]string{"TestRouteTini", "TestRouteCommands"},
	},
	{
		"Below another init (`docker run --init`) the boot steps and the CMD run, and a warning says that nothing is supervised", later,
		"always, and everything is supervised",
		[]string{"TestCommand"},
	},
	{
		"The agent's user joins the groups of `/dev/dri/*`, never group 0", later, "always", []string{"TestDockerSocket", "TestGraphicsGroups"},
	},
	{
		"Root changes, makes and writes nothing through a link in the data directory, and says `refusing`", later,
		"always",
		[]string{"TestLinksAreRefused"},
	},
	{
		"`backups`, `lazy-packages`, `pairing`, `platforms/pairing` and `logs/gateways` are made and repaired", later, "always",
		[]string{"TestFreshVolume", "TestRepair"},
	},
	{"An `.env` without `API_SERVER_KEY` gets one", later, "always", []string{"TestServerKey"}},
	{
		"`HERMES_AUTH_JSON_REBOOTSTRAP` renews dead credentials", later, "always, by the image's script; without that script nothing happens",
		[]string{"TestRebootstrapHook"},
	},
	{
		"The browser is named at the build, in `/etc/hermes/agent-browser-executable-path`", later, "by that file, otherwise by a search as in " + july,
		[]string{"TestBrowser"},
	},
	{"`HERMES_REAL_HOME` is made and is the `HOME` of every service", later, "always", []string{"TestRealHome", "TestHomeOverride"}},
	{
		"The boot refreshes the dependencies of the user's plugins, and a failure ends it; it copies the Whisper weights into the data directory", newest,
		"`HINIT_BOOT=image` does both. Otherwise hinit does not know these steps",
		[]string{"TestUnknownBootStepsAreNamedAndCanBeRun", "TestTheNewestImageEndsAFailedBoot"},
	},
	{
		"A boot script (`01-hermes-setup`, `015-supervise-perms`, `02-reconcile-profiles`) has commands that hinit does not know", newest,
		"`docker/remove-s6` prints them at build, and `hinit doctor` lists them. `HINIT_BOOT=image` runs the image's own script instead",
		[]string{"TestUnknownBootStepsAreNamedAndCanBeRun"},
	},
	{
		"A CMD such as `mcp`, `login` and other subcommands reaches the agent, also where a program has the name", newest,
		"always; `docker/remove-s6` takes the subcommands from the agent's own help",
		[]string{"TestSubcommandsReachTheAgent", "TestASubcommandOfTheAgentIsNoProgram"},
	},
	{
		"`HERMES_AUTH_HOME` on a volume of root's is made and given to the agent; root's credentials in it are repaired (`auth.json`, " +
			"`.anthropic_oauth.json`, `shared/nous_auth.json` and their temporary files), a named profile's too; a link below it is refused", august,
		"always; a directory of root's that holds other things only stays root's",
		[]string{"TestCredentialsElsewhereAreRepaired", "TestCredentialsElsewhereFollowNoLink", "TestAuthHome"},
	},
	{
		"A read-only data directory and a failed boot script end the boot: `fatal: stopping the container`, no CMD", newest,
		"`S6_BEHAVIOUR_IF_STAGE2_FAILS` (2 ends the boot, 1 warns, 0 continues); without it, 2 if a boot script refuses the startup",
		[]string{"TestTheNewestImageEndsAFailedBoot"},
	},
	{
		"`/tmp/hermes-files` is the agent's scratch directory: mode 0700, never through a link; root's where CHOWN is missing", newest,
		"always",
		[]string{"TestScratchIsTheAgentsAlone"},
	},
	{
		"`/etc/profile.d/99-hermes-venv-path.sh` puts the agent's directories first in the PATH of login shells", august,
		"hinit keeps it; a later file moves directories on the data volume to the end of root's PATH, so that root runs no program of the agent",
		[]string{"TestAContainerOfTheNewestImage"},
	},
	{
		"`GATEWAY_MULTIPLEX_PROFILES` decides before `config.yaml`; the default gateway serves the profiles of `multiplex_profile_allowlist` and names " +
			"them in `served_profiles`; their slots have a `down` file", newest,
		"always; `hinit topology` decides before both",
		[]string{"TestMultiplexed", "TestReconcileMultiplex", "TestOnlyListedProfilesAreServed", "TestWhoServesAProfileIsKnown"},
	},
	{"A state file may begin with a byte order mark", later, "always", []string{"TestReadState"}},
	{
		"`container-boot.log` has `prior_exit`, from `state/gateway.lifecycle.json`", later, "always", []string{"TestReconcile"},
	},
	{
		"`gateway start` registers the slot of a profile that has none; `HERMES_SUPERVISED_CHILD` marks a supervised gateway beside the older name", later,
		"always",
		[]string{"TestAProfileThatAppearsIsRegisteredAndStarted", "TestTheProfileIsTheOneTheAgentWouldTake"},
	},
	{"A gateway that exits with code 78 stays down", later, "always; `restart.park_on` wins", []string{"TestParkedComesBackOnlyWhenItsInputsChangeOrSomeoneAsks"}},
	{
		"A gateway that exits with code 0 by itself stays down", august,
		"by the exit code of the image's finish script; `restart.park_on` wins. Without such a script the gateway starts again",
		[]string{"TestTheImageDecidesWhatNothingElseDoes", "TestAContainerOfTheNewestImage"},
	},
	{
		"The dashboard listens on 127.0.0.1 and has no `--insecure`", august,
		"by the command of the image's run script; `HERMES_DASHBOARD_HOST` wins, and `HERMES_DASHBOARD_INSECURE` is a warning",
		[]string{"TestTheImageDecidesWhatNothingElseDoes"},
	},
	{
		"A dashboard that refuses to bind exits with code 78 and stays down", august,
		"always; with the code 1 of July 2026 by its line `Refusing to bind …`, which is the reason in status. `hinit explain dashboard` has its last lines",
		[]string{"TestDashboardRefusesAnOpenBind", "TestARefusalParksWithItsReason"},
	},
}

// Page returns docs/reference/image.md.
func Page() string {
	var b strings.Builder
	b.WriteString(`# The agent's image, version by version

<!-- Generated by internal/gendocs. -->

hinit behaves as the version of its image does. During the build, ` + "`docker/remove-s6`" + ` asks the image's own programs and writes the answers into
` + "`/usr/share/hinit/image/facts`" + `. Without this file hinit behaves like the image of July 2026 (0.17).

    hinit doctor | grep image        # the version, the rules in force, and what hinit does not know

| Behaviour of the image | Since | How hinit decides |
|---|---|---|
`)
	for _, r := range Rows {
		if strings.HasPrefix(r.Decision, "always") {
			continue
		}
		b.WriteString("| " + r.Behaviour + " | " + r.Since + " | " + r.Decision + " |\n")
	}
	b.WriteString(`
[test/image/table.go](../../test/image/table.go) lists what hinit does with every image.

## The image's own boot script

With ` + "`HINIT_BOOT=image`" + ` (` + "`boot.steps: image`" + `) hinit runs ` + "`/usr/share/hinit/image/01-hermes-setup`" + ` as root, with the container's environment. The script
replaces hinit's own seeds, credentials and two Python steps. As under s6-overlay, it follows names in the data directory as root.
`)
	return b.String()
}
