"""Bridges to other packages, each imported only when asked for.

``headway.interop.torch``, ``headway.interop.transformers``, ``headway.interop.onnx`` and
``headway.interop.jax``. Each imports its package when it is used; where the package is absent, it
says so in one line.
"""
