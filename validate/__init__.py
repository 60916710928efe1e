"""Predictions against reality."""
