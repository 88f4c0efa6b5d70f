"""What the benchmark reads inside a job: our trainer with a look at each batch, as ``trainer_mode=benchmark``.

verl imports this module in every process of the job (``VERL_USE_EXTERNAL_MODULES``), so it imports next to nothing.

=============================  =======================================================================
``bench/zero_signal``          share of the groups in which all rewards are equal
``bench/all_wrong``            share in which all are 0
``bench/reward_variance``      variance of the rewards of the batch
``bench/seconds/<estimator>``  median time of one call, for each name in ``REFBASE_BENCHMARK_PEERS``
=============================  =======================================================================
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from verl_ext.imports import after_import

PEERS = "REFBASE_BENCHMARK_PEERS"
CALLS = 5


def _register(_trainers: ModuleType) -> None:
    from statistics import median
    from time import perf_counter

    import numpy as np
    import transfer_queue as tq
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.v1.trainer_base import register_trainer

    from verl_ext.step import active
    from verl_ext.trainer import RefbaseTrainer

    peers = [name for name in os.environ.get(PEERS, "").split(",") if name]

    @register_trainer("benchmark")
    class BenchmarkTrainer(RefbaseTrainer):
        def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
            result = super()._compute_advantage(batch, metrics)
            fields = ["uid", "rm_scores", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            uids = np.array(data.pop("uid").tolist(), dtype=object)
            data = data.to_padded_tensor()
            _, codes = np.unique(uids.astype(str), return_inverse=True)
            rewards = data["rm_scores"].double().sum(-1).numpy()
            low, high = np.full(codes.max() + 1, np.inf), np.full(codes.max() + 1, -np.inf)
            np.minimum.at(low, codes, rewards)
            np.maximum.at(high, codes, rewards)
            metrics["bench/zero_signal"] = float((low == high).mean())
            metrics["bench/all_wrong"] = float((high == 0).mean())
            metrics["bench/reward_variance"] = float(rewards.var())
            arguments = {
                "token_level_rewards": data["rm_scores"],
                "response_mask": data["response_mask"],
                "index": uids,
                "config": self.config.algorithm,
            }
            # Inside one step, so that an estimator with memory reads and does not learn the batch again and again.
            with active(self._step(batch, {})):
                times: dict[str, list[float]] = {name: [] for name in peers}
                for _ in range(CALLS):
                    for name in peers:
                        began = perf_counter()
                        core_algos.get_adv_estimator_fn(name)(**arguments)
                        times[name].append(perf_counter() - began)
            metrics.update({f"bench/seconds/{name}": median(seconds) for name, seconds in times.items()})
            return result


after_import("verl.trainer.ppo.v1", _register)
