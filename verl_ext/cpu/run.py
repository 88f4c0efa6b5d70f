"""Start verl's trainer on the CPU: ``python -m verl_ext.cpu.run <hydra overrides>``.

Runs the stock ``python -m verl.trainer.main_ppo`` with the configuration ``refbase_cpu`` (give your own with
``--config-name``), an environment in which it works, and:

* where the system allows it, a network namespace with loopback only, since Ray, TransferQueue, vLLM and torch
  listen on the host's address without a password, and a ``/dev/shm`` of its own;
* an end: whatever the job started is ended by process id, and its temporary directory and shared-memory
  segments are removed, however the job ended.

The exit code is that of the job, or 128 + the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

__all__ = ["ENVIRONMENT", "command", "die_with_parent", "isolation", "main", "run"]

#: Environment of a job; what is set already is kept.
ENVIRONMENT: Mapping[str, str] = {
    "VERL_PLATFORM": "cpu",
    # vLLM's CPU sampler is compiled otherwise: 14 s in each of its processes.
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    # GiB per replica; and no pinning of replicas to the same cores.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Several processes share few cores.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HYDRA_FULL_ERROR": "1",
}

#: Added where the job has no network: fail at once instead of trying again.
OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

#: Seconds a job gets to end after a signal, and its left-over processes after that.
GRACE = 15.0

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SHM = Path("/dev/shm")


def command(overrides: Sequence[str], python: str = sys.executable) -> list[str]:
    """The command of a job, without what isolates it.

    Parameters
    ----------
    overrides : sequence of str
        Arguments of ``verl.trainer.main_ppo``: Hydra overrides and flags.
    """
    arguments = [python, "-m", "verl.trainer.main_ppo"]
    if not any(o in ("--config-name", "-cn") or o.startswith("--config-name=") for o in overrides):
        arguments += ["--config-name", "refbase_cpu"]
    return [*arguments, *overrides]


def isolation() -> list[str]:
    """Prefix for a command that runs it with loopback only and its own ``/dev/shm``; empty if impossible.

    Needs ``unshare`` and ``ip``, and root or unprivileged user namespaces.
    """
    if sys.platform != "linux" or not (shutil.which("unshare") and shutil.which("ip")):
        return []
    script = 'ip link set lo up && mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm && exec "$@"'
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    prefix = ["unshare", *user, "--net", "--mount", "--", "sh", "-c", script, "sh"]
    try:
        works = subprocess.run([*prefix, "true"], capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    return prefix if works else []


def run(
    overrides: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | int | None = None,
    isolate: bool = True,
    python: str = sys.executable,
    timeout: float | None = None,
) -> int:
    """Run one job to its end and clean up after it.

    Parameters
    ----------
    overrides : sequence of str
        Hydra overrides, later ones win.
    env : mapping, optional
        Variables on top of `ENVIRONMENT` and of this process's own.
    output : file or file descriptor, optional
        Where standard output and standard error of the job go; this process's by default.
    isolate : bool
        Whether to use namespaces where they are available.
    timeout : float, optional
        Seconds after which the job is ended.

    Returns
    -------
    int
        The exit code; 128 + n after signal n; 124 after ``timeout``.
    """
    prefix = isolation() if isolate else []
    environment = {**ENVIRONMENT, **(OFFLINE if prefix else {}), **os.environ, **(env or {})}
    # Ray puts sockets there, and the path of a socket has at most 107 characters.
    scratch = tempfile.mkdtemp(prefix="refbase-", dir="/tmp" if os.path.isdir("/tmp") else None)
    defaults = {
        "ray_kwargs.ray_init._temp_dir": scratch,
        # Hydra's own record of a run would be a directory `outputs` in the current one.
        "hydra.run.dir": f"{scratch}/hydra",
        "hydra.output_subdir": "null",
    }
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    chosen = [f"++{key}={value}" for key, value in defaults.items() if key not in given]
    arguments = [*prefix, *command([*overrides, *chosen], python)]
    try:
        with _shared_memory_swept(), _descendants_ended():
            return _run_until_end(arguments, environment, output, timeout)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_until_end(
    arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes] | int | None, timeout: float | None
) -> int:
    process = subprocess.Popen(
        arguments,
        env=env,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    with _signals_forwarded(process):
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = 124
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _signals_forwarded(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand SIGINT, SIGTERM and SIGHUP to the job (a signal handler needs the main thread)."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError):
            previous[number] = signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# -- processes -----------------------------------------------------------------------------------------------


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """For ``preexec_fn``: the new process gets SIGTERM when the one that started it ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _parents() -> dict[int, int]:
    """Parent of every process, from ``/proc``; zombies, which need nothing but a wait, left out."""
    parents = {}
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # "pid (name) state ppid ...", where the name may hold spaces and brackets
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
    return parents


def _descendants(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    stack = [root]
    while stack:
        for pid in children.get(stack.pop(), ()):
            if pid not in found:
                found.add(pid)
                stack.append(pid)
    return found


@contextlib.contextmanager
def _descendants_ended() -> Iterator[None]:
    """End the processes that the job leaves behind.

    Ray's daemons detach from the process that started them. As a "subreaper" this process becomes their
    parent then, so that they can be found, and told from those of any other job, by descent alone.
    """
    before = _descendants(os.getpid())
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        for number, patience in ((0, 3.0), (signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            left = _wait_for_end(before, number, patience)
            if not left:
                break
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _wait_for_end(before: set[int], number: int, patience: float) -> set[int]:
    """Signal what has been left (0: only wait) and wait until it is gone. Returns what is still there."""
    deadline = time.monotonic() + patience
    signalled: set[int] = set()
    while left := _descendants(os.getpid()) - before:
        for pid in left - signalled if number else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        signalled |= left
        _reap(left)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    _reap(signalled)
    return left


def _reap(pids: set[int]) -> None:
    """Collect the exit status of adopted processes among ``pids``."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


# -- shared memory -------------------------------------------------------------------------------------------


def _segments() -> set[str]:
    with contextlib.suppress(OSError):
        return set(os.listdir(_SHM))
    return set()


def _in_use() -> set[str]:
    """Segments that a running process has mapped or open, as far as we may look."""
    used = set()
    prefix = f"{_SHM}/"
    for pid in _parents():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                if prefix in line:
                    used.add(line.split(prefix, 1)[1])
        with contextlib.suppress(OSError):
            for link in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(link.path)
                    if target.startswith(prefix):
                        used.add(target[len(prefix) :])
    return used


@contextlib.contextmanager
def _shared_memory_swept() -> Iterator[None]:
    """Remove the segments that the job leaves in ``/dev/shm`` (vLLM: two per replica).

    With a ``/dev/shm`` of its own there are none. Without, they are those of this user that were not there
    before and that no process uses any more.
    """
    before = _segments()
    try:
        yield
    finally:
        left = _segments() - before
        for name in left - _in_use() if left else ():
            path = _SHM / name
            with contextlib.suppress(OSError):
                if path.stat().st_uid == os.geteuid() and path.is_file():
                    path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    overrides = list(sys.argv[1:] if argv is None else argv)
    if overrides in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    print("$", shlex.join(command(overrides)), flush=True)
    return run(overrides)


if __name__ == "__main__":
    sys.exit(main())
