"""The catalog port on PyIceberg: SQL on SQLite, and REST. No type of PyIceberg's leaves this package."""
