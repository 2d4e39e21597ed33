"""headway in other frameworks. Each module needs its own package and is imported by its name.

* :mod:`headway.interop.threadpoolctl`: ``pip install threadpoolctl``
* :mod:`headway.interop.torch`: PyTorch, ``pip install 'headway[torch]'``
"""
