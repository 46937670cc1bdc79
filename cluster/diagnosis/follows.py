"""What follows from what: a cause → other findings that are there because of it.

Lines that are consequences whatever the cause is are marked `secondary` in their rules.
"""

from __future__ import annotations

EXPLAINS: dict[str, frozenset[str]] = {
    "nccl-loopback": frozenset({"nccl-no-device", "nccl-socket", "gloo-loopback"}),
    "nccl-ib-disabled": frozenset({"nccl-no-device", "nccl-socket"}),
    "nccl-no-verbs": frozenset({"nccl-no-device", "nccl-socket"}),
    "nccl-no-device": frozenset({"nccl-socket"}),
    "no-link-up": frozenset({"nccl-no-device", "nccl-socket", "nccl-no-interface"}),
    "mtu-differs": frozenset({"nccl-lost-packets", "nccl-access", "mtu-too-small"}),
    "mtu-too-small": frozenset({"peer-silent"}),
    "network-unreachable": frozenset({"peer-silent"}),
    "nccl-gid-hole": frozenset({"gid-moved"}),
    "gloo-loopback-peer": frozenset({"gloo-loopback", "gloo-mesh"}),
    "gloo-mesh": frozenset({"gloo-loopback"}),
    "ray-node-ip": frozenset({"ray-placement-wait", "ray-placement-timeout", "ray-too-few-gpus"}),
    "ray-one-node": frozenset({"ray-placement-wait", "ray-placement-timeout", "ray-too-few-gpus", "vllm-no-gpu-here"}),
    "ray-placement-timeout": frozenset({"ray-placement-wait"}),
    "ray-too-few-gpus": frozenset({"ray-placement-wait", "ray-placement-timeout"}),
    "ray-versions": frozenset({"ray-gcs-unreachable", "ray-placement-wait", "ray-too-few-gpus"}),
    "ray-bridge": frozenset({"ray-gcs-unreachable", "ray-node-unregistered"}),
    "ray-loopback": frozenset({"ray-gcs-unreachable"}),
    "ray-missing": frozenset({"ray-gcs-unreachable", "ray-absent"}),
    "ssh-banner-timeout": frozenset({"ssh-timeout"}),
    "hub-gated": frozenset({"model-missing", "model-not-cached", "hub-no-token"}),
    "disk-full": frozenset({"model-incomplete", "target-directory", "disk-nearly-full"}),
    "driver-mismatch": frozenset({"gpu-toolkit", "gpu-driver-off", "driver-absent"}),
    "free-memory-page-cache": frozenset({"page-cache", "memory-held"}),
    "free-memory-held": frozenset({"page-cache", "memory-held"}),
    "rdma-enomem-kernel": frozenset({"cma-bug", "driver-no-memory"}),
    "rdma-enomem-full": frozenset({"memory-held"}),
    "gpu-wedged": frozenset({"server-wedged", "shm-broadcast", "requests-running", "ranks-hang"}),
    "gpu-power-capped": frozenset({"server-wedged", "shm-broadcast", "requests-running", "ranks-hang"}),
    "server-wedged": frozenset({"gpu-stalled", "ranks-hang"}),
    "ranks-hang": frozenset({"gpu-stalled"}),
}
