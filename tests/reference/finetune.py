"""Fine-tuning as a person writes it by hand: ordinary parameters, torch's AdamW and OneCycleLR."""

import torch
from torch.nn.functional import cross_entropy


def train(module, batches, classes, *, epochs, lr, weight_decay=0.0):
    """One task: `batches` (x, y) over all epochs, the loss over the task's classes alone."""
    optimiser = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=weight_decay, foreach=False)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=len(batches))
    position = {c: k for k, c in enumerate(sorted(classes))}
    module.train()
    losses = []
    for step, (x, y) in enumerate(batches):
        logits = module(x)[:, sorted(classes)]
        loss = cross_entropy(logits, torch.tensor([position[label] for label in y.tolist()]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step + 1 < len(batches):
            schedule.step()
        losses.append(loss.item())
    per_epoch = len(batches) // epochs
    return [sum(losses[e * per_epoch : (e + 1) * per_epoch]) / per_epoch for e in range(epochs)]
