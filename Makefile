# SPDX-License-Identifier: Apache-2.0
#
# make demo and make test are all a new machine needs: both install the Debian
# packages of test/packages.txt that are missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := build
# A library that failed a check must not be in the next build.
.DELETE_ON_ERROR:
.PHONY: FORCE help install uninstall build shim check rules quick unit again sim fuzz e2e interop unit-programs-and-fuzz bench bench-mcast census demo test soak soak-unit soak-fuzz soak-e2e soak-interop clean deps-build deps-demo deps-test deps-bench

PREFIX  ?= /usr/local
DESTDIR ?=
BINDIR  := $(DESTDIR)$(PREFIX)/bin
MANDIR  := $(DESTDIR)$(PREFIX)/share/man/man1
DOCDIR  := $(DESTDIR)$(PREFIX)/share/doc/weft
BASHDIR := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSHDIR  := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISHDIR := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
GO      ?= go
GOBUILD := CGO_ENABLED=0 $(GO) build -buildvcs=auto -trimpath
# Many tests wait: twice as many packages at a time as there are processors.
JOBS     := $(shell echo $$((2 * $$(nproc))))
RACETEST := CGO_ENABLED=1 $(GO) test -race -shuffle=on -parallel 4 -tags invariants
# Tests that start no goroutines need a fifth of the processor time without the race detector, which cannot find
# anything there; its checks of unsafe pointers stay. soak-unit runs all tests with the race detector.
PLAINTEST := CGO_ENABLED=0 $(GO) test -shuffle=on -parallel 4 -tags invariants -gcflags=weft/...=-d=checkptr
FUZZTIME ?= 10000x
SOAKCOUNT ?= 20
SOAKFUZZTIME ?= 60s
DISK    := $(or $(TMPDIR),/tmp)
SHIM_SRC := $(wildcard shim/*.c shim/*.h)
CFLAGS  ?= -O2 -g
STRIP   ?= strip
# The C library for which the libraries of programs are built: Debian 11's, or this machine's with SYSROOT=/.
SYSROOT ?=
export SYSROOT
SHIM_CFLAGS := -ffile-prefix-map=$(CURDIR)=. -std=gnu11 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -pthread

# What users run.

LIB := internal/host/shimlib/lib

build: deps-build $(LIB)/libweft-verbs.so $(LIB)/libibverbs.so.1 $(LIB)/serves
	$(GOBUILD) -o bin/weft ./cmd/weft

# weft has the libraries in it, without what only debuggers read. bin/ keeps them whole, for tests and debuggers.
$(LIB)/libweft-verbs.so: bin/libweft-verbs.so
	$(STRIP) --strip-unneeded -o $@ $<

$(LIB)/libibverbs.so.1: bin/weft-verbs/libibverbs.so.1
	$(STRIP) --strip-unneeded -o $@ $<

$(LIB)/serves: bin/libweft-verbs.so shim/replacement/symbols
	echo "glibc $$(shim/check-glibc.sh --needs $<) and later, rdma-core $$(sed -n 's/^# rdma-core: //p' $(lastword $^))" >$@

# The value of SYSROOT in the last build: libraries for another C library are built anew.
build/sysroot: FORCE
	@mkdir -p build; [ "$$(cat $@ 2>/dev/null)" = "SYSROOT=$(SYSROOT)" ] || echo "SYSROOT=$(SYSROOT)" >$@

bin/libweft-verbs.so: $(SHIM_SRC) Makefile scripts/sysroot shim/check-glibc.sh build/sysroot
	@mkdir -p bin
	sysroot=$$(scripts/sysroot); $(CC) $(CFLAGS) $(SHIM_CFLAGS) $$sysroot -shared -o $@ $(filter %.c,$^) \
	  -Wl,-z,now -Wl,-z,nodelete -Wl,-z,defs -ldl
	@shim/check-exports.sh $@
	@shim/check-glibc.sh $@

# The same in the place of libibverbs, for programs that load that by themselves.
bin/weft-verbs/libibverbs.so.1: $(SHIM_SRC) $(wildcard shim/replacement/*) Makefile scripts/sysroot shim/check-glibc.sh build/sysroot
	@mkdir -p $(@D) build
	shim/replacement/generate.sh map >build/replacement.map
	shim/replacement/generate.sh stubs >build/replacement_stubs.c
	sysroot=$$(scripts/sysroot); $(CC) $(CFLAGS) $(SHIM_CFLAGS) $$sysroot -DWEFT_REPLACEMENT -shared -o $@ \
	  $(filter %.c,$^) build/replacement_stubs.c \
	  -Wl,-soname,libibverbs.so.1 -Wl,--version-script,build/replacement.map -Wl,-z,now -Wl,-z,nodelete -Wl,-z,defs -ldl
	@ln -sf libibverbs.so.1 $(@D)/libibverbs.so
	@shim/replacement/generate.sh check $@
	@shim/check-glibc.sh $@

demo: deps-demo build
	@scripts/demo

help:
	@echo "make            bin/weft, with the libraries that programs load in it"
	@echo "make install    install it with man pages and completions: PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)"
	@echo "make uninstall  remove what make install installed"
	@echo "make deb rpm    packages for Debian and for distributions with rpm, in build/"
	@echo "make demo       programs on nodes, with real traffic and measured rows"
	@echo "make test       all tests, as CI runs them: check, unit, sim, fuzz, e2e, interop"
	@echo "make quick      in minutes, for a laptop: without root, QEMU and the race detector"
	@echo "make check      format, vet, staticcheck and the rules of the tree, in seconds"
	@echo "make unit       unit tests, those with goroutines under the race detector"
	@echo "make sim        a fabric of nodes in memory"
	@echo "make fuzz       every fuzz target (FUZZTIME=$(FUZZTIME))"
	@echo "make e2e        programs of Debian on one node and between nodes; needs root"
	@echo "make interop    a Linux guest with soft-RoCE as the peer; needs root"
	@echo "make bench      the measurements of docs/performance.md"
	@echo "make soak       long campaigns, in hours"
	@echo "make census     sizes of types and files, and words of the prose"
	@echo "make clean      remove bin and build"

install: build
	install -d $(BINDIR) $(MANDIR) $(DOCDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR)
	install -m 755 bin/weft $(BINDIR)/weft
	install -m 644 docs/weft.yaml $(DOCDIR)/weft.yaml
	bin/weft docs man $(MANDIR)
	bin/weft completion bash >$(BASHDIR)/weft
	bin/weft completion zsh >$(ZSHDIR)/_weft
	bin/weft completion fish >$(FISHDIR)/weft.fish

uninstall:
	rm -f $(BINDIR)/weft $(MANDIR)/weft.1 $(MANDIR)/weft-*.1 $(BASHDIR)/weft $(ZSHDIR)/_weft $(FISHDIR)/weft.fish
	rm -rf $(DOCDIR)

# What CI runs: every part, the fast ones first.

# Programs mostly wait: those of e2e and of interop run at the same time, in namespaces of their own. The fuzzers get
# the processor that all others leave idle. Where e2e fails, interop goes on: its end removes its guests and namespaces.

test: check unit-programs-and-fuzz

unit-programs-and-fuzz: deps-test build
	@mkdir -p build; set -m; nice -n 19 $(MAKE) --no-print-directory fuzz >build/fuzz.log 2>&1 & fuzz=$$!; interop=$$fuzz; \
	trap 'kill -- -$$fuzz 2>/dev/null || true' EXIT; \
	trap 'kill -- -$$interop 2>/dev/null || true; exit 1' INT TERM; \
	$(MAKE) --no-print-directory unit; \
	$(MAKE) --no-print-directory sim; \
	$(MAKE) --no-print-directory interop >build/interop.log 2>&1 & interop=$$!; \
	failed=0; $(MAKE) --no-print-directory e2e || failed=1; \
	wait $$interop || failed=1; cat build/interop.log; \
	[ $$failed = 0 ] || exit 1; \
	wait $$fuzz || { cat build/fuzz.log; exit 1; }; cat build/fuzz.log

check: rules
	$(GO) mod tidy -diff
	$(GO) tool staticcheck ./...

# What check and quick have in common.
rules: deps-build
	@out=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "not formatted: $$out"; echo "fix: gofmt -w $$out"; exit 1; }
	$(GO) vet ./...
	$(GO) test ./test/arch/...

# What an ordinary user of a laptop runs after a change: no race detector, no root, no guests. The packages that it
# leaves to make unit, and staticcheck, take long.
QUICKLESS := $(addprefix weft/internal/,node mgmt/manager mgmt/store/etcd)

quick: deps-demo build rules
	CGO_ENABLED=0 $(GO) test -short -p $(JOBS) -parallel 4 -tags invariants \
	  $$($(GO) list ./internal/... ./cmd/... ./test/simfab/... | grep -vxF "$$(printf '%s\n' $(QUICKLESS))")
	@scripts/demo

# Tests of nodes make their directories where nodes have theirs in use, in memory;
# what the go command builds does not belong there.
quick unit fuzz e2e soak-unit soak-fuzz soak-e2e: export GOTMPDIR ?= $(DISK)
quick unit fuzz e2e soak-unit soak-fuzz soak-e2e: export TMPDIR := $(shell scripts/tmpdir)

# The library's tests get the processor that the others leave idle, before the fuzzers. Packages without goroutines run
# one at a time beside the others.
unit: deps-build
	@mkdir -p build; $(GO) run ./test/arch/cmd/goroutines ./internal/... ./cmd/... >build/packages; \
	{ read -r with; read -r without; } <build/packages; \
	set -m; nice -n 10 shim/test/run.sh >build/shim.log 2>&1 & shim=$$!; \
	$(PLAINTEST) -p 1 $$without >build/plain.log 2>&1 & plain=$$!; \
	trap 'kill -- -$$shim -$$plain 2>/dev/null || true' EXIT; \
	failed=0; $(RACETEST) -p $$(($(JOBS) - 1)) $$with || failed=1; \
	wait $$plain || failed=1; cat build/plain.log; [ $$failed = 0 ] || exit 1; \
	wait $$shim || { cat build/shim.log; exit 1; }; cat build/shim.log

# One test many times: make again RUN=TestKills PKG=./test/e2e COUNT=20 LOAD=4, RACE=1 for the race detector.
COUNT ?= 100
LOAD  ?= 0
again: build
	@scripts/again -n $(COUNT) -l $(LOAD) $(if $(RACE),-r) "$(RUN)" "$(PKG)"

sim:
	$(PLAINTEST) -count=1 -p $(JOBS) ./test/simfab/...

fuzz:
	@scripts/fuzz $(FUZZTIME)

e2e: deps-test build
	$(GO) test -count=1 -parallel 4 -timeout 60m ./test/lab ./test/userland ./test/e2e/...

interop: deps-test build
	$(GO) test -count=1 -timeout 60m ./test/interop/...

# What is measured, and what takes long.

census:
	@$(GO) run ./test/arch/cmd/census

bench: deps-bench build
	@bench/run

bench-mcast: build
	@bench/mcast/run

# Each part also runs alone. soak runs all parts, even after one failed, and prints a line for each.
soak:
	@failed=; for part in unit fuzz e2e interop; do \
	  SECONDS=0; $(MAKE) --no-print-directory soak-$$part && how=ok || how=FAILED failed="$$failed soak-$$part"; \
	  lines+=("$$(printf 'soak-%-8s %-7s %4d min' $$part $$how $$((SECONDS / 60)))"); done; \
	printf '%s\n' "$${lines[@]}"; [ -z "$$failed" ] || { echo "soak:$$failed failed. fix: make$$failed"; exit 1; }

soak-unit: deps-build
	WEFT_SOAK=1 $(RACETEST) -p $(JOBS) -count=$(SOAKCOUNT) -timeout 2h ./internal/... ./test/simfab/...

soak-fuzz: deps-build
	@scripts/fuzz $(SOAKFUZZTIME)

soak-e2e: deps-test build
	WEFT_SOAK=1 $(GO) test -count=1 -parallel 4 -timeout 4h ./test/lab ./test/userland ./test/e2e/...

soak-interop: deps-test build
	WEFT_SOAK=1 $(GO) test -count=1 -timeout 4h ./test/interop/...

deps-build deps-demo deps-test deps-bench: deps-%:
	@scripts/deps $*

clean:
	rm -rf bin build $(LIB)/*.so* $(LIB)/serves

# Packages: make deb rpm.

include packaging/package.mk
