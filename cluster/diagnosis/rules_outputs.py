"""Rules without a pattern: what outputs of commands mean. Their conditions are the functions in judge_*.py."""

from __future__ import annotations

from cluster.diagnosis.rule import FROM_CLUSTER, Rule
from cluster.plan.checks_gpu import end_process

MTU = "sudo ip link set NETDEV mtu 9000 at both ends and for both twins, and in netplan so that it stays"
CLOCKS = "nvidia-smi --query-gpu=utilization.gpu,power.draw,clocks.sm --format=csv"
HOLDERS = "docker ps; nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv"
HOST_IP = "on every host set VLLM_HOST_IP to the address that ray start --node-ip-address has there"

LINKS = (
    Rule(
        "no-link-up", "fault", "",
        "no port of the ConnectX is up: no cable, not seated, or the other host is off",
        "reseat the QSFP cable at both ends; is the other host on?",
        "NVIDIA/dgx-spark-playbooks, connect-two-sparks",
    ),
    Rule(
        "one-twin-up", "warning", "",
        "only one half of the port is up: {netdev} without {twin}, so half the bandwidth",
        "sudo ip link set {twin} up; reseat the cable",
        "NVIDIA/NemoClaw#8520",
    ),
    Rule(
        "ports-crossed", "warning", "",
        "the cable is in another port here ({here}) than there ({there}): names of interfaces and HCAs differ by host",
        "plug the same port on both hosts, or set the names per host and list them in ray_non_carry_over_env_vars.json",
        "spark-arena/sparkrun#135",
    ),
    Rule(
        "link-local-address", "warning", "",
        "{netdev} has only a link-local address, which changes with reboots and cables",
        "give it a static address in netplan; until then read it anew at every start",
        "NVIDIA/dgx-spark-playbooks, nccl",
    ),
    Rule(
        "fabric-no-address", "warning", "",
        "{netdev} is up and has no IPv4 address, so its half of the bandwidth is not used",
        "give it an address in netplan",
        "NVIDIA/dgx-spark-playbooks, nccl",
    ),
    Rule(
        "address-twice", "fault", "",
        "both hosts have the address {address}",
        "give each host its own address in netplan",
        "iproute2",
    ),
    Rule(
        "no-common-subnet", "fault", "",
        "the fabric interfaces of the two hosts share no subnet ({here} and {there})",
        "give both ends of each link addresses in one subnet",
        "NVIDIA/dgx-spark-playbooks",
    ),
    Rule(
        "mtu-differs", "fault", "",
        "the MTU differs at the two ends of a link ({small} and {large}): large RDMA transfers fail or hang",
        MTU,
        "tonyd2wild DeepSeek-v4-Flash 2x DGX Spark#38",
    ),
    Rule(
        "mtu-1500", "warning", "",
        "both ends run at MTU 1500; 9000 is faster",
        MTU,
        "NVIDIA/dgx-spark-playbooks#25", slow=True,
    ),
    Rule(
        "gid-moved", "warning", "",
        "RoCE v2 over IPv4 is at GID index {index} here, and index {hole} is empty: a pinned NCCL_IB_GID_INDEX=3 fails",
        "leave NCCL_IB_GID_INDEX unset (not empty: empty counts as 0)",
        "tonyd2wild DeepSeek-v4-Flash 2x DGX Spark#38",
    ),
    Rule(
        "neighbour-silent", "warning", "",
        "{address} does not answer on {netdev}",
        "is the cable in, and the address right at the other end? ip -br addr there",
        "iproute2",
    ),
    Rule(
        "link-went-down", "fault", "",
        "{netdevs} went down and did not come back",
        "reseat or replace the cable; is the other host on?",
        "mlx5 driver",
    ),
    Rule(
        "link-flaps", "warning", "",
        "{netdevs} goes down again and again",
        "reseat or replace the cable",
        "mlx5 driver",
    ),
)  # fmt: skip

