"""Serving simulation and planning."""
