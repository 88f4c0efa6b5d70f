"""Write GSM8K and MATH in verl's format: ``python examples/gpu/prepare_data.py [--out data]``.

Needs ``datasets`` and access to the Hugging Face hub. verl chooses the reward by ``data_source``; MATH's difficulty
goes into ``extra_info.level``, for ``algorithm.bvblend.history_key=extra_info.level``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

SOURCES = {"gsm8k": ("openai/gsm8k", "main"), "math": ("DigitalLearningGmbH/MATH-lighteval", "default")}


def gsm8k(row: dict[str, Any], split: str, index: int) -> dict[str, Any]:
    """One problem of GSM8K, whose solutions end in ``#### <number>``."""
    answer = re.search(r"####\s*(-?[\d.,]+)\s*$", row["answer"])
    if answer is None:
        raise ValueError(f"gsm8k: row {index} of {split!r} has no answer after '####'")
    prompt = f"{row['question']} Reason step by step. Write the final number after ####."
    return record("openai/gsm8k", prompt, answer[1].replace(",", ""), split, index)


def math(row: dict[str, Any], split: str, index: int) -> dict[str, Any]:
    """One problem of MATH, whose solutions hold the answer in their last box."""
    from verl.utils.reward_score.math_reward import last_boxed_only_string, remove_boxed

    prompt = f"{row['problem']} Reason step by step. Put the final answer into \\boxed{{}}."
    answer = remove_boxed(last_boxed_only_string(row["solution"]))
    return record("DigitalLearningGmbH/MATH-lighteval", prompt, answer, split, index, level=row["level"])


def record(source: str, prompt: str, answer: str, split: str, index: int, **extra: Any) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": split, "index": index, **extra},
    }


def main() -> None:
    import pandas as pd
    from datasets import load_dataset

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("data"))
    out = parser.parse_args().out
    for name, convert in (("gsm8k", gsm8k), ("math", math)):
        (out / name).mkdir(parents=True, exist_ok=True)
        for split in ("train", "test"):
            rows = load_dataset(*SOURCES[name], split=split)
            table = pd.DataFrame([convert(row, split, index) for index, row in enumerate(rows)])
            table.to_parquet(out / name / f"{split}.parquet")
            print(f"{out / name / split}.parquet: {len(table)} problems")


if __name__ == "__main__":
    main()
