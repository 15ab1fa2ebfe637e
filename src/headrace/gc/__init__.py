"""Keeping the log small: folding, trimming, and collecting objects that nothing names any more."""
