"""Storage: everything that reads or writes disk, the Hub, git or a Ray cluster.

This package contains safetensors checkpoints, Hub access, crash-safe JSON lines, provenance, and
functions that start Ray and end worker processes. It imports `core` only. Start reading at
`checkpoint`.
"""
