"""System calls that the standard library lacks, and the filter of forbidden ones."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

MACHINE = os.uname().machine
LIBC = ctypes.CDLL(None, use_errno=True)

NEW_NAMESPACES = {
    "mount": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
NEW_PID = NEW_NAMESPACES["pid"]
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE = 1, 2, 4, 32, 4096, 16384
PRIVATE = 1 << 18
RELATIVE_TIMES, SHOWS_RELATIVE_TIMES = 1 << 21, 4096
DETACH = 2
_MOUNT_SETATTR = 442  # the same number everywhere
_PR_DEATH_SIGNAL, _PR_DUMPABLE, _PR_SECCOMP, _PR_BOUND_DROP, _PR_NO_NEW_PRIVILEGES = (
    1,
    4,
    22,
    24,
    38,
)
_CAPABILITY_VERSION = 0x20080522
_CLONE_THREAD = 0x00010000
_EPERM, _ENOSYS = 1, 38

# machine -> architecture id for the filter, then call numbers: pivot_root, capset, clone, clone3
_MACHINES = {"x86_64": (0xC000003E, 155, 126, 56, 435), "aarch64": (0xC00000B7, 41, 91, 220, 435)}
# New programs, other processes, sockets and rarely used kernel interfaces. In order:
# execve execveat fork vfork ptrace process_vm_readv process_vm_writev kill tkill tgkill
# rt_sigqueueinfo rt_tgsigqueueinfo socket socketpair unshare setns mount umount2 pivot_root chroot
# bpf perf_event_open userfaultfd keyctl add_key request_key init_module finit_module kexec_load
# memfd_create shmget msgget semget mq_open personality name_to_handle_at open_by_handle_at.
_FORBIDDEN = {
    "x86_64": (
        59, 322, 57, 58, 101, 310, 311, 62, 200, 234, 129,
        297, 41, 53, 272, 308, 165, 166, 155, 161, 321,
        298, 323, 250, 248, 249, 175, 313, 246,
        319, 29, 68, 64, 240, 135, 303, 304,
    ),
    "aarch64": (
        221, 281, 117, 270, 271, 129, 130, 131, 138,
        240, 198, 199, 97, 268, 40, 39, 41, 51, 280,
        241, 282, 219, 217, 218, 105, 273, 104,
        279, 194, 186, 190, 180, 92, 264, 265,
    ),
}  # fmt: skip
# pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen
# fsconfig fsmount pidfd_open pidfd_getfd memfd_secret
_FORBIDDEN_EVERYWHERE = (424, 425, 426, 427, 428, 429, 430, 431, 432, 434, 438, 447)


def _raise_on_failure(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces of these kinds."""
    _raise_on_failure(LIBC.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Call mount(2)."""
    texts = [text.encode() if text else None for text in (source, target, kind)]
    given = options.encode() if options else None
    _raise_on_failure(LIBC.mount(*texts, ctypes.c_ulong(flags), given), f"mount {target}")


def mount_tmpfs(target: str, *, flags: int, options: str) -> None:
    """Mount an empty in-memory file system."""
    mount("tmpfs", target, kind="tmpfs", flags=flags, options=options)


def bind_read_only(source: str, target: str) -> None:
    """Make a folder or file of the old root available at `target`, read-only."""
    mount(source, target, flags=BIND | RECURSIVE)
    wanted = struct.pack("QQQQ", READ_ONLY | NO_SUID, 0, 0, 0)
    at_here, recursive = ctypes.c_int(-100), ctypes.c_uint(0x8000)
    call = ctypes.c_long(_MOUNT_SETATTR)
    size = ctypes.c_size_t(len(wanted))
    if LIBC.syscall(call, at_here, target.encode(), recursive, wanted, size) != 0:
        seen = os.statvfs(target).f_flag  # a remount must repeat the flags that are set
        kept = (seen & 0xC0E) | (RELATIVE_TIMES if seen & SHOWS_RELATIVE_TIMES else 0)
        mount("", target, flags=BIND | REMOUNT | READ_ONLY | NO_SUID | kept)


def pivot_root(root: str) -> None:
    """Make `root` the root directory, and the old root unreachable."""
    machine = _MACHINES[MACHINE]
    os.chdir(root)
    _raise_on_failure(LIBC.syscall(ctypes.c_long(machine[1]), b".", b"."), "pivot_root")
    _raise_on_failure(LIBC.umount2(b".", DETACH), "umount")
    os.chdir("/")


def _prctl(option: int, value: int) -> None:
    if hasattr(LIBC, "prctl"):  # Linux only, as is the isolation
        LIBC.prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    A change of user or a gain of capabilities cancels this, so call it again afterwards.
    """
    _prctl(_PR_DEATH_SIGNAL, 9)


def hide_memory() -> None:
    """Forbid other processes of the same user to read this one's memory."""
    _prctl(_PR_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Give up every capability, for good."""
    for capability in range(64):
        LIBC.prctl(_PR_BOUND_DROP, capability, 0, 0, 0)
    call = ctypes.c_long(_MACHINES[MACHINE][2])
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _raise_on_failure(LIBC.syscall(call, header, bytes(24)), "capset")


def is_known_machine() -> bool:
    """Return whether the table above has the call numbers of this processor."""
    return sys.platform == "linux" and MACHINE in _MACHINES


def install_filter() -> None:
    """Install the seccomp filter. Forbidden calls fail with EPERM."""
    architecture, _, _, clone, clone3 = _MACHINES[MACHINE]
    forbidden = (*_FORBIDDEN[MACHINE], *_FORBIDDEN_EVERYWHERE)
    load, equal, greater, has, give = 0x20, 0x15, 0x35, 0x45, 0x06
    kill, allow, refuse = 0x80000000, 0x7FFF0000, 0x00050000
    code = [
        (load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill),
        (load, 0, 0, 0), (greater, 0, 1, 0x40000000), (give, 0, 0, refuse | _EPERM),
        # When clone3 does not exist, the C library falls back to clone.
        (equal, 0, 1, clone3), (give, 0, 0, refuse | _ENOSYS),
    ]  # fmt: skip
    for number in forbidden:
        code += [(equal, 0, 1, number), (give, 0, 0, refuse | _EPERM)]
    # Allow clone for threads only.
    code += [(equal, 0, 3, clone), (load, 0, 0, 16), (has, 1, 0, _CLONE_THREAD)]
    code += [(give, 0, 0, refuse | _EPERM), (give, 0, 0, allow)]
    packed = b"".join(struct.pack("HBBI", *line) for line in code)
    lines = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(lines))
    _raise_on_failure(LIBC.prctl(_PR_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")
    _raise_on_failure(LIBC.prctl(_PR_SECCOMP, 2, program, 0, 0), "seccomp")
