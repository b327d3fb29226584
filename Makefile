# The developer's verbs. Every target begins with `setup`, which makes .venv once and again when pins change.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow test-distributed test-ray test-faults test-mutations check format \
	bench bench-decode bench-media bench-serve bench-word2vec bench-data results docs clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python recipes/demo.py

test: setup
	$(BIN)/python -m pytest -m 'not slow and not faults' --numprocesses 2

test-slow: setup
	$(BIN)/python -m pytest -m slow

# Processes on gloo: every layout of every network at 1, 2 and 4 of them, kills, hangs and signals.
test-distributed: setup
	$(BIN)/python -m pytest tests/distributed

# Prediction on a local Ray, which is 500 MB with what it needs, and so not in `setup`.
test-ray: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[ray]'
	$(BIN)/python -m pytest tests/test_ray.py

test-faults: setup
	$(BIN)/python -m pytest -m faults --numprocesses 2 tests/faults

# Breaks the code on purpose, and fails if the fast tests do not notice.
test-mutations: setup
	$(BIN)/python -m tests.mutations.run

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Options after BENCH=, as in `make bench BENCH='tiny --seconds 5 --rounds 1'`.
bench: setup .venv-peers/ready
	$(BIN)/python benchmarks/train_speed.py $(BENCH)

bench-decode: setup .venv-peers/ready
	$(BIN)/python benchmarks/decode_speed.py

# As in `make bench-serve BENCH='--parts same,overload'`.
bench-serve: setup
	$(BIN)/python benchmarks/serve_load.py $(BENCH)

# As in `make bench-word2vec BENCH='text.txt --rounds 3'`.
bench-word2vec: setup .venv-peers/ready
	$(BIN)/python benchmarks/word2vec_speed.py $(BENCH)

# Train a recipe and record its result, as in `make results RECIPE=recipes/fsdd/fsdd.toml`; then write the README's table anew.
results: setup
	$(BIN)/python benchmarks/results.py run $(RECIPE)
	$(BIN)/python benchmarks/results.py table --write

bench-data: setup
	$(BIN)/python benchmarks/data_speed.py $(BENCH)

# The sets are looked for in $$SACCADE_DATA; files of the same sizes take their place.
bench-media: setup
	$(BIN)/python benchmarks/media_speed.py $(BENCH)

# The peers ask for older packages than they need: their versions are exact, and torch is ours.
.venv-peers/ready: benchmarks/peers.txt constraints.txt
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement benchmarks/peers.txt
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps fairseq==0.12.2 \
		|| echo 'fairseq is left out: it has to be compiled, and that failed'
	@touch $@

docs: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .venv-peers runs demo site build dist
