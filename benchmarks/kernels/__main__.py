"""Speed and memory of the kernels, beside verl's own estimators and a plain copy in the same run.

    python -m benchmarks.kernels [--quick] [--device cuda] [--threads 1]

Without verl its columns stay empty. Writes benchmarks/results/kernels.json (kernels-cuda.json on a GPU) and
docs/figures/kernels.png, and prints the section.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch

import refbase
from benchmarks.common import RESULTS, arguments, environment, write_json
from benchmarks.kernels.report import draw_figure, section
from benchmarks.kernels.timing import peak_memory, race
from refbase.tokens import broadcast, sequence_returns, valid_rows

OURS = ("rloo", "grpo", "opo", "group_mean", "batch_mean", "shrinkage", "shrinkage_js")
PEERS = {
    "grpo": "compute_grpo_outcome_advantage",
    "grpo_vectorized": "compute_grpo_vectorized_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "rloo_vectorized": "compute_rloo_vectorized_outcome_advantage",
    "opo": "compute_opo_outcome_advantage",
    "reinforce_plus_plus_baseline": "compute_reinforce_plus_plus_baseline_outcome_advantage",
}
VECTORISED = ("grpo_vectorized", "rloo_vectorized")
ROLLOUTS = ((128, 8), (1024, 8), (16_384, 16), (62_500, 16))
LOOPS_UP_TO = 8192  # verl's loops take seconds beyond
TOKENS = ((1024, 64), (1024, 2048), (8192, 2048), (1024, 8192))

Call = Callable[[], Any]


@cache
def peers() -> Mapping[str, Callable[..., Any]]:
    """verl's estimators by name; none when verl is not installed."""
    try:
        from verl.trainer.ppo import core_algos
    except ImportError:
        return {}
    return {name: getattr(core_algos, function) for name, function in PEERS.items()}


def labels(prompts: int, each: int, generator: np.random.Generator) -> np.ndarray:
    """One uuid per prompt, in random order, as verl has them in the batch's ``uid`` column."""
    names = np.array([str(uuid.UUID(bytes=generator.bytes(16))) for _ in range(prompts)], dtype=object)
    return names[generator.permutation(np.repeat(np.arange(prompts), each))]


def rollout_stage(prompts: int, each: int, seconds: float, device: str, seed: int) -> dict[str, Any]:
    """Rewards and labels to one advantage per rollout; verl's functions get one token per response."""
    generator = np.random.default_rng(seed)
    uid = labels(prompts, each, generator)
    rewards = torch.from_numpy(generator.integers(0, 2, prompts * each).astype(np.float32)).to(device)
    table, mask = rewards[:, None], torch.ones(len(uid), 1, dtype=torch.int64, device=device)
    calls: dict[str, Call] = {f"refbase {name}": partial(getattr(refbase, name), rewards, uid) for name in OURS}
    for name, function in peers().items():
        if len(uid) <= LOOPS_UP_TO or name in VECTORISED:
            calls[f"verl {name}"] = partial(
                function, token_level_rewards=table, response_mask=mask, index=uid, config=verl_config()
            )
    times = race(calls, seconds, device)
    return {"prompts": prompts, "each": each, "times": {name: t.as_json() for name, t in times.items()}}


def quadratic_loop(seconds: float, seed: int) -> dict[str, Any]:
    """The authors' released code recomputes every statistic for every rollout; the spec does so, too."""
    generator = np.random.default_rng(seed)
    uid = labels(128, 8, generator)
    rewards = generator.integers(0, 2, len(uid)).astype(float)
    as_tensor, as_list = torch.from_numpy(rewards), rewards.tolist()
    calls: dict[str, Call] = {
        "spec shrinkage": partial(refbase.shrinkage, as_list, list(uid), variant="released"),
        "kernel shrinkage": partial(refbase.shrinkage, as_tensor, uid, variant="released"),
    }
    return {"prompts": 128, "each": 8, "times": {name: t.as_json() for name, t in race(calls, seconds).items()}}


def token_stage(rows: int, width: int, seconds: float, device: str, seed: int) -> dict[str, Any]:
    """(N, T) token-level rewards and mask to (N, T) advantages, without and with the estimator between.

    ``floor`` is a copy that moves as many bytes as the stage must: rewards and mask read, one tensor written.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    mask = (torch.arange(width) < lengths).long()  # int64, as verl's
    rewards = torch.zeros(rows, width)
    rewards[torch.arange(rows), lengths[:, 0] - 1] = torch.randint(0, 2, (rows,), generator=generator).float()
    mask, rewards = mask.to(device), rewards.to(device)
    uid = labels(rows // 8, 8, np.random.default_rng(seed))
    needed = rewards.nbytes + mask.nbytes + rewards.nbytes
    # A copy of k bytes reads k and writes k.
    source = torch.zeros(needed // 2, dtype=torch.uint8, device=device)
    values = torch.rand(rows, generator=generator).to(device)
    calls: dict[str, Call] = {
        "floor": source.clone,
        "stage": lambda: (sequence_returns(rewards, mask), valid_rows(mask), broadcast(values, mask))[-1],
        "sequence_returns": partial(sequence_returns, rewards, mask),
        "broadcast": partial(broadcast, values, mask),
    }
    inputs = {"token_level_rewards": rewards, "response_mask": mask, "index": uid}
    if peers():
        from verl_ext.adapters import ESTIMATORS
        from verl_ext.options import verl_name

        for name in ("rloo", "shrinkage_js"):
            calls[f"refbase {name} in verl"] = partial(ESTIMATORS[verl_name(name)], **inputs, config=verl_config())
    for name in VECTORISED:
        if name in peers():
            calls[f"verl {name}"] = partial(peers()[name], **inputs, config=verl_config())
    times = race(calls, seconds, device)
    memory = {name: peak_memory(call, device) / rewards.nbytes for name, call in calls.items()}
    return {
        "rows": rows,
        "width": width,
        "needed_bytes": needed,
        "times": {name: t.as_json() for name, t in times.items()},
        "peak_memory": {name: float(f"{tensors:.3g}") for name, tensors in memory.items()},
    }


def verl_config() -> Any:
    from verl.trainer.config import AlgoConfig

    return AlgoConfig()


def main() -> None:
    parser = arguments(__doc__, "kernels")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--seconds", type=float, default=2.0, help="per contestant and size")
    options = parser.parse_args()
    gpu = options.device.startswith("cuda")
    if gpu and options.out == RESULTS / "kernels.json":
        options.out = RESULTS / "kernels-cuda.json"
    torch.set_num_threads(options.threads)
    seconds = 0.0 if options.quick else options.seconds
    stages: dict[str, Any] = {"rollouts": [], "tokens": []}
    for prompts, each in ((16, 8),) if options.quick else ROLLOUTS:
        stages["rollouts"].append(rollout_stage(prompts, each, seconds, options.device, options.seed))
        print(f"{prompts} x {each} rollouts done", file=sys.stderr, flush=True)
    for rows, width in ((16, 64),) if options.quick else TOKENS:
        stages["tokens"].append(token_stage(rows, width, seconds, options.device, options.seed))
        print(f"{rows} x {width} tokens done", file=sys.stderr, flush=True)
    if not options.quick:
        stages["quadratic"] = quadratic_loop(seconds, options.seed)
    results = {
        "environment": environment("verl"),
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "threads": options.threads,
        "seed": options.seed,
        **stages,
    }
    write_json(options.out, results)
    draw_figure(results, options.figures / f"{options.out.stem}.png")
    print(section(json.loads(options.out.read_text())))


if __name__ == "__main__":
    main()
