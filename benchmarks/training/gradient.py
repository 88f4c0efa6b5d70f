"""Variance of the policy gradient with every estimator, from the same rollouts of a fixed policy.

Training jobs visit different policies, so their gradients cannot be compared. Here the policy stands still: many
batches are sampled from one model, and each estimator's gradient of each batch, over all weights of the model, is
computed by backpropagation. Noise is the trace of the gradients' covariance over the squared norm of
their mean, which no rescaling changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import refbase
from examples.first_run.model import PAD, encode_prompt
from refbase.history import HistoryState, update_history

#: Batches before the first that counts, which only fill BV-Blend's memory.
WARM_UP = 20
RESPONSE = 8

Array = NDArray[np.float64]
Advantages = Callable[[Tensor, list[int], HistoryState], Tensor]


def plain(name: str) -> Advantages:
    return lambda rewards, groups, _: getattr(refbase, name)(rewards, groups).advantages


def remembering(name: str) -> Advantages:
    return lambda rewards, groups, history: getattr(refbase, name)(rewards, groups, history).advantages


#: Label of each row of the table -> advantages of a batch. Centring by the group's mean (Dr.GRPO, and GVPO's first
#: step) has rloo's gradient times (m - 1)/m, so its noise is rloo's.
RULES: Mapping[str, Advantages] = {
    **{name: plain(name) for name in ("rloo", "grpo", "batch_mean", "shrinkage", "shrinkage_js")},
    **{name: remembering(name) for name in ("bvblend", "bvblend_eb", "shrinkage_history")},
}


def study(models: Mapping[str, Path], quick: bool, seed: int) -> list[dict[str, Any]]:
    """For each prepared folder, and rollouts per prompt, the noise of every rule."""
    batches, rows = (4, 32) if quick else (80, 256)
    sizes = (2,) if quick else (2, 4, 8)
    return [
        {"model": name, "rollouts": m, "rows": rows, "batches": batches, **measure(folder, rows // m, m, batches, seed)}
        for name, folder in models.items()
        for m in sizes
    ]


def measure(folder: Path, prompts: int, rollouts: int, batches: int, seed: int) -> dict[str, Any]:
    """Noise relative to `rloo` with a standard error by the jackknife, and each rule's share of the rewards."""
    sampler = Sampler(folder, seed)
    groups = [prompt for prompt in range(prompts) for _ in range(rollouts)]
    gradients: dict[str, list[Tensor]] = {name: [] for name in RULES}
    history = HistoryState.empty()
    success, constant = [], []
    for batch in range(WARM_UP + batches):
        tokens, labels, rewards = sampler.batch(prompts, rollouts)
        if batch >= WARM_UP:
            success.append(rewards.mean().item())
            by_group = rewards.view(prompts, rollouts)
            constant.append((by_group == by_group[:, :1]).all(1).double().mean().item())
            log_probs = sampler.log_probs(tokens, labels)
            for name, rule in RULES.items():
                gradients[name].append(sampler.gradient(log_probs, rule(rewards, groups, history)))
        history = update_history(history, rewards, groups)
    noise = {name: leave_one_out_noise(torch.stack(vectors)) for name, vectors in gradients.items()}
    reference = noise["rloo"]
    return {
        "success": float(np.mean(success)),
        "zero_signal": float(np.mean(constant)),
        "relative": {name: ratio(values, reference) for name, values in noise.items()},
    }


def ratio(values: Array, reference: Array) -> list[float] | None:
    """Ratio and its jackknife standard error; entry 0 is from all batches, the others leave one out.

    None where there is no noise to compare with: no rollout that is rewarded differently from the others.
    """
    if not (np.isfinite(values).all() and np.isfinite(reference).all() and reference.all()):
        return None
    ratios = values / reference
    left_out = ratios[1:]
    error = np.sqrt((len(left_out) - 1) / len(left_out) * np.square(left_out - left_out.mean()).sum())
    return [float(ratios[0]), float(error)]


