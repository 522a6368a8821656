"""Updates the weights by hand, so that only `ddpdoctor.step` can tell where a step ends."""

import time

import torch
import torch.distributed as dist

import ddpdoctor

STEPS = 20
UPDATE_MS = 8.0
LOGGING_MS = 4.0


@ddpdoctor.span("update")
def update(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data -= 0.01 * parameter.grad
    time.sleep(UPDATE_MS / 1000)


def main() -> None:
    dist.init_process_group("gloo")
    model = ddpdoctor.wrap(torch.nn.Linear(64, 64))
    for _ in range(STEPS):
        model.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        update(model)
        with ddpdoctor.span("[red]logging[/red]"):
            time.sleep(LOGGING_MS / 1000)
        ddpdoctor.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
