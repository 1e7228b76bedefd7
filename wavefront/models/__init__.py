"""The shelf of model families: one file each, found by name from a checkpoint's `model_type`."""
