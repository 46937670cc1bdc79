"""Rules for reaching hosts and copying to them: ssh, sudo, names, rsync, programs that are not found."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule

SSH = (
    Rule(
        "host-key-changed", "fault",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending \S+ key in (?P<file>\S+)|host key .* has changed",
        "the host's key is not the one that is known: it was installed anew, or another machine answers",
        "compare the fingerprint at the host's console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then "
        "ssh-keygen -R HOST",
        "OpenSSH",
    ),
    Rule(
        "host-key-unknown", "fault",
        r"Host key verification failed|No \S+ host key is known for|authenticity of host .* can't be established",
        "the host's key is not known here",
        "cluster inventory add NAME ADDRESS, or ssh to it once and compare the fingerprint",
        "OpenSSH", secondary=True,
    ),
    Rule(
        "ssh-publickey", "fault",
        r"Permission denied \((publickey|password|keyboard|gssapi)|Too many authentication failures"
        r"|Authentication failed\.|Permission denied, please try again",
        "ssh does not get in: wrong user, a key that is not there or needs a passphrase without an agent, or a "
        "drop-in of sshd",
        "ssh -v HOST; ssh -G HOST | grep -E 'user|identityfile'; ssh-copy-id HOST; ssh-add",
        "spark-arena/sparkrun#69, #92, MiaAI sparkDash#44",
    ),
    Rule(
        "ssh-key-file", "fault",
        r"UNPROTECTED PRIVATE KEY FILE"
        r"|Load key .*: (invalid format|error in libcrypto|Permission denied|bad permissions)"
        r"|identity file .* not accessible",
        "ssh cannot use the key file",
        "chmod 600 it, and check that it is the private half",
        "OpenSSH",
    ),
    Rule(
        "ssh-controlpath", "fault",
        r"too long for Unix domain socket|ControlPath.*too long",
        "ssh's ControlPath is longer than a socket's name may be (about 104 characters)",
        "ControlPath ~/.ssh/%C in ssh_config: short and unique",
        "skypilot-org/skypilot#10323",
    ),
    Rule(
        "ssh-banner-timeout", "fault",
        r"timed out during banner exchange|SSH banner timeout|Error reading SSH protocol banner"
        r"|banner exchange: Connection .*timed out",
        "the host accepts connections but sshd cannot answer: it is out of memory and thrashing, not a network "
        "fault",
        "wait (it may recover in 25 minutes) or power-cycle; start nothing more on it",
        "eugr/spark-vllm-docker#257",
    ),
    Rule(
        "ssh-timeout", "fault",
        r"ssh: connect to host (?P<host>\S+) port \d+: (Connection|Operation) timed out"
        r"|Connection to (?P<peer>\S+) port \d+ timed out|port \d+: Connection timed out",
        "{host}{peer} does not answer on its ssh port: off, another network, or a fabric address that is not "
        "routed from here",
        "use the management address in the inventory; ping it",
        "spark-arena/sparkrun#176",
    ),
    Rule(
        "ssh-no-route", "fault",
        r"ssh: connect to host (?P<host>\S+) port \d+: No route to host|port \d+: No route to host",
        "no way to {host}: it is off, or not in this network",
        "ping it; ip route get ADDRESS",
        "OpenSSH",
    ),
    Rule(
        "ssh-no-sshd", "fault",
        r"ssh: connect to host (?P<host>\S+) port \d+: Connection refused|port 22: Connection refused",
        "{host} is there but no sshd listens on that port",
        "on it: sudo systemctl enable --now ssh; check the port",
        "OpenSSH",
    ),
    Rule(
        "name-unknown", "fault",
        r"Could not resolve host(name)?|Name or service not known|Temporary failure in name resolution"
        r"|lookup \S+.*no such host|cannot resolve \S+|Could not resolve host:",
        "a name does not resolve",
        "use addresses in the inventory; for .local names see avahi-resolve -n NAME",
        "resolver(3)", until="ready",
    ),
    Rule(
        "ssh-loopback-peer", "warning",
        r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3} -> 127\.0\.0\.\d+",
        "a loopback address is in a list of hosts, so keys are copied to the wrong place",
        "put each host's own address in the list",
        "spark-arena/sparkrun#84",
    ),
    Rule(
        "ssh-no-directory", "fault",
        r"\.ssh(/\w+)?['\"]?: No such file or directory",
        "there is no ~/.ssh on that machine",
        "mkdir -m 700 ~/.ssh",
        "NVIDIA/dgx-spark-playbooks",
    ),
    Rule(
        "ssh-all-failed", "unknown",
        r"All SSH authentication methods failed|SSH cmd .*FAILED rc=255|Passwordless SSH to \S+ failed"
        r"|SSH script <- \S+ FAILED|Pipeline <- \S+ FAILED",
        "a tool could not get in over ssh; this line does not say why",
        "run ssh -v HOST by hand and read the last lines",
        "skypilot-org/skypilot#10323", secondary=True,
    ),
    Rule(
        "ssh-broken", "fault",
        r"client_loop: send disconnect|packet_write_wait: Connection|kex_exchange_identification: .*(closed|reset)"
        r"|Connection (closed|reset) by \S+ port \d+(?!.*preauth)|Broken pipe.*ssh",
        "an ssh connection broke: the host went down, too many at once, or the network changed",
        "is the host up? uptime; MaxStartups in sshd_config",
        "OpenSSH; Ansible#16731", secondary=True,
    ),
    Rule(
        "sudo-password", "fault",
        r"sudo: a (password|terminal) is required|sudo: no tty present|is not in the sudoers file",
        "sudo asks for a password where nobody can type one",
        "allow the one command in /etc/sudoers.d with NOPASSWD, or run it by hand",
        "sudo",
    ),
    Rule(
        "target-directory", "fault",
        r'rsync: .*mkdir \"?(?P<path>[^\"]+)\"? failed|rsync: .*change_dir .*failed'
        r"|scp: .*No such file or directory|rsync: .*link_stat .*failed|mkdir \S+ failed: No such file",
        "a directory of the control machine is not on that host {path}",
        "give each host its own paths; mkdir -p there",
        "spark-arena/sparkrun#67",
    ),
    Rule(
        "rsync-ended", "unknown",
        r"rsync error: |rsync: connection unexpectedly closed|lost connection$",
        "a copy ended; this line does not say why",
        "the line before it names the cause",
        "rsync", secondary=True,
    ),
    Rule(
        "git-tag", "fault",
        r"Remote branch \S+ not found in upstream|pathspec '\S+' did not match",
        "a tag or branch in the instructions does not exist any more",
        "git ls-remote --tags; take a newer one",
        "NVIDIA/dgx-spark-playbooks#7",
    ),
    Rule(
        "rdma-tools-missing", "note",
        r"(ibdev2netdev|ibv_devinfo|show_gids|rdma|ib_write_bw|ethtool): (command )?not found",
        "the RDMA tools are not installed on this host; nothing needs them",
        "sudo apt install rdma-core ibverbs-utils perftest",
        "DGX OS",
    ),
)  # fmt: skip

ANY_PROGRAM = (
    Rule(
        "program-missing", "fault",
        r"^(.*[:\s])?(?P<program>[\w.+-]+): (command )?not found$",
        "there is no program {program} on the PATH of that shell",
        "install it, or use its absolute path",
        "sh", secondary=True,
    ),
)  # fmt: skip