SPEED = (
    Rule(
        "data-corrupt", "fault", "",
        "the test found wrong data",
        "another NCCL build; reseat the cable",
        "nccl-tests",
    ),
    Rule(
        "nic-degraded", "fault", "",
        "{gbps} Gb/s where a twin gives 92 and more: with a clean link the ConnectX came up degraded",
        "reboot both hosts, test again; if it is as slow: power both off, unplug their power bricks for a minute",
        "NVIDIA/dgx-spark-playbooks PR#108", slow=True,
    ),
    Rule(
        "rdma-slow", "warning", "",
        "{gbps} Gb/s where a twin gives 92 and more",
        f"{MTU}; test again with nothing else running",
        "NVIDIA/dgx-spark-playbooks, performance guide", slow=True,
    ),
    Rule(
        "tcp-slow", "warning", "",
        "TCP reaches {gbps} Gb/s over what should be 100 a twin",
        "several streams (iperf3 -P 8), then ib_write_bw: a stale ConnectX gives 8–25",
        "NVIDIA/dgx-spark-playbooks PR#108", slow=True,
    ),
    Rule(
        "nccl-slow", "fault", "",
        "NCCL reaches {speed} GB/s of 19–24: the data does not go over both HCAs, or not over RoCE at all",
        "set NCCL_IB_HCA to both HCAs that face the peer; NCCL_DEBUG=INFO shows which are used; a release of NCCL",
        "NVIDIA/dgx-spark-playbooks#102", slow=True,
        own="cluster doctor names links that are down, or have no address",
    ),
    Rule(
        "nccl-one-twin", "warning", "",
        "NCCL reaches {speed} GB/s of 19–24, as one half of the port gives",
        "set NCCL_IB_HCA to both HCAs; both netdevs need addresses",
        "NVIDIA/dgx-spark-playbooks#102", slow=True,
        own="cluster doctor names links that are down, or have no address",
    ),
    Rule(
        "nccl-mtu", "warning", "",
        "NCCL reaches {speed} GB/s of 19–24: it works, and is what MTU 1500 gives",
        MTU,
        "NVIDIA/dgx-spark-playbooks#25", slow=True,
    ),
)  # fmt: skip

MACHINE = (
    Rule(
        "cma-bug", "fault", "",
        "the kernel counts more free CMA memory than there is: the regression of 7.0.0-10xx-nvidia, which breaks RDMA "
        "registration while memory looks free",
        "uname -r; boot 6.17.0-103x-nvidia, or add kho=off to the kernel's command line",
        "MiaAI DeepSeek-v4-Flash-DSpark-2x#259",
    ),
    Rule(
        "memory-held", "warning", "",
        "{available} of {total} GiB are available: processes hold the rest, as they do while a model is served",
        f"{HOLDERS}. Dropping caches does not help",
        "eugr/spark-vllm-docker#257",
    ),
    Rule(
        "page-cache", "note", "",
        "{cache} GiB are page cache: available, though vLLM before its fix counts it as used",
        "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches, if vLLM complains of free memory",
        "vllm-project/vllm#48140",
    ),
    Rule(
        "gpu-power-capped", "fault", "",
        "the GPU is {busy} % busy at {power} W and {clock} MHz: its power is capped by supply or firmware",
        "shut down, unplug the power brick for a minute; firmware update; else RMA",
        "parallelArchitect/spark-gpu-throttle-check", slow=True,
    ),
    Rule(
        "gpu-wedged", "fault", "",
        "the GPU is {busy} % busy at {power} W with full clocks ({clock} MHz): a kernel spins and waits, usually for a "
        "peer; nothing is computed",
        "are tokens moving? if not, restart all ranks together; NCCL's view: echo verbose status | nc localhost 28028",
        "vllm-project/vllm#42354, #46097",
    ),
    Rule(
        "gpu-stalled", "warning", "",
        "the GPU is {busy} % busy at {power} W: it spins in a kernel that waits, or its power is capped",
        f"the clocks tell them apart: {CLOCKS}",
        "eugr/spark-vllm-docker#260",
    ),
    Rule(
        "orphan-workers", "fault", "",
        "{name} holds {held} GiB and no container runs: a leftover of one, or a server that was started without",
        end_process("{pids}"),
        "vllm-project/vllm-omni#2317",
    ),
    Rule(
        "engine-holds-memory", "note", "",
        "{name} and others hold {held} GiB: normal while a server runs, in a container or without one",
        f"docker ps; {end_process('{pids}')}",
        "vllm-project/vllm-omni#2317",
    ),
    Rule(
        "disk-full", "fault", "",
        "{path} is {used} % full",
        "docker system df; hf cache ls; remove what is not needed",
        "df",
    ),
    Rule(
        "disk-nearly-full", "warning", "",
        "{path} is {used} % full",
        "docker system df; hf cache ls; remove what is not needed",
        "df",
    ),
    Rule(
        "machine-id-twice", "fault", "",
        "two hosts have one machine-id: a cloned disk, or one host named twice",
        "on the clone: sudo rm /etc/machine-id; sudo systemd-machine-id-setup; reboot",
        "systemd",
    ),
    Rule(
        "hostname-twice", "warning", "",
        "two hosts are named {name}",
        "sudo hostnamectl set-hostname OTHER on one of them",
        "hostnamectl",
    ),
)  # fmt: skip

