package main

import (
	"errors"
	"fmt"

	"hinit/examples/agent/internal/home"
	"hinit/examples/agent/internal/record"
)

const profileUsage = "profile create NAME | delete NAME [--yes] | rename OLD NEW | list | show [NAME] | use NAME"

func cmdProfile(c *call) int {
	if len(c.args) == 0 {
		return profileList(c)
	}
	verb, args := c.args[0], c.args[1:]
	switch {
	case verb == "create" && len(args) == 1:
		return profileCreate(c, home.Normalize(args[0]))
	case verb == "delete":
		return profileDelete(c, args)
	case verb == "rename" && len(args) == 2:
		return profileRename(c, home.Normalize(args[0]), home.Normalize(args[1]))
	case verb == "list" && len(args) == 0:
		return profileList(c)
	case verb == "show" && len(args) == 0:
		return profileShow(c, c.home.Profile)
	case verb == "show" && len(args) == 1:
		return profileShow(c, home.Normalize(args[0]))
	case verb == "use" && len(args) == 1:
		return profileUse(c, home.Normalize(args[0]))
	}
	return c.fail(exitUsage, errors.New("usage: "+profileUsage))
}

func profileCreate(c *call, name string) int {
	dir, err := c.home.Create(name)
	if err != nil {
		return c.fail(exitFailed, err)
	}
	fmt.Fprintf(c.stdout, "✓ Created profile '%s' at %s\n", name, dir)
	return exitOK
}

func profileList(c *call) int {
	names, err := c.home.List()
	if err != nil {
		return c.fail(exitFailed, err)
	}
	active := c.home.ActiveProfile()
	for _, name := range names {
		mark := " "
		if name == active {
			mark = "*"
		}
		fmt.Fprintf(c.stdout, "%s %-20s %-9s %s\n", mark, name, gatewayState(c.home.ProfileDir(name)), c.home.ProfileDir(name))
	}
	return exitOK
}

func profileShow(c *call, name string) int {
	if err := c.checkProfileExists(name); err != nil {
		return c.fail(exitFailed, err)
	}
	fmt.Fprintf(c.stdout, "profile:  %s\nhome:     %s\ngateway:  %s\n", name, c.home.ProfileDir(name), gatewayState(c.home.ProfileDir(name)))
	return exitOK
}

func profileUse(c *call, name string) int {
	if err := c.checkProfileExists(name); err != nil {
		return c.fail(exitFailed, err)
	}
	if err := c.home.SetActiveProfile(name); err != nil {
		return c.fail(exitFailed, err)
	}
	fmt.Fprintf(c.stdout, "✓ Profile '%s' is active\n", name)
	return exitOK
}

// checkProfileExists returns an error unless name is "default" or the name of a profile that has a directory.
func (c *call) checkProfileExists(name string) error {
	if name == home.DefaultProfile {
		return nil
	}
	if err := home.CheckName(name); err != nil {
		return err
	}
	if !c.home.Exists(name) {
		return &home.UnknownError{Name: name}
	}
	return nil
}

func gatewayState(dir string) string {
	if _, alive := record.RunningGateway(dir); alive {
		return "running"
	}
	return "stopped"
}
