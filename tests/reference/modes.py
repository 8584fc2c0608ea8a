"""The modes' formulas as printed, one pair and one layer at a time."""

import torch


def cosine(theta_NP, layers):
    """dist = 1 / (M/2 (N^2 - N)) sum_l sum_{i<j} theta_i . theta_j / (|theta_i| |theta_j|), for autograd."""
    count, total = len(theta_NP), 0.0
    for layer in layers:
        for i in range(count - 1):
            for j in range(i + 1, count):
                a, b = theta_NP[i, layer], theta_NP[j, layer]
                total = total + torch.dot(a, b) / (a.norm() * b.norm())
    return total / (len(layers) / 2 * (count**2 - count))


def joint(probabilities_NSC):
    """rho = 1/N sum_i p_i, in plain probabilities."""
    total = torch.zeros_like(probabilities_NSC[0])
    for probabilities_SC in probabilities_NSC:
        total += probabilities_SC
    return total / len(probabilities_NSC)


def joint_loss(logits_NSC, targets_S, joint_weight):
    """-mean_s of joint_weight log rho(y|x) + (1 - joint_weight) log p(y|x), p the first mode's."""
    total = 0.0
    for s, y in enumerate(targets_S.tolist()):
        own, *others = [torch.softmax(logits_SC[s], dim=0)[y] for logits_SC in logits_NSC]
        rho = (own + sum(others)) / len(logits_NSC)
        total = total - joint_weight * torch.log(rho) - (1 - joint_weight) * torch.log(own)
    return total / len(targets_S)
