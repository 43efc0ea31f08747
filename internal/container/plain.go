package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/tuning"
)

// hereConfig is the file that hinit run reads when no other one is named.
const hereConfig = "hinit.yaml"

// Plain is the init that supervises the services of a file and nothing else, "" for the usual places. It blocks until they are
// stopped, and returns the exit code of the process.
func Plain(file string) int {
	sig, made, code, over := beginInit(nil)
	if over {
		return code
	}
	normalGC := tuning.RelaxGC()
	file, err := plainFile(file)
	if err != nil {
		return refuse(exitUsage, err)
	}
	cfg, err := loadConfig(config.Options{Path: file, Plain: true, Env: os.LookupEnv})
	if err != nil {
		return refuse(exitUsage, err)
	}
	if len(cfg.Services) == 0 {
		return refuse(exitUsage, config.NoServices(cfg.Path))
	}
	c, err := newContainer(cfg, boot.Caller(), nil, boot.Route{Plain: true}, sig)
	if err != nil {
		return refuse(exitFailed, err)
	}
	return c.life(func(ctx context.Context) {
		defer normalGC()
		c.bootUp(ctx, made)
	})
}

// plainFile is the path of the configuration of a plain supervisor, absolute where a reload would look for it elsewhere.
func plainFile(named string) (file string, err error) {
	switch {
	case named != "":
		file = named
	case os.Getenv("HINIT_CONFIG") != "":
		file = os.Getenv("HINIT_CONFIG")
	default:
		file = hereConfig
		look(func() { _, err = os.Stat(file) })
		if errors.Is(err, os.ErrNotExist) {
			file = config.DefaultPath
			look(func() { _, err = os.Stat(file) })
		}
		if errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("cannot run the services: there is no %s here and no %s; name a file: hinit run -c FILE", hereConfig, config.DefaultPath)
		}
	}
	return filepath.Abs(file)
}
