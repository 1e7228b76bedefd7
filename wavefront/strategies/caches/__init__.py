"""The shelf of caches: which places a step recomputes. File name = spec name."""
