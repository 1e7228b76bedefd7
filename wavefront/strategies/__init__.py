"""The shelf of schedules: where a step may look. One strategy per file, file name = spec name."""
