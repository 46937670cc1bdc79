"""vLLM's cache of keys and values: blocks, groups of layers that share them, and how many tokens they hold.

As `get_kv_cache_groups`, `get_kv_cache_capacity` and `max_admission_blocks_per_request` of vLLM 0.32 count
(v1/core/kv_cache_utils.py, v1/kv_cache_interface.py). Bytes and tokens of one rank.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cluster.model.layers import CacheFlags, KeptLayers

Group = tuple[KeptLayers, ...]
"""Layers that share one block table: the same tokens of each are in the same blocks."""


@dataclass(frozen=True, slots=True)
class Cache:
    """How vLLM divides its cache. `block_bytes`: what one block takes, in every layer of the widest group."""

    groups: tuple[Group, ...]
    serving: CacheFlags

    @property
    def block_bytes(self) -> int:
        return max(sum(one.layers * one.page for one in group) for group in self.groups)

    def blocks_of(self, group: Group, length: int) -> int:
        """Blocks that one request of `length` tokens takes of a group, at most."""
        first, serving = group[0], self.serving
        if first.kind == "ring":
            return 1
        if first.kind == "state":
            return serving.state_blocks
        if first.kind == "all":
            return math.ceil(math.ceil(length / serving.context_parallel) / first.block)
        settled = first.window - 1 + serving.in_flight * serving.batched_tokens
        return math.ceil(min(settled, length) / first.block) + 1

    def blocks_a_request(self, length: int) -> int:
        """Blocks of the shared pool that one request of `length` tokens takes."""
        return sum(self.blocks_of(group, length) for group in self.groups)

    def blocks(self, size: int) -> int:
        """Blocks in `size` bytes."""
        return max(0, size) // self.block_bytes

    def tokens(self, size: int, length: int) -> int:
        """The log's `GPU KV cache size`: requests of `length` tokens that fit into `size` bytes, in tokens."""
        return int(self.blocks(size) / self.blocks_a_request(length) * length)

    def tokens_by_group(self, size: int) -> int:
        """The same line before vLLM 0.24: as if each group of layers took the same blocks."""
        return self.blocks(size) // len(self.groups) * min(group[0].block for group in self.groups)

    def needed(self, length: int, requests: int = 1) -> int:
        """Bytes that `requests` of `length` tokens take, with the one block that vLLM never gives away."""
        return (self.blocks_a_request(length) * requests + 1) * self.block_bytes

    def longest(self, size: int, requests: int = 1, limit: int = 1 << 40) -> int:
        """Tokens of the longest request of which `requests` fit into `size` bytes (`max-model-len auto`); 0: none."""
        return max(0, bisect_right(range(limit + 1), size, lo=1, key=lambda length: self.needed(length, requests)) - 1)


def cache_of(kept: Sequence[KeptLayers], serving: CacheFlags) -> Cache:
    """Group the layers as vLLM does. Raises ValueError when nothing is kept, or the pages cannot be shared."""
    if not kept:
        raise ValueError("no layer keeps anything")
    kinds = {(one.kind, one.window, one.block if one.kind == "window" else 0) for one in kept}
    if len(kinds) == 1 and kept[0].kind != "state":
        return Cache((tuple(kept),), serving)
    packed = any(one.kind == "ring" for one in kept) or sum(one.kind == "all" for one in kept) > 1
    return Cache(tuple(_packed(kept) if packed else _split(_unified(kept))), serving)


def _unified(kept: Sequence[KeptLayers]) -> list[KeptLayers]:
    """Blocks of narrower layers hold more tokens, so that all pages are one size; what does not divide is padded."""
    widest = max(one.page for one in kept)

    def unified(one: KeptLayers) -> KeptLayers:
        if one.kind == "state" or widest % one.page:
            return replace(one, page=widest)
        return replace(one, page=widest, block=one.block * (widest // one.page))

    return [unified(one) for one in kept]


def _split(kept: Sequence[KeptLayers]) -> Iterable[Group]:
    """Groups of as many layers as the rarest kind has; of the commonest one where that is less than half more."""
    counts: dict[KeptLayers, int] = defaultdict(int)
    for one in kept:
        counts[replace(one, layers=0)] += one.layers
    size, most = min(counts.values()), max(counts.values())
    size = most if most < size * 1.5 else size
    for one, layers in counts.items():
        for _ in range(math.ceil(layers / size)):
            yield (replace(one, layers=size),)


def _packed(kept: Sequence[KeptLayers]) -> Iterable[Group]:
    """Pages of several sizes beside each other in one block (`_get_packed_kv_cache_groups`)."""
    buckets: dict[tuple[object, ...], list[KeptLayers]] = defaultdict(list)
    for one in kept:
        buckets[(one.kind, one.window, one.copied, one.block if one.kind != "state" else 0)].append(one)
    layers = {key: {one.layers for one in bucket} for key, bucket in buckets.items()}
    # a bucket whose pages have the same number of layers repeats as a pattern, and may be split
    repeats = {key: max(own) for key, own in layers.items() if len(own) == 1}
    floor = max((repeats[key] for key in repeats if len(buckets[key]) > 1), default=0)
    each = _least_padding(list(repeats.values()), floor) if floor else 0

    def is_state(bucket: Sequence[KeptLayers]) -> bool:
        return bucket[0].kind in ("state", "ring") or (not each and bucket[0].kind == "window")

    def groups_for(key: tuple[object, ...]) -> int:
        return math.ceil(repeats[key] / each) if key in repeats and each else 1

    anchor = 0
    for key, bucket in buckets.items():
        parts = sum(one.layers for one in bucket) if is_state(bucket) else groups_for(key)
        anchor = max(anchor, sum(math.ceil(one.layers / parts) * one.page for one in bucket))
    for key, bucket in buckets.items():
        parts = groups_for(key)
        if is_state(bucket):
            parts = max(parts, math.ceil(sum(one.layers for one in bucket) / max(anchor // bucket[0].page, 1)))
        for _ in range(parts):
            yield tuple(replace(one, layers=math.ceil(one.layers / parts)) for one in bucket)


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size from `least` on that wastes the fewest places, the largest of equals."""
    sizes = range(max(1, least), max(*counts, least) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))
