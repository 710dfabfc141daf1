"""Engines run the kernels of udfs/ over many pieces; they know nothing of mechanisms and policies."""
