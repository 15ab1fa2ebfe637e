"""Settings of the whole test suite: how much hypothesis tries, and how a failure is found again."""

from hypothesis import HealthCheck, settings

# Shared machines are slow now and then, so no example has a deadline. `print_blob` makes a failing example
# replay alone; the seed of the order is in pytest's header ("Using --randomly-seed=…").
settings.register_profile(
    "ci", max_examples=60, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("ci"), max_examples=5_000)
settings.load_profile("ci")
