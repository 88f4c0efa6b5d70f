"""BV-Blend's memory beside verl's checkpoints: ``global_step_<n>/refbase_history.json``.

Our trainer writes the file before verl writes anything of the checkpoint, so that one which verl's tracker names
has it, also where verl saves asynchronously and the tracker comes later. It is written beside its place and
renamed into it, so that a job killed at any moment leaves the old file, the new one or none.

A resumed job reads it before the models are loaded. It takes the whole file or nothing: the SHA-256 of the content
catches what is truncated or edited, the step and the options catch what belongs to another job.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from refbase import HistoryState
from refbase.validate import InputError, InputTypeError
from verl_ext import history
from verl_ext.options import BVBlendOptions

__all__ = ["FILE", "read", "restore", "resume_directory", "save", "write"]

FILE = "refbase_history.json"
FORMAT, VERSION = "refbase.checkpoint", 1

_COLD = "algorithm.bvblend.allow_cold_history=true"


def save(options: BVBlendOptions, trainer: Any, step: int) -> Path:
    """Write the memory into the checkpoint of ``step``.

    Parameters
    ----------
    options
        ``algorithm.bvblend``.
    trainer
        The section ``trainer`` of the configuration.
    """
    content = {
        "global_step": step,
        "history_key": options.history_key,
        "state": history.snapshot(options.memory),
    }
    path = Path(trainer.default_local_dir) / f"global_step_{step}" / FILE
    write(path, content)
    return path


def restore(options: BVBlendOptions, trainer: Any) -> bool:
    """Put back the memory of the checkpoint that the job resumes from; returns whether there was one.

    Raises
    ------
    InputError
        A checkpoint without memory, unless `allow_cold_history` is set; a damaged or foreign file, always.
    """
    directory = resume_directory(trainer)
    if directory is None:
        return False
    path = directory / FILE
    if not path.exists():
        if options.allow_cold_history:
            print(f"refbase: no history at {path}; BV-Blend starts without one", file=sys.stderr, flush=True)
            return False
        raise InputError(
            f"bvblend: the checkpoint to resume from holds no history ({path} does not exist): it was written by "
            f"another trainer or estimator. Resume from one that does, or set `{_COLD}` to start without history."
        )
    content = read(path)
    step = int(directory.name.rpartition("_")[2])
    if content["global_step"] != step:
        _refuse(path, f"it belongs to step {content['global_step']}, the checkpoint to step {step}")
    if content["history_key"] != options.history_key:
        _refuse(
            path,
            f"its keys are of `algorithm.bvblend.history_key={content['history_key']}`, the job's of "
            f"`{options.history_key}`",
        )
    try:
        state = HistoryState.from_dict(content["state"])
        if state.last_step is not None and state.last_step > step:
            raise InputError(f"it holds step {state.last_step}, the checkpoint is of step {step}")
        history.restore(options.memory, content["state"])
    except (InputError, InputTypeError) as error:
        _refuse(path, str(error))
    print(
        f"refbase: history of {len(state.keys)} keys and {state.updates} steps restored from {path}",
        file=sys.stderr,
        flush=True,
    )
    return True


def resume_directory(trainer: Any) -> Path | None:
    """The ``global_step_<n>`` that verl's trainer is going to resume from, or None."""
    if trainer.resume_mode == "auto":
        from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

        found = find_latest_ckpt_path(str(Path(trainer.default_local_dir).absolute()))
    elif trainer.resume_mode == "resume_path":
        found = trainer.resume_from_path
    else:
        return None
    # What has another name is refused by verl itself.
    return Path(found).absolute() if found and re.fullmatch(r"global_step_\d+", Path(found).name) else None


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file of ours: all of it is there, or nothing of it."""
    document = {"format": FORMAT, "version": VERSION, "sha256": _digest(content), "content": content}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(document, file, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    for directory in (path.parent, path.parent.parent):  # the names of file and directory are data of these
        _sync(directory)


def read(path: Path) -> dict[str, Any]:
    """The content of a file of ours.

    Raises
    ------
    InputError
        Anything that `write` did not leave there: no JSON, a foreign format or version, a wrong checksum.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        _refuse(path, f"it cannot be read ({error})")
    except ValueError as error:
        _refuse(path, f"it is damaged: no JSON ({error})")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _refuse(path, "it is not a history of refbase")
    if document.get("version") != VERSION:
        _refuse(path, f"it has version {document.get('version')!r}, this refbase reads version {VERSION}")
    content = document.get("content")
    if set(document) != {"format", "version", "sha256", "content"} or not isinstance(content, dict):
        _refuse(path, "it is damaged: fields are missing or added")
    if document["sha256"] != _digest(content):
        _refuse(path, "it is damaged: its content is not the one the checksum was made of")
    if set(content) != {"global_step", "history_key", "state"}:
        _refuse(path, "it is not a history of refbase")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    # Floats are written so that they read back bit for bit, hence the text is that of the data.
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _sync(directory: Path) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:  # a file system that has no such thing
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise InputError(
        f"bvblend: the history at {path} cannot be used: {reason}. Nothing was loaded. Resume from another "
        f"checkpoint with the options of the interrupted job, or move the file away and set `{_COLD}`."
    )
