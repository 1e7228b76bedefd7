"""Tide: without options it is wavefront; each option by hand, and against a plain loop."""

from __future__ import annotations
