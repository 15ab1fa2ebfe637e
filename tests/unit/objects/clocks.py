"""A clock that jumps instead of waiting."""


class JumpingClock:
    """Starts at 0; `sleep` moves it and returns at once."""

    def __init__(self) -> None:
        self._now = 0.0
        self.sleeps: list[float] = []

    def now_ms(self) -> int:
        return int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._now += seconds