def leave_one_out_noise(gradients: Tensor) -> Array:
    """Trace of the covariance over the squared norm of the mean (its own noise taken off), from (B, P) gradients.

    Entry 0 uses all B batches, entry b + 1 all but batch b.
    """
    gram = (gradients @ gradients.T).double().numpy()
    squares, total, rows = np.diag(gram).sum(), gram.sum(), gram.sum(1)
    count = len(gram)
    left = [(squares, total, count)]
    left += [(squares - gram[b, b], total - 2 * rows[b] + gram[b, b], count - 1) for b in range(count)]
    out = []
    for square_sum, all_sum, size in left:
        variance = (square_sum - all_sum / size) / (size - 1)
        signal = all_sum / size**2 - variance / size
        out.append(variance / signal if signal else np.nan)
    return np.array(out)


class Sampler:
    """Rollouts of a prepared model on its training problems, and gradients of their log-probabilities."""

    def __init__(self, folder: Path, seed: int) -> None:
        import pandas as pd
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        self.pad = self.tokenizer.convert_tokens_to_ids(PAD)
        self.end = self.model.generation_config.eos_token_id
        data = pd.read_parquet(folder / "train.parquet")
        self.prompts = [encode_prompt(self.tokenizer, messages[0]["content"]) for messages in data["prompt"]]
        self.answers = [entry["ground_truth"] for entry in data["reward_model"]]
        self.n_train, self.n_val = len(data), len(pd.read_parquet(folder / "val.parquet"))
        self.rng = np.random.default_rng(seed)
        torch.manual_seed(seed)

    def batch(self, prompts: int, rollouts: int) -> tuple[Tensor, Tensor, Tensor]:
        """(N, L) tokens, (N, L) labels that are -100 outside the response, (N,) rewards 0 or 1."""
        chosen = self.rng.choice(len(self.prompts), prompts, replace=False)
        width = max(len(self.prompts[i]) for i in chosen)
        left = torch.full((prompts, width), self.pad)
        for row, i in enumerate(chosen):
            left[row, width - len(self.prompts[i]) :] = torch.tensor(self.prompts[i])
        left = left.repeat_interleave(rollouts, 0)
        tokens = self.model.generate(
            input_ids=left,
            attention_mask=(left != self.pad).long(),
            do_sample=True,
            top_k=0,
            temperature=1.0,
            max_new_tokens=RESPONSE,
            pad_token_id=self.pad,
        )
        response = tokens[:, width:]
        ended = (response == self.end).cumsum(1)
        valid = (ended == 0) | ((response == self.end) & (ended == 1))
        labels = torch.full_like(tokens, -100)
        labels[:, width:] = torch.where(valid, response, -100)
        texts = self.tokenizer.batch_decode(torch.where(valid & (ended == 0), response, self.pad))
        answers = [text.replace(PAD, "").strip() for text in texts]
        right = [answers[row] == self.answers[chosen[row // rollouts]] for row in range(len(answers))]
        return tokens, labels, torch.tensor(right, dtype=torch.float64)

    def log_probs(self, tokens: Tensor, labels: Tensor, model: Any = None) -> Tensor:
        """(N,) log-probability of each response, to differentiate; of another model's if one is given."""
        mask = (tokens != self.pad) | (labels != -100)
        position = (mask.long().cumsum(1) - 1).clamp(min=0)
        logits = (model or self.model)(input_ids=tokens, attention_mask=mask.long(), position_ids=position).logits[
            :, :-1
        ]
        wanted = labels[:, 1:]
        each = logits.log_softmax(-1).gather(-1, wanted.clamp(min=0)[..., None]).squeeze(-1)
        return each.masked_fill(wanted == -100, 0.0).sum(1)

    def gradient(self, log_probs: Tensor, advantages: Tensor) -> Tensor:
        """(P,) gradient of the mean over rollouts of advantage times log-probability."""
        objective = (advantages.float() * log_probs).mean()
        parts = torch.autograd.grad(objective, list(self.model.parameters()), retain_graph=True)
        return torch.cat([part.reshape(-1) for part in parts])
