"""Rules for what NCCL prints. The order counts: the special before the general."""

from __future__ import annotations

from cluster.diagnosis.rule import FROM_CLUSTER, Rule

NCCL = (
    Rule(
        "nccl-loopback", "fault",
        r"NCCL_SOCKET_IFNAME set (by environment )?to =?lo\b|NET/\w+ : Using \[0\]lo:127\.",
        "NCCL was told to use the loopback interface: no other host can be reached over it",
        "set NCCL_SOCKET_IFNAME on each host to its own fabric interface, e.g. enp1s0f1np1",
        "Project-HAMi/HAMi-core#261",
        own=FROM_CLUSTER,
    ),
    Rule(
        "nccl-ib-disabled", "fault",
        r"NCCL_IB_DISABLE set (by environment )?to 1|NCCL_NET set (by environment )?to socket",
        "RDMA is switched off in NCCL by a variable, so the ranks talk over TCP",
        "unset NCCL_IB_DISABLE and NCCL_NET on every host, /etc/nccl.conf in the image included",
        "NVIDIA/nccl#676", slow=True,
    ),
    Rule(
        "nccl-no-verbs", "fault",
        r"Failed to open libibverbs\.so|libibverbs: Warning: (couldn't load driver|no userspace)",
        "the image lacks the RDMA user library or its mlx5 driver, so NCCL falls back to sockets",
        "use an image with libibverbs and ibverbs-providers",
        "NCCL source, ibvsymbols", slow=True,
    ),
    Rule(
        "nccl-no-device", "fault",
        r"NET/IB : No device found",
        "NCCL sees no RDMA device in this container, so it falls back to sockets although the host's RoCE may be "
        "fine",
        "run every rank with --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1, and check that "
        "NCCL_IB_HCA names HCAs of this host",
        "corti.com two-node build log", slow=True,
        own="on that host: ls /dev/infiniband; cluster doctor names what is missing",
    ),
    Rule(
        "nccl-socket", "fault",
        r"Using network Socket|NET/Socket : Using \[0\]|via NET/Socket/|Assigned NET plugin Socket",
        "the ranks' traffic goes over TCP sockets instead of RoCE, several times slower; nothing else says so",
        "leave NCCL_IB_DISABLE and NCCL_NET unset and pass --device /dev/infiniband to every container; "
        "NCCL_DEBUG=INFO must then show NET/IB : Using",
        "NVIDIA/nccl#676, areal-project/AReaL#639", slow=True,
        own="take NCCL_IB_DISABLE and NCCL_NET out of the recipe's env, and out of the image's /etc/nccl.conf",
    ),
    Rule(
        "nccl-gid-link-local", "fault",
        r"ibv_modify_qp failed with 1\d\d .*local GID fe80",
        "the GID index in use is a link-local one (fe80), which the peer does not answer",
        "leave NCCL_IB_GID_INDEX unset (not empty: empty counts as 0)",
        "NVIDIA/nccl#769",
    ),
    Rule(
        "nccl-qp-timeout", "fault",
        r"ibv_modify_qp failed with (110|101|113)\b|ibv_modify_qp failed with error "
        r"(Connection timed out|Network is unreachable|No route to host)"
        r"|Failed to modify QP( \w+)? to RTR: Connection timed out",
        "the two RoCE devices cannot reach each other: rails crossed, an HCA listed whose subnet the peer is not "
        "in, wrong GID, MTU, or a firewall or VLAN between them",
        "ping -M do -s 8972 -I NETDEV PEER over each rail; list in NCCL_IB_HCA only HCAs that share a subnet with"
        " the peer",
        "NVIDIA/nccl#2013",
        own="ping -M do -s 8972 -I NETDEV PEER over each rail; cluster doctor judges cables, MTU and GIDs",
    ),
    Rule(
        "nccl-gid-hole", "fault",
        r"ibv_modify_qp failed with (61|22|19)\b"
        r"|ibv_modify_qp failed with error (No data available|Invalid argument|No such device)"
        r"|Invalid GID index|GID index \d+ is (invalid|empty)",
        "the GID index that was pinned does not exist on this HCA: the GID table has moved",
        "leave NCCL_IB_GID_INDEX unset (not empty), or read the index anew on each HCA: show_gids",
        "tonyd2wild DeepSeek-v4-Flash 2x DGX Spark#38",
    ),
    Rule(
        "nccl-memlock", "fault",
        r"Call to ibv_(create_cq|create_qp|alloc_pd|create_srq)\w* failed.*(Cannot allocate memory|error 12)"
        r"|Couldn't create (CQ|QP|SRQ)\b|RLIMIT_MEMLOCK is \d+ bytes",
        "an RDMA queue could not be made for want of locked memory",
        "start the container with --ulimit memlock=-1 --cap-add IPC_LOCK",
        "NCCL troubleshooting, memlock",
        own="on that host: is Docker rootless? systemctl show docker -p LimitMEMLOCK",
    ),
    Rule(
        "rdma-enomem", "fault",
        r"ibv_reg_(dmabuf_)?mr\w* failed.*Cannot allocate memory|Couldn't allocate MR",
        "memory could not be registered for RDMA. With kernel 7.0.0-10xx-nvidia it is that kernel's CMA "
        "regression; else a memlock limit, or memory that is really full",
        "uname -r; grep Cma /proc/meminfo; ulimit -l. Kernel 7.0: boot 6.17.0-103x-nvidia, or add kho=off to its "
        "command line",
        "MiaAI DeepSeek-v4.1-Flash-DGX-Sparks#14",
    ),
    Rule(
        "nccl-flushed", "unknown",
        r"Got completion .*(status=|error )(5|IBV_WC_WR_FLUSH_ERR)\b",
        "work requests of a connection that had already failed",
        "look above, on the other ranks too",
        "NCCL source", secondary=True,
    ),
    Rule(
        "nccl-access", "fault",
        r"local access violation work queue error"
        r"|Got completion .*(status=|error )(4|10|IBV_WC_\w+_(PROT|ACCESS)_ERR)\b",
        "an RDMA transfer touched memory it may not: seen when the two ends have different MTU or NCCL builds",
        "compare the MTU of both ends and the NCCL version of both images",
        "NVIDIA/nccl#1524",
    ),
    Rule(
        "nccl-lost-packets", "fault",
        r"Got completion .*(status=|error )(12|13|IBV_WC_RETRY_EXC_ERR|IBV_WC_RNR\w+)\b|IBV_WC_RETRY_EXC_ERR"
        r"|transport retry counter exceeded",
        "RoCE packets do not come through between the two HCAs: different MTU at the two ends, a wrong GID, or a "
        "dead peer",
        "compare ip link's mtu at both ends of each rail, then ping -M do -s 8972; leave NCCL_IB_GID_INDEX unset",
        "NVIDIA/nccl#426",
    ),
    Rule(
        "nccl-completion", "fault",
        r"NET/IB.*Got completion .*(status|error)|Got completion from peer .* vendor.err",
        "an RDMA transfer between the ranks failed",
        "compare MTU, GID tables and NCCL versions of both ends",
        "NVIDIA/nccl#1405",
    ),
    Rule(
        "nccl-port-error", "fault",
        r"NET/IB : .*async .*event: (port error|device fatal)",
        "an RDMA port went down while it was used",
        "ibdev2netdev; dmesg | grep mlx5; reseat the cable",
        "NCCL source",
    ),
    Rule(
        "nccl-gid-moved", "warning",
        r"NET/IB : \S+ GID table changed|async event.*GID table change",
        "the GID table changed while NCCL ran: an address was added or lost on that NIC",
        "give the fabric NICs static addresses in netplan; journalctl -u NetworkManager",
        "NCCL source",
    ),
    Rule(
        "nccl-versions", "fault",
        r"Mismatched NCCL version|NCCL version mismatch with remote|NCCL library is (too old|not backwards)"
        r"|message truncated : receiv",
        "the ranks run different NCCL versions",
        "the same image on every host: docker image inspect --format '{{.RootFS.Layers}}'",
        "NCCL source",
    ),
    Rule(
        "nccl-no-interface", "fault",
        r"no socket interface found|NET/Socket : no interface found|No usable listening interface"
        r"|NET/IB : No IP interface found",
        "no interface of this host fits NCCL_SOCKET_IFNAME: the name is another host's, or the link is down",
        "set NCCL_SOCKET_IFNAME on each host from its own ip -br addr",
        "NCCL source",
        own=FROM_CLUSTER,
    ),
    Rule(
        "nccl-duplicate-gpu", "fault",
        r"Duplicate GPU detected",
        "two ranks were put on one GPU: the second host's GPU was not used",
        "one rank a host: check ray status for two nodes with a GPU each",
        "NCCL source",
    ),
    Rule(
        "nccl-shm", "fault",
        r"Error.*shared memory segment /dev/shm/nccl",
        "/dev/shm of the container is too small for NCCL",
        "docker run --shm-size 16g, or --ipc host",
        "NCCL troubleshooting",
        own="a larger --set shm_gib=…",
    ),
    Rule(
        "nccl-watchdog", "fault",
        r"Watchdog caught collective operation timeout|watchdog thread terminated with exception",
        "a collective between the hosts never ended: one rank hangs or spins while the others wait",
        "restart all ranks together; compare the NCCL build in the image with the host's libnccl (pip's and DGX "
        "OS's builds of one version behave differently)",
        "vllm-project/vllm#42354", secondary=True,
    ),
    Rule(
        "nccl-unreachable", "fault",
        r"NCCL WARN .*connect to \S+ (failed|returned).*(refused|No route|timed out|unreachable)"
        r"|socket\w*: connect to \S+ returned",
        "NCCL cannot connect to its peer: that rank has ended, or the address is of another network or behind a "
        "firewall",
        "is the peer's rank alive? then NCCL_SOCKET_IFNAME on both, and sudo ufw status",
        "NCCL source", secondary=True,
        own="is the peer's rank alive? cluster status; sudo ufw status on both",
    ),
    Rule(
        "nccl-closed", "unknown",
        r"Connection closed by remote peer|Connection was likely closed|recvValue failed|ncclRemoteError"
        r"|socket progress error|sendBytes failed",
        "a peer's connection was closed: that rank ended before",
        "look at the other rank's log for what ended it",
        "sgl-project/sglang#3099, NVIDIA/nccl#1232", secondary=True,
    ),
    Rule(
        "nccl-error", "unknown",
        r"ncclSystemError: |ncclInternalError: |ncclUnhandledCudaError: |ncclInvalid\w+: |NCCL error in: "
        r"|unhandled (cuda|system) error \(run with NCCL_DEBUG|NCCL error: |\(run with NCCL_DEBUG=",
        "NCCL failed; this line does not say why",
        "the reason stands in a NCCL WARN line: run with NCCL_DEBUG=INFO",
        "PyTorch source", secondary=True,
        own="the reason stands in a NCCL WARN line further up, or in another rank's log",
    ),
)  # fmt: skip
