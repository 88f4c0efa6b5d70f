"""verl's actor on fixed rows, without Ray: its real TrainingWorker and FSDP2 in one or two gloo processes.

`run` starts the processes, hands them rows and cases, and returns for each case what every optimizer step saw:
parameters before it, the accumulated gradient, and which rows were in the mini-batch. Splits of the same rows
can then be compared exactly, in seconds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

VOCABULARY, PADDING_PROMPT = 40, 127


@dataclass
class Row:
    """One row as verl stores it. `mask` may have holes; a padding row has an empty one."""

    uid: str
    key: str
    prompt: list[int]
    response: list[int]
    mask: list[int]
    reward: float
    old_log_probs: list[float] = field(default_factory=list)
    ref_log_probs: list[float] = field(default_factory=list)
    padding: bool = False


@dataclass
class Case:
    """How the rows are trained on.

    Attributes
    ----------
    order
        Rows in the order of the batch; the first half goes to rank 0 of two.
    advantages
        Of all rows, as the estimator gave them.
    mini_batch
        Rows of a mini-batch, over all ranks.
    worker
        "exact"; or one that is wrong: "rank means" (no exchange between ranks), "old means" (weights frozen
        at the old policy).
    """

    name: str
    order: list[int]
    advantages: list[float]
    mini_batch: int
    ranks: int = 1
    micro_batch: int = 2
    infer_micro_batch: int = 2
    tokens: int | None = None  # dynamic batch size
    epochs: int = 1
    shuffle: bool = False
    sessions: bool = False
    worker: str = "exact"
    settings: dict[str, Any] = field(default_factory=lambda: {"beta": 0.5})
    lr: float = 0.2
    checkpointing: bool = False


@dataclass
class StepRecord:
    rows: list[int]  # of all ranks
    parameters: dict[str, torch.Tensor]
    gradient: dict[str, torch.Tensor]
    metrics: dict[str, Any]


def tiny_model(path: Path, seed: int = 0) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        attention_dropout=0.0,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(path)
    return path


def load(path: Path, parameters: dict[str, torch.Tensor] | None = None) -> torch.nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    if parameters is None:
        return Qwen2ForCausalLM.from_pretrained(path).double().eval()
    model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(path)).double()
    model.load_state_dict(parameters)
    return model.eval()


def token_log_probs(model: torch.nn.Module, row: Row) -> torch.Tensor:
    """(T,) log-probabilities of the response's tokens."""
    ids = torch.tensor([row.prompt + row.response])
    logits = model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(row.response)[:, None])[:, 0]


def run(folder: Path, model: Path, rows: Sequence[Row], cases: Sequence[Case]) -> dict[str, list[StepRecord]]:
    """Run the cases, those with one rank in one process and those with two in two."""
    results: dict[str, list[StepRecord]] = {}
    for ranks in sorted({case.ranks for case in cases}):
        chosen = [case for case in cases if case.ranks == ranks]
        request, answer = folder / f"request{ranks}.pt", folder / f"answer{ranks}.pt"
        torch.save({"model": str(model), "rows": list(rows), "cases": chosen}, request)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "VERL_PLATFORM": "cpu",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
            "TORCH_COMPILE_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "actor_harness", str(request), str(answer)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": "0"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            output = [process.communicate(timeout=240)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert not any(process.returncode for process in processes), "\n".join(text[-4000:] for text in output)
        results.update(torch.load(answer, weights_only=False))
    return results


def _columns(rows: Sequence[Row], numbers: Sequence[int], advantages: Sequence[float], sessions: Any) -> Any:
    """The rows as TransferQueue hands them to a worker."""
    from verl.utils import tensordict_utils as tu

    def nested(parts: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(part, dtype=dtype) for part in parts], layout=torch.jagged)

    columns = {
        "prompts": nested([row.prompt for row in rows], torch.int64),
        "responses": nested([row.response for row in rows], torch.int64),
        "input_ids": nested([row.prompt + row.response for row in rows], torch.int64),
        "position_ids": nested([list(range(len(row.prompt + row.response))) for row in rows], torch.int64),
        "response_mask": nested([row.mask for row in rows], torch.int64),
        "loss_mask": nested([row.mask for row in rows], torch.int64),
        "old_log_probs": nested([row.old_log_probs for row in rows], torch.float32),
        "ref_log_prob": nested([row.ref_log_probs for row in rows], torch.float32),
        "advantages": nested(
            [[a * m for m in row.mask] for a, row in zip(advantages, rows, strict=True)], torch.float32
        ),
        "number": torch.tensor(list(numbers)),
    }
    data = tu.get_tensordict({**columns, "uid": [row.uid for row in rows]})
    if sessions is not None:
        from verl_ext.gvpo_worker import SESSIONS

        column = torch.stack([sessions.codes, sessions.rows], -1)[list(numbers)]
        data[SESSIONS] = nested(column.tolist(), torch.int64)  # as TransferQueue returns it
    return data


