# SPDX-License-Identifier: GPL-2.0
#
# make kernel-metadata makes what the headers of a distribution's kernel lack
# make                 builds the modules for the kernel in KDIR
# make install         installs them there, and rules for udev (root)
# make demo            from a bare machine to a mapped disk, in two guests
# make test            the tests
#
# All other targets: make help.

# A kernel that is installed, by its release: KERNEL=7.3.4+deb13-amd64.
KDIR ?= /lib/modules/$(or $(KERNEL),$(shell uname -r))/build
FLAVOUR ?= debug

# Out of the source tree, so that several kernels can be built for.
OUT = $(CURDIR)/build
# Absolute, as the kernel's Makefiles run elsewhere; a path with a blank, which is refused, would not stay one.
override OUT := $(if $(word 2,$(OUT)),$(OUT),$(abspath $(OUT)))
# Where `make install` puts the names of disks.
UDEV_RULES ?= /usr/lib/udev/rules.d
# The kernel to build against: KDIR, or the result of `make kernel-metadata` for it.
kdir = $(shell scripts/kernel-metadata.sh --find $(KDIR))
# Lines that use it begin with a plus: make does not see $(MAKE) in them, and would pass no jobs on.
kernel-make = $(MAKE) -C $(kdir) M=$(CURDIR) MO=$(OUT)
refuse-blanks = $(foreach path,CURDIR OUT KDIR,$(if $(word 2,$($(path))),$(error \
	$(path) is '$($(path))', and the kernel's Makefiles take no path with a blank)))

.PHONY: all
all: check-kdir
	@mkdir -p $(OUT)
	+$(kernel-make) modules

.PHONY: check-kdir
check-kdir:
	$(refuse-blanks)@scripts/check-kdir.sh $(KDIR) $(kdir)

.PHONY: kernel-metadata
kernel-metadata:
	$(refuse-blanks)@scripts/kernel-metadata.sh $(KDIR)

.PHONY: install
install:
	+$(refuse-blanks)$(kernel-make) modules_install
	install -D -m 644 tools/udev/60-ibnbd.rules $(INSTALL_MOD_PATH)$(UDEV_RULES)/60-ibnbd.rules
	depmod $(if $(INSTALL_MOD_PATH),-b $(INSTALL_MOD_PATH)) $(shell cat $(kdir)/include/config/kernel.release)

# The Debian packages.
.PHONY: deb
deb:
	$(refuse-blanks)@scripts/build-deb.sh $(OUT)

.PHONY: clean
clean:
	$(refuse-blanks)rm -rf $(OUT) rust-project.json

# The command `ibnbd`, its manual pages and completions, into build/tool.
.PHONY: tool
tool:
	$(refuse-blanks)@scripts/build-tool.sh $(OUT)/tool

# Two machines with the packages, over ssh; see Documentation/qualify.md.
REPORT ?= $(CURDIR)/build/qualify
.PHONY: qualify
qualify:
	$(foreach name,DISK ERASE,$(if $(filter environment,$(origin $(name))),$(error $(name) is in the environment: give it to make, so that no disk is written to by an oversight)))
	$(if $(and $(SERVER),$(CLIENT)),,$(error say which machines: make qualify SERVER=host CLIENT=host))@scripts/qualify.sh \
		--server "$$SERVER" --client "$$CLIENT" --disk "$$DISK" --erase "$$ERASE" --paths "$$PATHS" --only "$$ONLY" \
		--short "$$SHORT" --dry-run "$$DRY_RUN" --clean "$$CLEAN" --names "$$NAMES" --folder "$(REPORT)" --ssh "$$SSH" \
		$${SIZE_MIB:+--size-mib "$$SIZE_MIB"}

# The documentation as HTML, into build/html.
.PHONY: html
html:
	$(refuse-blanks)@scripts/html.py $(OUT)/html
	@echo "==> The first page is $(OUT)/html/index.html"

# The pictures in it, from their sources; with Graphviz.
.PHONY: pictures
pictures:
	@scripts/pictures.py

# For the cached test kernels; see scripts/build-modules.sh.
.PHONY: modules
modules:
	@scripts/build-modules.sh $(FLAVOUR)

.PHONY: clippy doc doctests rust-analyzer
clippy doc doctests rust-analyzer:
	@scripts/build-modules.sh $(FLAVOUR) $@

rust-files = $(shell git ls-files -co --exclude-standard '*.rs' | grep -vE '^(rust/proto|tools/(firewall|ibnbd|ibmsg|sim))/')
RUSTFMT ?= /usr/bin/rustfmt
rustfmt = $(RUSTFMT) --edition 2021 --config-path scripts/rustfmt.toml

.PHONY: fmt fmt-check
fmt:
	@$(rustfmt) $(rust-files)
	@cargo fmt --all
fmt-check:
	@$(rustfmt) --check $(rust-files)

# What is generated from declarations in rust/proto and tools/ibnbd: rows of the documentation and the JSON schema.
.PHONY: generated
generated:
	@scripts/generated.sh

# Of what has no kernel in it.
.PHONY: fuzz-host mutants
SECONDS_OF_FUZZING ?= 60
fuzz-host:
	@scripts/fuzz-host.sh $(SECONDS_OF_FUZZING)
mutants:
	@scripts/mutants.sh $(MUTANTS)

.PHONY: help
help:
	@echo 'Modules for a kernel that is there (KDIR=, default the running one):'
	@echo '  make, make install, make clean'
	@echo '  make tool                   the command ibnbd, in build/tool'
	@echo '  make deb                    Debian packages, in build/'
	@echo '  make html                   the documentation as HTML, in build/html'
	@echo '  make pictures               draws the pictures of the documentation again'
	@echo '  make generated              writes the rows of the documentation that follow from declarations'
	@echo '  make kernel-metadata        what the headers of a distribution lack (KERNEL=release or KDIR=)'
	@echo 'On two machines with the packages, over ssh:'
	@echo '  make qualify SERVER=host CLIENT=host    tries them, and writes a report (see Documentation/qualify.md)'
	@echo "In guests, on Debian's own kernel, which is fetched:"
	@echo '  make demo                   maps a disk and verifies it with fio'
	@echo '  make demo KERNEL=fast       on a kernel that is built; [STACK=mainline] with its own RNBD'
	@echo '  make shell                  leaves you in the client with the disk mapped; KERNEL and STACK as well'
	@echo '  make shell-server           in another terminal: a shell in the server of make shell'
	@echo 'In guests, with kernels of our own (built once and cached):'
	@echo '  make test                   all suites: host, testbed, kunit, scenarios'
	@echo '  make test-all               the same, with the scenarios that take longest'
	@echo '  make kunit                  the suites inside the modules'
	@echo '  make fuzz-host              random bytes against decoders, parsers, state machines'
	@echo '  make mutants                looks which changes of rust/proto no test finds; hours'
	@echo '  make fuzz                   hostile peers, ten minutes of them, and as long programs against /dev/ibmsg'
	@echo '  make test-kcsan             races, on a kernel that watches for them'
	@echo '  make test-modversions       versions of symbols, on a kernel that checks them'
	@echo '  make test-deb               installs and purges the packages in a fresh Debian 13'
	@echo "  make test-stock             all scenarios, on Debian's own kernel"
	@echo '  make test-programs          LVM, md, dm-crypt, PostgreSQL and others, on that kernel'
	@echo '  make soak HOURS=n           loads, failures and changes for hours'
	@echo '  make bench [KERNEL=stock]   counts instructions beside RNBD, NVMe-oF and the least that is possible'
	@echo '  make bench-messages         the same for messages between programs, beside TCP and others'
	@echo '  make bench-sessions         what 1,000 sessions take, and how they come back'
	@echo '  make bench-functions        instructions of our functions for an I/O over the card of tools/card'
	@echo '  make bench-compare BASE=c   the same beside those of another commit'
	@echo '  make ghost-writes           looks for ghost writes of ours, NVMe-oF and RNBD; hours'
	@echo '  make check-arm64            compiles the modules for 64-bit ARM, pages of 64 KiB'
	@echo '  make setup                  packages, toolchain, kernels, modules'
	@echo 'For developers (FLAVOUR=fast or debug, default debug):'
	@echo '  make modules, make clippy, make fmt, make fmt-check, make doc, make doctests, make rust-analyzer'

include scripts/testbed.mk
