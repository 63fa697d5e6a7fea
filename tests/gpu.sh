#!/usr/bin/env bash
# What only a machine with GPUs can tell, on one page: build/gpu/page.md and page.json. Under 15 minutes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch/environment.sh"
ensure_environment test
cd "$ROOT"
exec "$PYTHON" -m tests.gpu.run "$@"
