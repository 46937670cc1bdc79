"""Rules for Docker, the NVIDIA container toolkit and registries."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule

DOCKER = (
    Rule(
        "docker-refused", "fault",
        r"permission denied while trying to connect to the docker|permission denied.*docker\.sock"
        r"|dial unix \S*docker\.sock: connect: permission denied",
        "this user may not use Docker",
        "sudo usermod -aG docker $USER, then log in again",
        "NVIDIA/dgx-spark-playbooks",
    ),
    Rule(
        "docker-down", "fault",
        r"Cannot connect to the Docker daemon|failed to connect to the docker API|error during connect:"
        r"|Is the docker daemon running",
        "Docker's daemon does not run on this host",
        "sudo systemctl start docker; journalctl -u docker -n 50",
        "docker CLI",
    ),
    Rule(
        "docker-missing", "fault",
        r"docker: (command )?not found|\bdocker: No such file",
        "a shell without login does not find docker, though a terminal may: its PATH is shorter, or Docker is not"
        " installed",
        "use the absolute path, or put it on the PATH of non-login shells (~/.ssh/environment, /etc/environment)",
        "appleboy/drone-ssh#221",
    ),
    Rule(
        "cdi-devices", "fault",
        r"unresolvable CDI devices|failed to inject CDI devices|CDI device injection failed",
        "Docker finds no CDI description of the GPU, or an old one",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        "NVIDIA/nvidia-container-toolkit#434, #1239",
    ),
    Rule(
        "gpu-driver-off", "fault",
        r"nvidia-container-cli: initialization error: (nvml error: driver not loaded|driver error: failed to process)",
        "the NVIDIA driver of this host is not loaded, or does not answer",
        "nvidia-smi on the host; after an upgrade of driver or kernel reboot, or sudo modprobe nvidia",
        "HonuRobotics/dockwater#10, NVIDIA/nvidia-docker#1203",
    ),
    Rule(
        "gpu-driver-files", "fault",
        r"nvidia-container-cli: detection error: open failed: (?P<file>\S+?): no such file",
        "a library of the NVIDIA driver is not where the container toolkit looks for it: {file}",
        "sudo ldconfig; when it stays away, install the driver's packages again, all of one version",
        "NVIDIA/nvidia-docker#1333",
    ),
    Rule(
        "gpu-toolkit", "fault",
        r"could not select device driver|nvidia-container-cli: (?!requirement|.*mismatch)"
        r"|nvidia-container-runtime.*(not found|no such file)",
        "Docker cannot give a GPU to containers: the NVIDIA container toolkit is missing, not configured, or "
        "Docker is a snap",
        "sudo apt install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; sudo "
        "systemctl restart docker",
        "NVIDIA/nvidia-container-toolkit#854",
    ),
    Rule(
        "gpu-runtime-name", "fault",
        r"unknown or invalid runtime name: nvidia|Unknown runtime specified nvidia",
        "no runtime named nvidia is registered, as on a stock Spark",
        "--gpus all without --runtime=nvidia",
        "docker daemon",
        own="",
    ),
    Rule(
        "container-name-taken", "fault",
        r'container name \"?/?(?P<name>[\w.-]+)\"? is already in use',
        "a container named {name} is there already",
        "docker ps -a --filter name={name}; remove it only if it is yours",
        "docker daemon; NVIDIA/NemoClaw#9890",
    ),
    Rule(
        "device-missing", "fault",
        r'error gathering device information.*\"(?P<device>[^\"]+)\"|no such file or directory.*--device',
        "the host has no {device} to give to the container",
        "for /dev/infiniband: sudo modprobe ib_uverbs rdma_ucm; else leave --device out",
        "docker daemon",
        own="for /dev/infiniband: sudo modprobe ib_uverbs rdma_ucm",
    ),
    Rule(
        "mount-missing", "fault",
        r"bind source path does not exist: ?(?P<path>\S*)|invalid mount config"
        r"|error while creating mount source path|not a directory: unknown.*mount"
        r"|Are you trying to mount a directory onto a file",
        "a path to mount is not on this host {path}",
        "mkdir -p it there, or give the path of this host",
        "docker daemon",
    ),
    Rule(
        "ulimit-refused", "fault",
        r"error setting rlimit|setrlimit.*operation not permitted",
        "Docker may not set the limit that was asked for (rootless Docker?)",
        "docker info | grep -i rootless",
        "runc",
    ),
    Rule(
        "wrong-architecture", "fault",
        r"no matching manifest for linux/arm64|exec format error|image's platform \(\S+\) does not match",
        "the image is for another CPU than this host's",
        "docker pull --platform linux/arm64 IMAGE; a Spark is arm64",
        "docker",
    ),
    Rule(
        "registry-login", "fault",
        r"unauthorized: (authentication required|incorrect username|<html>)|401 Authorization Required"
        r"|pull access denied|denied: requested access"
        r"|401 Unauthorized.*nvcr|nvcr\.io.*(401|unauthorized|denied)|no basic auth credentials"
        r"|Cannot perform an interactive login|Error response from daemon: .*login attempt to .*failed"
        r"|access forbidden",
        "the registry refuses: not logged in, wrong key, or the image's name is wrong",
        "docker login nvcr.io with user $oauthtoken and an NGC key; check the name",
        "docker, NGC standard text",
    ),
    Rule(
        "image-unknown", "fault",
        r"manifest (for \S+ not found|unknown)|: not found: manifest|repository does not exist"
        r"|^(?!.*Handler for GET).*No such image",
        "the registry or this host has no such image or tag",
        "check image and tag; docker images",
        "docker",
    ),
    Rule(
        "registry-unreachable", "fault",
        r"Client\.Timeout exceeded|TLS handshake timeout|dial tcp \S+: i/o timeout",
        "the registry does not answer",
        "curl -I https://REGISTRY/v2/; DNS, proxy, MTU of the uplink",
        "docker daemon",
    ),
    Rule(
        "registry-certificate", "fault",
        r"x509: certificate signed by unknown authority|x509: certificate is valid for",
        "the registry's certificate is not trusted here: a proxy in between, or a private registry",
        "put its CA into /etc/docker/certs.d/REGISTRY/ca.crt",
        "docker daemon",
    ),
    Rule(
        "registry-limit", "fault",
        r"toomanyrequests|You have reached your.*pull rate limit",
        "the registry limits anonymous pulls",
        "docker login, or wait some hours",
        "docker hub",
    ),
    Rule(
        "image-differs", "fault",
        r"image mismatch (on|error)|worker image id differs|images? (ids? )?differs? between (nodes|hosts)",
        "a tool found different image ids on the hosts: the images differ, or only the image stores do, in which "
        "ids never agree",
        "on both: docker info | grep 'Storage Driver'; docker image inspect --format '{{json .RootFS.Layers}}' "
        "IMAGE: equal layers are equal images",
        "eugr/spark-vllm-docker#327",
    ),
    Rule(
        "program-not-in-image", "fault",
        r'exec: \\?\"(?P<program>[^\"\\]+)\\?\": (executable file not found|stat|no such file|permission denied)'
        r"|starting container process caused: .*no such file",
        "the image has no program {program}",
        "look inside: docker run --rm --entrypoint sh IMAGE -c 'which {program}'",
        "runc",
    ),
    Rule(
        "container-gone", "note",
        r"No such container: ?(?P<name>\S*)|container \S+ is not running",
        "the container is not there or does not run",
        "docker ps -a; docker logs NAME",
        "docker", secondary=True,
    ),
)  # fmt: skip

ANY_START = (
    Rule(
        "docker-run-failed", "unknown",
        r"docker run failed|exit code:? ?\(?125\b|exit status:? 125\b|exited with (code |status )?125\b"
        r"|\(exit 125\)|OCI runtime (create|exec) failed|failed to create (task|shim)"
        r"|Error response from daemon: (?!Conflict)",
        "Docker could not start the container; this line does not say why",
        "Docker's own words stand before it: run the same docker run by hand and read its stderr",
        "NVIDIA/NemoClaw#8685", secondary=True,
        own="Docker's own words stand above",
    ),
)  # fmt: skip
