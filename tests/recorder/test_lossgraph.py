"""What a loss's graph tells before its backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ddpdoctor.recorder import lossgraph
from ddpdoctor.recorder.lossline import line_of_factor

IGNORED = torch.tensor([0, 1, 2, -100, -100, 1, 1, 1])
Terms = list[tuple[tuple[float, ...], float | None, bool]]


def scores() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(8, 4, requires_grad=True)


def told(*losses: torch.Tensor, gradients: object = None) -> Terms:
    terms = lossgraph.loss_terms(losses, gradients)
    return [(term.factors, term.divided_by, term.is_mean) for term in terms]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x: F.cross_entropy(x, IGNORED), ((), 6.0, True)),
        (lambda x: F.cross_entropy(x, IGNORED) * 2, ((2.0,), 6.0, True)),
        (lambda x: 2 * F.cross_entropy(x, IGNORED) / 4, ((0.25, 2.0), 6.0, True)),
        (lambda x: F.cross_entropy(x, IGNORED, reduction="sum"), ((), 1.0, False)),
        (lambda x: F.mse_loss(x, x.detach() + 1), ((), 32.0, True)),
        (lambda x: x.square().mean() * torch.tensor(3.0), ((3.0,), 32.0, True)),
        (lambda x: -x.sum() / torch.tensor(64), ((1 / 64, -1.0), 1.0, False)),
        (lambda x: (x * torch.ones(8, 4)).mean(), ((), 32.0, True)),
        (lambda x: F.binary_cross_entropy_with_logits(x, x.detach()), ((), 32.0, True)),
        (lambda x: x.square().mean(1).exp()[0], ((), None, False)),
        (lambda x: x.logsumexp((0, 1)), ((), None, False)),
    ],
)
def test_reductions_and_factors(
    loss: Callable[[torch.Tensor], torch.Tensor], expected: tuple[object, ...]
) -> None:
    assert told(loss(scores())) == [expected]


def test_a_sum_of_losses_has_a_term_of_each() -> None:
    x = scores()
    loss = 2 * (F.cross_entropy(x, IGNORED) + 0.5 * x.square().mean())

    assert told(loss) == [((2.0,), 6.0, True), ((2.0, 0.5), 32.0, True)]


def test_several_roots_and_their_gradients() -> None:
    x = scores()

    assert told(x.sum(), x.mean(), gradients=[None, torch.tensor(2.0)]) == [
        ((), 1.0, False), ((2.0,), 32.0, True),
    ]  # fmt: skip


def test_what_has_no_graph_has_no_terms() -> None:
    assert told(torch.ones(1, requires_grad=True)) == []


def test_what_a_checkpoint_holds_is_not_computed_again() -> None:
    calls = 0

    def in_checkpoint(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return F.mse_loss(x.square(), torch.ones(8, 4)) * x.detach().mean()

    loss = checkpoint(in_checkpoint, scores(), use_reentrant=False) / 2

    assert told(loss)[0][1:] == (None, False)
    assert calls == 1
    loss.backward()
    assert calls == 2


def test_the_graph_can_go_backward_as_without_us() -> None:
    x, y = scores(), scores()
    loss = F.cross_entropy(x, IGNORED) * 2
    told(loss)
    loss.backward()
    (F.cross_entropy(y, IGNORED) * 2).backward()

    assert torch.equal(x.grad, y.grad)


def test_a_long_chain_of_additions_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x = scores()
    loss = sum((x[0, 0] * number for number in range(1, 1000)), start=x.sum())

    assert len(told(loss)) <= lossgraph._MOST_TERMS


@pytest.mark.parametrize(
    "line",
    [
        "loss = F.mse_loss(model(x), y) * dist.get_world_size()",
        "loss *= self.world_size",
        "(world * loss).backward()",
        "return criterion(model(x), y) * float(args.n_gpus)",
        "loss = loss / steps * WORLD",
    ],
)
def test_lines_that_multiply_a_loss_by_the_ranks(line: str, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"class Trainer:\n    def step(self):\n        x = 1\n        {line}\n")

    site = line_of_factor([str(tmp_path / "gone.py"), str(script)])

    assert site is not None
    assert (site.file, site.line, site.function) == (str(script), 4, "Trainer.step")


@pytest.mark.parametrize(
    "line",
    [
        "lr = args.lr * world_size",
        "loss = 2 * F.mse_loss(model(x), y)",
        "loss = loss / world_size",
        "batch = 16 * dist.get_world_size()",
        "loss = total * (1 + world_size / 100)",
        "running_loss += loss.item() * world_size",
        "log(float(loss) * world_size)",
        "loss = F.mse_loss(",
    ],
)
def test_lines_that_do_not(line: str, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"def step():\n    {line}\n")

    assert line_of_factor([str(script)]) is None
