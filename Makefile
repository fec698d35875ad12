# Everything that a checkout can do. `make demo` and `make test` set up what they need by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.set-up
# Most tests wait for real processes: twice as many workers as processors, and each begins with modules of its own.
PYTEST ?= -n $(shell n=$$((2 * $$(nproc))); echo $$((n < 16 ? n : 16))) --dist worksteal

.PHONY: help setup demo lab test lint bench clean truth faults advisories

help:            ## Show this list.
	@sed -n 's/^\([a-z]*\): .*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: $(STAMP)  ## Make .venv with the agent, its tools and a small model. Quick when nothing changed.

$(STAMP): pyproject.toml scripts/setup.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup.sh

demo: $(STAMP)   ## Tune a real llama.cpp server over a private SSH server on this machine; about two minutes.
	@scripts/demo.sh $(ARGS)

lab: $(STAMP)    ## Rehearse the EAGLE-3 campaign on a simulated GPU box on this machine; about a minute.
	@$(BIN)/agent run playbooks/eagle3-tune.yaml --lab --yes $(ARGS)

test: lint       ## Linters, types, import directions, then every test.
	@$(BIN)/pytest $(PYTEST) $(ARGS)

lint: $(STAMP)   ## Linters, types and import directions only.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(STAMP)  ## Measure the agent itself.
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean:           ## Remove what was built; runs/ and .venv stay.
	@rm -rf .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	@find agent tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

faults: $(STAMP) ## Break everything that can be broken here, hundreds of times, and print the counts; half an hour.
	@$(BIN)/python -m tests.faults $(ARGS)

truth: $(STAMP)  ## Ask the real SGLang and vLLM about flags anew and compare; the first time installs 4 GB outside.
	@scripts/truth/truth.sh $(ARGS)

advisories: $(STAMP)  ## Known vulnerabilities of the installed packages; says what could not be asked about.
	@scripts/advisories.sh
