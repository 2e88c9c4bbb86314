"""Where each model can be checkpointed: its blocks, runs of blocks, some of them.

A cut has a label: ``every 2`` makes a segment of each two blocks, ``first 3`` one of
each of the first three blocks and leaves the others alone; some models have others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from torch import nn

import models

Forward = Callable[..., object]
# Takes the ``forward`` of a segment and returns the one to call instead.
Wrap = Callable[[Forward], Forward]
Cut = Callable[[Wrap], None]

MOST_PARTIAL_CUTS = 5


def cuts(name: str, module: nn.Module) -> dict[str, Cut]:
    """Return the ways to cut the model ``name``, by label, finest first.

    Each changes ``module`` when it is called, so only one of them may be.
    """
    if name == "lstm":
        return _parts_of_a_loop(module, "advance", "steps", (1, 2, 4, 8, 16, 32))
    if name == "tree_lstm":
        return _parts_of_a_loop(module, "subtree", "leaves", (2, 4, 8, 16, 32))
    if name == "densenet":
        return _densenet_cuts(module.features)
    chains = _chains(name, module)
    blocks = [block for chain in chains for block in chain]
    found = {"every 1": functools.partial(_wrap_all, blocks)}
    longest = max(len(chain) for chain in chains)
    for size in range(2, longest + 1):
        # Sizes that cut the longest chain into as many segments differ in no peak.
        if -(-longest // size) < -(-longest // (size - 1)):
            found[f"every {size}"] = functools.partial(_wrap_runs, chains, size)
    found.update(_partial(blocks))
    return found


def labels_to_try(found: Iterable[str]) -> list[str]:
    """Return the labels of ``cuts``, of those that leave blocks alone only some."""
    labels = list(found)
    firsts = [label for label in labels if label.startswith("first ")]
    count = min(MOST_PARTIAL_CUTS, len(firsts))
    spread = {firsts[len(firsts) * (2 * i + 1) // (2 * count)] for i in range(count)}
    return [label for label in labels if label in spread or label not in firsts]


def _chains(name: str, module: nn.Module) -> list[Sequence[nn.Module]]:
    """Return sequences of blocks; those of one block each have no runs."""
    if name in ("gpt2", "bert", "moe", *models.PUBLISHED):
        return [module.blocks]
    if name == "vit":
        return [module.encoder.layers]
    if name == "resnet":
        return [module.layer1, module.layer2, module.layer3, module.layer4]
    if name == "unet":
        return [[block] for block in (*module.down, *module.up)]
    if name == "inception":
        mixed = [m for n, m in module.named_children() if n.startswith("Mixed_")]
        stem = [m for n, m in module.named_children() if n.startswith("Conv2d_")]
        return [[block] for block in (*stem, *mixed)]
    if name == "gcn":
        return [[layer] for layer in module.layers]
    raise ValueError(f"nothing is known of where to cut {name!r}")


def _wrap_all(blocks: Sequence[nn.Module], wrap: Wrap) -> None:
    for block in blocks:
        block.forward = wrap(block.forward)


def _wrap_runs(chains: Sequence[nn.Sequential], size: int, wrap: Wrap) -> None:
    for chain in chains:
        blocks = list(chain)
        runs = [
            nn.Sequential(*blocks[i : i + size]) for i in range(0, len(blocks), size)
        ]
        _wrap_all(runs, wrap)
        for key in list(chain._modules):
            del chain._modules[key]
        for i, run in enumerate(runs):
            chain.add_module(str(i), run)


def _partial(
    blocks: Sequence[nn.Module],
    wrap_all: Callable[[Sequence[nn.Module], Wrap], None] = _wrap_all,
) -> dict[str, Cut]:
    return {
        f"first {first}": functools.partial(wrap_all, blocks[:first])
        for first in range(1, len(blocks))
    }


def _densenet_cuts(features: nn.Module) -> dict[str, Cut]:
    stages = [
        m for n, m in features.named_children() if n.startswith(("denseblock", "trans"))
    ]
    layers = [
        layer
        for stage in stages
        if hasattr(stage, "values")  # a block of layers; transitions are sequential
        for layer in stage.values()
    ]
    bottlenecks = functools.partial(_wrap_bottlenecks, layers)
    return {
        "layers": functools.partial(_wrap_layers, layers),
        "bottlenecks": bottlenecks,
        "stages": functools.partial(_wrap_all, stages),
        **_partial(layers, _wrap_layers),
    }


def _on_a_copy(forward: Forward) -> Forward:
    """For what is given a list that its caller extends later: what is run again has to
    see it as it was."""
    return lambda features: forward(list(features))


def _wrap_layers(layers: Iterable[nn.Module], wrap: Wrap) -> None:
    for layer in layers:
        layer.forward = _on_a_copy(wrap(layer.forward))


def _wrap_bottlenecks(layers: Sequence[nn.Module], wrap: Wrap) -> None:
    """As torchvision's ``memory_efficient`` does, which uses reentrant checkpoints."""
    for layer in layers:
        layer.bn_function = _on_a_copy(wrap(layer.bn_function))


def _parts_of_a_loop(
    module: nn.Module, method: str, unit: str, sizes: Sequence[int]
) -> dict[str, Cut]:
    def cut(size: int, wrap: Wrap) -> None:
        module.segment = size
        setattr(module, method, wrap(getattr(module, method)))

    return {f"{size} {unit}": functools.partial(cut, size) for size in sizes}
