package script_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rogpeppe/go-internal/testscript"

	"hinit/client"
)

// lookup finds a value in decoded JSON by keys and indexes with dots between. It returns a text unchanged, and any other value as
// JSON.
func lookup(document any, path string) (string, error) {
	at := document
	for key := range strings.SplitSeq(path, ".") {
		switch node := at.(type) {
		case map[string]any:
			value, there := node[key]
			if !there {
				return "", fmt.Errorf("there is no %q", path)
			}
			at = value
		case []any:
			i, err := strconv.Atoi(key)
			if key == "len" {
				at = float64(len(node))
				continue
			}
			if err != nil || i < 0 || i >= len(node) {
				return "", fmt.Errorf("there is no %q", path)
			}
			at = node[i]
		default:
			return "", fmt.Errorf("there is no %q", path)
		}
	}
	if text, ok := at.(string); ok {
		return text, nil
	}
	text, err := json.Marshal(at)
	return string(text), err
}

// expectation is KEY=VALUE, KEY!=VALUE or KEY>=NUMBER.
type expectation struct{ key, op, value string }

func expectations(words []string) ([]expectation, error) {
	var list []expectation
	for _, word := range words {
		i := strings.IndexAny(word, "=!>")
		if i <= 0 {
			return nil, fmt.Errorf("%q is no KEY=VALUE", word)
		}
		e := expectation{key: word[:i], op: "="}
		rest := word[i:]
		for _, op := range []string{"!=", ">=", "="} {
			if value, ok := strings.CutPrefix(rest, op); ok {
				e.op, e.value = op, value
				break
			}
		}
		list = append(list, e)
	}
	return list, nil
}

func (e expectation) check(document any) error {
	got, err := lookup(document, e.key)
	if err != nil {
		return err
	}
	ok := false
	switch e.op {
	case "=":
		ok = got == e.value
	case "!=":
		ok = got != e.value
	case ">=":
		have, err1 := strconv.ParseFloat(got, 64)
		want, err2 := strconv.ParseFloat(e.value, 64)
		ok = err1 == nil && err2 == nil && have >= want
	}
	if !ok {
		return fmt.Errorf("%s is %s, expected %s%s", e.key, got, e.op, e.value)
	}
	return nil
}

func checkAll(document any, list []expectation) error {
	for _, e := range list {
		if err := e.check(document); err != nil {
			return err
		}
	}
	return nil
}

// toJSONTypes converts a value to the types of decoded JSON.
func toJSONTypes(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out any
	return out, json.Unmarshal(text, &out)
}

func cmdWaitFor(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errors.New("expected: waitfor NAME KEY=VALUE... or waitfor NAME gone")
	}
	c := containerOf(ts)
	if args[1] == "gone" {
		return poll(patience, func() error {
			switch _, err := c.service(args[0]); {
			case err == nil:
				return fmt.Errorf("%s is there", args[0])
			case !errors.Is(err, client.ErrUnknown):
				return err
			}
			return nil
		})
	}
	list, err := expectations(args[1:])
	if err != nil {
		return err
	}
	return poll(patience, func() error {
		if !c.running() {
			return fmt.Errorf("%w with code %d", errHopeless, c.exitCode)
		}
		s, err := c.service(args[0])
		if err != nil {
			return err
		}
		document, err := toJSONTypes(s)
		if err != nil {
			return err
		}
		return checkAll(document, list)
	})
}

func cmdGet(ts *testscript.TestScript, args []string) error {
	if len(args) != 3 {
		return errors.New("expected: get VAR NAME KEY")
	}
	s, err := containerOf(ts).service(args[1])
	if err != nil {
		return err
	}
	document, err := toJSONTypes(s)
	if err != nil {
		return err
	}
	value, err := lookup(document, args[2])
	if err != nil {
		return err
	}
	ts.Setenv(args[0], value)
	return nil
}

