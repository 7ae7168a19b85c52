"""Saved form of a `dgc_lab.distributed.DistributedOptimizer`: its config, and the state of each rank."""

from __future__ import annotations

import dataclasses
import warnings

import keras
import numpy as np

from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.scheme import Scheme
from dgc_lab.compression.schemes.gallery import is_published, parse_scheme

BEFORE_EXCHANGE = "gradient_accumulation_steps", "loss_scale_factor"  # the inner optimizer's options that act before it


def saved_state(optimizer) -> dict:
    """Return the variables in which this rank can differ from others, by number, and those of the loss scale."""
    own = list(optimizer.compressor.state)
    if optimizer.gradient_accumulation_steps:
        own += [variable.value for variable in (optimizer._iterations, *optimizer._accumulated_gradients)]
    return {str(number): variable for number, variable in enumerate(own)} | optimizer.loss_scale


def save_state(optimizer, store) -> None:
    """Save the rank and the variables of `saved_state`, if the optimizer is built."""
    if optimizer.built:
        communicator = optimizer.communicator
        store["rank"], store["workers"] = np.array(communicator.first), np.array(communicator.size)
        for name, variable in saved_state(optimizer).items():
            store[name] = variable.numpy()


def load_state(optimizer, store) -> None:
    """Load the state that `save_state` saved, if any. An unbuilt optimizer warns, as Keras's own do.

    Raises:
        ValueError: another rank saved the residuals, or the model had another config.
    """
    names = set(store.keys())
    if not names:
        return
    if not optimizer.built:
        warnings.warn("residuals and velocities were not loaded: the optimizer is not built yet", stacklevel=3)
        return
    state, communicator = saved_state(optimizer), optimizer.communicator
    numbers, saved_numbers = ({name for name in some if name.isdigit()} for some in (state, names))
    saved = f"rank {int(np.asarray(store['rank']))} of {int(np.asarray(store['workers']))}"
    own = f"rank {communicator.first} of {communicator.size}"
    # Without compression, the only numbered variable is the step, which is the same on every rank.
    if len(numbers) > 1 and saved != own:
        raise ValueError(f"the file holds residuals of {saved}, and this is {own}: each rank must load its own")
    if numbers != saved_numbers:
        raise ValueError(
            f"the file must hold the optimizer's {len(numbers)} state variables, got {len(saved_numbers)}: load it "
            "with the config and gradient_accumulation_steps that the model was saved with"
        )
    for name in state.keys() & names:  # a model trained in float32 has no loss scale
        state[name].assign(np.asarray(store[name]))


def assign_weights(optimizer, weights: list) -> None:
    """Assign a list of arrays to an optimizer's variables.

    Raises:
        ValueError: the optimizer is not built, or the number or the shapes of the arrays differ from the variables'.
    """
    if not optimizer.built:
        raise ValueError("optimizer must be built before set_weights: call optimizer.build(model.trainable_variables)")
    variables = optimizer.variables
    if len(weights) != len(variables):
        raise ValueError(f"weights must hold {len(variables)} arrays, like optimizer.variables, got {len(weights)}")
    for variable, weight in zip(variables, weights, strict=True):
        if tuple(variable.shape) != np.shape(weight):
            shapes = f"must have shape {tuple(variable.shape)}, got {np.shape(weight)}"
            raise ValueError(f"the array for {variable.path} in weights {shapes}")
    for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)
    if len(optimizer.compressor.state) > 1:  # more than the step
        warnings.warn(
            "velocities and residuals are not among the optimizer's variables, so set_weights and .h5 files leave "
            "them unchanged: save the model in a .keras file, or each rank with dgc_lab.distributed.SaveRanks",
            stacklevel=3,
        )


def save_compression(config: DGCConfig | Scheme | None) -> str | dict | None:
    """Return the form in which a model is saved with a config or scheme; `load_compression` reads it.

    Example:
        >>> load_compression(save_compression(DGCConfig(ratio=0.01))).ratio
        0.01
    """
    if isinstance(config, Scheme):
        return config.name if is_published(config) else f"custom scheme {config.name}".strip()
    return config and dataclasses.asdict(config)


def load_compression(saved: str | dict | None) -> DGCConfig | Scheme | None:
    """Return the config or the published scheme in a saved model; None if there is none.

    Raises:
        ValueError: `saved` names a custom scheme, which a file cannot store.
    """
    if not isinstance(saved, str):
        return saved and DGCConfig(**saved)
    try:
        return parse_scheme(saved)
    except ValueError:
        raise ValueError(
            f"the model was saved with the scheme {saved!r}, which a file cannot store. Load it with compile=False, "
            "and compile it with that scheme again"
        ) from None


def load_inner_optimizer(config: dict, custom_objects: dict | None) -> keras.optimizers.Optimizer:
    """Return the inner optimizer in a saved config, with the options that act before the exchange."""
    inner = keras.saving.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
    for name in BEFORE_EXCHANGE:
        setattr(inner, name, config[name])
    return inner
