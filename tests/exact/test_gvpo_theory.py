"""The theory of GVPO (arXiv 2504.19599), fact by fact, about `refbase.gvpo`, `gvpo_weights` and `gvpo_loss`.

Symbols: π' reference policy, π_s sampling policy, π* ∝ π' exp(R/β) the optimum, R_θ = β log(π_θ/π') the
implicit reward, w_i = (R_i - R̄) - (R_θ,i - R̄_θ) the weights of a group of k.

Identities that hold for any values of the log-probabilities are tested in rationals, with tolerance 0; what
needs a policy (gradients, optima, descent) in float64 on a tabular softmax policy.
"""

import itertools
from fractions import Fraction as F
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import refbase

torch = pytest.importorskip("torch")

RATIONALS = st.fractions(-3, 3, max_denominator=6)
BETAS = st.fractions(F(1, 10), 3, max_denominator=10)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Thousands of operations on a handful of numbers: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@st.composite
def groups(draw, least=1, most=4):
    """Rewards, log-probabilities and reference log-probabilities of one group of k, as rationals."""
    k = draw(st.integers(least, most))
    return tuple(draw(st.lists(RATIONALS, min_size=k, max_size=k)) for _ in range(3))


def mean(values):
    return sum(values) / len(values)


def covariance(xs, ys):
    """Sample covariance with Bessel's k - 1."""
    a, b = mean(xs), mean(ys)
    return sum((x - a) * (y - b) for x, y in zip(xs, ys, strict=True)) / (len(xs) - 1)


def implicit(log_probs, ref, beta):
    return [beta * (a - b) for a, b in zip(log_probs, ref, strict=True)]


def weights(group, beta):
    rewards, log_probs, ref = group
    return refbase.gvpo_weights(rewards, [0] * len(rewards), log_probs, ref, beta)


def loss(group, beta):
    rewards, log_probs, ref = group
    return refbase.gvpo_loss(rewards, [0] * len(rewards), log_probs, ref, beta, reduction="sum")


# --- a tabular policy -----------------------------------------------------------------------------------


class Tabular:
    """One prompt with K responses; everything float64."""

    def __init__(self, seed, k=4, beta=0.6):
        self.random = torch.Generator().manual_seed(seed)
        self.k, self.beta = k, beta
        self.rewards = self.draw()
        self.ref = self.draw().log_softmax(0)
        self.best = (self.ref + self.rewards / beta).softmax(0)  # π*

    def draw(self):
        return torch.randn(self.k, generator=self.random, dtype=torch.float64)

    def loss(self, logits, responses, reduction="sum"):
        """GVPO loss of the groups in `responses`, one group per row."""
        rows = responses.reshape(-1)
        labels = torch.arange(len(responses)).repeat_interleave(responses.shape[1])
        log_probs = logits.log_softmax(0)[rows]
        return refbase.gvpo_loss(self.rewards[rows], labels, log_probs, self.ref[rows], self.beta, reduction=reduction)

    def population_loss(self, logits, sampling):
        """Expected loss of a group of two drawn from `sampling`; Bessel makes it that of any group size."""
        pairs = torch.tensor(list(itertools.product(range(self.k), repeat=2)))
        return sampling[pairs].prod(dim=1) @ self.loss(logits, pairs, reduction="none")

    def distance(self, logits):
        """Total variation from π*."""
        return 0.5 * (logits.softmax(0) - self.best).abs().sum().item()


def gradient(function, logits):
    point = logits.clone().requires_grad_()
    return torch.autograd.grad(function(point), point)[0]


def descend(function, logits, steps=200):
    """Minimise to convergence by L-BFGS."""
    point = logits.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [point], max_iter=steps, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        value = function(point)
        value.backward()
        return value

    for _ in range(5):
        optimiser.step(closure)
    return point.detach()


SAMPLING = {
    "uniform": [0.25, 0.25, 0.25, 0.25],
    "skewed": [0.7, 0.1, 0.1, 0.1],
    "nearly blind": [0.01, 0.01, 0.01, 0.97],
    "backwards": [0.1, 0.2, 0.3, 0.4],
}


# --- fact 1: the weights sum to zero, so the normaliser and any per-prompt constant cancel --------------


