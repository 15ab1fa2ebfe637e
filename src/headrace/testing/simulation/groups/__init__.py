"""Histories of consumer groups: members that join, leave and stop, coordinators that die, stores that fail."""
