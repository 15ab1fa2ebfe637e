"""Histories of weeks: topics that are kept by age, by size, by key and for ever, while all that keeps them fails."""
