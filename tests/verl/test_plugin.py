"""The plug-in as verl finds it: through its entry point, in fresh processes, and loudly when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

pytestmark = pytest.mark.verl

SHOW = "from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as r; print('FOUND', sorted(r))"


def python(code: str, *, path: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("VERL_PLATFORM", "VERL_ENGINE_DEVICE")}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **env},
        cwd=path or Path(sys.prefix),  # "-c" looks for modules in the current directory first
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_import_of_verl_is_enough():
    """Quick (no trainer, kernels or Hydra: every worker of a job imports verl), quiet, and safe to repeat."""
    heavy = ("refbase.kernels", "verl_ext.adapters", "verl.trainer.ppo.core_algos", "vllm", "hydra.core")
    result = python(
        f"import sys, verl; print('HEAVY', [m for m in {heavy} if m in sys.modules])\n"
        f"import verl_ext.register as plugin, importlib; importlib.reload(plugin); {SHOW}\n"
        "importlib.reload(plugin); print('ERRORS', plugin.errors)"
    )
    assert result.returncode == 0, result.stderr
    assert "HEAVY []" in result.stdout
    assert "ERRORS []" in result.stdout
    for name in (
        "shrinkage",
        "shrinkage_js",
        "bvblend",
        "bvblend_eb",
        "shrinkage_history",
        "gvpo",
        "refbase_rloo",
        "batch_mean",
    ):
        assert f"'{name}'" in result.stdout
    assert "plug-in failed" not in result.stderr


def test_external_modules_work_for_older_verl():
    result = python(SHOW, VERL_USE_EXTERNAL_PLUGINS="none", VERL_USE_EXTERNAL_MODULES="verl_ext.register")
    assert result.returncode == 0, result.stderr
    assert "'shrinkage'" in result.stdout


def test_without_the_plugin_the_name_is_unknown():
    """What the tests above would see if the entry point did nothing."""
    assert "'shrinkage'" not in python(SHOW, VERL_USE_EXTERNAL_PLUGINS="none").stdout


def test_a_plugin_that_cannot_be_imported_is_printed(tmp_path):
    """A broken copy of the package shadows the installed one; verl itself would only log it at DEBUG."""
    import shutil

    import verl_ext

    shutil.copytree(Path(verl_ext.__file__).parent, tmp_path / "verl_ext")
    broken = tmp_path / "verl_ext" / "cpu" / "platform.py"
    broken.write_text("raise RuntimeError('broken on purpose')\n")
    result = python("import verl; print('VERL GOES ON')", path=tmp_path, VERL_PLATFORM="cpu")
    assert "VERL GOES ON" in result.stdout, result.stderr
    assert "broken on purpose" in result.stderr
    assert "Traceback" in result.stderr


def test_estimators_that_cannot_be_registered_are_printed_and_remembered():
    code = (
        "import verl, verl_ext.register as reg, refbase.catalog, sys; sys.modules['verl_ext.adapters'] = None\n"
        "from verl.trainer.ppo import core_algos as c\n"
        "print('REMEMBERED', [(s, type(e).__name__) for s, e in reg.errors])\n"
        "try: c.get_adv_estimator_fn('shrinkage')\n"
        "except ValueError as e: print('MESSAGE', e)\n"
        "print('STOCK', c.get_adv_estimator_fn('rloo').__name__)"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert "plug-in failed while it tried to register its estimators" in result.stderr
    assert "REMEMBERED [('register its estimators', 'ModuleNotFoundError')]" in result.stdout
    assert "unknown estimator 'shrinkage'" in result.stdout
    assert "failed to register its estimators" in result.stdout
    assert "STOCK compute_rloo_outcome_advantage" in result.stdout


def test_a_name_taken_by_another_plugin_is_an_error_that_shows():
    code = (
        "from verl_ext.imports import after_import\n"
        "after_import('verl.trainer.ppo.core_algos', lambda m: m.register_adv_est('shrinkage')(lambda **k: None))\n"
        + SHOW
    )
    result = python(code)
    assert "Adv estimator shrinkage has already been registered" in result.stderr


@pytest.mark.slow
def test_estimators_are_known_in_a_ray_actor(tmp_path):
    code = (
        "import ray\n"
        "ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80000000, _temp_dir=r'%s')\n"
        "@ray.remote\n"
        "class Actor:\n"
        "    def names(self):\n"
        "        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY\n"
        "        return sorted(ADV_ESTIMATOR_REGISTRY)\n"
        "print('FOUND', ray.get(Actor.remote().names.remote()))\n"
        "ray.shutdown()\n"
    )
    import tempfile

    from verl_ext.cpu.run import isolation

    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as scratch:  # sockets need a short path
        result = subprocess.run(
            [*isolation(), sys.executable, "-c", code % scratch],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert result.returncode == 0, result.stderr
    assert "'shrinkage'" in result.stdout
    assert "'gvpo'" in result.stdout


def test_hooks_run_once_and_in_order(tmp_path):
    (tmp_path / "some_module.py").write_text("value = 1\n")
    code = (
        "from verl_ext.imports import after_import, pending\n"
        "seen = []\n"
        "after_import('some_module', lambda m: seen.append(('first', m.value)))\n"
        "after_import('some_module', lambda m: seen.append(('second', m.value)))\n"
        "assert pending() == ('some_module',)\n"
        "import some_module, importlib, inspect\n"
        "after_import('some_module', lambda m: seen.append(('late', m.value)))\n"
        "importlib.reload(some_module)\n"
        "assert inspect.getsource(some_module) == 'value = 1\\n'\n"
        "print(seen, pending())\n"
    )
    result = python(code, path=tmp_path)
    assert result.stdout.strip() == "[('first', 1), ('second', 1), ('late', 1)] ()", result.stderr


def test_an_exception_of_a_hook_leaves_the_import(tmp_path):
    (tmp_path / "some_module.py").write_text("")
    code = (
        "from verl_ext.imports import after_import\n"
        "def hook(m): raise LookupError('changed')\n"
        "after_import('some_module', hook)\n"
        "try: import some_module\n"
        "except LookupError as e: print('RAISED', e)\n"
    )
    assert "RAISED changed" in python(code, path=tmp_path).stdout
