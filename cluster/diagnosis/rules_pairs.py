"""Rules without a pattern for pairs of causes that another text tells apart; their conditions are in pairs.py."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule
from cluster.diagnosis.rules_outputs import HOLDERS

SETTLED = (
    Rule(
        "free-memory-page-cache", "fault", "",
        "only page cache is in the way: {available} GiB are available, and this vLLM counts cached files as used",
        "on every host: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches; or a vLLM that reads MemAvailable",
        "vllm-project/vllm#48140",
    ),
    Rule(
        "free-memory-held", "fault", "",
        "a process really holds the memory: {available} GiB are available; dropping caches does not help",
        f"find the holder: {HOLDERS}. Never restart in a loop on this error",
        "eugr/spark-vllm-docker#257",
    ),
    Rule(
        "rdma-enomem-kernel", "fault", "",
        "the kernel cannot register memory for RDMA ({told}): the CMA regression of 7.0.0-10xx-nvidia, neither memlock "
        "nor full memory",
        "boot 6.17.0-103x-nvidia, or add kho=off to the kernel's command line",
        "MiaAI DeepSeek-v4.1-Flash-DGX-Sparks#14",
    ),
    Rule(
        "rdma-enomem-memlock", "fault", "",
        "locked memory is limited to {limit} KiB, too little for RDMA",
        "docker run --ulimit memlock=-1 --cap-add IPC_LOCK",
        "NCCL troubleshooting, memlock",
        own="on that host: is Docker rootless? systemctl show docker -p LimitMEMLOCK",
    ),
    Rule(
        "rdma-enomem-full", "fault", "",
        "memory could not be registered for RDMA because the host's is full: {available} GiB available",
        f"lower --gpu-memory-utilization; {HOLDERS}",
        "NCCL troubleshooting",
    ),
    Rule(
        "rdma-enomem-other-kernel", "fault", "",
        "memory could not be registered for RDMA; kernel {kernel} has no known fault, so it is a memlock limit or full "
        "memory",
        "ulimit -l in the container; free -h",
        "MiaAI DeepSeek-v4.1-Flash-DGX-Sparks#14",
    ),
    Rule(
        "ranks-hang", "fault", "",
        "the ranks wait for each other and no GPU works (at most {power} W): a hang, not a compile",
        "restart all ranks together; NCCL_DEBUG=INFO shows which rank is missing",
        "eugr/spark-vllm-docker#348",
        own="cluster down and cluster up, all ranks together",
    ),
    Rule(
        "image-stores-differ", "warning", "",
        "only the image stores differ ({stores}), in which one image has two ids; the image may be the same",
        "compare docker image inspect --format '{{json .RootFS.Layers}}' IMAGE; use one store on all hosts "
        "(containerd-snapshotter in /etc/docker/daemon.json)",
        "eugr/spark-vllm-docker#327",
    ),
    Rule(
        "image-really-differs", "fault", "",
        "the hosts have different images: both keep them in {stores}, so ids compare",
        "docker pull the same digest on every host, or docker save | ssh HOST docker load",
        "eugr/spark-vllm-docker#327",
    ),
    Rule(
        "vllm-ready-timeout", "fault", "",
        "the engine was not ready within 600 s ({passed} s since the start): cold compile or slow loading",
        "VLLM_ENGINE_READY_TIMEOUT_S=3600",
        "vllm-project/vllm#48031",
    ),
)  # fmt: skip

OF_PAIRS: dict[str, Rule] = {rule.id: rule for rule in SETTLED}
