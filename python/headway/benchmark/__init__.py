"""``headway bench``: a few problems, timed in turns with what else is installed.

The folder ``bench`` of the sources has the thorough one. What runs in another library's process is
imported without headway's extension; see :mod:`headway.timing`.
"""
