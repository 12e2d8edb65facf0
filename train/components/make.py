"""The components that a run's configuration asks for.

Tested in tests/train/components/test_component.py.
"""

import dataclasses
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from slm.configuration import build
from slm.data.errors import UserError, nearest
from slm.train import components
from slm.train.components.component import Component
from slm.train.components.head_calibration import HeadCalibration
from slm.train.components.patience import Patience, PatienceOptions
from slm.train.components.phases import Phases
from slm.train.components.quantization import Quantization, QuantizationOptions
from slm.train.components.spike_guard import SpikeGuard
from slm.train.components.teacher import Teacher
from slm.train.config import RunConfig


def make_components(config: RunConfig) -> list[Component]:
    """All components in the order of their hooks; those of ``components`` are last."""
    train = config.train
    found: list[Component] = []
    own = dict(config.components)
    quantization, patience = own.pop("quantization", None), own.pop("patience", None)
    if train.patience:  # first: it notes that it has ended the run before others change the model at its end
        found.append(Patience(train.patience, build(PatienceOptions, patience or {}, "components.patience")))
    elif patience:
        raise UserError("components.patience are options of train.patience: add train.patience=3, or leave them out")
    if train.qat:
        options = build(QuantizationOptions, quantization or {}, "components.quantization")
        found.append(Quantization(train, options))
    elif quantization:
        raise UserError("components.quantization are options of train.qat: add train.qat=q4_0, or leave them out")
    if config.distill.teacher:
        found.append(Teacher())
    if train.phases:
        found.append(Phases(train.phases))
    if config.calibrates_head:
        found.append(HeadCalibration())
    if train.spike_factor:
        found.append(SpikeGuard(train.spike_factor))
    found += [_named(name, options) for name, options in own.items()]
    for each in found:
        each.check(config)
    return found


def _named(name: str, options: Any) -> Component:
    """The component of the file ``name`` with these options of its ``Options``."""
    where = f"components.{name}"
    modules = {each.name for each in iter_modules(components.__path__)}
    module = import_module(f"slm.train.components.{name}") if name in modules else None
    own: Any = getattr(module, "Options", None)
    if not (isinstance(own, type) and dataclasses.is_dataclass(own)):
        hint = nearest(name, sorted(modules)) or "a file of that name in train/components/ would be one"
        raise UserError(f"{where}: there is no such component with its own options; {hint}")
    made: Component = build(own, options or {}, where).make()  # type: ignore[attr-defined]
    return made