@given(groups(), BETAS, RATIONALS, RATIONALS)
def test_1_zero_sum_and_what_it_cancels(group, beta, constant, log_z):
    rewards, log_probs, ref = group
    w = weights(group, beta)
    assert sum(w) == 0
    shifted = ([r + constant for r in rewards], [lp + log_z for lp in log_probs], ref)
    assert weights(shifted, beta) == w
    assert loss(shifted, beta) == loss(group, beta)


# --- the gradient: autograd against the closed form, over ragged batches --------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_gradient_of_the_loss_is_the_closed_form(seed):
    """∇L = -β/(k-1) Σ w_i ∇log π(y_i), summed over groups of sizes 1 to 6 in mixed row order."""
    problem = Tabular(seed, k=5)
    labels = torch.cat([torch.full((k,), k) for k in range(1, 7)])
    labels = labels[torch.randperm(len(labels), generator=problem.random)]
    rows = torch.randint(problem.k, labels.shape, generator=problem.random)
    logits, size = problem.draw(), labels.double()  # the label is the group's size

    def batch_loss(point):
        log_probs = point.log_softmax(0)[rows]
        return refbase.gvpo_loss(
            problem.rewards[rows], labels, log_probs, problem.ref[rows], problem.beta, reduction="sum"
        )

    w = refbase.gvpo_weights(
        problem.rewards[rows], labels, logits.log_softmax(0)[rows], problem.ref[rows], problem.beta
    )
    scores = torch.eye(problem.k, dtype=torch.float64)[rows] - logits.softmax(0)
    closed = -(problem.beta * w / (size - 1).clamp(min=1)) @ scores
    assert closed.abs().max() > 1e-3
    torch.testing.assert_close(gradient(batch_loss, logits), closed, rtol=1e-12, atol=1e-13)


# --- fact 2: the mean may be detached, but not stale ----------------------------------------------------


def loss_about(problem, logits, rows, centre):
    """The group's loss with a given number in the place of R̄_θ."""
    implied = problem.beta * (logits.log_softmax(0)[rows] - problem.ref[rows])
    rewards = problem.rewards[rows]
    residual = (implied - centre) - (rewards - rewards.mean())
    return (residual**2).sum() / (2 * (len(rows) - 1))


def group_mean_of(problem, logits, rows):
    return problem.beta * (logits.log_softmax(0)[rows] - problem.ref[rows]).mean()


def stale_error(problem, old, new, rows):
    """Gradient with the mean of `old` less the gradient with the current mean, at `new`."""
    stale = group_mean_of(problem, old, rows)
    wrong = gradient(lambda point: loss_about(problem, point, rows, stale), new)
    return wrong - gradient(lambda point: problem.loss(point, rows[None]), new)


def expected_stale_error(problem, old, new, k):
    """The same over groups of k drawn from `old`, by enumeration."""
    total = torch.zeros(problem.k, dtype=torch.float64)
    for drawn in itertools.product(range(problem.k), repeat=k):
        rows = torch.tensor(drawn)
        total += old.softmax(0)[rows].prod() * stale_error(problem, old, new, rows)
    return total


