"""Sequences larger than one machine: attention over the ranks of an MPI communicator.

Each rank holds some rows of the sequence. The functions that send messages take a communicator of
mpi4py (``pip install 'headway[mpi]'``, which brings ``mpiexec``, too); :func:`shard`,
:func:`unshard` and :func:`positions` work without it.
"""

from ._sharding import positions, shard, unshard

__all__ = ["positions", "shard", "unshard"]
