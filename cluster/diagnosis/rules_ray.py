"""Rules for Ray: joining, addresses, versions, placement."""

from __future__ import annotations

from cluster.diagnosis.rule import FROM_CLUSTER, Rule

JOINING = (
    Rule(
        "ray-missing", "fault",
        r"ray: (command )?not found|No module named '?ray\b|\"ray\": executable file not found"
        r"|Failed to import Ray",
        "the image holds no Ray; vLLM's own images since 0.18 and NGC 26.05 have none",
        "use an image with Ray, or --backend mp, which needs none",
        "NVIDIA/dgx-spark-playbooks#75, #109", until="ready",
    ),
    Rule(
        "ray-versions", "fault",
        r"Version mismatch: The cluster was started with|(Ray|Python) version mismatch",
        "the nodes run different Ray or Python versions; Python's patch number counts",
        "the same image on every host",
        "ray-project/ray#44063",
    ),
    Rule(
        "ray-token", "fault",
        r"InvalidAuthToken|Invalid or missing authentication token|returned an authentication error"
        r"|Unauthorized: Missing authentication|Forbidden: Invalid authentication"
        r"|Token authentication is enabled but no|requires authentication, but no token"
        r"|authentication token you provided is invalid",
        "Ray's token is missing or another cluster's",
        "RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN_PATH content on every node",
        "Ray source, authentication",
        own="cluster down and cluster up, which gives all ranks a new token",
    ),
    Rule(
        "ray-loopback", "fault",
        r"(Failed|Unable) to connect to GCS.* (127\.\d+\.\d+\.\d+|localhost):\d+",
        "this node looks for Ray's head at its own loopback address",
        "ray start --address=HEAD_FABRIC_ADDRESS:PORT",
        "vllm-project/vllm#19543", until="joined",
        own=FROM_CLUSTER,
    ),
    Rule(
        "ray-bridge", "fault",
        r"Local node IP: 172\.17\.\d+\.\d+|node.?ip.?address\W*172\.17\.\d+\.\d+"
        r"|NodeManagerAddress\W*172\.17\.\d+\.\d+|ipv4:172\.17\.\d+\.\d+:\d+: Failed to connect"
        r"|(?<!GCS )connect\w* (to|with) \W*172\.17\.\d+\.\d+\b",
        "Ray registered an address of Docker's bridge, which no other host can reach",
        "docker run --network host on every node, and --node-ip-address with the fabric address",
        "gpustack/gpustack#1566",
        own=FROM_CLUSTER,
    ),
    Rule(
        "ray-head-gone", "fault",
        r"GCS may have been killed|GCS is terminated by",
        "Ray's head is gone, and with it the cluster",
        "look at the head's log and container: docker ps -a; restart all ranks",
        "Ray source, gcs client", secondary=True,
    ),
    Rule(
        "ray-gcs-unreachable", "fault",
        r"(Failed|Unable) to connect to GCS|Timed out while waiting for GCS|Failed to get cluster ID from GCS"
        r"|Ray Client connection timed out|Could not read 'session_name' from GCS",
        "this node cannot reach Ray's head: wrong address, the head is not up, or a firewall stands between",
        "on the head: ss -ltn | grep 6379 and sudo ufw status; start the head first; unset a stale RAY_ADDRESS",
        "vllm-project/vllm#19543, ray-project/ray#37107", until="joined",
        own="is the head's rank alive? cluster status; sudo ufw status on every host",
    ),
    Rule(
        "ray-ports-blocked", "fault",
        r"failed to connect to all addresses.*(No route to host|timed out|Timeout|refused|unreachable)",
        "Ray's parts on the two hosts cannot reach each other's ports: a firewall, or the other side has ended",
        "open all of Ray's ports between the hosts (fix them with --node-manager-port … --max-worker-port); sudo "
        "ufw status",
        "gpustack/gpustack#2024", secondary=True,
        own="sudo ufw allow from PEER_FABRIC_ADDRESS on every host",
    ),
    Rule(
        "ray-running-already", "fault",
        r"Ray is trying to start at .* but is already running|instance is already running at"
        r"|Found existing Ray instance",
        "an older Ray still runs on this host",
        "ray stop --force in the old container, or remove it",
        "Ray source, scripts",
    ),
    Rule(
        "ray-absent", "fault",
        r"Could not find any running Ray instance|RAY_ADDRESS.*(stale|not.*running)",
        "no Ray runs where it is looked for: it was not started, has ended, or RAY_ADDRESS is stale",
        "ray status in the head's container; ray stop; unset RAY_ADDRESS",
        "vllm-project/vllm#15385",
        own="is the head's rank alive? cluster status",
    ),
    Rule(
        "ray-port-taken", "fault",
        r"GCS server.*(failed to start|port).*in use|agent failed to start because of.*port conflict"
        r"|port \d+ is already (used|in use) by Ray|Failed to bind .*port",
        "a port that Ray needs is taken on this host",
        "ss -ltnp; ray stop --force; choose fixed free ports",
        "Ray source",
    ),
    Rule(
        "ray-node-unregistered", "fault",
        r"node timed out during startup|No node info found matching"
        r"|cannot find the node with node ID.*not be complete|Failed to register worker"
        r"|Unable to register worker with raylet",
        "this node's parts did not register with Ray's head in time: load, clock, or blocked ports",
        "nproc; timedatectl; sudo ufw status; raise RAY_raylet_start_wait_time_s",
        "gpustack/gpustack#5181", until="joined",
    ),
    Rule(
        "ray-runtime-env", "fault",
        r"RuntimeEnvSetupError|Failed to set up runtime environment",
        "Ray could not prepare a worker's environment on its node",
        "runtime_env_agent.log in /tmp/ray/session_latest/logs on that node",
        "Ray source",
    ),
    Rule(
        "ray-disk", "warning",
        r"is over 95% full, available space",
        "the disk of Ray's session directory is nearly full",
        "df -h /tmp; docker system df",
        "Ray source, file_system_monitor",
    ),
    Rule(
        "rank-not-joined", "fault",
        r"peers did not join|rank 0 at \S+ did not answer within",
        "a rank did not meet the others in time",
        "look at the other rank's log; can it reach rank 0 over the fabric?",
        "cluster's own rank program", secondary=True,
    ),
)  # fmt: skip

