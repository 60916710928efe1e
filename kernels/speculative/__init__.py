"""Verification of drafted tokens and what follows it."""
