#!/usr/bin/env bash
# All that must pass before a change is proposed.
# Usage: tools/check.sh [lint] [format] [types] [layers] [tests]     without a name: all of them, in this order.
# The programs come from $VENV, by default the checkout's .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin
[ -x "$bin/python" ] || { echo "tools/check.sh: no virtual environment at ${VENV:-.venv}; see CONTRIBUTING.md" >&2; exit 2; }

lint() { "$bin/ruff" check .; }
format() { "$bin/ruff" format --check .; }
types() { "$bin/python" tools/typeview.py && "$bin/mypy"; }
layers() { "$bin/python" tools/typeview.py && PYTHONPATH=build/typeview "$bin/lint-imports" --no-cache --no-logo; }
tests() { "$bin/pytest" -n 2; }

[ $# -gt 0 ] || set -- lint format types layers tests
for step in "$@"; do
    case $step in
        lint | format | types | layers | tests) ;;
        *) echo "tools/check.sh: no step called '$step'; the steps are lint, format, types, layers, tests" >&2; exit 2 ;;
    esac
    echo "== $step"
    "$step"
done
