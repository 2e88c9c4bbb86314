"""The methods that are compared, as text that names one and its setting.

============================  =======================================================
``plain``                     nothing
``checkpoint:LABEL``          ``torch.utils.checkpoint`` over the segments ``LABEL``
``selective:LABEL``           the same, keeping what products and attention computed
``compile:RATIO``             ``torch.compile`` with ``activation_memory_budget``
``compile_checkpoint:LABEL``  ``torch.compile`` over checkpointed segments
``remat:POLICY@SHARE``        this project, within ``SHARE`` of the plain peak
============================  =======================================================
"""

from __future__ import annotations

from dataclasses import dataclass

TARGETS = (0.7, 0.5, 0.4, 0.3, 0.25)
POLICIES = ("planned", "dtr", "dte", "coop")
COMPILE_RATIOS = ("1.0", "0.5", "0.2", "0.0")


@dataclass(frozen=True)
class Method:
    """A family of methods and its setting."""

    family: str
    setting: str = ""

    @classmethod
    def parse(cls, text: str) -> Method:
        family, _, setting = text.partition(":")
        if family not in FAMILIES or (family == "plain") != (setting == ""):
            raise ValueError(f"no method {text!r}; families: {', '.join(FAMILIES)}")
        return cls(family, setting)

    def __str__(self) -> str:
        return f"{self.family}:{self.setting}" if self.setting else self.family

    @property
    def policy(self) -> str:
        """The eviction policy of a ``remat`` method."""
        return self.setting.partition("@")[0]

    @property
    def share(self) -> float:
        """The share of the plain peak that a ``remat`` method has."""
        return float(self.setting.partition("@")[2])


FAMILIES = (
    "plain",
    "checkpoint",
    "selective",
    "compile",
    "compile_checkpoint",
    "remat",
)
STATIC_EAGER = ("checkpoint", "selective")
COMPILED = ("compile", "compile_checkpoint")


def all_methods(
    labels: list[str],
    policies: tuple[str, ...] = POLICIES,
    targets: tuple[float, ...] = TARGETS,
    *,
    compiled: bool = True,
) -> list[Method]:
    """Return every method for a model with the segments ``labels``, without ``plain``.

    Args:
        labels: names of ways to cut the model, finest first.
        compiled: whether ``torch.compile`` is among them.
    """
    methods = [Method("remat", f"{p}@{t:g}") for p in policies for t in targets]
    methods += [Method("checkpoint", label) for label in labels]
    methods.append(Method("selective", labels[0]))
    if compiled:
        methods += [Method("compile", ratio) for ratio in COMPILE_RATIOS]
        methods.append(Method("compile_checkpoint", labels[0]))
    return methods
