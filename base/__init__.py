"""The ground floor: units, errors and text, used everywhere; imports nothing of ours."""
