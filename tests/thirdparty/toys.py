"""Estimators as outsiders write them, good and bad; `refbase.checks` is pointed at them by name."""

import itertools
from fractions import Fraction

import numpy as np
import torch


def _leave_one_out(values):
    total = sum(values)
    return [v if len(values) == 1 else v - (total - v) / (len(values) - 1) for v in values]


def flat(rewards, group_ids, valid=None):
    """Leave-one-out on lists of any number, with a validity flag."""
    out = [0 * r if r == r else 0.0 for r in rewards]
    keep = [True] * len(rewards) if valid is None else valid
    for label in dict.fromkeys(g for g, ok in zip(group_ids, keep, strict=True) if ok):
        rows = [k for k, g in enumerate(group_ids) if g == label and keep[k]]
        for row, value in zip(rows, _leave_one_out([rewards[k] for k in rows]), strict=True):
            out[row] = value
    return out


def flat_without_valid(rewards, group_ids):
    return flat(rewards, group_ids)


def torch_matrix(rewards):
    """Group-mean centring of a (prompts, rollouts) tensor."""
    return rewards - rewards.mean(-1, keepdim=True)


def numpy_matrix(rewards):
    return rewards - rewards.mean(-1, keepdims=True)


def list_matrix(rewards):
    return [[r - Fraction(sum(row)) / len(row) for r in row] for row in rewards]


def as_verl(token_level_rewards, response_mask, index, config=None, **kwargs):
    """Dr.GRPO in verl's signature, blind to rejected rows."""
    returns = token_level_rewards.sum(-1)
    out = torch.zeros_like(returns)
    keep = response_mask.any(-1)
    for label in dict.fromkeys(index):
        rows = [k for k, other in enumerate(index) if other == label and keep[k]]
        if rows:
            out[rows] = returns[rows] - returns[rows].mean()
    advantages = out.unsqueeze(-1) * response_mask
    return advantages, returns.unsqueeze(-1) * response_mask


def scaled(rewards, group_ids, factor=2):
    """Some multiple of the reward; of a list, an array or a tensor."""
    return [factor * r for r in rewards] if isinstance(rewards, list) else factor * rewards


def scaled_twice(rewards, group_ids, factor=2):
    return scaled(rewards, group_ids, factor), rewards


def with_greedy(token_level_rewards, response_mask, index, config=None, reward_baselines=None):
    """Half of what verl's `remax` gives."""
    returns = token_level_rewards.sum(-1)
    advantages = (config.share * (returns - reward_baselines)).unsqueeze(-1) * response_mask
    return advantages, returns.unsqueeze(-1) * response_mask


# --- broken -------------------------------------------------------------------------------------------------


def sorted_rows(rewards, group_ids):
    """Takes neighbouring pairs for groups, whatever the labels say."""
    out = list(rewards)
    for start in range(0, len(rewards) - 1, 2):
        mean = (rewards[start] + rewards[start + 1]) / 2
        out[start], out[start + 1] = rewards[start] - mean, rewards[start + 1] - mean
    return out


def crashes(rewards, group_ids):
    return rewards[len(rewards)]


def wrong_shape(rewards, group_ids):
    return [0] * (len(rewards) + 1)


def scalar(rewards, group_ids):
    return 1.0


def holds_none(rewards, group_ids):
    return [None] * len(rewards)


def holds_lists(rewards, group_ids):
    return [[reward] for reward in rewards]


def holds_complex(rewards, group_ids):
    return np.array(rewards) * 1j


_calls = itertools.count()


def not_deterministic(rewards, group_ids):
    return [r * 0 + next(_calls) for r in rewards]


def wrong_matrix(rewards):
    return rewards.mean(-1)


def wrong_list_matrix(rewards):
    return rewards[:-1]


def verl_alone(token_level_rewards, response_mask, index, config=None):
    return token_level_rewards


def verl_per_row(token_level_rewards, response_mask, index, config=None):
    return token_level_rewards.sum(-1), token_level_rewards.sum(-1)


def verl_numpy(token_level_rewards, response_mask, index, config=None):
    return token_level_rewards.numpy(), token_level_rewards.numpy()


