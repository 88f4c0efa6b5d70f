"""The CPU path without a job: patches, platform, launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

pytest.importorskip("verl")

from verl_ext.cpu import patches, run, vllm_cpu

pytestmark = pytest.mark.verl


def module(**attributes):
    made = types.ModuleType("verl.pretended")
    vars(made).update(attributes)
    return made


class Buffer:
    def __init__(self, mode, poll_interval=2.0):
        self.mode, self.poll_interval = mode, poll_interval


@pytest.mark.parametrize("patch", patches.PATCHES, ids=lambda p: p.__name__)
def test_a_patch_refuses_a_verl_that_changed(patch):
    changed = [
        module(),
        module(
            initialize_global_process_group_ray=lambda backend: None,
            CPUOffloadPolicy=lambda: None,
            ReplayBuffer=type("ReplayBuffer", (), {"__init__": lambda self, poll_interval=5.0: None}),
        ),
    ]
    for other in changed:
        with pytest.raises(patches.VerlChangedError, match=r"expected `verl\.pretended` to have .*verl 0\.9\.1"):
            patch(other)
    assert patch.__doc__  # its reason


def test_every_patch_fits_the_installed_verl():
    """In a fresh process: all of verl's trainer is imported with the patches in place."""
    code = (
        "import verl.trainer.main_ppo, verl.workers.engine_workers as w\n"
        "import verl.workers.engine.fsdp.transformer_impl as f\n"
        "from verl.trainer.ppo.v1 import replay_buffer as b\n"
        "from verl.workers.rollout.base import get_rollout_class\n"
        "from verl.workers.rollout.replica import RolloutReplicaRegistry as r\n"
        "from verl.plugin.platform import get_platform\n"
        "from verl_ext.imports import pending\n"
        "import inspect, os\n"
        "print('PENDING', pending())\n"
        "print('GROUP', w.initialize_global_process_group_ray.__module__)\n"
        "print('PIN', f.CPUOffloadPolicy(pin_memory=True).pin_memory)\n"
        "buffers = [b.ReplayBuffer('sync', {}, None, 'drop', {}, **k) for k in ({}, {'poll_interval': 1.0})]\n"
        "print('POLL', *(buffer.poll_interval for buffer in buffers))\n"
        "print('ROLLOUT', r.get('hf').__name__, get_rollout_class('hf').__name__)\n"
        "print('PLATFORM', get_platform().device_name, os.environ['VERL_ENGINE_DEVICE'])\n"
    )
    env = {**os.environ, **run.ENVIRONMENT}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    for line in (
        "PENDING ()",
        "GROUP verl.utils.distributed",
        "PIN False",
        "POLL 0.05 1.0",
        "ROLLOUT HFReplica HFServerAdapter",
        "PLATFORM cpu cuda",
    ):
        assert line in result.stdout, (line, result.stdout)


def test_a_gpu_process_is_left_alone():
    assert os.environ.get("VERL_PLATFORM") is None
    from verl.plugin.platform import PlatformRegistry
    from verl.utils import fsdp_utils

    assert fsdp_utils.CPUOffloadPolicy.__module__.startswith("torch.")
    assert "cpu" not in PlatformRegistry.registered_names()


def test_vllm_cpu_answers_for_vllm(monkeypatch):
    from importlib.metadata import PackageNotFoundError, version

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    installed = version("vllm-cpu") if _installed("vllm-cpu") else None
    if _installed("vllm"):
        pytest.skip("the distribution `vllm` is installed; it answers for itself")
    vllm_cpu.answer_for_vllm()
    vllm_cpu.answer_for_vllm()
    if installed is None:
        with pytest.raises(PackageNotFoundError):
            version("vllm")
    else:
        assert version("vllm") == f"{installed}+cpu"
    with pytest.raises(PackageNotFoundError):
        version("a-distribution-that-nobody-has")
    assert sum(type(f).__name__ == "_VllmFinder" for f in sys.meta_path) == 1


def _installed(name):
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return bool(distribution(name))
    except PackageNotFoundError:
        return False


def test_keep_weights_refuses_a_vllm_that_changed(monkeypatch):
    pretended = types.ModuleType("vllm.model_executor.layers.utils")
    pretended.dispatch_cpu_unquantized_gemm = lambda layer: None
    layers = types.ModuleType("vllm.model_executor.layers")
    layers.utils = pretended
    for name in ("vllm", "vllm.model_executor"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers", layers)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.utils", pretended)
    vllm_cpu.keep_weights()  # not a CPU job: nothing is looked at
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    with pytest.raises(RuntimeError, match=r"expected .*dispatch_cpu_unquantized_gemm\(layer, remove_weight\)"):
        vllm_cpu.keep_weights()
    kept = []
    pretended.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: kept.append(remove_weight)
    vllm_cpu.keep_weights()
    vllm_cpu.keep_weights()
    pretended.dispatch_cpu_unquantized_gemm("layer", remove_weight=True)
    assert kept == [False]


