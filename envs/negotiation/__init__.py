"""Bargaining over several kinds of items with a scripted opponent."""
