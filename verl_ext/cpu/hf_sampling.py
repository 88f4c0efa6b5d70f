"""Batched decoding with a transformers causal language model, token ids in, token ids out.

Kept apart from Ray and verl, so that it can be tested against a plain forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Request", "Result", "decode", "parse_sampling_params", "truncate"]

#: At or below this temperature the most likely token is taken (vLLM's limit).
GREEDY = 1e-5

#: Sampling parameters that are not implemented, and the values at which they change nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "min_p": (0.0,),
    "min_tokens": (0,),
    "n": (1,),
    "seed": (None,),
    "stop": (None, []),
    "prompt_logprobs": (None,),
}


@dataclass(frozen=True)
class Request:
    """One prompt to continue."""

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: bool = True


@dataclass
class Result:
    """The continuation of one prompt; ``stop_reason`` is "completed" or "aborted"."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str = "completed"


def parse_sampling_params(
    params: Mapping[str, Any], *, prompt_ids: Sequence[int], default_max_tokens: int, max_model_len: int | None
) -> Request:
    """Turn verl's sampling parameters into a `Request`; what cannot be honoured is an error.

    Raises
    ------
    ValueError
        A value out of range, a parameter that is not implemented, or a prompt that leaves no room.
    """
    params = dict(params)
    max_tokens = params.pop("max_tokens", None)
    max_new_tokens = params.pop("max_new_tokens", None)
    limit = next((v for v in (max_tokens, max_new_tokens) if v is not None), default_max_tokens)
    temperature = float(params.pop("temperature", 1.0))
    top_k = int(params.pop("top_k", -1))
    top_p = float(params.pop("top_p", 1.0))
    ignore_eos = bool(params.pop("ignore_eos", False))
    stop_token_ids = frozenset(params.pop("stop_token_ids", None) or ())
    logprobs = params.pop("logprobs", False)
    if not prompt_ids:
        raise ValueError("hf rollout: `prompt_ids` must hold at least one token; got none.")
    if not 0.0 <= temperature < float("inf"):
        raise ValueError(f"hf rollout: `temperature` must be finite and >= 0; got {temperature}.")
    if top_k < -1:
        raise ValueError(f"hf rollout: `top_k` must be -1 or 0 (all tokens) or positive; got {top_k}.")
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"hf rollout: `top_p` must be in (0, 1]; got {top_p}.")
    for name, value in params.items():
        if name not in NEUTRAL:
            raise ValueError(
                f"hf rollout: sampling parameter `{name}` (={value!r}) is not supported; supported are "
                "temperature, top_k, top_p, max_tokens, ignore_eos, stop_token_ids and logprobs. Use "
                "actor_rollout_ref.rollout.name=vllm for others."
            )
        if value not in NEUTRAL[name]:
            raise ValueError(
                f"hf rollout: sampling parameter `{name}` must stay at {NEUTRAL[name][0]!r}; got {value!r}. Use "
                "actor_rollout_ref.rollout.name=vllm for it."
            )
    limit = int(limit)
    if max_model_len is not None:
        room = max_model_len - len(prompt_ids)
        if room < 1:
            raise ValueError(
                f"hf rollout: a prompt of {len(prompt_ids)} tokens leaves no room to generate in "
                f"rollout.max_model_len={max_model_len}. Shorten the prompt (data.max_prompt_length, "
                "data.filter_overlong_prompts) or raise max_model_len."
            )
        limit = min(limit, room)
    return Request(
        prompt_ids=tuple(prompt_ids),
        max_tokens=max(1, limit),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        ignore_eos=ignore_eos,
        stop_token_ids=stop_token_ids,
        logprobs=logprobs is not None and logprobs is not False,
    )


def truncate(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Set the logits outside each row's top-k, then outside its top-p nucleus, to ``-inf``.

    Parameters
    ----------
    logits : Tensor, shape (B, V)
    top_k : int Tensor, shape (B,)
        Below 1 keeps all.
    top_p : float Tensor, shape (B,)
        1 keeps all. The most likely token is always kept.
    """
    if bool((top_k < 1).all()) and bool((top_p >= 1).all()):
        return logits
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    limit = torch.where(top_k < 1, logits.shape[-1], top_k)
    ranked = ranked.masked_fill(rank >= limit.unsqueeze(-1), float("-inf"))
    probs = ranked.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs  # probability of all better tokens
    outside = (before >= top_p.unsqueeze(-1)) & (top_p < 1).unsqueeze(-1) & (rank > 0)
    ranked = ranked.masked_fill(outside, float("-inf"))
    return torch.full_like(logits, float("-inf")).scatter(-1, order, ranked)


@torch.no_grad()
def decode(
    model: Any,
    requests: Sequence[Request],
    *,
    eos_token_ids: Collection[int],
    generator: torch.Generator,
    vocab_size: int | None = None,
    raw_log_probs: bool = False,
    aborted: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Continue all prompts as one left-padded batch with a key-value cache.

    Parameters
    ----------
    vocab_size : int, optional
        Tokens from here on are never produced (verl does so for a model whose output is wider than its
        tokenizer).
    raw_log_probs : bool
        Report log-probabilities before temperature and truncation instead of after.
    aborted : callable
        Asked before each token; once true, unfinished rows return what they have as "aborted".
    """
    batch = len(requests)
    width = max(len(request.prompt_ids) for request in requests)
    ids = torch.zeros(batch, width, dtype=torch.long)
    mask = torch.zeros(batch, width, dtype=torch.long)
    for row, request in enumerate(requests):
        ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
        mask[row, width - len(request.prompt_ids) :] = 1
    temperature = torch.tensor([request.temperature for request in requests])
    top_k = torch.tensor([request.top_k for request in requests])
    top_p = torch.tensor([request.top_p for request in requests])
    greedy = temperature <= GREEDY
    divisor = torch.where(greedy, 1.0, temperature).unsqueeze(-1)
    # A greedy row takes the best token whatever the others are: nothing to truncate.
    top_k, top_p = torch.where(greedy, -1, top_k), torch.where(greedy, 1.0, top_p)
    stops = [
        request.stop_token_ids | (frozenset() if request.ignore_eos else frozenset(eos_token_ids))
        for request in requests
    ]
    results = [Result() for _ in requests]
    running = set(range(batch))
    cache = None
    while running:
        if aborted():
            for row in running:
                results[row].stop_reason = "aborted"
            break
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        logits = output.logits[:, -1].float()
        if vocab_size is not None:
            logits[:, vocab_size:] = float("-inf")
        scaled = truncate(logits / divisor, top_k, top_p)
        log_probs = scaled.log_softmax(-1)
        token = torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(-1)
        token = torch.where(greedy, logits.argmax(-1), token)
        reported = logits.log_softmax(-1) if raw_log_probs else log_probs
        chosen = reported.gather(-1, token.unsqueeze(-1)).squeeze(-1).tolist()
        for row, value in enumerate(token.tolist()):
            if row not in running:
                continue
            results[row].token_ids.append(value)
            results[row].log_probs.append(chosen[row])
            if value in stops[row] or len(results[row].token_ids) >= requests[row].max_tokens:
                running.discard(row)
        ids = token.unsqueeze(-1)
        mask = torch.cat([mask, mask.new_ones(batch, 1)], dim=1)
    return results