# -- launcher ------------------------------------------------------------------------------------------------


def test_the_command_is_verls_own():
    words = run.command(["data.seed=3"], python="python")
    assert words == ["python", "-m", "verl.trainer.main_ppo", "--config-name", "refbase_cpu", "data.seed=3"]
    assert "refbase_cpu" not in run.command(["--config-name", "mine"])
    assert "refbase_cpu" not in run.command(["--config-name=mine"])


@pytest.fixture
def fake_job(tmp_path, monkeypatch):
    """`python -m verl_ext.cpu.run` around a program of ours instead of verl's."""

    def start(program: str, **kwargs) -> int:
        script = tmp_path / "job.py"
        script.write_text(program)
        monkeypatch.setattr(run, "command", lambda overrides, python: [python, str(script), *overrides])
        return run.run([], **kwargs)

    return start


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


DAEMON = """
import os, subprocess, sys, time
code = "import signal, time, os; {ignore}open({pid!r}, 'w').write(str(os.getpid())); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)  # detached, as Ray's daemons are
while not os.path.exists({pid!r}) or not open({pid!r}).read():
    time.sleep(0.01)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("isolate", [False, True])
def test_detached_processes_are_ended(fake_job, tmp_path, monkeypatch, stubborn, isolate):
    monkeypatch.setattr(run, "GRACE", 1.0)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    pid = tmp_path / "pid"
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert fake_job(DAEMON.format(pid=str(pid), ignore=ignore) + "sys.exit(3)", isolate=isolate) == 3
        assert not alive(int(pid.read_text()))
        assert bystander.poll() is None  # was there before: none of the job's
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("isolate", [False, True])
def test_shared_memory_is_removed(fake_job, isolate):
    before = set(os.listdir("/dev/shm"))
    name = f"verl_ext_test_{os.getpid()}"
    code = fake_job(
        f"open('/dev/shm/{name}', 'w').write('x'); import os; os._exit(0 if '{name}' in os.listdir('/dev/shm') else 9)",
        isolate=isolate,
    )
    assert code == 0
    assert name not in set(os.listdir("/dev/shm")) - before


def test_segments_in_use_are_left():
    """Another job's: new since this one began, but held by a process that runs."""
    path = Path(f"/dev/shm/verl_ext_other_{os.getpid()}")
    code = f"import time; f = open({str(path)!r}, 'w'); time.sleep(600)"
    with run._shared_memory_swept():
        holder = subprocess.Popen([sys.executable, "-c", code])
        wait_for(path.exists)
        assert path.name in run._in_use()
    try:
        assert path.exists()
    finally:
        holder.kill()
        holder.wait()
        path.unlink()


def test_the_scratch_directory_is_removed_and_given_to_ray(fake_job, tmp_path):
    seen = tmp_path / "seen"
    code = (
        "import sys, os; given = [a.split('=')[1] for a in sys.argv if '_temp_dir=' in a]; "
        f"assert os.path.isdir(given[0]); open({str(seen)!r}, 'w').write(given[0])"
    )
    assert fake_job(code) == 0
    assert seen.read_text().startswith("/tmp/refbase-")
    assert not os.path.exists(seen.read_text())


def test_environment(fake_job, tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    names = ("VERL_PLATFORM", "VLLM_CPU_KVCACHE_SPACE", "MINE")
    code = f"import os; open({str(seen)!r}, 'w').write(' '.join(os.environ[k] for k in {names}))"
    assert fake_job(code, env={"MINE": "given"}) == 0
    assert seen.read_text() == "cpu 7 given"


@pytest.mark.skipif(not run.isolation(), reason="no network namespaces here")
def test_isolated_jobs_have_loopback_only(fake_job, tmp_path):
    seen = tmp_path / "seen"
    code = f"import socket; open({str(seen)!r}, 'w').write(' '.join(n for _, n in socket.if_nameindex()))"
    assert fake_job(code) == 0
    assert seen.read_text() == "lo"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_are_forwarded(tmp_path, number, code):
    up = str(tmp_path / "up")
    job = f"import time; open({up!r}, 'w').close(); time.sleep(600)"
    program = (
        "import signal, sys; from verl_ext.cpu import run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs inherit it ignored
        f"run.command = lambda overrides, python=sys.executable: [python, '-c', {job!r}]\n"
        "sys.exit(run.main(['x=1']))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for((tmp_path / "up").exists)
    process.send_signal(number)
    assert process.wait(60) == code


def test_timeout(fake_job):
    start = time.monotonic()
    assert fake_job("import time; time.sleep(600)", timeout=0.5) == 124
    assert time.monotonic() - start < 30
