"""The sums that the kernels share, where their rounding would show."""

from fractions import Fraction

import pytest
import torch
from both import both

import refbase
from refbase.kernels._segments import others_moments


def test_others_that_are_equal_have_no_spread_at_all():
    """Weighted sums round: without the rule for equal values, a few of these squares come out as 1e-17."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(200, 2, generator=generator, dtype=torch.float64)
    weights = torch.randint(1, 9, (200, 3), generator=generator).double()
    three = torch.stack([values[:, 0], values[:, 1], values[:, 1]], 1)
    mean, squares = others_moments(three, weights)
    assert squares[:, 0].tolist() == [0.0] * 200
    assert (squares[:, 1:] > 0).all()
    torch.testing.assert_close(mean[:, 0], values[:, 1])
    for one_other in (values, values.flip(1)):
        assert others_moments(one_other, weights[:, :2])[1].tolist() == [[0.0, 0.0]] * 200


@pytest.mark.parametrize("far", [-3.0, 5.0])
@pytest.mark.parametrize("used", [2, 3])
def test_entries_of_no_weight_take_no_part(far, used):
    """Neither in the mean, nor in the point that deviations are taken from, nor in whether the others agree."""
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(400, 2, generator=generator, dtype=torch.float64)
    weights = torch.randint(1, 9, (400, used), generator=generator).double()
    counted = torch.cat([values[:, :1], values[:, 1:].expand(-1, used - 1)], 1)
    beside = torch.cat([torch.full((400, 4), far), counted], 1)
    mean, squares = others_moments(beside, torch.cat([torch.zeros(400, 4), weights], 1))
    wanted = others_moments(counted, weights)
    assert torch.equal(mean[:, 4:], wanted[0])
    assert torch.equal(squares[:, 4:], wanted[1])
    assert squares[:, 4].tolist() == [0.0] * 400  # the one or two others are equal


@pytest.mark.parametrize("others", [[-1e-200], [-1e-200, -1e-200]])
def test_the_unit_is_that_of_the_largest_magnitude_not_of_the_largest_value(others):
    rewards = torch.tensor([-1e200, *others], dtype=torch.float64)
    assert refbase.rloo(rewards, ["a"] * len(rewards)).advantages[0].item() == -1e200


@pytest.mark.parametrize("name", ["batch_mean", "shrinkage", "shrinkage_js"])
def test_means_are_measured_from_a_reward(name):
    """At 2**50 floats are a quarter apart, so that a mean of thirds measured from 0 would be off by a twelfth."""
    offset, rewards = 2**50, [1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1]
    labels = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    moved = both(name, [offset + r for r in rewards], labels)
    assert moved.advantages == getattr(refbase, name)([Fraction(r) for r in rewards], labels).advantages


@pytest.mark.parametrize("name", ["rloo", "batch_mean"])
def test_entries_of_a_constant_weight_are_apart(name):
    """As results of float64 rewards need no conversion, they could still be one number seen N times."""
    weight = getattr(refbase, name)(
        torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64), ["a", "a", "b", "b"]
    ).weight
    others = weight[1:].tolist()
    weight[0] = 7.0
    assert weight.tolist() == [7.0, *others]
