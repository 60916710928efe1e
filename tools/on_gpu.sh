#!/usr/bin/env bash
# Measure this machine's GPU: tools/on_gpu.sh FOLDER [--dry-run] [--budget SECONDS]
# Needs python3 with torch (triton is used if present), no network and no installed perfmodel. Takes under 4 minutes.
# PYTHON names another interpreter. Exit codes: 0 the core cases ran, 1 some did not, 2 usage, 5 no CUDA device.
set -eu
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
    echo "on_gpu: there is no $python on the PATH; set PYTHON to an interpreter that has torch" >&2
    exit 1
fi
exec "$python" "$here/on_gpu" "$@"
