"""Norms, rotary embedding, activations, quantization and ceilings."""