PLACEMENT = (
    Rule(
        "ray-placement-wait", "fault",
        r"Waiting for creating a placement group",
        "vLLM waits (up to 1800 s) for GPUs that Ray does not have, or not under the addresses asked for",
        "ray status: a node and a GPU a host; on every host set VLLM_HOST_IP to the address that ray start "
        "--node-ip-address has there (the fabric address)",
        "vllm-project/vllm#8908", until="placed",
        own=f"cluster status shows Ray's nodes; {FROM_CLUSTER}",
    ),
    Rule(
        "ray-node-ip", "fault",
        r"No available node types can fulfill.*'node:(?P<ip>[\d.]+)|(PACK|SPREAD)\).*'node:(?P<ip2>[\d.]+)"
        r"|specs=\[.*'node:(?P<ip3>[\d.]+)",
        "vLLM asks for a Ray node at {ip}{ip2}{ip3} and none is registered under that address: VLLM_HOST_IP "
        "differs from Ray's node address",
        "on every host set VLLM_HOST_IP to the address that ray start --node-ip-address has there (the fabric "
        "address)",
        "vllm-project/vllm#7815, eugr/spark-vllm-docker#227", until="placed",
        own=FROM_CLUSTER,
    ),
    Rule(
        "ray-too-few-gpus", "fault",
        r"No available node types can fulfill|number of required \w+ exceeds the total number of available",
        "Ray has fewer GPUs than are asked for: a worker never joined, or a GPU is held",
        "ray status: two nodes and 2.0 GPU must be there before vllm serve",
        "gpustack/gpustack#5181", until="placed",
    ),
    Rule(
        "ray-placement-timeout", "fault",
        r"Cannot provide a placement group",
        "Ray never had the GPUs that vLLM waited for: a worker did not join, or joined under another address",
        "ray status before vllm serve; on every host set VLLM_HOST_IP to the address that ray start "
        "--node-ip-address has there (the fabric address)",
        "gpustack/gpustack#5181",
        own=f"cluster status shows Ray's nodes; {FROM_CLUSTER}",
    ),
    Rule(
        "vllm-no-gpu-here", "fault",
        r"Current node has no \w+ available|driver node id .*not included in a placement"
        r"|Ray does not allocate any GPUs on the driver",
        "vLLM's own node has no GPU in Ray's eyes: a container without GPU, a GPU held by a leftover, or "
        "VLLM_HOST_IP differs",
        "nvidia-smi -L in the container; ray status; on every host set VLLM_HOST_IP to the address that ray start"
        " --node-ip-address has there (the fabric address)",
        "vllm-project/vllm#29265, #13093",
        own=f"cluster doctor tries a GPU in a container; {FROM_CLUSTER}",
    ),
    Rule(
        "ray-same-ip", "fault",
        r"Every node should have a unique IP address",
        "several Ray nodes have one address: VLLM_HOST_IP is the same everywhere",
        "on every host set VLLM_HOST_IP to the address that ray start --node-ip-address has there (the fabric "
        "address)",
        "vLLM source, ray_executor",
        own=FROM_CLUSTER,
    ),
)  # fmt: skip
