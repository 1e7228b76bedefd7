"""The shelf of takes: how many places a step commits, and which. File name = spec name."""
