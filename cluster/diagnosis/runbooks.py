"""Which page of docs/runbooks has the steps for what a rule names: the one table of it."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.diagnosis.rule import Rule

DEFAULT = "it-does-not-start"
"""Where most of what fails is met."""

PAGES: Mapping[str, tuple[str, ...]] = {
    "first-set-up": (
        "registry-login", "twins-as-ports", "perftest-unreachable",
    ),
    "first-set-up#login": (
        "host-key-unknown", "ssh-publickey", "ssh-key-file", "ssh-controlpath", "ssh-timeout", "ssh-no-route",
        "ssh-no-sshd", "ssh-loopback-peer", "ssh-no-directory", "ssh-all-failed", "sudo-password",
        "target-directory",
    ),
    "first-set-up#fabric-addresses": (
        "link-local-address", "fabric-no-address", "address-twice", "no-common-subnet", "no-link-up",
        "network-unreachable", "peer-silent", "neighbour-silent", "nm-mtu-property",
    ),
    "first-set-up#firewall": (
        "firewall-on", "firewall-blocks",
    ),
    "first-set-up#names": (
        "name-unknown", "mdns-conflict", "hostname-twice", "gloo-loopback", "gloo-loopback-peer",
    ),
    "first-set-up#same-machine": (
        "machine-id-twice",
    ),
    "first-set-up#clock": (
        "clock-wrong", "clock-unsynced",
    ),
    "it-does-not-start#docker": (
        "docker-refused", "docker-down", "docker-missing",
    ),
    "it-does-not-start#container-and-gpu": (
        "gpu-toolkit", "gpu-driver-off", "gpu-driver-files",
        "cdi-devices", "gpu-runtime-name", "no-nvidia-runtime", "device-missing",
        "gpu-lost-in-container", "driver-absent", "no-gpu-in-container", "mount-missing", "ulimit-refused",
    ),
    "it-does-not-start#ports-and-names": (
        "port-taken", "container-name-taken", "ray-port-taken", "ray-running-already",
    ),
    "it-does-not-start#image": (
        "image-unknown", "registry-unreachable", "registry-certificate", "registry-limit",
        "program-not-in-image", "ray-missing",
    ),
    "it-does-not-start#model": (
        "hub-gated", "hub-no-token", "hub-unreachable", "hub-too-many", "model-missing", "model-not-cached",
        "model-incomplete", "cache-refused", "path-read-only",
    ),
    "it-does-not-start#a-flag-of-vllm": (
        "vllm-unknown-flag", "vllm-backend-unset", "parser-unknown", "vllm-max-len", "vllm-heads",
        "vllm-needs-trust", "tool-choice-off", "served-name-wrong",
    ),
    "it-does-not-start#the-ranks-do-not-find-each-other": (
        "ray-token", "ray-loopback", "ray-bridge", "ray-gcs-unreachable", "ray-ports-blocked", "ray-absent",
        "ray-node-unregistered", "rank-not-joined", "ray-placement-wait", "ray-node-ip", "ray-too-few-gpus",
        "ray-placement-timeout", "vllm-no-gpu-here", "ray-same-ip", "ray-one-node", "rendezvous-unreachable",
        "gloo-mesh",
    ),
    "it-does-not-start#nccl-does-not-connect": (
        "nccl-loopback", "nccl-gid-link-local", "nccl-qp-timeout", "nccl-gid-hole", "nccl-gid-moved",
        "gid-moved", "nccl-memlock", "nccl-access", "nccl-lost-packets", "nccl-completion", "nccl-no-interface",
        "nccl-duplicate-gpu", "nccl-shm", "nccl-error", "nccl-flushed", "rdma-enomem-memlock",
    ),
    "it-hangs": (
        "ray-cgraph-timeout", "nccl-watchdog", "vllm-rpc-timeout", "zombies",
    ),
    "it-hangs#wedged": (
        "server-wedged", "tokens-frozen", "gpu-wedged", "ranks-hang",
    ),
    "it-hangs#it-compiles": (
        "shm-broadcast", "vllm-ready-timeout",
    ),
    "it-hangs#a-rank-is-gone": (
        "ray-node-lost", "ray-head-gone", "rank-lost", "worker-died", "engine-dead", "nccl-closed", "gpu-crash",
    ),
    "it-hangs#the-link-is-cut": (
        "nccl-unreachable", "link-went-down", "link-flaps", "nccl-port-error",
    ),
    "it-is-slow": (
        "thermal", "shm-small", "gpu-stalled", "env-overwritten",
    ),
    "it-is-slow#mtu": (
        "mtu-1500", "mtu-differs", "mtu-too-small", "jumbo-refused", "nccl-mtu",
    ),
    "it-is-slow#one-twin": (
        "one-twin-up", "nccl-one-twin", "ports-crossed",
    ),
    "it-is-slow#bandwidth": (
        "nic-degraded", "rdma-slow", "tcp-slow", "nccl-slow",
    ),
    "it-is-slow#tcp-instead-of-roce": (
        "nccl-ib-disabled", "nccl-no-verbs", "nccl-no-device", "nccl-socket",
    ),
    "it-is-slow#power-cap": (
        "gpu-power-capped",
    ),
    "memory-is-full": (
        "memory-changed", "memory-held", "host-memory", "telemetry-tool",
    ),
    "memory-is-full#a-leftover-holds-it": (
        "orphan-workers", "orphan-by-parent", "free-memory-held",
    ),
    "memory-is-full#page-cache": (
        "free-memory-check", "free-memory-page-cache",
    ),
    "memory-is-full#the-recipe-wants-too-much": (
        "kv-cache-none", "kv-cache-small", "cuda-oom", "shm-full", "rdma-enomem-full",
    ),
    "memory-is-full#something-was-killed": (
        "kernel-oom", "oom-guard", "killed", "ray-oom-monitor", "driver-no-memory",
    ),
    "memory-is-full#ssh-connects-and-says-nothing": (
        "ssh-banner-timeout",
    ),
    "memory-is-full#the-disk-is-full": (
        "disk-full", "disk-nearly-full", "ray-disk",
    ),
    "reboot-or-replace#a-spark-does-not-answer": (
        "ssh-broken",
    ),
    "reboot-or-replace#the-hardware-reports-a-fault": (
        "kernel-stuck", "hardware-error", "gpu-diag-failed", "gpu-xid", "disk-failed", "nic-failed",
        "data-corrupt",
    ),
    "reboot-or-replace#a-spark-was-installed-anew": (
        "host-key-changed",
    ),
    "upgrade#the-image-is-not-the-same-on-all-hosts": (
        "ray-versions", "nccl-versions", "image-differs", "image-really-differs", "image-stores-differ",
    ),
    "upgrade#driver-and-library-differ": (
        "driver-mismatch", "driver-too-old",
    ),
    "upgrade#kernel": (
        "cma-bug", "rdma-enomem", "rdma-enomem-kernel", "rdma-enomem-other-kernel",
    ),
    "upgrade#the-image-does-not-fit-a-spark": (
        "builds-mixed", "kernel-sm120-only", "quantised-kernel", "patch-of-other-version",
        "no-kernel-image", "ptxas-too-old", "deepgemm", "cudnn-fp8",
        "compile-cache", "triton-shared-memory", "vllm-too-old-for-flag", "ray-left-right", "model-unknown",
        "moe-scale-keys", "tie-weights", "checkpoint-keys", "quantization-unfit", "library-missing",
        "jit-build-failed", "wrong-architecture",
    ),
}  # fmt: skip
"""The file's stem, with `#anchor` where one section is meant → ids of rules; the others have the default."""

OF_RULES = {id: page for page, ids in PAGES.items() for id in ids}


def runbook_of(rule: Rule) -> str:
    """The page for a rule; none for what needs nothing done."""
    return "" if rule.level in ("normal", "note") else OF_RULES.get(rule.id, DEFAULT)
