#!/usr/bin/env bash
# Runs the tests marked slow: minutes each, the quickstart among them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch/environment.sh"
ensure_environment test
cd "$ROOT"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$PYTHON" -m pytest -m slow --timeout 1500 "$@"
