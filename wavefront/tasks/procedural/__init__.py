"""Procedural tasks: items generated from a seed, one task per file."""
