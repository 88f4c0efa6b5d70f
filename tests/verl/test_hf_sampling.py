"""Decoding of the `hf` rollout against plain forward passes of the model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")

from verl_ext.cpu.hf_sampling import Request, decode, parse_sampling_params, truncate

pytestmark = pytest.mark.verl

EOS = 2


@pytest.fixture(scope="module")
def model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=EOS,
        initializer_range=0.6,  # far from uniform
    )
    return Qwen2ForCausalLM(config).eval()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def forward(model, prompt, response):
    """Logits that predict each token of the response: one pass, no cache, no padding."""
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        return model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()


PROMPTS = [[5], [7, 8, 9, 10, 11], [3, 4]]


def test_greedy_is_the_argmax_whatever_the_padding(model):
    requests = [Request(p, 8, temperature=0.0) for p in PROMPTS]
    results = decode(model, requests, eos_token_ids=[], generator=generator())
    for prompt, result in zip(PROMPTS, results, strict=True):
        logits = forward(model, prompt, result.token_ids)
        assert result.token_ids == logits.argmax(-1).tolist()
        assert result.log_probs == pytest.approx(logits.log_softmax(-1).max(-1).values.tolist(), abs=1e-4)
        assert len(result.token_ids) == 8
        assert result.stop_reason == "completed"


@pytest.mark.parametrize("raw", [False, True])
def test_log_probs_are_those_of_what_was_sampled(model, raw):
    settings = [{"temperature": 0.7}, {"temperature": 1.5, "top_k": 3}, {"temperature": 1.0, "top_p": 0.5}]
    requests = [Request(p, 6, **s) for p, s in zip(PROMPTS, settings, strict=True)]
    results = decode(model, requests, eos_token_ids=[], generator=generator(1), raw_log_probs=raw)
    for prompt, s, result in zip(PROMPTS, settings, results, strict=True):
        logits = forward(model, prompt, result.token_ids)
        if not raw:
            k, p = torch.tensor([s.get("top_k", -1)] * 6), torch.tensor([s.get("top_p", 1.0)] * 6)
            logits = truncate(logits / s["temperature"], k, p)
        wanted = logits.log_softmax(-1).gather(-1, torch.tensor(result.token_ids)[:, None])[:, 0]
        assert wanted.isfinite().all()
        assert result.log_probs == pytest.approx(wanted.tolist(), abs=1e-4)


def test_sampling_follows_the_distribution(model):
    """First tokens of many copies of one prompt; chi-square far inside what chance allows."""
    n = 4000
    results = decode(model, [Request([5], 1)] * n, eos_token_ids=[], generator=generator(2))
    counts = torch.bincount(torch.tensor([r.token_ids[0] for r in results]), minlength=24)
    probs = forward(model, [5], [0])[0].softmax(-1)
    common = probs * n > 5
    chi_square = ((counts - n * probs) ** 2 / (n * probs))[common].sum()
    assert common.sum() > 3
    assert chi_square < 3 * common.sum()


def test_stops(model):
    free = decode(model, [Request([5], 6, temperature=0.0)], eos_token_ids=[], generator=generator())[0].token_ids
    third = free[2]
    end = free.index(third) + 1
    for request, eos, wanted in (
        (Request([5], 6, temperature=0.0), [third], end),
        (Request([5], 6, temperature=0.0, ignore_eos=True), [third], 6),
        (Request([5], 6, temperature=0.0, ignore_eos=True, stop_token_ids=frozenset([third])), [], end),
        (Request([5], 2, temperature=0.0), [], 2),
    ):
        result = decode(model, [request], eos_token_ids=eos, generator=generator())[0]
        assert result.token_ids == free[:wanted]  # the stop token is part of the response
        assert len(result.log_probs) == wanted


def test_rows_that_stop_early_do_not_change_the_others(model):
    alone = decode(model, [Request([7, 8], 8, temperature=0.0)], eos_token_ids=[], generator=generator())[0]
    mixed = decode(
        model,
        [Request([5], 1, temperature=0.0), Request([7, 8], 8, temperature=0.0)],
        eos_token_ids=[],
        generator=generator(),
    )
    assert len(mixed[0].token_ids) == 1
    assert mixed[1].token_ids == alone.token_ids


def test_tokens_beyond_the_tokenizer_are_never_produced(model):
    results = decode(model, [Request([5], 20)] * 20, eos_token_ids=[], generator=generator(3), vocab_size=6)
    assert max(t for r in results for t in r.token_ids) < 6


def test_abort_returns_what_there_is(model):
    calls = iter([False, False, True])
    results = decode(
        model,
        [Request([5], 1), Request([7], 9)],
        eos_token_ids=[],
        generator=generator(),
        aborted=lambda: next(calls),
    )
    assert [r.stop_reason for r in results] == ["completed", "aborted"]
    assert [len(r.token_ids) for r in results] == [1, 2]


@given(
    logits=st.lists(st.lists(st.floats(-8, 8, width=16), min_size=6, max_size=6, unique=True), min_size=1, max_size=4),
    k=st.integers(-1, 8),
    p=st.floats(0.05, 1.0),
)
def test_truncation_is_that_of_transformers(logits, k, p):
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    scores = torch.tensor(logits)
    rows = len(logits)
    found = truncate(scores, torch.full((rows,), k), torch.full((rows,), p))
    wanted = TopKLogitsWarper(k)(None, scores) if k > 0 else scores
    kept = (found > float("-inf")).sum(-1)
    # At a sum that equals top_p to the last bit the two may differ by the token on the edge.
    cumulative = wanted.sort(descending=True).values.softmax(-1).cumsum(-1)
    if ((cumulative - p).abs() > 1e-5).all():
        wanted = TopPLogitsWarper(p)(None, wanted) if p < 1 else wanted
        torch.testing.assert_close(found, wanted)
    assert (kept >= 1).all()
    assert torch.equal(found.argmax(-1), scores.argmax(-1))


def parse(prompt=(1, 2), limit=8, max_model_len=None, **params):
    return parse_sampling_params(params, prompt_ids=list(prompt), default_max_tokens=limit, max_model_len=max_model_len)


def test_what_verl_sends_is_understood():
    request = parse(temperature=0.5, top_p=0.9, top_k=4, repetition_penalty=1.0, logprobs=True)
    assert (request.temperature, request.top_p, request.top_k, request.max_tokens) == (0.5, 0.9, 4, 8)
    assert request.logprobs
    assert not parse(logprobs=False).logprobs
    assert parse(logprobs=0).logprobs  # vLLM's spelling: the chosen token's alone
    assert parse(max_new_tokens=3).max_tokens == 3
    assert parse(max_tokens=100, max_model_len=10).max_tokens == 8
    assert parse(stop_token_ids=[7]).stop_token_ids == {7}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "`temperature` must be finite and >= 0; got -1"),
        ({"temperature": float("nan")}, "`temperature`"),
        ({"top_p": 0}, r"`top_p` must be in \(0, 1\]; got 0"),
        ({"top_p": 1.5}, "`top_p`"),
        ({"top_k": -3}, "`top_k`.*got -3"),
        ({"repetition_penalty": 1.2}, "`repetition_penalty` must stay at 1.0; got 1.2"),
        ({"min_p": 0.1}, "`min_p` must stay at 0.0"),
        ({"best_of": 4}, r"`best_of` \(=4\) is not supported"),
        ({"prompt": ()}, "at least one token"),
        ({"prompt": (1,) * 10, "max_model_len": 10}, "10 tokens leaves no room"),
    ],
)
def test_what_cannot_be_honoured_is_an_error(params, message):
    with pytest.raises(ValueError, match=message):
        parse(**params)
