"""Words that download a model with the hub's own tool, in a container of the image."""

from __future__ import annotations

from cluster.argv.docker import TRY_LABEL, Bind, mount_word
from cluster.argv.question import Question

WEIGHT_ENDINGS = (".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".bin", ".safetensors")
"""How names of weight files end."""
DOWNLOAD = "cluster-download"
"""Name of the container that downloads; on a host there is one at a time."""


def hub_download(
    image: str,
    model: str,
    revision: str,
    *,
    hf_home: str,
    uid: int,
    gid: int,
    token_file: str = "",
    dummy: bool = False,
) -> Question:
    """`hf download MODEL --revision REVISION` into the host's cache, as the user `uid:gid`.

    `token_file` is a private file on the host; the tool reads it through HF_TOKEN_PATH, so the token is no word of
    any command line and in no container's environment. `dummy`: everything but the weights; the oldest of the tools
    heed only the last `--exclude`.
    """
    words = ["docker", "run", "--rm", "--init", "--pull", "never", "--name", DOWNLOAD, "--label", TRY_LABEL]
    words += ["--network", "host", "--user", f"{uid}:{gid}", "--env", "HOME=/tmp", "--env", "HF_HOME=/hf"]
    words += ["--env", "HF_HUB_DISABLE_TELEMETRY=1", "--mount", mount_word(Bind(hf_home, "/hf", read_only=False))]
    if token_file:
        words += ["--env", "HF_TOKEN_PATH=/hub-token", "--mount", mount_word(Bind(token_file, "/hub-token"))]
    words += ["--entrypoint", "hf", image, "download", model, "--revision", revision]
    for ending in WEIGHT_ENDINGS if dummy else ():
        words += ["--exclude", f"*{ending}"]
    return Question(tuple(words), timeout_s=12 * 3600, changes=True)
