"""Measure a GPU from a checkout that is not installed; run by ``tools/on_gpu.sh``. See ``app`` and ``stages``.

With the package's few dependencies, `perfmodel validate` does the work; where they are missing, stand-alone cases that
need nothing but torch measure the libraries alone.
"""
