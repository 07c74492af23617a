"""A run in float32 by PyTorch: what `bench quality` compares the exact step with.

May import: config, train, torch_model; torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from p2pnode.bench.torch_model import TorchModel
from p2pnode.config import RunConfig
from p2pnode.train.arithmetic import kernels
from p2pnode.train.data import Dataset
from p2pnode.train.layout import layout_of
from p2pnode.train.update import initial_state
from p2pnode.train.windows import Tokens


def train(run: RunConfig, data: Dataset) -> float:
    """Held-out loss in nats after all steps: initial weights, batches, schedule, clipping and
    AdamW are the run's; every number is a float32 of PyTorch."""
    torch.set_num_threads(1)
    model = TorchModel(run.model, initial_state(run).weights)
    optimizer = _optimizer(model, run)
    for step in range(run.steps):
        rate = kernels.schedule(
            step, lr=run.lr, warmup=run.warmup, steps=run.steps, lr_floor=run.lr_floor
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        # All slots have as many tokens: the mean over them is the mean over the batch.
        loss = model.loss(*_batch([data.slot(step, slot, run) for slot in range(run.slots)]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters.values(), run.clip)
        optimizer.step()
    with torch.no_grad():
        return float(
            model.loss(*_batch([data.heldout_slot(i, run) for i in range(run.eval_slots)]))
        )


def _optimizer(model: TorchModel, run: RunConfig) -> torch.optim.Optimizer:
    decays = {t.name: t.decays for t in layout_of(run.model).tensors}
    groups = [
        {
            "params": [p for name, p in model.parameters.items() if decays[name] is decay],
            "weight_decay": run.weight_decay if decay else 0.0,
        }
        for decay in (True, False)
    ]
    return torch.optim.AdamW(groups, betas=(run.beta1, run.beta2), eps=run.eps)


def _batch(slots: Sequence[tuple[Tokens, Tokens]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all slots as one batch, int64."""
    inputs, targets = (np.concatenate(part) for part in zip(*slots, strict=True))
    return torch.from_numpy(inputs).long(), torch.from_numpy(targets).long()
