"""The embedded metadata engine: SQLite through `apsw`, shared by the processes of one host."""
