"""Which shards of a rank run on this machine, and where all of them meet. Derived from the options once.

This module knows no process and no torch.
"""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass
from typing import Any

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.runtime.shard_place import ShardPlace

__all__ = ["ShardLaunch"]

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLaunch:
    """Shards ``first`` to ``first + num_local - 1`` of ``count`` run here; shard 0 listens at ``host``.

    ``port`` 0 is any free one, where all shards are on this machine. Time-outs: see
    :class:`~triolet.runtime.shard_place.ShardPlace`.
    """

    count: int
    first: int
    num_local: int
    host: str
    port: int
    join_timeout: float
    step_timeout: float
    liveness_timeout: float

    @classmethod
    def of(cls, args: EngineArgs, rank: int) -> ShardLaunch | None:
        """That of one of the ranks here; None where a rank is not cut into shards.

        One over several machines meets at the master address, which is that of the first of its machines.
        """
        shape = args.launch_shape()
        if shape.tensor_parallel_size == 1:
            return None
        num_local = shape.tensor_parallel_size // shape.num_nodes_per_rank
        is_local = shape.num_nodes_per_rank == 1
        return cls(
            count=shape.tensor_parallel_size,
            first=shape.node_rank_in_rank * num_local,
            num_local=num_local,
            host=LOOPBACK if is_local else args.master_addr,
            port=0 if is_local else args.master_port + rank,
            join_timeout=args.cluster_join_timeout,
            step_timeout=args.engine_stall_timeout,
            liveness_timeout=args.liveness_timeout,
        )

    def plain(self) -> dict[str, Any]:
        """As it is sent; its keywords again at the other end."""
        return asdict(self)

    def place(self, index: int, port: int, listener: int | None = None) -> ShardPlace:
        """That of shard ``index``."""
        return ShardPlace(
            index=index,
            count=self.count,
            host=self.host,
            port=port,
            join_timeout=self.join_timeout,
            step_timeout=self.step_timeout,
            liveness_timeout=self.liveness_timeout,
            listener=listener,
        )

    def listen(self) -> socket.socket:
        """What shard 0 listens on. Raises UsageError where that cannot be."""
        try:
            return socket.create_server((self.host, self.port))
        except OSError as error:
            raise UsageError(
                f"tensor parallel shards cannot meet at {self.host}:{self.port}: {error.strerror or error}; "
                "--master-addr must be an address of this machine, the first of its rank, and --master-port "
                "free on it",
                param="master_addr",
            ) from error
