# Every target is one command that can be pasted into a shell. Go builds everything; Docker is needed for "up" only.
# Programs, tests and linters are built in one way, so that each dependency is compiled once. The race detector alone needs another.
export CGO_ENABLED = 0
# Without debug information, the compiler takes an eighth less time. The programs lose it at the end anyway (SMALL).
export GOFLAGS     := $(shell go env GOFLAGS 2>/dev/null) -trimpath -gcflags=all=-dwarf=false
# The race detector has each test binary sleep for a second at its end.
export GORACE  := atexit_sleep_ms=0
ARCH    ?= $(shell go env GOARCH)
BUILD   := GOOS=linux go build
SMALL   := -ldflags='-s -w'
ENTRY   := -ldflags='-s -w $(if $(filter amd64 arm64,$(ARCH)),-E hinit_entry)' # the program begins in internal/entry on processors for which that has assembly
OUT     := dist/linux-$(ARCH)
RACE    ?= $(shell command -v "$$(go env CC)" >/dev/null 2>&1 && echo -race) # the race detector needs a C compiler
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
# The compiler takes more memory and a quarter less time if it collects no garbage below a gigabyte.
test test-kubernetes lint: export GOFLAGS += '-toolexec=env GOGC=off GOMEMLIMIT=1GiB'
# These flags set the measurement of the log path. BENCH may hold more flags, such as BENCH='-only M1,M2 -peers hinit,s6 -runs 3'.
LOGBENCH ?= -lines 1000000 -rounds 3 -services 0

.PHONY: help run up hermes down build need-go need-docker dist test test-kubernetes failovers chaos-kubernetes chaos-fleet build-kubernetes build-cluster test-kernel test-quick chaos promises promises-write fuzz bench bench-quick bench-image bench-peers bench-docs lint fmt docs site man clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: build ## start the demo: hinit as PID 1 of a PID namespace, three profiles of the example agent; on a terminal with its screen
	exec $(OUT)/hinit demo --agent $(OUT)/example-agent

up: need-docker build $(OUT)/busybox ## the same in Docker, from docker/compose.yaml
	ARCH=$(ARCH) $(COMPOSE) -p hinit -f docker/compose.yaml up -d --build

hermes: need-docker ## make the image hermes-hinit: AGENT_IMAGE (nousresearch/hermes-agent:TAG) with hinit in the place of s6-overlay
	@[ -n "$(AGENT_IMAGE)" ] || { echo "make: AGENT_IMAGE names no image: make hermes AGENT_IMAGE=nousresearch/hermes-agent:TAG" >&2; exit 1; }
	$(MAKE) build $(OUT)/busybox
	docker build -f docker/Dockerfile --target hermes -t hermes-hinit --build-arg ARCH=$(ARCH) --build-arg AGENT_IMAGE=$(AGENT_IMAGE) .

down: ## stop what "up" started and remove its volume
	ARCH=$(ARCH) $(COMPOSE) -p hinit -f docker/compose.yaml down -v

build: need-go ## build the static binaries into dist/
	GOARCH=$(ARCH) $(BUILD) $(ENTRY) -o $(OUT)/ ./cmd/hinit
	GOARCH=$(ARCH) $(BUILD) $(subst _entry,_tools,$(ENTRY)) -o $(OUT)/ ./cmd/hinit-tools
	GOARCH=$(ARCH) $(BUILD) $(SMALL) -o $(OUT)/ ./cmd/hinit-shim
	GOARCH=$(ARCH) $(BUILD) $(SMALL) -o $(OUT)/ ./cmd/hinit-kanban ./cmd/hinit-web ./cmd/hinit-top ./cmd/hinit-actions ./cmd/hinit-import ./cmd/hinit-profile
	GOARCH=$(ARCH) $(BUILD) $(subst _entry,_isolate,$(ENTRY)) -o $(OUT)/ ./cmd/hinit-isolate
	GOARCH=$(ARCH) $(BUILD) $(SMALL) -o $(OUT)/ ./cmd/hinit-sandbox ./cmd/hinit-sandbox-helper
	GOARCH=$(ARCH) $(BUILD) $(SMALL) -o $(OUT)/example-agent ./examples/agent

