"""The problems: sums of one-digit terms from reasoning-gym, split so that no held-out problem is trained on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The reward function lives in a file of its own because verl loads it by path in its reward workers.
REWARD_FILE = Path(__file__).with_name("reward.py")


@dataclass(frozen=True)
class Problem:
    """One problem: what the model reads, what it should answer, and the entry that the verifier needs."""

    prompt: str
    answer: str
    entry: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Which problems to draw from reasoning-gym's ``chain_sum``, and how to split them.

    Problems are drawn without repetition. The first `n_val` are held out, the next `n_train` are trained on.
    """

    min_terms: int = 2
    max_terms: int = 3
    digits: int = 1
    n_train: int = 3600
    n_val: int = 400

    name = "chain_sum"

    def problems(self, seed: int) -> tuple[list[Problem], list[Problem]]:
        """The training and the held-out problems, disjoint."""
        from reasoning_gym import create_dataset

        wanted = self.n_train + self.n_val
        draws = 20 * wanted  # many draws repeat: there are only 200 two-term sums of one-digit numbers
        # A problem depends on seed + index alone, so the seeds of two tasks must lie further apart than `draws`.
        dataset = create_dataset(
            self.name,
            min_terms=self.min_terms,
            max_terms=self.max_terms,
            min_digits=self.digits,
            max_digits=self.digits,
            seed=seed * 1_000_003,
            size=draws,
        )
        found: dict[str, Problem] = {}
        for index in range(draws):
            entry = dataset[index]
            prompt = f"{entry['metadata']['expression']} ="
            found.setdefault(prompt, Problem(prompt, entry["answer"], entry))
            if len(found) == wanted:
                break
        else:
            raise ValueError(
                f"Task: {wanted} different problems were asked for (n_train={self.n_train}, n_val={self.n_val}), "
                f"{len(found)} were found in {draws} draws. Ask for fewer, or for more terms or digits."
            )
        problems = list(found.values())
        return problems[self.n_val :], problems[: self.n_val]


def write_parquet(task: Task, seed: int, folder: Path) -> tuple[Path, Path]:
    """Write ``train.parquet`` and ``val.parquet`` in the columns that verl reads, and return their paths."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for split, problems in zip(("train", "val"), task.problems(seed), strict=True):
        rows = [
            {
                "data_source": task.name,
                "prompt": [{"role": "user", "content": problem.prompt}],
                "ability": "arithmetic",
                "reward_model": {"style": "rule", "ground_truth": problem.answer},
                # As text: the entry's nested fields differ between tasks, a parquet column has one type.
                "extra_info": {"split": split, "index": index, "entry": json.dumps(problem.entry)},
            }
            for index, problem in enumerate(problems)
        ]
        path = folder / f"{split}.parquet"
        pd.DataFrame(rows).to_parquet(path)
        paths.append(path)
    return paths[0], paths[1]
