"""The library against the slow oracle: masks, values and gradients of whole trainings, for every registered variant."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import stompp
from oracle import SCHEDULES as ORACLE_SCHEDULES
from oracle import OracleNet, Rule, bernoulli, distinct
from stompp.core import randomness
from stompp.core.freeze import SURROGATES
from stompp.core.orders import ORDERS
from stompp.core.policies import POLICIES
from stompp.core.schedules import SCHEDULES

SIZE, BATCH, SGD = 3, 3, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}

RULES = {
    "stompp": {},
    "hybrid A/W": {"weights": "ste"},
    **{f"hybrid W/A {s}": {"activations": "ste", "surrogate": s} for s in SURROGATES},
    **{f"scaffold {s}": {"frozen_grad": "ste", "surrogate": s} for s in SURROGATES},
    "bwn clip": {"activations": "clip"},
    "bwn relu": {"activations": "relu"},
    "binary activations alone": {"weights": "float"},
}
UNSCHEDULED = {
    **{f"ste {s}": {"weights": "ste", "activations": "ste", "surrogate": s} for s in SURROGATES},
    "bwn ste": {"weights": "ste", "activations": "clip"},
    "float relu": {"weights": "float", "activations": "relu"},
    "float clip": {"weights": "float", "activations": "clip"},
}


def train_both(rule: Rule, total: int, seed: int = 5) -> int:
    """Train the library's net and the oracle's side by side and compare all; return how many masks were compared."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(2, 2, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * SIZE * SIZE, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).double()
    start = {name: p.detach().numpy().copy() for name, p in net.named_parameters()}
    oracle = OracleNet(start, SIZE, rule, total, seed, **SGD)
    data = torch.Generator().manual_seed(2)

    config = stompp.Binarize(rule.weights, rule.activations, rule.frozen_grad, rule.surrogate)
    stompp.prepare(net, torch.zeros(1, 1, SIZE, SIZE).double(), config)
    freezer = stompp.Freezer(
        net,
        total,
        order=rule.order,
        schedule=rule.schedule,
        refresh=rule.refresh,
        policy=rule.policy,
        seed=seed,
        hold_frozen=rule.hold_frozen,
        granularity="epoch" if rule.epoch else "step",
        steps_per_epoch=rule.epoch or None,
    )
    optimizer = torch.optim.SGD(net.parameters(), nesterov=True, **SGD)
    seen = {}
    for site in stompp.sites(net, scheduled=False):
        if site.kind == "activation":
            site.register_forward_hook(lambda site, args, out: seen.update({site.name: out}))
    masks = 0
    for t in range(total):
        x = torch.randn(BATCH, 1, SIZE, SIZE, generator=data, dtype=torch.float64)
        y = torch.randint(3, (BATCH,), generator=data)
        freezer.step(t)
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()

        expected = oracle.step(t, x.numpy(), y.numpy())
        for site in stompp.sites(net, scheduled=False):
            mask = expected["masks"][site.name].reshape(site.shape)
            if site.phase == "moving":
                assert np.array_equal(site.mask.numpy(), mask), (t, site.name)
                masks += 1
            else:
                assert (mask == (site.phase == "frozen")).all(), (t, site.name, site.phase)
        for name in ("2.weight", "5.weight"):
            layer = net[int(name[0])]
            effective = (
                layer.weight if type(layer) is nn.Linear or type(layer) is nn.Conv2d else layer.effective_weight()
            )
            close(effective.detach(), expected["effective"][name], f"{name} at {t}")
        for name, out in seen.items():
            close(out.detach(), expected["activations"][name], f"{name} at {t}")
        close(logits.detach(), expected["logits"], f"logits at {t}")
        close(loss.detach(), expected["loss"], f"loss at {t}")
        for name, parameter in net.named_parameters():
            grad = expected["grads"][name]
            assert (parameter.grad is None) == (grad is None), (t, name)
            if grad is not None:
                close(parameter.grad, grad, f"gradient of {name} at {t}")
        optimizer.step()
    for name, parameter in net.named_parameters():
        close(parameter.detach(), oracle.w[name], f"final {name}")
    assert all(site.phase == "frozen" for site in freezer.sites)
    return masks


def close(ours: torch.Tensor, theirs: object, what: str) -> None:
    if np.abs(ours.numpy() - theirs).max() > 1e-12:  # a quick look first; then by relative size, with a message
        np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), rtol=1e-10, atol=1e-12, err_msg=what)


def is_allowed(rule: dict, policy: str) -> bool:
    return policy != "deterministic" or rule.get("activations", "stompp") != "stompp"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_oracle_agrees_over_whole_runs_for_every_variant(order, policy, schedule):
    for number, (name, rule) in enumerate(RULES.items()):
        if is_allowed(rule, policy):
            total = 19 + number  # not always a multiple of the number of sites
            refresh = 3 + 4 * (number % 2)  # 7 is more than the last activation has entries: none of them moves
            chosen = Rule(order=order, policy=policy, schedule=schedule, refresh=refresh, **rule)
            moved = train_both(chosen, total, seed=number)
            assert moved > 10, name


@pytest.mark.parametrize("name", UNSCHEDULED)
def test_oracle_agrees_where_nothing_is_scheduled(name):
    assert train_both(Rule(**UNSCHEDULED[name]), 15) == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_oracle_agrees_when_frozen_weights_are_held(order, policy):
    rule = RULES["bwn clip"] if policy == "deterministic" else RULES["stompp"]
    assert train_both(Rule(order=order, policy=policy, hold_frozen=True, **rule), 30) > 10


@pytest.mark.parametrize("order", ORDERS)
def test_oracle_agrees_with_whole_epochs_and_a_remainder(order):
    assert train_both(Rule(order=order, epoch=2), 25) > 4


def test_oracle_knows_every_schedule_and_order():
    assert set(ORACLE_SCHEDULES) == set(SCHEDULES)
    assert set(ORDERS) == {"layerwise", "global", "reverse"}
    assert {f.name for f in dataclasses.fields(stompp.Binarize)} <= {f.name for f in dataclasses.fields(Rule)}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 17, 100, 1023, 1024, 1025, 70_000])
def test_draws_equal_plain_integer_arithmetic(n):
    for seed, site, step in [(0, 0, 0), (7, 3, 911), (2**63 + 11, 96, 10**7), (-1, 1, 1)]:
        key = randomness.Key(seed, site, step)
        k = min(n, 60)
        assert randomness.distinct_indices(n, k, [key])[0].tolist() == distinct(n, k, seed, site, step)
        assert randomness.heads(randomness.coins(k, [key])[0], 0.37).tolist() == bernoulli(k, 0.37, seed, site, step)
