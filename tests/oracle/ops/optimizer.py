"""adamw in 32 and 8 bits, and grad_norm: torch's and bitsandbytes' optimisers.

An optimiser runs for fifty steps; a file has its state before one of them, the gradient, and the state after.
"""

import torch
from bitsandbytes.backends.cpu import ops as bnb_cpu
from bitsandbytes.optim import AdamW8bit

from .golden import Golden, golden

SETTINGS = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.05}


def run(noise, optimizer, parameter, step, states):
    """Steps up to `step`; the state before and after it and its gradient. Parameters are small, so that an update counts."""
    for number in range(1, step + 1):
        parameter.grad = noise.normal(*parameter.shape) * (1 + number % 3)
        state = optimizer.state[parameter]
        before = {"p": parameter.detach().clone()} | {ours: state[theirs].clone() for ours, theirs in states.items() if theirs in state}
        optimizer.step()
    state = optimizer.state[parameter]
    after = {"p": parameter.detach().clone()} | {ours: state[theirs].clone() for ours, theirs in states.items()}
    return before, parameter.grad, after


@golden("torch-adamw-step1", step=1)
@golden("torch-adamw-step2", step=2)
@golden("torch-adamw-step10", step=10)
@golden("torch-adamw-step50", step=50)
def adamw(noise, step):
    parameter = torch.nn.Parameter(noise.normal(331, scale=0.01))
    optimizer = torch.optim.AdamW([parameter], lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]), eps=SETTINGS["eps"],
                                  weight_decay=SETTINGS["weight_decay"])
    before, gradient, after = run(noise, optimizer, parameter, step, {"m": "exp_avg", "v": "exp_avg_sq"})
    for moment in ("m", "v"):
        before.setdefault(moment, torch.zeros_like(gradient))
    made = Golden("adamw", SETTINGS | {"step": step, "bits": 32}, before | {"g": gradient})
    # A handful of f32 operations per element, in another order.
    for name, value in after.items():
        made.expect(name, value, {"rel": 1e-6})
    return made


def nearest(values, table, absmax, codes, block):
    """Codes by the middles between entries, as bitsandbytes' CUDA and Python backends have them. The quantiser of its CPU library
    is coarse near 0: it gives 1.6e-5 of the largest value for all that is smaller, where the table goes down to 3e-7."""
    flat = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % block)).reshape(-1, block)
    absmax.copy_(flat.abs().amax(1))
    codes.copy_(torch.bucketize(flat / absmax[:, None], (table[:-1] + table[1:]) / 2).flatten()[:values.numel()])


bnb_cpu._quant_blockwise_fp32_direct = nearest


@golden("bnb-adamw8bit-step1", step=1, decay=0.0)
@golden("bnb-adamw8bit-step2", step=2, decay=0.0)
@golden("bnb-adamw8bit-step10", step=10, decay=0.05)
@golden("bnb-adamw8bit-step50", step=50, decay=0.0)
def adamw8bit(noise, step, decay):
    parameter = torch.nn.Parameter(noise.normal(600, scale=0.01))  # blocks of 256 and a part of one
    optimizer = AdamW8bit([parameter], lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]), eps=SETTINGS["eps"],
                          weight_decay=decay, min_8bit_size=0)
    states = {"m": "state1", "m.absmax": "absmax1", "v": "state2", "v.absmax": "absmax2"}
    before, gradient, after = run(noise, optimizer, parameter, step, states)
    if step == 1:
        before |= {name: torch.zeros_like(after[name]) for name in states}
    made = Golden("adamw", SETTINGS | {"step": step, "bits": 8, "weight_decay": decay}, before | {"g": gradient})
    # The parameter follows from the moments before they are rounded to 8 bits. Decay comes before the update here and after it in
    # the CUDA kernel, which is the rule: lr · decay of an update of at most a few lr lies between them.
    apart = SETTINGS["lr"] * decay * (after["p"] - before["p"]).norm() / after["p"].norm()
    made.expect("p", after["p"], {"rel": 1e-6 + 1.1 * apart.item()})
    for moment in ("m", "v"):
        # A value near the middle between two codes may fall to either side; and m keeps its sign by the CUDA rule, where the
        # nearest code of a small negative value is that of 0.
        made.expect(moment, after[moment], {"abs": 1.0, "share": 0.01})
        made.expect(f"{moment}.absmax", after[f"{moment}.absmax"], {"rel": 1e-6})
    return made


@golden("torch-clip-grad-norm", scale=1.0)
@golden("torch-clip-grad-norm-within", scale=1e-3)
def clip(noise, scale):
    gradients = [noise.normal(*shape, scale=scale) for shape in ((50,), (7, 9), (1,))]
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    made = Golden("grad_norm", {"max_norm": 1.0}, {f"g{i}": g for i, g in enumerate(gradients)})
    made.expect("norm", norm.reshape(1), {"rel": 1e-6})
    for i, parameter in enumerate(parameters):
        made.expect(f"g{i}", parameter.grad, {"rel": 1e-6})
    return made
