"""Rules for memory as engines tell it."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule

MEMORY = (
    Rule(
        "free-memory-check", "fault",
        r"Free memory on device.*on startup is less|is less than desired GPU memory utilization"
        r"|decrease GPU memory utilization or reduce GPU memory used by other processes",
        "vLLM found too little free memory: a process holds it, or it is page cache, which older vLLM counts as "
        "used",
        "free -h: high `available` means page cache (sync; echo 3 | sudo tee /proc/sys/vm/drop_caches), low means"
        " a holder (nvidia-smi, docker ps). Never restart in a loop on this error",
        "vllm-project/vllm#48140, eugr/spark-vllm-docker#257",
    ),
    Rule(
        "memory-changed", "fault",
        r"Error in memory profiling",
        "free memory grew while vLLM measured it: another process gave memory back meanwhile",
        "wait until the other process has ended, then start",
        "vLLM source, gpu_worker",
    ),
    Rule(
        "kv-cache-none", "fault",
        r"Available KV cache memory: -|No available memory for the cache blocks|# GPU blocks: 0\b",
        "the weights alone need more than gpu-memory-utilization allows, so nothing is left for the KV cache",
        "raise --gpu-memory-utilization (0.80–0.85 headless), or more hosts",
        "MiaAI GLM-5.3-Flash-NVFP4-Dual-DGX-Spark#2",
    ),
    Rule(
        "kv-cache-small", "fault",
        r"larger than the available KV cache|larger than the maximum number of tokens that can be stored in"
        r"|To serve at least one request with",
        "one request of max-model-len does not fit the KV cache",
        "lower --max-model-len or raise --gpu-memory-utilization",
        "vLLM source, kv_cache_utils",
    ),
    Rule(
        "cuda-oom", "fault",
        r"CUDA out of memory|torch(\.cuda)?\.OutOfMemoryError|CUDA error: out of memory|cudaErrorMemoryAllocation"
        r"|Cuda failure (2 )?'out of memory'|CUBLAS_STATUS_ALLOC_FAILED|NVML_SUCCESS == r INTERNAL ASSERT",
        "the GPU could not get memory; on a Spark it shares it with everything else on the host",
        "lower --gpu-memory-utilization or --max-num-seqs; stop other tenants",
        "PyTorch",
    ),
    Rule(
        "host-memory", "fault",
        r"\[Errno 12\] Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: can't allocate"
        r"|fork: Cannot allocate memory|ENOMEM\b",
        "the host has no memory left",
        "free -h; docker ps; stop what holds it",
        "POSIX ENOMEM",
    ),
    Rule(
        "shm-small", "warning",
        r"object store is using \S+ instead of /dev/shm",
        "the container's /dev/shm is too small for Ray's object store, which uses the disk instead: slow",
        "docker run --shm-size 16g, or --ipc host",
        "ray-project/ray#11951, InftyAI/llmaz#238", slow=True,
        own="a larger --set shm_gib=…",
    ),
    Rule(
        "shm-full", "fault",
        r"insufficient shared memory"
        r"|unable to (write to|open|mmap \d+ bytes from) (file|shared memory object) <?/(dev/shm/)?torch_"
        r"|Unexpected bus error|^Bus error|: Bus error",
        "the container's /dev/shm is full",
        "docker run --shm-size 16g, or --ipc host; remove leftovers in /dev/shm",
        "PyTorch",
        own="a larger --set shm_gib=…; remove leftovers in /dev/shm",
    ),
    Rule(
        "killed", "unknown",
        r"exit code:? ?\(?137\b|exit status:? 137\b|exited with (code |status )?137\b|\(exit 137\)"
        r'|\"OOMKilled\": ?true|returned non-zero exit status (-9|137)|killed by signal (9|SIGKILL)'
        r"|ended by SIGKILL|^Killed$|^\S+: line \d+: +\d+ Killed|code=killed, status=9/KILL",
        "a process was killed from outside (SIGKILL), most often for memory",
        "on that host: journalctl -k | grep -i oom; systemctl status earlyoom",
        "POSIX signals", secondary=True,
    ),
)  # fmt: skip
