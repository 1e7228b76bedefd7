"""Kernels: compiled and hand-written GPU code for the small work of a step.

This package contains the Triton kernels, their PyTorch wrappers and the compile helpers. It
imports `core` only. Start reading at `small_batch_ops`.
"""
