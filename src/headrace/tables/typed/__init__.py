"""Typed columns: a schema that people gave becomes a struct, and values become its fields."""
