"""The harness that ships: simulation, faulty stores, checkers, and a clock that tests move by hand."""
