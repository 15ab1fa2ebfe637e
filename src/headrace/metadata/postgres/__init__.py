"""The metadata engine for many hosts: PostgreSQL through `asyncpg`, which only this package imports."""
