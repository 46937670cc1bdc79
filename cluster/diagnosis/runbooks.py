"""Which page of docs/runbooks has the steps for what a rule names: the one table of it."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.diagnosis.rule import Rule

DEFAULT = "it-does-not-start"
"""Where most of what fails is met."""

PAGES: Mapping[str, tuple[str, ...]] = {
    "first-set-up#login": (
        "host-key-unknown", "ssh-publickey", "ssh-key-file", "ssh-controlpath", "ssh-timeout", "ssh-no-route",
        "ssh-no-sshd", "ssh-loopback-peer", "ssh-no-directory", "ssh-all-failed", "sudo-password", "target-directory",
    ),
    "first-set-up#fabric-addresses": (
        "link-local-address", "fabric-no-address", "address-twice", "no-common-subnet", "mtu-too-small", "no-link-up",
        "no-rdma-link", "network-unreachable", "peer-silent", "neighbour-silent", "twins-as-ports", "nm-mtu-property",
        "perftest-unreachable", "ports-crossed", "jumbo-refused",
    ),
    "first-set-up#firewall": ("firewall-on", "firewall-blocks", "ray-ports-blocked"),
    "first-set-up#names": ("name-unknown", "hostname-twice", "mdns-conflict", "gloo-loopback", "gloo-loopback-peer"),
    "first-set-up#same-machine": ("machine-id-twice",),
    "first-set-up#clock": ("clock-wrong", "clock-unsynced"),
    "it-does-not-start#docker": (
        "docker-refused", "docker-missing", "docker-down", "docker-run-failed", "device-missing", "mount-missing",
        "ulimit-refused",
    ),
    "it-does-not-start#container-and-gpu": (
        "gpu-toolkit", "cdi-devices", "gpu-runtime-name", "no-nvidia-runtime", "gpu-lost-in-container",
        "no-gpu-in-container", "driver-absent",
    ),
    "it-does-not-start#ports-and-names": ("port-taken", "ray-port-taken", "container-name-taken"),
    "it-does-not-start#image": (
        "registry-login", "registry-unreachable", "registry-certificate", "registry-limit", "image-unknown",
        "wrong-architecture", "program-not-in-image", "ray-missing", "vllm-too-old-for-flag", "model-unknown",
        "moe-scale-keys", "tie-weights", "checkpoint-keys", "quantization-unfit",
    ),
    "it-does-not-start#model": (
        "hub-gated", "hub-no-token", "hub-unreachable", "hub-too-many", "model-missing", "model-not-cached",
        "model-incomplete", "cache-refused", "path-read-only",
    ),
    "it-does-not-start#a-flag-of-vllm": (
        "vllm-unknown-flag", "vllm-max-len", "vllm-heads", "vllm-needs-trust", "vllm-backend-unset", "parser-unknown",
        "served-name-wrong", "tool-choice-off", "text-insane",
    ),
    "it-does-not-start#the-ranks-do-not-find-each-other": (
        "ray-token", "ray-loopback", "ray-bridge", "ray-gcs-unreachable", "ray-running-already", "ray-absent",
        "ray-node-unregistered", "ray-node-ip", "ray-same-ip", "ray-too-few-gpus", "ray-one-node", "vllm-no-gpu-here",
        "ray-placement-wait", "ray-placement-timeout", "rank-not-joined", "rendezvous-unreachable", "gloo-mesh",
    ),
    "it-does-not-start#nccl-does-not-connect": (
        "nccl-qp-timeout", "nccl-lost-packets", "nccl-completion", "nccl-access", "nccl-memlock", "nccl-loopback",
        "nccl-no-interface", "nccl-duplicate-gpu", "rdma-enomem-memlock",
    ),
    "it-is-slow": ("shm-small",),
    "it-is-slow#mtu": ("mtu-1500", "mtu-differs", "nccl-mtu"),
    "it-is-slow#one-twin": ("one-twin-up", "nccl-one-twin"),
    "it-is-slow#tcp-instead-of-roce": (
        "nccl-ib-disabled", "nccl-no-verbs", "nccl-no-device", "nccl-socket", "env-overwritten",
    ),
    "it-is-slow#bandwidth": ("nic-degraded", "rdma-slow", "tcp-slow", "nccl-slow"),
    "it-is-slow#power-cap": ("gpu-power-capped", "gpu-stalled", "thermal"),
    "it-hangs": ("nccl-unreachable", "nccl-closed"),
    "it-hangs#wedged": (
        "nccl-watchdog", "ray-cgraph-timeout", "ranks-hang", "tokens-frozen", "server-wedged", "gpu-wedged",
        "vllm-rpc-timeout",
    ),
    "it-hangs#it-compiles": ("shm-broadcast", "vllm-ready-timeout", "not-ready-in-time"),
    "it-hangs#a-rank-is-gone": (
        "ray-node-lost", "ray-head-gone", "rank-lost", "worker-died", "engine-dead", "gpu-crash", "zombies",
    ),
    "it-hangs#the-link-is-cut": ("link-went-down", "link-flaps", "nccl-port-error"),
    "memory-is-full": ("free-memory-check", "host-memory", "shm-full", "rdma-enomem-full", "telemetry-tool"),
    "memory-is-full#another-tenant": ("free-memory-held", "memory-held", "memory-changed"),
    "memory-is-full#a-leftover-holds-it": ("orphan-workers", "orphan-by-parent"),
    "memory-is-full#page-cache": ("free-memory-page-cache",),
    "memory-is-full#the-recipe-wants-too-much": ("kv-cache-none", "kv-cache-small", "cuda-oom"),
    "memory-is-full#something-was-killed": ("kernel-oom", "oom-guard", "killed", "ray-oom-monitor"),
    "memory-is-full#ssh-connects-and-says-nothing": ("ssh-banner-timeout",),
    "memory-is-full#the-disk-is-full": ("disk-full", "disk-nearly-full", "ray-disk"),
    "reboot-or-replace#a-spark-does-not-answer": ("kernel-stuck", "ssh-broken"),
    "reboot-or-replace#a-spark-was-installed-anew": ("host-key-changed",),
    "reboot-or-replace#the-fabric-is-not-what-it-was": (
        "gid-moved", "nccl-gid-moved", "nccl-gid-hole", "nccl-gid-link-local",
    ),
    "reboot-or-replace#the-hardware-reports-a-fault": (
        "hardware-error", "gpu-diag-failed", "gpu-xid", "disk-failed", "nic-failed", "data-corrupt",
    ),
    "upgrade#driver-and-library-differ": ("driver-mismatch", "driver-too-old"),
    "upgrade#kernel": ("cma-bug", "driver-no-memory", "rdma-enomem", "rdma-enomem-kernel", "rdma-enomem-other-kernel"),
    "upgrade#the-image-is-not-the-same-on-all-hosts": (
        "ray-versions", "nccl-versions", "image-differs", "image-really-differs", "image-stores-differ",
    ),
    "upgrade#the-image-does-not-fit-a-spark": (
        "builds-mixed", "library-missing", "jit-build-failed", "kernel-sm120-only", "no-kernel-image", "ptxas-too-old",
        "deepgemm", "cudnn-fp8", "compile-cache", "triton-shared-memory", "ray-left-right",
    ),
}  # fmt: skip
"""The file's stem, with `#anchor` where one section is meant → ids of rules; the others have the default."""

OF_RULES = {id: page for page, ids in PAGES.items() for id in ids}


def runbook_of(rule: Rule) -> str:
    """The page for a rule; none for what needs nothing done."""
    return "" if rule.level in ("normal", "note") else OF_RULES.get(rule.id, DEFAULT)
