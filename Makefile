# Everything a developer does, one verb each. CI uses the same verbs (.ci/run).
.DEFAULT_GOAL := help
.PHONY: help build run test race lint fuzz bench e2e image

GO      ?= go
PKG     ?= ./...
TOOL    := $(GO) tool -modfile=tools/go.mod
IMAGE   ?= multipooler:dev
export TARGET

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the static binary bin/multipooler
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/multipooler

run: build ## multipooler before a private PostgreSQL, or before TARGET=postgres://...; Ctrl-C ends both
	@$(GO) build -o bin/ ./scripts/devrun
	@exec bin/devrun

test: ## go vet and all tests, end to end included; installs what they need
	scripts/deps.sh postgres e2e
	$(GO) vet ./...
	$(GO) test -timeout 15m $(PKG)

race: ## the tests under the race detector, long ones shortened
	scripts/deps.sh postgres e2e cc
	CGO_ENABLED=1 $(GO) test -race -short -timeout 15m $(PKG)

lint: ## golangci-lint with the formatters, go.mod is tidy; FIX=1 repairs
	$(if $(FIX),$(TOOL) golangci-lint fmt)
	$(TOOL) golangci-lint run $(if $(FIX),--fix)
	$(GO) mod tidy $(if $(FIX),,-diff)

fuzz: ## every fuzz target for FUZZTIME (10s) each
	scripts/fuzz.sh

bench: ## side by side with direct PostgreSQL and PgBouncer
	scripts/deps.sh postgres bench
	$(GO) run ./bench $(BENCH)

e2e: ## only the tests against a real PostgreSQL
	scripts/deps.sh postgres e2e
	$(GO) test -timeout 15m ./test/... ./scripts/...

image: ## the container image IMAGE (multipooler:dev)
	docker build -t $(IMAGE) .
