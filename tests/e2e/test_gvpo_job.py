"""A real 2-rank job: the gradient of every optimizer step is that of `refbase.gvpo_loss` on its mini-batch."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

import refbase

pytest.importorskip("verl", reason="needs verl")

import tiny_job

from verl_ext.cpu import run

pytestmark = [pytest.mark.e2e, pytest.mark.verl, pytest.mark.slow]

HELPERS = Path(tiny_job.__file__).parent
BETA = 0.05


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """KL in the reward, ragged groups, rollouts of one and of two rows, padding, shuffling, four updates a batch."""
    import pandas as pd

    root = tiny_job.build(tmp_path_factory.mktemp("gvpo_task"))
    table = pd.read_parquet(root / "train.parquet")
    table["__rollout_n__"] = [2 + i % 4 for i in range(len(table))]
    table.to_parquet(root / "train.parquet")
    (root / "agents.yaml").write_text("- name: two_rows\n  _target_: gvpo_recording.TwoRows\n")
    record = root / "record"
    record.mkdir()
    with open(root / "log.txt", "wb") as log:
        code = run.run(
            [
                *tiny_job.overrides(root, root / "checkpoints", steps=2, ranks=2),
                "algorithm.adv_estimator=gvpo",
                "trainer.v1.trainer_mode=recording",
                "actor_rollout_ref.actor.policy_loss.loss_mode=gvpo",
                "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
                "algorithm.use_kl_in_reward=true",
                f"algorithm.kl_ctrl.kl_coef={BETA}",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
                "actor_rollout_ref.actor.ppo_epochs=2",
                "actor_rollout_ref.actor.shuffle=true",
                # Sums over a sequence are large beside GRPO's means; the policy must move but not fall apart.
                "actor_rollout_ref.actor.optim.lr=3e-3",
                "actor_rollout_ref.rollout.agent.default_agent_loop=two_rows",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={root}/agents.yaml",
            ],
            env={
                "GVPO_RECORD": str(record),
                "VERL_FILE_LOGGER_PATH": str(root / "metrics.jsonl"),
                "VERL_USE_EXTERNAL_MODULES": "gvpo_recorder",
                "PYTHONPATH": os.pathsep.join(filter(None, [str(HELPERS), os.environ.get("PYTHONPATH")])),
            },
            output=log,
            timeout=400,
        )
    if code:
        print((root / "log.txt").read_text(errors="replace")[-6000:])
    assert code == 0
    return root


@pytest.fixture(scope="module")
def steps(job):
    """What all ranks recorded of each optimizer step, together."""
    out = []
    for first in sorted((job / "record").glob("step*-rank0.pt")):
        parts = [torch.load(path) for path in sorted(first.parent.glob(first.name.replace("rank0", "rank*")))]
        assert len(parts) == 2
        lists = [name for name, value in parts[0].items() if isinstance(value, list)]
        merged = {name: [item for part in parts for item in part[name]] for name in lists}
        out.append({**parts[0], **merged})
    return out


def reference(root, step):
    """Loss and gradient in one process, float64, from the rows' tokens, scores and reference log-probabilities."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(root / "model")).double().eval()
    model.load_state_dict(step["parameters"])
    rollouts = {}
    for i, mask in enumerate(step["response_mask"]):
        if any(mask):
            rollouts.setdefault((step["uid"][i], step["sessions"][i][0]), []).append(i)
    log_probs, known, rewards = [], [], []
    for rows in rollouts.values():
        current = base = 0.0
        for i in rows:
            prompt, response = step["prompts"][i], step["responses"][i]
            logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            mask = torch.tensor(step["response_mask"][i], dtype=torch.float64)
            token = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
            current = current + (token * mask).sum()
            base = base + (torch.tensor(step["ref_log_prob"][i], dtype=torch.float64) * mask).sum()
        log_probs.append(current)
        known.append(base)
        assert len({sum(step["rm_scores"][i]) for i in rows}) == 1  # verl gives all rows the rollout's score
        rewards.append(sum(step["rm_scores"][rows[0]]))
    loss = refbase.gvpo_loss(
        torch.tensor(rewards, dtype=torch.float64),
        [uid for uid, _ in rollouts],
        torch.stack(log_probs),
        torch.stack(known),
        BETA,
    )
    loss.backward()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


def test_the_gradient_of_every_step_is_the_loss_s(job, steps):
    assert len(steps) >= 8
    worst = 0.0
    for step in steps:
        _, gradient = reference(job, step)
        difference = sum((step["gradient"][n].double() - g).square().sum() for n, g in gradient.items())
        worst = max(worst, float(difference / sum(g.square().sum() for g in gradient.values())) ** 0.5)
    print(f"worst relative error over {len(steps)} optimizer steps: {worst:.1e}")
    assert worst < 1e-4


def test_the_job_had_what_it_was_to_have(steps):
    """Ragged groups, several rows to a rollout, padding, whole groups in each mini-batch."""
    assert any(rows == 2 for step in steps for _, rows in step["sessions"])
    assert any(not any(mask) for step in steps for mask in step["response_mask"])
    sizes = set()
    for step in steps:
        pairs = {(uid, session) for uid, (session, _) in zip(step["uid"], step["sessions"], strict=True)}
        sizes |= set(Counter(uid for uid, _ in pairs if not uid.startswith("pad")).values())
    assert len(sizes) >= 3


def test_metrics_reach_the_logger(job):
    logged = [step for step in tiny_job.metrics(job / "metrics.jsonl") if "actor/gvpo/loss" in step]
    assert len(logged) == 2
    for step in logged:
        assert step["actor/gvpo/loss"] > 0
        assert step["actor/gvpo/weight_sum_max"] < 1e-9
        assert step["actor/gvpo/implicit_reward_std"] > 1e-4
        assert step["actor/gvpo/split_sessions"] == 0
        assert step["training/rollout_probs_diff_max"] < 1e-5
