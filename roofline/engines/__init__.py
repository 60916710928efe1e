"""Engines: what vLLM, SGLang, TensorRT-LLM and llama.cpp make of a GPU's memory, by their own definitions.

>>> from perfmodel.roofline.engines import memory
>>> memory("llama3.1-8b", "h100", engine="vllm", max_model_len=8192).fits
True
"""

from perfmodel.roofline.engines.budget import memory as memory
from perfmodel.roofline.engines.inverse import largest_batch as largest_batch
from perfmodel.roofline.engines.inverse import largest_context as largest_context
from perfmodel.roofline.engines.inverse import smallest_gpu_count as smallest_gpu_count
from perfmodel.roofline.engines.llamacpp_cache import kv_cache_bytes as kv_cache_bytes