func jsonCheck(ts *testscript.TestScript, args []string) (func() error, error) {
	if len(args) < 2 {
		return nil, errors.New("expected: json FILE KEY=VALUE...")
	}
	list, err := expectations(args[1:])
	if err != nil {
		return nil, err
	}
	return func() error {
		var text []byte
		if args[0] == "stdout" {
			text = []byte(ts.ReadFile("stdout"))
		} else if text, err = os.ReadFile(ts.MkAbs(args[0])); err != nil {
			return err
		}
		var document any
		if err := json.Unmarshal(text, &document); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		return checkAll(document, list)
	}, nil
}

func cmdJSON(ts *testscript.TestScript, args []string) error {
	check, err := jsonCheck(ts, args)
	if err != nil {
		return err
	}
	return check()
}

func cmdWaitJSON(ts *testscript.TestScript, args []string) error {
	check, err := jsonCheck(ts, args)
	if err != nil {
		return err
	}
	return poll(patience, check)
}

func cmdWaitStatus(ts *testscript.TestScript, args []string) error {
	list, err := expectations(args)
	if err != nil {
		return err
	}
	c := containerOf(ts)
	return poll(patience, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		status, err := c.client().Status(ctx)
		if err != nil {
			return err
		}
		document, err := toJSONTypes(status)
		if err != nil {
			return err
		}
		return checkAll(document, list)
	})
}

func cmdWaitBoot(ts *testscript.TestScript, args []string) error {
	if len(args) != 0 {
		return errors.New("waitboot takes no words")
	}
	c := containerOf(ts)
	return poll(patience, func() error {
		if !c.running() {
			return errHopeless
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		status, err := c.client().Status(ctx)
		if err == nil && status.Init.Booting {
			err = errors.New("hinit is booting")
		}
		return err
	})
}

func cmdWaitGrep(ts *testscript.TestScript, args []string) error {
	f := newFlags("waitgrep")
	count := f.Int("count", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 2 {
		return errors.New("expected: waitgrep [-count=N] PATTERN FILE")
	}
	pattern, err := regexp.Compile("(?m)" + f.Arg(0))
	if err != nil {
		return err
	}
	name := ts.MkAbs(f.Arg(1))
	c := containerOf(ts)
	return poll(patience, func() error {
		over := c.cmd != nil && !c.running() && len(c.helpers) == 0 // No remaining process could write the line.
		text, err := os.ReadFile(name)
		if err != nil && !over {
			return err
		}
		most := -1 // The count includes all processes of the container.
		if *count == 0 {
			most = 1
		}
		n := len(pattern.FindAllIndex(text, most))
		if n == 0 || *count > 0 && n != *count {
			err := fmt.Errorf("%d matches of %q in %s", n, f.Arg(0), f.Arg(1))
			if over {
				err = fmt.Errorf("%w: %w", errHopeless, err)
			}
			return err
		}
		return nil
	})
}

func cmdKill(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errors.New("expected: killgw SIG NAME...")
	}
	sig, err := signalNamed(args[0])
	if err != nil {
		return err
	}
	for _, name := range args[1:] {
		if _, err := containerOf(ts).signalMain(name, sig); err != nil {
			return err
		}
	}
	return nil
}

// signalMain signals a service's main process, and returns the service's earlier state.
func (c *container) signalMain(name string, sig unix.Signal) (client.Service, error) {
	s, err := c.service(name)
	if err != nil {
		return s, err
	}
	if s.PID == 0 {
		return s, fmt.Errorf("%s has no process, it is %s", name, s.State)
	}
	pid, err := c.hostPID(s.PID)
	if err != nil {
		return s, err
	}
	return s, unix.Kill(pid, sig)
}

func cmdKillRepeat(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errors.New("expected: killrepeat N NAME...")
	}
	times, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	c := containerOf(ts)
	for range times {
		for _, name := range args[1:] {
			before, err := c.signalMain(name, unix.SIGKILL)
			if err != nil {
				return err
			}
			err = poll(patience, func() error {
				s, err := c.service(name)
				if err == nil && (s.State != client.StateUp || s.RunNumber <= before.RunNumber || s.Restarts != before.Restarts+1) {
					err = fmt.Errorf("%s is %s, run %d, restarts %d", name, s.State, s.RunNumber, s.Restarts)
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("after run %d, restarts %d: %w", before.RunNumber, before.Restarts, err)
			}
		}
	}
	return nil
}

func (c *container) matching(pattern string) ([]string, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, p := range c.processes() {
		if p.state == 'Z' || p.state == 'X' {
			continue
		}
		if command := p.command(); re.MatchString(command) {
			list = append(list, fmt.Sprintf("%d %s", p.innerPID(), command))
		}
	}
	return list, nil
}

func cmdProc(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("expected: proc PATTERN")
	}
	found, err := containerOf(ts).matching(args[0])
	ts.Check(err)
	switch {
	case neg && len(found) > 0:
		ts.Fatalf("alive: %v", found)
	case !neg && len(found) == 0:
		ts.Fatalf("no such process among %v", containerOf(ts).commands())
	}
}

func cmdWaitProc(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("expected: waitproc PATTERN")
	}
	c := containerOf(ts)
	return poll(patience, func() error {
		found, err := c.matching(args[0])
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("no such process among %v", c.commands())
		}
		return err
	})
}

