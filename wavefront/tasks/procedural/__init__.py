"""Procedural tasks: items drawn from a seed, one task per file."""
