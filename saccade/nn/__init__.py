"""Tensors to tensors: layers that know no configuration, each of use on its own."""

from saccade.nn.attention import (
    Additive,
    Attention,
    Concat,
    CrossAttention,
    Dot,
    General,
    ParameterFree,
    ScaledDot,
    SelfAttention,
    attend,
    attention_weights,
)
from saccade.nn.convolution import GatedConvolution
from saccade.nn.distributions import Distribution, Gaussian, Mixture
from saccade.nn.dropout import Dropout
from saccade.nn.loss import Loss, projected_cross_entropy
from saccade.nn.padded import Memory, Padded, masked_mean, pad
from saccade.nn.positions import Learned, Sinusoidal, rotate, sinusoids
from saccade.nn.recurrent import Recurrent
from saccade.nn.state import Fixed, detach, map_state, reorder, repeat, select
from saccade.nn.transformer import Block, FeedForward
from saccade.nn.watch import over_time, watch

__all__ = [
    "Additive",
    "Attention",
    "Block",
    "Concat",
    "CrossAttention",
    "Distribution",
    "Dot",
    "Dropout",
    "FeedForward",
    "Fixed",
    "GatedConvolution",
    "Gaussian",
    "General",
    "Learned",
    "Loss",
    "Memory",
    "Mixture",
    "Padded",
    "ParameterFree",
    "Recurrent",
    "ScaledDot",
    "SelfAttention",
    "Sinusoidal",
    "attend",
    "attention_weights",
    "detach",
    "map_state",
    "masked_mean",
    "over_time",
    "pad",
    "projected_cross_entropy",
    "reorder",
    "repeat",
    "rotate",
    "select",
    "sinusoids",
    "watch",
]
