"""The moments of a start at which memory is looked at."""

from __future__ import annotations


def moment_names(*backends: str) -> dict[str, str]:
    """The moments in order, as they are called where deployments with these backends are told of."""
    return {
        "idle": "idle",
        "ray_up": "Ray up" if "ray" in backends else "started",
        "loaded": "loaded",
        "ready": "ready",
    }
