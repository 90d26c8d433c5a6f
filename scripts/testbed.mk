# SPDX-License-Identifier: GPL-2.0
#
# The targets that need guests.

# ibtrs, or mainline for the kernel's own RTRS and RNBD in its place.
STACK ?= ibtrs

.PHONY: setup demo shell test kunit bench bench-smoke

setup:
	@scripts/setup.sh fast debug

demo:
	@scripts/demo.sh --stack $(STACK)

shell:
	@scripts/demo.sh --stack $(STACK) --shell

test:
	@scripts/test.sh

kunit:
	@scripts/test.sh kunit

bench:
	@scripts/bench.sh

bench-smoke:
	@scripts/bench.sh --smoke
