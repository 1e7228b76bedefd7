"""Diffusion decoding by the wavefront package, as a `custom_generate` of transformers."""

from wavefront.hf.generation import prepared


def generate(model, inputs=None, **arguments):
    """What `model.generate` was given, decoded by `wavefront.hf.generate`."""
    return prepared(model, inputs, **arguments)
