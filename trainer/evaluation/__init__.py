"""Evaluation: playing suites, the statistics of what came of it, and the ways to look at it."""
