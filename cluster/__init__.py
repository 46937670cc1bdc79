"""Turn DGX Sparks on a desk into one OpenAI-compatible endpoint, prove it, measure it."""

__version__ = "0.1.0"
