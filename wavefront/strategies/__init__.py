"""The shelf of strategies: where a step may look. One strategy per file, file name = spec name."""
