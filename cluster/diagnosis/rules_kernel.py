"""Rules for what the kernel, the GPU driver and the clock of a host tell, and for its disks."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule

KERNEL = (
    Rule(
        "kernel-oom", "fault",
        r"Out of memory: Kill(ed)? process \d+ \((?P<name>[^)]*)\)|oom-kill:constraint=.*task=(?P<task>[^,]+)"
        r"|Memory cgroup out of memory|has been killed by the OOM killer",
        "the kernel ran out of memory and killed {name}{task}",
        "lower gpu-memory-utilization, stop other tenants (docker ps; nvidia-smi), and wait for MemAvailable to "
        "come back",
        "Linux mm/oom_kill.c",
    ),
    Rule(
        "kernel-oom", "fault",
        r" invoked oom-killer: ",
        "the kernel ran out of memory and looks for a process to kill",
        "lower gpu-memory-utilization, stop other tenants (docker ps; nvidia-smi)",
        "Linux mm/oom_kill.c",
    ),
    Rule(
        "oom-guard", "fault",
        r"earlyoom.*sending SIG\w+ to process|anti-oom.*(SIG|kill)|systemd-oomd.*Killed"
        r"|low memory! at or below SIG\w+ limits",
        "a guard against full memory in user space killed the process, not the kernel",
        "lower gpu-memory-utilization, or raise the guard's limit: systemctl status earlyoom systemd-oomd",
        "tonyd2wild DeepSeek-v4-Flash 2x DGX Spark#31",
    ),
    Rule(
        "driver-no-memory", "fault",
        r"NVRM:.*(NV_ERR_NO_MEMORY|Cannot allocate sysmem)",
        "the GPU driver could not get memory from the kernel; on GB10 the host may freeze next. Reported of kernel "
        "6.17 under load, of 7.0.0-10xx at every start",
        "uname -r: with 7.0 boot 6.17.0-103x-nvidia; with 6.17 lower gpu-memory-utilization",
        "NVIDIA/open-gpu-kernel-modules#1358",
    ),
    Rule(
        "driver-mismatch", "fault",
        r"Driver/library version mismatch|NVRM: API mismatch",
        "the driver's packages were upgraded under the kernel module that is loaded",
        "reboot the host; sudo apt-mark hold the nvidia packages so that unattended-upgrades leaves them",
        "NVIDIA/ubuntu-packaging-nvidia-driver#3",
    ),
    Rule(
        "gpu-lost-in-container", "fault",
        r"Failed to initialize NVML: Unknown Error",
        "the container lost its GPU, as happens after systemctl daemon-reload; the host's own nvidia-smi still "
        "works",
        "create the container anew (a restart is not enough); use CDI, or native.cgroupdriver=cgroupfs",
        "NVIDIA/nvidia-container-toolkit#1227, #48",
    ),
    Rule(
        "driver-absent", "fault",
        r"couldn't communicate with the NVIDIA driver|No devices were found|Failed to initialize NVML",
        "the NVIDIA driver is not loaded, or its GPU has gone",
        "sudo dmesg | grep -i nvrm; sudo modprobe nvidia, or reboot",
        "nvidia-smi",
    ),
    Rule(
        "gpu-xid-after-kill", "unknown",
        r"NVRM: Xid \([^)]*\): (43|45|154),",
        "the GPU cleaned up after a process that ended",
        "look for what ended that process",
        "NVIDIA Xid catalogue", secondary=True,
    ),
    Rule(
        "gpu-xid", "fault",
        r"NVRM: Xid \([^)]*\): (?P<xid>\d+)|NVRM: GPU .*has fallen off the bus|RmInitAdapter failed",
        "the GPU driver reports an error (Xid {xid})",
        "look the number up in NVIDIA's Xid catalogue; reboot; if it comes back without load, it is hardware",
        "NVIDIA Xid catalogue",
    ),
    Rule(
        "gpu-diag-failed", "fault",
        r"GpuStress\b.*\b(fail|error)|field.?diag\w*.*\bfail",
        "the vendor's field diagnosis fails: hardware",
        "RMA with the diagnosis log",
        "tonyd2wild DeepSeek-v4-Flash 2x#31",
    ),
    Rule(
        "kernel-stuck", "fault",
        r"BUG: soft lockup|detected stalls on CPUs|hung_task_timeout_secs|blocked for more than \d+ seconds"
        r"|Kernel panic|watchdog: hard LOCKUP|Unable to handle kernel",
        "the kernel itself hung or crashed",
        "save journalctl -k -b -1; other kernel or firmware; watch memory before it",
        "Linux kernel",
    ),
    Rule(
        "hardware-error", "fault",
        r"\[Hardware Error\]|Machine check events logged",
        "the machine reports a hardware error",
        "save the journal; firmware update; RMA",
        "Linux RAS",
    ),
    Rule(
        "thermal", "warning",
        r"temperature above threshold|thermal.*(throttl|critical temperature)|critical temperature reached",
        "the host slows down or stops because it is too hot",
        "more air; two Sparks are not to be stacked",
        "Linux thermal",
    ),
    Rule(
        "lmc-unsupported", "note",
        r"locked memory clocks is not supported|memory clocks? .*not supported for GPU",
        "GB10 has no memory clock to lock",
        "leave out nvidia-smi -lmc",
        "NVIDIA/daqiri#77",
    ),
    Rule(
        "clock-wrong", "fault",
        r"certificate has expired or is not yet valid|certificate is not yet valid"
        r"|is before (19|20)\d\d-\d\d-\d\dT",
        "this host's clock is wrong, so no certificate is valid to it",
        "timedatectl; sudo systemctl restart systemd-timesyncd",
        "skiffos#286",
    ),
    Rule(
        "clock-unsynced", "warning",
        r"System clock synchronized: no|Clock skew detected",
        "this host's clock is not kept by NTP",
        "sudo timedatectl set-ntp true",
        "timedatectl",
    ),
    Rule(
        "telemetry-tool", "warning",
        r"Could not read valid GPU memory telemetry|NVMLError_NotSupported",
        "a tool does not know that GB10 tells no GPU memory of its own; the machine is fine",
        "read MemAvailable instead: grep MemAvailable /proc/meminfo",
        "NVIDIA/NemoClaw#10524",
    ),
    Rule(
        "zombies", "warning",
        r"ray::\w+.*<defunct>|VLLM::\w+.*<defunct>|\sZ[sl+N<]*\s.*(?<!\S)ray::",
        "ended workers are not reaped: the container has no init",
        "docker run --init",
        "eugr/spark-vllm-docker#274",
        own="",
    ),
)  # fmt: skip

DISK = (
    Rule(
        "disk-full", "fault",
        r"No space left on device|ENOSPC\b|Disk quota exceeded|not enough (free )?(disk )?space",
        "a file system is full",
        "df -h; df -i; docker system df; hf cache ls",
        "POSIX ENOSPC; eugr/spark-vllm-docker#339",
    ),
    Rule(
        "too-many-files", "fault",
        r"Too many open files(?!`)",
        "a process reached its limit of open files",
        "docker run --ulimit nofile=1048576:1048576",
        "POSIX EMFILE",
        own="on that host: nofile under default-ulimits in /etc/docker/daemon.json, then restart Docker",
    ),
    Rule(
        "disk-failed", "fault",
        r"nvme\w*.*(I/O error|critical \w+ error|controller is down)|I/O error, dev \w+|EXT4-fs error"
        r"|Remounting filesystem read-only",
        "the disk fails, or its file system went read-only",
        "sudo dmesg | grep -iE 'nvme|ext4'; back up; sudo smartctl -a",
        "Linux block layer",
    ),
)  # fmt: skip
