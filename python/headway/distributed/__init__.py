"""Sequences larger than one machine: attention over the ranks of an MPI communicator.

Each rank holds some rows of the sequence. The functions that send messages take a communicator of
mpi4py (``pip install 'headway[mpi]'``, which brings ``mpiexec``, too); :func:`shard`,
:func:`unshard`, :func:`positions`, :func:`ring_traffic` and :func:`plan` work without it.
"""

from ._collecting import gather, scatter
from ._counting import CountingComm
from ._plan import Traffic, ring_traffic
from ._plan_record import RingPlan
from ._planning import plan
from ._record import RingStep
from ._ring import ring_attention
from ._ring_backward import ring_attention_backward
from ._sharded_cache import ShardedKVCache
from ._sharding import positions, shard, unshard

__all__ = [
    "CountingComm",
    "RingPlan",
    "RingStep",
    "ShardedKVCache",
    "Traffic",
    "gather",
    "plan",
    "positions",
    "ring_attention",
    "ring_attention_backward",
    "ring_traffic",
    "scatter",
    "shard",
    "unshard",
]
