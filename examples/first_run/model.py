"""A small Qwen2 model with its tokenizer, and the supervised steps that make it worth reinforcing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .task import Problem

if TYPE_CHECKING:
    import torch

END, PAD = "<|im_end|>", "<|endoftext|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Size:
    """Shape of the transformer."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4


@dataclass(frozen=True)
class WarmStart:
    """Supervised steps that leave the model with a success rate between `start_at` and a little less.

    From random weights, reinforcement learning would have to find arithmetic by luck. So the model first learns from
    right answers, until it gives the right one to a training problem with probability `learn_to`, on average. A few
    steps on answers of which the share `wrong` belongs to other problems then unsettle it, down to `start_at`: it
    knows more than it says, and that is what there is to reinforce. With `wrong` = 1 it ends up guessing from the
    distribution of all answers, which is right about one time in 25: the lowest `start_at` that can be reached.
    """

    learn_to: float = 0.6
    start_at: float = 0.2
    max_steps: int = 3000
    batch: int = 128
    lr: float = 4e-3
    lr_unsettle: float = 1e-3
    wrong: float = 0.5
    check_every: int = 25
    n_check: int = 400


def build_tokenizer() -> Any:
    """Qwen2's byte-level tokenizer, with one token per byte and one for each role of the chat template.

    transformers reads any tokenizer of a ``qwen2`` model as this class, and verl needs a newline to be exactly one
    token and ``<|im_end|>`` to exist.
    """
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    specials = [PAD, "<|im_start|>", END]
    merges = [(word[:i], word[i]) for word in ("user", "assistant") for i in range(1, len(word))]
    tokens = dict.fromkeys([*specials, *bytes_to_unicode().values(), *(left + right for left, right in merges)])
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=specials[1:],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Any, size: Size, seed: int) -> Any:
    """A Qwen2 model with random weights, in fp32."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    config = Qwen2Config(
        # verl masks the rollout's logits beyond len(tokenizer): a larger head would make training disagree.
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=2 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    model = Qwen2ForCausalLM(config).float()
    model.generation_config.eos_token_id = end
    model.generation_config.pad_token_id = pad
    return model


def encode_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """The tokens that verl's agent loop will send for this prompt."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    return list(tokenizer.encode(text))


def _batch(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token and label tensors of (prompt, answer) pairs, padded on the right; only answers carry labels."""
    import torch

    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), -100)
    for i, (prompt, answer) in enumerate(rows):
        tokens[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return tokens, labels


Row = tuple[list[int], list[int]]


def solved(model: Any, rows: Sequence[Row], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each (prompt, answer) row, whether greedy decoding solves it and the probability that sampling does.

    Both without generating anything: greedy decoding gives an answer exactly if each of its tokens is the most likely
    one after those before it, and the probability of an answer is the product over its tokens.
    """
    import torch

    tokens, labels = _batch(rows, pad)
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[:, :-1]
    wanted, prompt = labels[:, 1:], labels[:, 1:] == -100
    greedy = ((logits.argmax(-1) == wanted) | prompt).all(-1)
    log_probs = logits.log_softmax(-1).gather(-1, wanted.clamp(min=0)[..., None]).squeeze(-1)
    return greedy, log_probs.masked_fill(prompt, 0).sum(-1).exp()


def success(model: Any, rows: Sequence[Row], pad: int) -> tuple[float, float]:
    """Share of rows that greedy decoding solves, and mean probability that sampling solves one; see `solved`."""
    greedy, sampled = solved(model, rows, pad)
    return greedy.double().mean().item(), sampled.double().mean().item()


def encode(tokenizer: Any, problems: Sequence[Problem]) -> list[Row]:
    """The (prompt, answer) tokens of each problem, as the trainer will see them."""
    end = tokenizer.convert_tokens_to_ids(END)
    return [(encode_prompt(tokenizer, p.prompt), [*tokenizer.encode(p.answer), end]) for p in problems]


def warm_start(
    model: Any,
    rows: Sequence[Row],
    pad: int,
    options: WarmStart,
    seed: int,
    progress: Callable[[int, float], None] = lambda step, probability: None,
) -> int:
    """Teach the model the rows as `WarmStart` says; returns the number of steps.

    `progress` is called with the step and the probability of a right answer at each check.
    """
    import torch

    rng = random.Random(seed)
    check = rng.sample(rows, min(options.n_check, len(rows)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    step, learning, probability = 0, True, 0.0
    while step < options.max_steps:
        step += 1
        if learning:
            optimizer.param_groups[0]["lr"] = options.lr * min(1.0, step / 50)
        chosen = rng.choices(rows, k=options.batch)
        if not learning:
            chosen = [(p, a if rng.random() < 1 - options.wrong else rng.choice(rows)[1]) for p, a in chosen]
        tokens, labels = _batch(chosen, pad)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if learning and step % options.check_every:
            continue
        _, probability = success(model, check, pad)
        progress(step, probability)
        if learning and probability >= options.learn_to:
            learning = False
            optimizer.param_groups[0]["lr"] = options.lr_unsettle
        elif not learning and probability <= options.start_at:
            return step
    raise RuntimeError(
        f"warm_start: after {options.max_steps} steps the probability of a right answer is {probability:.2f}, and "
        f"learn_to={options.learn_to}, start_at={options.start_at} have not been reached one after the other. "
        "Allow more steps, use a larger model or ask for less."
    )
