"""The reward of the verl run: reasoning-gym's own verifier.

verl loads this file by path (``reward.custom_reward_function.path``), so it imports nothing of this package.
"""

from __future__ import annotations

import json
from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], **_: Any
) -> dict[str, float]:
    """Score one answer: ``score`` is the verifier's reward, ``acc`` says whether the answer is right.

    The verifier grants a part of the reward to an answer that only contains the right one ("12" for "2").
    """
    from reasoning_gym import get_score_answer_fn

    score = float(get_score_answer_fn(data_source)(solution_str.strip(), json.loads(extra_info["entry"])))
    return {"score": score, "acc": float(score == 1.0)}


def exact_score(*arguments: Any, **keywords: Any) -> dict[str, float]:
    """`compute_score` without the partial reward: 1 for the right answer, 0 for any other."""
    acc = compute_score(*arguments, **keywords)["acc"]
    return {"score": acc, "acc": acc}