def verl_leaks(token_level_rewards, response_mask, index, config=None):
    returns = token_level_rewards.sum(-1, keepdim=True).expand(-1, response_mask.shape[1])
    return returns, returns


def verl_per_token(token_level_rewards, response_mask, index, config=None):
    advantages = token_level_rewards * response_mask
    return advantages, advantages


def verl_changes_mask(token_level_rewards, response_mask, index, config=None):
    response_mask[:] = 1
    return as_verl(token_level_rewards, response_mask, index)


def verl_changes_rewards(token_level_rewards, response_mask, index, config=None):
    result = as_verl(token_level_rewards.clone(), response_mask, index)
    token_level_rewards += 1
    return result


CONSTANT = 3


class Namespace:
    @staticmethod
    def centred(rewards):
        return np.asarray(rewards) - np.mean(rewards, axis=-1, keepdims=True)


def raw(rewards, group_ids, valid=None):
    return [r if ok else 0 * r for r, ok in zip(rewards, valid or [True] * len(rewards), strict=True)]


def mean_of_all_rows(rewards, group_ids, valid=None):
    """Group means over rejected rows too."""
    out = []
    for k, label in enumerate(group_ids):
        rows = [j for j, other in enumerate(group_ids) if other == label]
        mean = sum(rewards[j] for j in rows) / len(rows)
        out.append(rewards[k] - mean if valid is None or valid[k] else 0 * rewards[k])
    return out


def crashes_when_empty(rewards, group_ids):
    return [r - rewards[0] for r in rewards] if rewards else rewards[0]


def returns_estimate(rewards, group_ids):
    """An `Estimate` whose parts do not fit together."""
    from refbase import Estimate

    zero = [0 * r for r in rewards]
    return Estimate(advantages=list(rewards), baseline=[r + 1 for r in zero], weight=zero)


def half_centred(rewards, group_ids):
    """Nine tenths of the batch's mean as baseline, and not a word about what it is made of."""
    from refbase import Estimate

    baseline = 9 * sum(rewards) / len(rewards) / 10
    zero = [0 * r for r in rewards]
    return Estimate(advantages=[r - baseline for r in rewards], baseline=[z + baseline for z in zero], weight=zero)


def refuses_one(rewards, group_ids):
    """Group-mean centring on lists, not meant for groups of one rollout."""
    for label in group_ids:
        if list(group_ids).count(label) == 1:
            raise ValueError(f"group {label!r} has one rollout; two are needed")
    return mean_of_all_rows(rewards, group_ids)


def refuses_two(rewards):
    """A jackknife of a jackknife, say."""
    if len(rewards[0]) < 3:
        raise ValueError("three rollouts are needed")
    return list_matrix(rewards)


def refuses_one_as_verl(token_level_rewards, response_mask, index, config=None):
    if min(list(index).count(label) for label in index) == 1:
        raise ValueError("a group has one rollout")
    return as_verl(token_level_rewards, response_mask, index)


def bessel_matrix(rewards):
    """The standard deviation of one number, with n - 1 below, is NaN."""
    return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)


def sorted_labels(rewards, group_ids):
    """Right, but labels of mixed types cannot be sorted."""
    order = {label: code for code, label in enumerate(sorted(set(group_ids)))}
    return mean_of_all_rows(rewards, [order[label] for label in group_ids])


def takes_anything(rewards, group_ids, factor=2, **settings):
    return scaled(rewards, group_ids, factor)


class Instance:
    """An estimator that is an object, with another one as a method; neither keeps the order of rows."""

    def __call__(self, rewards, group_ids):
        return sorted_rows(rewards, group_ids)

    def method(self, rewards, group_ids):
        return sorted_rows(rewards, group_ids)

    @classmethod
    def of_class(cls, rewards, group_ids):
        return sorted_rows(rewards, group_ids)


def factory():
    return lambda rewards, group_ids: sorted_rows(rewards, group_ids)


made, instance = factory(), Instance()


def sorted_and_scaled(rewards, group_ids, factor, offset=0):
    return [factor * value + offset for value in sorted_rows(rewards, group_ids)]
