"""Rules for Gloo, torch.distributed and perftest."""

from __future__ import annotations

from cluster.diagnosis.rule import FROM_CLUSTER, Rule

TORCH = (
    Rule(
        "gloo-loopback-peer", "fault",
        r"Gloo connectFullMesh failed.*remote=\[(127\.|::1)|remote=\[127\.0\.[01]\.1\]:\d+",
        "Gloo tries to reach the other host at a loopback address: that host's name resolves to 127.0.x there",
        "set GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and NCCL_SOCKET_IFNAME on every host to its own fabric "
        "interface",
        "vllm-project/vllm#7074, aws-samples/aws-do-eks#50",
        own=FROM_CLUSTER,
    ),
    Rule(
        "gloo-mesh", "fault",
        r"Gloo connectFullMesh failed",
        "the ranks' Gloo connections could not be made: wrong interface, or a firewall between the hosts",
        "set GLOO_SOCKET_IFNAME on every host to its own fabric interface; sudo ufw status",
        "gpustack/gpustack#2125",
        own=f"{FROM_CLUSTER}; sudo ufw status",
    ),
    Rule(
        "gloo-loopback", "warning",
        r"Using the loopback address as fallback|Unable to resolve hostname to a \(local\) address",
        "this host's name resolves to no address of its own, so Gloo uses loopback: harmless on one host, a "
        "failure on two",
        "set GLOO_SOCKET_IFNAME to the fabric interface on every host",
        "pytorch/gloo#223", until="ready",
        own=FROM_CLUSTER,
    ),
    Rule(
        "rendezvous-unreachable", "fault",
        r"client socket has (timed out|failed).* (trying to )?connect to"
        r"|Timed out after \d+ seconds? waiting for clients|DistNetworkError: .*(timed out|refused)",
        "a rank could not reach rank 0's rendezvous address, or not all ranks started",
        "start all ranks; --master-addr must be rank 0's fabric address, its port free of firewalls",
        "PyTorch source",
    ),
    Rule(
        "perftest-unreachable", "fault",
        r"Couldn't connect to \S+:\d+|Unable to init the socket connection|Failed to modify QP \d+ to RT[RS]"
        r"|Unable to Connect the HCA's through the link",
        "the bandwidth test could not connect to its peer over this link",
        "start the server side first (ib_write_bw -d HCA), then give the client that host's fabric address; ping "
        "it",
        "linux-rdma/perftest source",
    ),
)  # fmt: skip
