"""The walls around judge and prisoner: namespaces, a root of its own, limits, a filter of calls."""

from __future__ import annotations

import math
import os
import resource
import stat
import sys

from wavefront.tasks.sandbox import syscalls

ROOT = "/tmp"  # any folder: our new root is mounted over it, for us alone
SPACE = "16m"  # of the private /tmp
NOBODY = 65534
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
INSTALLED = ("/usr/lib/python3/dist-packages", "/usr/lib64/python3/site-packages")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def enter_namespaces() -> list[str]:
    """Leave every namespace for a new one; a child process has the powers to name its user."""
    me, user, group = os.getpid(), os.geteuid(), os.getegid()
    ready, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(go)
        if os.read(ready, 1):
            _name_user(me, user, group)
        os._exit(0)
    os.close(ready)
    try:
        syscalls.unshare(sum(syscalls.NEW_NAMESPACES.values()))
        os.write(go, b"1")
    finally:
        os.close(go)
        os.waitpid(helper, 0)
    return [f"{name} namespace" for name in sorted(syscalls.NEW_NAMESPACES)]


def _name_user(process: int, user: int, group: int) -> None:
    """Inside, the user is root of nothing; outside, root becomes nobody, for limits spare root."""
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
    """A root that holds Python's library, shared libraries, three devices and an empty /tmp."""
    syscalls.mount("", "/", "", syscalls.PRIVATE | syscalls.RECURSIVE)
    library = os.path.realpath(os.path.dirname(os.__file__))
    sources = [source for source in (*LIBRARIES, library, *DEVICES) if os.path.exists(source)]
    # Opened by who may pass the folders above them; shown by nobody, who may not.
    opened = {source: os.open(source, os.O_PATH | os.O_NOFOLLOW) for source in sources}
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.umask(0o022)
    flags = syscalls.NO_SUID | syscalls.NO_DEVICES
    syscalls.mount("tmpfs", ROOT, "tmpfs", flags, "size=1m,mode=755")
    for source, number in opened.items():
        _put(source, number)
    # What people installed is no part of the standard library.
    for name in (f"{library}/site-packages", f"{library}/dist-packages", *INSTALLED):
        if os.path.isdir(ROOT + name):
            syscalls.mount("tmpfs", ROOT + name, "tmpfs", flags, "size=4k,mode=755")
    os.makedirs(f"{ROOT}/tmp", exist_ok=True)
    syscalls.mount("tmpfs", f"{ROOT}/tmp", "tmpfs", flags, f"size={SPACE},nr_inodes=1024,mode=700")
    syscalls.pivot(ROOT)
    syscalls.mount("", "/", "", syscalls.REMOUNT | syscalls.BIND | syscalls.READ_ONLY | flags)
    os.chdir("/tmp")
    sys.path[:] = [name for name in sys.path if name.startswith(library)]
    return ["own root, read-only", "no /proc", f"private /tmp of {SPACE}"]


def _put(source: str, number: int) -> None:
    """The opened file or folder at the same place under the new root."""
    target = ROOT + source
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(os.fstat(number).st_mode):
        os.makedirs(target, exist_ok=True)
        syscalls.show(f"/proc/self/fd/{number}", target)
    else:
        open(target, "w").close()
        syscalls.show(f"/proc/self/fd/{number}", target)
    os.close(number)


def limit(seconds: float, memory: int) -> list[str]:
    """Hard limits of this process and all it starts."""
    limits = {
        "AS": memory, "CPU": max(1, math.ceil(seconds)), "NPROC": 16, "FSIZE": 1 << 24,
        "NOFILE": 64, "CORE": 0, "MSGQUEUE": 0, "MEMLOCK": 0,
    }  # fmt: skip
    held = []
    for name, most in limits.items():
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
        except (ValueError, OSError, AttributeError):  # other systems have fewer
            continue
        held.append(name)
    return [f"limits: {' '.join(held)}"]
