"""Which block holds which prefix: full blocks, found by the hash of all tokens up to their end.

A block's hash covers the hash of the block before it and its own tokens; that of a sequence's first block
covers the salt instead. So equal hashes mean equal tokens from the start, and with them equal keys and
values. The hash is BLAKE2b of 256 bits (RFC 7693): nobody can make two prefixes that collide.

This module knows nothing of sequences, of who owns a block or of whether it is free.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

__all__ = ["PrefixCache", "extend_hashes"]

HASH_BYTES = 32


def extend_hashes(hashes: list[bytes], token_ids: Sequence[int], block_size: int, salt: str) -> None:
    """Append the hashes of the full blocks of ``token_ids`` beyond those that ``hashes`` has already."""
    parent = hashes[-1] if hashes else blake2b(salt.encode(), digest_size=HASH_BYTES).digest()
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        tokens = array("q", token_ids[start : start + block_size]).tobytes()
        parent = blake2b(parent + tokens, digest_size=HASH_BYTES).digest()
        hashes.append(parent)


class PrefixCache:
    """The cached blocks of one layer group, by hash. A hash has one block, a block one hash."""

    def __init__(self) -> None:
        self._block_ids: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_ids)

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds what ``block_hash`` stands for, if there is one."""
        return self._block_ids.get(block_hash)

    def add(self, block_hash: bytes, block_id: int) -> bool:
        """Note what a block holds; False, and nothing noted, where another block holds the same."""
        if block_hash in self._block_ids:
            return False
        assert block_id not in self._hashes, f"block {block_id} holds something already"
        self._block_ids[block_hash] = block_id
        self._hashes[block_id] = block_hash
        return True

    def remove(self, block_id: int) -> None:
        """Forget what a cached block holds."""
        del self._block_ids[self._hashes.pop(block_id)]

    def block_ids(self) -> list[int]:
        """All cached blocks."""
        return list(self._hashes)

    def check_integrity(self) -> None:
        """Assert that blocks and hashes are one to one."""
        assert len(self._block_ids) == len(self._hashes)
        assert all(self._block_ids[block_hash] == block for block, block_hash in self._hashes.items())