func cmdWaitUntil(ts *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errors.New("expected: waituntil WORD...")
	}
	return poll(patience, func() error { return ts.Exec(args[0], args[1:]...) })
}

func cmdProcesses(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("expected: processes N")
	}
	c := containerOf(ts)
	return poll(patience, func() error { // Ignore a helper of the test that is just ending.
		found, err := c.matching("")
		if err == nil && strconv.Itoa(len(found)) != args[0] {
			err = fmt.Errorf("%d are alive: %v", len(found), found)
		}
		return err
	})
}

func cmdNoZombies(ts *testscript.TestScript, _ []string) error {
	c := containerOf(ts)
	return poll(patience, func() error {
		n := 0
		for _, p := range c.processes() {
			if p.state == 'Z' {
				n++
			}
		}
		if n > 0 {
			return fmt.Errorf("%d zombies", n)
		}
		return nil
	})
}

// cmdCheckNumbered checks the numbered lines of the agent's flood.
func cmdCheckNumbered(ts *testscript.TestScript, args []string) error {
	if len(args) != 3 {
		return errors.New("expected: numbered FILE FIRST LAST")
	}
	first, err1 := strconv.Atoi(args[1])
	last, err2 := strconv.Atoi(args[2])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	re := regexp.MustCompile(`(?m)(?:^|\s)flood (\d{9}) x*$`)
	next := first
	for _, m := range re.FindAllStringSubmatch(ts.ReadFile(args[0]), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return err
		}
		if n != next {
			return fmt.Errorf("line %d follows line %d", n, next-1)
		}
		next++
	}
	if next != last+1 {
		return fmt.Errorf("the last line is %d, not %d", next-1, last)
	}
	return nil
}

func cmdLines(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errors.New("expected: lines FILE PATTERN...")
	}
	re, err := regexp.Compile("^(?:" + strings.Join(args[1:], "|") + ")$")
	if err != nil {
		return err
	}
	file, err := os.Open(ts.MkAbs(args[0]))
	if err != nil {
		return err
	}
	defer file.Close() // an error does not matter: the file was only read
	in := bufio.NewScanner(file)
	in.Buffer(nil, 1<<20)
	n := 0
	for in.Scan() {
		if n++; !re.Match(in.Bytes()) {
			return fmt.Errorf("%s:%d: %q matches none of the patterns", args[0], n, in.Text())
		}
	}
	if n == 0 {
		return fmt.Errorf("%s is empty", args[0])
	}
	return in.Err()
}
