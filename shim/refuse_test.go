package shim

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

func TestMissingTarget(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, i *image){
		"missing":        func(t *testing.T, i *image) { must(t, os.Remove(i.target)) },
		"not executable": func(t *testing.T, i *image) { must(t, os.Chmod(i.target, 0o644)) },
		"directory": func(t *testing.T, i *image) {
			must(t, os.Remove(i.target))
			must(t, os.Mkdir(i.target, 0o755))
		},
		"dangling link": func(t *testing.T, i *image) {
			must(t, os.Remove(i.target))
			must(t, os.Symlink("nothing", i.target))
		},
		"missing, and the user too": func(t *testing.T, i *image) {
			must(t, os.Remove(i.target))
			i.user = "nobody-here"
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := newImage(t, whoamiScript)
			spoil(t, i)
			want := shimMessage(i.target + " not found or not executable")
			runCommand(t, i.command("x")).want(t, 127, "", want)
			if os.Geteuid() == 0 {
				runCommand(t, asUser(i.command("x"), 12345)).want(t, 127, "", want)
			}
		})
	}
}

func TestTargetThatIsTheShim(t *testing.T) {
	i := newImage(t, whoamiScript)
	must(t, os.Remove(i.target))
	must(t, os.Symlink(testBinary(t), i.target))
	runCommand(t, i.command()).want(t, 126, "", shimMessage(i.target+" is this shim itself, and would run for ever"))
}

func TestExecFails(t *testing.T) {
	testkit.NeedRoot(t)
	t.Run("interpreter missing", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		write(t, i.target, "#!/no/such/interpreter\n", 0o755)
		runCommand(t, i.command()).want(t, 127, "", shimMessage("cannot execute "+i.target+": no such file or directory"))
	})
	t.Run("no program", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		write(t, i.target, "hello\n", 0o755)
		runCommand(t, i.command()).want(t, 126, "", shimMessage("cannot execute "+i.target+": exec format error"))
	})
	t.Run("closed to the agent", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		must(t, os.Chmod(i.dir+"/bin", 0o700))
		runCommand(t, i.command()).want(t, 126, "", shimMessage("cannot execute "+i.target+": permission denied"))
	})
}

func TestCannotDrop(t *testing.T) {
	testkit.NeedRoot(t)
	refuses := func(t *testing.T, i *image, r result, why string) {
		t.Helper()
		r.want(t, 126, "", shimMessage("refusing to run "+i.target+" as root: "+why, asRootAdvice(i.user)))
	}
	t.Run("unknown user", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		write(t, i.dir+"/etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644)
		refuses(t, i, runCommand(t, i.command()), `cannot look up user "hermes": no such user`)
	})
	t.Run("no passwd", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		must(t, os.Remove(i.dir+"/etc/passwd"))
		refuses(t, i, runCommand(t, i.command()), `cannot look up user "hermes": no such user`)
	})
	t.Run("user is root", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		i.user = "toor"
		refuses(t, i, runCommand(t, i.command()), `user "toor" is root itself`)
	})
	for _, c := range []struct {
		capability uintptr
		call       string
	}{{unix.CAP_SETGID, "setgroups"}, {unix.CAP_SETUID, "setuid"}} {
		t.Run(c.call+" refused", func(t *testing.T) {
			i := newImage(t, whoamiScript)
			withoutCapability(t, c.capability, func() {
				refuses(t, i, runCommand(t, i.command()), "the kernel refuses "+c.call+": operation not permitted")
			})
		})
	}
	t.Run("user namespace", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		cmd := i.command()
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:                 syscall.CLONE_NEWUSER,
			UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
			GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
			GidMappingsEnableSetgroups: true,
		}
		if err := cmd.Start(); err != nil {
			t.Skip(err)
		}
		_ = cmd.Wait()
		again := i.command()
		again.SysProcAttr = cmd.SysProcAttr
		refuses(t, i, runCommand(t, again), "the kernel refuses setgroups: invalid argument")
	})
	t.Run("the opt-out works all the same", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		i.user = "nobody-here"
		cmd := i.command()
		cmd.Env = append(cmd.Env, "HERMES_DOCKER_EXEC_AS_ROOT=1")
		runCommand(t, cmd).want(t, 0, rootIdentity, "")
	})
	t.Run("and so does another user", func(t *testing.T) {
		i := newImage(t, whoamiScript)
		i.user = "nobody-here"
		runCommand(t, asUser(i.command(), 12345)).want(t, 0, "12345:12345 12345 /root\n", "")
	})
}

