# kubase. `make` alone lists the targets.

GO          ?= go
BIN         := bin/kubase
VERSION_PKG := github.com/kubase/kubase/pkg/server/version
COMMIT      := $(shell git rev-parse HEAD 2>/dev/null)
DATE        := $(shell date -u +%Y-%m-%dT%H:%M:%SZ)
LDFLAGS     := -s -w -X $(VERSION_PKG).commit=$(COMMIT) -X $(VERSION_PKG).date=$(DATE)
# More flags for go test, such as -v or -count=1.
TESTFLAGS   ?=
# Flags for the benchmark, such as -stored=1000000.
BENCHFLAGS  ?=
STATICCHECK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What builds in seconds and runs with the race detector, and what links Kubernetes.
STORE   := ./migrations/... ./pkg/sqlstore/... ./pkg/etcdshim/... ./pkg/server/datastore/... ./test/postgrestest/...
SERVER  := ./cmd/... ./pkg/registry/... ./pkg/server ./pkg/server/lifecycle/... ./pkg/server/openapi/... ./pkg/server/pki/... ./pkg/server/version/...

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/kubase
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/kubase

.PHONY: run
run: build ## Run the API server on SQLite in ./.kubase; ARGS adds flags
	$(BIN) apiserver $(ARGS)

.PHONY: test
test: vet test-store test-server test-conformance test-robustness test-e2e ## Run all tests; Postgres is installed if it is missing

.PHONY: test-store
test-store: postgres ## Test the store and the etcd API, with the race detector
	$(GO) test $(TESTFLAGS) -race $(STORE) ./test/layout

.PHONY: test-server
test-server: ## Test the API server's parts
	$(GO) test $(TESTFLAGS) -timeout 20m $(SERVER)

.PHONY: test-conformance
test-conformance: postgres ## Run Kubernetes' own storage tests on both engines
	$(GO) test $(TESTFLAGS) -timeout 30m ./test/conformance/...

.PHONY: conformance
conformance: postgres ## Compare kubase with a real etcd for an hour, other random requests each time, then by fuzzing; TESTFLAGS='-seed=N'
	$(GO) test -count=1 -timeout 2h ./test/conformance -run 'TestSameAnswersAsEtcd|TestHashKV|TestSnapshot' -seed=0 -operations=200000 $(TESTFLAGS)
	$(GO) test ./test/conformance -run '^$$' -fuzz FuzzSameAnswersAsEtcd -fuzztime 10m

.PHONY: test-robustness
test-robustness: postgres ## Check what clients see while servers, Postgres, network and disk fail; TESTFLAGS='-seed=N -duration=1m'
	$(GO) test -count=1 -timeout 20m ./test/robustness $(TESTFLAGS)

.PHONY: test-e2e
test-e2e: postgres programs ## Test the program with kubectl and client-go on SQLite, Postgres and etcd
	$(GO) test $(TESTFLAGS) -timeout 30m ./test/e2e/...

# In modules of their own, because they are made of other versions of what kubase is made of. While they compile, nothing is tested yet: the tests
# need the time.
.PHONY: programs
programs: ## Compile the programs of others that test-e2e uses with kubase
	@for module in kwok metrics-server helm; do (cd test/$$module && $(GO) list -export -deps tool >/dev/null) || exit 1; done
	@for module in controller-runtime kubectl/v1.35 kubectl/v1.36; do (cd test/$$module && $(GO) list -export -deps . >/dev/null) || exit 1; done

.PHONY: bench
bench: bench-etcd bench-api ## Measure kubase beside others on this machine; BENCHFLAGS adds flags to one of the two

.PHONY: bench-etcd
bench-etcd: build postgres ## Measure the etcd API beside etcd and kine
	$(GO) run ./test/postgrestest/durable -dir test/bench $(GO) run . -kubase=../../$(BIN) $(BENCHFLAGS)

.PHONY: bench-api
bench-api: build postgres ## Measure the Kubernetes API beside kube-apiserver on etcd and on kine
	$(GO) run ./test/postgrestest/durable -dir test/bench $(GO) run ./api -kubase=../../$(BIN) $(BENCHFLAGS)

.PHONY: soak
soak: build postgres ## Write to kubase for an hour on each engine and print how large everything gets
	$(GO) run ./test/postgrestest/durable -dir test/bench $(GO) run . -kubase=../../$(BIN) -systems=kubase-sqlite,kubase-postgres -soak=1h $(BENCHFLAGS)

.PHONY: vet
vet: ## Check formatting and run go vet
	@unformatted=$$(gofmt -l cmd pkg migrations test); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	$(GO) vet ./...

.PHONY: lint
lint: vet ## Run staticcheck too; the first time it takes minutes
	$(STATICCHECK) ./...

.PHONY: postgres
postgres: ## Install Postgres for the tests if it is missing
	@test -x "$$(command -v initdb || ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | tail -n 1)" || test/install-postgres.sh

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin
