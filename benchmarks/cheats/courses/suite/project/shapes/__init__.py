"""Shapes and their areas."""

from shapes.area import total_area

__all__ = ["total_area"]
