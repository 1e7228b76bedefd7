"""Diffusion decoding with the wavefront package, as a `custom_generate` of transformers."""

from wavefront.integrations.hf import call_generate


def generate(model, inputs=None, **arguments):
    """Decode with `wavefront.integrations.hf.generate`; takes what `model.generate` takes."""
    return call_generate(model, inputs, **arguments)
