"""Makers of the operators' golden files, by family."""

from .golden import MAKERS, make
from . import attention, linear, loss, optimizer, pointwise
