"""Bridges to other packages, each imported only when asked for.

``headway.interop.torch``, ``headway.interop.transformers``, ``headway.interop.onnx``,
``headway.interop.jax`` and ``headway.interop.threadpoolctl``. Each imports its package when it is
used, those for torch and threadpoolctl when they are imported; where the package is absent, it says
so in one line.
"""
