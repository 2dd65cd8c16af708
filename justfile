# Everyday commands. `just` lists them; each is one line that can be typed as well.

_list:
    @just --list

# a server on SQLite at http://127.0.0.1:8321 (or what the arguments of `tailback serve` say)
run *args:
    cargo run -- serve {{ args }}

# all tests, or those whose names contain the arguments
test *args:
    scripts/test {{ args }}

# all tests so many times in a row, beside two processes that burn CPU: no test needs a quick machine
busy times="5" *args:
    scripts/busy {{ times }} {{ args }}

# what the compiler and clippy say
check:
    cargo clippy --all-targets --all-features --locked -- -D warnings

# licences, bans and sources of the dependencies; needs cargo-deny
deny:
    cargo deny check licenses bans sources

# format the code
fmt:
    cargo fmt

# write openapi/ from the code
openapi:
    mkdir -p openapi target
    cargo run -q --locked -- openapi > target/openapi.json
    mv target/openapi.json openapi/tailback.json

# the example pipeline, whose workers are killed, against a server of its own
etl *args:
    cargo build
    scripts/mongod run -- scripts/with-server --store mongodb -- examples/etl/run --url '{url}' {{ args }}

# the examples of README.md and docs/guide, each page against a server of its own
readme:
    cargo build
    scripts/readme-check

# whether a foreign web page can change or read anything; needs Chromium
browser:
    cargo build
    scripts/with-server --set 'TAILBACK_HTTP__HOSTS=[queue.internal]' -- scripts/browser-check '{url}'

# the dashboard: types, form, parts, and what it does in Chromium: just ui-check browser jobs; needs Node
ui-check *args:
    cargo build
    scripts/ui-check {{ args }}

# kill -9 a hundred times under load on each store, and look whether anything acknowledged is missing
kills rounds="100":
    TAILBACK_TEST_KILLS={{ rounds }} scripts/test --test restart kill

# random faults for so long on each store (30s, 60m, 2h), with a server of the schema before this one beside the new ones
torture time="60m":
    scripts/torture {{ time }}

# take a random walk through every call, on a model and on each store: other steps than those of the suite
model steps="20000":
    TAILBACK_MODEL_SEED=$(date +%s) TAILBACK_MODEL_STEPS={{ steps }} scripts/test -E 'binary(model)'

# let slow and greedy clients loose on the dist build: what they cost the server and the others; see bench/attack --help
attack *args:
    bench/attack {{ args }}

# place every fault at every step of every verb over MongoDB, and write the table; about an hour and a half
placed:
    TAILBACK_PLACED_EVERY=1 TAILBACK_PLACED_TABLE=docs/placed-cases.md scripts/test --test placed --no-capture

# strike each operation that SQLite makes on its file, for every verb, with every fault
disk *args:
    TAILBACK_DISK_CASES=all scripts/test --test disk --success-output final {{ args }}

# send 200,000 and more hostile cases to each of both stores, mutated requests, and random texts to every parser; a few minutes
hostile cases="200000":
    TAILBACK_HOSTILE_CASES={{ cases }} TAILBACK_HOSTILE_MUTATIONS=20000 TAILBACK_HOSTILE_PARSES=50000 scripts/test --test corpus --success-output final

# search by coverage for inputs that break a parser (bodies, config, cron, framing, names); needs cargo-fuzz and a C++ compiler
fuzz target="bodies" seconds="60":
    cargo fuzz run --sanitizer none {{ target }} -- -max_total_time={{ seconds }} -timeout=20

# test a server by the OpenAPI document with schemathesis: calls and sequences of calls
schemathesis *args:
    cargo build
    scripts/schemathesis {{ args }}

# measure the dist build on both stores, write a page of tables; see docs/performance.md for the arguments
bench *args:
    bench/run {{ args }}

# measure what operators read on a full store, compare the figures, kill an operation; see bench/operate --help
operate *args:
    bench/operate {{ args }}

# compare two builds, or a commit with this checkout, in interleaved runs: just pair --against HEAD~1
pair *args:
    bench/pair {{ args }}

# count the instructions that calls cost, of one build or two; needs valgrind: just instructions A B
instructions *args:
    bench/instructions {{ args }}

# everything that CI checks
ci:
    bash .ci/run
