"""Rules for vLLM's command line and start, and the lines that everybody quotes."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule

START = (
    Rule(
        "vllm-backend-unset", "fault",
        r"World size \(\d+\) is larger than the number of available GPUs",
        "more GPUs are asked for than this host has, and vLLM was not told to use other hosts",
        "vllm serve … --distributed-executor-backend ray, or --nnodes and --node-rank",
        "vLLM 0.33 source, config/parallel",
        own="as many hosts as --tp × --pp, each with a GPU: cluster doctor",
    ),
    Rule(
        "vllm-too-old-for-flag", "fault",
        r"unrecognized arguments:.*--(?P<flag>nnodes|node-rank|headless|master-addr)",
        "the image's vLLM is too old for --{flag}",
        "a newer image, or --distributed-executor-backend ray with this one",
        "spark-arena/sparkrun#287",
        own="a newer image, or --backend ray with this one",
    ),
    Rule(
        "vllm-unknown-flag", "fault",
        r"unrecognized arguments: (?P<flag>\S+)|error: argument \S+: invalid choice",
        "a program, most likely this image's vLLM, does not know an option {flag}",
        "vllm serve --help=all in that image; match flags and version",
        "argparse",
    ),
    Rule(
        "env-overwritten", "fault",
        r"Overwriting environment variable (?P<name>\w*(IFNAME|HCA|NET_DEVICES|HOST_IP"
        r"|GID_INDEX)) from '(?P<mine>[^']*)' to '(?P<head>[^']*)'",
        "vLLM replaced this worker's {name} by the head's ({head}); where the cable is in another port here, "
        "those names are down",
        "plug the same port on both hosts, or list the variable in "
        "$VLLM_CONFIG_ROOT/ray_non_carry_over_env_vars.json on the head",
        "spark-arena/sparkrun#135", slow=True,
    ),
    Rule(
        "vllm-ready-timeout", "fault",
        r"Timed out waiting for (new )?engine core processes"
        r"|VLLM_ENGINE_READY_TIMEOUT_S\b.*(exceeded|timed out|increase)",
        "the engine was not ready within VLLM_ENGINE_READY_TIMEOUT_S (600 s unless set): cold compile or slow "
        "loading",
        "VLLM_ENGINE_READY_TIMEOUT_S=3600",
        "vllm-project/vllm#48031",
    ),
    Rule(
        "not-ready-in-time", "fault",
        r"vLLM not ready after|server (is )?not ready (after|within)|not ready after \d+ (s|min)",
        "the server did not become ready in time, whatever banner comes after this line",
        "curl http://HEAD:PORT/v1/models; look for the first error in vLLM's own log on every host",
        "mark-ramsey-ri/vllm-dgx-spark#2", secondary=True,
    ),
    Rule(
        "port-taken", "fault",
        r"\[Errno 98\]|address already in use|EADDRINUSE|port is already allocated"
        r"|port \d+ (\S+ )?is (already )?(in use|taken|occupied)(?!.*trying)",
        "the port is taken by another program on this host",
        "sudo ss -ltnp; stop that program or choose another port",
        "NVIDIA/NemoClaw#8685",
    ),
    Rule(
        "headless-worker-probed", "warning",
        r"Failed to connect to (127\.0\.0\.1|localhost) port \d+"
        r"|connect to (127\.0\.0\.1|localhost) port \d+ failed",
        "nothing listens on that port here: on a worker that is normal (only rank 0 has HTTP); on the head the "
        "server is down",
        "probe the head only",
        "MiaAI DeepSeek-v4-Flash-DSpark-2x#112", until="ready",
    ),
    Rule(
        "no-gpu-in-container", "fault",
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver on your system",
        "the process sees no GPU: the container was started without it, or lost it",
        "docker run --gpus all; docker run --rm --gpus all IMAGE nvidia-smi -L",
        "vLLM, PyTorch",
        own="cluster doctor tries a GPU in a container on every host",
    ),
    Rule(
        "parser-unknown", "fault",
        r"invalid (tool call|reasoning) parser|(tool|reasoning).parser \S+ (is )?not (found|registered)",
        "this vLLM does not know the parser that was named",
        "vllm serve --help=all lists them; a newer image",
        "vLLM source",
    ),
    Rule(
        "served-name-wrong", "warning",
        r"The model `[^`]*` does not exist",
        "a client asks for a model name that is not served",
        "curl http://HEAD:PORT/v1/models; --served-model-name",
        "vLLM's HTTP 404",
    ),
    Rule(
        "request-too-long", "note",
        r"maximum context length is \d+ tokens",
        "a request was longer than the server allows",
        "shorten it, or raise --max-model-len",
        "vLLM's HTTP 400",
    ),
    Rule(
        "vllm-max-len", "fault",
        r"max_model_len .*is greater than the derived|max_model_len.*larger than the maximum",
        "--max-model-len is more than the model allows",
        "lower --max-model-len",
        "vLLM source, config/model",
    ),
    Rule(
        "vllm-heads", "fault",
        r"must be divisible by tensor parallel size",
        "the model's heads cannot be split over so many GPUs",
        "another --tp; pipeline parallelism for odd numbers",
        "vLLM source, config/model",
    ),
    Rule(
        "vllm-needs-trust", "fault",
        r"set the option `?trust_remote_code=True|contains custom code which must be executed",
        "the model brings code of its own",
        "--trust-remote-code, if you trust it",
        "transformers source",
    ),
    Rule(
        "tool-choice-off", "fault",
        r'\"auto\" tool choice requires|tool choice requires --enable-auto-tool-choice',
        "the server was started without tool calling, so tool_choice auto gets HTTP 400",
        "--enable-auto-tool-choice --tool-call-parser NAME",
        "vLLM source, serving_chat",
    ),
    Rule(
        "vllm-rpc-timeout", "fault",
        r"RPC call to (?P<method>\w+) timed out",
        "a worker did not answer {method} in time: memory pressure on its host, or it hangs",
        "free -h and nvidia-smi on every host; lower gpu-memory-utilization",
        "eugr/spark-vllm-docker#321", secondary=True,
    ),
)  # fmt: skip

QUOTED = (
    Rule(
        "engine-start-failed", "unknown",
        r"Engine core initialization failed|Failed core proc\(s\)|Failed frontend proc",
        "vLLM's engine did not start; this line does not say why",
        "look further up and on the other ranks; with nothing there and about 600 s since the start: "
        "VLLM_ENGINE_READY_TIMEOUT_S=3600",
        "vllm-project/vllm#48031", secondary=True,
    ),
    Rule(
        "engine-dead", "unknown",
        r"EngineDeadError|EngineCore encountered|EngineCore (failed to start|died)|Engine core proc \S+ died"
        r"|Executor failed\.|Engine process failed to start|front-end process within"
        r"|Got fatal signal from worker processes|EngineCore hit an exception",
        "vLLM's engine has ended; this line does not say why",
        "the first error further up, on any rank",
        "vLLM source, v1/engine", secondary=True,
    ),
    Rule(
        "worker-init-failed", "unknown",
        r"WorkerProc initialization failed|WorkerProc hit an exception|Error executing method"
        r"|might cause deadlock in distributed|Worker failed with error",
        "a worker failed; this line does not say why",
        "the traceback that follows, or the other rank's log",
        "vLLM source, multiproc_executor", secondary=True,
    ),
    Rule(
        "shm-broadcast", "warning",
        r"No available shared memory broadcast block found",
        "the ranks wait for one of them: normal while kernels are compiled or tuned (up to half an hour after a "
        "change), a hang only when the GPUs idle meanwhile",
        "nvidia-smi --query-gpu=utilization.gpu,power.draw,clocks.sm --format=csv on every host: above 30 W it "
        "works",
        "eugr/spark-vllm-docker#348", secondary=True, until="ready",
    ),
)  # fmt: skip
