# SPDX-License-Identifier: Apache-2.0
#
# Packages for Debian and for distributions with rpm, in build/. Two builds of one commit write the same octets: all
# times are those of the commit, or SOURCE_DATE_EPOCH.

.PHONY: deb rpm

PACKAGE_VERSION ?= $(shell packaging/version)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
NFPM := build/tools/nfpm

build/tools/%: packaging/tools/go.mod packaging/tools/go.sum
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -C packaging/tools -trimpath -o $(CURDIR)/$@ $$(sed -n 's,^\t\(.*/cmd/$*\)$$,\1,p' packaging/tools/go.mod)

deb rpm: build $(NFPM)
	@packaging/stage $@ $(CURDIR)/build/package '$(PACKAGE_VERSION)' $(SOURCE_DATE_EPOCH)
	@PACKAGE_VERSION='$(PACKAGE_VERSION)' SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
	  $(NFPM) package --config packaging/nfpm.yaml --packager $@ --target build/
