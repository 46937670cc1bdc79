"""Rules for the links between hosts, names on them and firewalls."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule
from cluster.plan.checks_gpu import end_process

FABRIC = (
    Rule(
        "mtu-too-small", "fault",
        r"message too long,? ?\(?mtu ?= ?(?P<mtu>\d+)|Frag(mentation)? needed.*mtu ?= ?(?P<path>\d+)",
        "a packet of jumbo size does not fit: this end or the path has MTU {mtu}{path}",
        "sudo ip link set NETDEV mtu 9000 at both ends and for both twins, and in netplan so that it stays",
        "iputils ping; tonyd2wild DeepSeek-v4-Flash 2x DGX Spark#38",
    ),
    Rule(
        "peer-silent", "fault",
        r"Destination Host Unreachable|[1-9]\d* packets transmitted, 0 (packets )?received|, 100% packet loss",
        "the peer does not answer on this network: cable, address, subnet, or the host is off",
        "ibdev2netdev on both hosts; ip -br addr: both ends of a link in one subnet",
        "iputils ping",
    ),
    Rule(
        "network-unreachable", "fault",
        r"(connect|ping|sendto|sendmsg|ssh|socket).*: Network is unreachable",
        "this host has no route to that network: the fabric interface has no address",
        "ip -br addr; give the fabric netdevs addresses in netplan, then sudo netplan apply",
        "NVIDIA/dgx-spark-playbooks",
    ),
    Rule(
        "no-rdma-link", "fault",
        r"No active (IB|InfiniBand|RoCE|RDMA)\S* interfaces? found|No active IB-associated interfaces",
        "a tool finds no fabric interface that is up and has an address",
        "ibdev2netdev; ip -br addr; reseat the cable, give addresses in netplan",
        "eugr/spark-vllm-docker",
    ),
    Rule(
        "jumbo-refused", "warning",
        r"neighbor, or jumbo connectivity failed on",
        "a tool judged the direct link bad; one such tool misreads ip neigh of newer iproute2 and refuses healthy"
        " pairs",
        "test it yourself: ping -M do -s 8972 -I NETDEV PEER",
        "NVIDIA/NemoClaw#8519",
    ),
    Rule(
        "twins-as-ports", "warning",
        r"(stacking|QSFP) cable.*(rejected|unsupported|two ports)"
        r"|expected (exactly )?(1|one) (active )?(QSFP|CX7|ConnectX)\S* (port|interface)",
        "one QSFP port shows as two PCI functions; a tool counted them as two ports",
        "ibdev2netdev: two Up lines are one cable",
        "NVIDIA/NemoClaw#8520",
    ),
    Rule(
        "nic-failed", "fault",
        r"mlx5_core \S+.*(health compromised|internal error|PCI slot is unavailable|command timeout"
        r"|firmware (fatal|error)|failed to (init|load)|unrecoverable|handling bad device|fatal error \d)"
        r"|pcieport.*AER:.*(Uncorrect|Fatal)|mlx5_core.*AER",
        "the ConnectX or its PCI link reports a hardware error",
        "power the host off, unplug it for a minute, start again; if it comes back: sudo lspci -vv, firmware "
        "update, RMA",
        "MiaAI DeepSeek-v4-Flash-DSpark-2x#146",
    ),
    Rule(
        "mdns-conflict", "warning",
        r"Host name conflict, retrying with (?P<name>\S+)",
        "mDNS: the host's own name was taken, often by its own fabric interfaces; it is now {name}.local",
        "use addresses instead of .local names, and keep avahi off the fabric: deny-interfaces= in "
        "avahi-daemon.conf",
        "NVIDIA/dgx-spark-playbooks#56",
    ),
    Rule(
        "nm-mtu-property", "fault",
        r"(invalid|unknown) property.*\bmtu\b|'mtu' not among|ipv4\.mtu.*(invalid|unknown|not)",
        "nmcli has no ipv4.mtu",
        "sudo nmcli connection modify NAME ethernet.mtu 9000",
        "NVIDIA/daqiri#77",
    ),
    Rule(
        "orphan-by-parent", "warning",
        r"^\s*(\w+\s+)?\d+\s+1\s.*VLLM::\w+",
        "an engine process whose parent is init: on a host a service, or a leftover of a container that is gone; "
        "in a container normal",
        f"docker ps; if it is of no container: {end_process('PID')}",
        "vllm-project/vllm-omni#2317",
    ),
    Rule(
        "firewall-on", "warning",
        r"^Status: active$",
        "a firewall is on: Ray, NCCL and vLLM need all their ports open between the hosts",
        "sudo ufw allow from PEER_FABRIC_ADDRESS on every host",
        "ufw",
    ),
    Rule(
        "firewall-blocks", "fault",
        r"\[UFW BLOCK\] IN=(?P<netdev>en\S+)|filter_IN_\w+REJECT.*IN=(?P<zone>en\S+)",
        "the firewall drops packets that came in on {netdev}{zone}",
        "allow the peers: sudo ufw allow in on NETDEV from PEER",
        "ufw log format",
    ),
)  # fmt: skip
