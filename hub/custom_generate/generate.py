"""Diffusion decoding with the wavefront package, as a `custom_generate` of transformers."""

from wavefront.integrations.hf.generation import prepared


def generate(model, inputs=None, **arguments):
    """Decode the arguments of `model.generate` with `wavefront.integrations.hf.generate`."""
    return prepared(model, inputs, **arguments)
