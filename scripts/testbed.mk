# SPDX-License-Identifier: GPL-2.0
#
# The targets that need guests.

# ibtrs, or mainline for the kernel's own RTRS and RNBD in its place.
STACK ?= ibtrs
# Of demo and shell: stock for Debian's own kernel, or fast for one that is built. Debian's has
# no RTRS and RNBD.
demo-kernel = $(or $(KERNEL),$(if $(filter mainline,$(STACK)),fast,stock))

.PHONY: setup demo shell test test-kcsan kunit fuzz soak bench bench-smoke check-arm64

setup:
	@scripts/setup.sh fast debug

demo:
	@scripts/demo.sh --kernel $(demo-kernel) --stack $(STACK)

shell:
	@scripts/demo.sh --kernel $(demo-kernel) --stack $(STACK) --shell

# In another terminal, as long as the one with `make shell` is open.
.PHONY: shell-server
shell-server:
	@PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tools /usr/bin/python3 -m testbed.terminal

test:
	@scripts/test.sh

# With the scenarios that `make test` and .ci/run have no time for.
.PHONY: test-all
test-all:
	@IBTRS_ALL=1 scripts/test.sh

# The Debian packages, in a fresh Debian 13 without a guest: not a part of `make test`.
.PHONY: test-deb
test-deb:
	@scripts/test-deb.sh

# Debian's own kernel: all scenarios, and those with what people run on a disk alone.
# Neither is a part of `make test`; .ci/run has the cheapest of the latter.
PROGRAMS = tools/testbed/scenarios/test_programs.py tools/testbed/scenarios/test_services.py \
	tools/testbed/scenarios/test_root_disk.py tools/testbed/scenarios/test_virtual_machine.py
.PHONY: test-stock test-programs test-programs-smoke
test-stock:
	@scripts/test-stock.sh
test-programs:
	@scripts/test-stock.sh $(PROGRAMS)
test-programs-smoke:
	@scripts/test-stock.sh -m smoke $(PROGRAMS)

# Races, on a kernel that is built for it: not a part of `make test`.
test-kcsan:
	@scripts/test-kcsan.sh

# Versions of symbols, on a kernel that is built for it: not a part of `make test` either.
.PHONY: test-modversions
test-modversions:
	@scripts/test-modversions.sh

# Everything at once, for HOURS hours; fractions are allowed.
HOURS ?= 1
soak:
	@scripts/soak.sh $(HOURS)

kunit:
	@scripts/test.sh kunit

# No guest: the compiler looks at all code for another processor.
check-arm64:
	@scripts/check-arm64.sh

# Ten minutes: a stranger and a host against the server, a server against the client; and as long: programs against
# /dev/ibmsg of one machine, whose link stays or is lost, and of two.
# IBTRS_SEED=... makes the same changes again.
fuzz:
	@scripts/setup.sh debug $(if $(IBTRS_CHECKED),,fast)
	@IBTRS_FUZZ_SECONDS=$${IBTRS_FUZZ_SECONDS:-200} scripts/pytest.sh -s -k test_fuzz \
		tools/testbed/scenarios/test_hostile_client.py tools/testbed/scenarios/test_hostile_server.py \
		tools/testbed/scenarios/test_message_fuzz.py

# ONLY= for targets with this in their name; FIGURES= for where they are left; DEVICE=card for what an I/O takes
# over the card of tools/card, without figures.
BENCH = --kernel $(or $(KERNEL),fast) --only "$(ONLY)" $(if $(DEVICE),--device $(DEVICE))
FIGURES ?= $(CURDIR)/build/bench/$(or $(KERNEL),fast)$(if $(DEVICE),-$(DEVICE))

# Figures, counts, and the report of both: half an hour and more.
bench:
	@scripts/bench.sh $(BENCH) --counts --facts --report $(FIGURES)

bench-smoke:
	@scripts/bench.sh $(BENCH) --smoke

# Messages between programs, beside TCP, SMC-R, RDS and the floor: LOADS= selects loads; ADD=1 measures what is missing;
# TRUTH= makes the truth table instead: the number of cuts of each length, or `hour'.
.PHONY: bench-messages
bench-messages:
	@scripts/bench.sh messages $(BENCH) --loads "$(LOADS)" $(if $(TRUTH),--truth $(TRUTH)) $(if $(ADD),--add) --report $(FIGURES)-messages

# Many sessions of one server: SESSIONS= is their number, KEYS=1 has them prove keys.
.PHONY: bench-sessions
bench-sessions:
	@scripts/bench.sh sessions --sessions $(or $(SESSIONS),1000) $(if $(KEYS),--keys) --report $(FIGURES)-sessions

# The figures with which each change is compared; bench-keep measures them again.
.PHONY: bench-short bench-keep bench-compare
bench-short:
	@scripts/bench.sh --short $(if $(DEVICE),--device $(DEVICE))
bench-keep:
	@scripts/bench.sh --keep $(if $(DEVICE),--device $(DEVICE))

# The instructions of each of our functions over the card, compared as by bench-short.
.PHONY: bench-functions
bench-functions:
	@scripts/bench.sh --short --device card --functions $(CURDIR)/build/bench/functions.md

# Of ours, unless ONLY= says otherwise.
bench-compare:
	@scripts/bench-compare.sh "$(BASE)" --kernel $(or $(KERNEL),fast) --only "$(or $(ONLY),ibnbd)"

# The same recipe against NVMe-oF and RNBD; some hours.
.PHONY: ghost-writes
ghost-writes:
	@scripts/ghost-writes.sh --runs $(or $(RUNS),10)
