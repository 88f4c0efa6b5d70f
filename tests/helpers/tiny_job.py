"""A toy task for verl: say the digit you are asked for. Random two-layer model, seconds to train a few steps."""

from __future__ import annotations

import json
import random
from pathlib import Path

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Byte-level names of space and newline: "Ġ", "Ċ".
CHARACTERS = (*"0123456789abcdefghijklmnopqrstuvwxyz:?.", "Ġ", "Ċ")

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

REWARD = '''\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """1 for each character that is the digit asked for, 0.2 for another digit; mean over eight."""
    return sum(1.0 if c == ground_truth else 0.2 if c.isdigit() else 0.0 for c in solution_str[:8]) / 8
'''


def build(root: Path, *, tied: bool = False, seed: int = 0) -> Path:
    """Write model, tokenizer, data and reward function under ``root``; returns it."""
    import pandas as pd
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    root.mkdir(parents=True, exist_ok=True)
    # transformers loads Qwen2Tokenizer for this model type whatever was saved, and verl needs "\n" to be one
    # token: byte level, no merges.
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate((*SPECIALS, *CHARACTERS))},
        merges=[],
        unk_token=SPECIALS[0],
        pad_token=SPECIALS[0],
        eos_token=SPECIALS[2],
        additional_special_tokens=list(SPECIALS[1:]),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(root / "model")

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config).float()
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    model.save_pretrained(root / "model")

    rng = random.Random(seed)
    for name, size in (("train", 64), ("test", 8)):
        rows = []
        for i in range(size):
            digit = str(rng.randint(0, 9))
            rows.append(
                {
                    "data_source": "digit",
                    "prompt": [{"role": "user", "content": f"say {digit}"}],
                    "reward_model": {"style": "rule", "ground_truth": digit},
                    "extra_info": {"split": name, "index": i},
                }
            )
        pd.DataFrame(rows).to_parquet(root / f"{name}.parquet")
    (root / "reward.py").write_text(REWARD)
    return root


def overrides(root: Path, checkpoints: Path, *, steps: int = 3, ranks: int = 2) -> list[str]:
    """Hydra overrides of a short job on the task under ``root``."""
    return [
        f"actor_rollout_ref.model.path={root}/model",
        f"data.train_files={root}/train.parquet",
        f"data.val_files={root}/test.parquet",
        f"reward.custom_reward_function.path={root}/reward.py",
        "reward.custom_reward_function.name=compute_score",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        "data.train_batch_size=8",
        "actor_rollout_ref.rollout.max_model_len=64",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=1000",
        f"trainer.n_gpus_per_node={ranks}",
        f"trainer.default_local_dir={checkpoints}",
        "trainer.logger=[console,file]",
    ]


def metrics(path: Path) -> list[dict]:
    """What verl's file logger wrote: one dictionary per step."""
    return [json.loads(line)["data"] for line in path.read_text().splitlines()]
