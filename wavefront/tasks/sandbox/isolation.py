"""Isolation of the checker and the runner: namespaces, a private root, resource limits."""

from __future__ import annotations

import math
import os
import resource
import stat
import sys

from wavefront.tasks.sandbox import syscalls

ROOT = "/tmp"  # any folder: the new root is mounted over it, in our namespace only
TMP_SIZE = "16m"  # of the private /tmp
NOBODY = 65534
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
THIRD_PARTY = ("/usr/lib/python3/dist-packages", "/usr/lib64/python3/site-packages")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def enter_namespaces() -> list[str]:
    """Move this process into new namespaces. A child outside them writes the user mapping."""
    me, user, group = os.getpid(), os.geteuid(), os.getegid()
    ready, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(go)
        if os.read(ready, 1):
            _map_user(me, user, group)
        os._exit(0)
    os.close(ready)
    try:
        syscalls.unshare(sum(syscalls.NEW_NAMESPACES.values()))
        os.write(go, b"1")
    finally:
        os.close(go)
        os.waitpid(helper, 0)
    return [f"{name} namespace" for name in sorted(syscalls.NEW_NAMESPACES)]


def _map_user(process: int, user: int, group: int) -> None:
    """Map the user to root inside. Map root outside to nobody, because limits do not bind root."""
    _write(process, "setgroups", "deny")
    for name, own in (("uid_map", user), ("gid_map", group)):
        if user != 0 or not _write(process, name, f"0 {NOBODY} 1"):
            _write(process, name, f"0 {own} 1")


def _write(process: int, name: str, text: str) -> bool:
    try:
        with open(f"/proc/{process}/{name}", "w") as file:
            file.write(text)
    except OSError:
        return False
    return True


def enter_root() -> list[str]:
    """Switch to a root with only Python's library, shared libraries, three devices and a /tmp."""
    syscalls.mount("", "/", flags=syscalls.PRIVATE | syscalls.RECURSIVE)
    library = os.path.realpath(os.path.dirname(os.__file__))
    sources = [source for source in (*LIBRARIES, library, *DEVICES) if os.path.exists(source)]
    # Open them now: after the change of user, their parent folders may be unreadable.
    opened = {source: os.open(source, os.O_PATH | os.O_NOFOLLOW) for source in sources}
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.umask(0o022)
    flags = syscalls.NO_SUID | syscalls.NO_DEVICES
    syscalls.mount_tmpfs(ROOT, flags=flags, options="size=1m,mode=755")
    for source, number in opened.items():
        _bind_into_root(source, number)
    # Hide third-party packages: only the standard library is available.
    for name in (f"{library}/site-packages", f"{library}/dist-packages", *THIRD_PARTY):
        if os.path.isdir(ROOT + name):
            syscalls.mount_tmpfs(ROOT + name, flags=flags, options="size=4k,mode=755")
    os.makedirs(f"{ROOT}/tmp", exist_ok=True)
    syscalls.mount_tmpfs(
        f"{ROOT}/tmp", flags=flags, options=f"size={TMP_SIZE},nr_inodes=1024,mode=700"
    )
    syscalls.pivot_root(ROOT)
    read_only = syscalls.REMOUNT | syscalls.BIND | syscalls.READ_ONLY
    syscalls.mount("", "/", flags=read_only | flags)
    os.chdir("/tmp")
    sys.path[:] = [name for name in sys.path if name.startswith(library)]
    return ["own root, read-only", "no /proc", f"private /tmp of {TMP_SIZE}"]


def _bind_into_root(source: str, number: int) -> None:
    """Bind the opened file or folder at the same path under the new root, read-only."""
    target = ROOT + source
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(os.fstat(number).st_mode):
        os.makedirs(target, exist_ok=True)
        syscalls.bind_read_only(f"/proc/self/fd/{number}", target)
    else:
        open(target, "w").close()
        syscalls.bind_read_only(f"/proc/self/fd/{number}", target)
    os.close(number)


def limit_resources(seconds: float, memory: int) -> list[str]:
    """Set hard limits for this process and every process that it starts."""
    limits = {
        "AS": memory, "CPU": max(1, math.ceil(seconds)), "NPROC": 16, "FSIZE": 1 << 24,
        "NOFILE": 64, "CORE": 0, "MSGQUEUE": 0, "MEMLOCK": 0,
    }  # fmt: skip
    applied = []
    for name, maximum in limits.items():
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (maximum, maximum))
        except (ValueError, OSError, AttributeError):  # not every system has every limit
            continue
        applied.append(name)
    return [f"limits: {' '.join(applied)}"]