need-go:
	@command -v go >/dev/null || { echo "make: hinit is built with Go, and there is none here: install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }

need-docker: need-go
	@command -v docker >/dev/null || { echo "make: there is no docker command here: install Docker (https://docs.docker.com/engine/install), or run: make run" >&2; exit 1; }
	@docker version >/dev/null 2>&1 || { echo "make: no Docker engine answers: start it, or ask with: docker version" >&2; exit 1; }
	@$(COMPOSE) version >/dev/null 2>&1 || { echo "make: there is neither docker compose nor docker-compose: install one of them" >&2; exit 1; }

dist: ## build for amd64 and arm64
	$(MAKE) build ARCH=amd64 && $(MAKE) build ARCH=arm64

$(OUT)/busybox:
	docker/busybox $(ARCH) $@

$(OUT)/bash:
	docker/bash $(ARCH) $@

test: ## run all tests, in PID namespaces and in Docker too, and say how many passed, were skipped (and why) and failed
	@# Elsewhere the tests that need these programs are skipped. The compiler runs beside the installation, and later finds what it made.
	@[ "$(CI)" != true ] || test/install-tools env CGO_ENABLED=1 go build $(RACE) $$(tools/raced)
	@# The longest tests come first. The tests of the second row mostly wait: they run the finished binaries. With more of the first row
	@# at a time, time limits pass on a machine on which the start of a process takes 20 ms. The tests that need the build with faults
	@# come last, because they compile the same packages as the first row. go vet is off, because make lint runs all of it.
	@go run ./test/summary -again 10 -programs -- \
	  "$(RACE) -vet=off -p 3 -timeout 30m ./internal/volume ./logrotate ./internal/web ./sandbox ./internal/control ./internal/probe ./profiles ./internal/lease ./internal/fsutil ./internal/proc ./internal/forward $$(tools/raced | tr '\n' ' ')" \
	  beside \
	  "-vet=off -p 4 -timeout 45m ./test/tenants ./test/e2e ./profiles/archive ./test/script ./test/sandbox ./test/promises ./kanban ./test/s6 ./test/kanban $$(tools/raced -not | tr '\n' ' ')" \
	  "$(RACE) -vet=off -p 2 -timeout 30m -tags faults -run Rules|CallsFail|HalfALine ./internal/faultinject ./logrotate"

# With CLUSTER=no it only checks the manifests, with CLUSTER=short it tries each requirement once on the cluster.
test-kubernetes: need-go ## check the manifests, then run hinit's pods on a real cluster of two nodes, which the first run builds in 9 minutes
	@[ "$(CI)" != true ] || [ "$(CLUSTER)" = no ] || kubernetes/test/install-tools || echo "without these packages there are no nodes, only an API server"
	cd kubernetes && go vet ./...
	cd kubernetes && for v in 1.35 1.36; do go test -modfile=versions/$$v.mod ./internal/strict || exit 1; done
	[ -n "$(CLUSTER)" ] || $(MAKE) $(OUT)/bash || echo "without bash, the test of the agent's terminal tool is skipped"
	[ "$(CLUSTER)" != no ] || { cd kubernetes && go test $$(go list ./... | grep -v /test); }
	@# The tests on the cluster mostly wait, so the others run beside them.
	[ "$(CLUSTER)" = no ] || { $(MAKE) build build-kubernetes $(OUT)/busybox && go build -o dist/summary ./test/summary && cd kubernetes && bin=$$(go run ./internal/cluster/build $(SHORT)) && \
	  PATH="$$bin:$$PATH" ../dist/summary -again 3 -- "$(SHORT) -vet=off -count=1 -timeout 30m -p 3 ./test ./test/failover ./test/fleet $$(go list ./... | grep -v /test | tr '\n' ' ')"; }

SHORT = $(if $(filter short,$(CLUSTER)),-short)
build-cluster: need-go ## build the programs of the cluster into the cache
	cd kubernetes && go run ./internal/cluster/build $(SHORT)

FAILOVERS ?= 1000
failovers: build build-kubernetes $(OUT)/busybox ## have pairs of hinit fail over FAILOVERS (1000) times on a Lease of a real API server, as root, and look every 10 ms whether two serve
	cd kubernetes && go run ./internal/cluster/build && go test -count=1 -timeout 3h -v ./test/failover -step-clock -failovers $(FAILOVERS) -pairs 8

SPAN ?= 30m
chaos-kubernetes: build build-kubernetes $(OUT)/busybox ## end what sandboxes on a real cluster need for SPAN (30m), as root, and account for each command
	cd kubernetes && go run ./internal/cluster/build && go test -count=1 -timeout 2h -v -run TestEveryCommandIsAccountedFor ./test -span $(SPAN)

chaos-fleet: need-go ## kill, suspend and cut off the programs of a fleet for SPAN (30m), step their clocks, as root, and see that no profile runs twice and none is lost
	cd kubernetes && go run ./internal/cluster/build -short && go test -count=1 -timeout 3h -v -run 'TestChaos' ./test/fleet -span $(SPAN) -step-clock

build-kubernetes: need-go ## build what only pods need into dist/: hinit-lease-kubernetes, hinit-sandbox-kubernetes and hinit-fleet
	cd kubernetes && GOARCH=$(ARCH) $(BUILD) $(SMALL) -o ../$(OUT)/ ./cmd/...

VM ?= qemu
test-kernel: need-go ## as root, run on a kernel with control groups of version 2, PSI, Landlock and project quotas what needs them: some minutes, half an hour without KVM; VM=uml takes user-mode Linux
	tools/in-$(VM) ./internal/proc 'Cgroup|Container|ForkBomb|KernelSays|Hides' ./internal/entry ControlGroup ./internal/volume Quota ./internal/tuning . \
	  ./test/cgroups . ./test/tenants 'LeastImportant|NoTenantReachesAnother'

test-quick: ## run the tests that need neither root nor Docker
	go test -short ./...

STORM ?= 30m
chaos: ## do at random what can be done to a container for three minutes, and compare it with a model; then take all resources as a tenant, account for the lines of gateways that are killed, look for races in the board, kill exports and imports of profiles, try a thousand schedules of the lease, and storm the sandboxes and the task board for STORM (30m) each
	go test ./test/promises -count=1 -timeout 9m -v -run TestChaos -args -span 3m
	go test ./test/tenants -count=1 -timeout 30m -v -run TestNoTenantStarvesAnother -args -machine
	CGO_ENABLED=1 go test $(RACE) ./logrotate -count=1 -timeout 9m -run TestEveryLineIsAccountedFor -args -full
	CGO_ENABLED=1 go test $(RACE) ./kanban/... -count=1 -timeout 30m
	CGO_ENABLED=1 go test $(RACE) ./profiles/archive -count=1 -timeout 30m -args -kills 100 -each-byte
	go test ./internal/lease -count=1 -timeout 9m -run TestOneServes -args -schedules 1000
	go test ./test/sandbox -count=1 -timeout 75m -v -run 'TestStorm|TestMountRace' -args -span $(STORM) -rounds 50
	go test ./test/kanban -count=1 -timeout 75m -v -run 'TestReclaimStorm|TestThreeProfiles' -args -span $(STORM) -full

promises: ## try everything that docs/reference/promises.md says, for a quarter of an hour, and print that table
	go test ./test/promises -count=1 -timeout 60m -args -full

promises-write: ## the same, and write the table into the page
	go test ./test/promises -count=1 -timeout 60m -args -full -write

FUZZTIME ?= 30s
fuzz: ## run every fuzz target for FUZZTIME
	tools/fuzz $(FUZZTIME)

bench: build ## compare with other inits and supervisors, as root: 9 minutes; writes docs/reference/benchmarks.*
	go run ./test/bench/log -hinit $(OUT)/hinit $(LOGBENCH) -json dist/bench-log.json
	go run ./test/bench/compare -hinit $(OUT)/hinit -shim $(OUT)/hinit-shim -log dist/bench-log.json -json docs/reference/benchmarks.json -write-docs docs/reference $(BENCH)

bench-quick: build ## the same with small numbers, to see that it works: a minute
	go run ./test/bench/compare -hinit $(OUT)/hinit -shim $(OUT)/hinit-shim -quick -runs 1 $(BENCH)

bench-image: need-docker build $(OUT)/busybox ## the boot of an image beside the engine alone, and twelve gateways beside one, in turns: 6 minutes on a quiet machine; IMAGE=... takes another image than the stand-in
	@[ -n "$(IMAGE)" ] || test/bench/image/stand-in $(ARCH)
	go run ./test/bench/image -image $(or $(IMAGE),hinit-bench-image) $(BENCH)

bench-docs: ## write the page again from the figures of the last bench
	go run ./test/bench/compare -from docs/reference/benchmarks.json -write-docs docs/reference

bench-peers: ## install what it is compared with, from Debian's packages
	test/bench/install-peers

lint: ## check format, vet, lint, and the prose of pages and comments (vale)
	tools/lint

fmt: ## format everything
	go tool -modfile=tools/go.mod gofumpt -extra -w .

docs: ## write the generated reference pages
	go run ./internal/gendocs

site: need-go ## build the pages of docs/ as a site in dist/site; a dead link fails
	cd tools && go run ./site -root .. -out ../dist/site

man: need-go ## write the manual pages into dist/man
	go run ./cmd/hinit man -o dist/man

clean: ## remove what was built
	rm -rf dist
