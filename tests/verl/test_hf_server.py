"""The server of the `hf` rollout, in this process, without Ray."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("verl")

import tiny_job
import torch
from hydra import compose, initialize_config_module

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def make_server(request, tmp_path_factory):
    import verl.trainer.ppo.core_algos  # noqa: F401

    from verl_ext.cpu.hf_rollout import HFServer

    root = tiny_job.build(tmp_path_factory.mktemp("tiny"), tied=request.param)

    def make(*overrides):
        with initialize_config_module("verl.trainer.config", version_base=None):
            arguments = [*tiny_job.overrides(root, root / "checkpoints"), *overrides]
            config = compose("refbase_cpu", overrides=arguments).actor_rollout_ref
        return HFServer(config.rollout, config.model, 0)

    return make


@pytest.fixture(scope="module")
def server(make_server):
    return make_server()


def generate(server, *prompts, **params):
    async def run():
        server.model_lock = asyncio.Lock()
        server.admitting = asyncio.Event()
        server.admitting.set()
        calls = [server.generate(p, {"temperature": 0, "logprobs": True, **params}, "id") for p in prompts]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def load(server, weights, global_steps=1):
    async def run():
        server.model_lock = asyncio.Lock()
        names = list(weights)
        for part in (names[:3], names[3:]):
            await server.load_weights({name: weights[name] for name in part})
        await server.finish_weights(global_steps)

    asyncio.run(run())


def test_requests_that_arrive_together_are_one_batch(server, monkeypatch):
    from verl_ext.cpu import hf_rollout

    sizes = []
    decode = hf_rollout.decode
    monkeypatch.setattr(hf_rollout, "decode", lambda m, r, **k: sizes.append(len(r)) or decode(m, r, **k))
    outputs = generate(server, [5, 6], [7], [8, 9, 10])
    assert sizes == [3]
    assert all(1 <= len(o.token_ids) <= 8 and len(o.log_probs) == len(o.token_ids) for o in outputs)
    assert [o.token_ids for o in outputs] == [generate(server, p)[0].token_ids for p in ([5, 6], [7], [8, 9, 10])]


def test_new_weights_are_used_and_complete(server):
    before = {name: tensor.clone() for name, tensor in server.model.state_dict().items()}
    old = generate(server, [5, 6, 7])[0]
    torch.manual_seed(1)
    new = {name: tensor + 0.5 * torch.randn_like(tensor) for name, tensor in before.items()}
    if server.model.config.tie_word_embeddings:
        del new["lm_head.weight"]  # one storage: either name will do
    load(server, new, global_steps=7)
    changed = generate(server, [5, 6, 7])[0]
    assert changed.log_probs != old.log_probs
    assert changed.extra_fields["global_steps"] == 7
    for name, tensor in new.items():
        assert torch.equal(server.model.state_dict()[name], tensor)
    load(server, before)
    assert generate(server, [5, 6, 7])[0].log_probs == old.log_probs


def test_incomplete_or_foreign_weights_are_errors(server):
    weights = dict(server.model.state_dict())
    name = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(RuntimeError, match=r"no value for 1 weights \(model\.layers\.1\.mlp\.down_proj\.weight\)"):
        load(server, {k: v for k, v in weights.items() if k != name})
    load(server, weights)  # the failed attempt left nothing behind
    with pytest.raises(KeyError, match="which the model does not have"):
        load(server, {**weights, "model.foreign": torch.zeros(1)})
    with pytest.raises(ValueError, match="has shape"):
        load(server, {**weights, name: torch.zeros(1, 1)})
    server.arrived.clear()


def test_an_error_reaches_every_caller_and_the_next_batch_works(server, monkeypatch, capfd):
    from verl_ext.cpu import hf_rollout

    decode = hf_rollout.decode
    monkeypatch.setattr(hf_rollout, "decode", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("broken")))
    for output in generate(server, [5], [6]):
        assert isinstance(output, RuntimeError)
    assert "broken" in capfd.readouterr().err
    monkeypatch.setattr(hf_rollout, "decode", decode)
    assert generate(server, [5])[0].token_ids


def test_a_bad_request_fails_alone(server):
    async def run():
        server.model_lock = asyncio.Lock()
        server.admitting = asyncio.Event()
        server.admitting.set()
        bad = server.generate([5], {"temperature": -1.0}, "bad")
        good = server.generate([5], {"temperature": 0}, "good")
        return await asyncio.gather(bad, good, return_exceptions=True)

    bad, good = asyncio.run(run())
    assert isinstance(bad, ValueError)
    assert good.token_ids
    assert good.log_probs is None  # not asked for


def test_images_are_refused(server):
    async def run():
        await server.generate([5], {}, "id", image_data=["picture"])

    with pytest.raises(ValueError, match="images"):
        asyncio.run(run())


def test_abort_and_resume(server):
    async def run():
        server.model_lock = asyncio.Lock()
        server.admitting = asyncio.Event()
        server.admitting.set()
        await server.abort_all_requests()
        waiting = asyncio.create_task(server.generate([5], {"temperature": 0}, "id"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await server.resume_generation()
        return await waiting

    assert asyncio.run(run()).stop_reason == "completed"


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.rollout.dtype=float16",
        "actor_rollout_ref.rollout.logprobs_mode=raw_logits",
        "actor_rollout_ref.model.lora_rank=4",
    ],
)
def test_what_cannot_be_done_is_refused_at_the_start(make_server, override):
    key, value = override.split("=")
    with pytest.raises(ValueError, match=rf"{key}.*{value}.*is not supported"):
        make_server(override)