def _train(model: str, rows: Sequence[Row], case: Case, rank: int) -> list[StepRecord]:
    from functools import partial

    import torch.distributed as dist
    from torch.distributed.tensor import DTensor
    from verl.trainer.config import CheckpointConfig
    from verl.utils import tensordict_utils as tu
    from verl.workers.config import (
        FSDPActorConfig,
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )
    from verl.workers.config.actor import PolicyLossConfig
    from verl.workers.utils.losses import ppo_loss

    from verl_ext import gvpo_worker
    from verl_ext.sessions import Sessions

    class RankMeans(gvpo_worker.GvpoTrainingWorker):
        def _gather(self, rows):
            return rows, 0

    class OldMeans(gvpo_worker.GvpoTrainingWorker):
        def _log_ratios(self, data, at_old_policy):
            return super()._log_ratios(data, True)

    workers = {"exact": gvpo_worker.GvpoTrainingWorker, "rank means": RankMeans, "old means": OldMeans}
    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engine = FSDPEngineConfig(strategy="fsdp2", dtype="float32", use_torch_compile=False, mixed_precision=fp32)
    engine.use_dynamic_bsz = case.tokens is not None
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = case.tokens
    engine.micro_batch_size_per_gpu = case.micro_batch
    engine.infer_micro_batch_size_per_gpu = case.infer_micro_batch
    worker = workers[case.worker](
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=model,
                load_tokenizer=False,
                use_remove_padding=False,
                enable_gradient_checkpointing=case.checkpointing,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(
                lr=case.lr, optimizer="SGD", weight_decay=0.0, clip_grad=1e9, total_training_steps=100
            ),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    actor = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=case.micro_batch,
        loss_agg_mode="seq-mean-token-sum",
        policy_loss=PolicyLossConfig(loss_mode="gvpo"),
    )
    worker.set_loss_fn(partial(ppo_loss, config=actor))

    records: list[StepRecord] = []
    train, step = worker.engine.train_batch, worker.engine.optimizer_step

    def full(value: torch.Tensor) -> torch.Tensor:
        return (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu().clone()

    def train_batch(data: Any, **kwargs: Any) -> Any:
        parts: list[list[int]] = [[] for _ in range(case.ranks)]
        dist.all_gather_object(parts, data["number"].tolist())
        records.append(StepRecord([row for part in parts for row in part], {}, {}, {}))
        return train(data, **kwargs)

    def optimizer_step() -> Any:
        for name, parameter in worker.engine.module.named_parameters():
            records[-1].parameters[name] = full(parameter)
            records[-1].gradient[name] = full(parameter.grad)
        return step()

    worker.engine.train_batch, worker.engine.optimizer_step = train_batch, optimizer_step

    share = len(case.order) // case.ranks
    numbers = case.order[rank * share : (rank + 1) * share]
    sessions = Sessions.of([row.key for row in rows]) if case.sessions else None
    data = _columns([rows[i] for i in numbers], numbers, [case.advantages[i] for i in numbers], sessions)
    extra = {
        "calculate_entropy": False,
        "global_batch_size": case.mini_batch,
        "mini_batch_size": case.mini_batch,
        "epochs": case.epochs,
        "seed": 7,
        "dataloader_kwargs": {"shuffle": case.shuffle},
        "temperature": 1.0,
        gvpo_worker.SETTINGS: case.settings,
    }
    for key, value in extra.items():
        tu.assign_non_tensor_data(data, key, value)
    output = worker.train_mini_batch(data)
    metrics = tu.get(output, "metrics")
    for i, record in enumerate(records):
        record.metrics = {name: values[i] for name, values in metrics.items() if name.startswith("gvpo/")}
    return records


def main() -> None:
    request, answer, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"])
    import verl  # noqa: F401  (loads the plug-in)

    asked = torch.load(request, weights_only=False)
    results = {case.name: _train(asked["model"], asked["rows"], case, rank) for case in asked["cases"]}
    if rank == 0:
        torch.save(results, answer)


if __name__ == "__main__":
    # Under its own name, so that what is pickled here is known there.
    import actor_harness

    actor_harness.main()
