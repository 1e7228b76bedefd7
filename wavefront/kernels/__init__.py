"""Kernels: compiled and hand-written code for the products and the small work of a step.

This package contains the Triton kernels, their PyTorch wrappers, the products on a CPU, and the
compile helpers. It imports `core` only. Start reading at `small_batch_ops`.
"""
