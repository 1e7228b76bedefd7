"""Storage: everything that reads or writes disk, the Hub, git or a Ray cluster.

This package contains safetensors checkpoints, Hub access, crash-safe JSON lines and provenance. It
imports `core` only. Start reading at `checkpoint`.
"""