func TestConfiguration(t *testing.T) {
	testkit.NeedRoot(t)
	const other = "other: "
	elsewhere := newImage(t, `echo "other: $(id -u) $HOME"`).target
	for name, c := range map[string]struct {
		content string
		spoil   func(t *testing.T, path string)
		stdout  string
		ignored string
	}{
		"none":            {stdout: agentIdentity, spoil: func(t *testing.T, path string) { must(t, os.Remove(path)) }},
		"target":          {content: elsewhere, stdout: other + "10000 /opt/data\n"},
		"target and user": {content: elsewhere + "\nsecond\n", stdout: other + "20000 /home/second\n"},
		"dos":             {content: elsewhere + " \r\n second\r\n", stdout: other + "20000 /home/second\n"},
		"uid":             {content: elsewhere + "\n4242:4243\n", stdout: other + "4242 /\n"},
		"no home":         {content: elsewhere + "\nhomeless\n", stdout: other + "20001 /\n"},
		"third line":      {content: elsewhere + "\nsecond\nrest\n", stdout: other + "20000 /home/second\n"},
		"empty":           {content: "", stdout: agentIdentity, ignored: "the first line is not an absolute path"},
		"relative":        {content: "bin/sh", stdout: agentIdentity, ignored: "the first line is not an absolute path"},
		"not root's": {
			content: elsewhere, stdout: agentIdentity, ignored: "CONFIG belongs to uid 10000; chown root CONFIG",
			spoil: func(t *testing.T, path string) { must(t, os.Chown(path, agentUID, 0)) },
		},
		"group may write": {
			content: elsewhere, stdout: agentIdentity, ignored: "CONFIG can be written by gid 0; chmod g-w CONFIG",
			spoil: func(t *testing.T, path string) { must(t, os.Chmod(path, 0o664)) },
		},
		"others may write": {
			content: elsewhere, stdout: agentIdentity, ignored: "CONFIG can be written by everybody; chmod o-w CONFIG",
			spoil: func(t *testing.T, path string) { must(t, os.Chmod(path, 0o646)) },
		},
		"link": {
			content: elsewhere, stdout: other + "10000 /opt/data\n",
			spoil: func(t *testing.T, path string) {
				must(t, os.Rename(path, path+".real"))
				must(t, os.Symlink(path+".real", path))
			},
		},
		"link of the agent's": {
			content: elsewhere, stdout: agentIdentity, ignored: "CONFIG belongs to uid 10000; chown root CONFIG",
			spoil: func(t *testing.T, path string) {
				must(t, os.Rename(path, path+".real"))
				must(t, os.Symlink(path+".real", path))
				must(t, os.Lchown(path, agentUID, 0))
			},
		},
		"directory of the agent's": {
			content: elsewhere, stdout: agentIdentity, ignored: "DIR belongs to uid 10000; chown root DIR",
			spoil: func(t *testing.T, path string) { must(t, os.Chown(filepath.Dir(path), agentUID, 0)) },
		},
		"fifo": {
			stdout: agentIdentity, ignored: "not a regular file",
			spoil: func(t *testing.T, path string) {
				must(t, os.Remove(path))
				must(t, unix.Mkfifo(path, 0o600))
			},
		},
		"large": {content: elsewhere + strings.Repeat("\n", maxConfig), stdout: agentIdentity, ignored: "it is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newImage(t, whoamiScript)
			write(t, i.config, c.content, 0o644)
			if c.spoil != nil {
				c.spoil(t, i.config)
			}
			stderr := ""
			if c.ignored != "" {
				stderr = shimMessage("ignoring " + i.config + ": " + strings.NewReplacer("CONFIG", i.config, "DIR", filepath.Dir(i.config)).Replace(c.ignored))
			}
			runCommand(t, i.command()).want(t, 0, c.stdout, stderr)
		})
	}
	t.Run("the environment can't", func(t *testing.T) {
		cmd := newImage(t, whoamiScript).command()
		cmd.Env = append(cmd.Env, "HINIT_SHIM_TARGET="+elsewhere, "HINIT_CONFIG="+elsewhere)
		runCommand(t, cmd).want(t, 0, agentIdentity, "")
	})
}