SERVICES = (
    Rule(
        "ray-node-ip", "fault", "",
        "vLLM asks Ray for a node at {address} and waits; {gpus} GPUs are there, so no node has that address",
        HOST_IP,
        "vllm-project/vllm#7815",
        own=FROM_CLUSTER,
    ),
    Rule(
        "ray-too-few-gpus", "fault", "",
        "a placement group waits for GPUs that Ray does not have",
        "a node and a GPU a host must be there before vllm serve",
        "gpustack/gpustack#5181",
    ),
    Rule(
        "ray-one-node", "fault", "",
        "Ray has {nodes} node and {gpus} GPU: for a model over two hosts the worker never joined",
        "look at the worker's container log; can it reach the head's port 6379?",
        "NVIDIA/dgx-spark-playbooks#63",
    ),
    Rule(
        "ray-node-lost", "fault", "",
        "Ray lost a node lately",
        "on that host: docker ps -a; journalctl -k | tail",
        "ray status",
    ),
    Rule(
        "no-nvidia-runtime", "warning", "",
        "no nvidia runtime is registered: normal on a stock Spark, where --gpus all works without, a fault elsewhere",
        "this decides: docker run --rm --gpus all IMAGE nvidia-smi -L",
        "DGX OS; NVIDIA/nvidia-container-toolkit#854",
        own="cluster doctor tries a GPU in a container on every host",
    ),
    Rule(
        "image-stores-differ", "note", "",
        "the hosts keep images in different stores ({stores}): image ids never agree between them",
        "compare docker image inspect --format '{{json .RootFS.Layers}}' IMAGE",
        "eugr/spark-vllm-docker#327",
    ),
    Rule(
        "requests-running", "note", "",
        "{running} requests run; whether tokens move needs a second look",
        "read /metrics again after 30 s: generation_tokens_total must have grown",
        "eugr/spark-vllm-docker#260",
    ),
    Rule(
        "tokens-frozen", "warning", "",
        "{running} requests run and no token came between two looks; a long prefill does that too, but above 30 W",
        f"{CLOCKS} on every host; under 30 W it hangs: restart all ranks together",
        "eugr/spark-vllm-docker#260",
    ),
    Rule(
        "server-wedged", "fault", "",
        "{running} requests run, no token came between two looks, and the GPU draws at most {power} W: it hangs",
        "restart all ranks together; /health stays green meanwhile",
        "eugr/spark-vllm-docker#260",
    ),
    Rule(
        "text-insane", "fault", "",
        "{wrong}: weights or kernels are wrong, though the server is up",
        "another checkpoint; for NVFP4 MoE --moe-backend marlin; VLLM_USE_DEEP_GEMM=0",
        "vllm-project/vllm#39407", slow=True,
    ),
)  # fmt: skip

OF_OUTPUTS: dict[str, Rule] = {rule.id: rule for rule in (*LINKS, *SPEED, *MACHINE, *SERVICES)}
