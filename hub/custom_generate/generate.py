"""Diffusion decoding by the wavefront package, as a `custom_generate` of transformers."""

from wavefront.integrations.hf.generation import prepared


def generate(model, inputs=None, **arguments):
    """What `model.generate` was given, decoded by `wavefront.integrations.hf.generate`."""
    return prepared(model, inputs, **arguments)
