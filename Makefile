# Every target is one command that can be pasted into a shell. GO builds everything; Docker is needed for "up" only.
ARCH    ?= $(shell go env GOARCH)
BUILD   := CGO_ENABLED=0 GOOS=linux go build -trimpath -ldflags='-s -w'
OUT     := dist/linux-$(ARCH)
RACE    ?= $(shell command -v "$$(go env CC)" >/dev/null 2>&1 && echo -race) # it needs a C compiler
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

.PHONY: help run up down build dist test test-quick lint fmt docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: build ## start the demo: hinit as PID 1 of a PID namespace, three profiles of the example agent
	exec $(OUT)/hinit demo --agent $(OUT)/example-agent

up: build $(OUT)/busybox ## the same in Docker, from docker/compose.yaml
	ARCH=$(ARCH) $(COMPOSE) -p hinit -f docker/compose.yaml up -d --build

down: ## stop what "up" started and remove its volume
	ARCH=$(ARCH) $(COMPOSE) -p hinit -f docker/compose.yaml down -v

build: ## build the static binaries into dist/
	GOARCH=$(ARCH) $(BUILD) -o $(OUT)/ ./cmd/... && GOARCH=$(ARCH) $(BUILD) -o $(OUT)/example-agent ./examples/agent

dist: ## build for amd64 and arm64
	$(MAKE) build ARCH=amd64 && $(MAKE) build ARCH=arm64

$(OUT)/busybox:
	docker/busybox $(ARCH) $@

test: ## run all tests, in PID namespaces and in Docker too
	go test $(RACE) -p 1 -timeout 9m ./... # one package at a time: several load both cores by themselves

test-quick: ## run the tests that need neither root nor Docker
	go test -short ./...

lint: ## check format, vet and lint
	tools/lint

fmt: ## format everything
	go tool -modfile=tools/go.mod gofumpt -extra -w .

docs: ## write the generated reference pages
	go run ./internal/gendocs

clean: ## remove what was built
	rm -rf dist
