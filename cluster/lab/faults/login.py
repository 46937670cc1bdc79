"""Faults of SSH, of the user's rights, and what other programs do."""

from __future__ import annotations

from cluster.lab.faults.fault import Fault, Scene
from cluster.lab.shape import USER
from cluster.lab.spark import await_ssh, host_key, start_inside
from cluster.lab.start import UNKNOWN_KEY

KEY = "/etc/ssh/ssh_host_ed25519_key"


def change_host_key(scene: Scene) -> None:
    """A new host key, as after a reinstallation; known_hosts keeps the old one."""
    scene.shell(f"test -e {KEY}.kept || (cp -p {KEY} {KEY}.kept && cp -p {KEY}.pub {KEY}.kept.pub)")
    scene.shell(f"rm {KEY} {KEY}.pub; ssh-keygen -q -t ed25519 -N '' -f {KEY}")
    restart_sshd(scene)


def restore_host_key(scene: Scene) -> None:
    """Undo change_host_key."""
    scene.shell(f"test ! -e {KEY}.kept || (mv {KEY}.kept {KEY} && mv {KEY}.kept.pub {KEY}.pub)")
    restart_sshd(scene)


def forget_host_key(scene: Scene) -> None:
    """Take the host out of the lab's known_hosts."""
    known = scene.place.known_hosts
    rows = [row for row in known.read_text().splitlines(True) if row.split()[0] != scene.spark.management]
    known.write_text("".join(rows))


def learn_host_key(scene: Scene) -> None:
    """Undo forget_host_key."""
    forget_host_key(scene)
    with scene.place.known_hosts.open("a") as known:
        known.write(host_key(scene.place, scene.spark))


def stop_sshd(scene: Scene) -> None:
    """Nothing listens for SSH; open sessions end too."""
    scene.shell("pkill -x sshd; true")


def restart_sshd(scene: Scene) -> None:
    """End sshd with its sessions, and start it again."""
    stop_sshd(scene)
    start_inside(scene.init, "/usr/sbin/sshd", "-D", "-e")
    await_ssh(scene.spark)


def leave_docker_group(scene: Scene) -> None:
    """The user is not in group docker; sessions that are open keep it."""
    scene.shell(f"gpasswd -d {USER} docker >/dev/null 2>&1; true")


def join_docker_group(scene: Scene) -> None:
    """Undo leave_docker_group."""
    scene.shell(f"gpasswd -a {USER} docker >/dev/null 2>&1")


def take_sudo(scene: Scene) -> None:
    """sudo asks for a password that the user does not have."""
    scene.inside("rm", "-f", f"/etc/sudoers.d/{USER}")


def give_sudo(scene: Scene) -> None:
    """Undo take_sudo."""
    scene.shell('umask 227; rm -f "$2"; echo "$1 ALL=(ALL) NOPASSWD: ALL" >"$2"', USER, f"/etc/sudoers.d/{USER}")


def take_port(scene: Scene) -> None:
    """Another program listens on port 8000."""
    start_inside(scene.init, "python3", "-m", "http.server", "8000", "--directory", "/srv")
    scene.shell("for i in $(seq 50); do ss -Hltn sport = :8000 | grep -q . && exit 0; sleep 0.1; done; exit 1")


def free_port(scene: Scene) -> None:
    """Undo take_port."""
    scene.shell("pkill -f 'http[.]server 8000'; true")


LOGIN_FAULTS = (
    Fault("host-key", "the host's SSH key has changed", change_host_key, restore_host_key),
    Fault(UNKNOWN_KEY, "the host's SSH key is not in known_hosts", forget_host_key, learn_host_key),
    Fault("no-ssh", "sshd is not running: connection refused", stop_sshd, restart_sshd),
    Fault("no-docker", "the user is not in group docker", leave_docker_group, join_docker_group),
    Fault("no-sudo", "sudo asks for a password", take_sudo, give_sudo),
    Fault("port-taken", "another program listens on port 8000", take_port, free_port),
)
