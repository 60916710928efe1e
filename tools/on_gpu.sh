#!/usr/bin/env bash
# Measure this machine's GPU: tools/on_gpu.sh FOLDER [--dry-run] [--standalone] [--budget SECONDS]
# Needs python3 with torch and triton, numpy, click, pydantic, pyyaml and psutil (matplotlib for the picture, pytest and
# hypothesis for the kernels' tests); with torch alone it measures the libraries alone. No network, and perfmodel need
# not be installed: the checkout is used. Under 8 minutes. PYTHON names another interpreter.
# Exit codes: 0 the core was measured, 1 it was not, 2 usage, 5 no CUDA device, 130 interrupted.
set -eu
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
    echo "on_gpu: there is no $python on the PATH; set PYTHON to an interpreter that has torch" >&2
    exit 1
fi
exec "$python" "$here/on_gpu" "$@"
