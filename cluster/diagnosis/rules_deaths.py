"""Rules for what Ray and our rank program say of those that ended."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule

DEATHS = (
    Rule(
        "ray-oom-monitor", "fault",
        r"killed due to (the node running low on memory|memory pressure)|exceeds the memory usage threshold"
        r"|OutOfMemoryError: .*(worker|Task)\S* .*killed|System memory low at node",
        "Ray's memory monitor killed workers at 95 % of memory; on a Spark that is one memory with the GPU's",
        "RAY_memory_monitor_refresh_ms=0 on every node",
        "MiaAI GLM-5.3-Flash-NVFP4-Dual-DGX-Spark#2",
        own="lower gpu-memory-utilization; the monitor is off unless the recipe's env switches it on",
    ),
    Rule(
        "ray-left-right", "fault",
        r"_left_ != _right_",
        "Ray's compiled graph fails a check of its own: a fault of Ray 2.54 with vLLM 0.19",
        "vLLM 0.20 or newer, whose Ray executor needs no compiled graph",
        "ray-project/ray#62427",
    ),
    Rule(
        "ray-cgraph-timeout", "fault",
        r"RayChannelTimeoutError|Timed out waiting for object available to read",
        "a read in Ray's compiled graph timed out: a hung or slow peer, or too short a limit",
        "look at the other rank; RAY_CGRAPH_get_timeout=1200, or vLLM 0.20 and newer, which has none",
        "ray-project/ray#53845", secondary=True,
    ),
    Rule(
        "ray-stale-session", "unknown",
        r"ActorHandleNotFoundError|not valid across Ray sessions",
        "the engine was started again inside an old Ray session, after something else had ended it",
        "find the first error further up; then restart head and workers together",
        "kyuz0/amd-strix-halo-vllm-toolboxes#80", secondary=True,
    ),
    Rule(
        "ray-node-lost", "fault",
        r"marked dead because the detector has missed|Health check failed for node|Raylet is terminated"
        r"|The node .* has been marked dead|raylet because it is dead|Some Ray subprocesses exited unexpectedly",
        "a Ray node was lost: its host froze, rebooted, or its container ended",
        "on that host: docker ps -a; journalctl -k -b -1 | tail; uptime",
        "ray-project/ray#45179", secondary=True,
    ),
    Rule(
        "worker-died", "fault",
        r"Worker exit type: SYSTEM_ERROR|Worker unexpectedly exits|RayWorker\w* rank=.*died"
        r"|A worker died or was killed|Worker proc \S+ died|\bWorkerCrashedError|ActorDiedError|RayActorError"
        r"|The actor (is dead|died)",
        "a worker process died, most often killed by the kernel for memory on its host",
        "on that host: journalctl -k | grep -iE 'oom|NVRM|Xid'; then restart all ranks together",
        "eugr/spark-vllm-docker#257", secondary=True,
    ),
    Rule(
        "rank-lost", "fault",
        r"was silent for [\d.]+ s: it has no power|is gone without a word",
        "a rank vanished: its host froze, lost power or its link",
        "ping that host; after it is back: cluster status",
        "cluster's own rank program", secondary=True,
    ),
)  # fmt: skip
