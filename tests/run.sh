#!/usr/bin/env bash
# Makes .venv if needed and runs the tests; arguments go to pytest. Tests marked slow run with tests/slow.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch/environment.sh"
ensure_environment test
cd "$ROOT"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Two at a time: a test of one process leaves the second core idle, and one of several ranks waits now and then.
# The limit is for a test that hangs; the longest takes half a minute where nothing else runs.
exec "$PYTHON" -m pytest -m "not slow" -n "${ATTNRES_TEST_PROCESSES:-2}" --dist worksteal --timeout 900 "$@"
