"""Shrinkage towards what the other prompts and earlier steps say together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refbase import validate
from refbase.estimate import Estimate
from refbase.history import HistoryState
from refbase.kernels._history import Pasts, read_pasts
from refbase.kernels._segments import Batch, blend, others_moments, others_sum, read_batch
from refbase.kernels.shrinkage_js import others_model, reliable


def shrinkage_history(
    rewards: Tensor,
    group_ids: Any,
    state: HistoryState,
    valid: Any = None,
    history_keys: Any = None,
    *,
    min_groups: float = 16,
    nonfinite: str = "raise",
) -> Estimate:
    """Precision-weighted shrinkage to history and the other prompts; see `refbase.shrinkage_history`."""
    validate.check_number("shrinkage_history", "min_groups", min_groups, 0)
    batch = read_batch("shrinkage_history", rewards, group_ids, valid, nonfinite)
    pasts = read_pasts(batch, state, history_keys)
    past = _read(batch, pasts, state.decay, min_groups)
    prior = {name: torch.zeros_like(batch.size) for name in ("target", "noise", "doubt", "bound", "unit")}
    for rows in _populations(pasts.keys, batch.size.shape[0], batch.codes.device):
        present = rows >= 0
        found = _pool(batch, {name: value[rows] for name, value in past.items()}, rows, present)
        for name, value in found.items():
            prior[name][rows[present]] = value[present]

    target, noise, doubt, bound, unit = (value[batch.codes] for value in prior.values())
    size = batch.size[batch.codes]
    gap = ((batch.anchor - batch.origin)[batch.codes] + batch.local_loo - target) / unit
    v = noise / (size - 1).clamp(min=1)
    weight = torch.where(v > 0, v / torch.maximum(v + doubt, (gap * bound.sqrt()) ** 2), 0.0)
    weight = torch.where(target.isnan(), 0.0, torch.where(size > 1, weight, 1.0))
    return blend(batch, local=batch.local_loo, target=target, weight=weight)


def _read(batch: Batch, pasts: Pasts, decay: Any, min_groups: float) -> dict[str, Tensor]:
    """(G,) each: the histories' statistics, deviations in the batch's unit; ``number`` is 0 for too short a history."""
    number = pasts.number(lambda past: past.effective_groups).nan_to_num()
    return {
        "number": torch.where(number >= float(min_groups), number, 0.0),
        "mean": pasts.mean,
        "inverse": pasts.number(lambda past: past.inverse_sizes / past.groups).nan_to_num(),
        "within": pasts.deviation(lambda past: past.within_variance).nan_to_num() / batch.unit,
        "between": pasts.deviation(lambda past: past.between_variance).nan_to_num() / batch.unit,
        "drift": pasts.deviation(lambda past: past.drift(decay)).nan_to_num() / batch.unit,
    }


def _pool(batch: Batch, past: Mapping[str, Tensor], rows: Tensor, present: Tensor) -> dict[str, Tensor]:
    """What is known about each prompt's true mean without its own rewards, (K, L) for K keys of up to L groups.

    Variances are in squares of ``unit``.
    """
    size = torch.where(present, batch.size[rows], 0.0)
    means = torch.where(present, batch.means[rows], 0.0)
    now = others_model(size, torch.where(present, batch.squares[rows], 0.0), means)
    usable = now.usable
    # Histories of another scale than the batch must survive being squared: beside its variances, if they are used.
    largest = torch.stack([past["within"], past["between"], usable.double()]).amax(0).amax(-1, keepdim=True)
    unit = _power_of_two(largest).expand_as(size)
    noise, between, sampling = (
        torch.where(usable, x / unit / unit, 0.0) for x in (now.noise, now.between, now.sampling)
    )
    now = replace(now, noise=noise, between=between, sampling=sampling)

    number, drift = past["number"], (past["drift"] / unit) ** 2
    old_noise, old_spread = (past["within"] / unit) ** 2, ((past["between"] / unit) ** 2 - drift).clamp(min=0)
    of_means = old_spread + old_noise * past["inverse"]
    worth = torch.where(drift > 0, number * (of_means / (of_means + number * drift)), number)
    remembered = number > 0
    groups = torch.where(usable, now.count - 1, 1.0) + worth
    share = torch.where(usable, (now.count - 1) / groups, 0.0)
    noise = share * now.noise + (1 - share) * torch.where(remembered, old_noise, 0.0)
    # James and Stein's factor and Kish's number of groups, of all that is pooled.
    inflation = (1 + 1 / (now.kish + worth)) * (groups + 1) / (groups - 1)
    excess = share * torch.where(usable, now.between * inflation - now.sampling, 0.0)
    excess = excess + (1 - share) * torch.where(remembered, old_spread, 0.0)
    spread = reliable(excess, share * share * now.excess_variance)

    others = others_sum(present.double())
    inverse = others_sum(torch.where(present, 1 / size.clamp(min=1), 0.0)) / others
    mean, _ = others_moments(means, present.double())
    in_history = (spread + noise * past["inverse"]) / number + drift
    beside = (spread + noise * inverse) / others
    # Share of the other prompts in the target; 0/0 weighs by numbers of groups.
    trusted = torch.where(beside + in_history > 0, in_history / (beside + in_history), others / (others + number))
    trusted = torch.where(others > 0, torch.where(remembered, trusted, 1.0), 0.0)
    alone = torch.where(remembered | (size == 1), past["mean"], torch.nan)  # the target without any other prompt
    mixed = past["mean"] + trusted * (mean - past["mean"])
    return {
        "target": torch.where(trusted == 0, alone, torch.where(remembered, mixed, mean)),
        "noise": noise,
        "doubt": spread + torch.where(others > 0, trusted * beside, torch.where(remembered, in_history, 0.0)),
        "bound": torch.where(usable, share * now.count / ((now.count + 1) * (now.count - 2)), 0.0),
        "unit": unit,
    }


def _power_of_two(values: Tensor) -> Tensor:
    _, exponent = torch.frexp(torch.where(values > 0, values, 1.0))
    return torch.ldexp(torch.ones_like(values), exponent.clamp(-1000, 1000))


def _populations(keys: Sequence[Hashable] | None, n_groups: int, device: torch.device) -> list[Tensor]:
    """Groups by key, (K, L) each with -1 for none: keys of about as many groups together, so that half is used."""
    if keys is None:
        return [torch.arange(n_groups, device=device)[None]] if n_groups else []
    members: dict[Hashable, list[int]] = {}
    for code, key in enumerate(keys):
        members.setdefault(key, []).append(code)
    alike: dict[int, list[list[int]]] = {}
    for codes in members.values():
        alike.setdefault(len(codes).bit_length(), []).append(codes)
    found = []
    for listed in alike.values():
        longest = max(map(len, listed))
        padded = [codes + [-1] * (longest - len(codes)) for codes in listed]
        found.append(torch.tensor(padded, device=device))
    return found
