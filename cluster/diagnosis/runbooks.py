"""Which page of docs/runbooks has the steps for what a rule names: the one table of it."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.diagnosis.rule import Rule

DEFAULT = "it-does-not-start"
"""Where most of what fails is met."""

PAGES: Mapping[str, tuple[str, ...]] = {
    "first-set-up": (
        "docker-refused", "docker-missing", "gpu-toolkit", "cdi-devices", "gpu-runtime-name", "no-nvidia-runtime",
        "registry-login", "host-key-unknown", "ssh-publickey", "ssh-key-file", "ssh-controlpath", "ssh-timeout",
        "ssh-no-route", "ssh-no-sshd", "ssh-loopback-peer", "ssh-no-directory", "ssh-all-failed", "sudo-password",
        "target-directory", "name-unknown", "clock-wrong", "clock-unsynced", "machine-id-twice", "hostname-twice",
        "mdns-conflict", "link-local-address", "fabric-no-address", "address-twice", "no-common-subnet", "mtu-differs",
        "mtu-too-small", "no-link-up", "network-unreachable", "peer-silent", "neighbour-silent", "firewall-on",
        "firewall-blocks", "twins-as-ports", "nm-mtu-property", "perftest-unreachable",
    ),
    "it-is-slow": (
        "nccl-ib-disabled", "nccl-no-verbs", "nccl-no-device", "nccl-socket", "env-overwritten", "thermal", "shm-small",
        "jumbo-refused", "one-twin-up", "ports-crossed", "mtu-1500", "nccl-slow", "nccl-one-twin",
        "nccl-mtu", "gpu-power-capped", "gpu-stalled",
    ),
    "it-is-slow#bandwidth": ("nic-degraded", "rdma-slow", "tcp-slow"),
    "it-hangs": (
        "nccl-watchdog", "nccl-unreachable", "nccl-closed", "ray-cgraph-timeout", "ray-node-lost", "ray-head-gone",
        "rank-lost", "worker-died", "engine-dead", "shm-broadcast", "ranks-hang", "tokens-frozen", "server-wedged",
        "gpu-wedged", "gpu-crash", "vllm-rpc-timeout", "zombies",
    ),
    "memory-is-full": (
        "kernel-oom", "oom-guard", "driver-no-memory", "killed", "free-memory-check", "free-memory-page-cache",
        "free-memory-held", "memory-changed", "memory-held", "kv-cache-none", "kv-cache-small", "cuda-oom",
        "host-memory", "shm-full", "ray-oom-monitor", "ray-disk", "ssh-banner-timeout", "orphan-workers",
        "rdma-enomem-full", "telemetry-tool", "disk-full", "disk-nearly-full",
    ),
    "reboot-or-replace": (
        "kernel-stuck", "hardware-error", "gpu-diag-failed", "gpu-xid", "disk-failed", "driver-absent", "nic-failed",
        "nccl-port-error", "link-went-down", "link-flaps", "host-key-changed", "ssh-broken",
    ),
    "upgrade": (
        "driver-mismatch", "driver-too-old", "cma-bug", "rdma-enomem", "rdma-enomem-kernel", "rdma-enomem-other-kernel",
        "ray-versions", "nccl-versions", "image-differs", "image-really-differs", "image-stores-differ", "builds-mixed",
        "kernel-sm120-only", "no-kernel-image", "ptxas-too-old", "deepgemm", "cudnn-fp8", "compile-cache",
        "triton-shared-memory", "vllm-too-old-for-flag", "ray-left-right", "model-unknown", "moe-scale-keys",
        "tie-weights",
    ),
}  # fmt: skip
"""The file's stem, with `#anchor` where one section is meant → ids of rules; the others have the default."""

OF_RULES = {id: stem for stem, ids in PAGES.items() for id in ids}


def runbook_of(rule: Rule) -> str:
    """The page for a rule; none for what needs nothing done."""
    return "" if rule.level in ("normal", "note") else OF_RULES.get(rule.id, DEFAULT)
