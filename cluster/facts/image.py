"""An image on a host, from `docker image inspect`, with an id of its content that all image stores agree on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """One image. `id` is the store's own (differs between stores), `content_id` (hex SHA-256) does not;
    `architecture` is Go's word (`arm64`), `size_bytes` what this store counts."""

    reference: str
    id: str
    content_id: str
    architecture: str
    size_bytes: int
