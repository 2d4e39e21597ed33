"""How calls are timed in turns, each library in a process of its own.

``headway bench`` and the programs of the folder ``bench`` share it. It uses the standard library
alone: a process that times another library holds no headway, and so no second pool of threads.
"""
