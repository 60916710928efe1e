"""Prefill, paged decode, latent and tree attention."""
