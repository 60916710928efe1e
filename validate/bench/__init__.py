"""Measuring this machine: cases, honest timing, ceilings, and the store of what was measured."""