def order(errors, ratio=10):
    """Order of vanishing, from errors at movements that shrink by `ratio`."""
    sizes = [float(e.norm()) for e in errors]
    return [
        torch.log(torch.tensor(a / b)).item() / torch.log(torch.tensor(float(ratio))).item()
        for a, b in itertools.pairwise(sizes)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_2_a_detached_current_mean_leaves_the_gradient_unchanged(seed):
    problem = Tabular(seed)
    logits, rows = problem.draw(), torch.tensor([0, 1, 1, 3])
    detached = group_mean_of(problem, logits, rows)
    fixed = gradient(lambda point: loss_about(problem, point, rows, detached), logits)
    attached = gradient(lambda point: problem.loss(point, rows[None]), logits)
    torch.testing.assert_close(fixed, attached, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", range(10))
def test_2_a_stale_mean_adds_a_multiple_of_the_summed_scores(seed):
    """Error of the gradient: β/(k-1) (current - stale) Σ ∇log π(y_i)."""
    problem = Tabular(seed)
    old, new, rows = problem.draw(), problem.draw(), torch.tensor([0, 1, 1, 3])
    gap = group_mean_of(problem, new, rows) - group_mean_of(problem, old, rows)
    scores = torch.eye(problem.k, dtype=torch.float64)[rows] - new.softmax(0)
    torch.testing.assert_close(
        stale_error(problem, old, new, rows), problem.beta / 3 * gap * scores.sum(dim=0), rtol=1e-11, atol=1e-13
    )


def test_2_the_error_of_the_gradient_is_first_order_for_any_finite_group():
    """One group: O(δ). The mean over groups from π_old too, with slope β²/(k-1) · Fisher matrix · δ, because the
    group's mean and its summed score move together. Only the part that survives k → ∞, E[gap] · E[Σ score]/k, is
    smaller: KL times a first-order score, O(δ³)."""
    problem, k = Tabular(3), 3
    old, direction = problem.draw(), problem.draw()
    moves = [1e-2, 1e-3, 1e-4]
    one = [stale_error(problem, old, old + d * direction, torch.tensor([0, 1, 1])) for d in moves]
    mean_error = [expected_stale_error(problem, old, old + d * direction, k) for d in moves]
    assert order(one) == pytest.approx([1, 1], abs=0.02)
    assert order(mean_error) == pytest.approx([1, 1], abs=0.02)

    pi = old.softmax(0)
    fisher = torch.diag(pi) - torch.outer(pi, pi)
    slope = problem.beta**2 / (k - 1) * fisher @ direction
    torch.testing.assert_close(mean_error[-1] / moves[-1], slope, rtol=1e-3, atol=1e-6)

    limit = []
    for d in moves:
        new = old + d * direction
        gap = problem.beta * (pi @ (new.log_softmax(0) - old.log_softmax(0)))
        limit.append(problem.beta * gap * (pi - new.softmax(0)))
    assert order(limit) == pytest.approx([3, 3], abs=0.05)


def test_2_the_error_of_the_policy_is_second_order_in_the_step():
    """Two steps of size η on one group, the second with the stale mean: the parameters differ by O(η²)."""
    problem, rows = Tabular(3), torch.tensor([0, 1, 1, 2])
    start = problem.draw()
    differences = []
    for step in (1e-2, 1e-3, 1e-4):
        moved = start - step * gradient(lambda point: problem.loss(point, rows[None]), start)
        differences.append(step * stale_error(problem, start, moved, rows))
    assert order(differences) == pytest.approx([2, 2], abs=0.02)


# --- fact 3: variances and a covariance -----------------------------------------------------------------


@given(groups(least=2), BETAS)
def test_3_the_loss_is_half_of_the_variances_less_twice_the_covariance(group, beta):
    rewards, log_probs, ref = group
    implied = implicit(log_probs, ref, beta)
    spread = covariance(implied, implied) + covariance(rewards, rewards) - 2 * covariance(implied, rewards)
    assert loss(group, beta) == spread / 2


# --- fact 4: Bessel makes the empirical loss unbiased for every group size ------------------------------


@st.composite
def populations(draw):
    """Sampling probabilities and, per response, reward, log-probability and reference log-probability."""
    size = draw(st.integers(2, 3))
    shares = draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    columns = [draw(st.lists(RATIONALS, min_size=size, max_size=size)) for _ in range(3)]
    return [F(share, sum(shares)) for share in shares], columns


def population_loss(sampling, columns, beta):
    """½ Var_{y ~ π_s}(R_θ - R)."""
    rewards, log_probs, ref = columns
    gap = [i - r for i, r in zip(implicit(log_probs, ref, beta), rewards, strict=True)]
    centre = sum(p * g for p, g in zip(sampling, gap, strict=True))
    return sum(p * (g - centre) ** 2 for p, g in zip(sampling, gap, strict=True)) / 2


def expected_loss(sampling, columns, beta, k):
    """Mean of the empirical loss over every group of k."""
    total = F(0)
    for drawn in itertools.product(range(len(sampling)), repeat=k):
        total += prod(sampling[y] for y in drawn) * loss([[c[y] for y in drawn] for c in columns], beta)
    return total


@settings(max_examples=25)
@given(populations(), BETAS)
def test_4_the_empirical_loss_is_unbiased_for_every_group_size(population, beta):
    truth = population_loss(*population, beta)
    for k in (2, 3, 4):
        assert expected_loss(*population, beta, k) == truth
    assert expected_loss(*population, beta, 1) == 0


def test_4_without_bessel_each_group_size_would_have_a_target_of_its_own():
    """With 1/k in place of 1/(k-1) the expectation is (k-1)/k of the truth: ragged groups would disagree."""
    sampling, columns = [F(1, 3), F(2, 3)], [[F(1), F(0)], [F(-1), F(-2)], [F(-1), F(-1)]]
    truth = population_loss(sampling, columns, F(1, 2))
    assert truth == F(1, 36)
    for k in (2, 3, 4):
        total = F(0)
        for drawn in itertools.product(range(2), repeat=k):
            w = weights([[column[y] for y in drawn] for column in columns], F(1, 2))
            total += prod(sampling[y] for y in drawn) * sum(x * x for x in w) / (2 * k)
        assert total == F(k - 1, k) * truth


@settings(max_examples=25)
@given(groups(least=3, most=5), BETAS)
def test_4_sub_groups_estimate_the_same_loss(group, beta):
    """The mean over all sub-groups of any size k >= 2 is the group's own loss (a U-statistic)."""
    size = len(group[0])
    for k in range(2, size):
        losses = [
            loss([[column[i] for i in chosen] for column in group], beta)
            for chosen in itertools.combinations(range(size), k)
        ]
        assert mean(losses) == loss(group, beta)


@given(groups(least=1, most=1), groups(least=2), BETAS)
def test_4_a_group_of_one_contributes_nothing(single, group, beta):
    batch = [[*one, *rest] for one, rest in zip(single, group, strict=True)]
    labels = ["single"] + ["group"] * len(group[0])
    rewards, log_probs, ref = batch
    assert refbase.gvpo_weights(rewards, labels, log_probs, ref, beta)[0] == 0
    for reduction in ("mean", "sum"):
        assert refbase.gvpo_loss(rewards, labels, log_probs, ref, beta, reduction=reduction) == loss(group, beta)


# --- fact 5: the unique optimum, from any sampling policy with full support -----------------------------


@given(groups(), BETAS, RATIONALS)
def test_5_the_loss_is_non_negative_and_zero_exactly_where_the_gap_is_constant(group, beta, constant):
    rewards, log_probs, ref = group
    gaps = {i - r for i, r in zip(implicit(log_probs, ref, beta), rewards, strict=True)}
    assert loss(group, beta) >= 0
    assert (loss(group, beta) == 0) == (len(gaps) == 1)
    # Put the log-probabilities at π*, up to its normaliser: log π* = log π' + (R - constant)/β.
    at_best = [b + (r - constant) / beta for r, b in zip(rewards, ref, strict=True)]
    assert weights((rewards, at_best, ref), beta) == [0] * len(rewards)


@pytest.mark.parametrize("seed", range(5))
def test_5_every_sampled_group_is_stationary_at_the_optimum(seed):
    """Not only on average: no group of 2, 3 or 4 has a gradient at π*, so sampling adds no noise there."""
    problem = Tabular(seed)
    logits = problem.best.log()
    for k in (2, 3, 4):
        for drawn in itertools.product(range(problem.k), repeat=k):
            slope = gradient(lambda point, y=drawn: problem.loss(point, torch.tensor([y])), logits)
            assert slope.abs().max() < 1e-14
    elsewhere = gradient(lambda point: problem.loss(point, torch.tensor([[0, 1]])), problem.draw())
    assert elsewhere.abs().max() > 1e-4


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("seed", range(4))
def test_5_descent_reaches_the_optimum_from_anywhere_off_policy(seed, sampling):
    problem = Tabular(seed)
    start, sampling = 3 * problem.draw(), torch.tensor(sampling, dtype=torch.float64)
    assert problem.distance(start) > 0.05
    end = descend(lambda point: problem.population_loss(point, sampling), start)
    assert problem.distance(end) < 1e-6
    assert problem.population_loss(end, sampling) < 1e-14


@pytest.mark.parametrize("sampling", ["uniform", "skewed", "backwards"])
def test_5_stochastic_descent_with_a_constant_step_reaches_the_optimum_itself(sampling):
    """As no group has a gradient at π*, constant-step descent on sampled groups does not stall at a noise floor."""
    problem = Tabular(1)
    logits, sampling = problem.draw(), torch.tensor(SAMPLING[sampling], dtype=torch.float64)
    assert problem.distance(logits) > 0.05
    for _ in range(3000):
        drawn = sampling.multinomial(4, replacement=True, generator=problem.random)
        logits = logits - gradient(lambda point, y=drawn: problem.loss(point, y[None]), logits)
    assert problem.distance(logits) < 1e-6


def test_5_a_response_that_is_never_sampled_is_left_undetermined():
    """The support condition is needed: the loss is 0, the sampled responses have π*'s proportions, π is not π*."""
    problem = Tabular(2)
    sampling = torch.tensor([0.4, 0.3, 0.3, 0.0], dtype=torch.float64)
    end = descend(lambda point: problem.population_loss(point, sampling), problem.draw())
    assert problem.population_loss(end, sampling) < 1e-14
    seen, best = end.softmax(0)[:3], problem.best[:3]
    torch.testing.assert_close(seen / seen.sum(), best / best.sum(), rtol=1e-6, atol=1e-7)
    assert problem.distance(end) > 0.05


# --- what does not land there ---------------------------------------------------------------------------


def clipped_grpo(problem, sampling=None, clip=0.2):
    """Expected clipped GRPO loss with the k3 penalty of strength β against π', groups of two from π_s.

    Without `sampling` the policy itself is sampled (π_old = π_θ).
    """
    pairs = torch.tensor(list(itertools.product(range(problem.k), repeat=2)))
    rows, labels = pairs.reshape(-1), torch.arange(len(pairs)).repeat_interleave(2)
    advantages = refbase.grpo(problem.rewards[rows], labels).advantages

    def objective(logits):
        old = logits.detach().softmax(0) if sampling is None else sampling
        log_probs = logits.log_softmax(0)[rows]
        ratio = (log_probs - old.log()[rows]).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        log_ref_ratio = problem.ref[rows] - log_probs
        penalty = log_ref_ratio.exp() - log_ref_ratio - 1
        per_pair = (problem.beta * penalty - gain).reshape(-1, 2).mean(dim=1)
        return old[pairs].prod(dim=1) @ per_pair

    return objective


def dpo(problem, sampling, prefer):
    """Expected DPO loss over pairs from π_s; `prefer(R_a - R_b)` is the probability that a is labelled winner."""
    weight = torch.outer(sampling, sampling) * prefer(problem.rewards[:, None] - problem.rewards)

    def objective(logits):
        implied = problem.beta * (logits.log_softmax(0) - problem.ref)
        return -(weight * torch.nn.functional.logsigmoid(implied[:, None] - implied)).sum()

    return objective


def adam(function, logits, steps):
    """Plain first-order descent: the clipped objective is not smooth."""
    point = logits.clone().requires_grad_()
    optimiser = torch.optim.Adam([point], lr=0.02)
    for _ in range(steps):
        optimiser.zero_grad()
        function(point).backward()
        optimiser.step()
    return point.detach()


OFF_POLICY = ["uniform", "skewed", "backwards"]


@pytest.mark.parametrize("sampling", OFF_POLICY)
@pytest.mark.parametrize("seed", range(2))
def test_5_clipped_grpo_does_not_land_there(seed, sampling):
    problem = Tabular(seed)
    objective = clipped_grpo(problem, torch.tensor(SAMPLING[sampling], dtype=torch.float64))
    assert gradient(objective, problem.best.log()).norm() > 1e-2  # π* is not stationary for it
    for start in (problem.draw(), problem.best.log()):
        assert problem.distance(adam(objective, start, 1000)) > 0.05


@pytest.mark.parametrize("seed", range(3))
def test_5_nor_does_on_policy_grpo(seed):
    """Refreshing π_old at every step removes clipping and importance weights, not the rescaled rewards."""
    problem = Tabular(seed)
    objective, logits = clipped_grpo(problem), problem.best.log()
    assert gradient(objective, logits).norm() > 1e-2
    for _ in range(1000):
        logits = logits - 0.5 * gradient(objective, logits)
    assert gradient(objective, logits).norm() < 1e-4  # it has settled, elsewhere
    assert problem.distance(logits) > 0.05


@pytest.mark.parametrize("sampling", OFF_POLICY)
def test_5_pairwise_training_on_winners_does_not_land_there(sampling):
    """DPO with the better response as winner has no finite optimum: margins grow without bound."""
    problem = Tabular(0)
    sampling = torch.tensor(SAMPLING[sampling], dtype=torch.float64)
    objective = dpo(problem, sampling, lambda gap: (gap > 0).double())
    assert gradient(objective, problem.best.log()).norm() > 1e-3
    half, end = adam(objective, problem.best.log(), 500), adam(objective, problem.best.log(), 2000)
    assert 0.05 < problem.distance(half) < problem.distance(end)
    assert end.max() - end.min() > 1.5 * (half.max() - half.min())


def test_5_pairwise_training_lands_there_only_with_bradley_terry_labels():
    """In fairness: where winners are drawn with probability σ(R_a - R_b), π* is stationary for DPO as well."""
    problem = Tabular(0)
    objective = dpo(problem, torch.tensor(SAMPLING["skewed"], dtype=torch.float64), torch.sigmoid)
    assert gradient(objective, problem.best.log()).norm() < 1e-14
    assert problem.distance(descend(objective, problem.draw())) < 1e-6


# --- fact 6: two rollouts -------------------------------------------------------------------------------


@given(groups(least=2, most=2), BETAS)
def test_6_two_rollouts_give_the_squared_pairwise_loss(group, beta):
    """L = ¼ [ΔR_θ - ΔR]²."""
    (r1, r2), log_probs, ref = group
    i1, i2 = implicit(log_probs, ref, beta)
    assert loss(group, beta) == ((i1 - i2) - (r1 - r2)) ** 2 / 4


# --- fact 7: at the reference policy, and the estimator for a trainer -----------------------------------


@given(groups(), BETAS)
def test_7_at_the_reference_policy_the_weights_are_centred_rewards(group, beta):
    rewards, log_probs, _ = group
    w = weights((rewards, log_probs, log_probs), beta)
    labels = [0] * len(rewards)
    assert w == [r - mean(rewards) for r in rewards]
    assert w == refbase.gvpo(rewards, labels).advantages
    assert w == refbase.group_mean(rewards, labels, singletons="zero").advantages


@given(groups(), BETAS)
def test_7_centring_the_kl_shaped_return_gives_the_weights_at_the_sampling_policy(group, beta):
    """With return R - β (log π_old - log π_ref), the advantages are the weights at θ = θ_old, π' = π_ref."""
    rewards, log_probs, ref = group
    shaped = [r - i for r, i in zip(rewards, implicit(log_probs, ref, beta), strict=True)]
    assert refbase.gvpo(shaped, [0] * len(rewards)).advantages == weights(group, beta)


@given(groups(least=2), groups(least=2), BETAS)
def test_7_ragged_groups_need_the_factor_one_over_k_minus_one(one, two, beta):
    """Kernel and spec agree on a ragged batch, and the loss weights group k by 1/(k-1), the estimator does not."""
    assume(len(one[0]) != len(two[0]))
    rewards, log_probs, ref = ([*a, *b] for a, b in zip(one, two, strict=True))
    labels = [0] * len(one[0]) + [1] * len(two[0])
    w = refbase.gvpo_weights(rewards, labels, log_probs, ref, beta)
    losses = refbase.gvpo_loss(rewards, labels, log_probs, ref, beta, reduction="none")
    for label, total in enumerate(losses):
        mine = [x for x, g in zip(w, labels, strict=True) if g == label]
        assert total == sum(x * x for x in mine) / (2 * (len(mine) - 1))
    tensors = [torch.tensor([float(x) for x in column], dtype=torch.float64) for column in (rewards, log_probs, ref)]
    kernel = refbase.gvpo_loss(tensors[0], labels, tensors[1], tensors[2], float(beta), reduction="none")
    torch.testing.assert_close(kernel, torch.tensor([float(x) for x in losses], dtype=torch.float64))
