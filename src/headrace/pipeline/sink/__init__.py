"""The way from a DataFrame into the log: rows to frames in tasks, all frames of a batch in one commit."""
