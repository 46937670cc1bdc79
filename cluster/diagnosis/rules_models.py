"""Rules for models: files, hub access, and formats that an image cannot read."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule

HUB = (
    Rule(
        "hub-gated", "fault",
        r"Cannot access gated repo|GatedRepoError|Access to model \S+ is restricted"
        r"|You are trying to access a gated repo|401 Client Error.*(huggingface|hf\.co)"
        r"|Unauthorized for url: https://hf|403 Client Error.*(huggingface|hf\.co)"
        r"|Invalid (user|username or) (token|password)",
        "the hub refuses: no token in this container, a wrong one, or the model's licence was not accepted",
        "accept the licence on the model's page; cluster pull --hub-token-file FILE (downloads only)",
        "private-gpt#1861, skypilot-org/skypilot#2634",
    ),
    Rule(
        "hub-no-token", "warning",
        r"Token present: False|token (is )?not (found|set).*(gated|huggingface)",
        "no hub token arrived on this node",
        "give the same environment to every node",
        "nodetool-ai/nodetool#5184",
    ),
    Rule(
        "hub-unreachable", "fault",
        r"HTTPSConnectionPool\(host='[^']*(huggingface|hf)\.co|Failed to download .*from .*huggingface"
        r"|cas-server\.xethub\S*.*(error|timed out)",
        "the hub cannot be reached from here",
        "curl -I https://huggingface.co; DNS, proxy; serving itself needs no hub",
        "requests; hf_xet",
    ),
    Rule(
        "hub-too-many", "fault",
        r"429 Client Error.*(huggingface|hf\.co)|Too Many Requests for url: https://h",
        "the hub limits the rate of requests",
        "give a token, and wait some minutes",
        "huggingface_hub",
    ),
    Rule(
        "model-missing", "fault",
        r"Failed to get file list for|invalid repository id|is not a (valid )?local folder"
        r"|not a valid model identifier|RepositoryNotFoundError|Repo id must be in the form"
        r"|404 Client Error.*(huggingface|hf\.co)|/snapshots/\S*.*No such file"
        r"|No such file or directory: '?\S*(/snapshots/|/models--)|does not appear to have a file named"
        r"|No such file or directory: '?\S+\.safetensors|Incorrect path_or_model_id",
        "the model is not on this host under that path, or its name is wrong",
        "cluster pull RECIPE puts it on every host; without hub access copy the HF cache to the same path",
        "ai-dynamo/dynamo#4941, vllm-project/vllm#2289",
    ),
    Rule(
        "model-not-cached", "fault",
        r"OfflineModeIsEnabled|LocalEntryNotFoundError|Cannot find the requested files in the (disk|local) cache"
        r"|couldn't connect to 'https://huggingface\.co'|outgoing traffic has been disabled"
        r"|Cannot reach https://huggingface",
        "files of the model are not in this host's cache and the hub cannot be asked (offline, or no network)",
        "cluster pull RECIPE, then start again",
        "huggingface_hub source; eugr/spark-vllm-docker#146", until="ready",
    ),
    Rule(
        "model-incomplete", "fault",
        r"SafetensorError|Error while deserializing header|Consistency check failed|incomplete metadata"
        r"|HeaderTooLarge|HeaderTooSmall|unexpected EOF.*safetensors|version https://git-lfs",
        "a weights file is incomplete or only a pointer",
        "remove that snapshot on this host and download it again: cluster pull",
        "safetensors, huggingface_hub",
    ),
    Rule(
        "cache-refused", "fault",
        r"\[Errno 13\] Permission denied: '?(?P<path>[^']*)"
        r"|Permission denied: '(?P<cache>[^']*(huggingface|\.cache)[^']*)'|PermissionError at \S+ when downloading",
        "this user may not write {path}{cache}: an earlier container made it as root, or the path is another "
        "machine's",
        "on that host: sudo chown -R $USER PATH; give paths per host, not the control machine's",
        "av/harbor#262, spark-arena/sparkrun#155",
    ),
    Rule(
        "path-read-only", "fault",
        r"\[Errno 30\] Read-only file system(: '(?P<path>[^']*)')?",
        "something writes to a path that is mounted read-only ({path})",
        "download before serving (cluster pull), or another cache directory in the environment",
        "POSIX EROFS", until="ready",
    ),
)  # fmt: skip

FORMATS = (
    Rule(
        "model-unknown", "fault",
        r"does not recognize this architecture|Model architectures? .* (are|is) not supported"
        r"|has no vLLM implementation|Unrecognized model in|No module named 'transformers\.models"
        r"|is not supported in-tree anymore|cannot import name '\w+' from 'transformers",
        "this image does not know the model: its vLLM or transformers is too old",
        "a newer image (Gemma 4 needs transformers 5.5)",
        "NVIDIA/dgx-spark-playbooks#75",
    ),
    Rule(
        "moe-scale-keys", "fault",
        r"weight_loader\(\) missing \d+ required positional|weight_loader\(\) got an unexpected keyword",
        "this vLLM does not know how the checkpoint names its expert scales",
        "a vLLM with PR 39084, or another checkpoint",
        "vllm-project/vllm#38912",
    ),
    Rule(
        "checkpoint-keys", "fault",
        r"KeyError: '?[\w.]*(weight_scale|input_scale|layers\.\d+\.)[\w.]*|There is no module or parameter named"
        r"|weights were not initialized from checkpoint|size mismatch for \w+",
        "the checkpoint's tensors do not fit what this vLLM expects of the model (with pipeline parallelism also "
        "a known bug)",
        "another checkpoint or vLLM version; BF16 weights with --quantization fp8 for pre-quantised FP8 that "
        "fails",
        "eugr/spark-vllm-docker#233; seed write-ups",
    ),
    Rule(
        "tie-weights", "fault",
        r"tie_weights.*NotImplementedError|NotImplementedError.*tie_weights",
        "this vLLM cannot load this quantised checkpoint",
        "pin the version that the recipe was tried with",
        "seed write-ups",
    ),
    Rule(
        "quantization-unfit", "fault",
        r"[Qq]uantization method .*(does not match|not supported)|is not supported for quantization method"
        r"|not supported for the current GPU|Weight output_partition_size"
        r"|is not divisible by weight quantization block|not aligned with the quantized weight shape",
        "this quantisation does not fit the model, its split or this GPU",
        "another --quantization, checkpoint or --tp",
        "vLLM source, quantization",
    ),
)  # fmt: skip
