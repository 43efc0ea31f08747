// Command hinit-profile NAME DIRECTORY copies the SQLite database NAME from the working directory to DIRECTORY. It uses
// SQLite's backup API, so that the copy is consistent. `hinit profile export` runs it as the owner of the database and not as
// root, because SQLite parses a file that an agent has written. The process restricts itself to the two directories. It owns no
// goroutine.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	"modernc.org/sqlite" // SQLite translated to Go, without cgo

	"hinit/internal/proc"
	"hinit/internal/proc/limits"
)

func main() {
	if filepath.Base(os.Args[0]) == proc.LimitsName {
		_, err := limits.Main(os.Args)
		fail(err)
	}
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: hinit-profile NAME DIRECTORY\n\nIt is a part of hinit profile export, which copies databases with it.")
		os.Exit(2)
	}
	// SQLite opens a database and the files next to it by name, and follows symbolic links: an agent could put a link there
	// that leads into another profile. A kernel without Landlock can't restrict this process, but then profiles are not
	// isolated either.
	err := landlock.V3.BestEffort().RestrictPaths(landlock.RWDirs(".", os.Args[2]))
	if err == nil {
		err = backupDatabase(os.Args[1], filepath.Join(os.Args[2], os.Args[1]))
	}
	if err != nil {
		fail(fmt.Errorf("cannot copy database %s: %w", os.Args[1], err))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// backupDatabase copies a database while other processes may use it. It waits up to ten seconds for a locked database.
func backupDatabase(from, to string) error {
	address := func(path, query string) string {
		path, _ = filepath.Abs(path)
		return (&url.URL{Scheme: "file", Path: path, RawQuery: query + "&_pragma=cache_size(-512)"}).String()
	}
	db, err := sql.Open("sqlite", address(from, "mode=ro&_pragma=busy_timeout(10000)"))
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(context.Background())
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(func(conn any) error {
		c, is := conn.(interface {
			NewBackup(address string) (*sqlite.Backup, error)
		})
		if !is {
			return errors.ErrUnsupported
		}
		b, err := c.NewBackup(address(to, "_pragma=synchronous(OFF)&_pragma=journal_mode(OFF)"))
		if err != nil {
			return err
		}
		_, err = b.Step(-1)
		return errors.Join(err, b.Finish())
	})
}
