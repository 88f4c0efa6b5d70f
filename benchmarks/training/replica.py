"""The same training without verl: many seeds for what three jobs of verl cannot decide.

One process samples, computes the advantages with the library and makes AdamW's step, with the settings that the jobs
have (`examples.first_run.job`, `benchmarks.training.job`): one update per batch, so that verl's clipped ratio is 1 and
the loss is advantage times log-probability. The report compares both where both ran.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import refbase
from benchmarks.training.gradient import Sampler
from benchmarks.training.plan import ESTIMATORS, LR, SWEEP, Size
from examples.first_run.model import encode, solved
from examples.first_run.task import Task
from refbase.history import HistoryState, update_history

#: verl's defaults, and GVPO's beta in `examples.first_run.job`.
GRAD_CLIP, WEIGHT_DECAY, BETA = 1.0, 0.01, 0.02
STUCK = 0.05


@dataclass(frozen=True)
class Replica:
    """One run; `model` is the seed of the model it starts from, `seed` that of its batches and samples."""

    task: str
    estimator: str
    rollouts: int
    lr: float
    model: int
    seed: int


def plan(size: Size, seeds: int) -> Iterator[Replica]:
    """`seeds` runs from each model, for every estimator: at the rates of verl's jobs."""
    settings = [(task, 8, LR[task]) for task in size.tasks]
    settings += [("warm", 2, LR["warm"])] if size.small_group else []
    settings += [("warm", 8, lr) for lr in SWEEP] if size.sweep else []
    for task, rollouts, lr in settings:
        for model in size.seeds:
            for seed in range(seeds):
                for estimator in size.estimators:
                    yield Replica(task, estimator, rollouts, lr, model, seed)


def run_all(
    replicas: Iterable[Replica], folders: Mapping[tuple[str, int], Path], size: Size, processes: int
) -> Iterator[tuple[Replica, dict[str, Any]]]:
    """Results in the order of the replicas."""
    todo = list(replicas)
    arguments = [(replica, folders[replica.task, replica.model], size.rows, size.steps) for replica in todo]
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from zip(todo, pool.map(train, *zip(*arguments, strict=True)), strict=True)


def train(replica: Replica, folder: Path, rows: int, steps: int) -> dict[str, Any]:
    """Reward and zero-signal groups per step, sums of the gradient's moments, held-out success at the end."""
    sampler = Sampler(folder, 1000 * replica.model + replica.seed)
    reference = copy.deepcopy(sampler.model).requires_grad_(False)
    optimizer = torch.optim.AdamW(sampler.model.parameters(), lr=replica.lr, weight_decay=WEIGHT_DECAY)
    prompts = rows // replica.rollouts
    groups = [prompt for prompt in range(prompts) for _ in range(replica.rollouts)]
    history = HistoryState.empty()
    reward, zero, variance, moments = [], [], [], []
    for _ in range(steps):
        tokens, labels, rewards = sampler.batch(prompts, replica.rollouts)
        log_probs = sampler.log_probs(tokens, labels)
        returns = rewards
        if replica.estimator == "gvpo":
            with torch.no_grad():
                base = sampler.log_probs(tokens, labels, reference)
            returns = rewards - BETA * (log_probs.detach() - base).double()
        advantages = advantages_of(replica.estimator, returns, groups, history)
        optimizer.zero_grad()
        moments.append(backward(sampler, -(advantages.float() * log_probs) / rows))
        torch.nn.utils.clip_grad_norm_(sampler.model.parameters(), GRAD_CLIP)
        optimizer.step()
        history = update_history(history, rewards, groups)
        by_group = rewards.view(prompts, replica.rollouts)
        reward.append(round(rewards.mean().item(), 6))
        zero.append(round((by_group == by_group[:, :1]).all(1).double().mean().item(), 6))
        variance.append(round(rewards.var(correction=0).item(), 6))
    return {
        "reward": reward,
        "zero_signal": zero,
        "reward_variance": variance,
        "gradient_variance": significant(sum(spread for spread, _ in moments)),
        "gradient_square": significant(sum(square for _, square in moments)),
        **held_out(sampler, replica.model),
    }


def backward(sampler: Sampler, losses: Tensor) -> tuple[float, float]:
    """Backpropagates the sum of the (N,) losses; estimates of the gradient's variance and of its mean's squared norm.

    From two micro-batches of half the prompts each, with gradients a and b: the gradient a + b has a covariance of
    trace E|a - b|^2 and a mean of squared norm 4 E a.b, if the halves are independent. (A baseline that all prompts of
    the batch share ties them together a little.)
    """
    weights = list(sampler.model.parameters())
    half = torch.autograd.grad(losses[: len(losses) // 2].sum(), weights, retain_graph=True)
    losses.sum().backward()
    a = torch.cat([part.reshape(-1) for part in half]).double()
    b = torch.cat([weight.grad.reshape(-1) for weight in weights if weight.grad is not None]).double() - a
    return (a - b).square().sum().item(), 4 * (a @ b).item()


def significant(value: float) -> float:
    return float(f"{value:.6g}")


def advantages_of(estimator: str, returns: Tensor, groups: list[int], history: HistoryState) -> Tensor:
    if estimator in ("bvblend", "bvblend_eb", "shrinkage_history"):
        return getattr(refbase, estimator)(returns, groups, history).advantages
    # With one update per batch GVPO's weights are the centred returns, which hold the KL term here.
    name = {"drgrpo": "group_mean", "gvpo": "group_mean"}.get(estimator, estimator)
    assert estimator in ESTIMATORS
    return getattr(refbase, name)(returns, groups).advantages


def held_out(sampler: Sampler, model: int) -> dict[str, float]:
    _, problems = Task(n_train=sampler.n_train, n_val=sampler.n_val).problems(model)
    rows = encode(sampler.tokenizer, problems)
    greedy, sampled = solved(sampler.model, rows, sampler.pad)
    means = {"greedy": greedy, "sampled": sampled, "stuck": sampled < STUCK}
    return {name: round(values.double().mean().item(), 6) for name, values in means.items()}
